//! What the remedies of an exhaustion save, each turned on.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::batch::{Fixed, Recompute};
use candle_headroom::memory::Limit;
use candle_headroom::nn::loss::{LinearCrossEntropy, cross_entropy, linear_cross_entropy};
use candle_headroom::nn::{self, Linear, Module, recompute};
use candle_headroom::optim::{Commit, Group, Moments, Parameter};
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, Error, Sgd};

const VOCABULARY: usize = 8192;
/// So narrow that the CPU makes no copy of the gradient of the logits for that of the weight, whichever instructions its products use.
const WIDTH: usize = 32;
const BLOCKS: usize = 16;
/// Tokens of a sample.
const TIME: usize = 512;

/// A remedy with the bytes that the error says, and those that it saved.
#[derive(Debug)]
pub struct Outcome {
    pub advice: String,
    pub said: u64,
    pub saved: u64,
}

impl Outcome {
    /// The difference, as a fraction of what was saved.
    pub fn error(&self) -> f64 {
        (self.said as f64 / self.saved.max(1) as f64 - 1.).abs()
    }
}

struct Model {
    tokens: Var,
    blocks: Vec<[Var; 2]>,
    head: Var,
}

impl Model {
    fn new() -> Result<Self> {
        let weight = |rows: usize, columns: usize| {
            let values = (0..rows * columns).map(|i| ((i * 7919) % 1013) as f32 / 1013. - 0.5);
            let weight = Tensor::from_iter(values, &Device::Cpu)?.reshape((rows, columns))?;
            Var::from_tensor(&(weight * 0.1)?)
        };
        let block = |_| Ok([weight(2 * WIDTH, WIDTH)?, weight(WIDTH, 2 * WIDTH)?]);
        Ok(Self {
            tokens: weight(VOCABULARY, WIDTH)?,
            blocks: (0..BLOCKS).map(block).collect::<Result<_>>()?,
            head: weight(VOCABULARY, WIDTH)?,
        })
    }

    fn parameters(&self) -> Vec<Parameter> {
        let blocks = self.blocks.iter().flatten().enumerate();
        let blocks = blocks.map(|(i, var)| Parameter::new(format!("block.{i}"), var.clone()));
        let ends = [("head", &self.head), ("tokens", &self.tokens)];
        let ends = ends.map(|(name, var)| Parameter::new(name, var.clone()));
        ends.into_iter().chain(blocks).collect()
    }

    fn loss(&self, tokens: &Tensor, has_logits: bool) -> Result<Tensor> {
        let mut xs = nn::Embedding::new(self.tokens.as_tensor().clone(), WIDTH).forward(tokens)?;
        for [up, down] in &self.blocks {
            let [up, down] = [up, down].map(|w| Linear::new(w.as_tensor().clone(), None));
            xs = recompute(&xs, move |xs| {
                let normed =
                    nn::ops::rms_norm(xs, &Tensor::ones(WIDTH, DType::F32, xs.device())?, 1e-5)?;
                xs + down.forward(&up.forward(&normed)?.silu()?)?
            })?;
        }
        let (hidden, targets) = (xs.flatten_to(1)?, tokens.flatten_all()?);
        match has_logits {
            true => {
                let head = Linear::new(self.head.as_tensor().clone(), None);
                cross_entropy(&head.forward(&hidden)?, &targets)
            }
            false => {
                let options = LinearCrossEntropy::default();
                linear_cross_entropy(&hidden, &self.head, &targets, &options)
            }
        }
    }
}

/// How a step is run.
#[derive(Clone, Copy)]
struct Way {
    samples: usize,
    recompute: Recompute,
    has_logits: bool,
}

const PLAIN: Way = Way {
    samples: 2,
    recompute: Recompute::Never,
    has_logits: true,
};

fn batch() -> Result<Tensor> {
    let tokens = (0..2 * TIME).map(|i| (i * 31 % VOCABULARY) as u32);
    Tensor::from_iter(tokens, &Device::Cpu)?.reshape((2, TIME))
}

