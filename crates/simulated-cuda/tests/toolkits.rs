//! Programs that are linked with the stubs of CUDA 12 and 13 start with the one library that `build.sh` gives all names to, and find the
//! functions of their toolkit.

mod support;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use simulated_cuda::driver::context::*;
use simulated_cuda::driver::context_stack::*;
use support::*;

/// The library that cargo has built for these tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libsimulated_cuda.so")
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// The libraries that a program names.
fn needed(program: &Path) -> BTreeSet<String> {
    let output = run(Command::new("readelf").arg("-d").arg(program));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
    let names = lines.filter_map(|line| line.split(['[', ']']).nth(1));
    names.map(str::to_string).collect()
}

/// Builds the libraries, links the program with one toolkit's stubs and starts it.
fn check(stubs: &str, sonames: &[&str]) {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(stubs);
    let build = crate_folder.join("build.sh");
    // Twice, because a second build finds everything in place.
    for _ in 0..2 {
        run(Command::new("bash").arg(&build).arg(&folder).arg(library()));
    }
    let program = folder.join("toolkit");
    let libraries = [
        "cuda", "cudart", "cublas", "cublasLt", "cudnn", "curand", "nvrtc",
    ];
    run(Command::new("cc")
        .arg(crate_folder.join("tests/toolkit.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(folder.join(stubs))
        .args(libraries.map(|name| format!("-l{name}"))));
    let mut expected: BTreeSet<String> = sonames.iter().map(|name| name.to_string()).collect();
    expected.insert("libc.so.6".to_string());
    assert_eq!(needed(&program), expected);

    let output = run(Command::new(&program).env("LD_LIBRARY_PATH", &folder));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "nvrtc 13.0\ncode libcuda.so.1\n",
        "the loader maps one library, under any name"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_program_of_cuda_12_starts() {
    check(
        "stubs-12",
        &[
            "libcuda.so.1",
            "libcudart.so.12",
            "libcublas.so.12",
            "libcublasLt.so.12",
            "libcudnn.so.9",
            "libcurand.so.10",
            "libnvrtc.so.12",
        ],
    );
}

#[test]
fn a_program_of_cuda_13_starts() {
    check(
        "stubs",
        &[
            "libcuda.so.1",
            "libcudart.so.13",
            "libcublas.so.13",
            "libcublasLt.so.13",
            "libcudnn.so.9",
            "libcurand.so.10",
            "libnvrtc.so.13",
        ],
    );
}

/// What scripts/call-counter.sh builds counts what a program calls and passes it on, with its arguments and its status.
#[test]
fn calls_are_counted_in_front_of_the_driver() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls");
    std::fs::create_dir_all(&folder).unwrap();
    let counter = folder.join("libcuda.so.1");
    run(Command::new("bash")
        .arg(crate_folder.join("../../scripts/call-counter.sh"))
        .arg(&counter));
    let [source, program, calls] = ["calls.c", "calls", "calls.txt"].map(|name| folder.join(name));
    let text = "int cuInit(unsigned), cuDeviceGet(int *, int);
        int main(void) {
            int device = -1;
            if (cuInit(0) || cuInit(0) || cuDeviceGet(&device, 0) || device) return 1;
            return cuInit(7) == 1 && cuDeviceGet(&device, 99) == 101 ? 0 : 2;
        }";
    std::fs::write(&source, text).unwrap();
    run(Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .arg(&counter));
    let start = |driver: Option<PathBuf>| {
        let mut command = Command::new(&program);
        command
            .env("LD_LIBRARY_PATH", &folder)
            .env("DRIVER_CALLS", &calls)
            .env_remove("DRIVER");
        command.envs(driver.map(|path| ("DRIVER", path)));
        command
    };
    run(&mut start(Some(library())));
    let counted = std::fs::read_to_string(&calls).unwrap();
    assert_eq!(counted, "cuDeviceGet 2\ncuInit 3\n");
    for driver in [None, Some(folder.join("absent.so"))] {
        let output = start(driver).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.starts_with("DRIVER must be the path of libcuda.so.1: "),
            "{text}"
        );
    }
}

#[test]
fn the_library_has_every_listed_symbol() {
    let path = CString::new(library().to_str().unwrap()).unwrap();
    let symbols = include_str!("../symbols.txt");
    let names = symbols.lines().filter(|line| !line.starts_with('#'));
    // SAFETY: the library's initializers do nothing, and both strings end with zero.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    let missing: Vec<&str> = names
        .filter(|name| {
            let name = CString::new(*name).unwrap();
            // SAFETY: as above.
            unsafe { libc::dlsym(library, name.as_ptr()) }.is_null()
        })
        .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn contexts_are_created_by_the_calls_of_every_toolkit() {
    let _bench = Bench::new();
    let mut created = [0; 3];
    let [old, affine, new] = &mut created;
    unsafe {
        assert_eq!(cuCtxCreate_v2(old, 0, 0), 0);
        assert_eq!(cuCtxCreate_v3(affine, 0, 0, 0, 0), 0);
        assert_eq!(cuCtxCreate_v4(new, 0, 0, 0), 0);
    }
    for context in created.into_iter().rev() {
        assert_eq!(out(|place| unsafe { cuCtxGetCurrent(place) }), context);
        assert_eq!(cuCtxDestroy_v2(context), 0);
    }
}
