//! Libraries that hang or crash while they are loaded. Each case runs in a process of its own, since a hanging `dlopen` holds the loader's
//! lock: afterwards no thread could start in the process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use candle_headroom_environment::Environment;

use crate::machine::{LIBRARIES, Machine, codes, rustc};

/// Names the case in the process that runs it.
const CASE: &str = "HEADROOM_HANGING_CASE";
/// The limit in seconds where nothing hangs: long enough on busy cores, and shorter than the grandchild sleeps.
const PATIENT: u64 = 15;

/// A library whose initializer runs `body`.
fn library_with_initializer(folder: &Path, name: &str, body: &str) {
    let source = format!(
        r#"
        extern "C" fn at_start() {{ {body} }}
        #[used]
        #[unsafe(link_section = ".init_array")]
        static AT_START: extern "C" fn() = at_start;
        "#
    );
    let file = folder.join(format!("{name}.rs"));
    std::fs::write(&file, source).unwrap();
    let mut rustc = rustc();
    rustc.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "--crate-name=hanging",
        "-o",
    ]);
    let status = rustc.arg(folder.join(name)).arg(&file).status();
    assert!(status.expect("rustc").success());
}

fn folder(case: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hanging-{case}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs this test again in a process whose loader looks in `folder` first.
fn in_a_process(test: &str, case: &str, folder: &Path) {
    let mut path = std::ffi::OsString::from(folder);
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(more);
    }
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CASE, case)
        .env("LD_LIBRARY_PATH", path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > Duration::from_secs(60) {
            process.kill().unwrap();
            panic!("{case}: the process hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{case}: {status}");
}

/// Ends the process with 0 if it still works: destructors of a hanging library could keep it from ending.
fn end_if_the_process_works() -> ! {
    assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) }
}

fn check(seconds: u64, expected: &[&str]) {
    let limit = Duration::from_secs(seconds);
    let started = Instant::now();
    let report = Environment::new().time_limit(limit).check();
    assert!(started.elapsed() < limit + Duration::from_secs(5));
    let found = codes(&report);
    assert!(expected.iter().any(|code| found.contains(code)), "{report}");
    assert!(codes(&report).contains(&"HR-700"), "{report}");
}

#[test]
fn the_process_works_after_a_library_hung_while_it_was_loaded() {
    if let Ok(case) = std::env::var(CASE) {
        match case.as_str() {
            "crash" | "grandchild" => check(PATIENT, &["HR-002"]),
            _ => check(3, &["HR-001"]),
        }
        end_if_the_process_works();
    }
    let name = "hanging::the_process_works_after_a_library_hung_while_it_was_loaded";
    let pipe = folder("pipe");
    let made = Command::new("mkfifo")
        .arg(pipe.join("libcuda.so.1"))
        .status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    in_a_process(name, "pipe", &pipe);
    std::thread::scope(|scope| {
        for (case, library, body) in [
            ("sleep", "libcuda.so.1", "loop { std::thread::park(); }"),
            ("nvml", "libnvidia-ml.so.1", "loop { std::thread::park(); }"),
            ("crash", "libcuda.so.1", "std::process::abort();"),
            ("grandchild", "libcuda.so.1", GRANDCHILD),
        ] {
            scope.spawn(move || {
                let folder = folder(case);
                library_with_initializer(&folder, library, body);
                in_a_process(name, case, &folder);
            });
        }
    });
}

/// Crashes, and leaves a process behind that has everything open that its parent had.
const GRANDCHILD: &str = r#"
    unsafe extern "C" { safe fn fork() -> i32; }
    if fork() == 0 {
        std::thread::sleep(std::time::Duration::from_secs(20));
    }
    std::process::abort();
"#;

#[test]
fn the_smoke_test_does_not_load_a_hanging_library() {
    if std::env::var_os(CASE).is_some() {
        let started = Instant::now();
        let environment = Environment::new().time_limit(Duration::from_secs(4));
        let finding = environment.smoke_test(0);
        assert_eq!(finding.code.id, "HR-901", "{}", finding.seen);
        assert!(started.elapsed() < Duration::from_secs(40));
        end_if_the_process_works();
    }
    let folder = folder("smoke");
    library_with_initializer(&folder, "libcuda.so.1", "loop { std::thread::park(); }");
    let name = "hanging::the_smoke_test_does_not_load_a_hanging_library";
    in_a_process(name, "smoke", &folder);
}

/// NCCL is loaded where a process sees several GPUs; like the others, first in a child process.
#[test]
fn an_nccl_that_hangs_or_crashes_while_it_is_loaded() {
    let forever = "loop { std::thread::sleep(std::time::Duration::from_secs(60)) }";
    for (body, code) in [(forever, "HR-001"), ("std::process::abort()", "HR-002")] {
        let machine = Machine::healthy()
            .answers("gpus=2")
            .without(&format!("{LIBRARIES}/libnccl.so.2"));
        library_with_initializer(&machine.path(LIBRARIES), "libnccl.so.2", body);
        let limit = Duration::from_secs(8);
        let started = Instant::now();
        let report = machine.environment().time_limit(limit).check();
        assert!(started.elapsed() < limit + Duration::from_secs(5));
        let mut findings = report.findings().iter();
        let finding = findings.find(|finding| finding.code.id == code);
        let seen = &finding.unwrap_or_else(|| panic!("{report}")).seen;
        assert!(seen.contains("nccl"), "{seen}");
        assert!(codes(&report).contains(&"HR-831"), "{report}");
    }
}
