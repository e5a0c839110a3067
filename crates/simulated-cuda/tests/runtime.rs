//! Code that nvcc linked into a program, and `CUDA_VISIBLE_DEVICES`. Variables are read once, so each test runs its program, a function below, in
//! a process of its own.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use simulated_cuda::cudart::*;
use simulated_cuda::driver::context::*;
use simulated_cuda::driver::context_stack::*;
use simulated_cuda::driver::device_query::*;
use simulated_cuda::driver::stream::*;
use simulated_cuda::nvml::system::*;

/// Runs one of the programs, as a test that is otherwise ignored, and returns what it printed and its report.
fn run(program: &str, variables: &[(&str, &str)]) -> (Output, String) {
    // Tests run at the same time, also those of the same program.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let file = format!("simulated-cuda-{}-{number}.jsonl", std::process::id());
    let file = std::env::temp_dir().join(file);
    let mut command = Command::new(std::env::current_exe().expect("the test runs"));
    command.args(["--exact", program, "--ignored", "--test-threads=1"]);
    command.env("SIMULATED_CUDA_REPORT", &file);
    command.envs(variables.iter().copied());
    let output = command.output().expect("it starts");
    let report = std::fs::read_to_string(&file).unwrap_or_default();
    _ = std::fs::remove_file(&file);
    (output, report)
}

/// What `kernel<<<grid, block, 0, stream>>>()` compiles to with CUDA 13.
fn launch(grid: Extents, block: Extents, stream: u64) -> u32 {
    assert_eq!(__cudaPushCallConfiguration(grid, block, 64, stream), 0);
    let (mut kernel, mut shared, mut of) = (0, 0, 0);
    let (mut to_grid, mut to_block) = (Extents::default(), Extents::default());
    // SAFETY: places for each value.
    unsafe {
        let popped = __cudaPopCallConfiguration(&mut to_grid, &mut to_block, &mut shared, &mut of);
        assert_eq!((popped, to_grid, to_block), (0, grid, block));
        assert_eq!((shared, of), (64, stream));
        assert_eq!(__cudaGetKernel(&mut kernel, 42), 0);
    }
    __cudaLaunchKernel_ptsz(kernel, to_grid, to_block, 0, shared, of)
}

fn size(x: u32, y: u32, z: u32) -> Extents {
    Extents { x, y, z }
}

#[test]
#[ignore = "a program of the tests below"]
fn launches() {
    let (mut device, mut buffer, mut blocks) = (-1, 0, 0);
    // SAFETY: places for each value.
    unsafe {
        // The runtime makes a context by itself.
        assert_eq!(cudaMallocAsync_ptsz(&mut buffer, 1 << 20, 0), 0);
        assert_eq!((cudaGetDevice(&mut device), device), (0, 0));
        let free = cudaMallocAsync_ptsz(&mut 0, 1 << 50, 0);
        assert_eq!((free, cudaPeekAtLastError(), cudaGetLastError()), (2, 2, 2));
        assert_eq!(cudaGetLastError(), 0, "it is forgotten");
        let status =
            cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&mut blocks, 42, 256, 0, 0);
        assert_eq!((status, blocks), (0, 8));
        assert!(!cudaGetErrorString(2).is_null());
    }
    let mut stream = 0;
    // SAFETY: a place for a handle.
    assert_eq!(unsafe { cuStreamCreate(&mut stream, 1) }, 0);
    assert_eq!(cudaMemsetAsync_ptsz(buffer, 0, 1 << 20, 0), 0);
    assert_eq!(
        launch(size(2, 1, 1), size(0, 1, 1), stream),
        1,
        "an empty block"
    );
    assert_eq!(launch(size(2, 1, 1), size(32, 1, 1), 77), 400, "no stream");
    for _ in 0..3 {
        assert_eq!(launch(size(2, 3, 1), size(32, 8, 1), stream), 0);
    }
    assert_eq!(cudaFreeAsync_ptsz(buffer, 0), 0);
    assert_eq!(cudaStreamSynchronize_ptsz(stream), 0);
}

#[test]
fn linked_kernels_are_counted_without_computing() {
    let (output, report) = run("launches", &[("SIMULATED_CUDA_MODE", "allocate")]);
    assert!(output.status.success(), "{output:?}");
    assert!(report.contains("\"kernels\":3"), "{report}");
    assert!(report.contains("\"peak_tensor_bytes\":1048576"), "{report}");
}

#[test]
fn linked_kernels_cannot_be_executed() {
    let (output, report) = run("launches", &[]);
    assert!(!output.status.success());
    assert!(report.contains("\"problem\":\"not modelled\""), "{report}");
    assert!(
        report.contains("linked through the CUDA runtime"),
        "{report}"
    );
}

/// Prints the devices that the driver shows, by the last digit of their UUIDs, and the number that NVML shows.
#[test]
#[ignore = "a program of the test below"]
fn shows() {
    let (mut count, mut shown, mut all) = (0, String::new(), 0);
    // SAFETY: places for each value.
    unsafe {
        if cuInit(0) == 0 {
            assert_eq!(cuDeviceGetCount(&mut count), 0);
        }
        for place in 0..count {
            let (mut device, mut uuid) = (0, [0; 16]);
            assert_eq!(cuDeviceGet(&mut device, place), 0);
            assert_eq!(cuDeviceGetUuid(&mut uuid, device), 0);
            shown.push_str(&uuid[15].to_string());
            // The runtime counts those that are visible.
            assert_eq!((cudaSetDevice(place), cudaGetDevice(&mut device)), (0, 0));
            assert_eq!(device, place);
        }
        assert_ne!(cuDeviceGet(&mut 0, count), 0);
        assert_ne!(cudaSetDevice(count), 0);
        assert_eq!((nvmlInit_v2(), nvmlDeviceGetCount_v2(&mut all)), (0, 0));
        let mut context = 0;
        assert_eq!(cuCtxGetCurrent(&mut context) == 0, count > 0);
        assert_ne!(cuDevicePrimaryCtxRetain(&mut context, -1), 0);
    }
    println!("shown {shown} of {all}");
}

#[test]
fn visible_devices_are_chosen_in_their_order() {
    let uuid = "GPU-73696d75-6c61-7465-642d-637564610003";
    let cases = [
        ("0,1,2,3", "0123"),
        ("2,0", "20"),
        (uuid, "3"),
        ("1,9,0", "1"),
        ("1,1", ""),
        ("", ""),
        ("-1", ""),
        (" 3 , 2", "32"),
    ];
    for (visible, expected) in cases {
        let variables = [
            ("SIMULATED_CUDA_DEVICES", "4"),
            ("CUDA_VISIBLE_DEVICES", visible),
        ];
        let output = shown(&variables);
        let expected = format!("shown {expected} of 4");
        assert!(output.contains(&expected), "{visible:?}: {output}");
    }
}

/// What the program `shows` prints.
fn shown(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("the test runs"));
    command.args(["--exact", "shows", "--ignored", "--nocapture"]);
    let output = command.envs(variables.iter().copied()).output();
    let output = output.expect("it starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
