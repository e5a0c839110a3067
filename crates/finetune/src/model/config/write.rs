use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::DType;
use serde_json::{Value, json};

use super::{CONFIG, Config, Family, RopeScaling};

impl Config {
    /// Writes `config.json` into a folder, which is made if it is missing, as transformers reads it.
    pub fn save(&self, folder: &Path) -> Result<()> {
        self.save_with(folder, None)
    }

    /// As [`save`](Self::save), with the type of the parameters.
    pub fn save_with(&self, folder: &Path, dtype: Option<DType>) -> Result<()> {
        let path = folder.join(CONFIG);
        let write = || {
            fs::create_dir_all(folder)?;
            let text = serde_json::to_string_pretty(&self.to_json(dtype))?;
            anyhow::Ok(fs::write(&path, text + "\n")?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    fn to_json(&self, dtype: Option<DType>) -> Value {
        let eos = match self.eos_token_ids.as_slice() {
            [] => Value::Null,
            [one] => json!(one),
            several => json!(several),
        };
        // Under the names that all versions of transformers read.
        let mut json = json!({
            "architectures": [self.model_type.architecture()],
            "model_type": self.model_type.name(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling.map(RopeScaling::to_json),
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_dropout": 0.0,
            "initializer_range": self.initializer_range,
            "use_cache": true,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "pad_token_id": self.pad_token_id,
        });
        let mut set = |name: &str, value: Value| json[name] = value;
        if let Some(dtype) = dtype {
            let name = match dtype {
                DType::F16 => "float16",
                DType::BF16 => "bfloat16",
                DType::F64 => "float64",
                _ => "float32",
            };
            set("torch_dtype", json!(name));
        }
        match self.model_type {
            Family::Llama => {
                set("attention_bias", json!(self.attention_bias));
                set("mlp_bias", json!(self.mlp_bias));
            }
            Family::Mistral => set("sliding_window", json!(self.sliding_window)),
            Family::Qwen2 | Family::Qwen3 => {
                if self.model_type == Family::Qwen3 {
                    set("attention_bias", json!(self.attention_bias));
                }
                set("use_sliding_window", json!(self.sliding_window.is_some()));
                set("sliding_window", json!(self.sliding_window));
                set("max_window_layers", json!(self.max_window_layers));
            }
        }
        json
    }
}
