//! Parameters for an optimizer, without a model.

use candle_core::backprop::GradStore;
use candle_core::{Device, Result, Tensor, Var};

/// Parameters with gradients.
pub struct Parameters {
    pub vars: Vec<Var>,
    pub gradients: GradStore,
    pub elements: usize,
}

impl Parameters {
    pub fn on(device: &Device, shapes: &[Vec<usize>]) -> Result<Self> {
        let mut parameters = Self {
            vars: Vec::new(),
            gradients: GradStore::default(),
            elements: 0,
        };
        for shape in shapes {
            let var = Var::from_tensor(&Tensor::randn(0f32, 0.1, shape.as_slice(), device)?)?;
            let gradient = Tensor::randn(0f32, 0.01, shape.as_slice(), device)?;
            parameters.gradients.insert(&var, gradient);
            parameters.elements += var.elem_count();
            parameters.vars.push(var);
        }
        Ok(parameters)
    }
}

/// The parameters of a GPT-2 of this width: embeddings, and in each layer two norms, attention and a perceptron, with biases.
pub fn transformer(
    vocabulary: usize,
    context: usize,
    width: usize,
    layers: usize,
) -> Vec<Vec<usize>> {
    let mut shapes = vec![vec![vocabulary, width], vec![context, width]];
    for _ in 0..layers {
        for (out, into) in [
            (3 * width, width),
            (width, width),
            (4 * width, width),
            (width, 4 * width),
        ] {
            shapes.push(vec![out, into]);
            shapes.push(vec![out]);
        }
        shapes.extend(vec![vec![width]; 4]);
    }
    shapes.extend(vec![vec![width]; 2]);
    shapes
}
