//! `DeviceMemory::cuda`: opening, counting, sharing, refusing.

use candle_core::{DType, Device, Tensor};
use candle_headroom::memory::{Growth, Limit, PeakScope};
use candle_headroom::{DeviceMemory, Error};

use crate::gpu::{MIB, bytes, fresh, gpu, simulated};
use crate::simulator::Simulator;

/// The text of an error about memory.
fn memory_error(error: Error) -> String {
    assert!(error.is_memory(), "{error}");
    error.to_string()
}

#[test]
fn it_counts_what_tensors_hold() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let before = memory.stats();
    let outer = memory.peak_scope();
    let tensor = bytes(&memory, 64 * MIB).unwrap();
    let with = memory.stats();
    assert_eq!(with.in_use.unwrap() - before.in_use.unwrap(), 64 * MIB);
    assert!(with.reserved >= with.in_use, "{with:?}");
    assert!(with.fragmentation().unwrap() < 64 * MIB, "{with:?}");
    drop(tensor);

    let inner = memory.peak_scope();
    drop(bytes(&memory, 32 * MIB).unwrap());
    let rise = |scope: &PeakScope| scope.peak().unwrap() - scope.start().unwrap();
    assert_eq!((rise(&outer), rise(&inner)), (64 * MIB, 32 * MIB));

    let after = memory.stats();
    assert_eq!(after.in_use, before.in_use);
    assert!(after.peak.unwrap() >= with.in_use.unwrap());
    assert!(
        after.fragmentation().unwrap() >= 64 * MIB,
        "kept for reuse: {after:?}"
    );
    memory.reset_peak();
    assert_eq!(memory.stats().peak, after.in_use);
    memory.trim().unwrap();
    let trimmed = memory.stats();
    assert!(trimmed.reserved.unwrap() <= before.reserved.unwrap().max(32 * MIB));
    assert_eq!(memory.stats().peak_reserved, after.reserved);
    memory.reset_peak();
    assert_eq!(memory.stats().peak_reserved, trimmed.reserved);
    assert_eq!(trimmed.enforcement, None);
    assert!(trimmed.free.unwrap() < trimmed.total.unwrap());
}

#[test]
fn it_says_what_would_fit() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal)
        .limit(256 * MIB)
        .open()
        .unwrap();
    let _held = bytes(&memory, 64 * MIB).unwrap();
    let left = 256 * MIB - memory.in_use().unwrap();
    assert_eq!(memory.would_fit(left), Some(true));
    assert_eq!(memory.would_fit(left + 1), Some(false));
}

#[test]
fn a_second_opening_shares_or_is_refused() {
    let gpu = gpu();
    let open = || DeviceMemory::cuda(gpu.ordinal);
    let memory = open().limit(256 * MIB).open().unwrap();
    let tensor = bytes(&memory, 1024).unwrap();

    for same in [
        open(),
        open().limit(256 * MIB),
        open().growth(Growth::OnDemand),
        open().growth(Growth::OnDemand).limit(256 * MIB),
    ] {
        let shared = same.open().unwrap();
        assert_eq!(shared.limit(), Some(256 * MIB));
        // One device, so that tensors of both go together.
        let other = bytes(&shared, 1024).unwrap();
        assert!(tensor.eq(&other).is_ok());
    }
    let error = memory_error(open().limit(128 * MIB).open().unwrap_err());
    assert!(
        error.contains("is open already with a limit of 256.0 MiB, not a limit of 128.0 MiB"),
        "{error}"
    );
    let error = memory_error(open().growth(Growth::Preallocate).open().unwrap_err());
    assert!(
        error.contains("Growth::OnDemand, not Preallocate"),
        "{error}"
    );
    let error = memory_error(open().event_tracking(true).open().unwrap_err());
    assert!(
        error.contains("open already without event tracking"),
        "{error}"
    );
    assert_eq!(memory.limit(), Some(256 * MIB));

    // With other settings once all handles are dropped.
    drop(memory);
    let memory = open()
        .growth(Growth::ReturnAtSync)
        .event_tracking(true)
        .open()
        .unwrap();
    assert_eq!(memory.limit(), None);
    assert!(
        memory
            .device()
            .as_cuda_device()
            .unwrap()
            .is_event_tracking()
    );
    assert!(open().event_tracking(true).open().is_ok());
}

#[test]
fn bad_settings_are_refused_and_change_nothing() {
    let gpu = gpu();
    let plain = Device::new_cuda(gpu.ordinal).unwrap();
    let pools = Simulator::of(gpu.ordinal).map(|simulator| simulator.counters().live_pools);
    let open = || DeviceMemory::cuda(gpu.ordinal);
    let free = open().open().unwrap().stats().free.unwrap();
    for (builder, words) in [
        (DeviceMemory::cuda(99), "no CUDA device 99"),
        (DeviceMemory::cuda(1 << 32), "no CUDA device 4294967296"),
        (open().limit(MIB), "a limit of 1.0 MiB is too small"),
        (
            open().limit(Limit::Fraction(0.)),
            "limit fraction must be in (0, 1], got 0",
        ),
        (
            open().limit(Limit::Fraction(1.5)),
            "limit fraction must be in (0, 1], got 1.5",
        ),
        (
            open().limit(Limit::Fraction(f64::NAN)),
            "limit fraction must be in (0, 1], got NaN",
        ),
        (
            open().growth(Growth::Preallocate).limit(free * 2),
            "cannot be taken at once",
        ),
    ] {
        let error = memory_error(builder.open().unwrap_err());
        assert!(error.contains(words), "{error}");
    }
    let after = Simulator::of(gpu.ordinal).map(|simulator| simulator.counters().live_pools);
    assert_eq!(pools, after);
    assert!(Tensor::zeros(4, DType::F32, &plain).is_ok());
    let memory = open().limit(256 * MIB).open().unwrap();
    let _held = bytes(&memory, 128 * MIB).unwrap();
    let error = memory_error(memory.set_limit(64 * MIB).unwrap_err());
    assert!(error.contains("is below the"), "{error}");
    assert_eq!(memory.limit(), Some(256 * MIB));
    assert!(bytes(&memory, 64 * MIB).is_ok());
}

