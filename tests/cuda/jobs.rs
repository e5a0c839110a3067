//! Training steps of small real models on a device: the same from the same state, whatever goes wrong in between.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::batch::{BatchPolicy, Recompute};
use candle_headroom::optim::{Commit, LossScale, ParamsAdamW};
use candle_headroom::{
    AdamW, AdaptiveTrainer, DeviceMemory, Foreign, MicroBatch, Sgd, StepReport, nn,
};
use candle_nn::{SGD, VarBuilder, VarMap};

use crate::support::layered::{Layered, TIME, TOKENS};
use crate::support::transformer::{Config, Transformer, VOCABULARY};
use crate::support::{ConvNet, foreign, settle, sgd, snapshot};

const CONFIG: Config = Config {
    context: 4,
    width: 8,
    heads: 2,
    layers: 1,
};

/// Samples in a batch.
pub const SAMPLES: usize = 8;

type Loss = dyn Fn(&Tensor, &Tensor) -> Result<Tensor>;

/// A model with its data on one device, and the state to begin from.
pub struct Job {
    pub name: &'static str,
    pub x: Tensor,
    pub y: Tensor,
    trained: Vec<Var>,
    recompute: Recompute,
    /// Whether trainers compare the first batch that is cut with itself in other parts.
    pub checks_cuts: bool,
    /// What the forward pass changes by itself.
    buffers: Vec<Tensor>,
    /// Every variable with what it held at the beginning, on the host.
    initial: Vec<(Var, Tensor)>,
    loss: Box<Loss>,
}

impl Job {
    pub fn all(device: &Device) -> [Self; 4] {
        [
            Self::transformer(device),
            Self::convolution(device),
            Self::layers(device),
            Self::recomputed(device),
        ]
    }

