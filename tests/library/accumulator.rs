//! `GradientAccumulator`: which Vars take part.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::train::Resumable;
use candle_headroom::{GradientAccumulator, Loss, Sgd};

use crate::support::{self, ConvNet, Mlp, flat};

#[test]
fn frozen_vars_are_left_out_and_unreached_ones_reported() {
    let model = Mlp::new(DType::F32);
    let (trained, frozen) = model.vars.split_at(2);
    let idle = Var::ones(3, DType::F32, &Device::Cpu).unwrap();
    let mut vars = trained.to_vec();
    vars.push(idle.clone());
    let mut accumulator = support::accumulator(&vars);
    let (x, y) = Mlp::data(4, DType::F32);
    accumulator.add(model.loss(&x, &y).unwrap(), 4).unwrap();
    let store = accumulator.gradients().unwrap();
    assert!(frozen.iter().all(|var| store.get(var).is_none()));
    assert_eq!(store.get_ids().count(), 2);
    let unreached = accumulator.unreached();
    assert_eq!(unreached.len(), 1);
    assert_eq!(unreached[0].var.id(), idle.id());
    assert_eq!(unreached[0].name, "2");
}

#[test]
fn an_update_reports_what_was_added() {
    let model = Mlp::new(DType::F32);
    let mut accumulator = support::accumulator(&model.vars);
    let mut sum = 0.;
    for samples in [3, 5] {
        let (x, y) = Mlp::data(samples, DType::F32);
        let loss = model.loss(&x, &y).unwrap();
        sum += flat(&loss)[0] * samples as f64;
        accumulator.add(loss, samples).unwrap();
    }
    let report = accumulator.update().unwrap().expect("two micro-batches");
    assert_eq!((report.step, report.samples, report.retries), (1, 8, 0));
    assert_eq!(
        (&report.sizes[..], report.updated),
        (&[3, 5][..], Some(true))
    );
    assert_eq!((report.peak, report.loss.weight()), (None, 8.));
    assert!((report.loss.read().unwrap() - sum / 8.).abs() < 1e-6);
    assert!(accumulator.update().unwrap().is_none(), "nothing is left");

    // A sum weighs as many terms as it says, and what has no weight is no update.
    let x = Mlp::data(2, DType::F32).0;
    let loss = || model.forward(&x).unwrap().sum_all().unwrap();
    accumulator.add(Loss::sum(loss(), 6.), 2).unwrap();
    accumulator.add(Loss::sum(loss(), 0.), 2).unwrap();
    let report = accumulator.update().unwrap().expect("terms");
    assert_eq!(
        (report.step, report.samples, report.loss.weight()),
        (2, 4, 6.)
    );
    accumulator.add(Loss::sum(loss(), 0.), 2).unwrap();
    assert!(accumulator.update().unwrap().is_none());
    assert_eq!(accumulator.samples(), 0);
}

#[test]
fn softmax_without_backward_is_found() {
    let model = Mlp::new(DType::F32);
    let cut =
        candle_nn::ops::softmax_last_dim(&model.forward(&Mlp::data(4, DType::F32).0).unwrap())
            .unwrap();
    let mut accumulator = support::accumulator(&model.vars);
    let added = accumulator.add(cut.sqr().unwrap().sum_all().unwrap(), 4);
    let error = added
        .and_then(|()| accumulator.gradients().map(|_| ()))
        .unwrap_err();
    let text = error.to_string();
    let is_named = text.starts_with("no Var received a gradient from the loss");
    assert!(
        is_named && error.is_loss() || text.contains("softmax-last-dim"),
        "{text}"
    );
}

#[test]
fn batch_norm_statistics_need_not_be_trained() {
    let model = ConvNet::new();
    let (x, y) = ConvNet::data(4);
    let mut accumulator = support::accumulator(&model.vars);
    accumulator.add(model.loss(&x, &y).unwrap(), 4).unwrap();
    assert_eq!(accumulator.unreached().len(), 2);
    let mut accumulator = support::accumulator(&model.trained());
    accumulator.add(model.loss(&x, &y).unwrap(), 4).unwrap();
    assert!(accumulator.unreached().is_empty());
}

/// The weighted mean in each type, of a small gradient and of one that threads share. Gradients of an earlier window do not
/// count, even if they are not finite.
#[test]
fn gradients_are_blended_in_each_type() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for len in [6, 64 * 1024 + 16 * 1024 + 17] {
            let var = Var::zeros(len, dtype, &Device::Cpu).unwrap();
            let other = Var::zeros(1, dtype, &Device::Cpu).unwrap();
            let slopes: Vec<_> = (0..len).map(|i| (i % 9) as f64).collect();
            let slopes = Tensor::new(slopes, &Device::Cpu).unwrap();
            let slopes = slopes.to_dtype(dtype).unwrap();
            let loss = |factor: f64| {
                let products = (var.as_tensor() * &slopes).unwrap();
                (products.sum_all().unwrap() * factor).unwrap()
            };
            let mut accumulator = support::accumulator(&[var.clone(), other.clone()]);
            accumulator.add(loss(f64::INFINITY), 1).unwrap();
            accumulator.reset();
            accumulator.add(loss(4.), 1).unwrap();
            accumulator.add(loss(12.), 1).unwrap();
            // A micro-batch without this parameter.
            accumulator.add(other.sum_all().unwrap(), 2).unwrap();
            let gradients = accumulator.gradients().unwrap();
            let expected = (slopes * 4.).unwrap();
            let found = gradients.get(&var).unwrap();
            assert_eq!(flat(found), flat(&expected), "{dtype:?} {len}");
        }
    }
}

/// Checkpoints are named by this number.
#[test]
fn a_checkpoint_is_told_how_many_updates_there_were() {
    let w = Var::new(&[1f32], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()]).build().unwrap();
    let mut accumulator = GradientAccumulator::builder(optimizer).build().unwrap();
    for updates in 1..=3 {
        let loss = w.sqr().unwrap().sum_all().unwrap();
        accumulator.add(loss, 1).unwrap();
        accumulator.update().unwrap();
        assert_eq!(Resumable::updates(&accumulator), updates);
    }
}