/// The bytes of a trainer with its parameters, and the peak of a step.
fn peak<O: Commit>(
    memory: &DeviceMemory,
    way: Way,
    optimizer: impl Fn(Vec<Parameter>) -> candle_headroom::Result<O>,
) -> candle_headroom::Result<u64> {
    let (scope, batch) = (memory.peak_scope(), batch()?);
    let before = scope.start().unwrap_or_default();
    let model = Model::new()?;
    let builder = AdaptiveTrainer::builder(optimizer(model.parameters())?);
    let builder = builder
        .policy(Fixed::new(way.samples)?)
        .recompute(way.recompute);
    let mut trainer = builder.memory(memory).build()?;
    for _ in 0..2 {
        trainer.step(&batch, |x, _| model.loss(&x, way.has_logits))?;
    }
    let step = memory.peak_scope();
    trainer.step(&batch, |x, _| model.loss(&x, way.has_logits))?;
    Ok(step.peak().unwrap_or_default() - before)
}

fn adamw(parameters: Vec<Parameter>) -> candle_headroom::Result<AdamW> {
    AdamW::builder(parameters).build()
}

/// The remedies of a step that does not fit, each with what it saves when it is turned on.
pub fn try_all(memory: &DeviceMemory) -> candle_headroom::Result<Vec<Outcome>> {
    // Thread pools, and what else is allocated once.
    peak(memory, PLAIN, adamw)?;
    let plain = peak(memory, PLAIN, adamw)?;

    let (model, batch) = (Model::new()?, batch()?);
    let builder = AdaptiveTrainer::builder(adamw(model.parameters())?);
    let builder = builder
        .policy(Fixed::new(PLAIN.samples)?)
        .recompute(PLAIN.recompute);
    let mut trainer = builder.memory(memory).build()?;
    let mut step = || trainer.step(&batch, |x, _| model.loss(&x, true));
    step()?;
    // A quarter of the room: a soft limit is looked at after the forward pass.
    let in_use = memory.in_use().unwrap_or_default();
    memory.set_limit(ByteSize(in_use + plain / 4))?;
    let failed = step();
    memory.set_limit(Limit::Unlimited)?;
    let exhausted = match failed {
        Err(Error::ResourceExhausted(exhausted)) => exhausted,
        Err(other) => return Err(other),
        Ok(_) => panic!("a quarter of the room is enough"),
    };
    drop(trainer);
    drop(model);

    let mut outcomes = Vec::new();
    for remedy in exhausted.ranked_remedies() {
        let Some(said) = remedy.saves else { continue };
        let moments = |moments: Moments| {
            peak(memory, PLAIN, |parameters| {
                AdamW::builder(parameters).moments(moments).build()
            })
        };
        let with = match &*remedy.advice {
            "moments in bf16" => moments(DType::BF16.into())?,
            "moments of 8 bits" => moments(Moments::EightBit)?,
            "Sgd without momentum" => {
                peak(memory, PLAIN, |parameters| Sgd::builder(parameters).build())?
            }
            advice if advice.ends_with("` not trained") => {
                peak(memory, PLAIN, |mut parameters| {
                    let is_named = |p: &Parameter| advice.starts_with(&format!("`{}`", p.name));
                    let at = parameters.iter().position(is_named).expect("a parameter");
                    let frozen = Group::from(vec![parameters.remove(at)]).frozen();
                    AdamW::builder(parameters).group(frozen).build()
                })?
            }
            "a micro-batch of 1" => peak(
                memory,
                Way {
                    samples: 1,
                    ..PLAIN
                },
                adamw,
            )?,
            advice if advice.starts_with("`Recompute::") => {
                let recompute = Recompute::Always;
                peak(memory, Way { recompute, ..PLAIN }, adamw)?
            }
            advice if advice.starts_with("`linear_cross_entropy`") => {
                let has_logits = false;
                peak(
                    memory,
                    Way {
                        has_logits,
                        ..PLAIN
                    },
                    adamw,
                )?
            }
            other => panic!("nobody has tried this: {other}"),
        };
        outcomes.push(Outcome {
            advice: remedy.advice.to_string(),
            said,
            saved: plain.saturating_sub(with),
        });
    }
    Ok(outcomes)
}
