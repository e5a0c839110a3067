//! Rotations of queries and keys by their positions.

use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
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
    let own = fields.optional("rope_theta")?;
    let (name, parameters) = match fields.within("rope_parameters")? {
        Some(parameters) => ("rope_parameters", Some(parameters)),
        None => ("rope_scaling", fields.within("rope_scaling")?),
    };
    let Some(parameters) = parameters else {
        return Ok((own.unwrap_or(THETA), None));
    };
    let read = || {
        let theta = parameters.optional("rope_theta")?.or(own);
        let scaling = RopeScaling::of(&parameters, max_positions)?;
        anyhow::Ok((theta.unwrap_or(THETA), scaling))
    };
    read().with_context(|| format!("`{name}`"))
}

impl RopeScaling {
    fn of(fields: &Fields, max_positions: usize) -> Result<Option<Self>> {
        let of_older_files = fields.optional::<String>("type")?;
        let kind = fields.optional("rope_type")?.or(of_older_files);
        let factor = || {
            let factor: f64 = fields.required("factor")?;
            ensure!(factor >= 1., "`factor` must be at least 1, got {factor}");
            Ok(factor)
        };
        Ok(match kind.as_deref() {
            None | Some("default") => None,
            Some("linear") => Some(Self::Linear { factor: factor()? }),
            Some("llama3") => {
                let low_freq_factor: f64 = fields.required("low_freq_factor")?;
                let high_freq_factor = fields.required("high_freq_factor")?;
                ensure!(
                    high_freq_factor > low_freq_factor,
                    "`high_freq_factor` ({high_freq_factor}) must be above `low_freq_factor` ({low_freq_factor})"
                );
                let original = fields.optional("original_max_position_embeddings")?;
                Some(Self::Llama3 {
                    factor: factor()?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: original.unwrap_or(max_positions),
                })
            }
            Some(other) => bail!("`rope_type` is `{other}`, supported are default, linear, llama3"),
        })
    }

    /// The angle for each position, from the unscaled one.
    pub fn scale(self, frequency: f64) -> f64 {
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let turns = original_max_position_embeddings as f64 * frequency / (2. * PI);
                let fast = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let fast = fast.clamp(0., 1.);
                frequency * (fast + (1. - fast) / factor)
            }
        }
    }
}

/// Cosines and sines of the angles of positions, (positions, width of a head / 2), made when they are first needed.
#[derive(Clone)]
pub struct Rotations {
    /// For each pair, radians for each position.
    frequencies: Vec<f32>,
    dtype: DType,
    device: Device,
    made: Arc<Mutex<Option<[Tensor; 2]>>>,
}

impl Rotations {
    pub fn new(config: &Config, dtype: DType, device: &Device) -> Self {
        let width = config.head_dim;
        let frequencies = (0..width / 2).map(|pair| {
            let frequency = config.rope_theta.powf(-2. * pair as f64 / width as f64);
            let scaled = config.rope_scaling.map(|scaling| scaling.scale(frequency));
            scaled.unwrap_or(frequency) as f32
        });
        Self {
            frequencies: frequencies.collect(),
            dtype,
            device: device.clone(),
            made: Arc::default(),
        }
    }

    /// Those of positions from `first` on.
    pub fn of(&self, first: usize, count: usize) -> candle_core::Result<[Tensor; 2]> {
        let positions = first + count;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = made
            .take()
            .filter(|[cos, _]| cos.dims().first() >= Some(&positions));
        let tables = match enough {
            Some(tables) => tables,
            None => self.make(positions.next_power_of_two())?,
        };
        let [cos, sin] = made.insert(tables);
        Ok([cos.narrow(0, first, count)?, sin.narrow(0, first, count)?])
    }

    fn make(&self, positions: usize) -> candle_core::Result<[Tensor; 2]> {
        let angles = (0..positions).flat_map(|position| {
            let angle = move |frequency: &f32| position as f32 * frequency;
            self.frequencies.iter().map(angle)
        });
        let angles: Vec<f32> = angles.collect();
        let table = |of: fn(f32) -> f32| {
            let values = angles.iter().copied().map(of);
            let table = Tensor::from_iter(values, &Device::Cpu)?;
            let table = table.reshape((positions, self.frequencies.len()))?;
            table.to_dtype(self.dtype)?.to_device(&self.device)
        };
        Ok([table(f32::cos)?, table(f32::sin)?])
    }
}
