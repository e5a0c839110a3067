//! Files that are read at positions while nobody may change them. The program `finetune` reads models by it too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::ErrorKind::{self, InvalidData};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};

use crate::files;

/// A safetensors file begins with the length of its header.
const LENGTH: u64 = 8;
/// The longest header of a safetensors file, as the crate `safetensors` has it.
const MOST_HEADER: u64 = 100_000_000;

/// An open regular file with the length and the modification time that it had when it was opened, or one version of an object at a URL. A file
/// is never mapped: an error of the disk, or a file that becomes shorter, would be a signal that ends the process.
#[derive(Debug)]
pub struct FixedFile {
    path: PathBuf,
    len: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File {
        file: File,
        modified: Option<SystemTime>,
    },
    #[cfg(feature = "object-store")]
    Object(std::sync::Arc<crate::remote::Object>),
}

/// A tensor of a safetensors file, by its header, which agrees with itself: the range has the bytes of this shape and type.
#[derive(Debug)]
pub struct StoredTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub range: Range<u64>,
}

impl FixedFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(url) = files::url(path) {
            return Self::open_url(path, url);
        }
        let file = files::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("is not a regular file"));
        }
        Ok(Self {
            path: path.to_owned(),
            len: metadata.len(),
            content: Content::File {
                file,
                modified: metadata.modified().ok(),
            },
        })
    }

    #[cfg(feature = "object-store")]
    fn open_url(path: &Path, url: &str) -> io::Result<Self> {
        let object = crate::remote::Object::open(url)?;
        Ok(Self::of_object(path.to_owned(), object))
    }

    #[cfg(feature = "object-store")]
    pub(crate) fn of_object(path: PathBuf, object: std::sync::Arc<crate::remote::Object>) -> Self {
        Self {
            path,
            len: object.len(),
            content: Content::Object(object),
        }
    }

    #[cfg(not(feature = "object-store"))]
    fn open_url(_: &Path, _: &str) -> io::Result<Self> {
        let problem = "is a URL: build candle-headroom with the feature `object-store`";
        Err(io::Error::new(ErrorKind::Unsupported, problem))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length in bytes when the file was opened.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks for empty files")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills a buffer with the bytes from a position on. [`check`](Self::check) says afterwards whether they are those of the file that
    /// was opened.
    pub(crate) fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let read = match &self.content {
            Content::File { file, .. } => read_exact_at(file, buffer, at),
            #[cfg(feature = "object-store")]
            Content::Object(object) => return object.read_at(buffer, at),
        };
        read.map_err(|error| self.check().err().unwrap_or(error))
    }

    /// Returns the bytes of a range, of a file that has not changed.
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        if range.start > range.end || range.end > self.len {
            let problem = format!("ends at byte {}, before byte {}", self.len, range.end);
            return Err(io::Error::new(ErrorKind::UnexpectedEof, problem));
        }
        let len = usize::try_from(range.end - range.start);
        let len = len.map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        bytes.resize(len, 0);
        self.read_at(&mut bytes, range.start)?;
        self.check()?;
        Ok(bytes)
    }

    /// Checks that the file still has the length and the modification time that it had when it was opened. Of an object no other version is read.
    pub(crate) fn check(&self) -> io::Result<()> {
        let (file, modified) = match &self.content {
            Content::File { file, modified } => (file, modified),
            #[cfg(feature = "object-store")]
            Content::Object(_) => return Ok(()),
        };
        let now = file.metadata()?;
        let change = match now.len() == self.len {
            true if now.modified().ok() == *modified => return Ok(()),
            true => "it was written".to_owned(),
            false => format!("it has {} bytes, had {}", now.len(), self.len),
        };
        Err(io::Error::other(format!(
            "changed while it was open: {change}; write a new file and rename it to this name instead, and open it again"
        )))
    }

    /// Reads the text in the header of a safetensors file.
    pub(crate) fn text(&self) -> io::Result<BTreeMap<String, String>> {
        let (_, header) = self.header()?;
        let text = header.metadata().clone().unwrap_or_default();
        Ok(text.into_iter().collect())
    }

    /// Reads the header of a safetensors file: its tensors, in the order of their names.
    pub fn tensors(&self) -> io::Result<Vec<(String, StoredTensor)>> {
        let (data, header) = self.header()?;
        let stored = header.tensors().into_iter().map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let stored = StoredTensor {
                dtype: info.dtype,
                shape: info.shape.clone(),
                range: data + start as u64..data + end as u64,
            };
            (name, stored)
        });
        let mut stored: Vec<_> = stored.collect();
        stored.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(stored)
    }

    /// Where the data of a safetensors file begins, and the header before it.
    fn header(&self) -> io::Result<(u64, Metadata)> {
        let invalid = |error: SafeTensorError| io::Error::new(InvalidData, error.to_string());
        let len = self.read(0..self.len.min(LENGTH))?;
        let len = len.first_chunk().map(|len| u64::from_le_bytes(*len));
        let len = len.ok_or_else(|| invalid(SafeTensorError::HeaderTooSmall))?;
        let data = LENGTH.checked_add(len);
        let data = data.filter(|data| len <= MOST_HEADER && *data <= self.len);
        let data = data.ok_or_else(|| invalid(SafeTensorError::InvalidHeaderLength))?;
        let metadata = serde_json::from_slice::<Metadata>(&self.read(LENGTH..data)?);
        let metadata = metadata
            .map_err(|error| invalid(SafeTensorError::InvalidHeaderDeserialization(error)))?;
        if data.checked_add(metadata.data_len() as u64) != Some(self.len) {
            return Err(invalid(SafeTensorError::MetadataIncompleteBuffer));
        }
        Ok((data, metadata))
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, at) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buffer = &mut buffer[read..];
                at += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
