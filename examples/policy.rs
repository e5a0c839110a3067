//! A batch policy of your own: one sample more after each success, a quarter less after a failure.
//! Run: `cargo run --example policy`.
//! Prints the micro-batches of five steps; in step 3 another process takes memory, then it ends.

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, Resource};
use candle_headroom::{AdaptiveTrainer, ResourceExhausted, Sgd};
use candle_nn::{Module, VarBuilder, VarMap, linear};

#[derive(Debug)]
struct Careful {
    size: usize,
    before: Option<usize>, // the size in use when another process took the memory
}

impl BatchPolicy for Careful {
    fn size(&self, remaining: usize) -> usize {
        self.size.min(remaining)
    }

    fn begin(&mut self, _: &Extent) {
        self.size = self.before.take().unwrap_or(self.size); // the other process may have ended
    }

    fn succeeded(&mut self, completed: &Completed) {
        if completed.is_over_limit() {
            self.size = (completed.size * 3 / 4).max(1); // a soft limit, as on the CPU
        } else if completed.size == self.size && self.before.is_none() {
            self.size += 1; // but not after the rest of a batch, which may be smaller
        }
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.before = self.before.or(failed.is_passing.then_some(self.size));
        // Always smaller than what failed, or the step ends with the error.
        self.size = (failed.size * 3 / 4).max(1);
    }
}

fn main() -> candle_headroom::Result<()> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = linear(16, 1, vb)?;
    let (size, before) = (8, None);
    let builder = AdaptiveTrainer::builder(Sgd::builder(&varmap).build()?);
    let mut trainer = builder.policy(Careful { size, before }).build()?;

    let x = Tensor::ones((32, 16), DType::F32, &Device::Cpu)?; // [samples, features]
    let neighbour = || ResourceExhausted::new(Resource::DeviceMemory, Cause::Neighbour);
    for step in 1..=5 {
        let report = trainer.step(&x, |x, _| match (step, x.dim(0)?) {
            (3, 5..) => Err(neighbour().into()), // as a GPU fails that others use too
            _ => model.forward(&x)?.sqr()?.mean_all(),
        })?;
        let (sizes, retries) = (report.sizes, report.retries);
        println!("step {step}: micro-batches {sizes:?}, {retries} retries");
    }
    Ok(())
}
