//! Regions that run for some tokens at a time, against the same for all at once.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{
    Dropout, Linear, Module, RecomputeError, recompute, recompute_tiled, seeded,
};

use super::super::check::{difference, same_bits};
use super::{WIDTH, var};

const TOKENS: usize = 11;

/// A perceptron with an adapter, of which the base is frozen, and dropout.
#[derive(Clone)]
struct Perceptron {
    up: Tensor,
    down: Tensor,
    adapter: [Var; 2],
    bias: Var,
    dropout: f32,
}

impl Perceptron {
    fn new(dtype: DType, dropout: f32) -> Result<Self> {
        let of = |shape: &[usize], seed| Var::from_tensor(&var(shape, seed)?.to_dtype(dtype)?);
        Ok(Self {
            up: of(&[4 * WIDTH, WIDTH], 1)?.detach(),
            down: of(&[WIDTH, 4 * WIDTH], 2)?.detach(),
            adapter: [of(&[2, WIDTH], 3)?, of(&[4 * WIDTH, 2], 4)?],
            bias: of(&[WIDTH], 5)?,
            dropout,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let linear = |weight: &Tensor, x: &Tensor| Linear::new(weight.clone(), None).forward(x);
        let [a, b] = &self.adapter;
        let dropped = Dropout::new(self.dropout).forward(x, true)?;
        let adapted = linear(b, &linear(a, &dropped)?)?;
        let inner = (linear(&self.up, x)? + adapted)?.silu()?;
        linear(&self.down, &inner)?.broadcast_add(&self.bias)
    }

    fn tiled(&self, x: &Tensor, tokens: usize) -> Result<Tensor> {
        let this = self.clone();
        recompute_tiled(x, tokens, move |x| this.forward(x))
    }
}

/// The result, and the gradients of the input, the adapter and the bias.
fn run(of: &Perceptron, x: &Var, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Vec<Tensor>> {
    let y = f(x)?;
    let gradients = y.to_dtype(DType::F64)?.sqr()?.mean_all()?.backward()?;
    let mut found = vec![y.detach()];
    for var in of.adapter.iter().chain([&of.bias, x]) {
        found.push(gradients.get(var).expect("a gradient").detach());
    }
    Ok(found)
}

#[test]
fn the_same_as_all_tokens_at_once() -> Result<()> {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::BF16, 3e-2)] {
        let of = Perceptron::new(dtype, 0.)?;
        let x = Var::from_tensor(&var(&[2, TOKENS, WIDTH], 9)?.to_dtype(dtype)?)?;
        let whole = run(&of, &x, |x| of.forward(x))?;
        for tokens in [1, 3, 2 * TOKENS, 100] {
            let tiled = run(&of, &x, |x| of.tiled(x, tokens))?;
            // Within a region, whose second run records tiles again.
            let this = of.clone();
            let nested = run(&of, &x, |x| recompute(x, move |x| this.tiled(x, tokens)))?;
            for ((tiled, nested), whole) in tiled.iter().zip(&nested).zip(&whole) {
                assert_eq!((tiled.dims(), tiled.dtype()), (whole.dims(), whole.dtype()));
                let off = difference(&tiled.to_dtype(DType::F64)?, &whole.to_dtype(DType::F64)?);
                assert!(off <= tolerance, "{off} for {tokens} tokens of {dtype:?}");
                same_bits(nested, tiled)?;
            }
        }
    }
    Ok(())
}

/// The second run of each tile drops what its first run did: else it would be an error. Every tile drops other elements.
#[test]
fn dropout_is_the_same_again() -> Result<()> {
    let of = Perceptron::new(DType::F32, 0.5)?;
    let x = Var::ones((TOKENS, WIDTH), DType::F32, &Device::Cpu)?;
    let once = || seeded(7, || run(&of, &x, |x| of.tiled(x, 4)));
    let (first, second) = (once()?, once()?);
    for (first, second) in first.iter().zip(&second) {
        same_bits(first, second)?;
    }
    let tile = |at: usize| first[0].narrow(0, at * 4, 3)?.to_dtype(DType::F64);
    assert!(difference(&tile(0)?, &tile(1)?) > 0.);
    Ok(())
}

/// One tile after the other, in the second run too.
#[test]
fn no_tile_is_larger() -> Result<()> {
    let w = var(&[WIDTH, WIDTH], 1)?;
    let x = var(&[2, TOKENS, WIDTH], 2)?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, of) = (Arc::clone(&seen), w.clone());
    let y = recompute_tiled(&x, 8, move |x| {
        noted.lock().unwrap().push(x.dims().to_vec());
        x.matmul(&of)
    })?;
    y.sum_all()?.backward()?;
    let rows = [8, 8, 6, 8, 8, 6];
    assert_eq!(*seen.lock().unwrap(), rows.map(|rows| vec![rows, WIDTH]));
    Ok(())
}

#[test]
fn bad_input_is_named() -> Result<()> {
    let x = var(&[TOKENS, WIDTH], 2)?;
    let text = |outcome: Result<Tensor>| outcome.unwrap_err().to_string();
    let no_tokens = text(recompute_tiled(&x, 0, |x| Ok(x.clone())));
    assert!(no_tokens.contains("at least 1 token, got 0"), "{no_tokens}");
    let scalar = Tensor::new(1f32, &Device::Cpu)?;
    assert!(text(recompute_tiled(&scalar, 1, |x| Ok(x.clone()))).contains("scalar"));
    let summed = text(recompute_tiled(&x, 4, |x| x.sum(0)));
    assert!(summed.contains("a row for each"), "{summed}");
    let differs = recompute_tiled(&x, 4, |x| {
        x * if candle_headroom_nn::is_recomputing() {
            2.
        } else {
            1.
        }
    })?;
    let error = differs.sum_all()?.backward().unwrap_err();
    assert!(RecomputeError::of(&error).is_some(), "{error}");
    Ok(())
}
