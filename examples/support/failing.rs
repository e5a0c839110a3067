//! How a program ends with an error.

use std::io::{self, Write};
use std::process::ExitCode;

/// Writes an error in one line, after whose it is. The status is 2.
pub fn fail(whose: &str, error: &anyhow::Error) -> ExitCode {
    // In one piece, because other ranks write there too. `eprintln!` would panic where standard error is closed.
    let text = format!("error: {whose}{}\n", line(error));
    let _ = io::stderr().write_all(text.as_bytes());
    ExitCode::from(2)
}

/// An error and its causes. An error that wraps another one with the same text is written once.
fn line(error: &anyhow::Error) -> String {
    let texts = error.chain().map(ToString::to_string);
    // candle's errors append a backtrace if RUST_BACKTRACE is set.
    let without_trace = |text: String| match text.split_once("\n   0: ") {
        Some((text, _)) => text.to_owned(),
        None => text,
    };
    let mut texts: Vec<String> = texts.map(without_trace).collect();
    texts.dedup();
    texts.join(": ")
}
