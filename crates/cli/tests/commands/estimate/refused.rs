//! Folders and options that are refused.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::super::{path, refuses, run};
use super::{estimate, folder_with, smol};

/// A header of a model of 2 TB, whose end is missing, and other damage.
#[test]
fn damaged_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let header = r#"{"w":{"dtype":"F32","shape":[500000000000],"data_offsets":[0,2000000000000]}}"#;
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(&file, &whole).unwrap();
    let arguments = ["estimate", path(folder.path())];
    refuses(&arguments, "its end is missing");
    fs::write(&file, &whole[..40]).unwrap();
    refuses(&arguments, "not a safetensors file, or not whole");
    fs::write(&file, [0xff; 64]).unwrap();
    refuses(&arguments, "not a safetensors file, or not whole");
    fs::write(&file, "abc").unwrap();
    refuses(&arguments, "model.safetensors: ");
    for (index, why) in [
        ("{}", "weight_map"),
        (
            r#"{"weight_map": {"a": 1, "b": "x.safetensors"}}"#,
            "expected a string",
        ),
        (r#"{"weight_map": {}}"#, "names no file"),
    ] {
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        refuses(&arguments, why);
    }
}

#[test]
fn what_is_no_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let asked = ["estimate", path(folder.path())];
    refuses(&asked, "has neither config.json nor safetensors files");
    refuses(
        &["estimate", path(&folder.path().join("missing"))],
        "no such folder",
    );
    let config = folder.path().join("config.json");
    fs::write(&config, "{\"model_type\": \"lla").unwrap();
    refuses(&asked, "config.json: EOF while parsing");
    refuses(&["estimate", path(&config)], "not a folder");
    let other = |field: &str, value: Value, why: &str| {
        let mut config = smol();
        config[field] = value;
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        refuses(&asked, why);
    };
    other(
        "model_type",
        "bert".into(),
        "`model_type` is `bert`, supported are llama, mistral, qwen2, qwen3",
    );
    other("model_type", Value::Null, "`model_type` is missing");
    other("hidden_size", Value::Null, "`hidden_size` is missing");
    other(
        "hidden_size",
        0.into(),
        "`hidden_size` must be from 1 to 1048576, got 0",
    );
    other(
        "num_hidden_layers",
        u64::MAX.into(),
        "`num_hidden_layers` must be from 1 to 2048, got 18446744073709551615",
    );
    other("vocab_size", (-1).into(), "config.json: invalid value");
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    refuses(&asked, "not a regular file");
    fs::remove_dir(&config).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
        refuses(&asked, "not a regular file");
        fs::remove_file(&config).unwrap();
    }
    #[cfg(unix)]
    if super::super::unreadable(folder.path(), "config.json").is_some() {
        refuses(&asked, "ermission denied");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let folder = folder_with(&smol());
    let folder = path(folder.path());
    refuses(
        &[
            "estimate",
            folder,
            "--lora-rank",
            "8",
            "--lora-targets",
            "q_proj,query",
        ],
        "no layer is named `query`",
    );
    for (option, value) in [
        ("--batch", "0"),
        ("--length", "0"),
        ("--lora-rank", "0"),
        ("--memory", "much"),
        ("--dtype", "int8"),
        ("--optimizer", "adam"),
        ("--moments", "4bit"),
    ] {
        assert_eq!(
            run(&["estimate", folder, option, value]).status,
            Some(2),
            "{option}"
        );
    }
    let said = estimate(
        Path::new(folder),
        &["--length", "10000", "--memory", "1TiB"],
    );
    assert_eq!(said["notes"][0], "10000 tokens are beyond the model's 8192");
}
