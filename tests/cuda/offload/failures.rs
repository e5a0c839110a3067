//! Failures at every call: an error, nothing leaks, and the same work succeeds afterwards.

use candle_core::Device;
use candle_headroom::DeviceMemory;
use candle_headroom::nn::Offload;

use super::{Model, differing, held};
use crate::gpu::{MIB, simulated};
use crate::points::Points;
use crate::simulator::Simulator;

const ORDINAL: usize = 7;
/// A region whose input moves, and others before and after it.
const BLOCKS: usize = 3;
const TOKENS: usize = 4;
const OUT_OF_MEMORY: u32 = 2;
const ECC: u32 = 214;
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;

fn forget_stored(device: &Device) {
    let Device::Cuda(device) = device else {
        panic!("a CUDA device")
    };
    device.cuda_stream().context().check_err().ok();
}

#[test]
fn the_device_is_lost_at_every_call() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let (mut errors, mut points) = (0, 0);
    for late in [false, true] {
        simulator.set_late(late);
        for nth in Points::chosen().of(u64::MAX) {
            let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
            let model = Model::of(BLOCKS, TOKENS, memory.device()).unwrap();
            let before = held(simulator);
            simulator.fault_at_call(nth, ECC);
            let offload = Offload::new(64 * MIB);
            let outcome = model.offloaded(&offload);
            let is_lost = simulator.counters().lost_context != 0;
            drop(offload);
            simulator.disarm();
            simulator.clear_fault();
            assert_eq!(held(simulator), before, "at {nth}");
            forget_stored(memory.device());
            errors += u64::from(outcome.is_err());
            if !is_lost {
                outcome.unwrap();
                break;
            }
            points += 1;
        }
    }
    simulator.set_late(false);
    assert!(errors > points / 2 && points > 0, "{errors} of {points}");
    println!("figure: offload/fault_points_tested = {points} points");
}

/// Memory, events, pinned memory, copies and launches that fail.
#[test]
fn the_same_work_succeeds_after_a_failure() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let model = Model::of(BLOCKS, TOKENS, memory.device()).unwrap();
    let expected = model.values(&model.loss().unwrap()).unwrap();
    simulator.reset_counters();
    let before = held(simulator);
    let first = Offload::new(64 * MIB);
    let pass = {
        model.offloaded(&first).unwrap();
        simulator.counters()
    };
    drop(first);
    let work = pass.launches + pass.copies + pass.library_calls;
    let fail_work = |status| move |simulator: Simulator, nth| simulator.fail_work(nth, 1, status);
    type Fail = Box<dyn Fn(Simulator, u64)>;
    // How, at how many points, and whether the pass then fails.
    let ways: [(Fail, u64, bool); 6] = [
        (
            Box::new(|it, nth| it.fail_allocation(nth, 1)),
            pass.allocations,
            true,
        ),
        (
            Box::new(|it, nth| it.fail_allocation(nth, 2)),
            pass.allocations,
            true,
        ),
        (
            Box::new(|it, nth| it.fail_host_allocation(nth, 1)),
            4,
            false,
        ),
        (Box::new(|it, nth| it.fail_events(nth, 1)), 4, false),
        (Box::new(fail_work(UNKNOWN)), work, true),
        (Box::new(fail_work(OUT_OF_MEMORY)), work, true),
    ];
    let mut failures = 0;
    for (fail, points, is_error) in ways {
        for nth in Points::chosen().of(points) {
            let offload = Offload::new(64 * MIB);
            fail(simulator, nth);
            let outcome = model.offloaded(&offload);
            simulator.disarm();
            match outcome {
                Ok(found) => assert_eq!(differing(&found, &expected), 0),
                Err(error) => {
                    assert!(is_error, "{error}");
                    failures += 1;
                }
            }
            forget_stored(memory.device());
            let again = model.offloaded(&offload).unwrap();
            assert_eq!(differing(&again, &expected), 0);
            drop(offload);
            assert_eq!(held(simulator), before, "at {nth}");
        }
    }
    assert!(failures > 10, "{failures}");
    assert_eq!(simulator.counters().hazards, 0);
}
