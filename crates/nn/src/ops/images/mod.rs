//! Pooling and resampling of images.

mod average;
mod line;
mod max;
mod upsample;
mod window;

pub use average::{adaptive_avg_pool2d, avg_pool2d};
pub use max::max_pool2d;
pub use upsample::{upsample_bilinear2d, upsample_nearest1d, upsample_nearest2d};
