//! The answer, for people and as JSON.

use std::fmt;

use candle_headroom::ByteSize;
use candle_headroom::error::{Holding, Remedy};
use serde::Serialize;

use super::activations::{Model, Way};
use super::memories::Memory;

/// Bytes and elements.
#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub parameters: u64,
    pub trained: u64,
    pub dtype: String,
    pub held: Vec<Holding>,
    pub held_bytes: u64,
    /// `None` if the model's sizes are not known.
    pub micro_batch: Option<MicroBatch>,
    pub memories: Vec<Fit>,
    /// The most effective first.
    pub remedies: Vec<Remedy>,
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct MicroBatch {
    pub samples: u64,
    pub length: u64,
    pub ways: Vec<Taken>,
}

/// What a micro-batch takes besides what is held, and the peak of both.
#[derive(Debug, Serialize)]
pub struct Taken {
    #[serde(flatten)]
    way: Way,
    bytes: u64,
    peak: u64,
}

/// What fits into a memory.
#[derive(Debug, Serialize)]
pub struct Fit {
    pub device: String,
    pub size: String,
    pub bytes: u64,
    pub fits: bool,
    /// The first way in which the micro-batch that was asked for fits.
    first: Option<Way>,
    /// One for each way.
    pub largest: Vec<Largest>,
}

#[derive(Debug, Serialize)]
pub struct Largest {
    #[serde(flatten)]
    way: Way,
    /// Samples; `None` for more than a million.
    micro_batch: Option<u64>,
}

impl MicroBatch {
    pub fn new(model: &Model<'_>, samples: u64, held: u64) -> Self {
        let ways = Way::ALL.map(|way| {
            let bytes = model.taken(samples, way) as u64;
            let peak = held.saturating_add(bytes);
            Taken { way, bytes, peak }
        });
        let (length, ways) = (model.length, ways.into());
        Self {
            samples,
            length,
            ways,
        }
    }
}

impl Fit {
    pub fn new(memory: Memory, model: Option<&Model<'_>>, samples: u64, held: u64) -> Self {
        let room = memory.room.checked_sub(held);
        let largest = model.into_iter().flat_map(|model| {
            Way::ALL.map(|way| {
                let micro_batch = match room {
                    Some(room) => model.largest(room as f64, way),
                    None => Some(0),
                };
                Largest { way, micro_batch }
            })
        });
        let largest: Vec<_> = largest.collect();
        let takes = |largest: &&Largest| largest.micro_batch.is_none_or(|size| size >= samples);
        let first = largest.iter().find(takes).map(|largest| largest.way);
        Self {
            fits: match model {
                Some(_) => first.is_some(),
                None => room.is_some(),
            },
            first,
            device: memory.device,
            size: memory.size,
            bytes: memory.room,
            largest,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, what: &str, bytes: u64| {
            writeln!(f, "  {what:<50} {:>10}", ByteSize(bytes).to_string())
        };
        write!(
            f,
            "{}: {} parameters, {}",
            self.model,
            grouped(self.parameters),
            self.dtype
        )?;
        match self.trained == self.parameters {
            true => writeln!(f, ", all trained")?,
            false => writeln!(f, ", {} trained", grouped(self.trained))?,
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        writeln!(f, "\nheld from the first update on")?;
        for held in &self.held {
            row(f, &held.what, held.bytes)?;
        }
        row(f, "in all", self.held_bytes)?;
        if let Some(MicroBatch {
            samples,
            length,
            ways,
        }) = &self.micro_batch
        {
            writeln!(
                f,
                "\npeak with a micro-batch of {samples} x {length} tokens"
            )?;
            for taken in ways {
                row(f, taken.way.name(), taken.peak)?;
            }
        }
        for fit in &self.memories {
            writeln!(f, "\n{}\n  {}", fit.device, fit.size)?;
            match (&self.micro_batch, fit.first) {
                (Some(_), Some(way)) => writeln!(f, "  the micro-batch fits: {}", way.name())?,
                (Some(_), None) => writeln!(f, "  the micro-batch does not fit")?,
                (None, _) if fit.fits => writeln!(f, "  what is held fits")?,
                (None, _) => writeln!(f, "  what is held does not fit")?,
            }
            for (index, Largest { way, micro_batch }) in fit.largest.iter().enumerate() {
                if index == 0 {
                    writeln!(f, "  largest micro-batch")?;
                }
                let size = match micro_batch {
                    Some(0) => "none".to_owned(),
                    Some(size) => grouped(*size),
                    None => "any".to_owned(),
                };
                writeln!(f, "    {:<48} {size:>10}", way.name())?;
            }
        }
        if self.memories.is_empty() {
            writeln!(
                f,
                "\nno GPU was found: --memory 24GiB shows what fits into one of that size"
            )?;
        }
        for (index, remedy) in self.remedies.iter().enumerate() {
            if index == 0 {
                writeln!(f, "\nwhat would reduce the peak with layers kept")?;
            }
            writeln!(f, "  {}. {remedy}", index + 1)?;
        }
        Ok(())
    }
}

/// With commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev();
    let parts: Vec<_> = parts.map(String::from_utf8_lossy).collect();
    parts.join(",")
}
