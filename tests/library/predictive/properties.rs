//! Properties that hold on every device.

use candle_headroom::Predictive;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::{changes, failures, run};
use crate::curves::{Curve, Device};
use crate::steps::Step;

/// Steps of each shape with the same room.
const STEPS: usize = 33;
/// How often the size falls in those, after the first ten. Where hardly any room is
/// left it may go up by little at a time.
const MOST_FALLS: usize = 2;
/// How often it rises in those, besides once for each fall.
const MOST_RISES: usize = 6;
/// In all: with three rooms, up to three lengths and thousands of micro-batches.
const MOST_FAILURES: usize = 24;
/// Of a room in which less than this is left beside the base, more than one sample is tried late, after 128.
const LEFT: f64 = 1. / 16.;

fn rooms() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let room = prop_oneof![2usize..40, 40usize..700];
    [room.clone(), room.clone(), room].prop_map(|[a, b, c]| vec![(0, a), (1, b), (2, c)])
}

proptest! {
    // The bounds are measured, not proven, so the cases are the same in each run.
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 64, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(192) })]

    /// It settles, stays until the room changes, and seldom fails, whatever the device does.
    #[test]
    fn it_never_oscillates(
        batch in prop_oneof![1usize..64, 64usize..2048],
        base in prop_oneof![0f64..200., 200f64..600.],
        flat in prop_oneof![Just(0f64), 0f64..0.5],
        once in 0f64..100.,
        noise in prop_oneof![Just(0f64), 0f64..0.03],
        rounding in prop_oneof![Just(0f64), 1f64..8.],
        workspace in prop_oneof![Just(None), (2usize..400, 1f64..60.).prop_map(Some)],
        lengths in prop_oneof![Just(vec![1.]), Just(vec![1., 1.7, 0.6])],
        rooms in rooms(),
        seed in any::<u64>(),
    ) {
        let shapes = lengths.len();
        let least = rooms.iter().map(|(_, room)| *room).min().unwrap_or(0);
        let rooms = rooms.into_iter().map(|(third, room)| (third * STEPS * shapes, room)).collect();
        let curve = Curve {
            name: "random",
            batch,
            base,
            flat: flat * least as f64,
            once,
            noise,
            rounding,
            workspace,
            rooms,
            lengths,
            is_blind: false,
        };
        let mut device = Device::new(&curve, seed);
        let steps = run(&mut Predictive::default(), &mut device, 3 * STEPS * shapes);
        for shape in 0..shapes {
            let of_shape: Vec<_> = steps.iter().skip(shape).step_by(shapes).cloned().collect();
            for stretch in of_shape.chunks(STEPS) {
                let largest: Vec<_> = stretch.iter().map(Step::largest).collect();
                let pairs = largest[10..].windows(2);
                // A size that was never seen runs as it is: a sample or so more. And where the largest size is off by one
                // sample, even parts may be off by another.
                let changed = pairs.filter(|pair| pair[1].abs_diff(pair[0]) > pair[0] / 64 + 1);
                let falls = changed.clone().filter(|pair| pair[1] < pair[0]).count();
                // After a failure the way back up goes half by half.
                let most_falls = MOST_FALLS + 3 * failures(stretch);
                prop_assert!(falls <= most_falls, "{falls} falls {largest:?}");
                let rises = changed.count() - falls;
                prop_assert!(rises <= falls + MOST_RISES, "{rises} rises {largest:?}");
            }
        }
        prop_assert!(failures(&steps) <= MOST_FAILURES, "{} failures", failures(&steps));
        for step in &steps {
            prop_assert_eq!(step.sizes.iter().sum::<usize>(), batch);
        }
    }

    /// On a straight line it never fails and ends where it should, however much of it is base. Only where there is no room
    /// for two samples it has to try that.
    #[test]
    fn a_straight_line_costs_no_failure(
        batch in 1usize..2048,
        share in prop_oneof![0f64..2., 2f64..12.],
        room in 4usize..700,
    ) {
        let base = share * room as f64;
        let curve = Curve { base, ..Curve::affine(batch, room) };
        let mut device = Device::new(&curve, 1);
        let steps = run(&mut Predictive::default(), &mut device, 60);
        prop_assert_eq!(failures(&steps), 0);
        prop_assert!(changes(&steps[40..]) == 0, "{:?}", steps.iter().map(Step::largest).collect::<Vec<_>>());
        let all = room as f64 + base;
        // A hundredth of the room is left free, and the last hundredths are not worth a change.
        let least = (0.99 * all - base) * 0.97 - 1. - LEFT * all;
        let parts = batch.div_ceil((least as usize).max(1));
        prop_assert!(steps[59].sizes.len() <= parts, "{} of {parts}", steps[59].sizes.len());
    }
}
