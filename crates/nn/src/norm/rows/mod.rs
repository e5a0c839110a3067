//! Normalization of rows.

mod backward;
mod forward;
mod layout;
mod normalize;

pub use backward::RowsBackward;
pub use forward::RowsForward;
pub use layout::Rows;
pub use normalize::normalize;
