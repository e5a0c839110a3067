//! The model of the example `finetune`: its files, its families and its adapters, beside transformers and PEFT.

#[path = "../../../examples/finetune/model/mod.rs"]
#[allow(dead_code, reason = "the example uses more")]
pub mod model;
