//! Bad input ends with one line and status 2, before training.

use std::fs;
use std::path::Path;

use super::{Files, base, command, copy};

/// Asserts that a run is refused with these words.
pub fn refused(arguments: &[&str], variables: &[(&str, &str)], words: &str) {
    let mut command = command(arguments);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    assert_eq!(
        stderr.trim_end().lines().count(),
        1,
        "{arguments:?}: {stderr}"
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        !said.contains("step 1:"),
        "{arguments:?}: refused only after training"
    );
}

#[test]
fn options_that_cannot_be() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let with = |more: &[&'static str], words: &str| {
        let own = ["--model", base(), "--output", &output, &data];
        refused(&[&own[..], more].concat(), &[], words);
    };
    with(&["--batch", "0"], "--batch must be at least 1");
    with(&["--steps", "0"], "--steps must be at least 1");
    with(&["--context", "0"], "--context must be at least 1");
    with(
        &["--context", "100000"],
        "has been made for at most 256 tokens",
    );
    with(
        &["--held-out", "1"],
        "--held-out must be at least 0 and less than 1, got 1",
    );
    with(&["--learning-rate", "NaN"], "--learning-rate");
    with(
        &["--lora-targets", "nonsense"],
        "no linear layer is named `nonsense`; there are q_proj",
    );
    with(&["--lora-alpha", "NaN"], "the alpha of adapters");
    with(&["--lora-rank", "0"], "the rank of adapters");
    with(
        &["--offload", "1GiB", "--recompute", "never"],
        "give `--recompute always`",
    );
    refused(&["--weights", "x.gguf"], &[], "give `--model` too");
    with(&["--adapter", "/no/adapter"], "/no/adapter");
    with(&["--budget", "1KiB"], "below");
    with(
        &["--budget", "7MiB"],
        "of a micro-batch of 1 (samples 0..1): the limit is reached",
    );
    with(&["--report", "/no/folder/x.html"], "/no/folder/x.html");
    with(
        &["--quantize", "q4_k"],
        "self_attn.q_proj has 128 inputs, and Q4K has blocks of 256: take a type with smaller blocks",
    );
    with(&["--weights", "/no/file.gguf"], "/no/file.gguf");
    #[cfg(not(feature = "cuda"))]
    with(&["--device", "cuda:0"], "feature `cuda`");
    #[cfg(not(feature = "cuda"))]
    with(&["--plan", "RTX 4090"], "build it with `--features cuda`");
    refused(
        &[&data],
        &[],
        "name a folder or a model of the hub by `--model`",
    );
    refused(&["--model", base()], &[], "name files to learn from");
    for option in [&["--ranks"][..], &["--checkpoint", &output]] {
        refused(option, &[], "need a model and data of yours");
    }
}

/// By the parser of options, in lines of its own.
#[test]
fn options_that_exclude_each_other() {
    for (option, words) in [
        (
            &["--full", "--quantize=nf4"][..],
            "'--full' cannot be used with '--quantize",
        ),
        (
            &["--full", "--weights=x.gguf"],
            "'--full' cannot be used with '--weights",
        ),
        (
            &["--full", "--dora"],
            "'--full' cannot be used with '--dora'",
        ),
        (
            &["--quantize=q2"],
            "must be one of q8_0, q6_k, q5_k, q4_k, q4_0, nf4",
        ),
    ] {
        let output = command(option).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn models_that_are_not_whole() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let with = |model: &str, words: &str| {
        refused(&["--model", model, "--output", &output, &data], &[], words);
    };
    with("/no/such/folder", "there is no folder /no/such/folder");
    with(&data, "is a file: name the folder");
    for missing in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = files.path(missing.split_once('.').unwrap().0);
        copy(base(), &folder);
        fs::remove_file(Path::new(&folder).join(missing)).unwrap();
        with(&folder, missing);
    }
    let folder = files.path("small");
    copy(base(), &folder);
    let config = Path::new(&folder).join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace("\"vocab_size\": 1024", "\"vocab_size\": 1000"),
    )
    .unwrap();
    with(&folder, "has tokens up to 1023, the model in ");
    fs::write(&config, text.replace("\"llama\"", "\"gpt2\"")).unwrap();
    with(&folder, "gpt2");
    // The result would replace a model.
    let own = ["--model", base(), "--output", base(), &data];
    refused(&own, &[], "holds model.safetensors: name another folder");
}

#[test]
fn data_that_cannot_be_learned() {
    let files = Files::new();
    let output = files.path("out");
    let with = |name: &str, content: &[u8], words: &str| {
        let data = files.write(name, content);
        refused(&["--model", base(), "--output", &output, &data], &[], words);
    };
    let good = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    with(
        "json.jsonl",
        format!("{good}\nno json\n").as_bytes(),
        ": line 3, column 2: ",
    );
    with(
        "none.jsonl",
        format!("{good}{{\"prompt\": \"a\", \"completion\": \"\"}}").as_bytes(),
        "line 2: `completion` is empty",
    );
    with(
        "prompts.jsonl",
        b"{\"prompt\": \"a\"}",
        "line 1: there must be `messages`, `prompt` and `completion`, or `text` alone",
    );
    with(
        "other.jsonl",
        b"{\"question\": \"a\"}",
        "line 1: there must be",
    );
    with(
        "both.jsonl",
        b"{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"c\"}",
        "line 1: there must be",
    );
    with(
        "list.jsonl",
        format!("{good}[\"a\", \"b\"]").as_bytes(),
        "line 2: invalid type: sequence, expected an object",
    );
    with("blank.jsonl", b"\n \n", "blank.jsonl is empty");
    with("empty.jsonl", b"", "empty.jsonl");
    with(
        "empty.txt",
        b"",
        "empty.txt is empty: name a file with samples",
    );
    with("latin.txt", b"caf\xe9", "latin.txt: convert it to UTF-8");
    with("latin.jsonl", b"{\"text\": \"caf\xe9\"}", "line 1, column ");
    with("no.parquet", b"no parquet", "no.parquet");
    refused(
        &["--model", base(), "--output", &output, "no-such.txt"],
        &[],
        "cannot read no-such.txt",
    );
    // One token, and no end is learned.
    let endless = files.path("endless");
    copy(base(), &endless);
    let config = Path::new(&endless).join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let mut options: serde_json::Value = serde_json::from_str(&text).unwrap();
    options.as_object_mut().unwrap().remove("eos_token_id");
    fs::write(&config, options.to_string()).unwrap();
    let (data, short) = (files.pairs(), files.write("short.txt", "a"));
    refused(
        &[
            "--model", &endless, "--output", &output, "--eval", &short, &data,
        ],
        &[],
        "the files of --eval hold too little text to evaluate on",
    );
}
