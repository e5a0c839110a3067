//! Ranks that are not equally fast share batches by what they were measured to do.

use std::collections::BTreeMap;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::Fixed;
use candle_headroom::data::{Items, Loader};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;
use candle_headroom::{AdaptiveTrainer, Sgd};

use crate::launch::together;
use crate::model::Model;

const SAMPLES: u32 = 960;
const BATCH: usize = 24;

/// An epoch in which a sample takes rank 1 three times as long, with a loader that reads ahead. Returns this rank's part of the last batch, and
/// the model's values. Batches are divided by what is measured in so many updates.
fn epoch(group: &Group, measured: Option<usize>) -> (usize, Vec<f64>) {
    let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
        let rows = samples.len();
        Ok(Tensor::new(samples, &Device::Cpu)?
            .to_dtype(DType::F64)?
            .reshape((rows, 1))?)
    };
    let loader = Loader::builder(Items(Vec::from_iter(0..SAMPLES)), collate);
    let loader = loader.batch(BATCH).shuffle(1).group(group).ahead(3);
    let mut loader = loader.build().expect("a loader");
    let model = Model::new(&[1, 2], DType::F64, 1);
    let sgd = Sgd::builder(&model.varmap)
        .learning_rate(1e-3)
        .build()
        .expect("an optimizer");
    let mut trainer = AdaptiveTrainer::builder(sgd)
        .group(group)
        .policy(Fixed::new(1).expect("a size"));
    if let Some(updates) = measured {
        trainer = trainer.measured_shares(updates);
    }
    let mut trainer = trainer.build().expect("a trainer");
    let pause = Duration::from_millis(if group.rank() == 1 { 3 } else { 1 });
    let (mut seen, mut last) = (Vec::new(), 0);
    for batch in loader.by_ref() {
        let batch = batch.expect("a batch");
        let report = trainer.step(&batch, |x, micro| {
            std::thread::sleep(pause);
            if !micro.is_check() {
                let values = x.flatten_all()?.to_vec1::<f64>()?;
                seen.extend(values.iter().map(|value| *value as u32));
            }
            model.forward(&x)?.mean_all()
        });
        let report = report.expect("a step");
        last = report.samples;
        assert_eq!(
            report.exchange.map(|exchange| exchange.samples()),
            Some(BATCH)
        );
    }
    let seen = group.collect(Ok(seen)).expect("what each rank saw");
    let mut counts = BTreeMap::new();
    seen.iter()
        .for_each(|sample| *counts.entry(*sample).or_insert(0) += 1);
    assert_eq!(counts.len(), SAMPLES as usize);
    assert!(
        counts.values().all(|count| *count == 1),
        "a sample came twice"
    );
    (last, model.values())
}

#[test]
fn a_slow_rank_gets_fewer_samples_and_each_sample_comes_once() {
    together(2, |group| {
        // 3 : 1 is 18 : 6. Other work on the machine may hide it for an epoch, so there are three.
        let is_fair = (0..3).any(|_| {
            let (last, _) = epoch(group, Some(8));
            let parts = group.collect(Ok(vec![last])).expect("parts");
            assert_eq!(parts.iter().sum::<usize>(), BATCH);
            (15..=21).contains(&parts[0])
        });
        assert!(is_fair, "rank 1 has as many samples as rank 0");
    });
}

/// A resumed run has the parts from its first batch on, and does not measure again.
#[test]
fn a_resumed_run_goes_on_with_its_parts() {
    together(2, |group| {
        let build = |measured: Option<usize>| {
            let collate = |samples: Vec<f64>| -> Result<Tensor, BoxedError> {
                Ok(Tensor::new(samples, &Device::Cpu)?.unsqueeze(1)?)
            };
            let loader = Loader::builder(Items(vec![1.; 24]), collate);
            let loader = loader.batch(24).endless().group(group).build();
            let model = Model::new(&[1, 2], DType::F64, 1);
            let sgd = Sgd::builder(&model.varmap).build().expect("an optimizer");
            let mut trainer = AdaptiveTrainer::builder(sgd)
                .group(group)
                .policy(Fixed::new(24).expect("a size"));
            if let Some(updates) = measured {
                trainer = trainer.measured_shares(updates);
            }
            let trainer = trainer.build().expect("a trainer");
            (loader.expect("a loader"), model, trainer)
        };
        // So long that other work on the machine cannot hide it. A resumed run's ranks are equally fast.
        let pause =
            |ratio: u64| Duration::from_millis(if group.rank() == 1 { 10 * ratio } else { 10 });
        let (mut loader, model, mut trainer) = build(Some(2));
        let mut parts = Vec::new();
        for batch in loader.by_ref().take(3) {
            let report = trainer.step(&batch.expect("a batch"), |x, _| {
                std::thread::sleep(pause(20));
                model.forward(&x)?.mean_all()
            });
            parts.push(report.expect("a step").samples);
        }
        assert_eq!(parts[..2], [12, 12]);
        let own = parts[2];
        assert!(if group.rank() == 1 { own < 8 } else { own > 16 }, "{own}");
        let state = trainer.state().expect("a state");
        for measured in [Some(1), None] {
            let (mut loader, model, mut trainer) = build(measured);
            trainer.load_state(&state).expect("state");
            loader.resume(&trainer).expect("a position");
            for batch in loader.by_ref().take(4) {
                let report = trainer.step(&batch.expect("a batch"), |x, _| {
                    std::thread::sleep(pause(1));
                    model.forward(&x)?.mean_all()
                });
                assert_eq!(report.expect("a step").samples, own);
            }
        }
    });
}

/// By default, although one rank is slower: so the same ranks make the same bits.
#[test]
fn parts_are_equal_and_bits_repeat() {
    together(2, |group| {
        let (last, values) = epoch(group, None);
        assert_eq!(last, BATCH / 2);
        for _ in 0..2 {
            let (_, again) = epoch(group, None);
            let bits = |values: &[f64]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&again), bits(&values));
        }
    });
}
