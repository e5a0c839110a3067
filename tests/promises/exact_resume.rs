//! Promise 12, exact resume: a run that is interrupted anywhere and resumed with new objects equals the uninterrupted one bit by bit: its
//! parameters, buffers, moments, losses, the order of its samples and its dropout masks. Saved checkpoints: tests/library/checkpoint and
//! tests/programs.

use std::path::Path;

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed, Fixed};
use candle_headroom::data::{Dataset, Loader};
use candle_headroom::error::{BoxedError, MemoryReading};
use candle_headroom::nn::{self, BatchNorm, Dropout, Linear, Module, ModuleT};
use candle_headroom::optim::{
    Algorithm, Fused, FusedBuilder, LossScale, Moments, ParamsAdam, ParamsAdamW, ParamsLion,
    ParamsSgd, StateDict,
};
use candle_headroom::train::Resumable;
use candle_headroom::{AdaptiveTrainer, LearningRate, Predictive};
use candle_nn::{VarBuilder, VarMap};

const SAMPLES: usize = 40;
const EPOCHS: u64 = 2;

/// Points with their classes.
struct Points;

impl Dataset for Points {
    type Sample = (Vec<f32>, u32);

    fn len(&self) -> usize {
        SAMPLES
    }

    fn get(&self, index: usize) -> Result<Self::Sample, BoxedError> {
        let point: Vec<_> = (0..8)
            .map(|place| ((index * 8 + place) as f32 * 0.37).sin())
            .collect();
        let class = u32::from(point.iter().sum::<f32>() > 0.);
        Ok((point, class))
    }
}

type Pair = (Tensor, Tensor);

fn loader() -> Loader<Pair> {
    let collate = |samples: Vec<(Vec<f32>, u32)>| -> Result<Pair, BoxedError> {
        let (points, classes): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        Ok((
            Tensor::new(points, &Device::Cpu)?,
            Tensor::new(classes, &Device::Cpu)?,
        ))
    };
    Loader::builder(Points, collate)
        .batch(6)
        .shuffle(11)
        .epochs(EPOCHS)
        .build()
        .unwrap()
}

struct Model {
    first: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    last: Linear,
}

impl Model {
    fn new(varmap: &VarMap, dtype: DType) -> CandleResult<Self> {
        let vb = VarBuilder::from_varmap(varmap, dtype, &Device::Cpu);
        Ok(Self {
            first: nn::linear(8, 300, vb.pp("first"))?,
            norm: nn::batch_norm(300, 1e-5, vb.pp("norm"))?,
            dropout: Dropout::new(0.3),
            last: nn::linear(300, 2, vb.pp("last"))?,
        })
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> CandleResult<Tensor> {
        let x = self
            .first
            .forward(&x.to_dtype(self.first.weight().dtype())?)?;
        let x = self.norm.forward_t(&x, true)?.relu()?;
        let x = self.last.forward(&self.dropout.forward(&x, true)?)?;
        nn::loss::cross_entropy(&x.to_dtype(DType::F32)?, y)
    }
}

/// What a step leaves behind.
type Trace = Vec<(Vec<usize>, u64)>;

struct Case<'a, A> {
    dtype: DType,
    /// Batches in an update.
    window: usize,
    policy: &'a dyn Fn() -> Box<dyn BatchPolicy>,
    build: &'a dyn Fn(FusedBuilder<A>) -> FusedBuilder<A>,
}

