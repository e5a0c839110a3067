use std::fmt;

use anyhow::{Context, Result};

/// Decoders of one shape, which differ in biases, norms of heads and windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3, SmolLM and others of this `model_type`.
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// Its `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// Its class in transformers.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    pub fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|family| family.name() == name);
        found.with_context(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("`model_type` is `{name}`, supported are {all}")
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}
