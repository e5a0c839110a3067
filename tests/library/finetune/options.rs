//! Options that are not supported, or that no model can have.

use serde_json::{Value, json};

use super::model::{Config, peft};
use super::{copy, edit};

#[test]
fn a_config_that_is_not_supported_says_what_is() {
    let cases: [(&str, Value, &str); 24] = [
        (
            "model_type",
            json!("gemma2"),
            "`gemma2`, supported are llama, mistral, qwen2, qwen3",
        ),
        ("model_type", Value::Null, "`model_type` is missing"),
        ("vocab_size", Value::Null, "`vocab_size` is missing"),
        ("vocab_size", json!(-1), "`vocab_size`"),
        ("hidden_size", json!("wide"), "`hidden_size`"),
        ("hidden_size", json!(0), "`hidden_size` must be at least 1"),
        (
            "num_attention_heads",
            json!(0),
            "`num_attention_heads` must be at least 1",
        ),
        (
            "num_key_value_heads",
            json!(0),
            "`num_key_value_heads` must be at least 1",
        ),
        (
            "num_key_value_heads",
            json!(4),
            "`num_attention_heads` (2) must be a multiple of `num_key_value_heads` (4)",
        ),
        ("head_dim", json!(5), "`head_dim` must be even, got 5"),
        (
            "sliding_window",
            json!(0),
            "`sliding_window` must be at least 1",
        ),
        (
            "rms_norm_eps",
            json!(-1.),
            "`rms_norm_eps` must be positive",
        ),
        (
            "hidden_act",
            json!("gelu"),
            "`hidden_act` is `gelu`, supported is silu",
        ),
        (
            "attention_dropout",
            json!(0.5),
            "`attention_dropout` is 0.5",
        ),
        (
            "partial_rotary_factor",
            json!(0.5),
            "`partial_rotary_factor` is 0.5",
        ),
        (
            "quantization_config",
            json!({ "bits": 4 }),
            "`quantization_config`",
        ),
        (
            "rope_parameters",
            json!({ "rope_type": "yarn", "factor": 2. }),
            "`rope_type` is `yarn`, supported are default, linear, llama3",
        ),
        (
            "rope_parameters",
            json!({ "rope_type": "linear" }),
            "`rope_parameters`: `factor` is missing",
        ),
        (
            "rope_parameters",
            json!({ "rope_type": "linear", "factor": 0.5 }),
            "`factor` must be at least 1, got 0.5",
        ),
        (
            "rope_parameters",
            json!({ "rope_type": "llama3", "factor": 2., "low_freq_factor": 4., "high_freq_factor": 4. }),
            "`high_freq_factor` (4) must be above",
        ),
        (
            "rope_parameters",
            json!({ "rope_theta": 0. }),
            "`rope_theta` must be positive, got 0",
        ),
        (
            "layer_types",
            json!(["sliding_attention", "full_attention"]),
            "`layer_types` has `full_attention` at 1",
        ),
        (
            "layer_types",
            json!(["chunked_attention", "chunked_attention"]),
            "`layer_types` has `chunked_attention` at 0",
        ),
        (
            "layer_types",
            json!(["full_attention"]),
            "`layer_types` has 1 entries for 2 layers",
        ),
    ];
    for (name, value, expected) in cases {
        let folder = copy("mistral");
        edit(&folder.path().join("config.json"), name, value);
        let error = format!("{:#}", Config::read(folder.path()).unwrap_err());
        assert!(
            error.contains(expected) && error.contains("config.json"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let error = format!("{:#}", Config::read(folder.path()).unwrap_err());
    assert!(error.contains("config.json"), "{error}");
    std::fs::write(folder.path().join("config.json"), "[1]").unwrap();
    assert!(Config::read(folder.path()).is_err());
}

#[test]
fn names_of_older_files_are_read() {
    let folder = copy("llama-3");
    let file = folder.path().join("config.json");
    let expected = Config::read(folder.path()).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let mut scaling = config["rope_parameters"].clone();
    scaling.as_object_mut().unwrap().remove("rope_theta");
    edit(&file, "rope_parameters", Value::Null);
    edit(&file, "rope_theta", json!(5e5));
    edit(&file, "rope_scaling", scaling);
    assert_eq!(Config::read(folder.path()).unwrap(), expected);
    assert_eq!(expected.eos_token_ids, [2, 3]);
}

#[test]
fn adapters_that_are_not_supported_are_named() {
    let cases: [(&str, Value, &str); 10] = [
        (
            "peft_type",
            json!("IA3"),
            "`peft_type` is `IA3`, supported is LORA",
        ),
        ("bias", json!("all"), "`bias` is `all`, supported is none"),
        ("use_dora", json!(true), "`use_dora` is true"),
        (
            "modules_to_save",
            json!(["lm_head"]),
            "`modules_to_save` is [\"lm_head\"]",
        ),
        ("rank_pattern", json!({ "q_proj": 4 }), "`rank_pattern`"),
        ("layers_to_transform", json!([0]), "`layers_to_transform`"),
        (
            "target_modules",
            json!(".*q_proj"),
            "the pattern `.*q_proj`",
        ),
        ("target_modules", json!(3), "`target_modules`"),
        ("target_modules", Value::Null, "`target_modules` is missing"),
        ("r", Value::Null, "`r` is missing"),
    ];
    for (name, value, expected) in cases {
        let folder = copy("llama-2");
        let adapter = folder.path().join("adapter");
        edit(&adapter.join("adapter_config.json"), name, value);
        let error = format!("{:#}", peft::read_options(&adapter).unwrap_err());
        assert!(
            error.contains(expected) && error.contains("adapter_config.json"),
            "{error}"
        );
    }
}

#[test]
fn all_linear_layers_and_stabilized_ranks_are_read() {
    let folder = copy("llama-2");
    let adapter = folder.path().join("adapter");
    let file = adapter.join("adapter_config.json");
    edit(&file, "target_modules", json!("all-linear"));
    edit(&file, "use_rslora", json!(true));
    let lora = peft::read_options(&adapter).unwrap();
    assert_eq!(lora.targets, ["all-linear"]);
    // 6 / √2
    assert!((lora.scale() - 6. / 2f64.sqrt()).abs() < 1e-12);
}
