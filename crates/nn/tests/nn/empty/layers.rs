//! Layers of a view without elements, as an expert gets that no token is sent to.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_headroom_nn::{
    self as nn, Activation, GroupNorm, LayerNorm, Linear, PReLU, RmsNorm, ops,
};

type Layer = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

const ACTIVATIONS: [Activation; 13] = [
    Activation::Gelu,
    Activation::NewGelu,
    Activation::Relu,
    Activation::Relu2,
    Activation::Relu6,
    Activation::Silu,
    Activation::Sigmoid,
    Activation::HardSigmoid,
    Activation::Swiglu,
    Activation::Mish,
    Activation::HardSwish,
    Activation::Elu(0.7),
    Activation::LeakyRelu(0.1),
];

/// Layers of rows of 4 with the parameters `matrix` (4, 4) and `vector` (4).
fn layers(matrix: &Tensor, vector: &Tensor) -> Result<Vec<(String, Layer)>> {
    let mut layers: Vec<(String, Layer)> = Vec::new();
    for activation in ACTIVATIONS {
        let name = format!("{activation:?}");
        layers.push((name, Box::new(move |xs| activation.forward(xs))));
    }
    let mut add = |name: &str, layer: Layer| layers.push((name.into(), layer));
    let one = vector.narrow(0, 0, 1)?;
    let (m, v) = (matrix.clone(), vector.clone());
    let group = GroupNorm::new(v.clone(), v.clone(), 4, 2, 1e-3)?;
    let (with, without) = (
        Linear::new(m.clone(), Some(v.clone())),
        Linear::new(m.clone(), None),
    );
    let broadcast = Linear::new(m, Some(v.reshape((1, 4))?));
    let (slope, slopes) = (PReLU::new(one, true), PReLU::new(v.clone(), false));
    let layer = LayerNorm::new(v.clone(), v.clone(), 1e-3);
    let rms = RmsNorm::new(v, 1e-3);
    add("selu", Box::new(|xs| ops::selu(xs, 1.6, 1.1)));
    add("prelu", Box::new(move |xs| slope.forward(xs)));
    add("prelu of channels", Box::new(move |xs| slopes.forward(xs)));
    add("linear", Box::new(move |xs| with.forward(xs)));
    add("linear without", Box::new(move |xs| without.forward(xs)));
    add("linear other", Box::new(move |xs| broadcast.forward(xs)));
    add("softmax", Box::new(|xs| ops::softmax(xs, 0)));
    add("log-softmax", Box::new(|xs| ops::log_softmax(xs, 1)));
    add("softmax-last-dim", Box::new(ops::softmax_last_dim));
    add("dropout", Box::new(|xs| ops::dropout(xs, 0.5)));
    add("dropout of 0", Box::new(|xs| ops::dropout(xs, 0.)));
    add("layer-norm", Box::new(move |xs| layer.forward(xs)));
    add("rms-norm", Box::new(move |xs| rms.forward(xs)));
    add(
        "group-norm",
        Box::new(move |xs| group.forward(&xs.unsqueeze(2)?)),
    );
    add(
        "attention",
        Box::new(|xs| {
            let xs = xs.reshape((1, 1, 0, 4))?;
            nn::attention(&xs, &xs, &xs, &nn::Attention::default())
        }),
    );
    Ok(layers)
}

/// Asserts that each layer leaves the Var alone that its empty input is a view of, and its parameters.
pub fn leave_their_vars_alone(device: &Device) -> Result<()> {
    for dtype in [DType::F32, DType::F16] {
        let var = |shape: &[usize]| Var::from_tensor(&Tensor::ones(shape, dtype, device)?);
        let vars = [var(&[2, 4])?, var(&[4, 4])?, var(&[4])?];
        for (name, layer) in layers(&vars[1], &vars[2])? {
            let ys = layer(&vars[0].narrow(0, 0, 0)?)?;
            assert_eq!((ys.elem_count(), ys.dtype()), (0, dtype), "{name}");
            // The loss also depends on the Var in another way.
            let loss = (vars[0].sum_all()? + ys.sum_all()?)?;
            let store = loss.backward()?;
            let values = |tensor: &Tensor| -> Result<Vec<f32>> {
                let values = tensor.to_dtype(DType::F32)?.flatten_all()?;
                values.to_vec1()
            };
            let gradient = store.get(&vars[0]).expect("a gradient");
            assert_eq!(values(gradient)?, [1.; 8], "{name}");
            for var in &vars {
                assert_eq!(var.dtype(), dtype, "{name}");
                assert!(values(var)?.iter().all(|value| *value == 1.), "{name}");
            }
        }
    }
    Ok(())
}
