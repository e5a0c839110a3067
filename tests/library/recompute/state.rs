//! What changes once though a region runs twice, and what observers see.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{EventKind, Fixed, Observer, Recompute, Regions, TrainingEvent};
use candle_headroom::error::Phase;
use candle_headroom::nn::{is_recomputing, recompute};

use super::{Model, samples};

/// Statistics that a layer of the user's own updates.
#[test]
fn named_buffers_change_once() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let counts = Var::zeros(1, DType::F32, &Device::Cpu)?;
    let policy = Fixed::new(4)?;
    let builder = model.builder().buffers([counts.as_tensor()]).policy(policy);
    let mut trainer = builder.recompute(Recompute::Always).build()?;
    let batch = samples(8)?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    trainer.step(&batch, |xs, _| {
        let (weights, counts, seen) = (model.weights.clone(), counts.clone(), Arc::clone(&seen));
        let ys = recompute(&xs, move |xs| {
            seen.lock().expect("one thread").push(is_recomputing());
            counts.set(&(counts.as_tensor() + 1.)?)?;
            xs.matmul(&weights[0])?.matmul(&weights[1])
        })?;
        ys.sqr()?.mean_all()
    })?;
    let seen = seen.lock().expect("one thread").clone();
    // Two micro-batches, and four calls of the check.
    assert_eq!(seen, [false, true].repeat(2 + 4));
    assert_eq!(counts.to_vec1::<f32>()?, [2.]);
    Ok(())
}

#[derive(Debug, Default)]
struct Seen {
    phases: Mutex<Vec<Phase>>,
    regions: Mutex<Vec<Regions>>,
}

impl Observer for Seen {
    fn observe(&self, event: &TrainingEvent<'_>) {
        match event.kind {
            EventKind::PhaseEnded { phase, .. } => self.phases.lock().expect("alone").push(phase),
            EventKind::MicroBatchEnded { completed, .. } => {
                self.regions.lock().expect("alone").push(completed.regions);
            }
            _ => {}
        }
    }
}

#[test]
fn observers_see_when_regions_ran_again() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let seen = Arc::new(Seen::default());
    let builder = model
        .builder()
        .observer(Arc::clone(&seen))
        .policy(Fixed::new(8)?);
    let mut trainer = builder.recompute(Recompute::Always).build()?;
    trainer.step(&samples(8)?, |xs, _| model.loss(&xs))?;
    let phases = std::mem::take(&mut *seen.phases.lock().expect("alone"));
    use Phase::{Accumulate, Backward, Forward, Optimizer, Transfer};
    let expected = [
        Transfer,
        Forward,
        Phase::Recompute,
        Phase::Recompute,
        Backward,
        Accumulate,
        Optimizer,
    ];
    assert_eq!(phases, expected);
    assert_eq!(*seen.regions.lock().expect("alone"), [Regions::Recomputed]);
    // In evaluation nothing runs again.
    trainer.evaluate(&samples(8)?, |xs, _| model.loss(&xs)?.to_scalar::<f32>())?;
    assert!(
        !seen
            .phases
            .lock()
            .expect("alone")
            .contains(&Phase::Recompute)
    );
    Ok(())
}

/// A buffer that the region reads and moves, as the vector of a power iteration.
#[test]
fn a_second_run_sees_the_buffers_of_the_first() -> candle_headroom::Result<()> {
    let run = |recompute| -> candle_headroom::Result<_> {
        let model = Model::new()?;
        let scale = Var::ones(1, DType::F32, &Device::Cpu)?;
        let builder = model.builder().buffers([scale.as_tensor()]);
        let mut trainer = builder
            .recompute(recompute)
            .policy(Fixed::new(4)?)
            .build()?;
        for _ in 0..2 {
            trainer.step(&samples(8)?, |xs, _| {
                let (weights, scale) = (model.weights.clone(), scale.clone());
                let block = move |xs: &Tensor| {
                    let ys = xs.matmul(&weights[0])?.tanh()?.matmul(&weights[1])?;
                    let ys = ys.broadcast_mul(&scale.as_tensor().copy()?)?;
                    scale.set(&(scale.as_tensor() * 1.5)?)?;
                    Ok(ys)
                };
                candle_headroom::nn::recompute(&xs, block)?
                    .sqr()?
                    .mean_all()
            })?;
        }
        Ok((model.bits(), scale.to_vec1::<f32>()?))
    };
    assert_eq!(run(Recompute::Always)?, run(Recompute::Never)?);
    Ok(())
}
