//! Folders of images.

mod decode;
mod folder;
mod image;
mod jpeg;

pub use decode::Channels;
pub use folder::{ImageFolder, ImageFolderBuilder};
pub use image::{Image, stack_images};
