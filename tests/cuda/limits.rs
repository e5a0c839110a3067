//! Growth and limits, together and apart.

use candle_headroom::memory::{DEVICE_AUTO_FRACTION, Enforcement, Growth, Limit};
use candle_headroom::{DeviceMemory, ErrorExt};

use crate::gpu::{MIB, bytes, fresh, gpu, simulated};
use crate::simulator::Simulator;

/// Upper bound of the bytes that an empty pool holds.
const LITTLE: u64 = 32 * MIB;

const LIMIT: u64 = 256 * MIB;

#[test]
fn every_growth_with_every_limit() {
    let gpu = gpu();
    let total = DeviceMemory::cuda(gpu.ordinal)
        .open()
        .unwrap()
        .stats()
        .total
        .unwrap();
    for growth in [Growth::OnDemand, Growth::Preallocate, Growth::ReturnAtSync] {
        for limit in [
            Limit::from(LIMIT),
            Limit::Fraction(LIMIT as f64 / total as f64),
            Limit::Auto,
            Limit::Unlimited,
        ] {
            let is_large = matches!(limit, Limit::Auto | Limit::Unlimited);
            if is_large && growth == Growth::Preallocate && Simulator::of(0).is_none() {
                // It would take 0.9 of a real GPU, which may not be ours alone.
                continue;
            }
            let builder = DeviceMemory::cuda(gpu.ordinal).growth(growth).limit(limit);
            let memory = builder.open().unwrap();
            let name = format!("{growth:?}, {limit:?}");
            let at_open = memory.stats();
            match limit {
                Limit::Unlimited => assert_eq!(memory.limit(), None, "{name}"),
                Limit::Auto => {
                    let usable = (at_open.free.unwrap() + at_open.reserved.unwrap()) as f64;
                    let share = memory.limit().unwrap() as f64 / usable;
                    assert!(
                        (share / DEVICE_AUTO_FRACTION - 1.).abs() < 0.1,
                        "{name}: {share}"
                    );
                }
                _ => assert!(memory.limit().unwrap().abs_diff(LIMIT) <= 1, "{name}"),
            }
            if growth == Growth::Preallocate {
                let taken = memory.limit().unwrap_or(at_open.free.unwrap());
                let step = 2 * MIB; // a GPU maps no less
                assert!(
                    at_open.reserved.unwrap() + step > taken,
                    "{name}: {at_open:?}"
                );
            } else {
                assert!(at_open.reserved.unwrap() <= LITTLE, "{name}: {at_open:?}");
            }
            if !is_large {
                check_limit(&memory, &name);
            }
            drop(bytes(&memory, 64 * MIB).unwrap());
            memory.device().synchronize().unwrap();
            let kept = memory.stats().fragmentation().unwrap();
            match growth {
                Growth::ReturnAtSync => assert!(kept < 64 * MIB, "{name}: {kept}"),
                _ => assert!(kept >= 64 * MIB, "{name}: {kept}"),
            }
        }
    }
}

/// A hard limit is never exceeded; a soft one lets allocations through.
fn check_limit(memory: &DeviceMemory, name: &str) {
    let limit = memory.limit().unwrap();
    let enforcement = memory.stats().enforcement;
    let held: Vec<_> = (0..3).map(|_| bytes(memory, limit / 4).unwrap()).collect();
    let over = bytes(memory, limit / 2);
    match enforcement {
        Some(Enforcement::Hard) => {
            let error = over.unwrap_err();
            assert!(error.resource_exhausted().is_some(), "{name}: {error}");
        }
        _ => assert!(over.is_ok(), "{name}"),
    }
    let peak = memory.stats().peak_reserved.unwrap();
    if enforcement == Some(Enforcement::Hard) {
        assert!(peak <= limit, "{name}: {peak}");
    }
    drop(held);
}

#[test]
fn a_driver_that_does_not_enforce_a_limit_is_detected() {
    let Some((gpu, simulator)) = simulated(3) else {
        return;
    };
    let open = || DeviceMemory::cuda(gpu.ordinal).limit(LIMIT).open().unwrap();
    let enforcement = |memory: &DeviceMemory| memory.stats().enforcement.unwrap();
    assert_eq!(enforcement(&open()), Enforcement::Hard);

    simulator.set_honours_max_size(false);
    let memory = open();
    assert_eq!(enforcement(&memory), Enforcement::Soft);
    check_limit(&memory, "ignored");
    drop(memory);
    simulator.set_honours_max_size(true);

    Simulator::set_driver_version(12010); // pools have no maximum size yet
    let memory = open();
    assert_eq!(enforcement(&memory), Enforcement::Soft);
    check_limit(&memory, "too old");
    assert!(memory.stats().to_string().contains("soft limit 256.0 MiB"));
    memory.set_limit(2 * LIMIT).unwrap();
    assert_eq!(memory.limit(), Some(2 * LIMIT));
    drop(memory);
    Simulator::set_driver_version(13000);
}

