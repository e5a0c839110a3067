//! `headroom dry-run` and `headroom cuda-env`, on a program of CUDA's driver interface (`program.c`), which is linked as one with candle is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const HEADROOM: &str = env!("CARGO_BIN_EXE_headroom");

/// A folder with the cache into which the driver is unpacked, and the program.
struct Bench {
    folder: TempDir,
}

static BENCH: LazyLock<Bench> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let bench = Bench { folder };
    // It unpacks the libraries.
    let lines = bench.command(&["cuda-env"]).output().expect("it starts");
    assert!(lines.status.success());
    bench.compile("12", &["-lcuda", "-lcublas"]);
    bench.compile("", &["-lcuda", "-lcublas"]);
    bench
});

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn libraries(&self) -> PathBuf {
        let cache = fs::read_dir(self.path("candle-headroom")).expect("there is a cache");
        let folders = cache.map(|entry| entry.expect("it is readable").path());
        folders.last().expect("the libraries are unpacked")
    }

    /// Links the program as one of CUDA 13, or of 12, as `program` and this.
    fn compile(&self, toolkit: &str, libraries: &[&str]) {
        let stubs = match toolkit {
            "12" => "stubs-12",
            _ => "stubs",
        };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dry_run/program.c");
        let mut cc = Command::new("cc");
        cc.arg(source)
            .arg("-o")
            .arg(self.path(&format!("program{toolkit}")));
        cc.arg("-L")
            .arg(self.libraries().join(stubs))
            .arg("-Wl,--no-as-needed")
            .args(libraries);
        assert!(cc.status().expect("there is a C compiler").success());
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(HEADROOM);
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.folder.path());
        command.env("PROGRAM", self.path("program"));
        command
    }

    /// Runs `headroom dry-run` with these options on the program with these arguments.
    fn dry_run(&self, options: &[&str], arguments: &[&str]) -> Output {
        let mut command = self.command(&["dry-run"]);
        command
            .args(options)
            .arg("--")
            .arg(self.path("program"))
            .args(arguments);
        command.output().expect("it starts")
    }
}

fn text(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(error)
    )
}

