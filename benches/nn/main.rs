//! Layers of `candle_headroom::nn` against candle's compositions of plain operations: time, and memory kept for each sample.
//!
//! `cargo bench --bench nn [-- --quick]`

mod composed;
mod llama;
mod operations;
#[path = "../support/mod.rs"]
mod support;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::{DeviceMemory, TrackingAllocator, nn};
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap};
use llama::{Composition, Lean, Llama, TIME, slope_of, texts};
use support::transformer::{Config, Transformer};
use support::{Contender, alternate, figure, is_quick, measures_with_steady_heap};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const MIB: f64 = (1 << 20) as f64;

fn llama(rounds: usize) -> candle_headroom::Result<()> {
    let model = Llama::new()?;
    let (tokens, next) = texts(8)?;
    let losses = [
        model
            .loss::<Composition>(&tokens, &next)?
            .to_scalar::<f32>()?,
        model.loss::<Lean>(&tokens, &next)?.to_scalar()?,
        model.loss_in_parts::<Lean>(&tokens, &next)?.to_scalar()?,
        model
            .loss_without_scores::<Lean>(&tokens, &next)?
            .to_scalar()?,
    ];
    println!("llama2-c, 8 samples of {TIME} tokens: losses {losses:?}");
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4));

    let memory = DeviceMemory::host().open()?;
    let slope = |loss: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| {
        slope_of(&memory, |samples| {
            texts(samples).and_then(|(x, y)| loss(&x, &y))
        })
    };
    let composition = slope(&|x, y| model.loss::<Composition>(x, y))?;
    let lean = slope(&|x, y| model.loss::<Lean>(x, y))?;
    let in_parts = slope(&|x, y| model.loss_in_parts::<Lean>(x, y))?;
    let without_scores = slope(&|x, y| model.loss_without_scores::<Lean>(x, y))?;
    figure("nn/llama2c_composition_mib_per_sample", composition, "MiB");
    figure("nn/llama2c_mib_per_sample", lean, "MiB");
    figure("nn/llama2c_loss_in_parts_mib_per_sample", in_parts, "MiB");
    figure(
        "nn/llama2c_linear_cross_entropy_mib_per_sample",
        without_scores,
        "MiB",
    );

    let step = |loss: Result<Tensor>| drop(loss.and_then(|loss| loss.backward()).expect("a step"));
    let contenders = vec![
        Contender::new("composition", || {
            step(model.loss::<Composition>(&tokens, &next));
        }),
        Contender::new("ours", || step(model.loss::<Lean>(&tokens, &next))),
        Contender::new("without scores", || {
            step(model.loss_without_scores::<Lean>(&tokens, &next));
        }),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print("llama2-c, a step of 8 samples", 1);
    let ratio = rounds.ratio("ours", "composition");
    figure("nn/llama2c_step_vs_composition", ratio, "x");
    let ratio = rounds.ratio("without scores", "composition");
    figure(
        "nn/llama2c_linear_cross_entropy_step_vs_composition",
        ratio,
        "x",
    );
    let ratio = rounds.ratio("without scores", "ours");
    figure("nn/llama2c_linear_cross_entropy_step_vs_logits", ratio, "x");
    Ok(())
}

/// The peak of causal attention over long texts, forward and backward.
fn long_attention() -> candle_headroom::Result<()> {
    const TOKENS: usize = 4096;
    let memory = DeviceMemory::host().open()?;
    let input = || Var::randn(0f32, 1., (1, 8, TOKENS, 64), &Device::Cpu).map(Var::into_inner);
    let (q, k, v) = (input()?, input()?, input()?);
    let peak = |attend: &dyn Fn() -> Result<Tensor>| -> candle_headroom::Result<f64> {
        let scope = memory.peak_scope();
        attend()?.sum_all()?.backward()?;
        Ok((scope.peak().unwrap_or_default() - scope.start().unwrap_or_default()) as f64 / MIB)
    };
    let causal = nn::Attention::default().causal();
    let ours = peak(&|| nn::attention(&q, &k, &v, &causal))?;
    let composition = peak(&|| operations::composed_attention(&q, &k, &v))?;
    figure("nn/attention_4096_tokens_mib", ours, "MiB");
    figure(
        "nn/attention_4096_tokens_composition_mib",
        composition,
        "MiB",
    );
    Ok(())
}

