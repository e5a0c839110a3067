//! Folders of images.

use std::fs::{self, DirEntry, FileType};
use std::io::{self, Cursor, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use candle_core::{Device, Tensor};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageReader};
use memchr::memchr;
use serde::{Deserialize, Serialize};

use crate::data::collate::stack;
use crate::data::dataset::{Dataset, out_of_range, without_samples};
use crate::error::{BoxedError, DataError, Result, invalid};
use crate::files;
use crate::fixed_file::FixedFile;

const MAX_PIXELS: u64 = 89_478_485;

/// A folder of images, with one folder for each class (the layout of torchvision's `ImageFolder`): a sample is an image and its class.
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
///
/// ```
/// # use candle_headroom::data::{Dataset, ImageFolder};
/// # let folder = tempfile::tempdir()?;
/// # std::fs::create_dir(folder.path().join("cat"))?;
/// # image::RgbImage::new(20, 10).save(folder.path().join("cat/1.png"))?;
/// let images = ImageFolder::builder(folder.path()).size(8, 16).max_pixels(1_000_000).open()?;
/// assert_eq!(images.get(0)?.pixels.dims(), [8, 16, 3]);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ImageFolderBuilder {
    path: PathBuf,
    index: Option<PathBuf>,
    decoding: Decoding,
}

