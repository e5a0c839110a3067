//! Writers in processes of their own: killed, or out of room.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::*;

/// This test in a process of its own, with a folder in the variable `name`.
fn child(test: &str, name: &str, folder: &Path) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &format!("sinks::processes::{test}")]);
    child.stdout(Stdio::null()).env(name, folder);
    child
}

/// Writers that are killed with SIGKILL leave whole lines and at most the beginning of one, which the next writer removes.
#[test]
fn killed_writers_leave_no_fragment_behind() {
    const CHILD: &str = "HEADROOM_TEST_SINKS";
    let open = |folder: &Path| FileSink::json_lines(folder.join("jsonl")).open().unwrap();
    if let Some(folder) = std::env::var_os(CHILD) {
        let (source, sample) = host();
        let mut sink = open(folder.as_ref());
        loop {
            sink.write(&source, &sample).unwrap();
        }
    }
    let folder = Folder::new("killed");
    let path = folder.0.join("jsonl");
    let mut written = 0;
    for round in 0..20 {
        let _ = fs::remove_file(&path);
        let test = "killed_writers_leave_no_fragment_behind";
        // The second writer of a round goes on with the files of the first.
        for _ in 0..2 {
            let length = || fs::metadata(&path).map_or(0, |file| file.len());
            let before = length();
            let mut child = child(test, CHILD, &folder.0).spawn().unwrap();
            // Killed at different times after its first line.
            let began = Instant::now();
            while length() <= before {
                assert!(began.elapsed() < Duration::from_secs(20), "no line");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(200 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            drop(open(&folder.0));
        }
        let json = fs::read_to_string(&path).unwrap();
        assert!(json.ends_with('\n'));
        for line in json.lines() {
            serde_json::from_str::<Value>(line).unwrap();
            written += 1;
        }
    }
    assert!(written > 100, "{written} lines");
}

/// No room for the new file's first line: the former file is kept, and the new one begins once there is room.
#[test]
fn a_rotation_without_room_keeps_the_former_file() {
    const CHILD: &str = "HEADROOM_TEST_ROTATION";
    let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) else {
        let folder = Folder::new("rotation");
        let test = "a_rotation_without_room_keeps_the_former_file";
        let ended = child(test, CHILD, &folder.0).status().unwrap();
        assert!(ended.success(), "{ended}");
        return;
    };
    /// Limits the size of the files that this process writes; a longer write fails.
    fn limit(bytes: libc::rlim_t) {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the limit outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    }
    let (source, sample) = host();
    let path = folder.join("jsonl");
    let mut sink = FileSink::json_lines(&path).open().unwrap();
    (0..3).for_each(|_| sink.write(&source, &sample).unwrap());
    let whole = fs::read(&path).unwrap();
    let full = ByteSize(whole.len() as u64);
    let mut sink = FileSink::json_lines(&path).rotate_at(full).open().unwrap();
    let former = || fs::read(folder.join("jsonl.1")).unwrap();
    limit(100);
    for _ in 0..3 {
        sink.write(&source, &sample).unwrap_err();
        assert_eq!(former(), whole, "not replaced by a file without lines");
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
    limit(libc::RLIM_INFINITY);
    sink.write(&source, &sample).unwrap();
    assert_eq!(former(), whole);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with('{') && text.lines().count() == 1);
}
