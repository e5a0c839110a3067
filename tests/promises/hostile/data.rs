//! Files of samples.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use candle_core::{Device, Tensor};
use candle_headroom::data::{
    Dataset, JsonLines, Lines, SafetensorsDataset, TokenType, TokenWindow, Tokens, TokensBuilder,
};
use serde::Deserialize;
use serde_json::Value;

#[cfg(feature = "parquet")]
use super::attack_within;
use super::{attack, is_told, read_all};
use crate::support::alone;

#[cfg(feature = "parquet")]
#[path = "../../library/data/sources/parquet/written.rs"]
#[allow(dead_code, reason = "another test compares what was read")]
mod written;

const CASES: u32 = 300;

/// What a review may be made of: all that JSON has.
#[derive(Debug, Deserialize)]
#[allow(dead_code, reason = "is only read")]
struct Review {
    text: String,
    stars: Option<u8>,
    tags: BTreeMap<String, f32>,
    at: (i64, u64),
}

#[test]
fn lines_and_json_lines() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.jsonl");
    let line =
        "{\"text\": \"größer\", \"stars\": 4, \"tags\": {\"a\": 2.5e3}, \"at\": [-7, 7]}\r\n\n";
    let valid = line.repeat(3).into_bytes();
    let read = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        let lines = read_all(Lines::open(&path));
        assert_eq!(lines, read_all(Lines::builder(&path).skip_blank().open()));
        assert_eq!(lines, read_all(JsonLines::<Value>::open(&path)));
        assert_eq!(lines, read_all(JsonLines::<Review>::open(&path)));
        lines
    };
    attack("lines", CASES, &valid, read);
}

/// Of the windows or documents of a file, the tokens too.
fn read_tokens(builder: TokensBuilder) -> bool {
    let tokens = match builder.open() {
        Ok(tokens) => tokens,
        Err(error) => {
            is_told(error);
            return false;
        }
    };
    for index in (0..tokens.len().min(50)).chain([tokens.len(), usize::MAX]) {
        match tokens.get(index).map(|window: TokenWindow| window.to_vec()) {
            Ok(Ok(_)) => assert!(index < tokens.len()),
            Ok(Err(error)) => is_told(error),
            Err(error) => is_told(error),
        }
    }
    true
}

/// A file as llm.c's scripts write it: 256 integers, of which the first three say what follows.
fn with_header([magic, version]: [u32; 2], bytes: usize) -> Vec<u8> {
    let tokens: Vec<u8> = (0..60)
        .flat_map(|token: u32| token.to_le_bytes()[..bytes].to_vec())
        .collect();
    let mut header = vec![0u32; 256];
    header[..3].copy_from_slice(&[magic, version, 60]);
    let header = header.iter().flat_map(|number| number.to_le_bytes());
    header.chain(tokens).collect()
}

#[test]
fn token_files_with_llm_c_headers() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.bin");
    for (name, known, bytes) in [
        ("tokens of 16 bits", [20_240_520, 1], 2),
        ("tokens of 32 bits", [20_240_801, 7], 4),
    ] {
        let read = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            let builder = || Tokens::builder([&path]);
            read_tokens(builder().documents(7));
            read_tokens(builder().window(9).stride(1).dtype(TokenType::U32));
            read_tokens(builder().window(5).skip_header(3).dtype(TokenType::U8));
            read_tokens(builder().window(5))
        };
        attack(name, CASES, &with_header(known, bytes), read);
    }
}

/// A safetensors file with this header.
pub fn with_json(json: &[u8], data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json, data].concat()
}

/// The header of a safetensors file, and what follows it.
pub fn parts(file: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (len, rest) = file.split_first_chunk().expect("a length");
    let (json, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    (json.to_vec(), data.to_vec())
}

#[test]
fn safetensors_files() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.safetensors");
    let x = Tensor::arange(0f32, 20., &Device::Cpu).unwrap();
    let y = Tensor::arange(0u32, 5, &Device::Cpu).unwrap();
    let tensors = HashMap::from([("x", x.reshape((5, 4)).unwrap()), ("y", y)]);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let valid = fs::read(&path).unwrap();
    let read = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        read_all(SafetensorsDataset::builder(&path).tensors(["y"]).open());
        read_all(SafetensorsDataset::builder(&path).open())
    };
    attack("safetensors", CASES, &valid, read);
    // The header alone, whose length is right.
    let (json, data) = parts(&valid);
    attack("header of safetensors", CASES, &json, |json| {
        read(&with_json(json, &data))
    });
}

#[cfg(feature = "parquet")]
mod rows {
    use candle_headroom::ByteSize;
    use candle_headroom::data::ParquetDataset;
    use parquet::basic::{Compression, ZstdLevel};

    use super::*;

    #[test]
    fn parquet_files() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.parquet");
        for (name, codec) in [
            ("Parquet", Compression::UNCOMPRESSED),
            ("Parquet with Snappy", Compression::SNAPPY),
            (
                "Parquet with Zstandard",
                Compression::ZSTD(ZstdLevel::default()),
            ),
        ] {
            let valid = fs::read(written::write(0, &[5, 3], codec).path()).unwrap();
            let read = |content: &[u8]| {
                fs::write(&path, content).unwrap();
                let builder = ParquetDataset::<Value>::builder([&path]);
                let builder = builder
                    .max_row_group(ByteSize::mib(1))
                    .cache(ByteSize::kib(4));
                read_all(builder.columns(["id", "text"]).open());
                let builder = ParquetDataset::<written::Sample>::builder([&path]);
                read_all(builder.max_row_group(ByteSize::mib(1)).open())
            };
            // A page of at most 16 MiB is read and decoded whatever its column states, into buffers of both sizes.
            attack_within(64 << 20, name, CASES, &valid, read);
        }
    }
}

#[cfg(feature = "image")]
mod pictures {
    use candle_headroom::data::ImageFolder;
    use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

    use super::*;

    #[test]
    fn images() {
        let _alone = alone();
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("class");
        fs::create_dir(&class).unwrap();
        let image = RgbImage::from_fn(19, 13, |x, y| Rgb([10 * x as u8, 10 * y as u8, 200]));
        let image = DynamicImage::from(image);
        for (name, format) in [("1.png", ImageFormat::Png), ("1.jpg", ImageFormat::Jpeg)] {
            let mut valid = std::io::Cursor::new(Vec::new());
            image.write_to(&mut valid, format).unwrap();
            let path = class.join(name);
            let read = |content: &[u8]| {
                fs::write(&path, content).unwrap();
                let builder = || ImageFolder::builder(folder.path()).max_pixels(1 << 14);
                read_all(builder().size(3, 70).open());
                read_all(builder().open())
            };
            attack(name, CASES, &valid.into_inner(), read);
            fs::remove_file(path).unwrap();
        }
    }
}
