//! `headroom page`.

use std::fs;

use candle_core::{Device, Tensor};
use candle_headroom::Timeline;
use candle_headroom::batch::{BatchProcessor, Fixed};

use super::{Answer, path, refuses, run};

/// A folder with the trace of a run, and its page without the time at which it was written.
fn saved() -> (tempfile::TempDir, String) {
    let timeline = Timeline::new();
    let x = Tensor::arange(0f32, 64., &Device::Cpu).unwrap();
    let mut processor = BatchProcessor::builder(Fixed::new(16).unwrap())
        .observer(timeline.clone())
        .build();
    processor
        .process(&x, |chunk, _| chunk.sqr()?.sum_all())
        .unwrap();
    timeline.number("quality", 0.9);
    timeline.note("half of it");
    let folder = tempfile::tempdir().unwrap();
    timeline.save_trace(folder.path().join("run.json")).unwrap();
    let mut page = Vec::new();
    timeline.write_page("run", &mut page).unwrap();
    (folder, timeless(&String::from_utf8(page).unwrap()))
}

/// A page without the time until which it goes.
fn timeless(page: &str) -> String {
    let (before, after) = page.split_once("\"now\":").expect("a page");
    format!("{before}{}", after.split_once(',').expect("more").1)
}

#[test]
fn the_page_is_that_of_the_run() {
    let (folder, page) = saved();
    let (trace, made) = (
        folder.path().join("run.json"),
        folder.path().join("run.html"),
    );
    let Answer {
        status,
        text,
        errors,
    } = run(&["page", path(&trace)]);
    assert_eq!((status, &*errors), (Some(0), ""));
    assert_eq!(text.trim_end(), path(&made));
    assert_eq!(timeless(&fs::read_to_string(&made).unwrap()), page);

    let to_screen = run(&["page", path(&trace), "-o", "-", "--title", "a <b>"]);
    assert!(to_screen.text.contains("<h1>a &lt;b&gt;</h1>"));
}

#[test]
fn a_page_is_replaced_only_by_force() {
    let (folder, _) = saved();
    let (trace, page) = (
        folder.path().join("run.json"),
        folder.path().join("kept.html"),
    );
    fs::write(&page, "mine").unwrap();
    refuses(
        &["page", path(&trace), "-o", path(&page)],
        "exists: use --force",
    );
    assert_eq!(fs::read_to_string(&page).unwrap(), "mine");
    let forced = ["page", path(&trace), "-o", path(&page), "--force"];
    assert_eq!(run(&forced).status, Some(0));
    assert!(
        fs::read_to_string(&page)
            .unwrap()
            .starts_with("<!doctype html>")
    );
    // Nor is the trace, even so.
    let onto_itself = ["page", path(&trace), "-o", path(&trace), "--force"];
    refuses(&onto_itself, "is the trace");
}

#[test]
fn what_is_no_trace_is_refused() {
    let (folder, _) = saved();
    let whole = fs::read_to_string(folder.path().join("run.json")).unwrap();
    let file = |name: &str, content: &str| {
        fs::write(folder.path().join(name), content).unwrap();
        path(&folder.path().join(name)).to_owned()
    };
    let not_whole = "not a whole trace of a `Timeline`";
    refuses(
        &["page", &file("torn.json", &whole[..whole.len() / 2])],
        not_whole,
    );
    refuses(&["page", &file("empty.json", "")], not_whole);
    refuses(
        &["page", &file("other.json", r#"{"traceEvents":[]}"#)],
        not_whole,
    );
    let wrong = whole.replace("\"samples\":64", "\"samples\":\"many\"");
    assert_ne!(wrong, whole);
    refuses(&["page", &file("wrong.json", &wrong)], not_whole);
    assert!(!folder.path().join("torn.html").exists(), "nothing is left");

    refuses(
        &["page", path(&folder.path().join("missing.json"))],
        "missing.json: ",
    );
    refuses(
        &["page", path(folder.path()), "-o", "-"],
        "not a regular file",
    );
    let nowhere = folder.path().join("no/page.html");
    let trace = folder.path().join("run.json");
    refuses(&["page", path(&trace), "-o", path(&nowhere)], "page.html: ");
    #[cfg(unix)]
    refuses(&["page", "/dev/zero", "-o", "-"], "not a regular file");
    #[cfg(unix)]
    if let Some(file) = super::unreadable(folder.path(), "secret.json") {
        refuses(&["page", &file], "ermission denied");
    }
}

/// `headroom page … -o - | head` is no failure.
#[cfg(unix)]
#[test]
fn a_reader_may_leave() {
    use std::process::{Command, Stdio};
    let (folder, _) = saved();
    let mut command = Command::new(super::PROGRAM);
    command
        .arg("page")
        .arg(folder.path().join("run.json"))
        .args(["-o", "-"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}
