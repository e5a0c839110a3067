//! Sums over cells and what is computed with them.

mod gradient;
mod layout;
mod moments;
mod scaling;
mod sums;

pub use gradient::CellGradient;
pub use layout::Cells;
pub use moments::CellMoments;
pub use scaling::CellScaling;
pub use sums::CellSums;
