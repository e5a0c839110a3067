use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::Fixed;
use candle_headroom::train::StepReport;
use candle_headroom::{AdamW, AdaptiveTrainer, Result};
use candle_nn::{Module, Sequential, VarBuilder, VarMap, linear, seq};

const WIDTH: usize = 1024;
const LAYERS: usize = 8;

pub struct Job {
    model: Sequential,
    pub trainer: AdaptiveTrainer<AdamW>,
    x: Tensor,
}

impl Job {
    pub fn new(samples: usize) -> Result<Self> {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let mut model = seq();
        for layer in 0..LAYERS {
            let linear = linear(WIDTH, WIDTH, vb.pp(layer.to_string()))?;
            model = model.add(linear).add_fn(|x| x.relu());
        }
        let optimizer = AdamW::builder(&varmap).learning_rate(1e-4).build()?;
        let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::whole_batch());
        Ok(Self {
            model,
            trainer: builder.build()?,
            x: Tensor::randn(0f32, 1., (samples, WIDTH), &Device::Cpu)?,
        })
    }

    pub fn step(&mut self) -> Result<StepReport> {
        let model = &self.model;
        self.trainer
            .step(&self.x, |x, _| model.forward(&x)?.sqr()?.mean_all())
    }
}
