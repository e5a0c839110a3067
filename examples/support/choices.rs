//! What options choose from: types, recomputation, devices.

use std::str::FromStr;

use candle_core::DType;
use candle_headroom::DeviceMemory;
use candle_headroom::batch::Recompute;
use candle_headroom::memory::Limit;
use candle_headroom::optim::Moments;
use clap::ValueEnum;

/// The type of the parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, ValueEnum)]
pub enum Parameters {
    #[default]
    F32,
    Bf16,
    F16,
}

impl From<Parameters> for DType {
    fn from(parameters: Parameters) -> Self {
        match parameters {
            Parameters::F32 => Self::F32,
            Parameters::Bf16 => Self::BF16,
            Parameters::F16 => Self::F16,
        }
    }
}

/// The type of moments.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum MomentBits {
    #[default]
    F32,
    Bf16,
    #[value(name = "8bit")]
    EightBit,
}

impl From<MomentBits> for Moments {
    fn from(bits: MomentBits) -> Self {
        match bits {
            MomentBits::F32 => DType::F32.into(),
            MomentBits::Bf16 => DType::BF16.into(),
            MomentBits::EightBit => Self::EightBit,
        }
    }
}

/// What becomes of the model's blocks.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Recomputing {
    /// They are kept, like other layers.
    Never,
    /// They are recomputed.
    Always,
    /// They are kept while that is faster.
    #[default]
    Auto,
}

impl From<Recomputing> for Recompute {
    fn from(recomputing: Recomputing) -> Self {
        match recomputing {
            Recomputing::Never => Self::Never,
            Recomputing::Always => Self::Always,
            Recomputing::Auto => Self::Auto,
        }
    }
}

/// A device, as candle names it.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    Cpu,
    Cuda(usize),
}

impl Place {
    pub fn open(self, limit: Limit) -> candle_headroom::Result<DeviceMemory> {
        match self {
            Self::Cpu => DeviceMemory::host().limit(limit).open(),
            Self::Cuda(ordinal) => DeviceMemory::cuda(ordinal).limit(limit).open(),
        }
    }

    /// The number among candle's CUDA devices.
    pub fn ordinal(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Cuda(ordinal) => Some(ordinal),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ordinal = text.strip_prefix("cuda:").map(str::parse);
        match (text, ordinal) {
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(Ok(ordinal))) => Ok(Self::Cuda(ordinal)),
            _ => Err("expected `cpu` or `cuda:` and a GPU's number, such as `cuda:0`".to_owned()),
        }
    }
}
