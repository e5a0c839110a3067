//! Ranks that share the work on the device: the bits of one that does it alone, and of the CPU.

#[path = "../../support/sharded.rs"]
mod ranks;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device};
use candle_headroom::optim::{
    Algorithm, Commit, FusedBuilder, LossScale, Moments, ParamsAdam, ParamsAdamW, ParamsLion,
    ParamsSgd,
};

use super::device;
use crate::gpu::simulated;
use ranks::{Options, Ranks, SHAPES, contents, cut, elements, unspoiled};

/// Elements of a rank in turn, and those at a multiple of which cuts are.
const CUTS: [(usize, usize, usize); 3] = [(2, 512, 256), (3, 256, 256), (3, 1001, 1)];

/// Updates, in which an overflow is skipped if a survey is asked for.
fn same<A: Algorithm>(
    (count, share, unit): (usize, usize, usize),
    dtype: DType,
    params: &A,
    options: Options<'_, A>,
) {
    let (_gpu, device) = device();
    let [on_device, on_host] = [device, Device::Cpu].map(|device| {
        let pieces = cut(&SHAPES, count, share, unit);
        let mut ranks = Ranks::new(&device, &SHAPES, dtype, pieces, params, options);
        ranks.run(0..4, &unspoiled);
        for frozen in [true, false] {
            for one in ranks.ranks.iter_mut().chain([&mut ranks.whole]) {
                one.set_frozen(2, frozen);
            }
            ranks.run(4..6, &unspoiled);
        }
        let state = contents(&ranks.merged());
        assert_eq!(state, contents(&ranks.whole.optimizer.state().unwrap()));
        (ranks.whole.bits(), state)
    });
    assert!(on_device == on_host, "{params:?} {dtype:?} {count}");
}

/// Each form of state, and adjustments that need all ranks' sums.
fn each_form<A: Algorithm>(params: A) {
    for cut in CUTS {
        same(cut, DType::F32, &params, &|b| b.clip_norm(0.5));
        same(cut, DType::BF16, &params, &|b| b.master_weights());
        same(cut, DType::BF16, &params, &|b| {
            b.stochastic_rounding().moments(DType::BF16)
        });
    }
    same(CUTS[2], DType::F64, &params, &|b| b);
    for cut in [CUTS[0], CUTS[1]] {
        same(cut, DType::BF16, &params, &|b| {
            b.stochastic_rounding().moments(Moments::EightBit)
        });
    }
}

