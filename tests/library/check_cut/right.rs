use std::cell::Cell;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{CutFinding, Fixed, MicroBatch, Recompute};
use candle_headroom::error::CutCause;
use candle_headroom::nn::{self, Attention, attention, ops};
use candle_headroom::train::StepReport;
use candle_headroom::{AdamW, AdaptiveTrainer, Error, Loss, Sgd};

type Result<T, E = candle_core::Error> = std::result::Result<T, E>;
use candle_nn::{VarBuilder, VarMap, rnn};

use super::{Case, TYPES, case, cause, column, each, positive, read};
use crate::support::transformer::{Config, Transformer, VOCABULARY};
use crate::support::{ConvNet, Mlp, foreign, settle, wave};

/// What may be found of a right closure.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Agrees,
    Random,
    /// Nothing can be told, or it agrees.
    Any,
}
use Expected::{Agrees, Any, Random};

fn mean(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    each(model, x, y)?.mean_all()
}

fn kept(model: &Mlp, x: &Tensor, y: &Tensor) -> Result<(Tensor, f64)> {
    let keep = positive(y)?;
    let sum = ((model.forward(x)? - y)?.sqr()? * &keep)?.sum_all()?;
    Ok((sum, read(&keep.sum_all()?)?))
}

/// Advantages that were normalized before the step: the loss is the difference of large sums.
fn near_zero(model: &Mlp, x: &Tensor, y: &Tensor, micro: &MicroBatch) -> Result<Tensor> {
    let signs = micro
        .samples
        .clone()
        .map(|i| if i % 2 == 0 { 1. } else { -1. });
    let signs = Tensor::from_iter(signs.collect::<Vec<f64>>(), &Device::Cpu)?;
    let signs = signs.to_dtype(x.dtype())?;
    let flat = (column(&model.forward(x)?, 0)? + column(y, 0)?.zeros_like()?)?;
    ((flat * 1e-3)? * signs)?.mean_all()
}

/// Sums of tokens within each sample that cancel out.
fn centred(model: &Mlp, x: &Tensor, _: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let out = model.forward(x)?;
    let means = out.mean_keepdim(1)?;
    let squares = out.broadcast_sub(&means)?.sqr()?.mean_all()?;
    out.broadcast_sub(&means)?.mean_all()? + (squares * 1e-4)?
}

/// Each query and key is a sample's own: the key's bias has a gradient of rounding errors only.
fn attends(model: &Mlp, x: &Tensor, y: &Tensor, _: &MicroBatch) -> Result<Tensor> {
    let options = Attention::default().dropout(0.5);
    let tokens = x.reshape((x.dim(0)?, 1, 3, 2))?;
    let mixed = attention(&tokens, &tokens, &tokens, &options)?;
    each(model, &mixed.reshape(x.shape())?, y)?.mean_all()
}

/// Numbers of a generator of the program's own.
fn noise(seed: u64, x: &Tensor) -> Result<Tensor> {
    let phase = (seed % 1000) as usize;
    wave(x.elem_count(), phase, x.dtype())?.reshape(x.shape())
}

