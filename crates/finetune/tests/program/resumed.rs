//! Interrupted runs.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use candle_headroom::checkpoint::Checkpoint;

use super::{Files, base, command, succeed};

/// Ctrl-C saves and ends with status 130. The resumed run saves the adapter of the uninterrupted one, bit by bit; other options are refused.
#[cfg(unix)]
#[test]
fn it_goes_on_after_an_interruption() {
    let files = Files::in_memory();
    let data = files.pairs();
    let options = |name: &str| -> Vec<String> {
        let (output, checkpoint) = (files.path(name), files.path(&format!("{name}-run")));
        let own = [
            "--model",
            base(),
            "--steps",
            "100", // enough to be interrupted in
            "--batch",
            "4",
            "--lora-dropout",
            "0.1",
            "--every",
            "2",
        ];
        let more = [
            "--sample",
            "0",
            "--output",
            &output,
            "--checkpoint",
            &checkpoint,
            &data,
        ];
        own.iter()
            .chain(&more)
            .map(|text| text.to_string())
            .collect()
    };
    let adapter =
        |name: &str| fs::read(Path::new(&files.path(name)).join("adapter_model.safetensors"));
    let whole = options("whole");
    succeed(&whole.iter().map(String::as_str).collect::<Vec<_>>());

    let parts = options("parts");
    let parts: Vec<_> = parts.iter().map(String::as_str).collect();
    let mut child = command(&parts).stdout(Stdio::piped()).spawn().unwrap();
    let run = files.path("parts-run");
    while Checkpoint::latest(&run).ok().flatten().is_none() {
        std::thread::sleep(Duration::from_millis(5));
        assert!(child.try_wait().unwrap().is_none());
    }
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &id])
        .status();
    assert!(sent.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("\nSIGINT after step "), "{said}");
    assert!(said.trim_end().ends_with(" --resume`"), "{said}");
    assert!(adapter("parts").is_err(), "saved before the end");

    for (more, words) in [
        (&[][..], "holds checkpoints of another run: give `--resume`"),
        (
            &["--resume", "--seed", "1"],
            "has `--seed 0`, not `--seed 1`",
        ),
        (&["--resume", "--lora-rank", "4"], "not `--lora-rank 4`"),
    ] {
        let output = command(&[&parts[..], more].concat()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(words), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    let said = succeed(&[&parts[..], &["--resume"]].concat());
    assert!(said.contains("resumed at step "), "{said}");
    assert!(
        adapter("whole").unwrap() == adapter("parts").unwrap(),
        "other bits at the end"
    );

    // Nothing is left to do: the result is saved again, and the page is written.
    fs::remove_dir_all(files.path("parts")).unwrap();
    let page = files.path("page.html");
    let said = succeed(&[&parts[..], &["--resume", "--report", &page]].concat());
    for words in [
        "the run is complete",
        "by `--adapter ",
        "open it in a browser",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(
        adapter("whole").unwrap() == adapter("parts").unwrap(),
        "other bits again"
    );
}