#[test]
fn adamw_has_the_bits_of_one() {
    each_form(ParamsAdamW {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn adam_has_the_bits_of_one() {
    each_form(ParamsAdam {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn lion_has_the_bits_of_one() {
    each_form(ParamsLion {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn sgd_has_the_bits_of_one() {
    for momentum in [0., 0.9] {
        each_form(ParamsSgd {
            lr: 0.05,
            momentum,
            dampening: 0.,
            weight_decay: 0.1,
            nesterov: momentum > 0.,
        });
    }
}

/// One rank's overflow is all ranks', and the device's scale that of the CPU.
#[test]
fn an_overflow_on_one_rank_is_all_ranks() {
    let (_gpu, device) = device();
    let scale = LossScale::dynamic().initial(1024.).interval(2);
    let options =
        |b: FusedBuilder<ParamsAdamW>| b.master_weights().loss_scale(scale).clip_norm(1e-3);
    let [on_device, on_host] = [device, Device::Cpu].map(|device| {
        let pieces = cut(&SHAPES, 3, 512, 256);
        let params = ParamsAdamW::default();
        let mut ranks = Ranks::new(&device, &SHAPES, DType::F16, pieces, &params, &options);
        ranks.run(0..6, &|step, index, values| {
            if (step, index) == (2, 2) || (step, index) == (3, 0) {
                values[700] = [f64::INFINITY, f64::NAN][step % 2];
            }
        });
        let progress = ranks.whole.optimizer.progress().unwrap();
        assert_eq!((progress.steps, progress.skipped), (4, 2));
        (ranks.whole.bits(), format!("{progress:?}"))
    });
    assert_eq!(on_device.1, on_host.1);
    assert!(on_device.0 == on_host.0);
}

/// Moments in host memory, also in odd places.
#[test]
fn moments_on_the_host() {
    let params = ParamsAdamW {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    };
    let on_host = |b: FusedBuilder<ParamsAdamW>| b.moments_on_host(0.6);
    for cut in CUTS {
        same(cut, DType::F32, &params, &|b| on_host(b).clip_norm(0.5));
        same(cut, DType::BF16, &params, &|b| on_host(b).master_weights());
    }
    same(CUTS[1], DType::F32, &params, &|b| {
        on_host(b).moments(Moments::EightBit)
    });
}

/// A rank that owns nothing counts steps, and another shard gives it something.
#[test]
fn other_shards() {
    let (_gpu, device) = device();
    let whole = SHAPES
        .iter()
        .enumerate()
        .map(|(i, shape)| (i, 0..elements(shape)));
    let pieces = vec![whole.collect(), vec![]];
    let options = |b: FusedBuilder<_>| {
        b.moments(Moments::EightBit)
            .moments_on_host(0.5)
            .clip_norm(1.)
    };
    let params = ParamsAdamW::default();
    let mut ranks = Ranks::new(&device, &SHAPES, DType::F32, pieces, &params, &options);
    ranks.run(0..2, &unspoiled);
    assert_eq!(ranks.ranks[1].optimizer.state_bytes(), 0);
    let state = ranks.merged();
    ranks.pieces = cut(&SHAPES, 2, 512, 256);
    for (index, (rank, pieces)) in ranks.ranks.iter_mut().zip(&ranks.pieces).enumerate() {
        let shard = rank.shard(pieces);
        // The first has all state, the other none.
        let state = (index == 1).then_some(&state);
        rank.optimizer.shard(&shard, state).unwrap();
    }
    ranks.run(2..4, &unspoiled);
    assert_eq!(
        contents(&ranks.merged()),
        contents(&ranks.whole.optimizer.state().unwrap())
    );
}

/// An error at any allocation, copy or launch, while an optimizer gets another shard and in an update, changes nothing.
#[test]
fn a_failure_changes_nothing() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let pieces = cut(&SHAPES, 2, 512, 256);
    let options = |b: FusedBuilder<_>| {
        let b = b.moments(Moments::EightBit).moments_on_host(0.3);
        b.clip_norm(1.)
    };
    let params = ParamsAdamW::default();
    let mut ranks = Ranks::new(&device, &SHAPES, DType::F32, pieces, &params, &options);
    ranks.run(0..2, &unspoiled);
    let (state, mut failures) = (ranks.merged(), 0);
    let owned = ranks.pieces[0].clone();
    let first = &mut ranks.ranks[0];
    let all = first.shard(&owned);
    let less = owned.iter().filter(|(index, _)| *index < 3).cloned();
    let less = first.shard(&less.collect());
    let orders: [&dyn Fn(u64); 2] = [&|nth| simulator.fail_allocation(nth, 1), &|nth| {
        simulator.fail_work(nth, 1, 2)
    }];
    for order in orders {
        for nth in 1.. {
            let before = contents(&first.optimizer.state().unwrap());
            let live = simulator.counters().live_bytes;
            let bytes = first.optimizer.state_bytes();
            order(nth);
            let outcome = first.optimizer.shard(&less, None);
            simulator.disarm();
            let Err(error) = outcome else {
                assert!(first.optimizer.state_bytes() < bytes);
                assert!(simulator.counters().live_bytes < live);
                first.optimizer.shard(&all, Some(&state)).unwrap();
                break;
            };
            assert!(error.resource_exhausted().is_some(), "{error}");
            assert_eq!(simulator.counters().live_bytes, live);
            assert_eq!(contents(&first.optimizer.state().unwrap()), before);
            failures += 1;
        }
    }
    assert!(failures > 20, "{failures}");

    let (mut failures, before) = (0, first.bits());
    let mut gradients = GradStore::default();
    for var in &first.vars {
        gradients.insert(var, var.ones_like().unwrap());
    }
    let told = first.optimizer.progress().unwrap();
    let mut measure = None;
    for nth in 1.. {
        simulator.fail_work(nth, 1, 2);
        let outcome = first.optimizer.measure(&gradients, &all);
        simulator.disarm();
        match outcome {
            Ok(sum) => {
                measure = sum;
                break;
            }
            Err(error) => assert!(error.resource_exhausted().is_some(), "{error}"),
        }
        failures += 1;
    }
    let owned: usize = owned.iter().map(|(_, range)| range.len()).sum();
    assert_eq!(measure, Some(owned as f64));
    for nth in 1.. {
        simulator.fail_work(nth, 1, 2);
        let outcome = first
            .optimizer
            .commit_measured(&gradients, measure.unwrap());
        simulator.disarm();
        if outcome.is_ok() {
            break;
        }
        assert_eq!(first.bits(), before);
        assert_eq!(first.optimizer.progress().unwrap(), told);
        failures += 1;
    }
    assert!(failures > 6, "{failures}");
    assert_ne!(first.bits(), before);
}