/// Another process uses the device exclusively, or it is being reset: this is not a fault, and the device can be opened afterwards.
#[test]
fn a_busy_device_is_unavailable_with_the_remedy() {
    const UNAVAILABLE: i32 = 46;
    let Some((gpu, simulator)) = simulated(3) else {
        return;
    };
    simulator.fault_at_launch(0, UNAVAILABLE, true);
    let opened = DeviceMemory::cuda(gpu.ordinal).open();
    simulator.clear_fault();
    let text = memory_error(opened.unwrap_err());
    assert!(text.contains("CUDA_ERROR_DEVICE_UNAVAILABLE"), "{text}");
    assert!(text.contains("check the compute mode"), "{text}");
    assert!(text.starts_with("CUDA device 3 cannot be opened"), "{text}");
    assert!(DeviceMemory::cuda(gpu.ordinal).open().is_ok());
}

/// Although a pool is due to be replaced, only the next micro-batch does it.
#[test]
fn a_reading_changes_nothing() {
    let Some((gpu, simulator)) = fresh(4, 1024 * MIB) else {
        return;
    };
    let open = DeviceMemory::cuda(gpu.ordinal).limit(640 * MIB);
    let memory = open.open().unwrap();
    let held = bytes(&memory, 500 * MIB).unwrap();
    memory.set_limit(600 * MIB).unwrap();
    drop(held);
    memory.device().synchronize().unwrap();
    simulator.reset_counters();
    let before = simulator.counters();
    let readings: Vec<_> = (0..10).map(|_| memory.reading()).collect();
    assert_eq!(simulator.counters(), before);
    assert_eq!(readings[0].in_use, Some(0));
    assert!(readings.windows(2).all(|pair| pair[0] == pair[1]));
    // The current pool is still the one created while the tensor was alive.
    assert!(bytes(&memory, 550 * MIB).is_err());
    assert!(bytes(&memory, 50 * MIB).is_ok());
}

#[test]
fn a_device_without_pools_is_refused() {
    let Some((gpu, simulator)) = simulated(3) else {
        return;
    };
    simulator.set_pools_supported(false);
    let opened = DeviceMemory::cuda(gpu.ordinal).open();
    simulator.set_pools_supported(true);
    let error = memory_error(opened.unwrap_err());
    assert!(
        error.starts_with("CUDA device 3 does not support memory pools"),
        "{error}"
    );
}

#[test]
fn what_was_there_before_is_unaccounted_and_the_former_pool_comes_back() {
    let Some((gpu, simulator)) = simulated(3) else {
        return;
    };
    let plain = Device::new_cuda(gpu.ordinal).unwrap();
    let before = Tensor::zeros(100 << 20, DType::U8, &plain).unwrap();
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let stats = memory.stats();
    assert_eq!(stats.in_use, Some(0));
    assert!(stats.unaccounted.unwrap() >= 100 * MIB, "{stats:?}");

    // Every device of the process allocates from our pool now, and its memory outlives the handle as long as a tensor uses it.
    let foreign = Tensor::zeros(8 << 20, DType::U8, &plain).unwrap();
    assert_eq!(memory.in_use(), Some(8 * MIB));
    let ours = Tensor::arange(0u32, 1000, memory.device()).unwrap();
    drop(memory);
    assert_eq!(simulator.counters().live_pools, 0);
    assert_eq!(ours.to_vec1::<u32>().unwrap()[999], 999);
    drop((before, foreign, ours));
    let after = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    let late = Tensor::zeros(8 << 20, DType::U8, &plain).unwrap();
    assert_eq!(
        after.in_use(),
        Some(8 * MIB),
        "the new pool serves, not the default"
    );
    drop((after, late));
    let default = Tensor::zeros(8 << 20, DType::U8, &plain).unwrap();
    drop(default);
    plain.synchronize().unwrap();
    assert_eq!(
        simulator.counters().reserved_bytes,
        0,
        "CUDA's own pool gives back at each synchronization"
    );
}

/// Several threads open and drop handles; in the end the former pool is current again.
#[test]
fn opening_and_dropping_from_many_threads() {
    let gpu = gpu();
    let simulator = Simulator::of(gpu.ordinal);
    let pools = simulator.map(|simulator| simulator.counters().live_pools);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
                    assert!(bytes(&memory, MIB).is_ok());
                }
            });
        }
    });
    let after = simulator.map(|simulator| simulator.counters().live_pools);
    assert_eq!(pools, after);
}
