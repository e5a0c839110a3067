//! Small files that state large contents: refused before memory is taken for them.

use std::fs;

use candle_headroom::DeviceMemory;
use candle_headroom::data::{Dataset, ImageFolder, SafetensorsDataset};

use crate::support::alone;

/// What a refusal may take.
const MOST: u64 = 4 << 20;

/// The most bytes that were in use beyond those before.
fn grown<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let memory = DeviceMemory::host().open().unwrap();
    let scope = memory.peak_scope();
    let done = work();
    let grown = scope.peak().unwrap() - scope.start().unwrap();
    (done, grown)
}

/// A PNG of 20,000 × 20,000 pixels in less than a hundred bytes.
#[test]
fn an_image_of_many_pixels() {
    let _alone = alone();
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [20_000u32.to_be_bytes(), 20_000u32.to_be_bytes()].concat();
    let header = [&size[..], &[8, 0, 0, 0, 0]].concat();
    for (kind, content) in [
        (b"IHDR", &header[..]),
        (b"IDAT", &[0x78, 0x9c, 0x63]),
        (b"IEND", &[]),
    ] {
        let chunk = [&kind[..], content].concat();
        png.extend((content.len() as u32).to_be_bytes());
        png.extend(&chunk);
        png.extend(crc32fast::hash(&chunk).to_be_bytes());
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("class")).unwrap();
    fs::write(folder.path().join("class/1.png"), png).unwrap();
    let images = ImageFolder::open(folder.path()).unwrap();
    let (read, grown) = grown(|| images.get(0));
    assert!(read.is_err() && grown < MOST, "{grown} bytes");
}

#[test]
fn a_header_of_many_bytes() {
    let _alone = alone();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), 99_999_999u64.to_le_bytes()).unwrap();
    let open = || SafetensorsDataset::builder(file.path()).open();
    let (opened, grown) = grown(open);
    assert!(opened.is_err() && grown < MOST, "{grown} bytes");
}
