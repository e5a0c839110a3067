//! The cost of the monitor: its share of a core at 10 samples a second, and its allocations.
//!
//! `cargo bench --bench monitor [-- --quick]`. The GPU is simulated by an NVML that answers at once. A real driver takes longer; that
//! time is not counted here.

#[path = "../tests/support/nvml.rs"]
mod nvml;
mod support;

use std::fs;
use std::time::{Duration, Instant};

use candle_headroom::Monitor;
use candle_headroom::monitor::{FileSink, MonitorBuilder, Threshold};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::{figure, is_quick};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// The CPU time in nanoseconds of this process's threads with these names.
fn nanoseconds_of(names: &[&str]) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let times = tasks.flatten().filter_map(|task| {
        let read = |file| fs::read_to_string(task.path().join(file)).ok();
        // Linux keeps 15 bytes of a name.
        let name = read("comm")?;
        let is_ours = names.iter().any(|ours| ours.starts_with(name.trim()));
        let time = read("schedstat")?;
        is_ours.then(|| time.split_whitespace().next()?.parse::<u64>().ok())?
    });
    times.sum()
}

/// The monitor's CPU time in nanoseconds and its allocations, for each sample. Time is the median over the seconds, since other
/// processes run on the machine; allocations are the mean.
fn watch(monitor: &Monitor, seconds: u64) -> (f64, f64) {
    assert_eq!(monitor.sources().len(), 2, "{:?}", monitor.without_gpus());
    std::thread::sleep(Duration::from_millis(500));
    let names = ["headroom-monitor", "headroom-watch"];
    let mut times = Vec::new();
    let (mut allocations, mut samples) = (0., 0.);
    for _ in 0..seconds {
        let (from, before) = (monitor.latest()[0].at, nanoseconds_of(&names));
        let region = Region::new(ALLOCATOR);
        std::thread::sleep(Duration::from_secs(1));
        let change = region.change();
        let busy = nanoseconds_of(&names) - before;
        let taken = (monitor.latest()[0].at - from).as_secs_f64() * 10.;
        times.push(busy as f64 / taken);
        allocations += (change.allocations + change.reallocations) as f64;
        samples += taken;
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], allocations / samples)
}

fn builder() -> MonitorBuilder {
    // SAFETY: the simulated NVML.
    let builder = unsafe { Monitor::builder().library(nvml::library()) };
    builder
        .interval(Duration::from_millis(100))
        // Full after two seconds, so that the samples after these show whether a full ring allocates.
        .history(20)
        .threshold(Threshold::Temperature(85), |_| {})
        .threshold(Threshold::MemoryShare(0.99), |_| {})
}

fn main() -> candle_headroom::Result<()> {
    // One GPU, set before the library is loaded.
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("SIMULATED_CUDA_DEVICES", "1") };
    let seconds = if is_quick() { 10 } else { 60 };
    let folder = std::env::temp_dir().join(format!("monitor-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");

    // The cost of waking up on this machine.
    let bare = std::thread::Builder::new().name("bare".to_owned());
    let bare = bare.spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    drop(bare.expect("a thread"));
    let (before, began) = (nanoseconds_of(&["bare"]), Instant::now());
    let (busy, allocations) = watch(&builder().start()?, seconds);
    let wakes = began.elapsed().as_secs_f64() * 10.;
    let bare = (nanoseconds_of(&["bare"]) - before) as f64 / wakes;
    let writing = builder()
        .sink(FileSink::json_lines(folder.join("samples.jsonl")).open()?)
        .start()?;
    let (writing_busy, writing_allocations) = watch(&writing, seconds);
    drop(writing);
    fs::remove_dir_all(&folder).expect("the folder");

    println!("a sample of one GPU and of the host, with two thresholds:");
    for (what, nanoseconds) in [
        ("of a core", busy),
        ("a thread that only wakes", bare),
        ("with JSON lines", writing_busy),
    ] {
        println!("  {what:<24} {:.1} µs", nanoseconds / 1e3);
    }
    // 10 samples a second, in percent of a second.
    let percent = |nanoseconds: f64| nanoseconds * 10. / 1e9 * 100.;
    let with_sinks = "monitor/core_percent_with_sinks";
    figure(with_sinks, percent(writing_busy), "%");
    let per_sample = allocations.max(writing_allocations);
    figure("monitor/allocations_per_sample", per_sample, "allocations");
    let alone = "monitor/core_percent_at_10_hertz";
    figure(alone, percent(busy), "%");
    Ok(())
}
