//! Gradients against central differences in f64.

mod candle;
mod images;
mod replacements;
