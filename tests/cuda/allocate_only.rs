//! The simulated driver without computing (`SIMULATED_CUDA_MODE=allocate`): the same allocations in the same order as when it executes, memory
//! that takes no pages, and values as crates/simulated-cuda/README.md says.

use std::process::Command;
use std::{env, fs, thread};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Fixed, Halving};
use candle_headroom::optim::Commit;
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, Predictive};

use crate::gpu::{Gpu, gpu};
use crate::jobs::{Job, SAMPLES};
use crate::simulator::Simulator;

const CHILD_OF: &str = "HEADROOM_TEST_MODE_OF";
const OUTPUT: &str = "HEADROOM_TEST_OUTPUT";

/// Runs the calling test again in a process of each mode, where `body` runs, and returns what it returned in both. `None` in these
/// processes, and where there is no simulator.
fn in_both_modes(
    settings: &[(&str, &str)],
    body: impl FnOnce(Gpu, Simulator) -> String,
) -> Option<[String; 2]> {
    let test = thread::current().name().expect("a test").to_owned();
    let Some(simulator) = Simulator::of(0) else {
        eprintln!("skipped: a real GPU computes");
        return None;
    };
    if env::var(CHILD_OF).is_ok_and(|name| name == test) {
        let text = body(gpu(), simulator);
        fs::write(env::var(OUTPUT).expect("a file"), text).expect("a file");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    Some(["execute", "allocate"].map(|mode| {
        let file = folder.path().join(mode);
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", &test, "--nocapture", "--test-threads", "1"]);
        command.env(CHILD_OF, &test).env(OUTPUT, &file);
        command.env("SIMULATED_CUDA_MODE", mode);
        let output = command
            .envs(settings.iter().copied())
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{mode}: {text}");
        fs::read_to_string(file).expect("what it wrote")
    }))
}

/// What two steps do on the device, of which an allocation fails if that is asked for.
fn trace<O: Commit>(
    simulator: Simulator,
    job: &Job,
    mut trainer: AdaptiveTrainer<O>,
    fails_at: Option<u64>,
) -> String {
    simulator.trace(true);
    if let Some(nth) = fails_at {
        simulator.fail_allocation(nth, 1);
    }
    let reports = [0; 2].map(|_| job.step(&mut trainer).expect("a step"));
    simulator.trace(false);
    let sizes = reports.map(|report| report.sizes);
    format!("{}: {sizes:?}\n{}", job.name, simulator.trace_text())
}

/// The calls, with those frees in order of size that follow each other: candle drops a store of gradients in the order of a hash, which
/// differs from process to process.
fn in_order(trace: &str) -> Vec<&str> {
    let mut calls: Vec<_> = trace.lines().collect();
    let is_free = |call: &&str| call.starts_with("free");
    let runs = calls.chunk_by_mut(|a, b| is_free(a) && is_free(b));
    runs.for_each(<[&str]>::sort_unstable);
    calls
}

#[test]
fn the_same_calls_in_the_same_order() {
    let Some([executed, allocated]) = in_both_modes(&[], |gpu, simulator| {
        let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
        let (some, all) = (|| Fixed::new(3).unwrap(), || Fixed::new(SAMPLES).unwrap());
        let mut jobs = Job::all(memory.device());
        // What is compared are losses, which are zeros without computing.
        jobs.iter_mut().for_each(|job| job.checks_cuts = false);
        let of_job = |job: &Job| {
            let memory = Some(&memory);
            let trace = |trainer, fails_at| trace(simulator, job, trainer, fails_at);
            [
                trace(job.trainer(memory, some()), None),
                trace(job.trainer(memory, Halving::default()), Some(40)),
                trace(job.trainer(memory, Predictive::default()), None),
                trace(job.trainer_with(job.adjusting(), memory, all()), None),
                self::trace(
                    simulator,
                    job,
                    job.trainer_with(job.foreign(), memory, all()),
                    None,
                ),
            ]
            .concat()
        };
        jobs.iter().map(of_job).collect()
    }) else {
        return;
    };
    let (executed, allocated) = (in_order(&executed), in_order(&allocated));
    let is_allocation = |call: &&&str| call.starts_with("allocate");
    let number = executed.iter().filter(is_allocation).count();
    let pairs = || executed.iter().zip(&allocated);
    let differing = pairs().filter(|(executed, allocated)| executed != allocated);
    let differing = differing.count() + executed.len().abs_diff(allocated.len());
    println!(
        "figure: dry_run/allocations_differing_from_execute = {differing} of {number} allocations and {} calls",
        executed.len()
    );
    let is_refused = executed.iter().any(|call| call.ends_with("status 2"));
    assert!(number > 1000 && is_refused, "{number}, {is_refused}");
    if let Some(at) = pairs().position(|(executed, allocated)| executed != allocated) {
        let around = at.saturating_sub(20)..at + 20;
        panic!(
            "call {at}: {:?}\n{:?}",
            executed.get(around.clone()),
            allocated.get(around)
        );
    }
    assert_eq!(differing, 0);
}

/// 64 GiB of parameters, which no test's machine has.
#[test]
fn blocks_take_no_memory_of_the_host() {
    let capacity = (141u64 << 30).to_string();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.jsonl");
    let settings = [
        ("SIMULATED_CUDA_MEMORY", capacity.as_str()),
        ("SIMULATED_CUDA_REPORT", report.to_str().unwrap()),
    ];
    let body = |gpu: Gpu, _| {
        if env::var("SIMULATED_CUDA_MODE").is_ok_and(|mode| mode == "execute") {
            return String::new();
        }
        let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
        let device = memory.device();
        let vars: Vec<_> = (0..16)
            .map(|_| Var::zeros(1 << 30, DType::F32, device).unwrap())
            .collect();
        let loss = |vars: &[Var]| vars[0].sqr().and_then(|x| x.mean_all()).unwrap();
        let mut optimizer = AdamW::builder(vars[..2].to_vec()).build().unwrap();
        let gradients = loss(&vars).backward().unwrap();
        optimizer.commit(&gradients).unwrap();
        assert!(memory.stats().peak > Some(64 << 30), "{}", memory.stats());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let resident = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        let kib: u64 = resident.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(kib < 1 << 20, "{resident}");
        println!("{resident}");
        memory.stats().peak.unwrap().to_string()
    };
    if let Some([_, allocated]) = in_both_modes(&settings, body) {
        let text = fs::read_to_string(report).unwrap();
        let mut lines = text
            .lines()
            .filter(|line| line.contains("\"computes\":false"));
        let report: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let number = |name: &str| report[name].as_u64().unwrap();
        // A pool gives whole pieces of 512 bytes.
        let peak: u64 = allocated.parse().unwrap();
        let of_tensors = number("peak_tensor_bytes");
        assert!(of_tensors <= peak && peak - of_tensors < 1 << 16, "{text}");
        assert!(number("peak_used_bytes") >= peak + number("peak_outside_pools_bytes"));
        assert_eq!(report["computes"], false);
        // Opening the device tries whether a pool keeps its greatest size.
        assert!(number("refused_allocations") == 1 && number("kernels") > 0);
    }
}

#[test]
fn what_the_host_wrote_comes_back_and_all_else_reads_as_zeros() {
    let body = |gpu: Gpu, _| {
        let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
        let numbers = |tensor: &Tensor| {
            let flat = tensor.flatten_all().unwrap();
            let some = flat.narrow(0, 0, 4.min(flat.elem_count())).unwrap();
            format!("{:?}\n", some.to_vec1::<f32>().unwrap())
        };
        let kept = Tensor::new(&[1f32, 2., 3., 4.], &device).unwrap();
        let copied = kept.copy().unwrap();
        let large = Tensor::new(vec![5f32; 1 << 20], &device).unwrap();
        let computed = (&kept * 2.).unwrap();
        let all = [&kept, &copied, &large, &computed].map(numbers);
        drop((kept, copied, large, computed));
        // In the memory of those before.
        let again = (Tensor::ones(4, DType::F32, &device).unwrap() * 3.).unwrap();
        all.concat() + &numbers(&again)
    };
    let Some([executed, allocated]) = in_both_modes(&[], body) else {
        return;
    };
    let (kept, zeros) = ("[1.0, 2.0, 3.0, 4.0]\n", "[0.0, 0.0, 0.0, 0.0]\n");
    assert_eq!(allocated, [kept, kept, zeros, zeros, zeros].concat());
    let (large, doubled) = ("[5.0, 5.0, 5.0, 5.0]\n", "[2.0, 4.0, 6.0, 8.0]\n");
    let again = "[3.0, 3.0, 3.0, 3.0]\n";
    assert_eq!(executed, [kept, kept, large, doubled, again].concat());
}
