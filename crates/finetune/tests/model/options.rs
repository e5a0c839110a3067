//! Options that are not supported, or that no model can have.

use serde_json::{Value, json};

use super::{copy, edit};
use headroom_finetune::model::{Config, peft};

#[test]
fn a_config_that_is_not_supported_says_what_is() {
    let cases: [(&str, Value, &str); 30] = [
        (
            "model_type",
            json!("gemma2"),
            "`gemma2`, expected one of `llama`, `mistral`, `qwen2`, `qwen3`",
        ),
        ("model_type", Value::Null, "`model_type` is missing"),
        ("vocab_size", Value::Null, "`vocab_size` is missing"),
        ("vocab_size", json!(-1), "`vocab_size`"),
        ("hidden_size", json!("wide"), "`hidden_size`"),
        ("hidden_size", json!(0), "`hidden_size` must be 1 to"),
        (
            "num_attention_heads",
            json!(0),
            "`num_attention_heads` must be 1 to 16777216, got 0",
        ),
        (
            "num_key_value_heads",
            json!(0),
            "`num_key_value_heads` must be 1 to 16777216, got 0",
        ),
        (
            "num_key_value_heads",
            json!(4),
            "`num_attention_heads` (2) must be a multiple of `num_key_value_heads` (4)",
        ),
        ("head_dim", json!(5), "`head_dim` must be even, got 5"),
        (
            "head_dim",
            json!(1u64 << 60),
            "`head_dim` must be 1 to 16777216, got 1152921504606846976",
        ),
        (
            "head_dim",
            json!(1 << 24),
            "heads times `head_dim` must be 1 to 16777216, got 33554432",
        ),
        (
            "num_hidden_layers",
            json!(2048),
            "`num_hidden_layers` must be 1 to 1024, got 2048",
        ),
        (
            "num_hidden_layers",
            json!(1e12 as u64),
            "`num_hidden_layers` must be 1 to",
        ),
        ("vocab_size", json!(u64::MAX), "`vocab_size` must be 1 to"),
        (
            "eos_token_id",
            json!([2, 16]),
            "`eos_token_id` must be less than `vocab_size` (16), got 16",
        ),
        ("sliding_window", json!(0), "`sliding_window` must be 1 to"),
        (
            "rms_norm_eps",
            json!(-1.),
            "`rms_norm_eps` must be positive",
        ),
        (
            "hidden_act",
            json!("gelu"),
            "`hidden_act` is `gelu`; must be `silu`",
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
    let cases: [(&str, Value, &str); 13] = [
        (
            "peft_type",
            json!("IA3"),
            "`peft_type` is `IA3`; must be `LORA`",
        ),
        ("bias", json!("all"), "`bias` is `all`; must be `none`"),
        (
            "modules_to_save",
            json!(["lm_head"]),
            "`modules_to_save` is [\"lm_head\"]",
        ),
        ("rank_pattern", json!({ "q_proj": 4 }), "`rank_pattern`"),
        ("layers_to_transform", json!([0]), "`layers_to_transform`"),
        (
            "init_lora_weights",
            json!("pissa_niter_16"),
            "`init_lora_weights` is \"pissa_niter_16\", supported are true, false, gaussian",
        ),
        ("init_lora_weights", json!("olora"), "`init_lora_weights`"),
        (
            "target_modules",
            json!(".*q_proj"),
            "the pattern `.*q_proj`",
        ),
        ("target_modules", json!(3), "`target_modules`"),
        ("target_modules", Value::Null, "`target_modules` is missing"),
        ("r", Value::Null, "`r` is missing"),
        ("r", json!(65_537), "must be 1 to 65536, got 65537"),
        (
            "r",
            json!(u64::MAX),
            "must be 1 to 65536, got 18446744073709551615",
        ),
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
fn beginnings_that_keep_the_model_are_read() {
    let folder = copy("llama-2");
    let adapter = folder.path().join("adapter");
    let expected = peft::read_options(&adapter).unwrap();
    let values = [true.into(), false.into(), "gaussian".into(), "eva".into()];
    for value in values.into_iter().chain([Value::Null, "orthogonal".into()]) {
        edit(
            &adapter.join("adapter_config.json"),
            "init_lora_weights",
            value,
        );
        assert_eq!(peft::read_options(&adapter).unwrap(), expected);
    }
}

#[test]
fn all_linear_layers_and_stabilized_ranks_are_read() {
    let folder = copy("llama-2");
    let adapter = folder.path().join("adapter");
    let file = adapter.join("adapter_config.json");
    edit(&file, "target_modules", json!("all-linear"));
    edit(&file, "use_rslora", json!(true));
    edit(&file, "use_dora", json!(true));
    let lora = peft::read_options(&adapter).unwrap();
    assert_eq!(lora.targets, ["all-linear"]);
    assert!(lora.dora);
    // 6 / √2
    assert!((lora.scale() - 6. / 2f64.sqrt()).abs() < 1e-12);
}