impl<A: Algorithm> Case<'_, A> {
    /// Trains from the saved state, if there is one, for at most `batches` batches; then saves, if asked.
    fn run(&self, from: Option<&Path>, batches: usize, to: Option<&Path>) -> (Trace, Vec<u8>) {
        let varmap = VarMap::new();
        let model = Model::new(&varmap, self.dtype).unwrap();
        if from.is_none() {
            initialise(&varmap);
        }
        let schedule = LearningRate::builder(0.02)
            .cosine(14)
            .warm_up(3)
            .build()
            .unwrap();
        let optimizer = (self.build)(Fused::<A>::builder(&varmap)).build().unwrap();
        let buffers = [model.norm.running_mean(), model.norm.running_var()];
        let builder = AdaptiveTrainer::builder(optimizer)
            .seed(5)
            .policy((self.policy)());
        let mut trainer = builder.buffers(buffers).build().unwrap();
        let mut loader = loader();
        if let Some(from) = from {
            load(&mut trainer, from);
            assert!(loader.resume(&trainer).unwrap().is_some() || trainer.updates() == 0);
        }
        let mut trace = Trace::new();
        for batch in loader.by_ref().take(batches) {
            let batch = batch.unwrap();
            let rate = schedule.at(trainer.updates());
            trainer.optimizer_mut().set_learning_rate(rate);
            let loss = |(x, y): Pair, _: &_| model.loss(&x, &y);
            trainer.accumulate(&batch, loss).unwrap();
            if trainer.pending() == self.window {
                let report = trainer.update().unwrap().unwrap();
                assert_eq!(report.step, trainer.updates());
                let loss = report.loss.read().unwrap();
                trace.push((batch.indices.clone(), loss.to_bits()));
            }
        }
        if let Some(to) = to {
            save(&trainer, to);
        }
        (trace, bytes(&trainer))
    }

    fn check(&self, name: &'static str) -> Checked {
        let folder = tempfile::tempdir().unwrap();
        let all = SAMPLES.div_ceil(6) * EPOCHS as usize;
        let (trace, end) = self.run(None, all, None);
        assert_eq!(trace.len(), all / self.window, "{name}");
        let mut bits = 0;
        for stop in 0..all {
            let (saved, again) = (folder.path().join("saved"), folder.path().join("again"));
            let (mut parts, _) = self.run(None, stop, Some(&saved));
            // Interrupted again at once, and after another batch.
            let (more, _) = self.run(Some(&saved), 1, Some(&again));
            parts.extend(more);
            let (rest, resumed) = self.run(Some(&again), all, None);
            parts.extend(rest);
            bits += differing(&parts, &trace) + differing_bytes(&resumed, &end);
        }
        Checked {
            interruptions: 2 * all,
            bits,
        }
    }
}

/// What interruptions of a run have shown.
#[derive(Debug)]
struct Checked {
    interruptions: usize,
    /// Bits of losses and of the state at the end that are not those of the run without interruptions.
    bits: usize,
}

/// The bits of losses that differ; all of a loss that is missing, or of other samples.
fn differing(found: &Trace, expected: &Trace) -> usize {
    let mut bits = found.len().abs_diff(expected.len()) * 64;
    for ((indices, loss), (other, expected)) in found.iter().zip(expected) {
        bits += match indices == other {
            true => (loss ^ expected).count_ones() as usize,
            false => 64,
        };
    }
    bits
}

/// The bits that differ; all of a byte that is missing.
fn differing_bytes(found: &[u8], expected: &[u8]) -> usize {
    let pairs = found.iter().zip(expected);
    let differing = pairs.map(|(a, b)| (a ^ b).count_ones() as usize);
    found.len().abs_diff(expected.len()) * 8 + differing.sum::<usize>()
}

fn fixed() -> Box<dyn BatchPolicy> {
    Fixed::new(4).unwrap().into()
}

/// The default policy with readings that are the same in each process: a micro-batch takes 100 bytes and 100 for each sample, and
/// the limit is 600.
#[derive(Debug, Default)]
struct Measured(Predictive);

const LIMIT: u64 = 600;

impl Measured {
    /// In a trainer with a memory this precedes each micro-batch.
    fn read(&mut self) {
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(0), Some(LIMIT));
        self.0.prepare(&now);
    }
}

impl BatchPolicy for Measured {
    fn size(&self, remaining: usize) -> usize {
        self.0.size(remaining).max(2) // one sample has no variance for BatchNorm
    }

    fn begin(&mut self, batch: &Extent) {
        self.0.begin(batch);
        self.read();
    }

    fn succeeded(&mut self, completed: &Completed) {
        let mut completed = *completed;
        completed.peak = Some(100 + 100 * completed.size as u64);
        (completed.before, completed.limit) = (Some(0), Some(LIMIT));
        self.0.succeeded(&completed);
        self.read();
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.0.failed(failed);
    }

    fn state(&self) -> Option<String> {
        self.0.state()
    }

    fn load_state(&mut self, state: &str) -> candle_headroom::Result<()> {
        self.0.load_state(state)
    }
}

/// The same values each time.
fn initialise(varmap: &VarMap) {
    let vars = varmap.data().lock().unwrap();
    for (name, var) in vars.iter() {
        let wave = Tensor::arange(0f32, var.elem_count() as f32, var.device()).unwrap();
        let wave = ((wave * 0.7).unwrap() + name.len() as f64)
            .unwrap()
            .sin()
            .unwrap();
        // Variances are not negative.
        let wave = (wave * 0.2)
            .unwrap()
            .abs()
            .unwrap()
            .to_dtype(var.dtype())
            .unwrap();
        var.set(&wave.reshape(var.shape()).unwrap()).unwrap();
    }
}

fn tensors(trainer: &impl Resumable) -> StateDict {
    let mut state = trainer.state().unwrap();
    for (name, value) in trainer.values() {
        let known = state.tensors.insert(format!("model.{name}"), value);
        assert!(known.is_none());
    }
    state
}