/// A driver that takes 32 MiB for a first byte, as that of an H200: a limit between two multiples is not rounded up by it.
#[test]
fn a_pool_that_takes_much_at_a_time_stays_within_its_limit() {
    let Some((gpu, simulator)) = fresh(3, 1024 * MIB) else {
        return;
    };
    simulator.set_segment(32 * MIB);
    let open = |limit| DeviceMemory::cuda(gpu.ordinal).limit(limit).open();
    let error = open(20 * MIB).unwrap_err();
    let says =
        "at least 32.0 MiB, for what the pool cannot give back and the 32.0 MiB that it takes";
    assert!(error.to_string().contains(says), "{error}");

    let memory = open(100 * MIB).unwrap();
    assert_eq!(memory.stats().enforcement, Some(Enforcement::Hard));
    let fill = || {
        (0..200)
            .map_while(|_| bytes(&memory, MIB).ok())
            .collect::<Vec<_>>()
    };
    let held = fill();
    assert_eq!(held.len(), 96);
    assert!(memory.stats().peak_reserved.unwrap() <= 100 * MIB);
    assert!(
        memory.set_limit(120 * MIB).unwrap_err().is_memory(),
        "24 are left"
    );
    memory.set_limit(150 * MIB).unwrap();
    assert_eq!(fill().len(), 32);
    assert!(memory.stats().peak_reserved.unwrap() <= 150 * MIB);
    drop((held, memory));
    simulator.set_segment(2 * MIB);
}

/// What cannot be tried is not relied on, and is no reason to fail.
#[test]
fn a_driver_that_refuses_the_trial_has_a_soft_limit() {
    let Some((gpu, simulator)) = fresh(3, 1024 * MIB) else {
        return;
    };
    for nth in 1..=2 {
        simulator.fail_pools(nth, 1);
        let memory = DeviceMemory::cuda(gpu.ordinal).limit(LIMIT).open().unwrap();
        assert_eq!(memory.stats().enforcement, Some(Enforcement::Soft));
        check_limit(&memory, "not tried");
    }
    simulator.fail_pools(3, 1);
    let error = DeviceMemory::cuda(gpu.ordinal).open().unwrap_err();
    assert!(
        error.to_string().contains("CUDA_ERROR_NOT_SUPPORTED"),
        "{error}"
    );
    drop(DeviceMemory::cuda(gpu.ordinal).open().unwrap());
}

#[test]
fn a_hard_limit_moves_with_tensors_that_live() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).limit(LIMIT).open().unwrap();
    if memory.stats().enforcement != Some(Enforcement::Hard) {
        eprintln!("skipped: this driver's limit is soft");
        return;
    }
    let kept = bytes(&memory, 64 * MIB).unwrap();
    drop(bytes(&memory, 128 * MIB).unwrap());
    assert!(bytes(&memory, 256 * MIB).is_err());

    memory.set_limit(2 * LIMIT).unwrap();
    let more = bytes(&memory, 256 * MIB).unwrap();
    assert_eq!(memory.in_use(), Some(320 * MIB));
    assert!(memory.stats().peak.unwrap() >= 320 * MIB);
    assert!(bytes(&memory, 256 * MIB).is_err());
    drop(more);

    memory.set_limit(LIMIT / 2).unwrap();
    assert!(bytes(&memory, 128 * MIB).is_err());
    assert!(bytes(&memory, 32 * MIB).is_ok());
    assert_eq!(memory.in_use(), Some(64 * MIB));

    memory.set_limit(Limit::Unlimited).unwrap();
    assert!(bytes(&memory, 2 * LIMIT).is_ok());
    assert_eq!(memory.stats().enforcement, None);
    drop(kept);
    assert_eq!(memory.in_use(), Some(0));
}

/// What a function that is handed a device finds.
#[test]
fn the_open_memory_is_found_by_its_device() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).limit(LIMIT).open().unwrap();
    let device = memory.device().clone();
    let found = DeviceMemory::of(&device).unwrap();
    assert_eq!(
        (found.limit(), found.in_use()),
        (Some(LIMIT), memory.in_use())
    );
    drop((memory, found));
    assert!(DeviceMemory::of(&device).is_none());
}
