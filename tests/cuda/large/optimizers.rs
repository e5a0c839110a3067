//! The kernels of `kernels`: optimizers with one large parameter, and accumulation.

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use candle_headroom::optim::{Adam, Lion, Moments};
use candle_headroom::optim::{Algorithm, Commit, FusedBuilder};
use candle_headroom::{AdamW, Sgd};
use half::bf16;

use super::memory::{Large, each_element, launch};
use super::{Case, ours};

const BLEND: &str = include_str!(concat!(env!("OUT_DIR"), "/blend.ptx"));

pub fn cases() -> Vec<Case> {
    vec![
        // The first step is as long as the learning rate, whatever the gradient. With a norm, gradients are surveyed.
        ours("survey, decide_adamw, move_adam", |large| {
            let builder = |var| AdamW::builder(vec![var]).weight_decay(0.).clip_norm(1e9);
            step(large, builder, |g| -0.5 * g.signum())
        }),
        ours("decide_adam, move_adam", |large| {
            step(large, |var| Adam::builder(vec![var]), |g| -0.5 * g.signum())
        }),
        ours("decide_lion, move_lion", |large| {
            let builder = |var| Lion::builder(vec![var]).weight_decay(0.);
            step(large, builder, |g| -0.5 * g.signum())
        }),
        ours("decide_sgd, move_sgd", |large| {
            step(large, |var| Sgd::builder(vec![var]), |g| -0.5 * g)
        }),
        ours("moments of 8 bits", |large| {
            let builder = |var| {
                let moments = Moments::EightBit;
                AdamW::builder(vec![var]).weight_decay(0.).moments(moments)
            };
            step(large, builder, |g| -0.5 * g.signum())
        }),
        ours("blend_f32_bf16", |large| {
            let (mut into, from) = (large.marked::<f32>()?, large.marked::<bf16>()?);
            let (len, axes) = (large.elements as u64, [0u64; 17]);
            launch!(large, BLEND, "blend_f32_bf16", each_element(large.elements);
                &len, &mut into, &from, &2f32, &4f32, &axes);
            large.expect_marks(&into, |x| 2. * x + 4. * x)
        }),
        ours("narrow_bf16_f32", |large| {
            let (mut into, from) = (large.zeros::<bf16>(large.elements)?, large.marked::<f32>()?);
            let (len, axes) = (large.elements as u64, [0u64; 17]);
            // Parameters of 2 bytes.
            let (keep, add) = (bf16::from_f32(0.), bf16::from_f32(2.));
            launch!(large, BLEND, "narrow_bf16_f32", each_element(large.elements);
                &len, &mut into, &from, &keep, &add, &axes);
            large.expect_marks(&into, |x| 2. * x)
        }),
    ]
}

/// Updates a parameter of zeros once, at a learning rate of 0.5. Its last chunk is whole, so that the last block has elements; gradients are zeros
/// but for the first and the last one.
fn step<A: Algorithm>(
    large: &Large,
    builder: impl Fn(Var) -> FusedBuilder<A>,
    moved: impl Fn(f64) -> f64,
) -> Result<()> {
    const CHUNK: usize = 16 << 10;
    let len = large.elements.next_multiple_of(CHUNK);
    let var = Var::zeros(len, DType::BF16, &large.device())?;
    let mut gradients = no_gradients(large)?;
    let gradient = large.with_ends::<bf16>(len, [&[1.], &[3.]])?;
    gradients.insert(var.as_tensor(), large.tensor(gradient, len));
    let optimizer = builder(var.clone()).learning_rate(0.5).build();
    optimizer?.commit(&gradients)?;
    large.expect_of::<bf16>(var.as_tensor(), 0, moved(1.))?;
    large.expect_of::<bf16>(var.as_tensor(), len - 1, moved(3.))
}

fn no_gradients(large: &Large) -> Result<GradStore> {
    Tensor::zeros((), DType::F32, &large.device())?.backward()
}
