//! Functions of single elements or of pairs.

use candle_headroom_nn::{
    self as nn, Activation, Dropout, Module, ModuleT, PReLU, ops, recompute, recompute_tiled,
    seeded,
};

use super::case::{Argument::*, Case, Kind, vb};

const ACTIVATIONS: [Activation; 15] = [
    Activation::Gelu,
    Activation::NewGelu,
    Activation::Relu,
    Activation::Relu2,
    Activation::Relu6,
    Activation::Silu,
    Activation::Sigmoid,
    Activation::HardSigmoid,
    Activation::Swiglu,
    Activation::Swish,
    Activation::Mish,
    Activation::HardSwish,
    Activation::Elu(0.7),
    Activation::LeakyRelu(0.1),
    Activation::GeluPytorchTanh,
];

const MASKS: &str = "the mask depends on the position in the batch and on its seed";

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for activation in ACTIVATIONS {
        // Numbers up to 8, beyond all kinks.
        let run = move |x: &_| activation.forward(&(x * 4.)?);
        cases.push(Case::of_rows(
            "Activation",
            &format!("{activation:?}"),
            6,
            run,
        ));
    }
    cases.extend([
        Case::of_rows("ops::silu", "", 5, ops::silu),
        Case::of_rows("ops::sigmoid", "", 5, ops::sigmoid),
        Case::of_rows("ops::hard_sigmoid", "", 5, ops::hard_sigmoid),
        Case::of_rows("ops::mish", "", 5, ops::mish),
        Case::of_rows("ops::leaky_relu", "", 5, |x| ops::leaky_relu(x, 0.2)),
        Case::of_rows("ops::selu", "", 5, |x| ops::selu(x, 1.67, 1.05)),
        Case::of_rows("ops::Identity", "", 5, |x| ops::Identity::new().forward(x)),
        Case::of_rows("ops::swiglu", "", 6, ops::swiglu),
        Case::of_rows("recompute", "", 6, |x| recompute(x, ops::swiglu)),
        Case::of_rows("recompute_tiled", "", 6, |x| {
            recompute_tiled(x, 2, ops::swiglu)
        }),
    ]);
    let two = |length| vec![Sample(vec![length, 5]), Sample(vec![length, 5])];
    let slopes = |count| move |length| vec![Sample(vec![3, length]), Shared(vec![count])];
    cases.extend([
        Case::new("ops::add", "", Kind::Rows, two, |x| ops::add(&x[0], &x[1])),
        Case::new("ops::silu_mul", "", Kind::Rows, two, |x| {
            ops::silu_mul(&x[0], &x[1])
        }),
        Case::new("prelu, PReLU", "one slope", Kind::Rows, slopes(1), |x| {
            nn::prelu(None, vb(&[("weight", &x[1])]))?.forward(&x[0])
        }),
        Case::new(
            "PReLU",
            "a slope for each channel",
            Kind::Rows,
            slopes(3),
            |x| PReLU::new(x[1].clone(), false).forward(&x[0]),
        ),
    ]);
    let rows = |length| vec![Sample(vec![length, 5])];
    cases.extend([
        Case::new("ops::dropout", "", Kind::Batch(MASKS), rows, |x| {
            seeded(3, || ops::dropout(&x[0], 0.3))
        }),
        Case::new(
            "ops::dropout_with_seed",
            "",
            Kind::Batch(MASKS),
            rows,
            |x| ops::dropout_with_seed(&x[0], 0.3, 3),
        ),
        Case::new(
            "Dropout, ops::Dropout",
            "training",
            Kind::Batch(MASKS),
            rows,
            |x| seeded(3, || Dropout::new(0.3).forward_t(&x[0], true)),
        ),
        Case::new("Dropout", "evaluation", Kind::Rows, rows, |x| {
            Dropout::new(0.3).forward_t(&x[0], false)
        }),
    ]);
    cases
}
