//! What the examples that train have in common.

pub mod changes;
pub mod choices;
pub mod closing;
pub mod display;
pub mod failing;
pub mod options;
pub mod ranks;
pub mod saving;
pub mod watching;
