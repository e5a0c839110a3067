//! The model of the program `finetune`: decoders of the Llama family on [`candle_headroom::nn`], whole or with adapters (LoRA), in the
//! files of transformers and PEFT.

#![forbid(unsafe_code)]

pub mod model;
