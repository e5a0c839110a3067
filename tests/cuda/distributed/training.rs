//! A trainer on several GPUs, while memory runs out on one of them.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::{AdamW, AdaptiveTrainer, Result};

use super::launch::{Rank, together};

const SAMPLES: usize = 8;
const WIDTH: usize = 6;

/// A curve, so that no two values are alike.
fn curve(shape: (usize, usize), phase: f64, device: &Device) -> Result<Tensor> {
    let values = (0..shape.0 * shape.1).map(|index| (index as f64 * 0.7 + phase).sin() as f32);
    let values = Tensor::from_iter(values, &Device::Cpu)?;
    Ok(values.reshape(shape)?.to_device(device)?)
}

/// The parameters after three updates, with this part of each batch. Memory runs out in the second.
fn train(rank: &Rank, is_alone: bool) -> Result<Vec<f32>> {
    let device = &rank.device;
    let weight = Var::from_tensor(&curve((WIDTH, 3), 0.1, device)?)?;
    let optimizer = AdamW::builder(vec![("weight", weight.clone())]);
    let trainer = AdaptiveTrainer::builder(optimizer.learning_rate(0.05).build()?);
    let mut trainer = match is_alone {
        true => trainer.build()?,
        false => trainer.group(&rank.group).policy(Fixed::new(2)?).build()?,
    };
    let mut retries = 0;
    for step in 0..3 {
        let batch = curve((SAMPLES, WIDTH), f64::from(step), device)?;
        let part = match is_alone {
            true => 0..SAMPLES,
            false => rank.group.share(SAMPLES),
        };
        let batch = batch.narrow(0, part.start, part.len())?;
        if !is_alone && step == 1 && rank.number() == 1 {
            rank.simulator().fail_allocation(4, 1);
        }
        let report = trainer.step(&batch, |x, _| x.matmul(&weight)?.tanh()?.sqr()?.mean_all())?;
        retries += report.retries;
    }
    if !is_alone && rank.number() == 1 {
        assert!(retries > 0, "memory did not run out");
    }
    Ok(weight.flatten_all()?.to_vec1()?)
}

#[test]
fn ranks_train_as_one_process_and_recover_by_themselves() {
    together(
        2,
        |_| Vec::new(),
        |rank| {
            let ours = train(&rank, false).unwrap();
            let alone = train(&rank, true).unwrap();
            // Sums of f32 in another order, after three updates of AdamW with a rate of 0.05.
            let difference = ours.iter().zip(&alone).map(|(a, b)| (a - b).abs());
            let largest = difference.fold(0., f32::max);
            assert!(largest < 1e-5, "{largest}");
            let bytes: Vec<u8> = ours.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let all = rank.group.gather(&bytes).unwrap();
            assert_eq!(all[0], all[1], "the ranks have the same parameters");
        },
    );
}

/// Behind the agreement nothing is allocated, so that no single failure of an allocation can leave ranks with half an update: not where
/// statistics are summed, and not where each rank takes the halves that the others have updated.
#[test]
fn an_allocation_that_fails_anywhere_in_a_sharded_update_is_made_again() {
    together(
        2,
        |_| Vec::new(),
        |rank| {
            let device = &rank.device;
            let half = |tensor: Tensor| tensor.to_dtype(DType::F16);
            let weight = half(curve((WIDTH, 3), 0.1, device).unwrap()).unwrap();
            let weight = Var::from_tensor(&weight).unwrap();
            let mean = Var::zeros(3, DType::F16, device).unwrap();
            let named = vec![
                ("weight", weight.clone()),
                ("norm.running_mean", mean.clone()),
            ];
            let optimizer = AdamW::builder(named).learning_rate(0.01).master_weights();
            let optimizer = optimizer.sharded().build().unwrap();
            let trainer = AdaptiveTrainer::builder(optimizer).group(&rank.group);
            let mut trainer = trainer.policy(Fixed::new(4).unwrap()).build().unwrap();
            let batch = half(curve((4, WIDTH), rank.number() as f64, device).unwrap()).unwrap();
            let mut step = |failing: Option<u64>| {
                if let Some(nth) = failing.filter(|_| rank.number() == 1) {
                    rank.simulator().fail_allocation(nth, 1);
                }
                let report = trainer.step(&batch, |x, _| {
                    let y = x.matmul(&weight)?;
                    mean.set(&((mean.as_tensor() * 0.9)? + (y.mean(0)?.detach() * 0.1)?)?)?;
                    y.tanh()?.sqr()?.to_dtype(DType::F32)?.mean_all()
                });
                rank.simulator().disarm();
                report.unwrap_or_else(|error| panic!("allocation {failing:?}: {error}"))
            };
            step(None);
            let mut retried = 0;
            for nth in 0..48 {
                retried += step(Some(nth)).retries;
            }
            assert!(rank.number() == 0 || retried > 8, "{retried}");
            let bytes = |var: &Var| -> Vec<u8> {
                let values = var.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
                let values = values.to_vec1::<f32>().unwrap();
                values
                    .iter()
                    .flat_map(|value| value.to_ne_bytes())
                    .collect()
            };
            let all = rank
                .group
                .gather(&[bytes(&weight), bytes(&mean)].concat())
                .unwrap();
            assert_eq!(all[0], all[1], "the ranks have the same parameters");
        },
    );
}
