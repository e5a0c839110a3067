//! The answer, for people and as JSON: what is held, what fits into which memory, and what would reduce the peak.

use std::fmt;

use bytesize::ByteSize;
use candle_headroom_environment::Environment;
use candle_headroom_environment::system::SystemMemory;
use serde::Serialize;

use super::model::Dtype;
use super::training::{Held, Lora, Model, Moments, Training, Way};

/// What CUDA's context, kernels and libraries take on a GPU, about, in bytes.
const CONTEXT: u64 = 512 << 20;

/// GPUs of one name whose free memory differs by less are listed once, in bytes.
const NEARLY: u64 = 64 << 20;

/// Bytes and elements.
#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub parameters: u64,
    pub trained: u64,
    pub dtype: Dtype,
    pub held: Vec<Held>,
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
    samples: u64,
    length: u64,
    ways: Vec<Taken>,
}

/// What a micro-batch takes besides what is held, and the peak of both.
#[derive(Debug, Serialize)]
struct Taken {
    #[serde(flatten)]
    way: Way,
    bytes: u64,
    peak: u64,
}

/// A device's memory.
#[derive(Debug, Serialize)]
pub struct Memory {
    device: String,
    size: String,
    /// What training can take.
    bytes: u64,
}

/// What fits into a memory.
#[derive(Debug, Serialize)]
pub struct Fit {
    #[serde(flatten)]
    memory: Memory,
    pub fits: bool,
    /// The first way in which the micro-batch that was asked for fits.
    first: Option<Way>,
    /// One for each way.
    largest: Vec<Largest>,
}

#[derive(Debug, Serialize)]
struct Largest {
    #[serde(flatten)]
    way: Way,
    /// Samples; `None` for more than a million.
    micro_batch: Option<u64>,
}

/// One thing that would help, and the bytes that it would save.
#[derive(Debug, Serialize)]
pub struct Remedy {
    advice: &'static str,
    saves: u64,
}

impl MicroBatch {
    pub fn new(model: &Model<'_>, samples: u64) -> Self {
        let held = model.training.held_bytes();
        let ways = Way::ALL.map(|way| {
            let bytes = model.taken(samples, way) as u64;
            let peak = held.saturating_add(bytes);
            Taken { way, bytes, peak }
        });
        Self {
            samples,
            length: model.length,
            ways: ways.into(),
        }
    }
}

impl Memory {
    fn new(device: &str, bytes: u64, is_cpu: bool) -> Self {
        let (context, of_it) = match is_cpu {
            true => (0, String::new()),
            false => (CONTEXT, format!(", {} of it for CUDA", ByteSize(CONTEXT))),
        };
        Self {
            device: device.to_owned(),
            size: format!("{}{of_it}", ByteSize(bytes)),
            bytes: bytes.saturating_sub(context),
        }
    }

    /// Those asked for, or else what is free on the GPUs that this process sees, or on the host.
    pub fn all(asked: &[ByteSize], is_cpu: bool) -> Vec<Self> {
        if !asked.is_empty() {
            let device = if is_cpu { "the CPU" } else { "a GPU" };
            let memory = |bytes: &ByteSize| Self::new(device, bytes.as_u64(), is_cpu);
            return asked.iter().map(memory).collect();
        }
        if is_cpu {
            let free = SystemMemory::read().free();
            let host = free.map(|free| Self::new("the CPU, by what is free", free, true));
            return host.into_iter().collect();
        }
        let report = Environment::new().check();
        let gpus = report.gpus().iter().filter(|gpu| gpu.visible);
        let gpus: Vec<_> = gpus
            .filter_map(|gpu| Some((gpu, gpu.memory_free?)))
            .collect();
        let alike =
            gpus.chunk_by(|(a, of_a), (b, of_b)| a.name == b.name && of_a.abs_diff(*of_b) < NEARLY);
        let memories = alike.filter_map(|alike| {
            let (first, free) = alike.iter().min_by_key(|(_, free)| free)?;
            let name = first.name.as_deref().unwrap_or("unknown");
            let device = match alike.len() {
                1 => format!("GPU {}, {name}, by what is free", first.index),
                count => format!("each of {count} GPUs, {name}, by what is free"),
            };
            Some(Self::new(&device, *free, false))
        });
        memories.collect()
    }
}

