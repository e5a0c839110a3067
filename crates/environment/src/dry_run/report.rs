use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// What the simulated driver reports of a program: `crates/simulated-cuda/src/report.rs` writes it.
#[derive(Debug, Default)]
pub struct Report {
    pub devices: Vec<Device>,
    pub problems: Vec<Problem>,
    /// Processes that used the driver and have left no account of it: a signal or `_exit` ended them.
    pub killed: Vec<u32>,
}

/// What one process did on one device. Bytes.
#[derive(Debug, Clone, Deserialize)]
pub struct Device {
    pub process: u32,
    pub device: u32,
    pub capacity_bytes: u64,
    pub peak_tensor_bytes: u64,
    /// The same in blocks of 512 bytes, as pools give them out.
    pub peak_block_bytes: u64,
    pub allocations: u64,
    pub refused_allocations: u64,
    pub kernels: u64,
    pub library_calls: u64,
    pub peak: Peak,
    pub refused: Option<Refused>,
    pub pieces: Vec<Piece>,
    pub read_back: Vec<ReadBack>,
    pub line: Line,
}

/// What the program said that it did: nothing if it does not use candle-headroom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Place {
    /// Such as `step 2`.
    #[serde(default)]
    pub work: String,
    pub phase: String,
    pub layers: String,
}

/// The highest use.
#[derive(Debug, Clone, Deserialize)]
pub struct Peak {
    #[serde(flatten)]
    pub at: Place,
    pub held: Vec<Held>,
}

/// Bytes that are held, by the place that allocated them.
#[derive(Debug, Clone, Deserialize)]
pub struct Held {
    #[serde(flatten)]
    pub by: Place,
    pub bytes: u64,
}

/// The last allocation that there was no memory for.
#[derive(Debug, Clone, Deserialize)]
pub struct Refused {
    #[serde(flatten)]
    pub at: Place,
    pub bytes: u64,
    pub held_bytes: u64,
    /// By a limit that the program has set itself.
    pub by_limit: bool,
    /// Allocations after it that succeeded.
    pub allocations_since: u64,
}

/// The micro-batches of so many samples, or the updates (0 samples).
#[derive(Debug, Clone, Deserialize)]
pub struct Piece {
    pub samples: u64,
    pub count: u64,
    pub refused: u64,
    /// Of one without a refusal: the most that was held, and what was held when it began.
    pub peak_bytes: u64,
    pub before_bytes: u64,
    /// Bytes of that peak which recomputing the marked regions would save.
    pub could_save_bytes: u64,
}

/// What the program copied to the host although nothing had computed it.
#[derive(Debug, Clone, Deserialize)]
pub struct ReadBack {
    #[serde(flatten)]
    pub at: Place,
    pub copies: u64,
    pub bytes: u64,
}

/// Bytes held: the highest of each `stride` allocations.
#[derive(Debug, Clone, Deserialize)]
pub struct Line {
    pub stride: u64,
    pub bytes: Vec<u64>,
}

/// What a dry run cannot follow.
#[derive(Debug, Clone)]
pub struct Problem {
    /// `not modelled`, `forked`, `other driver`, `addresses`, `busy`, `kernel` or `time`.
    pub problem: String,
    pub what: String,
}

/// The fields by which a line is known; a line with none of them is a [`Device`].
#[derive(Deserialize)]
struct Entry {
    problem: Option<String>,
    #[serde(default)]
    what: String,
    began: Option<u32>,
    ended: Option<u32>,
    /// What the program asked the driver for, where `SIMULATED_CUDA_COUNTS` is set. It is for those who set it.
    counts: Option<IgnoredAny>,
}

impl Report {
    /// Reads the driver's file. It is empty if no process used a device.
    ///
    /// # Errors
    /// If the file cannot be read, or is another driver's.
    pub fn read(file: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(file)?;
        let mut report = Self::default();
        for line in text.lines() {
            let entry: Entry = serde_json::from_str(line)?;
            if let Some(problem) = entry.problem {
                let what = entry.what;
                report.problems.push(Problem { problem, what });
            } else if let Some(began) = entry.began {
                report.killed.push(began);
            } else if let Some(ended) = entry.ended {
                report.killed.retain(|began| *began != ended);
            } else if entry.counts.is_none() {
                report.devices.push(serde_json::from_str(line)?);
            }
        }
        Ok(report)
    }

    /// The device on which a process held the most.
    pub fn largest(&self) -> Option<&Device> {
        let devices = self.devices.iter();
        devices.max_by_key(|device| device.peak_block_bytes)
    }

    /// The device that was the last to refuse an allocation, if a program that failed has failed for that: the one with the largest need.
    pub fn ran_out(&self) -> Option<(&Device, &Refused)> {
        let devices = self.devices.iter();
        let refused = devices.filter_map(|device| Some((device, device.refused.as_ref()?)));
        // A few may follow, as a program ends.
        let ended = refused.filter(|(_, refused)| refused.allocations_since < 16);
        ended.max_by_key(|(_, refused)| refused.needed_bytes())
    }

    /// What all processes held at their peaks on the device where that is the most: more than the largest if several used one device, and
    /// perhaps at different times.
    pub fn together(&self) -> u64 {
        let sums = self.devices.iter().map(|one| {
            let same = self.devices.iter().filter(|it| it.device == one.device);
            same.map(|device| device.peak_block_bytes).sum()
        });
        sums.max().unwrap_or(0)
    }
}

impl Refused {
    /// What was held, and what was asked for.
    pub fn needed_bytes(&self) -> u64 {
        self.held_bytes.saturating_add(self.bytes)
    }
}

impl Place {
    /// As a sentence has it: `step 2, backward, layers.17.mlp`.
    pub fn describe(&self) -> String {
        let parts = [&self.work, &self.phase, &self.layers];
        let parts = parts.map(String::as_str).into_iter();
        parts
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Device {
    /// Bytes that one more sample of a micro-batch takes, by two sizes, or by one and what was held before it.
    pub fn bytes_per_sample(&self) -> Option<u64> {
        let done = |piece: &&Piece| piece.samples > 0 && piece.peak_bytes > 0;
        let mut pieces: Vec<_> = self.pieces.iter().filter(done).collect();
        pieces.sort_by_key(|piece| piece.samples);
        let last = pieces.pop()?;
        let (bytes, samples) = match pieces.first() {
            Some(first) => (
                last.peak_bytes.checked_sub(first.peak_bytes)?,
                last.samples - first.samples,
            ),
            None => (
                last.peak_bytes.checked_sub(last.before_bytes)?,
                last.samples,
            ),
        };
        Some(bytes / samples).filter(|bytes| *bytes > 0)
    }
}
