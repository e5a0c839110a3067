//! Regions that are kept or recomputed, whichever is faster.

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use candle_core::Tensor;
use candle_headroom::batch::{BatchPolicy, Failed, Recompute};
use candle_headroom::testing;

use super::{Model, samples};

const SLOW: Duration = Duration::from_millis(60);

#[test]
fn the_faster_way_is_found_in_four_batches_of_each_shape() -> candle_headroom::Result<()> {
    for slow in [false, true] {
        let model = Model::new()?;
        let mut trainer = model.builder().recompute(Recompute::Measured).build()?;
        let mut ways = |batch: &Tensor, steps: usize| -> candle_headroom::Result<Vec<bool>> {
            let mut ways = Vec::new();
            for _ in 0..steps {
                trainer.step(batch, |xs, micro| {
                    if micro.recomputes == slow {
                        sleep(SLOW);
                    }
                    ways.push(micro.recomputes);
                    model.loss(&xs)
                })?;
            }
            Ok(ways)
        };
        let faster = !slow;
        let compared = [false, true, false, true];
        let batch = samples(8)?;
        let found = ways(&batch, 7)?;
        assert_eq!(found[..4], compared);
        assert_eq!(found[4..], [faster; 3]);
        // Another size of batch has the same shape.
        assert_eq!(ways(&samples(2)?, 2)?, [faster; 2]);
    }
    Ok(())
}

/// Where one sample does not fit otherwise, there is nothing to compare.
#[test]
fn what_does_not_fit_is_not_compared() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let mut trainer = model.builder().recompute(Recompute::Measured).build()?;
    let mut kept = 0;
    for step in 0..6 {
        let report = trainer.step(&samples(2)?, |xs, micro| {
            let loss = model.loss(&xs)?;
            kept += usize::from(step > 0 && !micro.recomputes);
            match micro.recomputes {
                true => Ok(loss),
                false => Err(testing::out_of_memory()),
            }
        })?;
        assert_eq!(report.samples, 2);
    }
    assert_eq!(kept, 0);
    Ok(())
}

/// A policy that recomputes, as one does when one sample does not fit otherwise, and notes what it is asked for.
#[derive(Debug, Clone, Default)]
struct Recomputes(Arc<Mutex<Vec<Recompute>>>);

impl BatchPolicy for Recomputes {
    fn size(&self, remaining: usize) -> usize {
        remaining
    }

    fn recomputes(&self) -> bool {
        true
    }

    fn set_recompute(&mut self, recompute: Recompute) {
        self.0.lock().unwrap().push(recompute);
    }

    fn failed(&mut self, _: &Failed<'_>) {}
}

#[test]
fn what_the_policy_recomputes_is_not_compared() -> candle_headroom::Result<()> {
    let (model, policy) = (Model::new()?, Recomputes::default());
    let builder = model.builder().policy(policy.clone());
    let mut trainer = builder.recompute(Recompute::Measured).build()?;
    for _ in 0..6 {
        trainer.step(&samples(2)?, |xs, _| model.loss(&xs))?;
    }
    let asked = policy.0.lock().unwrap();
    assert_eq!(asked[0], Recompute::Measured);
    assert_eq!(asked[1..], [Recompute::Auto; 6]);
    Ok(())
}
