//! Ranks that are not equally fast, with parts of batches that are not equally large.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{Division, Fixed};
use candle_headroom::data::{Items, Loader};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;
use candle_headroom::{AdaptiveTrainer, Sgd};

use crate::launch::together;
use crate::model::Model;

const SAMPLES: u32 = 960;
const BATCH: usize = 24;

/// Three samples of rank 0 for one of rank 1.
fn unequal() -> Division {
    Division::weighted([3, 1]).expect("a division")
}

/// An epoch with a loader that reads ahead, and divides its batches so after some. Returns this rank's part of the last batch, and the model's
/// values.
fn epoch(group: &Group, division: Option<&Division>) -> (usize, Vec<f64>) {
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
    let trainer = AdaptiveTrainer::builder(sgd).group(group);
    let trainer = trainer.policy(Fixed::new(1).expect("a size"));
    let mut trainer = trainer.build().expect("a trainer");
    let (mut seen, mut last) = (Vec::new(), 0);
    while let Some(batch) = loader.next() {
        let batch = batch.expect("a batch");
        let report = trainer.step(&batch, |x, micro| {
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
        if let (8, Some(division)) = (trainer.updates(), division) {
            loader.divide(division).expect("parts");
        }
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
fn parts_change_in_an_epoch_and_each_sample_comes_once() {
    together(2, |group| {
        let (last, _) = epoch(group, Some(&unequal()));
        assert_eq!(last, [18, 6][group.rank()]);
    });
}

/// A resumed run has the parts from its first batch on.
#[test]
fn a_resumed_run_goes_on_with_its_parts() {
    together(2, |group| {
        let build = || {
            let collate = |samples: Vec<f64>| -> Result<Tensor, BoxedError> {
                Ok(Tensor::new(samples, &Device::Cpu)?.unsqueeze(1)?)
            };
            let loader = Loader::builder(Items(vec![1.; 24]), collate);
            let loader = loader.batch(24).endless().group(group).build();
            let model = Model::new(&[1, 2], DType::F64, 1);
            let sgd = Sgd::builder(&model.varmap).build().expect("an optimizer");
            let trainer = AdaptiveTrainer::builder(sgd).group(group);
            let trainer = trainer.policy(Fixed::new(24).expect("a size"));
            (
                loader.expect("a loader"),
                model,
                trainer.build().expect("a trainer"),
            )
        };
        let own = [18, 6][group.rank()];
        let (mut loader, model, mut trainer) = build();
        for expected in [12, own] {
            let batch = loader.next().expect("endless").expect("a batch");
            let report = trainer.step(&batch, |x, _| model.forward(&x)?.mean_all());
            assert_eq!(report.expect("a step").samples, expected);
            loader.divide(&unequal()).expect("parts");
        }
        let state = trainer.state().expect("a state");
        let (mut loader, model, mut trainer) = build();
        trainer.load_state(&state).expect("state");
        loader.resume(&trainer).expect("a position");
        for batch in loader.by_ref().take(4) {
            let report = trainer.step(&batch.expect("a batch"), |x, _| {
                model.forward(&x)?.mean_all()
            });
            assert_eq!(report.expect("a step").samples, own);
        }
    });
}

/// Parts are equal by default, and whatever they are, the same ranks make the same bits with them.
#[test]
fn parts_are_equal_by_default_and_bits_repeat() {
    together(2, |group| {
        let (last, _) = epoch(group, None);
        assert_eq!(last, BATCH / 2);
        for division in [None, Some(&unequal())] {
            let (_, values) = epoch(group, division);
            let (_, again) = epoch(group, division);
            let bits = |values: &[f64]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&again), bits(&values));
        }
    });
}