/// The losses of ten steps of one model, from the weights of the first.
fn curve(
    maps: &[VarMap; 2],
    which: usize,
    loss: impl Fn() -> Result<Tensor>,
) -> candle_headroom::Result<Vec<f32>> {
    if which > 0 {
        let [from, into] = maps;
        let from = from.data().lock().expect("weights");
        for (name, var) in into.data().lock().expect("weights").iter() {
            var.set(&from[name])?;
        }
    }
    let vars = maps[which].all_vars();
    let initial = vars
        .iter()
        .map(|var| var.copy())
        .collect::<Result<Vec<_>>>()?;
    let mut sgd = SGD::new(vars.clone(), 0.1)?;
    let losses = (0..10).map(|_| {
        let loss = loss()?;
        sgd.backward_step(&loss)?;
        loss.to_scalar::<f32>()
    });
    let losses = losses.collect::<Result<Vec<_>>>()?;
    for (var, initial) in vars.iter().zip(&initial) {
        var.set(initial)?;
    }
    Ok(losses)
}

/// The model of `train_text`, as it is and with the plain operations that it had before.
fn train_text(rounds: usize) -> candle_headroom::Result<()> {
    let config = (128, 128, 4, 4);
    let (context, width, heads, layers) = config;
    let vb = |varmap: &VarMap| VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu);
    let maps = [VarMap::new(), VarMap::new()];
    let now = Transformer::new(
        Config {
            context,
            width,
            heads,
            layers,
        },
        vb(&maps[0]),
    )?;
    let before = composed::Config {
        context,
        width,
        heads,
        layers,
    };
    let before = composed::Transformer::new(before, vb(&maps[1]))?;
    let bytes = |samples: usize| -> Result<Tensor> {
        let bytes = (0..samples * context).map(|i| (i * 31 % 251) as u32);
        Tensor::from_iter(bytes, &Device::Cpu)?.reshape((samples, context))
    };
    let x = bytes(8)?;
    let losses = [
        curve(&maps, 0, || now.loss(&x, &x))?,
        curve(&maps, 1, || before.loss(&x, &x))?,
    ];
    println!(
        "train_text, ten steps: {:?} and before {:?}",
        losses[0], losses[1]
    );
    let apart = losses[0]
        .iter()
        .zip(&losses[1])
        .map(|(a, b)| (a - b).abs() / b);
    assert!(apart.fold(0., f32::max) < 1e-3, "the losses differ");
    let memory = DeviceMemory::host().open()?;
    let slope = |loss: &dyn Fn(&Tensor) -> Result<Tensor>| -> candle_headroom::Result<f64> {
        slope_of(&memory, |samples| {
            bytes(samples).and_then(|bytes| loss(&bytes))
        })
    };
    let ours = slope(&|x| now.loss(x, x))?;
    let composition = slope(&|x| before.loss(x, x))?;
    figure("nn/train_text_before_mib_per_sample", composition, "MiB");
    figure("nn/train_text_mib_per_sample", ours, "MiB");
    figure(
        "nn/train_text_mib_per_sample_vs_before",
        ours / composition,
        "x",
    );
    let with_logits = |x: &Tensor| -> Result<Tensor> {
        let logits = now.forward(x)?.flatten_to(1)?;
        nn::loss::cross_entropy(&logits, &x.flatten_all()?)
    };
    let logits = slope(&|x| with_logits(x))?;
    figure("nn/train_text_with_logits_mib_per_sample", logits, "MiB");
    let step = |loss: Result<Tensor>| drop(loss.and_then(|loss| loss.backward()).expect("a step"));
    let contenders = vec![
        Contender::new("before", || step(before.loss(&x, &x))),
        Contender::new("now", || step(now.loss(&x, &x))),
        Contender::new("now with logits", || step(with_logits(&x))),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print("train_text, a step of 8 samples", 1);
    figure(
        "nn/train_text_step_vs_before",
        rounds.ratio("now", "before"),
        "x",
    );
    figure(
        "nn/train_text_step_vs_logits",
        rounds.ratio("now", "now with logits"),
        "x",
    );
    Ok(())
}

fn main() -> candle_headroom::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let rounds = if is_quick() { 5 } else { 41 };
    llama(rounds)?;
    train_text(rounds)?;
    operations::compare(&DeviceMemory::host().open()?, rounds)?;
    long_attention()?;
    Ok(())
}
