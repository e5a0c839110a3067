//! Other processes on the device, devices without measurements, and plans.

use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed, Plan, Reason};
use candle_headroom::error::{Cause, MemoryReading, Resource};
use candle_headroom::{Predictive, ResourceExhausted};

/// A device without a limit, on which another process takes memory and gives it back.
#[test]
fn it_makes_room_for_a_neighbour_and_grows_back() {
    let mut policy = Predictive::default();
    let mut step = |neighbour: u64, is_told: bool| {
        let (mut done, mut failures, mut largest) = (0, 0, 0);
        policy.begin(&Extent::new(256, 256));
        while done < 256 {
            let mut now = MemoryReading::default();
            (now.in_use, now.reserved) = (Some(200), Some(200));
            now.free = is_told.then_some(3800 - neighbour);
            policy.prepare(&now);
            let size = policy.size(256 - done);
            let need = 100 + 10 * size as u64;
            if need > 3800 - neighbour {
                now.free = Some(3800 - neighbour);
                let cause = Cause::Neighbour;
                let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, cause);
                exhausted.bytes = now;
                policy.failed(&Failed::new(size, &exhausted).passing(true));
                failures += 1;
                continue;
            }
            let mut completed = Completed::new(size);
            (completed.before, completed.peak) = (Some(200), Some(200 + need));
            policy.succeeded(&completed);
            largest = largest.max(size);
            done += size;
        }
        (largest, failures)
    };
    step(0, true);
    assert_eq!(step(0, true), (256, 0));
    assert_eq!(step(2000, true), (128, 0), "seen before it is hit");
    assert_eq!(
        step(0, true),
        (256, 0),
        "gone, and nothing is held against it"
    );
    let (largest, failures) = step(2000, false);
    assert_eq!(failures, 1, "hit in the middle of a batch");
    assert!(largest >= 86);
    assert_eq!(step(0, true), (256, 0));
}

#[test]
fn without_measurements_it_halves_and_grows_back() {
    let mut policy = Predictive::default();
    let mut step = |room: usize| {
        let (mut done, mut failures, mut sizes) = (0, 0, Vec::new());
        policy.begin(&Extent::new(64, 64));
        while done < 64 {
            let size = policy.size(64 - done);
            if size > room {
                let cause = Cause::Unknown;
                let exhausted = ResourceExhausted::new(Resource::DeviceMemory, cause);
                policy.failed(&Failed::new(size, &exhausted));
                failures += 1;
                continue;
            }
            policy.succeeded(&Completed::new(size));
            sizes.push(size);
            done += size;
        }
        (sizes, failures)
    };
    assert_eq!(step(20), (vec![16; 4], 2));
    // More room is looked for every 8 batches, each time by the batch in 3 parts.
    let failures: usize = (0..200).map(|_| step(20).1).sum();
    assert!(failures <= 25, "{failures}");
    let steps = (0..600).take_while(|_| step(64).0 != [64]).count();
    assert!(steps <= 10, "{steps}");
}

/// A policy outside the crate can explain itself, and a plan can be kept as JSON.
#[test]
fn plans_can_be_made_outside_the_crate() {
    let mut plan = Plan::new(Reason::Room);
    (plan.base, plan.each) = (Some(100), Some(10));
    (plan.fits, plan.using) = (Some(40), Some(32));
    assert_eq!(plan.room, None);
    let shown = "base 100 B, 10 B a sample, room for 40, using 32: as much as fits";
    assert_eq!(plan.to_string(), shown);
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
}
