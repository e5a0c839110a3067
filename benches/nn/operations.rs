//! Each operation against candle's composition of plain operations, forward and backward, and against candle's fused forward pass.

use candle_core::{D, Device, Result, Tensor, Var};
use candle_headroom::{DeviceMemory, nn};
use candle_nn::attention::{AttnMask, flash_attn};
use candle_nn::{Module, loss, ops, rotary_emb};

use crate::support::{Contender, alternate, figure};

type Run = Box<dyn Fn() -> Result<Tensor>>;

/// An operation, and others that compute the same.
struct Comparison {
    name: &'static str,
    ours: Run,
    composition: Run,
    /// candle's forward pass, fused where candle has one.
    candle: Run,
}

fn var(shape: &[usize]) -> Result<Tensor> {
    Ok(Var::randn(0f32, 1., shape, &Device::Cpu)?.into_inner())
}

/// Runs an operation on its inputs.
fn run<const N: usize>(
    inputs: &[Tensor; N],
    operation: impl Fn(&[Tensor; N]) -> Result<Tensor> + 'static,
) -> Run {
    let inputs = inputs.clone();
    Box::new(move || operation(&inputs))
}

fn comparisons() -> Result<Vec<Comparison>> {
    const EPSILON: f32 = 1e-5;
    let scores = [var(&[4, 8, 256, 256])?];
    let rms = [var(&[8, 256, 1024])?, var(&[1024])?];
    let layer = [var(&[8, 256, 1024])?, var(&[1024])?, var(&[1024])?];
    let angles = Tensor::randn(0f32, 1., (512, 32), &Device::Cpu)?;
    let rotated = [var(&[4, 8, 512, 64])?, angles.cos()?, angles.sin()?];
    let attended = [
        var(&[4, 8, 512, 64])?,
        var(&[4, 8, 512, 64])?,
        var(&[4, 8, 512, 64])?,
    ];
    let targets = (0..2048u32).map(|row| row * 37 % 4096);
    let classes = [
        var(&[2048, 4096])?,
        Tensor::from_iter(targets, &Device::Cpu)?,
    ];
    let halves = [var(&[8, 256, 2048])?];
    let pictures = [var(&[8, 64, 32, 32])?, var(&[64])?, var(&[64])?];
    let linear = [var(&[8, 256, 1024])?, var(&[1024, 1024])?, var(&[1024])?];
    let plain = [var(&[8, 256, 1024])?];
    Ok(vec![
        Comparison {
            name: "softmax",
            ours: run(&scores, |[x]| nn::ops::softmax_last_dim(x)),
            composition: run(&scores, |[x]| ops::softmax(x, D::Minus1)),
            candle: run(&scores, |[x]| ops::softmax_last_dim(x)),
        },
        Comparison {
            name: "rms_norm",
            ours: run(&rms, |[x, weight]| nn::ops::rms_norm(x, weight, EPSILON)),
            composition: run(&rms, |[x, weight]| ops::rms_norm_slow(x, weight, EPSILON)),
            candle: run(&rms, |[x, weight]| ops::rms_norm(x, weight, EPSILON)),
        },
        Comparison {
            name: "layer_norm",
            ours: run(&layer, |[x, weight, bias]| {
                nn::ops::layer_norm(x, weight, bias, EPSILON)
            }),
            composition: run(&layer, |[x, weight, bias]| {
                ops::layer_norm_slow(x, weight, bias, EPSILON)
            }),
            candle: run(&layer, |[x, weight, bias]| {
                ops::layer_norm(x, weight, bias, EPSILON)
            }),
        },
        Comparison {
            name: "rope",
            ours: run(&rotated, |[x, cos, sin]| nn::rotary_emb::rope(x, cos, sin)),
            composition: run(&rotated, |[x, cos, sin]| rotary_emb::rope_slow(x, cos, sin)),
            candle: run(&rotated, |[x, cos, sin]| rotary_emb::rope(x, cos, sin)),
        },
        Comparison {
            name: "attention",
            ours: run(&attended, |[q, k, v]| {
                nn::attention(q, k, v, &nn::Attention::default().causal())
            }),
            composition: run(&attended, |[q, k, v]| composed_attention(q, k, v)),
            candle: run(&attended, |[q, k, v]| {
                let by_token = |x: &Tensor| x.transpose(1, 2)?.contiguous();
                let (q, k, v) = (by_token(q)?, by_token(k)?, by_token(v)?);
                flash_attn::<f32>(&q, &k, &v, 0.125, AttnMask::causal(), None, None)
            }),
        },
        Comparison {
            name: "cross_entropy",
            ours: run(&classes, |[x, targets]| nn::loss::cross_entropy(x, targets)),
            composition: run(&classes, |[x, targets]| loss::cross_entropy(x, targets)),
            candle: run(&classes, |[x, targets]| loss::cross_entropy(x, targets)),
        },
        Comparison {
            name: "swiglu",
            ours: run(&halves, |[x]| nn::ops::swiglu(x)),
            composition: run(&halves, |[x]| ops::swiglu(x)),
            candle: run(&halves, |[x]| ops::swiglu(x)),
        },
        Comparison {
            name: "group_norm",
            ours: run(&pictures, |[x, weight, bias]| {
                let [weight, bias] = [weight, bias].map(Tensor::clone);
                nn::GroupNorm::new(weight, bias, 64, 8, 1e-5)?.forward(x)
            }),
            composition: run(&pictures, |[x, weight, bias]| {
                composed_group_norm(x, weight, bias)
            }),
            candle: run(&pictures, |[x, weight, bias]| {
                composed_group_norm(x, weight, bias)
            }),
        },
        Comparison {
            name: "linear_with_bias",
            ours: run(&linear, |[x, weight, bias]| {
                nn::Linear::new(weight.clone(), Some(bias.clone())).forward(x)
            }),
            composition: run(&linear, |[x, weight, bias]| {
                candle_nn::Linear::new(weight.clone(), Some(bias.clone())).forward(x)
            }),
            candle: run(&linear, |[x, weight, bias]| {
                candle_nn::Linear::new(weight.clone(), Some(bias.clone())).forward(x)
            }),
        },
        Comparison {
            name: "gelu",
            ours: run(&plain, |[x]| nn::Activation::GeluPytorchTanh.forward(x)),
            composition: run(&plain, |[x]| {
                candle_nn::Activation::GeluPytorchTanh.forward(x)
            }),
            candle: run(&plain, |[x]| x.gelu()),
        },
        Comparison {
            name: "dropout",
            ours: run(&plain, |[x]| nn::ops::dropout(x, 0.1)),
            composition: run(&plain, |[x]| ops::dropout(x, 0.1)),
            candle: run(&plain, |[x]| ops::dropout(x, 0.1)),
        },
    ])
}

