//! Folders of images.

mod decode;

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};

use crate::data::dataset::{Dataset, out_of_range, without_samples};
use crate::error::{BoxedError, DataError, Result, invalid};
pub use decode::Channels;
use decode::Decoding;

const MAX_PIXELS: u64 = 89_478_485;

/// A folder of images, with one folder for each class: a sample is an image and its class.
///
/// The classes are the subfolders in the order of their names; the samples are their JPEG and PNG files, by the ending of the
/// name, class after class and in the order of their names. Other files, deeper folders, and names that begin with a dot are left
/// out. An image is decoded when it is read, so in the threads of a loader. It is not turned as its EXIF data may ask.
///
/// ```
/// use candle_headroom::data::{Dataset, ImageFolder, stack_images};
/// use image::RgbImage;
///
/// let folder = tempfile::tempdir()?;
/// for class in ["cat", "dog"] {
///     let class = folder.path().join(class);
///     std::fs::create_dir(&class)?;
///     RgbImage::new(20, 10).save(class.join("1.png"))?;
/// }
///
/// let images = ImageFolder::builder(folder.path()).size(8, 8).open()?;
/// assert_eq!((images.len(), images.classes()), (2, &["cat".to_owned(), "dog".to_owned()][..]));
/// let (pixels, labels) = stack_images(vec![images.get(0)?, images.get(1)?])?;
/// assert_eq!(pixels.dims(), [2, 8, 8, 3]);
/// assert_eq!(labels.to_vec1::<u32>()?, [0, 1]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ImageFolder {
    path: PathBuf,
    classes: Vec<String>,
    files: Box<[(PathBuf, u32)]>,
    decoding: Decoding,
}

/// Settings of [`ImageFolder`], from [`ImageFolder::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ImageFolderBuilder {
    path: PathBuf,
    decoding: Decoding,
}

impl ImageFolder {
    /// Lists a folder of classes; its images keep their size and get three channels.
    ///
    /// # Errors
    /// Those of [`ImageFolderBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Describes a folder of classes.
    pub fn builder(path: impl Into<PathBuf>) -> ImageFolderBuilder {
        ImageFolderBuilder {
            path: path.into(),
            decoding: Decoding {
                channels: Channels::Rgb,
                size: None,
                max_pixels: MAX_PIXELS,
            },
        }
    }

    /// Returns the names of the classes; a label is an index of them.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl ImageFolderBuilder {
    /// Resizes each image to a height and a width in pixels, by linear interpolation over the pixels that one covers; the aspect
    /// ratio is not kept.
    pub fn size(mut self, height: u32, width: u32) -> Self {
        self.decoding.size = Some((height, width));
        self
    }

    /// Sets what a pixel has; [`Channels::Rgb`] by default. Images are converted, those of 16 bits to 8.
    pub fn channels(mut self, channels: Channels) -> Self {
        self.decoding.channels = channels;
        self
    }

    /// Sets how many pixels an image may have, width times height; 89,478,485 by default, as in Pillow. A small file can state any
    /// size, and decoding takes up to 8 bytes for each pixel.
    pub fn max_pixels(mut self, pixels: u64) -> Self {
        self.decoding.max_pixels = pixels;
        self
    }

    /// Lists the folders.
    ///
    /// # Errors
    /// [`DataError::File`] if a folder cannot be read or a class has a name that is not UTF-8; and an [error of
    /// data](crate::Error::is_data) if there is no image or if the size is 0.
    pub fn open(self) -> Result<ImageFolder> {
        let Self { path, decoding } = self;
        if let Some((height, width)) = decoding.size
            && (height == 0 || width == 0)
        {
            return Err(invalid!(
                Data,
                "the size of images must be at least 1 × 1, got {height} × {width}"
            ));
        }
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for folder in list(&path, Path::is_dir)? {
            let name = folder.file_name().and_then(|name| name.to_str());
            let name =
                name.ok_or_else(|| DataError::file(&folder, None, "has a name that is not UTF-8"))?;
            let label = classes.len() as u32;
            classes.push(name.to_owned());
            let images = list(&folder, |file| is_image(file) && file.is_file())?;
            files.extend(images.into_iter().map(|file| (file, label)));
        }
        if files.is_empty() {
            let name = format!("{} with its subfolders", path.display());
            return Err(without_samples(&name));
        }
        Ok(ImageFolder {
            path,
            classes,
            files: files.into(),
            decoding,
        })
    }
}

/// The entries of a folder that are asked for, in the order of their names.
fn list(folder: &Path, is_asked: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let entries =
        fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<DirEntry>>>);
    let entries = entries.map_err(|reason| DataError::io(folder, None, reason))?;
    let is_hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    let paths = entries
        .iter()
        .filter(|entry| !is_hidden(entry))
        .map(DirEntry::path);
    let mut paths: Vec<_> = paths.filter(|path| is_asked(path)).collect();
    paths.sort();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let ending = path.extension().unwrap_or_default();
    ["jpg", "jpeg", "png"]
        .iter()
        .any(|known| ending.eq_ignore_ascii_case(known))
}

impl Dataset for ImageFolder {
    type Sample = Image;

    fn len(&self) -> usize {
        self.files.len()
    }

    /// Decodes an image.
    ///
    /// # Errors
    /// [`DataError::File`] if the file cannot be read, is damaged or has more than
    /// [`max_pixels`](ImageFolderBuilder::max_pixels), and another one for an index out of range.
    fn get(&self, index: usize) -> Result<Image, BoxedError> {
        let (path, label) = self
            .files
            .get(index)
            .ok_or_else(|| out_of_range(self, index))?;
        Ok(Image {
            pixels: self.decoding.read(path)?,
            label: *label,
            path: path.clone(),
        })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// A decoded image: the sample of [`ImageFolder`].
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
/// `[images]`, both on the CPU. It is a collate function for a loader of [`ImageFolder`].
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there is no image or if the sizes differ.
pub fn stack_images(images: Vec<Image>) -> Result<(Tensor, Tensor), BoxedError> {
    let Some(first) = images.first() else {
        return Err(invalid!(Data, "no images to stack").into());
    };
    let shape = first.pixels.dims();
    if let Some(other) = images.iter().find(|image| image.pixels.dims() != shape) {
        return Err(invalid!(
            Data,
            "images of equal size are stacked: {} has {shape:?}, {} has {:?}; set `size`",
            first.path.display(),
            other.path.display(),
            other.pixels.dims(),
        )
        .into());
    }
    let pixels: Vec<_> = images.iter().map(|image| &image.pixels).collect();
    let labels = images.iter().map(|image| image.label);
    Ok((
        Tensor::stack(&pixels, 0)?,
        Tensor::from_iter(labels, &Device::Cpu)?,
    ))
}
