//! The loss without logits against a product and a cross-entropy: forward and backward, with the gradients of hidden states and weight.

use candle_core::{Device, Result, Tensor, Var};
use candle_headroom::nn::loss::{self, LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::{DeviceMemory, nn};
use candle_nn::Module;

use crate::support::{Contender, alternate, figure};

const TOKENS: usize = 2048;
const WIDTH: usize = 512;
const VOCABULARY: usize = 32_000;

const MIB: f64 = (1 << 20) as f64;

struct Head {
    hidden: Var,
    weight: Var,
    targets: Tensor,
}

impl Head {
    fn new() -> Result<Self> {
        let targets = (0..TOKENS).map(|token| (token * 7919 % VOCABULARY) as u32);
        let scale = 1. / (WIDTH as f64).sqrt();
        Ok(Self {
            hidden: Var::randn(0f32, 1., (TOKENS, WIDTH), &Device::Cpu)?,
            weight: Var::from_tensor(
                &(Tensor::randn(0f32, 1., (VOCABULARY, WIDTH), &Device::Cpu)? * scale)?,
            )?,
            targets: Tensor::from_iter(targets, &Device::Cpu)?,
        })
    }

    /// candle's product, log-softmax and negative logarithm.
    fn plain(&self) -> Result<Tensor> {
        let logits = candle_nn::Linear::new(self.weight.as_tensor().clone(), None);
        candle_nn::loss::cross_entropy(&logits.forward(&self.hidden)?, &self.targets)
    }

    /// `nn::Linear` and `nn::loss::cross_entropy`.
    fn layers(&self) -> Result<Tensor> {
        let logits = nn::Linear::new(self.weight.as_tensor().clone(), None);
        loss::cross_entropy(&logits.forward(&self.hidden)?, &self.targets)
    }

    fn without_logits(&self, options: &LinearCrossEntropy) -> Result<Tensor> {
        linear_cross_entropy(&self.hidden, &self.weight, &self.targets, options)
    }

    /// The squared norms of both gradients, and the loss.
    fn facts(&self, loss: &Tensor) -> Result<[f64; 3]> {
        let gradients = loss.backward()?;
        let norm = |var: &Var| -> Result<f64> {
            let gradient = gradients.get(var).expect("a gradient");
            Ok(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?.into())
        };
        let loss = loss.to_scalar::<f32>()?.into();
        Ok([norm(&self.hidden)?, norm(&self.weight)?, loss])
    }
}

/// Runs forward and backward.
fn step(loss: Result<Tensor>) -> Result<()> {
    loss?.backward().map(drop)
}

pub fn compare(memory: &DeviceMemory, quick: bool) -> candle_headroom::Result<()> {
    let head = Head::new()?;
    let plain = LinearCrossEntropy::default();
    let [expected, layers, found] =
        [head.plain()?, head.layers()?, head.without_logits(&plain)?].map(|loss| head.facts(&loss));
    let (expected, layers, found) = (expected?, layers?, found?);
    println!("loss of {TOKENS} tokens, {VOCABULARY} classes, width {WIDTH}");
    println!(
        "  norms of gradients, loss: {expected:?}, layers {layers:?}, without logits {found:?}"
    );
    for (found, expected) in found.iter().chain(&layers).zip(expected.iter().cycle()) {
        assert!((found / expected - 1.).abs() < 1e-3, "the losses differ");
    }

    // Above the inputs: logits, their gradients, the gradients of hidden states and weight, and what products copy.
    let peak = |loss: &dyn Fn() -> Result<Tensor>| -> candle_headroom::Result<f64> {
        let scope = memory.peak_scope();
        step(loss())?;
        Ok((scope.peak().unwrap_or_default() - scope.start().unwrap_or_default()) as f64 / MIB)
    };
    let of_plain = peak(&|| head.plain())?;
    let of_layers = peak(&|| head.layers())?;
    let ours = peak(&|| head.without_logits(&plain))?;
    figure("fit/loss_peak_plain_mib", of_plain, "MiB");
    figure("fit/loss_peak_layers_mib", of_layers, "MiB");
    figure("fit/linear_cross_entropy_peak_mib", ours, "MiB");
    figure(
        "fit/linear_cross_entropy_peak_vs_plain",
        ours / of_plain,
        "x",
    );
    figure(
        "fit/linear_cross_entropy_peak_vs_layers",
        ours / of_layers,
        "x",
    );

    let contenders = vec![
        Contender::new("plain", || step(head.plain()).expect("a step")),
        Contender::new("layers", || step(head.layers()).expect("a step")),
        Contender::new("ours", || {
            step(head.without_logits(&plain)).expect("a step")
        }),
    ];
    let rounds = alternate(contenders, if quick { 1 } else { 11 });
    rounds.print("  a step", 1);
    let ratio = |other| rounds.ratio("ours", other);
    figure(
        "fit/linear_cross_entropy_time_vs_plain",
        ratio("plain"),
        "x",
    );
    figure(
        "fit/linear_cross_entropy_time_vs_layers",
        ratio("layers"),
        "x",
    );
    Ok(())
}
