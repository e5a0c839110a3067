//! The program `headroom`: each of its commands, with good and bad input.

mod doctor;
mod estimate;
mod hostile;
#[cfg(feature = "library")]
mod incidents;
#[cfg(target_os = "linux")]
#[path = "../../../../tests/support/nvml.rs"]
mod nvml;
#[cfg(feature = "library")]
mod page;
#[cfg(not(feature = "library"))]
mod without_library;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_headroom");

/// What it answers: its exit status, and what it wrote.
struct Answer {
    status: Option<i32>,
    text: String,
    errors: String,
}

fn run(arguments: &[&str]) -> Answer {
    run_with(arguments, b"")
}

/// With this as standard input.
fn run_with(arguments: &[&str], input: &[u8]) -> Answer {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut stdin = child.stdin.take().expect("its input");
    // It may end before it has read all.
    let _ = stdin.write_all(input);
    drop(stdin);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("its output");
    Answer {
        status: status.code(),
        text: String::from_utf8(stdout).expect("text"),
        errors: String::from_utf8(stderr).expect("text"),
    }
}

/// Asserts that it refuses this with one line, which has this text, and writes nothing else.
fn refuses(arguments: &[&str], why: &str) {
    let Answer {
        status,
        text,
        errors,
    } = run(arguments);
    assert_eq!(status, Some(2), "{arguments:?}: {text}{errors}");
    assert_eq!(text, "", "{arguments:?}");
    let lines: Vec<_> = errors.lines().collect();
    assert!(
        matches!(*lines, [line] if line.starts_with("error: ") && line.contains(why)),
        "{arguments:?}: {errors}"
    );
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Asserts that lines fit a terminal.
fn is_readable(text: &str) {
    assert!(!text.contains('\u{1b}'), "no colours where no terminal is");
    let long = text.lines().find(|line| line.chars().count() > 80);
    assert_eq!(long, None);
}

#[test]
fn help_is_readable_and_names_the_exit_status() {
    let of_library: &[&str] = match cfg!(feature = "library") {
        true => &["incidents", "page"],
        false => &[],
    };
    for command in ["", "doctor", "estimate"].iter().chain(of_library) {
        let arguments = [*command, "--help"].into_iter();
        let arguments: Vec<_> = arguments.filter(|a| !a.is_empty()).collect();
        let Answer {
            status,
            text,
            errors,
        } = run(&arguments);
        assert_eq!((status, &*errors), (Some(0), ""), "{command}");
        is_readable(&text);
        assert!(text.contains("Exit status: 0 if "), "{text}");
    }
    assert_eq!(
        run(&["--version"]).text,
        concat!("headroom ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn unknown_commands_and_options_are_refused() {
    for arguments in [
        &[][..],
        &["doctr"],
        &["estimate"],
        &["estimate", "--x"],
        #[cfg(feature = "library")]
        &["page"],
        #[cfg(feature = "library")]
        &["incidents"],
        #[cfg(feature = "library")]
        &["page", "--x"],
    ] {
        let Answer {
            status,
            text,
            errors,
        } = run(arguments);
        assert_eq!((status, &*text), (Some(2), ""), "{arguments:?}");
        assert!(errors.contains("Usage: headroom"), "{errors}");
    }
}

/// Makes a file that only others may read. `None` where permissions do not count, as for root.
#[cfg(unix)]
fn unreadable(folder: &Path, name: &str) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let file = folder.join(name);
    fs::write(&file, "{}").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o0)).expect("permissions");
    match fs::File::open(&file) {
        Ok(_) => {
            eprintln!("skipped: this user may read every file");
            None
        }
        Err(_) => Some(path(&file).to_owned()),
    }
}
