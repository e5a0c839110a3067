//! The model that is trained or that has adapters: where its parameters come from, and which of them stay quantized.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, ensure};
use candle_core::{DType, Device, Error, Result, Tensor, bail};
use candle_headroom::nn::lora::{self, Adapter};
use candle_headroom::nn::quantized::{
    FrozenLinear, FrozenWeight, GgmlDType, Nf4, QStorage, QTensor,
};
use candle_headroom::nn::{Init, Linear, Module, VarBuilder, linear_b};
use rayon::prelude::*;

use super::config::{Config, LinearLayer};
use super::files::files_of;
use super::gguf::Gguf;
use super::parameters::{Weights, rows_of_piece};
use super::table::Table;

/// Rows that are quantized at once take so many times the bytes of f32: the numbers in their own type, and copies.
const COPIES: usize = 4;

/// The parameters of a model. Without quantized weights it is made of a `VarBuilder`.
pub struct Base<'a> {
    pub vb: VarBuilder<'a>,
    quantized: Option<Quantized>,
    /// Whether the embedding and the head are quantized too, as GGUF files have them.
    has_tables: bool,
}

/// Makes the weight of the linear layer at a path.
type Quantized = Box<dyn Fn(&str) -> anyhow::Result<FrozenWeight>>;

/// A type of few bits, for the weights of linear layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantization {
    /// Blocks of a row, as in llama.cpp.
    Ggml(GgmlDType),
    /// 4 bits with double quantization, as in bitsandbytes.
    Nf4,
}

const KINDS: [(&str, Quantization); 6] = [
    ("q8_0", Quantization::Ggml(GgmlDType::Q8_0)),
    ("q6_k", Quantization::Ggml(GgmlDType::Q6K)),
    ("q5_k", Quantization::Ggml(GgmlDType::Q5K)),
    ("q4_k", Quantization::Ggml(GgmlDType::Q4K)),
    ("q4_0", Quantization::Ggml(GgmlDType::Q4_0)),
    ("nf4", Quantization::Nf4),
];

impl Quantization {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        let found = KINDS.iter().find(|(_, kind)| *kind == self);
        found.map_or("another type", |(name, _)| name)
    }
}

impl Quantization {
    /// Refuses layers whose rows are no whole blocks.
    fn check(self, config: &Config) -> anyhow::Result<()> {
        let Self::Ggml(kind) = self else {
            return Ok(());
        };
        let block = kind.block_size();
        for layer in config.linear_layers() {
            let (name, inputs) = (layer.name, layer.inputs);
            ensure!(
                inputs.is_multiple_of(block),
                "{name} has {inputs} inputs, and {kind:?} has blocks of {block}: take a type with smaller blocks, such as q8_0, or nf4"
            );
        }
        Ok(())
    }
}

impl FromStr for Quantization {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let names = KINDS.map(|(name, _)| name).join(", ");
        let found = KINDS.into_iter().find(|(name, _)| *name == text);
        let (_, kind) = found.with_context(|| format!("must be one of {names}"))?;
        Ok(kind)
    }
}

impl<'a> From<VarBuilder<'a>> for Base<'a> {
    fn from(vb: VarBuilder<'a>) -> Self {
        Self {
            vb,
            quantized: None,
            has_tables: false,
        }
    }
}

impl Base<'static> {
    /// The parameters of a folder's model as constants of this type. Each is read when a layer asks for it.
    pub fn open(folder: &Path, dtype: DType, device: &Device) -> anyhow::Result<Self> {
        let weights = Box::new(Weights::open(&files_of(folder)?)?);
        Ok(VarBuilder::from_backend(weights, dtype, device.clone()).into())
    }

    /// As [`open`](Self::open), with the weights of the blocks' linear layers quantized when they are read.
    pub fn quantized(
        folder: &Path,
        config: &Config,
        kind: Quantization,
        dtype: DType,
        device: &Device,
    ) -> anyhow::Result<Self> {
        kind.check(config)?;
        let weights = Weights::open(&files_of(folder)?)?;
        let (own, to) = (weights.clone(), device.clone());
        let quantize = move |path: &str| {
            let name = format!("{path}.weight");
            let made = match kind {
                Quantization::Ggml(kind) => ggml(&own, &name, kind, &to),
                Quantization::Nf4 => {
                    let whole = own.load(&name, None, &Device::Cpu)?;
                    Nf4::quantize(&whole, &to)
                        .map(Into::into)
                        .map_err(Into::into)
                }
            };
            made.with_context(|| format!("cannot quantize `{name}`"))
        };
        Ok(Self {
            vb: VarBuilder::from_backend(Box::new(weights), dtype, device.clone()),
            quantized: Some(Box::new(quantize)),
            has_tables: false,
        })
    }

    /// Zeros in the place of a model's parameters, with as much memory.
    pub fn planned(
        config: &Config,
        kind: Option<Quantization>,
        dtype: DType,
        device: &Device,
    ) -> anyhow::Result<Self> {
        let vb = VarBuilder::zeros(dtype, device);
        let Some(kind) = kind else {
            return Ok(vb.into());
        };
        kind.check(config)?;
        let (layers, to) = (config.linear_layers(), device.clone());
        let zeros = move |path: &str| -> anyhow::Result<FrozenWeight> {
            let layer = layers.iter().find(|layer| path.ends_with(layer.name));
            let layer = layer.with_context(|| format!("no layer is {path}"))?;
            let shape = (layer.outputs, layer.inputs);
            Ok(match kind {
                Quantization::Ggml(kind) => {
                    let bytes = shape.0 * shape.1 / kind.block_size() * kind.type_size();
                    let storage = QStorage::from_data(vec![0; bytes].into(), &to, kind)?;
                    QTensor::new(storage, shape)?.into()
                }
                Quantization::Nf4 => {
                    let weight = Tensor::zeros(shape, DType::BF16, &Device::Cpu)?;
                    Nf4::quantize(&weight, &to)?.into()
                }
            })
        };
        Ok(Self {
            vb,
            quantized: Some(Box::new(zeros)),
            has_tables: false,
        })
    }

    /// The parameters of a GGUF file: the weights of linear layers, the embedding and the head as they are, others as constants of this type.
    pub fn gguf(
        file: &Path,
        config: &Config,
        dtype: DType,
        device: &Device,
    ) -> anyhow::Result<Self> {
        let gguf = Gguf::open(file, config);
        let gguf = gguf.with_context(|| format!("cannot read {}", file.display()))?;
        let (own, to) = (gguf.clone(), device.clone());
        Ok(Self {
            vb: VarBuilder::from_backend(Box::new(gguf), dtype, device.clone()),
            quantized: Some(Box::new(move |path| own.weight(path, dtype, &to))),
            has_tables: true,
        })
    }
}

