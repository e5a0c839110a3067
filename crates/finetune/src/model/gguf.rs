//! Models in GGUF files, as llama.cpp writes them: a header with options, and tensors under names of its own.

use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Error, Result as CandleResult, Shape, Tensor};
use candle_headroom::fixed_file::FixedFile;
use candle_headroom::nn::quantized::gguf_file::{Content, TensorInfo, Value};
use candle_headroom::nn::quantized::{FrozenWeight, GgmlDType, QStorage, QTensor};
use candle_nn::Init;
use candle_nn::var_builder::SimpleBackend;

use super::config::{Config, Family};
use super::parameters::{in_pieces, some_rows};

/// The architecture of a file whose rows of queries and keys are in another order than transformers'.
const LLAMA: &str = "llama";

/// Names of parts in transformers and in GGUF.
const NAMES: [(&str, &str); 14] = [
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("input_layernorm.", "attn_norm."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
];

/// A file whose tensors are those of a model.
#[derive(Clone)]
pub struct Gguf {
    file: Arc<FixedFile>,
    content: Arc<Content>,
    /// Heads of queries and of keys, if the rows of both are in pairs.
    paired: Option<[usize; 2]>,
}

impl Gguf {
    /// Reads the header, and checks that the file has the tensors of this model, in types that are known.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        let file = FixedFile::open(path)?;
        // Each of its values is a read.
        let mut reader = BufReader::new(File::open(path)?);
        let content = Content::read(&mut reader).context(
            "the types of tensors that are known are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K",
        )?;
        let architecture = match content.metadata.get("general.architecture") {
            Some(Value::String(text)) => text.as_str(),
            _ => bail!("`general.architecture` is missing"),
        };
        let expected = match config.model_type {
            Family::Llama | Family::Mistral => LLAMA,
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        };
        ensure!(
            architecture == expected,
            "`general.architecture` is `{architecture}`, the model's config.json needs `{expected}`"
        );
        let number = |key: &str| match content.metadata.get(key)? {
            Value::F32(number) => Some(f64::from(*number)),
            _ => None,
        };
        let theta = number(&format!("{architecture}.rope.freq_base"));
        let (theta, expected) = (theta.unwrap_or(config.rope_theta), config.rope_theta);
        ensure!(
            (theta / expected - 1.).abs() < 1e-6,
            "`{architecture}.rope.freq_base` is {theta}, the model's config.json has {expected}: it belongs to another model"
        );
        let own = Self {
            paired: (architecture == LLAMA)
                .then_some([config.num_attention_heads, config.num_key_value_heads]),
            file: Arc::new(file),
            content: Arc::new(content),
        };
        for (name, shape) in config.tensors() {
            let found = own.info(&name)?.shape.dims();
            ensure!(
                found == shape,
                "`{}` has shape {found:?}, the model needs {shape:?}",
                named(&name)
            );
            own.range(&name)?;
        }
        Ok(own)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        let found = self.content.tensor_infos.get(&named(name));
        found.with_context(|| format!("`{}` ({name}) is missing", named(name)))
    }

    /// The bytes of a tensor, which are whole rows.
    fn range(&self, name: &str) -> Result<Range<u64>> {
        let (info, own) = (self.info(name)?, named(name));
        let (kind, shape) = (info.ggml_dtype, info.shape.dims());
        let (width, block) = (shape.last().copied().unwrap_or(1), kind.block_size());
        ensure!(
            width.is_multiple_of(block) && !matches!(kind, GgmlDType::Q8_1 | GgmlDType::Q8K),
            "`{own}` has rows of {width} numbers in {kind:?}, which is not supported"
        );
        ensure!(
            block == 1 || shape.len() == 2,
            "`{own}` is a vector in {kind:?}: supported are F32, F16 and BF16"
        );
        let bytes = info.shape.elem_count() / block * kind.type_size();
        let start = self.content.tensor_data_offset.saturating_add(info.offset);
        let (end, len) = (start.saturating_add(bytes as u64), self.file.len());
        ensure!(
            end <= len,
            "`{own}` ends at byte {end}, the file at {len}: it is not whole"
        );
        Ok(start..end)
    }

    /// Some rows of a tensor in the order of transformers, on this device.
    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<QTensor> {
        let (info, range) = (self.info(name)?, self.range(name)?);
        let shape = info.shape.dims();
        let count = shape.first().copied().unwrap_or(1).max(1);
        let each = (range.end - range.start) / count as u64;
        let at = |row: usize| range.start + row as u64 * each;
        let bytes = match self.heads(name) {
            None => self.file.read(at(rows.start)..at(rows.end))?,
            Some(heads) => {
                let stored = self.file.read(range.clone())?;
                let each = each as usize;
                let half = (count / heads / 2).max(1);
                let row = |row: usize| {
                    let (head, within) = (row / (2 * half), row % (2 * half));
                    // The two numbers that a rotation mixes are neighbours there.
                    let from = head * 2 * half + 2 * (within % half) + within / half;
                    &stored[from * each..(from + 1) * each]
                };
                rows.clone().flat_map(row).copied().collect()
            }
        };
        let storage = QStorage::from_data(bytes.into(), device, info.ggml_dtype)?;
        Ok(QTensor::new(storage, some_rows(shape, rows.len()))?)
    }

    /// The number of heads whose rows are in pairs.
    fn heads(&self, name: &str) -> Option<usize> {
        let [queries, keys] = self.paired?;
        let is_of = |layer: &str| name.contains(layer);
        match (is_of(".q_proj."), is_of(".k_proj.")) {
            (true, _) => Some(queries),
            (_, true) => Some(keys),
            _ => None,
        }
    }

    /// The weight of the layer at this path, as it is in the file.
    pub fn weight(&self, path: &str, dtype: DType, device: &Device) -> Result<FrozenWeight> {
        let name = format!("{path}.weight");
        let info = self.info(&name)?;
        Ok(match info.ggml_dtype {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => {
                self.load(&name, dtype, device)?.into()
            }
            _ => {
                let count = info.shape.dims().first().copied().unwrap_or(1);
                self.rows(&name, 0..count, device)?.into()
            }
        })
    }

    /// Dequantized, some rows at a time.
    fn load(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let shape = self.info(name)?.shape.dims();
        in_pieces(shape, size_of::<f32>(), dtype, device, |rows| {
            let rows = self.rows(name, rows, &Device::Cpu)?;
            let rows = rows.dequantize(&Device::Cpu)?.to_dtype(dtype)?;
            Ok(rows.to_device(device)?)
        })
        .with_context(|| format!("cannot read `{}`", named(name)))
    }
}

/// The name in GGUF.
fn named(name: &str) -> String {
    let name = name.replacen("model.layers.", "blk.", 1);
    let of_part = NAMES.iter().find(|(part, _)| name.contains(part));
    of_part.map_or(name.clone(), |(part, own)| name.replacen(part, own, 1))
}

impl SimpleBackend for Gguf {
    fn get(
        &self,
        _: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Tensor> {
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> CandleResult<Tensor> {
        let tensor = self.load(name, dtype, device);
        tensor.map_err(|error| Error::Msg(format!("{error:#}")))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.info(name).is_ok()
    }
}
