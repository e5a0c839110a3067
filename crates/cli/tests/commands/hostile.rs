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
fn attack(file: &Path, valid: &[u8], arguments: &[&str]) {
    let mut random = Random(28);
    fs::write(file, valid).unwrap();
    assert!(answers(arguments), "{arguments:?}: as it was written");
    let mut answered = 0;
    for _ in 0..CASES {
        fs::write(file, changed(valid, &mut random)).unwrap();
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
    attack(&file, config.to_string().as_bytes(), &arguments);
}

#[cfg(feature = "library")]
#[test]
fn logs_of_strangers_are_shown_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = json!({
        "taken_unix_ms": 1_700_697_600_000_u64, "process": 1, "rank": 3, "task": "training", "step": 7, "kind": "failed", "text": "text",
        "exhausted": null, "fault": 700,
    });
    let log = format!("{log}\n").repeat(3);
    let file = folder.path().join("log.jsonl");
    attack(&file, log.as_bytes(), &["incidents", path(&file)]);
}