fn closures() -> Vec<(Case, Expected)> {
    let calls = Cell::new(0);
    vec![
        (case("a mean", mean), Agrees),
        (
            case("a sum of tokens", |model, x, y, _| {
                let (sum, count) = kept(model, x, y)?;
                Ok(Loss::sum(sum, count))
            }),
            Agrees,
        ),
        (
            case("a mean of tokens", |model, x, y, _| {
                let (sum, count) = kept(model, x, y)?;
                Ok(Loss::weighted_mean((sum / count)?, count))
            }),
            Agrees,
        ),
        (
            // NaN where nothing is kept.
            case("few are kept", |model, x, y, micro| {
                let keep = micro.samples.clone().map(|i| f32::from(i == 1 || i == 4));
                let keep = Tensor::from_iter(keep.collect::<Vec<_>>(), &Device::Cpu)?;
                let keep = keep.to_dtype(x.dtype())?;
                let count = read(&keep.sum_all()?)?;
                let sum = (each(model, x, y)? * keep)?.sum_all()?;
                Ok(Loss::weighted_mean((sum / count)?, count))
            }),
            Agrees,
        ),
        (
            case("weight decay in the loss", |model, x, y, micro| {
                let first = model.vars[1].sqr()?.sum_all()?;
                mean(model, x, y, micro)? + (first * 0.1)?
            }),
            Agrees,
        ),
        (
            case(
                "values of the batch by their samples",
                |model, x, y, micro| {
                    let weights = micro.samples.clone().map(|i| (i % 5) as f32 + 0.5);
                    let weights = Tensor::from_iter(weights.collect::<Vec<_>>(), &Device::Cpu)?;
                    (each(model, x, y)? * weights.to_dtype(x.dtype())?)?.mean_all()
                },
            ),
            Agrees,
        ),
        (
            case("large", |model, x, y, micro| {
                mean(model, x, y, micro)? * 1e3
            }),
            Agrees,
        ),
        (
            case("tiny", |model, x, y, micro| {
                mean(model, x, y, micro)? * 1e-4
            }),
            Any,
        ),
        (case("near zero", near_zero), Any),
        (case("cancels out", centred), Any),
        (
            case("no gradient", |model, x, y, _| {
                (each(model, x, y)? - 1e4)?.relu()?.mean_all()
            }),
            Any,
        ),
        (
            case("not a number", |model, x, y, micro| {
                mean(model, x, y, micro)? * f64::NAN
            }),
            Any,
        ),
        (
            case("dropout", |model, x, y, _| {
                each(model, &ops::dropout(x, 0.5)?, y)?.mean_all()
            }),
            Agrees,
        ),
        (case("dropout of attention", attends), Agrees),
        (
            case("a region with dropout", |model, x, y, _| {
                let x = nn::recompute(x, |x| ops::dropout(x, 0.3)?.tanh())?;
                each(model, &x, y)?.mean_all()
            }),
            Agrees,
        ),
        (
            case("candle's dropout", |model, x, y, _| {
                each(model, &candle_nn::ops::dropout(x, 0.5)?, y)?.mean_all()
            }),
            Random,
        ),
        (
            case("numbers by the seed", |model, x, y, micro| {
                each(model, &(x + noise(micro.seed(), x)?)?, y)?.mean_all()
            }),
            Random,
        ),
        (
            case("numbers of its own", move |model, x, y, _| {
                calls.set(calls.get() + 1);
                each(model, &(x + noise(calls.get(), x)?)?, y)?.mean_all()
            }),
            Random,
        ),
    ]
}

/// Counts closures that are refused.
#[derive(Default)]
struct Count {
    refused: usize,
    tried: usize,
}

impl Count {
    fn note(&mut self, name: &str, done: Result<StepReport, Error>, expected: Expected) {
        self.tried += 1;
        let report = match done {
            Ok(report) => report,
            Err(error) => {
                assert!(cause(&error).is_some(), "{name}: {error}");
                println!("{name}: {error}");
                self.refused += 1;
                return;
            }
        };
        let finding = &report.cut_check().expect(name).finding;
        let is_expected = match expected {
            Agrees => *finding == CutFinding::Agrees,
            Random => *finding == CutFinding::Random,
            Any => matches!(finding, CutFinding::Agrees | CutFinding::Undecided(_)),
        };
        assert!(is_expected, "{name}: {finding:?}");
    }
}

/// Few numbers are equal by chance, also those of two seeds.
#[test]
fn closures_that_draw_few_numbers_are_not_refused() {
    let x = Tensor::arange(1f32, 7., &Device::Cpu).unwrap();
    let mut found = [0; 2];
    for seed in 0..40 {
        // One number for all samples, and one for each.
        for (kind, shift) in [0, 1].into_iter().enumerate() {
            let w = Var::new(&[0.5f32], &Device::Cpu).unwrap();
            let optimizer = Sgd::builder(vec![w.clone()]).build().unwrap();
            let builder = AdaptiveTrainer::builder(optimizer).seed(seed);
            let builder = builder.policy(Fixed::new(2).unwrap());
            let report = builder.build().unwrap().step(&x, |x, micro| {
                let coin = |i: usize| ((micro.seed() >> (shift * i)) & 1) as f32;
                let coins = Tensor::from_iter((0..x.dim(0)?).map(coin), x.device())?;
                let y = x.mul(&coins)?.broadcast_mul(&w)?;
                y.affine(1., 1.)?.sqr()?.mean_all()
            });
            let report = report.unwrap();
            let finding = &report.cut_check().unwrap().finding;
            found[kind] += usize::from(*finding == CutFinding::Random);
        }
    }
    assert!(found.iter().all(|random| *random > 10), "{found:?}");
}

