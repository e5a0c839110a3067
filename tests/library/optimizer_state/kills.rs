//! Writers that are killed. The test binary runs itself as the writer.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::files::left;
use super::*;

const FOLDER: &str = "CANDLE_HEADROOM_TEST_KILLS";

fn state(size: usize) -> StateDict {
    let vars = vec![("w", Var::zeros(size, DType::F32, &Device::Cpu).unwrap())];
    AdamW::builder(vars).build().unwrap().state().unwrap()
}

/// Saves to one path until it is killed, or as many times as it is asked to.
#[test]
#[ignore = "the writer of the other tests"]
fn writer() {
    let folder = std::env::var(FOLDER).unwrap();
    let state = state(1 << 18);
    for _ in 0..std::env::var("TIMES").unwrap().parse::<u32>().unwrap() {
        state.save(Path::new(&folder).join("state")).unwrap();
    }
}

fn start(folder: &Path, times: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "optimizer_state::kills::writer", "--ignored"]);
    command.env(FOLDER, folder).env("TIMES", times.to_string());
    command.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn killed_writers_leave_a_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    for round in 0..12 {
        let mut child = start(folder.path(), u32::MAX);
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20 + 3 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        StateDict::load(&path).unwrap();
    }
}

/// A process that may not write files of more than a few bytes, which Linux would end by a signal.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    let script = "ulimit -f 0; exec \"$0\" --exact optimizer_state::kills::limited --ignored";
    command
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(FOLDER, folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
#[ignore = "the limited process of the other test"]
fn limited() {
    let path = Path::new(&std::env::var(FOLDER).unwrap()).join("state");
    let error = state(1 << 18).save(&path).unwrap_err();
    assert!(error.to_string().contains("state"), "{error}");
    assert!(error.to_string().contains("File too large"), "{error}");
}

#[test]
fn live_writers_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut children = [(); 3].map(|()| start(folder.path(), 40));
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    StateDict::load(folder.path().join("state")).unwrap();
    assert_eq!(left(folder.path()), 0);
}