impl Base<'_> {
    /// The embedding or the head, (vocabulary, hidden).
    pub(super) fn table(&self, path: &str, config: &Config) -> Result<Table> {
        let (shape, stdev) = (
            (config.vocab_size, config.hidden_size),
            config.initializer_range,
        );
        match self.quantized.as_ref().filter(|_| self.has_tables) {
            Some(quantized) => Ok(Table::Frozen(
                quantized(path).map_err(|error| Error::Msg(format!("{error:#}")))?,
            )),
            None => {
                let init = Init::Randn { mean: 0., stdev };
                let name = format!("{path}.weight");
                Ok(Table::Tensor(self.vb.get_with_hints(shape, &name, init)?))
            }
        }
    }

    /// A layer of the block at this path, with an adapter where one is attached.
    pub(super) fn linear(&self, block: &str, layer: &LinearLayer) -> Result<Projection> {
        let path = format!("{block}.{}", layer.name);
        let (vb, shape) = (self.vb.pp(&path), (layer.outputs, layer.inputs));
        let Some(quantized) = &self.quantized else {
            let made = linear_b(layer.inputs, layer.outputs, layer.has_bias, vb)?;
            return Ok(Projection::Plain(made));
        };
        let weight = quantized(&path).map_err(|error| Error::Msg(format!("{error:#}")))?;
        let found = weight.dims()?;
        if found != shape {
            bail!("{path}.weight has shape {found:?}, the model needs {shape:?}")
        }
        let bias = layer.has_bias.then(|| vb.get(layer.outputs, "bias"));
        let frozen = FrozenLinear::new(weight, bias.transpose()?)?;
        let whole = || frozen.weight().dequantize();
        let adapter = lora::at(&path, shape, vb.dtype(), vb.device(), whole)?;
        Ok(Projection::Frozen(frozen, adapter))
    }
}

/// A linear layer, whose weight is quantized in a frozen base.
pub enum Projection {
    Plain(Linear),
    Frozen(FrozenLinear, Option<Adapter>),
}

impl Projection {
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(layer) => layer.forward(x),
            Self::Frozen(layer, None) => layer.forward(x),
            Self::Frozen(layer, Some(adapter)) => adapter.forward(x, layer.bias(), |x, bias| {
                FrozenLinear::new(layer.weight().clone(), bias.cloned())?.forward(x)
            }),
        }
    }

    pub fn without_graph(&self) -> Self {
        match self {
            Self::Plain(layer) => Self::Plain(layer.without_graph()),
            Self::Frozen(layer, adapter) => {
                let adapter = adapter.as_ref().map(Adapter::without_graph);
                Self::Frozen(layer.clone(), adapter)
            }
        }
    }
}

/// A weight in blocks of its rows, made of some rows at a time, on all processors.
fn ggml(
    weights: &Weights,
    name: &str,
    kind: GgmlDType,
    device: &Device,
) -> anyhow::Result<FrozenWeight> {
    let shape = weights.shape(name)?;
    let &[count, width] = shape else {
        anyhow::bail!("it has shape {shape:?}, the model needs a matrix")
    };
    let bytes = count * width / kind.block_size() * kind.type_size();
    let mut blocks = Vec::new();
    blocks.try_reserve_exact(bytes)?;
    let piece = rows_of_piece(shape, COPIES * size_of::<f32>());
    let each = piece.div_ceil(rayon::current_num_threads()).max(1);
    for first in (0..count).step_by(piece) {
        let len = piece.min(count - first);
        let rows = weights.rows(name, first..first + len, DType::F32, &Device::Cpu)?;
        let parts: Vec<_> = (0..len).step_by(each).collect();
        let parts = parts.into_par_iter().map(|start| {
            let part = rows.narrow(0, start, each.min(len - start))?;
            Ok(QTensor::quantize(&part, kind)?.data()?.into_owned())
        });
        let parts: Vec<Vec<u8>> = parts.collect::<anyhow::Result<_>>()?;
        parts.iter().for_each(|part| blocks.extend_from_slice(part));
    }
    let storage = QStorage::from_data(blocks.into(), device, kind)?;
    Ok(QTensor::new(storage, (count, width))?.into())
}
