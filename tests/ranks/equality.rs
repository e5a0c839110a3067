//! The update of all ranks is that of one process with the whole batch.

use std::ops::Range;

use candle_core::{DType, Device};
use candle_headroom::batch::Fixed;
use candle_headroom::distributed::Group;
use candle_headroom::optim::LossScale;
use candle_headroom::{AccumulatingTrainer, AdamW, AdaptiveTrainer, Loss, Sgd};
use candle_nn::{Module, VarBuilder, VarMap, batch_norm, linear};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::launch::together;
use crate::model::{Model, cut, data};

/// A random division of `samples` among the ranks, the same on all; parts may be empty.
fn divide(samples: usize, ranks: usize, generator: &mut StdRng) -> Vec<Range<usize>> {
    let mut cuts: Vec<_> = (1..ranks)
        .map(|_| generator.random_range(0..=samples))
        .collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([samples]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// The distance between the gradient of all ranks and that of one process with the whole batch, relative to the gradient's length.
fn error(group: &Group, dtype: DType, widths: &[usize], seed: u64) -> f64 {
    // So large that the rounding of parameters does not hide the gradients.
    const RATE: f64 = 1e4;
    let alone = Model::new(widths, dtype, seed);
    let ours = Model::new(widths, dtype, seed + group.rank() as u64); // rank 0's are copied
    let sgd = |model: &Model| {
        Sgd::builder(&model.varmap)
            .learning_rate(RATE)
            .build()
            .expect("an optimizer")
    };
    let mut one = AdaptiveTrainer::builder(sgd(&alone))
        .build()
        .expect("a trainer");
    let all = AdaptiveTrainer::builder(sgd(&ours))
        .group(group)
        .policy(Fixed::new(3).expect("a size"));
    let mut all = all.build().expect("a trainer");
    assert_eq!(ours.values(), alone.values(), "rank 0's parameters");
    let before = alone.values();
    let mut generator = StdRng::seed_from_u64(seed);
    let samples = generator.random_range(1..20);
    let batch = data(samples, (widths[0], widths[widths.len() - 1]), dtype, seed);
    let parts = divide(samples, group.size(), &mut generator);
    let own = cut(&batch, parts[group.rank()].clone());
    let expected = one
        .step(&batch, |(x, y), _| alone.loss(&x, &y))
        .expect("a step");
    let report = all
        .step(&own, |(x, y), _| ours.loss(&x, &y))
        .expect("a step of all");
    let exchange = report.exchange.as_ref().expect("an exchange");
    let shares: Vec<_> = exchange.ranks.iter().map(|work| work.samples).collect();
    assert_eq!(shares, parts.iter().map(Range::len).collect::<Vec<_>>());
    let (expected, loss) = (
        expected.loss.read().expect("a loss"),
        report.loss.read().expect("a loss"),
    );
    assert!(
        (loss - expected).abs() <= 1e-6 * expected.abs(),
        "{loss}, alone {expected}"
    );
    let (ours, alone) = (ours.values(), alone.values());
    let distance = |from: &[f64], to: &[f64]| {
        let squares = from.iter().zip(to).map(|(a, b)| (a - b).powi(2));
        squares.sum::<f64>().sqrt()
    };
    distance(&alone, &ours) / distance(&alone, &before)
}

/// The number of ranks whose parameters differ from rank 0's after several updates by an optimizer with momentum.
fn differing(group: &Group, dtype: DType) -> usize {
    let model = Model::new(&[40, 30, 3], dtype, 5);
    let adam = AdamW::builder(&model.varmap)
        .learning_rate(0.01)
        .build()
        .expect("an optimizer");
    let mut trainer = AdaptiveTrainer::builder(adam)
        .group(group)
        .build()
        .expect("a trainer");
    let mut generator = StdRng::seed_from_u64(1);
    for step in 0..20 {
        let batch = data(9, (40, 3), dtype, step);
        let parts = divide(9, group.size(), &mut generator);
        let own = cut(&batch, parts[group.rank()].clone());
        trainer
            .step(&own, |(x, y), _| model.loss(&x, &y))
            .expect("a step");
    }
    let bits: Vec<u8> = model
        .values()
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let all = group.gather(&bits).expect("the ranks' parameters");
    all.iter().filter(|theirs| **theirs != all[0]).count()
}

fn check(ranks: usize) {
    together(ranks, |group| {
        for (dtype, name, most) in [(DType::F32, "f32", 1e-6), (DType::F64, "f64", 1e-13)] {
            let errors = (0..24).map(|seed| {
                let widths = [&[5, 7, 3][..], &[300, 2], &[1, 64, 64, 1]][seed as usize % 3];
                error(group, dtype, widths, seed)
            });
            let worst = errors.fold(0., f64::max);
            println!("figure: distributed/gradient_error_vs_one_process = {worst:e} ({name})");
            assert!(worst <= most, "{worst} for {name}");
            let differing = differing(group, dtype);
            println!(
                "figure: distributed/parameters_differing_between_ranks = {differing} ranks ({name})"
            );
            assert_eq!(differing, 0);
        }
    });
}

#[test]
fn two_ranks_with_uneven_and_empty_shares() {
    check(2);
}

#[test]
fn three_ranks_with_uneven_and_empty_shares() {
    check(3);
}

#[test]
fn four_ranks_with_uneven_and_empty_shares() {
    check(4);
}

#[test]
fn sums_over_tokens_are_weighted_by_their_number() {
    together(2, |group| {
        let widths = [4, 6, 2];
        let (alone, ours) = (
            Model::new(&widths, DType::F64, 1),
            Model::new(&widths, DType::F64, 1),
        );
        let sgd = |model: &Model| {
            Sgd::builder(&model.varmap)
                .learning_rate(0.1)
                .build()
                .expect("an optimizer")
        };
        let mut one = AdaptiveTrainer::builder(sgd(&alone))
            .build()
            .expect("a trainer");
        let mut all = AccumulatingTrainer::builder(sgd(&ours), 3)
            .group(group)
            .build()
            .expect("a trainer");
        let batch = data(24, (4, 2), DType::F64, 9);
        let loss = |model: &Model, x: &_, y: &_, tokens: f64| {
            Ok(Loss::sum((model.loss(x, y)? * tokens)?, tokens))
        };
        // Rank 1's samples have more tokens, in three batches of each rank.
        let mut reports = Vec::new();
        for part in 0..3 {
            let start = (group.rank() * 3 + part) * 4;
            let own = cut(&batch, start..start + 4);
            let tokens = 5. * (1 + group.rank()) as f64;
            let report = all
                .step(&own, |(x, y), _| loss(&ours, &x, &y, tokens))
                .expect("a step");
            reports.extend(report);
        }
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].loss.weight(), 3. * 5. + 3. * 10.);
        for part in 0..6 {
            let tokens = if part < 3 { 5. } else { 10. };
            let own = cut(&batch, part * 4..part * 4 + 4);
            one.accumulate(&own, |(x, y), _| loss(&alone, &x, &y, tokens))
                .expect("a batch");
        }
        one.update().expect("an update").expect("samples");
        let pairs = alone.values().into_iter().zip(ours.values());
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-14));
    });
}

