//! Pooling and resampling of images.

mod pool;
mod resample;

pub use pool::{adaptive_avg_pool2d, avg_pool2d, max_pool2d};
pub use resample::{upsample_bilinear2d, upsample_nearest1d, upsample_nearest2d};