/// It ends with this status, and says this.
#[track_caller]
fn ends(output: &Output, status: i32, parts: &[&str]) {
    let text = text(output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn a_program_that_fits() {
    let output = BENCH.dry_run(
        &["--gpu", "RTX 4090", "--gpu", "t4", "--gpu", "RTX 3060"],
        &["hold", "16000", "total"],
    );
    // Of 24,564 MiB the driver keeps 597 at most, the context takes 832, and the first 512 bytes a page.
    ends(
        &output,
        0,
        &[
            "total: 23966, free: 7132\n",
            "peak            15.6 GiB of tensors + 0.5 to 1.4 GiB outside them (estimated) = at most 17.0 of 24.0 GiB\n",
            "fits            RTX 4090 yes (24.0 GiB) · T4 no (15.0 GiB) · RTX 3060 no (12.0 GiB)\n",
        ],
    );
}

#[test]
fn a_program_that_does_not_fit() {
    let output = BENCH.dry_run(&["--gpu", "RTX 3060"], &["hold", "8000", "hold", "8000"]);
    let lines = [
        "hold: status 2\n",
        "out of memory   7.8 GiB more were asked for while tensors held 7.8 GiB\n",
        "fits            RTX 3060 no (12.0 GiB)\n",
    ];
    ends(&output, 1, &lines);
}

/// What the card has for tensors is known to within a GiB.
#[test]
fn a_program_that_is_too_close_to_say() {
    for mib in ["22900", "23400"] {
        let output = BENCH.dry_run(&["--gpu", "RTX 4090"], &["hold", mib]);
        let (status, fits) = match mib {
            "22900" => (0, "RTX 4090 yes"),
            _ => (2, "RTX 4090 too close to say"),
        };
        ends(&output, status, &[fits]);
    }
}

/// One that goes on with less, as an adaptive batch does, fits. What one that ends at that wanted is not known.
#[test]
fn a_program_that_goes_on_after_it_ran_out_of_memory() {
    let hold = ["hold", "8000", "try", "8000"];
    let output = BENCH.dry_run(
        &["--gpu", "RTX 3060"],
        &[&hold[..], &["try", "100", "many"]].concat(),
    );
    ends(&output, 0, &["try: 2\ntry: 0\n", "RTX 3060 yes"]);
    let output = BENCH.dry_run(&["--gpu", "RTX 3060"], &hold);
    ends(
        &output,
        2,
        &[
            "no memory for the last that it asked for",
            "RTX 3060 too close to say",
        ],
    );
}

/// What it held is not known, so that it is never said to fit.
#[test]
fn a_program_that_is_killed() {
    let output = BENCH.dry_run(&["--gpu", "RTX 4090"], &["hold", "100", "abort"]);
    ends(
        &output,
        3,
        &["a signal or `_exit` ended a process that used the device"],
    );
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--", "sh", "-c"]);
    let output = command
        .arg("\"$PROGRAM\" hold 100 abort; \"$PROGRAM\"")
        .output();
    ends(
        &output.expect("it starts"),
        3,
        &["a signal or `_exit` ended a process"],
    );
}

/// Each of them has the whole card, which a real one would share.
#[test]
fn programs_that_fit_one_by_one() {
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--", "sh", "-c"]);
    let output = command
        .arg("\"$PROGRAM\" hold 15000 & \"$PROGRAM\" hold 15000; wait")
        .output();
    ends(&output.expect("it starts"), 2, &["not all of them at once"]);
}

#[test]
fn what_was_not_computed_reads_as_zeros_and_is_said() {
    let output = BENCH.dry_run(&["--gpu", "24GiB"], &["hold", "1", "read"]);
    ends(
        &output,
        0,
        &[
            "read: 0\n",
            "not computed    1 copies (1 B) to the host read as zeros, or as what was there before",
        ],
    );
}

#[test]
fn json_is_alone_on_standard_output() {
    let output = BENCH.dry_run(
        &["--json", "--gpu", "RTX 4090"],
        &["total", "hold", "100", "free", "hold", "50"],
    );
    ends(&output, 0, &[]);
    let answer: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(answer["outcome"], "fits");
    assert_eq!(answer["peak"]["tensor_bytes"], (100 << 20) + 512);
    assert_eq!(
        answer["peak"]["line"],
        serde_json::json!([512, (100 << 20) + 512, (50 << 20) + 512])
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("total: "));
}

#[test]
fn a_page_shows_the_time_line() {
    let page = BENCH.path("page.html");
    let output = BENCH.dry_run(
        &["--gpu", "RTX 4090", "--report", &page.display().to_string()],
        &["hold", "12000"],
    );
    ends(&output, 0, &[]);
    let page = fs::read_to_string(page).expect("it is written");
    for part in [
        "<h1>Dry run on RTX 4090</h1>",
        "<polygon points=\"0,320 0.0,320.0 450.0,320.0 450.0,163.7 900.0,163.7 900,320\"/>",
        "fits            RTX 4090 yes",
    ] {
        assert!(page.contains(part), "no {part} in {page}");
    }
    let output = BENCH.dry_run(
        &["--gpu", "RTX 4090", "--report", "/nowhere/page.html"],
        &[],
    );
    ends(&output, 14, &["/nowhere/page.html"]);
}

/// A program that was linked with CUDA 12 starts as well.
#[test]
fn a_program_of_cuda_12() {
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--"]);
    let output = command
        .arg(BENCH.path("program12"))
        .args(["hold", "1"])
        .output();
    ends(&output.expect("it starts"), 0, &["RTX 4090 yes"]);
}

/// A program may be started by another: what counts is which process uses the device.
#[test]
fn a_program_behind_a_shell() {
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--", "sh", "-c"]);
    let output = command
        .arg("\"$PROGRAM\" hold 100; \"$PROGRAM\" hold 200")
        .output();
    let output = output.expect("it starts");
    ends(
        &output,
        0,
        &[
            "200.0 MiB of tensors",
            "of              2 processes or devices",
        ],
    );
}

#[test]
fn an_unknown_card() {
    let output = BENCH.dry_run(&["--gpu", "RTX 9999"], &[]);
    ends(
        &output,
        12,
        &[
            "no card is known as \"RTX 9999\": give its memory, such as 24GiB, or one of V100 16GB, ",
        ],
    );
    ends(
        &BENCH.dry_run(&["--gpu", "100MiB"], &[]),
        12,
        &["\"100MiB\""],
    );
}

#[test]
fn a_program_that_fails_for_another_reason() {
    let output = BENCH.dry_run(&["--gpu", "RTX 4090"], &["hold", "100", "exit", "3"]);
    ends(
        &output,
        3,
        &[
            "the program failed (exit status: 3), not for lack of memory",
            "100.0 MiB of tensors",
            "RTX 4090 not known",
        ],
    );
}

#[test]
fn a_program_without_cuda() {
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--", "true"]);
    ends(
        &command.output().expect("it starts"),
        4,
        &["the program used no CUDA device"],
    );
}

#[test]
fn a_program_that_fails_before_it_uses_a_device() {
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--", "false"]);
    let output = command.output().expect("it starts");
    ends(
        &output,
        3,
        &["the program failed before it used a CUDA device (exit status: 1)"],
    );
}

#[test]
fn what_cannot_be_started() {
    let start = |program: &Path| {
        let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--"]);
        command.arg(program).output().expect("it starts")
    };
    ends(
        &start(Path::new("./nothing")),
        5,
        &["./nothing cannot be started: there is no such program"],
    );
    // The header of a program for AArch64.
    let mut header = fs::read(BENCH.path("program")).expect("it is there");
    header[18..20].copy_from_slice(&183u16.to_le_bytes());
    let other = BENCH.path("other");
    fs::write(&other, header).expect("there is room");
    ends(&start(&other), 5, &["it may not be executed"]);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("it is ours");
    ends(&start(&other), 5, &["it is no program of this machine"]);
}

#[test]
fn a_library_that_is_not_in_the_set() {
    let source = BENCH.path("empty.c");
    fs::write(&source, "").expect("there is room");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-Wl,-soname,libcublas.so.11", "-o"])
        .arg(BENCH.path("libold.so"))
        .arg(source);
    assert!(cc.status().expect("there is a C compiler").success());
    let old = format!("-L{}", BENCH.folder.path().display());
    BENCH.compile("11", &["-lcuda", &old, "-lold"]);
    let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--"]);
    let output = command
        .arg(BENCH.path("program11"))
        .output()
        .expect("it starts");
    ends(&output, 6, &["libcublas.so.11", "that of CUDA 12 and 13"]);
}

#[test]
fn a_function_that_the_driver_lacks() {
    let output = BENCH.dry_run(&["--gpu", "RTX 4090"], &["hold", "1", "graph"]);
    ends(
        &output,
        7,
        &["the simulated driver lacks what the program called: cuGraphLaunch"],
    );
}

#[test]
fn a_fork() {
    ends(
        &BENCH.dry_run(&["--gpu", "RTX 4090"], &["fork"]),
        8,
        &["forks are not followed"],
    );
}

#[test]
fn another_libcuda() {
    let other = BENCH.path("libcuda.so.1");
    fs::copy(BENCH.libraries().join("libcuda.so.1"), &other).expect("there is room");
    let other = other.display().to_string();
    ends(
        &BENCH.dry_run(&["--gpu", "RTX 4090"], &["open", &other]),
        9,
        &["another driver", &other],
    );
}

#[test]
fn too_few_addresses() {
    let mut command = BENCH.command(&["dry-run", "--gpu", "H200", "--", "sh", "-c"]);
    let output = command
        .arg("ulimit -v 50000000; exec \"$PROGRAM\"")
        .output();
    ends(
        &output.expect("it starts"),
        10,
        &["too few addresses", "ulimit -v"],
    );
}

/// The report says what was held until then; a program that uses no device is ended too.
#[test]
fn the_time_limit() {
    let began = Instant::now();
    let output = BENCH.dry_run(
        &["--gpu", "RTX 4090", "--time-limit", "1"],
        &["hold", "100", "sleep"],
    );
    ends(
        &output,
        11,
        &["100.0 MiB of tensors", "it did not end within 1 s"],
    );
    let mut command = BENCH.command(&[
        "dry-run",
        "--gpu",
        "RTX 4090",
        "--time-limit",
        "1",
        "--",
        "sleep",
        "600",
    ]);
    ends(
        &command.output().expect("it starts"),
        11,
        &["the program did not end within its time"],
    );
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// Several programs at once unpack the driver into one cache.
#[test]
fn the_driver_is_unpacked_once() {
    let cache = tempfile::tempdir().expect("a folder can be made");
    let start = || {
        let mut command = BENCH.command(&["dry-run", "--gpu", "RTX 4090", "--"]);
        command
            .arg(BENCH.path("program"))
            .env("XDG_CACHE_HOME", cache.path());
        command.spawn().expect("it starts")
    };
    let running: Vec<_> = (0..4).map(|_| start()).collect();
    for mut running in running {
        assert!(running.wait().expect("it runs").success());
    }
    let folders = fs::read_dir(cache.path().join("candle-headroom")).expect("there is a cache");
    assert_eq!(folders.count(), 1);
}

/// The lines are right for a shell: with an nvcc, nothing is fetched.
#[test]
fn lines_for_a_shell() {
    let bin = BENCH.path("bin");
    fs::create_dir_all(&bin).expect("there is room");
    let nvcc = bin.join("nvcc");
    let link = |release: &str| {
        fs::write(
            &nvcc,
            format!("#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n"),
        )
        .expect("there is room");
        fs::set_permissions(&nvcc, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let script = format!(
            "set -eu; eval \"$('{HEADROOM}' cuda-env --compute-cap 89)\"; printf '%s\\n' \"$CUDA_COMPUTE_CAP\" \"$LIBRARY_PATH\" \"$LD_LIBRARY_PATH\""
        );
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &script])
            .env("XDG_CACHE_HOME", BENCH.folder.path());
        let path = std::env::var("PATH").expect("there is a PATH");
        shell
            .env("PATH", format!("{}:{path}", bin.display()))
            .env_remove("LIBRARY_PATH")
            .env_remove("LD_LIBRARY_PATH");
        let output = shell.output().expect("there is bash");
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let libraries = BENCH.libraries().display().to_string();
    assert_eq!(
        link("13.0"),
        format!("89\n{libraries}/stubs\n{libraries}\n")
    );
    assert_eq!(
        link("12.6"),
        format!("89\n{libraries}/stubs-12\n{libraries}\n")
    );
}

#[test]
fn help_is_readable_and_names_the_exit_status() {
    for command in ["dry-run", "cuda-env"] {
        let output = BENCH
            .command(&[command, "--help"])
            .output()
            .expect("it starts");
        ends(&output, 0, &["Exit status: 0"]);
        let text = text(&output);
        assert_eq!(text.lines().find(|line| line.chars().count() > 80), None);
        assert!(!text.contains('\\'), "{text}");
    }
}