/// Each rank's batches have other statistics; after an update all ranks have the same, so that any of them can be saved.
#[test]
fn statistics_of_batch_norm_are_averaged() {
    together(2, |group| {
        let varmap = VarMap::new();
        let builder = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let norm = batch_norm(3, 1e-5, builder.pp("norm")).expect("a layer");
        let head = linear(3, 1, builder.pp("head")).expect("a layer");
        let sgd = Sgd::builder(&varmap)
            .learning_rate(0.01)
            .build()
            .expect("an optimizer");
        let buffers = [norm.running_mean(), norm.running_var()];
        let trainer = AdaptiveTrainer::builder(sgd)
            .group(group)
            .buffers(buffers)
            .compare_every(1);
        let mut trainer = trainer.build().expect("a trainer");
        for step in 0..3 {
            let (x, y) = data(8, (3, 1), DType::F32, step * 2 + group.rank() as u64);
            let x = (x + group.rank() as f64).expect("an input");
            let step = trainer.step(&(x, y), |(x, y), _| {
                (head.forward(&norm.forward_train(&x)?)? - y)?
                    .sqr()?
                    .mean_all()
            });
            step.expect("a step");
            let mean = norm.running_mean().to_vec1::<f32>().expect("the mean");
            let bits: Vec<u8> = mean.iter().flat_map(|value| value.to_le_bytes()).collect();
            let all = group.gather(&bits).expect("the ranks' means");
            assert_eq!(all[0], all[1]);
        }
        // Rank 0's mean is about 0, rank 1's about 1: after three steps with a momentum of 0.1 about 0.27 of 1 / 2.
        let mean = norm
            .running_mean()
            .mean_all()
            .and_then(|mean| mean.to_scalar::<f32>())
            .expect("the mean");
        assert!((0.05..0.25).contains(&mean), "{mean}");
    });
}

/// A rank without samples has scaled no loss, and applies the update of the others.
#[test]
fn a_loss_scale_and_an_empty_share() {
    together(3, |group| {
        for is_sharded in [false, true] {
            let model = Model::new(&[6, 5, 2], DType::F16, 1);
            let adam = AdamW::builder(&model.varmap)
                .learning_rate(0.01)
                .loss_scale(LossScale::dynamic());
            let adam = if is_sharded { adam.sharded() } else { adam };
            let trainer =
                AdaptiveTrainer::builder(adam.build().expect("an optimizer")).group(group);
            let mut trainer = trainer.build().expect("a trainer");
            // The first steps overflow, until the scale has fallen.
            let mut updated = Vec::new();
            for step in 0..16 {
                let batch = data(2, (6, 2), DType::F16, step);
                let own = cut(&batch, group.share(2));
                let report = trainer
                    .step(&own, |(x, y), _| model.loss(&x, &y))
                    .expect("a step");
                assert_eq!(report.samples, group.share(2).len());
                updated.push(report.updated);
            }
            assert!(updated.ends_with(&[Some(true); 3]), "{updated:?}");
        }
    });
}
