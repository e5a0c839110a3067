//! Trainers of models with marked regions.

mod equality;
mod exhaustion;
mod measured;
mod own_loop;
mod state;

use candle_core::{Device, Result, Tensor, Var};
use candle_headroom::nn::{Dropout, recompute};
use candle_headroom::train::AdaptiveTrainerBuilder;
use candle_headroom::{AdaptiveTrainer, Sgd, testing};

const WIDTH: usize = 8;

/// Two blocks with dropout.
struct Model {
    weights: Vec<Var>,
}

impl Model {
    fn new() -> Result<Self> {
        let weight = |seed: usize| {
            let values = (0..WIDTH * WIDTH).map(|i| ((i * 31 + seed * 17) % 23) as f32 / 23. - 0.5);
            Var::from_tensor(&Tensor::from_iter(values, &Device::Cpu)?.reshape((WIDTH, WIDTH))?)
        };
        let weights = (0..2).map(weight).collect::<Result<_>>()?;
        Ok(Self { weights })
    }

    fn loss(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = xs.clone();
        for weight in &self.weights {
            let weight = weight.clone();
            xs = recompute(&xs, move |xs| {
                let hidden = testing::probe(&xs.matmul(&weight)?.tanh()?)?;
                xs + Dropout::new(0.3).forward(&hidden, true)?
            })?;
        }
        xs.sqr()?.mean_all()
    }

    fn builder(&self) -> AdaptiveTrainerBuilder<Sgd> {
        let optimizer = Sgd::builder(self.weights.clone()).learning_rate(0.1);
        AdaptiveTrainer::builder(optimizer.build().expect("an optimizer"))
    }

    /// The bits of all weights.
    fn bits(&self) -> Vec<u32> {
        let values = self.weights.iter().flat_map(|w| {
            w.flatten_all()
                .and_then(|w| w.to_vec1::<f32>())
                .expect("weights")
        });
        values.map(f32::to_bits).collect()
    }
}

fn samples(count: usize) -> Result<Tensor> {
    let values = (0..count * WIDTH).map(|i| (i * 7 % 13) as f32 / 13. - 0.4);
    Tensor::from_iter(values, &Device::Cpu)?.reshape((count, WIDTH))
}