impl Fit {
    pub fn new(memory: Memory, model: Option<&Model<'_>>, samples: u64, held: u64) -> Self {
        let room = memory.bytes.checked_sub(held);
        let largest = model.into_iter().flat_map(|model| {
            Way::ALL.map(|way| Largest {
                way,
                micro_batch: room.map_or(Some(0), |room| model.largest(room as f64, way)),
            })
        });
        let largest: Vec<_> = largest.collect();
        let takes = |largest: &&Largest| largest.micro_batch.is_none_or(|size| size >= samples);
        let first = largest.iter().find(takes).map(|largest| largest.way);
        Self {
            fits: first.is_some() || model.is_none() && room.is_some(),
            memory,
            first,
            largest,
        }
    }
}

impl Remedy {
    /// For a micro-batch of so many samples whose layers are kept, the most effective first.
    pub fn all(model: &Model<'_>, samples: u64) -> Vec<Self> {
        let [kept, _, recomputed, _] = Way::ALL;
        let own = model.training;
        let peak = |training: &Training, samples: u64, way: Way| {
            let model = Model { training, ..*model };
            training.held_bytes() as f64 + model.taken(samples, way)
        };
        let with = |training: Training| peak(&training, samples, kept);
        let in_eight_bits = Training {
            moments: Moments::EightBit,
            ..own.clone()
        };
        let in_bf16 = Training {
            dtype: Dtype::Bf16,
            ..own.clone()
        };
        let (rank, targets) = (8, vec![Lora::ALL.to_owned()]);
        let adapters = own.with_adapters(model.config, Lora { rank, targets });
        let recomputed = peak(own, samples, recomputed);
        let half = peak(own, (samples / 2).max(1), kept);
        let mut found = vec![
            ("each block in `nn::recompute`", true, recomputed),
            ("half the micro-batch", true, half),
            ("moments in 8 bits", true, with(in_eight_bits)),
            ("the model in bf16", own.dtype == Dtype::F32, with(in_bf16)),
            (
                "adapters of rank 8 (LoRA)",
                own.lora.is_none(),
                with(adapters),
            ),
        ];
        found.sort_by(|(.., a), (.., b)| a.total_cmp(b));
        let now = peak(own, samples, kept);
        let saving = found.into_iter();
        let saving = saving.filter(|(_, is_possible, then)| *is_possible && *then < 0.99 * now);
        let remedies = saving.map(|(advice, _, then)| Self {
            advice,
            saves: (now - then) as u64,
        });
        remedies.collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, what: &str, bytes: u64| {
            writeln!(f, "  {what:<50} {:>10}", ByteSize(bytes).to_string())
        };
        let dtype = format!("{:?}", self.dtype).to_lowercase();
        let parameters = grouped(self.parameters);
        write!(f, "{}: {parameters} parameters, {dtype}", self.model)?;
        match self.trained == self.parameters {
            true => writeln!(f, ", all trained")?,
            false => writeln!(f, ", {} trained", grouped(self.trained))?,
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        writeln!(f, "\nheld from the first update on")?;
        for held in &self.held {
            row(f, held.what, held.bytes)?;
        }
        row(f, "in all", self.held_bytes)?;
        if let Some(batch) = &self.micro_batch {
            let (samples, length) = (batch.samples, batch.length);
            writeln!(
                f,
                "\npeak with a micro-batch of {samples} x {length} tokens"
            )?;
            for taken in &batch.ways {
                row(f, taken.way.name, taken.peak)?;
            }
        }
        for fit in &self.memories {
            fit.fmt(f)?;
        }
        if self.memories.is_empty() {
            let text = "no GPU was found: --memory 24GiB shows what fits into one of that size";
            writeln!(f, "\n{text}")?;
        }
        if !self.remedies.is_empty() {
            writeln!(f, "\nwhat would reduce the peak with layers kept")?;
        }
        for (number, Remedy { advice, saves }) in (1..).zip(&self.remedies) {
            writeln!(f, "  {number}. {advice} (saves about {})", ByteSize(*saves))?;
        }
        Ok(())
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}\n  {}", self.memory.device, self.memory.size)?;
        let what = match self.largest.is_empty() {
            true => "what is held",
            false => "the micro-batch",
        };
        match (self.first, self.fits) {
            (Some(way), _) => writeln!(f, "  {what} fits: {}", way.name)?,
            (None, true) => writeln!(f, "  {what} fits")?,
            (None, false) => writeln!(f, "  {what} does not fit")?,
        }
        if !self.largest.is_empty() {
            writeln!(f, "  largest micro-batch")?;
        }
        for Largest { way, micro_batch } in &self.largest {
            let size = match micro_batch {
                Some(0) => "none".to_owned(),
                Some(size) => grouped(*size),
                None => "any".to_owned(),
            };
            writeln!(f, "    {:<48} {size:>10}", way.name)?;
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
