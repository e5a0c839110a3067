//! Moments of 8 bits: blocks of 256 elements, each with its largest element in f32 and a byte for each element.

mod block;
mod code;
mod form;
#[cfg(test)]
mod tests;

pub use block::{BLOCK, bytes_of, elements_of};
pub use code::Code;
pub use form::Form;