/// The losses of the first two calls are rounded to the same value, though their gradients point in opposite directions.
#[test]
fn random_numbers_show_in_a_later_call() {
    let x = Tensor::ones(4, DType::BF16, &Device::Cpu).unwrap();
    let w = Var::ones(1, DType::BF16, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()]).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let calls = Cell::new(0);
    let check = trainer.check_cut(&x, |x, _| {
        calls.set(calls.get() + 1);
        let factor = [0.1, -0.1, 0.1, 0.1].get(calls.get() - 1).unwrap_or(&50.);
        (x.affine(*factor, 0.)?.broadcast_mul(&w)? + 100.)?.mean_all()
    });
    assert_eq!(check.unwrap().finding, CutFinding::Random);
}

#[test]
fn right_closures_are_not_refused() {
    let mut count = Count::default();
    for dtype in TYPES {
        for (samples, size) in [(2, 1), (3, 1), (3, 2), (12, 5), (40, 16)] {
            for (case, expected) in closures() {
                let name = format!("{} in {dtype:?}, {samples} in {size}", case.name);
                count.note(&name, case.step(dtype, samples, size), expected);
            }
        }
    }
    models(&mut count).unwrap();
    println!("{} right closures", count.tried);
    println!(
        "figure: cut/right_closures_refused = {} closures",
        count.refused
    );
    assert_eq!(count.refused, 0);
}

/// Bytes of texts of different lengths: the next one of each, and whether it counts.
fn texts(samples: usize, time: usize) -> Result<(Tensor, Tensor, Tensor)> {
    let at = |i: usize| (i * i * 31 + i * 7) as u32 % VOCABULARY as u32;
    let bytes = Tensor::from_iter((0..samples * (time + 1)).map(at), &Device::Cpu)?;
    let bytes = bytes.reshape((samples, time + 1))?;
    let counts = (0..samples * time).map(|i| f32::from(i % time < 2 + (i / time * 5) % (time - 2)));
    let counts = Tensor::from_iter(counts.collect::<Vec<_>>(), &Device::Cpu)?;
    let (x, y) = (bytes.narrow(1, 0, time)?, bytes.narrow(1, 1, time)?);
    Ok((
        x.contiguous()?,
        y.contiguous()?,
        counts.reshape((samples, time))?,
    ))
}

fn models(count: &mut Count) -> Result<(), Error> {
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        for (layers, recompute) in [(1, Recompute::Auto), (8, Recompute::Always)] {
            let config = Config {
                context: 16,
                width: 32,
                heads: 4,
                layers,
            };
            let varmap = VarMap::new();
            let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
            let mut model = Transformer::new(config, vb)?;
            model.marks_blocks = recompute == Recompute::Always;
            let (x, y, counts) = texts(12, 16)?;
            let name = |what| format!("transformer of {layers} layers in {dtype:?}, {what}");
            let trainer = || {
                let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
                let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(8)?);
                builder.recompute(recompute).build()
            };
            let done = trainer()?.step(&(x.clone(), y.clone()), |(x, y), _| model.loss(&x, &y));
            count.note(&name("mean of all"), done, Agrees);
            let done = trainer()?.step(&(x, y, counts), |(x, y, counts), _| {
                let rows = x.elem_count();
                let scores = model.forward(&x)?.reshape((rows, VOCABULARY))?;
                let chances = nn::ops::log_softmax(&scores, 1)?;
                let own = chances
                    .gather(&y.reshape((rows, 1))?, 1)?
                    .reshape(x.shape())?;
                let tokens = read(&counts.sum_all()?)?;
                let sum = (own.to_dtype(DType::F32)? * counts)?.sum_all()?.neg()?;
                Ok(Loss::weighted_mean((sum / tokens)?, tokens))
            });
            count.note(&name("mean of tokens"), done, Agrees);
        }
    }
    mixed(count)?;
    recurrent(count)
}

