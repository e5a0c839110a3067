//! Retries: at the same size where cleaning up may help, then smaller; later the size grows back.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Event, Halving, find_batch_size};
use candle_headroom::error::Cause;
use candle_headroom::memory::Growth;
use candle_headroom::testing;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Foreign, StepReport};
use candle_nn::SGD;

use crate::gpu::{MIB, bytes, fresh, simulated};
use crate::support::sgd;

/// Bytes that each sample of a micro-batch takes.
const SAMPLE: u64 = 8 * MIB;

/// A trainer of one Var on samples that each take [`SAMPLE`].
struct Ballast {
    memory: DeviceMemory,
    x: Tensor,
    trainer: AdaptiveTrainer<Foreign<SGD>>,
    var: Var,
}

impl Ballast {
    fn new(memory: DeviceMemory, samples: usize) -> Self {
        let device = memory.device();
        let var = Var::ones(4, DType::F32, device).unwrap();
        let trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&var), 1e-3));
        let trainer = trainer
            .memory(&memory)
            .policy(Halving::default())
            .build()
            .unwrap();
        Self {
            x: Tensor::ones((samples, 4), DType::F32, device).unwrap(),
            trainer,
            var,
            memory,
        }
    }

    fn step(&mut self) -> StepReport {
        let Self {
            x, var, trainer, ..
        } = self;
        let stepped = trainer.step(&*x, |x, _| {
            let bytes = x.dims()[0] * SAMPLE as usize;
            let _held = Tensor::zeros(bytes, DType::U8, x.device())?;
            x.broadcast_mul(var)?.sum(1)?.mean_all()
        });
        stepped.unwrap()
    }
}

fn retries(report: &StepReport) -> Vec<(usize, usize, Cause)> {
    let retried = report.events.iter().filter_map(|event| match event {
        Event::Retried {
            samples, to, cause, ..
        } => Some((samples.len(), *to, *cause)),
        _ => None,
    });
    retried.collect()
}

#[test]
fn a_neighbour_that_comes_and_goes() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let mut ballast = Ballast::new(memory, 64); // 512 MiB
    assert_eq!(ballast.step().sizes, [64]);

    ballast.memory.trim().unwrap();
    simulator.neighbour(768 * MIB);
    let crowded = ballast.step();
    let [(64, 64, Cause::Neighbour), (64, 32, _), ..] = retries(&crowded)[..] else {
        panic!("once more as it was, then smaller: {crowded:?}");
    };
    assert_eq!(crowded.samples, 64);
    assert!(crowded.sizes.iter().all(|&size| size < 32), "{crowded:?}");

    simulator.neighbour(0);
    let grown = (0..30).any(|_| ballast.step().sizes == [64]);
    assert!(grown, "it grows back when the neighbour is gone");
}

#[test]
fn pieces_are_merged_and_the_same_size_fits() {
    const CAPACITY: u64 = 256 * MIB;
    let Some((gpu, simulator)) = simulated(5) else {
        return;
    };
    simulator.set_capacity(CAPACITY);
    simulator.set_fragmentation(true);
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let mut ballast = Ballast::new(memory, 8); // 64 MiB
    assert_eq!(ballast.step().sizes, [8]);
    ballast.memory.trim().unwrap();

    // The device is filled with tensors of 2 MiB. Those in the middle are freed, and the pool keeps each of their blocks.
    let mut small = Vec::new();
    while let Ok(tensor) = bytes(&ballast.memory, 2 * MIB) {
        small.push(tensor);
    }
    let (first, last) = (small.len() / 4, small.len() * 3 / 4);
    small.drain(first..last);
    let stats = ballast.memory.stats();
    assert!(stats.fragmentation().unwrap() > 64 * MIB, "{stats:?}");
    assert!(
        bytes(&ballast.memory, 64 * MIB).is_err(),
        "not in one piece"
    );

    let report = ballast.step();
    assert_eq!(retries(&report), [(8, 8, Cause::Fragmented)], "{report:?}");
    assert_eq!(report.sizes, [8]);
    drop((small, ballast));
}

