//! cuDNN 9: the forward convolutions of candle's feature `cudnn`, computed on the host.

mod algorithm;
mod convolution;
pub mod describing;
mod descriptor;
pub mod entry;
pub mod handle;
mod shape;