fn composed_group_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    candle_nn::GroupNorm::new(weight.clone(), bias.clone(), 64, 8, 1e-5)?.forward(x)
}

/// Causal attention of plain operations, with the whole matrix of scores.
pub fn composed_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (.., time, width) = q.dims4()?;
    let ahead = (0..time).flat_map(|i| (0..time).map(move |j| u8::from(j > i)));
    let ahead = Tensor::from_iter(ahead, &Device::Cpu)?.reshape((time, time))?;
    let scores = (q.matmul(&k.t()?)? / (width as f64).sqrt())?;
    let ahead = ahead.broadcast_as(scores.shape())?;
    let never = Tensor::new(f32::NEG_INFINITY, &Device::Cpu)?.broadcast_as(scores.shape())?;
    ops::softmax(&ahead.where_cond(&never, &scores)?, D::Minus1)?.matmul(v)
}

/// MiB that the output and its graph hold besides the inputs.
fn kept(memory: &DeviceMemory, run: &Run) -> Result<f64> {
    let in_use = || memory.in_use().unwrap_or_default() as f64 / (1 << 20) as f64;
    let before = in_use();
    let output = run()?;
    let kept = in_use() - before;
    drop(output);
    Ok(kept)
}

fn step(run: &Run) {
    let loss = run().and_then(|output| output.sum_all());
    loss.and_then(|loss| loss.backward()).expect("a step");
}

/// Compares all operations, `rounds` times each.
pub fn compare(memory: &DeviceMemory, rounds: usize) -> Result<()> {
    for Comparison {
        name,
        ours,
        composition,
        candle,
    } in comparisons()?
    {
        let (lean, plain) = (kept(memory, &ours)?, kept(memory, &composition)?);
        println!("{name} keeps {lean:.2} MiB, the composition {plain:.2} MiB");
        let detached = |run: &Run| drop(run().expect("an output"));
        let contenders = vec![
            Contender::new("ours", || step(&ours)),
            Contender::new("composition", || step(&composition)),
        ];
        let steps = alternate(contenders, rounds);
        steps.print(name, 1);
        let ratio = steps.ratio("ours", "composition");
        figure(&format!("nn/{name}_step_vs_composition"), ratio, "x");
        // By themselves: what runs before leaves caches and heap cold or warm.
        let contenders = vec![
            Contender::new("ours, forward", || detached(&ours)),
            Contender::new("candle, forward", || detached(&candle)),
        ];
        let forwards = alternate(contenders, rounds);
        forwards.print(name, 1);
        let ratio = forwards.ratio("ours, forward", "candle, forward");
        figure(&format!("nn/{name}_forward_vs_candle_fused"), ratio, "x");
    }
    Ok(())
}