#[test]
fn the_device_is_full_of_our_own() {
    let Some((gpu, _)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let mut ballast = Ballast::new(memory, 64);
    assert_eq!(ballast.step().sizes, [64]);
    let _more = bytes(&ballast.memory, 700 * MIB).err();
    ballast.memory.trim().unwrap();
    let _held = bytes(&ballast.memory, 600 * MIB).unwrap();
    let report = ballast.step();
    // A proven size that fails for lack of room is not tried again.
    assert_eq!(
        retries(&report)[0],
        (64, 32, Cause::DeviceFull),
        "{report:?}"
    );
}

/// The limit would leave room, but another process has taken it.
#[test]
fn a_neighbour_is_blamed_under_a_limit_that_leaves_more_than_is_free() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let open = DeviceMemory::cuda(gpu.ordinal).limit(900 * MIB);
    let mut ballast = Ballast::new(open.open().unwrap(), 64); // 512 MiB
    assert_eq!(ballast.step().sizes, [64]);
    ballast.memory.trim().unwrap();
    simulator.neighbour(768 * MIB);
    let report = ballast.step();
    assert_eq!(
        retries(&report)[0],
        (64, 64, Cause::Neighbour),
        "{report:?}"
    );
    simulator.neighbour(0);
}

/// The limit is reserved, and half of it is free, but in pieces of 2 MiB.
#[test]
fn pieces_under_a_limit_are_merged_and_the_same_size_fits() {
    let Some((gpu, _)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let open = DeviceMemory::cuda(gpu.ordinal).limit(256 * MIB);
    let mut ballast = Ballast::new(open.open().unwrap(), 8); // 64 MiB
    assert_eq!(ballast.step().sizes, [8]);
    ballast.memory.trim().unwrap();
    let mut small = Vec::new();
    while let Ok(tensor) = bytes(&ballast.memory, 2 * MIB) {
        small.push(tensor);
    }
    small.truncate(small.len() / 2);
    let stats = ballast.memory.stats();
    assert!(stats.fragmentation().unwrap() > 100 * MIB, "{stats:?}");
    let report = ballast.step();
    assert_eq!(retries(&report), [(8, 8, Cause::Fragmented)], "{report:?}");
    assert_eq!(report.sizes, [8]);
}

/// The driver refuses an allocation although much is free.
#[test]
fn an_unknown_cause_is_not_guessed() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let mut ballast = Ballast::new(memory, 64);
    simulator.fail_allocation(1, 1);
    // The need of work that has never succeeded is not known, so the nearer bound is blamed.
    assert_eq!(retries(&ballast.step()), [(64, 32, Cause::DeviceFull)]);
    let grown = (0..30).any(|_| ballast.step().sizes == [64]);
    assert!(grown, "it grows back");
    ballast.memory.trim().unwrap();
    simulator.fail_allocation(1, 1);
    assert_eq!(retries(&ballast.step()), [(64, 64, Cause::Unknown)]);
}

