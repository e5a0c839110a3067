//! Files that strangers have made: an answer, or one line that says what is wrong, within bounded memory. Valid files are changed at random, in
//! the same way in each run.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{PROGRAM, path};

const CASES: usize = 60;

/// What a change puts in the place of a number.
const EXTREMES: [&str; 14] = [
    "0",
    "1",
    "-1",
    "0.5",
    "4294967296",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "null",
    "\"\"",
    "[]",
    "[[[[[[[[",
];

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}

/// A bit, the end, a part that comes twice, or mostly a number.
fn changed(valid: &[u8], random: &mut Random) -> Vec<u8> {
    let mut content = valid.to_vec();
    for _ in 0..=random.below(2) {
        let at = random.below(content.len());
        match random.below(8) {
            0 => content.truncate(at),
            1 => content.extend_from_within(at..),
            2 | 3 => content
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << random.below(8)),
            _ => {
                let is_digit = |at: &usize| content.get(*at).is_some_and(u8::is_ascii_digit);
                let start = (at..content.len()).find(is_digit).unwrap_or(at);
                let end = (start..content.len())
                    .find(|at| !is_digit(at))
                    .unwrap_or(content.len());
                let number = EXTREMES[random.below(EXTREMES.len())];
                content.splice(start..end, number.bytes()).for_each(drop);
            }
        }
    }
    content
}

/// Runs the program with 2 GiB of address space, where there is a way to limit that.
fn answers(arguments: &[&str]) -> bool {
    let mut command = Command::new(PROGRAM);
    if cfg!(target_os = "linux") {
        command = Command::new("sh");
        command.args(["-c", "ulimit -v 2097152 && exec \"$0\" \"$@\"", PROGRAM]);
    }
    let output = command.args(arguments).output().expect("the program");
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0 | 1) => assert_eq!(errors, "", "{arguments:?}"),
        Some(2) => assert!(
            errors.starts_with("error: ") && errors.lines().count() == 1,
            "{errors}"
        ),
        _ => panic!("{arguments:?}: {:?}, {errors}", output.status),
    }
    output.status.code() != Some(2)
}

/// Changes a file in a folder, and asks each time.
fn attack(file: &Path, valid: &[u8], seal: impl Fn(&[u8]) -> Vec<u8>, arguments: &[&str]) {
    let mut random = Random(28);
    fs::write(file, seal(valid)).unwrap();
    assert!(answers(arguments), "{arguments:?}: as it was written");
    let mut answered = 0;
    for _ in 0..CASES {
        fs::write(file, seal(&changed(valid, &mut random))).unwrap();
        answered += usize::from(answers(arguments));
    }
    println!(
        "{}: {answered} of {CASES} changed files were taken",
        file.display()
    );
}

#[test]
fn models_of_strangers_are_estimated_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64},
    });
    let arguments = [
        "estimate",
        path(folder.path()),
        "--json",
        "--memory",
        "1GiB",
    ];
    let file = folder.path().join("config.json");
    attack(
        &file,
        config.to_string().as_bytes(),
        <[u8]>::to_vec,
        &arguments,
    );
    fs::remove_file(file).unwrap();

    // Of weights the header alone, whose length is right.
    let header = br#"{"model.w":{"dtype":"BF16","shape":[3,4],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[2],"data_offsets":[24,32]}}"#;
    let file = folder.path().join("model.safetensors");
    let seal =
        |header: &[u8]| [&(header.len() as u64).to_le_bytes()[..], header, &[0; 32]].concat();
    attack(&file, header, seal, &arguments);
    let index = folder.path().join("model.safetensors.index.json");
    let map = json!({"metadata": {"total_size": 32}, "weight_map": {"model.w": "model.safetensors", "b": "model.safetensors"}});
    fs::write(&file, seal(header)).unwrap();
    attack(
        &index,
        map.to_string().as_bytes(),
        <[u8]>::to_vec,
        &arguments,
    );
}

#[cfg(feature = "library")]
#[test]
fn logs_and_traces_of_strangers_are_shown_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = json!({
        "taken_unix_ms": 1_700_697_600_000_u64, "process": 1, "rank": 3, "task": "training", "step": 7, "kind": "failed", "text": "text",
        "exhausted": null, "fault": 700,
    });
    let log = format!("{log}\n").repeat(3);
    let file = folder.path().join("log.jsonl");
    attack(
        &file,
        log.as_bytes(),
        <[u8]>::to_vec,
        &["incidents", path(&file)],
    );

    let timeline = candle_headroom::Timeline::new();
    timeline.number("loss", 0.5);
    timeline.note("noted");
    let mut trace = Vec::new();
    timeline.write_trace(&mut trace).unwrap();
    let file = folder.path().join("run.json");
    attack(&file, &trace, <[u8]>::to_vec, &["page", path(&file)]);
}
