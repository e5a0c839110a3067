//! Thresholds ring when a value crosses them and when it has recovered, however it goes up and down.

use std::sync::{Arc, Mutex};

use candle_headroom::monitor::{Crossing, HeldDown};

use super::*;

/// A ring: of which threshold, when, and whether it was crossed or recovered.
type Ring = (Threshold, Duration, bool);

/// Two waves from 30 to 90 °C with noise of a degree, in which the GPU is lost; clocks that go down and up; a small share of memory.
#[test]
fn each_ring_has_one_recovery() {
    const GPU: u32 = 7;
    let hot = Threshold::Temperature(80);
    let small = Threshold::MemoryShare(0.05);
    let simulator = Simulator::load();
    let rings = Arc::new(Mutex::new(Vec::<Ring>::new()));
    let watched = [hot, small, Threshold::HeldDown];
    let builder = watched.into_iter().fold(quick(), |builder, threshold| {
        let rings = Arc::clone(&rings);
        builder.threshold(threshold, move |crossing: &Crossing<'_>| {
            if crossing.sample.source == GPU as usize {
                let ring = (*crossing.threshold, crossing.sample.at, crossing.is_over);
                rings.lock().unwrap().push(ring);
            }
        })
    });
    let monitor = builder.start().unwrap();
    let of = |threshold: Threshold| -> Vec<_> {
        let rings = rings.lock().unwrap();
        let of = rings.iter().filter(|ring| ring.0 == threshold);
        of.map(|(_, at, is_over)| (*at, *is_over)).collect()
    };
    let ways = |threshold| -> Vec<_> { of(threshold).iter().map(|ring| ring.1).collect() };
    let until = |is_it: &dyn Fn(&Sample) -> bool| until(&monitor, GPU as usize, is_it);

    let hold = |bits: u64| {
        simulator.set(GPU, "nvmlDeviceGetCurrentClocksEventReasons", bits);
        until(&|sample| sample.held_down == Some(HeldDown::from_bits(bits)))
    };
    for _ in 0..20 {
        hold(0x40);
        hold(0);
    }
    let last_down = of(Threshold::HeldDown)[0].0;

    let total = until(&|sample| sample.total.is_some()).total.unwrap();
    for percent in [3, 5, 3, 2, 5] {
        let bytes = (total * percent).div_ceil(100);
        simulator.neighbour(GPU, bytes);
        until(&|sample| sample.others == Some(bytes));
    }
    assert_eq!(ways(small), [true, false, true]);

    for _ in 0..2 {
        let up = (30..90u32).step_by(5).map(u64::from);
        for celsius in up.clone().chain(up.rev()) {
            for noise in [1, 0] {
                let celsius = celsius + noise;
                simulator.set(GPU, "nvmlDeviceGetTemperature", celsius);
                until(&|sample| sample.temperature == Some(celsius));
            }
            if celsius == 85 {
                simulator.lose(GPU, true);
                until(&|sample| sample.health == Health::Lost);
                simulator.lose(GPU, false);
                until(&|sample| sample.temperature.is_some());
            }
        }
    }
    assert_eq!(ways(hot), [true, false, true, false]);

    let recovered = last_down + Duration::from_secs(5);
    until(&|sample| sample.at > recovered + Duration::from_secs(1));
    let held = of(Threshold::HeldDown);
    assert_eq!(ways(Threshold::HeldDown), [true, false]);
    assert!(held[1].0 >= recovered, "{held:?}");
}
