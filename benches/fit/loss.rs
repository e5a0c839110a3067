//! The loss without logits against a product and a cross-entropy: forward and backward, with the gradients of hidden states and weight.

use candle_core::{Device, Result, Tensor, Var};
use candle_headroom::nn::loss::{self, LinearCrossEntropy, linear_cross_entropy};
use candle_headroom::{DeviceMemory, nn};
use candle_nn::Module;

use crate::support::{Contender, alternate, figure};

const TOKENS: usize = 2048;
/// For times with `--quick`.
const FEW_TOKENS: usize = 512;
const WIDTH: usize = 512;
const VOCABULARY: usize = 32_000;

const MIB: f64 = (1 << 20) as f64;

struct Head {
    hidden: Var,
    weight: Var,
    targets: Tensor,
}

impl Head {
    fn new(tokens: usize) -> Result<Self> {
        let targets = (0..tokens).map(|token| (token * 7919 % VOCABULARY) as u32);
        let scale = 1. / (WIDTH as f64).sqrt();
        Ok(Self {
            hidden: Var::randn(0f32, 1., (tokens, WIDTH), &Device::Cpu)?,
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

pub fn compare(memory: &DeviceMemory, quick: bool) -> candle_headroom::Result<()> {
    let head = Head::new(TOKENS)?;
    let options = LinearCrossEntropy::default();
    // Above the inputs: logits, their gradients, the gradients of hidden states and weight, and what products copy.
    let peak = |name: &str, loss: &dyn Fn() -> Result<Tensor>| -> candle_headroom::Result<_> {
        let scope = memory.peak_scope();
        let facts = head.facts(&loss()?)?;
        let bytes = scope.peak().unwrap_or_default() - scope.start().unwrap_or_default();
        println!("  {name:<24} norms of gradients, loss {facts:?}");
        Ok((bytes as f64 / MIB, facts))
    };
    println!("loss of {TOKENS} tokens, {VOCABULARY} classes, width {WIDTH}");
    let (of_plain, expected) = peak("plain", &|| head.plain())?;
    let (of_layers, layers) = peak("layers", &|| head.layers())?;
    let (ours, found) = peak("without logits", &|| head.without_logits(&options))?;
    for (found, expected) in found.iter().chain(&layers).zip(expected.iter().cycle()) {
        // Sums in f32 of 16 million squares.
        assert!((found / expected - 1.).abs() < 1e-3, "the losses differ");
    }
    figure("fit/loss_peak_plain_mib", of_plain, "MiB");
    figure("fit/loss_peak_layers_mib", of_layers, "MiB");
    figure("fit/linear_cross_entropy_peak_mib", ours, "MiB");
    let (vs_plain, vs_layers) = (ours / of_plain, ours / of_layers);
    figure("fit/linear_cross_entropy_peak_vs_plain", vs_plain, "x");
    figure("fit/linear_cross_entropy_peak_vs_layers", vs_layers, "x");

    let (tokens, rounds) = if quick { (FEW_TOKENS, 1) } else { (TOKENS, 11) };
    let head = Head::new(tokens)?;
    let step = |loss: Result<Tensor>| drop(loss.and_then(|loss| loss.backward()).expect("a step"));
    let contenders = vec![
        Contender::new("plain", || step(head.plain())),
        Contender::new("layers", || step(head.layers())),
        Contender::new("without logits", || step(head.without_logits(&options))),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print(&format!("a step of {tokens} tokens"), 1);
    let ratio = |other| rounds.ratio("without logits", other);
    let (vs_plain, vs_layers) = (ratio("plain"), ratio("layers"));
    figure("fit/linear_cross_entropy_time_vs_plain", vs_plain, "x");
    figure("fit/linear_cross_entropy_time_vs_layers", vs_layers, "x");
    Ok(())
}
