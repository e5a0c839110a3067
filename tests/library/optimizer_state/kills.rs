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
fn killed_writers_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut cut = 0;
    for round in 0..12 {
        let mut child = start(folder.path(), u32::MAX);
        while !path.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20 + 3 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        cut += left(folder.path());
        StateDict::load(&path).unwrap();
        assert!(
            left(folder.path()) <= 1,
            "each writer removes what the one before left"
        );
    }
    println!("{cut} of 12 writers were cut off within a file");
    assert!(cut > 0);
    state(10).save(&path).unwrap();
    assert_eq!(left(folder.path()), 0);
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