fn save(trainer: &impl Resumable, to: &Path) {
    tensors(trainer).save(to).unwrap();
}

fn load(trainer: &mut impl Resumable, from: &Path) {
    let mut state = StateDict::load(from).unwrap();
    for parameter in trainer.model() {
        let saved = state
            .tensors
            .remove(&format!("model.{}", parameter.name))
            .unwrap();
        parameter.var.set(&saved).unwrap();
    }
    trainer.load_state(&state).unwrap();
}

/// All bits that a later step depends on.
fn bytes(trainer: &impl Resumable) -> Vec<u8> {
    let state = tensors(trainer);
    let mut bytes = Vec::new();
    for (name, tensor) in &state.tensors {
        bytes.extend(name.as_bytes());
        tensor.write_bytes(&mut bytes).unwrap();
    }
    for (name, text) in &state.metadata {
        // What policies have learned is a matter of memory and time.
        if !name.starts_with("micro_batches.") {
            bytes.extend(format!("{name}{text}").as_bytes());
        }
    }
    bytes
}

#[test]
fn an_interrupted_run_ends_with_the_same_bits() {
    fn check<A: Algorithm>(
        name: &'static str,
        (dtype, window): (DType, usize),
        build: impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
    ) -> Checked {
        let case = Case {
            dtype,
            window,
            policy: &fixed,
            build: &build,
        };
        case.check(name)
    }
    let whole = (DType::F32, 1);
    let checked = [
        check::<ParamsAdamW>("AdamW", whole, |builder| builder),
        check::<ParamsAdamW>("AdamW in windows of 2", (DType::F32, 2), |builder| {
            builder.clip_norm(0.5)
        }),
        check::<ParamsAdamW>("8 bits", whole, |builder| {
            builder.moments(Moments::EightBit)
        }),
        check::<ParamsAdamW>("bf16 moments", whole, |builder| {
            builder.moments(Moments::Float(DType::BF16))
        }),
        check::<ParamsAdamW>(
            "bf16 with masters",
            (DType::BF16, 1),
            FusedBuilder::master_weights,
        ),
        check::<ParamsAdamW>(
            "bf16, rounded at random",
            (DType::BF16, 1),
            FusedBuilder::stochastic_rounding,
        ),
        check::<ParamsAdamW>("f16 with a loss scale", (DType::F16, 1), |builder| {
            builder.master_weights().loss_scale(LossScale::dynamic())
        }),
        check::<ParamsAdam>("Adam", whole, |builder| builder),
        check::<ParamsLion>("Lion of 8 bits", whole, |builder| {
            builder.moments(Moments::EightBit)
        }),
        check::<ParamsSgd>("Sgd", whole, |builder| {
            builder.params(ParamsSgd {
                momentum: 0.9,
                ..ParamsSgd::default()
            })
        }),
    ];
    let bits: usize = checked.iter().map(|case| case.bits).sum();
    println!(
        "figure: resume/bits_differing = {bits} bits ({} interruptions)",
        checked.iter().map(|case| case.interruptions).sum::<usize>()
    );
    let wrong: Vec<_> = checked.iter().filter(|case| case.bits > 0).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The sizes that a policy has learned are saved with the run.
#[test]
fn a_policy_that_learns_sizes_goes_on_with_them() {
    let case = Case::<ParamsAdamW> {
        dtype: DType::F32,
        window: 1,
        policy: &|| Measured::default().into(),
        build: &|builder| builder,
    };
    assert_eq!(case.check("Predictive").bits, 0);
}

/// It would repeat data, so nothing is trained, and nothing changes.
#[test]
fn a_run_whose_loader_was_not_resumed_does_not_train() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let case = Case::<ParamsAdamW> {
        dtype: DType::F32,
        window: 1,
        policy: &fixed,
        build: &|builder| builder,
    };
    case.run(None, 5, Some(&saved));
    let varmap = VarMap::new();
    let model = Model::new(&varmap, DType::F32).unwrap();
    let optimizer = Fused::<ParamsAdamW>::builder(&varmap).build().unwrap();
    let buffers = [model.norm.running_mean(), model.norm.running_var()];
    let builder = AdaptiveTrainer::builder(optimizer).buffers(buffers);
    let mut trainer = builder.build().unwrap();
    load(&mut trainer, &saved);
    let before = bytes(&trainer);
    let batch = loader().next().unwrap().unwrap();
    let error = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("call `loader.resume(&trainer)`"), "{text}");
    assert!(bytes(&trainer) == before);
}
