//! The digits' file, and its two parts.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use candle_core::{Device, Tensor};

/// Width and height of an image.
pub const SIDE: usize = 8;
/// The value of a pixel that is all ink.
const MOST_INK: u32 = 16;
/// Of each 50 digits of the file the last 10 are for the test.
const ROUND: usize = 50;
const TEST: usize = 10;
/// Most bytes in a file. The limit also ends the reading of a file without an end, such as `/dev/zero`.
const MOST_BYTES: u64 = 64 << 20;
/// The first line of a file says what the rest must have.
const CHECKSUM: &str = "# crc32 ";

/// An image by rows, each pixel from 0 (paper) to 1 (ink), and the digit that it shows.
#[derive(Clone)]
pub struct Digit {
    pub pixels: [f32; SIDE * SIDE],
    pub label: u32,
}

/// The digits to train on, and those for the test.
pub struct Digits {
    pub train: Vec<Digit>,
    pub test: Vec<Digit>,
}

impl Digits {
    /// The file beside this source.
    pub fn own_file() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/train_images/digits.txt")
    }

    /// Reads a file of which each line has a digit, a space, and 64 pixels from `0` to `g`, 16.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let mut text = String::new();
        let open = File::open(path)
            .with_context(|| format!("cannot read {name}: name a file of digits by `--data`"))?;
        let read = open.take(MOST_BYTES + 1).read_to_string(&mut text);
        let read = read.with_context(|| format!("cannot read {name}"))?;
        if read as u64 > MOST_BYTES {
            bail!("{name} is too large: it may hold 64 MiB");
        }
        let digits = parse(&text).with_context(|| name.to_string())?;
        if digits.len() < ROUND {
            let found = digits.len();
            bail!("{name} has {found} digits: {ROUND} are needed to train and to test");
        }
        let is_for_test = |place: usize| place % ROUND >= ROUND - TEST;
        let parts = digits.into_iter().enumerate();
        let (test, train): (Vec<_>, Vec<_>) = parts.partition(|(place, _)| is_for_test(*place));
        let [train, test] =
            [train, test].map(|part| part.into_iter().map(|(_, digit)| digit).collect());
        Ok(Self { train, test })
    }
}

fn parse(text: &str) -> Result<Vec<Digit>> {
    let (mut lines, mut first) = (text, 1);
    if let Some((line, rest)) = text.split_once('\n')
        && let Some(expected) = line.strip_prefix(CHECKSUM)
    {
        let found = format!("{:08x}", crc32fast::hash(rest.as_bytes()));
        if found != expected.trim_end() {
            bail!(
                "its first line says {line:?}, but what follows has {found}: restore the file, or remove that line"
            );
        }
        (lines, first) = (rest, 2);
    }
    let lines = lines.lines().zip(first..);
    let digits = lines.map(|(line, number)| digit(line).with_context(|| format!("line {number}")));
    digits.collect()
}

fn digit(line: &str) -> Result<Digit> {
    let (label, image) = line.split_once(' ').unwrap_or((line, ""));
    let label = match label.as_bytes() {
        [digit @ b'0'..=b'9'] => u32::from(digit - b'0'),
        _ => bail!("{label:?} is no digit: a line is a digit, a space and 64 pixels"),
    };
    let values = image
        .chars()
        .map(|pixel| match pixel.to_digit(MOST_INK + 1) {
            Some(ink) => Ok(ink as f32 / MOST_INK as f32),
            None => bail!("{pixel:?} is no pixel: they go from `0` to `9` and from `a` to `g`"),
        });
    let values = values.collect::<Result<Vec<_>>>()?;
    let count = values.len();
    let pixels = values.try_into();
    let pixels = pixels.map_err(|_| anyhow!("it has {count} pixels, not 64"))?;
    Ok(Digit { pixels, label })
}

/// The images, `(samples, 1, 8, 8)` of f32, and their labels, `(samples)` of u32.
pub type Batch = (Tensor, Tensor);

pub fn batch(digits: &[Digit]) -> candle_core::Result<Batch> {
    let pixels = digits.iter().flat_map(|digit| digit.pixels);
    let images = Tensor::from_iter(pixels, &Device::Cpu)?;
    let labels = digits.iter().map(|digit| digit.label);
    Ok((
        images.reshape((digits.len(), 1, SIDE, SIDE))?,
        Tensor::from_iter(labels, &Device::Cpu)?,
    ))
}
