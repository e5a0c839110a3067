use std::io::Cursor;
use std::path::Path;

use candle_core::{Device, Tensor};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageReader};
use memchr::memchr;

use crate::error::{BoxedError, DataError};
use crate::fixed_file::FixedFile;

/// What a pixel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channels {
    /// Brightness.
    Gray,
    /// Red, green and blue.
    Rgb,
    /// Red, green, blue and opacity.
    Rgba,
}

impl Channels {
    /// The bytes of a pixel, and those of all pixels, row after row.
    fn pixels(self, image: DynamicImage) -> (usize, Vec<u8>) {
        match self {
            Self::Gray => (1, image.into_luma8().into_raw()),
            Self::Rgb => (3, image.into_rgb8().into_raw()),
            Self::Rgba => (4, image.into_rgba8().into_raw()),
        }
    }
}

/// How images are decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoding {
    pub channels: Channels,
    /// Height and width.
    pub size: Option<(u32, u32)>,
    pub max_pixels: u64,
}

impl Decoding {
    /// Reads a file: `u8`, `[height, width, channels]`.
    pub fn read(self, path: &Path) -> Result<Tensor, BoxedError> {
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
        let (channels, pixels) = self.channels.pixels(image);
        Ok(Tensor::from_vec(
            pixels,
            (height, width, channels),
            &Device::Cpu,
        )?)
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
