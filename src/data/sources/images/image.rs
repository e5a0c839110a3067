use std::path::PathBuf;

use candle_core::{Device, Tensor};

use crate::error::{BoxedError, DataError};

/// A decoded image: the sample of [`ImageFolder`](super::ImageFolder).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Image {
    /// The pixels: `u8`, `[height, width, channels]`, on the CPU.
    pub pixels: Tensor,
    /// The index of its class.
    pub label: u32,
    /// Its file.
    pub path: PathBuf,
}

/// Makes two tensors of images of equal size: the pixels, `u8`, `[images, height, width, channels]`, and the labels, `u32`,
/// `[images]`, both on the CPU. It is a collate function for a loader of [`ImageFolder`](super::ImageFolder).
///
/// # Errors
/// [`DataError::Setting`] if there is no image or if the sizes differ.
pub fn stack_images(images: Vec<Image>) -> Result<(Tensor, Tensor), BoxedError> {
    let Some(first) = images.first() else {
        return Err(DataError::Setting("no images to stack".into()).into());
    };
    let shape = first.pixels.dims();
    if let Some(other) = images.iter().find(|image| image.pixels.dims() != shape) {
        let problem = format!(
            "images of equal size are stacked: {} has {shape:?}, {} has {:?}; set `size`",
            first.path.display(),
            other.path.display(),
            other.pixels.dims(),
        );
        return Err(DataError::Setting(problem).into());
    }
    let pixels: Vec<_> = images.iter().map(|image| &image.pixels).collect();
    let labels = images.iter().map(|image| image.label);
    Ok((
        Tensor::stack(&pixels, 0)?,
        Tensor::from_iter(labels, &Device::Cpu)?,
    ))
}
