use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use bytesize::ByteSize;
use thiserror::Error;

use crate::facts::table;

/// Cards: name, MiB of memory as `nvidia-smi` shows it, compute capability, multiprocessors, and whether that memory was seen in somebody's output
/// (`seen`) or is what the data sheet names (`nominal`). Where there are two, of cards with ECC on GDDR memory: with ECC for A10, A10G, A40, L4,
/// L40, L40S and T4, without for others.
/// Outputs of `nvidia-smi` and of NVML in public repositories and issues, drivers from R510 on; NVIDIA, developer.nvidia.com/cuda-gpus and data
/// sheets; 2026-11.
static CARDS: [[&str; 5]; 67] = table(include_str!("cards.tsv"));

/// A kind of GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    pub name: String,
    /// Its memory, as `nvidia-smi` shows it.
    pub bytes: u64,
    /// The compute capability times ten.
    pub capability: u32,
    pub multiprocessors: u32,
}

/// Whether what a program held fits onto a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    Yes,
    /// It depends on what lies outside of the pool.
    TooClose,
    No,
}

/// A card that the table does not have.
#[derive(Debug, Error)]
#[error("no card is known as {0:?}: give its memory, such as 24GiB, or one of {Names}")]
pub struct UnknownCard(String);

struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = CARDS.iter().map(|[name, ..]| *name).collect();
        f.write_str(&names.join(", "))
    }
}

/// As names are compared: in lower case, and without what some leave out.
fn plain(name: &str) -> String {
    let name = name
        .to_lowercase()
        .replace("geforce", "")
        .replace("nvidia", "");
    let name = name.replace("gib", "gb");
    name.chars().filter(char::is_ascii_alphanumeric).collect()
}

impl Card {
    /// All that are known.
    pub fn all() -> impl Iterator<Item = Self> {
        let rows = CARDS.iter();
        rows.filter_map(|[name, mib, capability, multiprocessors, _]| {
            Some(Self {
                name: (*name).to_owned(),
                bytes: mib.parse::<u64>().ok()? << 20,
                capability: capability.replace('.', "").parse().ok()?,
                multiprocessors: multiprocessors.parse().ok()?,
            })
        })
    }

    /// Bytes that the driver keeps of the card, on Linux: the least and the most.
    ///
    /// What CUDA calls the total is 224 MiB (V100) to 882 MiB (A100 80GB) less than what `nvidia-smi` does, more with newer drivers; outputs for 30
    /// cards in public issues and repositories, 2026-11. An H200 kept 615 MiB.
    pub fn reserve(&self) -> RangeInclusive<u64> {
        220 << 20..=(450 << 20) + self.bytes / 1000 * 6
    }

    /// Bytes that a context with its kernels and libraries takes: the least and the most.
    ///
    /// The stack of all threads that the card can run, at 1 KiB each, and 64 to 640 MiB: from out-of-memory messages of PyTorch, and what others
    /// measured on eight kinds of cards; 2026-11. On an H200 this library's own took 594 to 690 MiB.
    pub fn context(&self) -> RangeInclusive<u64> {
        // "Technical Specifications per Compute Capability" of the CUDA programming guide.
        let threads = match self.capability {
            75 => 1024,
            86 | 87 | 89 | 120.. => 1536,
            _ => 2048,
        };
        let stack = u64::from(self.multiprocessors) * threads * 1024;
        (64 << 20) + stack..=(640 << 20) + stack
    }

    /// Bytes that lie outside of the pool of tensors: the least and the most.
    pub fn outside(&self) -> RangeInclusive<u64> {
        let (reserve, context) = (self.reserve(), self.context());
        reserve.start() + context.start()..=reserve.end() + context.end()
    }

    /// Whether tensors of so many bytes at the peak fit.
    pub fn fits(&self, tensors: u64) -> Fit {
        let outside = self.outside();
        let with = |outside: &u64| tensors.saturating_add(*outside) <= self.bytes;
        match (with(outside.end()), with(outside.start())) {
            (true, _) => Fit::Yes,
            (false, true) => Fit::TooClose,
            (false, false) => Fit::No,
        }
    }
}

/// By name, in any case and with or without `GeForce`; or a card with so much memory.
impl FromStr for Card {
    type Err = UnknownCard;

    fn from_str(text: &str) -> Result<Self, UnknownCard> {
        let wanted = plain(text);
        if let Some(card) = Self::all().find(|card| plain(&card.name) == wanted) {
            return Ok(card);
        }
        let unknown = || UnknownCard(text.to_owned());
        let bytes = text.parse::<ByteSize>().map_err(|_| unknown())?;
        let card = Self {
            name: format!("GPU of {bytes}"),
            bytes: bytes.as_u64(),
            // As a card for games has them.
            capability: 89,
            multiprocessors: 128,
        };
        // More than 4 TiB has no card, and few machines the addresses.
        match card.bytes > *card.outside().end() && card.bytes <= 4 << 40 {
            true => Ok(card),
            false => Err(unknown()),
        }
    }
}
