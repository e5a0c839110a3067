use std::f64::consts::PI;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::fields::Fields;

const THETA: f64 = 1e4;

/// How rotations are slowed down for texts that are longer than those of the first training.
#[derive(Debug, Clone, Copy, PartialEq)]
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
        let kind = match fields.optional::<String>("rope_type")? {
            Some(kind) => Some(kind),
            // Older files.
            None => fields.optional("type")?,
        };
        let factor = || {
            let factor = fields.required("factor")?;
            match factor >= 1. {
                true => Ok(factor),
                false => bail!("`factor` must be at least 1, got {factor}"),
            }
        };
        Ok(match kind.as_deref() {
            None | Some("default") => None,
            Some("linear") => Some(Self::Linear { factor: factor()? }),
            Some("llama3") => {
                let low_freq_factor = fields.required("low_freq_factor")?;
                let high_freq_factor = fields.required("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    bail!(
                        "`high_freq_factor` ({high_freq_factor}) must be above `low_freq_factor` ({low_freq_factor})"
                    )
                }
                let scaling = Self::Llama3 {
                    factor: factor()?,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings: fields
                        .optional("original_max_position_embeddings")?
                        .unwrap_or(max_positions),
                };
                Some(scaling)
            }
            Some(other) => bail!("`rope_type` is `{other}`, supported are default, linear, llama3"),
        })
    }

    /// As an entry of `config.json`.
    pub fn to_json(self) -> Value {
        match self {
            Self::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            }),
        }
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