/// Parameters in f32 or f64 and a model that computes in bf16 show no coarse type.
fn mixed(count: &mut Count) -> Result<(), Error> {
    for dtype in [DType::F64, DType::F32] {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
        let names: Vec<_> = (0..12).map(|i| format!("w{i}")).collect();
        let weights = names.iter().map(|name| vb.get((32, 32), name));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        settle(&varmap);
        let optimizer = Sgd::builder(&varmap).learning_rate(1e-3).build()?;
        let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(7)?);
        let x = wave(20 * 32, 3, dtype)?.reshape((20, 32))?;
        let done = builder.build()?.step(&x, |x, _| {
            let mut x = x.to_dtype(DType::BF16)?;
            for weight in &weights {
                x = x.matmul(&weight.to_dtype(DType::BF16)?)?.tanh()?;
            }
            x.to_dtype(dtype)?.sqr()?.mean_all()
        });
        count.note(&format!("bf16 within {dtype:?}"), done, Agrees);
    }
    Ok(())
}

fn recurrent(count: &mut Count) -> Result<(), Error> {
    use rnn::RNN;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let lstm = rnn::lstm(6, 8, rnn::LSTMConfig::default(), vb)?;
    settle(&varmap);
    let optimizer = Sgd::builder(&varmap).learning_rate(1e-3).build()?;
    let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(8)?);
    let x = wave(12 * 30 * 6, 3, DType::F32)?.reshape((12, 30, 6))?;
    let done = builder.build()?.step(&x, |x, _| {
        let states = lstm.seq(&x)?;
        states
            .last()
            .map_or(x.mean_all(), |last| last.h().sqr()?.mean_all())
    });
    count.note("LSTM", done, Agrees);
    Ok(())
}

/// BatchNorm depends on the cut in every framework: a warning, and its statistics are those of the micro-batches alone.
#[test]
fn batch_norm_is_an_event() {
    let run = |checks: bool| {
        let net = ConvNet::new();
        let statistics = [net.norm.running_mean(), net.norm.running_var()];
        let builder = AdaptiveTrainer::builder(foreign::<candle_nn::SGD>(&net.trained(), 0.1));
        let builder = builder.policy(Fixed::new(8).unwrap()).buffers(statistics);
        let builder = match checks {
            true => builder,
            false => builder.unchecked_cuts(),
        };
        let mut trainer = builder.build().unwrap();
        let batch = ConvNet::data(20);
        let check = trainer
            .check_cut(&batch, |(x, y), _| net.loss(&x, &y))
            .unwrap();
        assert_eq!(check.finding, CutFinding::ChangesBuffers);
        let report = trainer.step(&batch, |(x, y), _| net.loss(&x, &y)).unwrap();
        (report, crate::support::snapshot(&net.vars))
    };
    let ((report, vars), (other, others)) = (run(true), run(false));
    let check = report.cut_check().unwrap();
    assert_eq!(
        (check.samples, &check.finding),
        (7, &CutFinding::ChangesBuffers)
    );
    assert!(format!("{report:#}").contains("BatchNorm"), "{report:#}");
    assert_eq!((other.cut_check(), vars), (None, others));
}

/// The statistics of a micro-batch do not explain a loss that is as many times larger as there are samples.
#[test]
fn a_sum_behind_batch_norm_is_refused() {
    for size in [2, 3, 7, 8] {
        let net = ConvNet::new();
        let statistics = [net.norm.running_mean(), net.norm.running_var()];
        let builder = AdaptiveTrainer::builder(foreign::<candle_nn::SGD>(&net.trained(), 0.1));
        let builder = builder.policy(Fixed::new(size).unwrap());
        let mut trainer = builder.buffers(statistics).build().unwrap();
        let error = trainer.step(&ConvNet::data(20), |(x, y), _| {
            net.loss(&x, &y)? * x.dim(0)? as f64
        });
        assert_eq!(super::cause(&error.unwrap_err()), Some(CutCause::Sum));
    }
}

/// In evaluation mode BatchNorm uses fixed statistics, which is no dependence on the cut.
#[test]
fn frozen_batch_norm_agrees() {
    use candle_nn::ModuleT;
    let net = ConvNet::new();
    let sgd = foreign::<candle_nn::SGD>(&net.trained(), 0.1);
    let mut trainer = AdaptiveTrainer::builder(sgd).build().unwrap();
    let (x, _) = ConvNet::data(9);
    let check = trainer.check_cut(&x, |x, _| {
        let x = Tensor::cat(&[&x, &x, &x, &x], 1)?;
        net.norm.forward_t(&x, false)?.sqr()?.mean_all()
    });
    assert_eq!(check.unwrap().finding, CutFinding::Agrees);
}
