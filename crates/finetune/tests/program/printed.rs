//! What a run prints: lines, JSON, or nothing.

use std::path::Path;

use super::refused::refused;
use super::{Files, base, command, figures, succeed, text};

/// Options of a short run that writes its result there.
fn short<'a>(data: &'a str, output: &'a str) -> Vec<&'a str> {
    let own = ["--model", base(), "--steps", "3", "--batch", "4"];
    [&own[..], &["--output", output, data]].concat()
}

#[test]
fn a_run_ends_with_three_lines() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let said = succeed(&short(&data, &output));
    let words: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("figure: "))
        .collect();
    let [.., reached, cost, next] = &words[..] else {
        panic!("{said}")
    };
    assert!(reached.starts_with("reached  loss "), "{said}");
    assert!(reached.ends_with(" nats a token in 3 steps"), "{said}");
    // An epoch has 23 samples, so one of its batches has 3 of them.
    let of_steps = said.lines().filter_map(|line| {
        let (step, _) = line.split_once(" samples in ")?;
        step.rsplit_once(' ')?.1.parse::<usize>().ok()
    });
    let samples = format!(
        " without a budget, {} samples, 0 retried",
        of_steps.sum::<usize>()
    );
    assert!(
        cost.starts_with("cost     ") && cost.contains(&samples),
        "{said}"
    );
    let options = format!("next     `--adapter {output} --output {output}-2`");
    assert!(next.starts_with(&options), "{said}");
    // These options begin another run.
    let again = format!("{output}-2");
    succeed(&[&short(&data, &again)[..], &["--adapter", &output]].concat());
}

#[test]
fn json_is_the_run() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let said = succeed(&[&short(&data, &output)[..], &["--json"]].concat());
    let (steps, run) = figures::objects(&said);
    assert_eq!(steps.len(), 3, "{said}");
    let samples = steps.iter().map(|step| step["samples"].as_u64().unwrap());
    assert_eq!(run["samples"], samples.sum::<u64>(), "{said}");
    assert_eq!(run["steps"], 3, "{said}");
    assert_eq!(run["loss_last"], steps[2]["loss"], "{said}");
    for name in ["perplexity_before", "perplexity_after"] {
        assert!(run[name].as_f64().unwrap() > 1., "{said}");
    }
    let result = serde_json::json!([{ "kind": "result", "path": output }]);
    assert_eq!(run["files"], result, "{said}");
}

#[test]
fn quiet_prints_nothing_and_saves_the_result() {
    let files = Files::new();
    let (data, output) = (files.pairs(), files.path("out"));
    let mut run = command(&[&short(&data, &output)[..], &["--quiet"]].concat());
    let done = run.output().unwrap();
    let printed = text(&done);
    assert!(done.status.success(), "{printed}");
    assert!(
        done.stdout.is_empty() && done.stderr.is_empty(),
        "{printed}"
    );
    let adapter = Path::new(&output).join("adapter_model.safetensors");
    assert!(adapter.is_file(), "{printed}");
}

#[test]
fn nothing_or_json() {
    let output = command(&["--quiet", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("cannot be used with"));
    assert!(output.stdout.is_empty());
    // Errors are as without.
    refused(
        &["--quiet", "--model", base()],
        &[],
        "name files to learn from",
    );
    refused(
        &["--json", "--model", base()],
        &[],
        "name files to learn from",
    );
}