#[test]
fn a_limit_that_is_lowered_and_raised_again() {
    let Some((gpu, _)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(640 * MIB)
        .open()
        .unwrap();
    let mut ballast = Ballast::new(memory, 64);
    assert_eq!(ballast.step().sizes, [64]);
    ballast.memory.set_limit(200 * MIB).unwrap();
    let peak = ballast.memory.stats().peak_reserved;
    assert!(peak.unwrap() >= 512 * MIB, "the former pool's: {peak:?}");
    ballast.memory.reset_peak();
    for _ in 0..3 {
        let report = ballast.step();
        assert_eq!(report.samples, 64);
        assert!(report.sizes.iter().all(|&size| size <= 16), "{report:?}");
        assert!(ballast.memory.stats().peak_reserved.unwrap() <= 200 * MIB);
    }
    ballast.memory.set_limit(640 * MIB).unwrap();
    let grown = (0..30).any(|_| ballast.step().sizes == [64]);
    assert!(grown, "it grows back");
}

/// Memory is freed on the device's own stream, which needs no context. Where a driver asks for one all the same, uses are tracked, which
/// binds it.
#[test]
fn tensors_dropped_on_foreign_threads_do_not_leak() {
    let Some((gpu, simulator)) = simulated(4) else {
        return;
    };
    for needs_context in [true, false] {
        simulator.set_frees_need_context(needs_context);
        let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
        let cuda = memory.device().as_cuda_device().unwrap();
        assert_eq!(cuda.is_event_tracking(), needs_context);
        let before = simulator.counters();
        let in_use = memory.in_use();
        let tensors: Vec<_> = (0..16).map(|_| bytes(&memory, MIB).unwrap()).collect();
        let workers = tensors
            .into_iter()
            .map(|tensor| std::thread::spawn(|| drop(tensor)));
        workers.for_each(|worker| worker.join().unwrap());
        assert_eq!(memory.in_use(), in_use);
        assert_eq!(simulator.counters().refused_frees, before.refused_frees);
        assert_eq!(simulator.counters().live_bytes, before.live_bytes);
        // No error waits for the next call.
        cuda.cuda_stream().context().check_err().unwrap();

        // The last handle of the device goes on such a thread too.
        let tensor = bytes(&memory, MIB).unwrap();
        drop(memory);
        std::thread::spawn(|| drop(tensor)).join().unwrap();
        assert_eq!(simulator.counters().refused_frees, before.refused_frees);
    }

    // A device as candle creates it by default does leak.
    let plain = Device::new_cuda(gpu.ordinal).unwrap();
    simulator.reset_counters();
    let tensor = Tensor::zeros(1 << 20, DType::U8, &plain).unwrap();
    std::thread::spawn(|| drop(tensor)).join().unwrap();
    assert_eq!(
        simulator.counters().refused_frees,
        1,
        "docs/explanation/cuda-memory.md, section Threads"
    );
}

/// After the limit was lowered, memory that old tensors free becomes room for new ones.
#[test]
fn what_an_old_pool_gives_up_can_be_used_again() {
    let Some((gpu, _)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(640 * MIB)
        .open()
        .unwrap();
    let held = bytes(&memory, 500 * MIB).unwrap();
    let mut ballast = Ballast::new(memory, 64); // 512 MiB
    ballast.memory.set_limit(600 * MIB).unwrap();
    assert!(ballast.step().sizes.len() > 1, "100 MiB are left");
    drop(held);
    // Its last use must have finished before the memory can be reused.
    ballast.memory.device().synchronize().unwrap();
    let grown = (0..30).any(|_| ballast.step().sizes == [64]);
    assert!(grown, "600 MiB are allowed, and nothing else holds any");
    assert!(ballast.memory.stats().reserved.unwrap() <= 600 * MIB);
}

/// A preallocated pool keeps its memory when a step runs out of memory.
#[test]
fn a_preallocated_pool_keeps_what_it_took() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .growth(Growth::Preallocate)
        .limit(256 * MIB)
        .open()
        .unwrap();
    let reserved = |memory: &DeviceMemory| memory.stats().reserved.unwrap();
    assert_eq!(reserved(&memory), 256 * MIB);
    let mut ballast = Ballast::new(memory, 64);
    let report = ballast.step();
    assert!(report.retries > 0 && report.samples == 64, "{report:?}");
    let memory = &ballast.memory;
    assert_eq!(reserved(memory), 256 * MIB);

    simulator.neighbour(700 * MIB);
    assert!(memory.set_limit(512 * MIB).is_err(), "there is no room");
    assert_eq!(memory.limit(), Some(256 * MIB));
    assert_eq!(reserved(memory), 256 * MIB);
    simulator.neighbour(0);
    // The report holds the loss, a tensor on the device.
    drop((report, ballast.trainer, ballast.x, ballast.var));
    ballast.memory.trim().unwrap();
    assert!(reserved(&ballast.memory) < 256 * MIB, "only when asked to");
}

/// A search knows what is full, and who is there, where not even a single sample fits.
#[test]
fn a_search_for_a_size_says_why_one_sample_does_not_fit() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let search = |each: u64| {
        let device = memory.device();
        find_batch_size(device, Some(&memory), 64, |size| {
            Tensor::zeros(size * each as usize, DType::U8, device)
        })
    };
    let found = search(64 * MIB).unwrap();
    assert!((8..=16).contains(&found), "{found}");
    let error = search(2048 * MIB).unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(exhausted.cause, Cause::NeverFits);
    assert_eq!(exhausted.device.as_deref(), Some("cuda:4"));
    assert_eq!(exhausted.bytes.total, Some(1024 * MIB));
    assert!(exhausted.bytes.free.is_some() && exhausted.bytes.in_use.is_some());

    memory.trim().unwrap();
    simulator.neighbour(768 * MIB);
    let error = search(512 * MIB).unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(exhausted.cause, Cause::Neighbour, "{exhausted:?}");
    simulator.neighbour(0);
    assert_eq!(search(512 * MIB).unwrap(), 1);
}

/// Without a memory, the device that the closure works on is waited for and trimmed all the same.
#[test]
fn a_search_without_a_memory_recovers_the_device_that_it_works_on() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let device = memory.device();
    // What the pool keeps of a freed tensor is in the way of nobody, until the search gives it back.
    drop(bytes(&memory, 256 * MIB).unwrap());
    assert!(memory.stats().reserved.unwrap() >= 256 * MIB);
    let before = simulator.counters();
    let found = find_batch_size(device, None, 4, |size| match size > 2 {
        true => Err(testing::out_of_memory()),
        false => Ok(()),
    });
    assert_eq!(found.unwrap(), 2);
    assert_ne!(simulator.counters(), before, "it has waited");
    assert!(
        memory.stats().reserved.unwrap() < 256 * MIB,
        "it was trimmed"
    );
}
