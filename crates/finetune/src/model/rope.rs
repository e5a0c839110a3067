//! Rotations of queries and keys by their positions.

use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use serde::Serialize;

use super::config::{Config, Fields};

const THETA: f64 = 1e4;

/// How rotations are slowed down for texts that are longer than those of the first training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// All by one factor (Chen et al. 2023, arXiv 2306.15595).
    Linear { factor: f64 },
    /// Slow ones by the factor, fast ones not, those between by a part of it (Llama 3.1).
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: usize,
    },
}

/// The base of the rotations, and how they are scaled: `rope_theta` and `rope_scaling`, or `rope_parameters` since
/// transformers 5.
pub fn rope(fields: &Fields, max_positions: usize) -> Result<(f64, Option<RopeScaling>)> {
    let theta = fields.optional("rope_theta")?.unwrap_or(THETA);
    for name in ["rope_parameters", "rope_scaling"] {
        if let Some(parameters) = fields.optional::<Fields>(name)? {
            let read = || {
                let own = parameters.optional("rope_theta")?.unwrap_or(theta);
                anyhow::Ok((own, RopeScaling::of(&parameters, max_positions)?))
            };
            return read().with_context(|| format!("`{name}`"));
        }
    }
    Ok((theta, None))
}

impl RopeScaling {
    fn of(fields: &Fields, max_positions: usize) -> Result<Option<Self>> {
        let of_older_files = fields.optional::<String>("type")?;
        let kind = fields.optional("rope_type")?.or(of_older_files);
        let kind = kind.as_deref().unwrap_or("default");
        if kind == "default" {
            return Ok(None);
        }
        ensure!(
            matches!(kind, "linear" | "llama3"),
            "`rope_type` is `{kind}`, supported are default, linear, llama3"
        );
        let number = |name| fields.required::<f64>(name);
        let factor = number("factor")?;
        ensure!(factor >= 1., "`factor` must be at least 1, got {factor}");
        if kind == "linear" {
            return Ok(Some(Self::Linear { factor }));
        }
        let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
        ensure!(
            high > low,
            "`high_freq_factor` ({high}) must be above `low_freq_factor` ({low})"
        );
        let original = fields.optional("original_max_position_embeddings")?;
        Ok(Some(Self::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original.unwrap_or(max_positions),
        }))
    }

    /// The angle for each position, from the unscaled one.
    fn scale(self, frequency: f64) -> f64 {
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            } => {
                let turns = original_max_position_embeddings as f64 * frequency / (2. * PI);
                let fast = ((turns - low) / (high - low)).clamp(0., 1.);
                frequency * (fast + (1. - fast) / factor)
            }
        }
    }
}

/// Where the tokens of a pass are.
#[derive(Clone)]
pub struct Positions {
    /// Cosines and sines of the angles of the positions, (tokens, width of a head / 2).
    pub rotations: [Tensor; 2],
    /// The lengths of texts that do not see each other, in one sample; none if each sample is one text.
    pub texts: Vec<usize>,
    /// Tokens of a sample.
    pub time: usize,
}

/// Cosines and sines of the angles of positions, (positions, width of a head / 2), made when they are first needed.
#[derive(Clone)]
pub struct Rotations {
    /// For each pair, radians for each position.
    frequencies: Vec<f32>,
    made: Arc<Mutex<[Tensor; 2]>>,
}

impl Rotations {
    pub fn new(config: &Config, dtype: DType, device: &Device) -> candle_core::Result<Self> {
        let width = config.head_dim;
        let frequencies = (0..width / 2).map(|pair| {
            let frequency = config.rope_theta.powf(-2. * pair as f64 / width as f64);
            let scaled = config.rope_scaling.map(|scaling| scaling.scale(frequency));
            scaled.unwrap_or(frequency) as f32
        });
        let frequencies: Vec<_> = frequencies.collect();
        let first = tables(&frequencies, 1, dtype, device)?;
        let made = Arc::new(Mutex::new(first));
        Ok(Self { frequencies, made })
    }

    /// Those of positions from `first` on.
    pub fn of(&self, first: usize, count: usize) -> candle_core::Result<[Tensor; 2]> {
        let positions = first + count;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let [cos, _] = &*made;
        if cos.dim(0)? < positions {
            let enough = positions.next_power_of_two();
            *made = tables(&self.frequencies, enough, cos.dtype(), cos.device())?;
        }
        let [cos, sin] = &*made;
        Ok([cos.narrow(0, first, count)?, sin.narrow(0, first, count)?])
    }

    /// Those of samples of several texts, which lie one after the other: `starts` (samples, time), of u8 on the CPU, is 1 where a text begins
    /// after another one. Each text, and each sample, begins at position 0.
    pub fn of_texts(&self, starts: &Tensor) -> candle_core::Result<Positions> {
        let (mut texts, mut positions) = (Vec::new(), Vec::new());
        let (_, time) = starts.dims2()?;
        for sample in starts.to_vec2::<u8>()? {
            for (at, starts) in sample.into_iter().enumerate() {
                match texts.last_mut() {
                    Some(length) if at > 0 && starts == 0 => *length += 1,
                    _ => texts.push(1),
                }
                positions.push(texts.last().map_or(0, |length| *length as u32 - 1));
            }
        }
        let [cos, sin] = self.of(0, time)?;
        let positions = Tensor::new(positions, cos.device())?;
        let rotations = [
            cos.index_select(&positions, 0)?,
            sin.index_select(&positions, 0)?,
        ];
        Ok(Positions {
            rotations,
            texts,
            time,
        })
    }
}

fn tables(
    frequencies: &[f32],
    positions: usize,
    dtype: DType,
    device: &Device,
) -> candle_core::Result<[Tensor; 2]> {
    let table = |of: fn(f32) -> f32| {
        let angles = |at: usize| frequencies.iter().map(move |each| at as f32 * each);
        let values = (0..positions).flat_map(angles).map(of);
        let table = Tensor::from_iter(values, &Device::Cpu)?;
        let table = table.reshape((positions, frequencies.len()))?;
        table.to_dtype(dtype)?.to_device(device)
    };
    Ok([table(f32::cos)?, table(f32::sin)?])
}
