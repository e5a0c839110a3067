//! Files of which each line is a sample.

mod index;
mod json;
mod text;

pub use json::JsonLines;
pub use text::{Lines, LinesBuilder};