    pub fn transformer(device: &Device) -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, device);
        let model = Transformer::new(CONFIG, vb).unwrap();
        let vars = settle(&varmap);
        let bytes = |shift: usize| {
            let bytes = 0..SAMPLES * CONFIG.context;
            let bytes = bytes.map(|i| ((i * 31 + shift) % VOCABULARY) as u32);
            let bytes = Tensor::from_iter(bytes, device).unwrap();
            bytes.reshape((SAMPLES, CONFIG.context)).unwrap()
        };
        let loss = move |x: &Tensor, y: &Tensor| model.loss(x, y);
        Self::new(
            "transformer",
            (bytes(0), bytes(31)),
            vars.clone(),
            vars,
            vec![],
            loss,
        )
    }

    /// Each kind of layer of `candle_headroom::nn`.
    pub fn layers(device: &Device) -> Self {
        let model = Layered::new(device).unwrap();
        let tokens = |shift: usize| {
            let tokens = (0..SAMPLES * TIME).map(|i| ((i * 7 + shift) % TOKENS) as u32);
            let tokens = Tensor::from_iter(tokens, device).unwrap();
            tokens.reshape((SAMPLES, TIME)).unwrap()
        };
        let statistics = [
            model.statistics.running_mean(),
            model.statistics.running_var(),
        ];
        let statistics = statistics.map(Tensor::clone).to_vec();
        let (trained, vars) = (model.trained(), model.vars.clone());
        // The same masks in every step, since steps of different numbers are compared.
        let loss = move |x: &Tensor, y: &Tensor| nn::seeded(3, || model.loss(x, y));
        let data = (tokens(0), tokens(7));
        Self::new("layers", data, trained, vars, statistics, loss)
    }

    /// The same in regions that are recomputed.
    pub fn recomputed(device: &Device) -> Self {
        Self {
            name: "recomputed",
            recompute: Recompute::Always,
            ..Self::layers(device)
        }
    }

    pub fn convolution(device: &Device) -> Self {
        let net = ConvNet::on(device);
        let (x, y) = ConvNet::data(SAMPLES);
        let data = (x.to_device(device).unwrap(), y.to_device(device).unwrap());
        let statistics = [net.norm.running_mean(), net.norm.running_var()];
        let statistics = statistics.map(Tensor::clone).to_vec();
        let (trained, vars) = (net.trained(), net.vars.clone());
        let loss = move |x: &Tensor, y: &Tensor| net.loss(x, y);
        Self::new("convolution", data, trained, vars, statistics, loss)
    }

    fn new(
        name: &'static str,
        (x, y): (Tensor, Tensor),
        trained: Vec<Var>,
        vars: Vec<Var>,
        buffers: Vec<Tensor>,
        loss: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + 'static,
    ) -> Self {
        let on_host = |var: Var| {
            let values = var.to_device(&Device::Cpu).unwrap();
            // Without the copy a Var on the host would be its own initial value.
            (var, values.force_contiguous().unwrap())
        };
        Self {
            name,
            x,
            y,
            trained,
            recompute: Recompute::Never,
            checks_cuts: true,
            buffers,
            initial: vars.into_iter().map(on_host).collect(),
            loss: Box::new(loss),
        }
    }

    /// Parameters and buffers as they were at the beginning.
    pub fn restart(&self) {
        for (var, initial) in &self.initial {
            var.set(&initial.to_device(var.device()).unwrap()).unwrap();
        }
    }

    pub fn trainer(
        &self,
        memory: Option<&DeviceMemory>,
        policy: impl BatchPolicy + 'static,
    ) -> AdaptiveTrainer<AdamW> {
        self.trainer_with(self.optimizer(), memory, policy)
    }

    pub fn trainer_with<O: Commit>(
        &self,
        optimizer: O,
        memory: Option<&DeviceMemory>,
        policy: impl BatchPolicy + 'static,
    ) -> AdaptiveTrainer<O> {
        let builder = AdaptiveTrainer::builder(optimizer);
        let builder = builder.policy(policy).buffers(&self.buffers);
        let mut builder = builder.recompute(self.recompute);
        if !self.checks_cuts {
            builder = builder.unchecked_cuts();
        }
        match memory {
            Some(memory) => builder.memory(memory).build().unwrap(),
            None => builder.build().unwrap(),
        }
    }

    fn params() -> ParamsAdamW {
        ParamsAdamW {
            lr: 1e-2,
            ..ParamsAdamW::default()
        }
    }

    pub fn optimizer(&self) -> AdamW {
        AdamW::builder(self.trained.clone())
            .params(Self::params())
            .build()
            .unwrap()
    }

    /// With all that an update can have to do besides.
    pub fn adjusting(&self) -> AdamW {
        let builder = AdamW::builder(self.trained.clone()).params(Self::params());
        let builder = builder.clip_norm(1.).loss_scale(LossScale::dynamic());
        let builder = builder.moments(DType::BF16).moments_on_host(0.5);
        builder.build().unwrap()
    }

    /// Without state.
    pub fn plain(&self) -> Sgd {
        let builder = Sgd::builder(self.trained.clone()).learning_rate(0.1);
        builder.build().unwrap()
    }

    /// candle's, which an error leaves half-way.
    pub fn foreign(&self) -> Foreign<candle_nn::AdamW> {
        foreign(&self.trained, Self::params())
    }

    /// Plain gradient descent, to compare devices by: AdamW makes as much of a gradient that is nothing but rounding, as that of a
    /// bias in front of a BatchNorm, as of any other.
    pub fn descent(&self) -> Foreign<SGD> {
        sgd(&self.trained, 0.1)
    }

    pub fn step<O: Commit>(
        &self,
        trainer: &mut AdaptiveTrainer<O>,
    ) -> candle_headroom::Result<StepReport> {
        trainer.step(&(&self.x, &self.y), |(x, y), _: &MicroBatch| {
            (self.loss)(&x, &y)
        })
    }

    pub fn loss_of(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        (self.loss)(x, y)
    }

    /// Every variable's values, the buffers' too.
    pub fn state(&self) -> Vec<Vec<f64>> {
        let vars: Vec<Var> = self.initial.iter().map(|(var, _)| var.clone()).collect();
        snapshot(&vars)
    }
}