impl ImageFolder {
    /// Opens a folder of classes without options: its images keep their size.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, ImageFolder};
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::create_dir(folder.path().join("cat"))?;
    /// # image::RgbImage::new(20, 10).save(folder.path().join("cat/1.png"))?;
    /// let images = ImageFolder::open(folder.path())?;
    /// assert_eq!(images.get(0)?.pixels.dims(), [10, 20, 3]); // height, width, channels
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`ImageFolderBuilder::open`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::builder(path).open()
    }

    /// Describes a folder of classes; its images keep their size by default.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, ImageFolder};
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::create_dir(folder.path().join("cat"))?;
    /// # image::RgbImage::new(20, 10).save(folder.path().join("cat/1.png"))?;
    /// let images = ImageFolder::builder(folder.path()).open()?;
    /// assert_eq!((images.len(), images.classes()), (1, &["cat".to_owned()][..]));
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn builder(path: impl Into<PathBuf>) -> ImageFolderBuilder {
        ImageFolderBuilder {
            path: path.into(),
            index: None,
            decoding: Decoding {
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
    /// Resizes each image to a height and a width in pixels, by linear interpolation with anti-aliasing (a triangle filter). The aspect ratio is
    /// not kept.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, ImageFolder};
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::create_dir(folder.path().join("cat"))?;
    /// # image::RgbImage::new(20, 10).save(folder.path().join("cat/1.png"))?;
    /// let images = ImageFolder::builder(folder.path()).size(224, 224).open()?;
    /// assert_eq!(images.get(0)?.pixels.dims(), [224, 224, 3]); // from 10 × 20
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn size(mut self, height: u32, width: u32) -> Self {
        self.decoding.size = Some((height, width));
        self
    }

    /// Sets how many pixels an image may have, width times height; 89,478,485 by default, as in Pillow. A small file can state any
    /// size, and decoding takes up to 8 bytes for each pixel.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, ImageFolder};
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::create_dir(folder.path().join("cat"))?;
    /// # image::RgbImage::new(20, 10).save(folder.path().join("cat/1.png"))?;
    /// let images = ImageFolder::builder(folder.path()).max_pixels(100).open()?;
    /// let error = images.get(0).unwrap_err();
    /// assert!(error.to_string().contains("has 20 × 10 pixels, and at most 100 are decoded"), "{error}");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn max_pixels(mut self, pixels: u64) -> Self {
        self.decoding.max_pixels = pixels;
        self
    }

    /// Stores the list of images in an index file. Opening the folder again then reads only the times of the folder and its classes, and lists no
    /// images.
    ///
    /// A missing index is written. An index of another folder, or with other times, is written again: adding, removing or renaming an
    /// image changes the times of its class. On Unix both the modification time and the change time are compared, because programs may set the
    /// former. If a class was modified within the last 2 seconds, no index is written, because a later change might not alter the times.
    /// An image that is overwritten in place is not detected, with or without an index.
    ///
    /// ```
    /// # use candle_headroom::data::{Dataset, ImageFolder};
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::create_dir(folder.path().join("cat"))?;
    /// # image::RgbImage::new(20, 10).save(folder.path().join("cat/1.png"))?;
    /// # let elsewhere = tempfile::tempdir()?;
    /// let index = elsewhere.path().join("images.json"); // not in the folder of the images
    /// let images = ImageFolder::builder(folder.path()).index(&index).open()?;
    /// assert_eq!(images.len(), 1);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn index(mut self, path: impl Into<PathBuf>) -> Self {
        self.index = Some(path.into());
        self
    }

    /// Lists the files of all classes. No image is decoded yet.
    ///
    /// ```
    /// # use candle_headroom::data::ImageFolder;
    /// # let folder = tempfile::tempdir()?;
    /// let error = ImageFolder::builder(folder.path()).open().unwrap_err(); // an empty folder
    /// assert!(error.is_data());
    /// assert!(error.to_string().ends_with(" has no samples"), "{error}");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`DataError::File`] if a folder cannot be read, a class has a name that is not UTF-8, or the [`index`](Self::index) is no index, cannot be
    /// written or lies in the folder; and an [error of data](crate::Error::is_data) if there is no image or if the size is 0.
    pub fn open(self) -> Result<ImageFolder> {
        let Self {
            path,
            index,
            decoding,
        } = self;
        if let Some((height, width)) = decoding.size
            && (height == 0 || width == 0)
        {
            return Err(invalid!(
                Data,
                "the size of images must be at least 1 × 1, got {height} × {width}"
            ));
        }
        let listing = match index {
            Some(index) => Listing::indexed(&path, &index)?,
            None => Listing::read(&path)?,
        };
        let (mut classes, mut files) = (Vec::new(), Vec::new());
        for class in listing.classes {
            let (folder, label) = (path.join(&class.name), classes.len() as u32);
            files.extend(class.images.iter().map(|image| (folder.join(image), label)));
            classes.push(class.name);
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

/// The classes of a folder and their images, as an index keeps them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Listing {
    folder: String,
    /// When a class was last added, removed or renamed.
    times: Option<Times>,
    classes: Vec<Class>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Class {
    name: String,
    times: Option<Times>,
    /// Names of files.
    images: Vec<PathBuf>,
}

/// When an entry of a folder was last added, removed or renamed: the modification time, which may be set to any other, and on Unix the change time.
type Times = [SystemTime; 2];

/// A folder that is changed twice within so much time may have the same times.
const SAME_TIME: Duration = Duration::from_secs(2);

impl Listing {
    fn read(path: &Path) -> Result<Self, DataError> {
        let of_folder = times(path);
        let classes = list(path, |_, kind| kind.is_dir())?
            .into_iter()
            .map(|name| {
                let folder = path.join(&name);
                let name = name.into_os_string().into_string();
                let name = name
                    .map_err(|_| DataError::file(&folder, None, "has a name that is not UTF-8"))?;
                // Before the files are listed: a change meanwhile is one.
                let times = times(&folder);
                let images = list(&folder, |name, kind| is_image(name) && kind.is_file())?;
                Ok(Class {
                    name,
                    times,
                    images,
                })
            });
        let classes = classes.collect::<Result<_, _>>()?;
        Ok(Self {
            folder: path.display().to_string(),
            times: of_folder,
            classes,
        })
    }

    /// What an index holds, if it is that of the folder as it is now; else the index is written anew.
    fn indexed(path: &Path, index: &Path) -> Result<Self, DataError> {
        let failed = |reason| DataError::io(index, None, reason);
        let wrong = |problem: String| DataError::file(index, None, problem);
        let folder = index.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize();
        let images = path.canonicalize();
        let path = &images.map_err(|reason| DataError::io(path, None, reason))?;
        if folder.map_err(failed)?.starts_with(path) {
            let problem =
                "lies in the folder of the images, which it would change: put the index elsewhere";
            return Err(wrong(problem.to_owned()));
        }
        match fs::read(index) {
            Ok(bytes) => {
                let kept: Self = serde_json::from_slice(&bytes).map_err(|error| {
                    wrong(format!(
                        "is no index of images: {error}; delete it, or name another file"
                    ))
                })?;
                if let Some(name) = kept
                    .names()
                    .find(|name| !name.to_str().is_some_and(files::is_plain))
                {
                    return Err(wrong(format!(
                        "names {}, which is no entry of a folder",
                        name.display()
                    )));
                }
                if kept.is_of(path) {
                    return Ok(kept);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let began = SystemTime::now();
        let listing = Self::read(path)?;
        let is_old = |time: &SystemTime| {
            began
                .duration_since(*time)
                .is_ok_and(|age| age >= SAME_TIME)
        };
        if listing
            .times()
            .all(|times| times.is_some_and(|times| times.iter().all(is_old)))
        {
            let write = |file: &mut dyn io::Write| Ok(serde_json::to_writer(file, &listing)?);
            files::replace(index, write).map_err(failed)?;
        } else {
            tracing::info!(
                ?index,
                "the folder of images was changed just now: no index is written"
            );
        }
        Ok(listing)
    }

    fn names(&self) -> impl Iterator<Item = &Path> {
        let classes = self.classes.iter();
        classes.flat_map(|class| {
            class
                .images
                .iter()
                .map(PathBuf::as_path)
                .chain([Path::new(&class.name)])
        })
    }

    fn times(&self) -> impl Iterator<Item = Option<Times>> {
        let classes = self.classes.iter().map(|class| class.times);
        classes.chain([self.times])
    }

    /// Whether no folder has changed.
    fn is_of(&self, path: &Path) -> bool {
        self.folder == path.display().to_string()
            && self.times().all(|times| times.is_some())
            && self.times == times(path)
            && self
                .classes
                .iter()
                .all(|class| class.times == times(&path.join(&class.name)))
    }
}

fn times(folder: &Path) -> Option<Times> {
    let found = fs::metadata(folder).ok()?;
    let modified = found.modified().ok()?;
    #[cfg(unix)]
    let changed = {
        use std::os::unix::fs::MetadataExt;
        let second = u64::try_from(found.ctime()).ok()?;
        let since = Duration::new(second, u32::try_from(found.ctime_nsec()).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(since)?
    };
    #[cfg(not(unix))]
    let changed = modified;
    Some([modified, changed])
}

/// The names of a folder's entries that are asked for, in their order.
fn list(
    folder: &Path,
    is_asked: impl Fn(&Path, FileType) -> bool,
) -> Result<Vec<PathBuf>, DataError> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<DirEntry>>>);
    let entries = entries.map_err(|reason| DataError::io(folder, None, reason))?;
    let shown = entries.into_iter().filter_map(|entry| {
        let name = PathBuf::from(entry.file_name());
        // The folder says what its entries are; only what a link leads to has to be looked up.
        let kind = match entry.file_type().ok()? {
            link if link.is_symlink() => fs::metadata(entry.path()).ok()?.file_type(),
            kind => kind,
        };
        let is_hidden = name.as_os_str().as_encoded_bytes().starts_with(b".");
        (!is_hidden && is_asked(&name, kind)).then_some(name)
    });
    let mut names: Vec<_> = shown.collect();
    names.sort();
    Ok(names)
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
        let file = self.files.get(index);
        let (path, label) = file.ok_or_else(|| out_of_range(self, index))?;
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
///
/// ```
/// # use candle_headroom::data::{Dataset, ImageFolder};
/// # let folder = tempfile::tempdir()?;
/// # for class in ["cat", "dog"] {
/// #     let class = folder.path().join(class);
/// #     std::fs::create_dir(&class)?;
/// #     image::RgbImage::new(20, 10).save(class.join("1.png"))?;
/// # }
/// let image = ImageFolder::open(folder.path())?.get(1)?;
/// assert!(image.path.ends_with("dog/1.png"));
/// assert_eq!((image.label, image.pixels.dims()), (1, &[10, 20, 3][..]));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Image {
    /// The pixels: `u8`, `[height, width, 3]`, red, green and blue, on the CPU. Images of another kind are converted, those of 16 bits to 8; of a
    /// grey one the three are equal.
    pub pixels: Tensor,
    /// The index of its class.
    pub label: u32,
    /// Its file.
    pub path: PathBuf,
}

/// Makes two tensors of images of equal size: the pixels, `u8`, `[images, height, width, 3]`, and the labels, `u32`,
/// `[images]`, both on the CPU. It is a collate function for a loader of [`ImageFolder`].
///
/// ```
/// use candle_headroom::data::{ImageFolder, Loader, stack_images};
///
/// # let folder = tempfile::tempdir()?;
/// # std::fs::create_dir(folder.path().join("cat"))?;
/// # for name in ["cat/1.png", "cat/2.png", "cat/3.png"] {
/// #     image::RgbImage::new(20, 10).save(folder.path().join(name))?;
/// # }
/// let images = ImageFolder::builder(folder.path()).size(8, 8).open()?;
/// let mut loader = Loader::builder(images, stack_images).batch(3).build()?;
/// let (pixels, labels) = loader.next().expect("a batch")?.into_inner();
/// assert_eq!((pixels.dims(), labels.dims()), (&[3, 8, 8, 3][..], &[3][..]));
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there is no image or if the sizes differ.
pub fn stack_images(images: Vec<Image>) -> Result<(Tensor, Tensor), BoxedError> {
    let mut neighbours = images.iter().zip(images.iter().skip(1));
    let differ = |(one, other): &(&Image, &Image)| one.pixels.dims() != other.pixels.dims();
    if let Some((one, other)) = neighbours.find(differ) {
        return Err(invalid!(
            Data,
            "images of equal size are stacked: {} has {:?}, {} has {:?}; set `size`",
            one.path.display(),
            one.pixels.dims(),
            other.path.display(),
            other.pixels.dims(),
        )
        .into());
    }
    let pair = |image: Image| Ok((image.pixels, Tensor::new(image.label, &Device::Cpu)?));
    stack(images.into_iter().map(pair).collect::<Result<_>>()?)
}

/// How images are decoded.
#[derive(Debug, Clone, Copy)]
struct Decoding {
    /// Height and width.
    size: Option<(u32, u32)>,
    max_pixels: u64,
}

impl Decoding {
    /// Reads a file: `u8`, `[height, width, 3]`.
    fn read(self, path: &Path) -> Result<Tensor, BoxedError> {
        let read = FixedFile::open(path).and_then(|file| file.read(0..file.len()));
        let bytes = read.map_err(|reason| DataError::io(path, None, reason))?;
        let wrong = |problem: String| DataError::file(path, None, problem);
        if is_truncated(&bytes) {
            let end = bytes.len() as u64;
            return Err(DataError::file(path, end, "ends here, in the middle of the image").into());
        }
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
        let reader = reader.map_err(|reason| DataError::io(path, None, reason))?;
        let invalid = |error: image::ImageError| wrong(error.to_string());
        let decoder = reader.into_decoder().map_err(invalid)?;
        let ((width, height), most) = (decoder.dimensions(), self.max_pixels);
        if u64::from(width) * u64::from(height) > most {
            return Err(wrong(format!(
                "has {width} × {height} pixels, and at most {most} are decoded: raise `max_pixels`, or leave the image out"
            ))
            .into());
        }
        let mut image = DynamicImage::from_decoder(decoder).map_err(invalid)?;
        if let Some((height, width)) = self.size {
            image = image.resize_exact(width, height, FilterType::Triangle);
        }
        let (height, width) = (image.height() as usize, image.width() as usize);
        let pixels = image.into_rgb8().into_raw();
        Ok(Tensor::from_vec(pixels, (height, width, 3), &Device::Cpu)?)
    }
}

/// Returns whether bytes are the beginning of a JPEG file whose end is missing. The decoder fills what a truncated file lacks
/// with grey, without an error.
fn is_truncated(bytes: &[u8]) -> bool {
    const START: [u8; 2] = [0xFF, 0xD8];
    bytes.starts_with(&START) && !has_end(bytes.get(START.len()..).unwrap_or_default())
}

/// Walks over segments, which state their length, and the compressed data between them, in which a marker cannot occur.
fn has_end(mut rest: &[u8]) -> bool {
    const END: u8 = 0xD9;
    while let Some(at) = memchr(0xFF, rest) {
        let Some((marker, after)) = rest.get(at + 1..).and_then(<[u8]>::split_first) else {
            return false;
        };
        rest = match *marker {
            END => return true,
            // Filling before a marker.
            0xFF => rest.get(at + 1..).unwrap_or_default(),
            // An escaped byte of the data, or a marker without a segment.
            0x00 | 0x01 | 0xD0..=0xD8 => after,
            _ => match after {
                [high, low, ..] => {
                    let len = usize::from(u16::from_be_bytes([*high, *low]));
                    after.get(len..).unwrap_or_default()
                }
                _ => return false,
            },
        };
    }
    false
}
