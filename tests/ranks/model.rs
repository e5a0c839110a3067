//! Models and data that every rank makes alike.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::testing::probe;
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub struct Model {
    pub varmap: VarMap,
    layers: Vec<Linear>,
}

impl Model {
    /// Layers of these widths with values from the seed, small enough that no unit saturates: there tanh has no digits left for its derivative.
    pub fn new(widths: &[usize], dtype: DType, seed: u64) -> Self {
        let varmap = VarMap::new();
        let builder = VarBuilder::from_varmap(&varmap, dtype, &Device::Cpu);
        let layers = widths.windows(2).enumerate().map(|(index, widths)| {
            linear(widths[0], widths[1], builder.pp(index)).expect("a layer")
        });
        let layers = layers.collect();
        let mut generator = StdRng::seed_from_u64(seed);
        for (_, var) in sorted(&varmap) {
            let inputs = *var.dims().last().expect("a dimension");
            let scale = (inputs as f64).sqrt().recip();
            let values: Vec<f64> = (0..var.elem_count())
                .map(|_| generator.random_range(-0.5..0.5) * scale)
                .collect();
            let values = Tensor::from_vec(values, var.shape(), &Device::Cpu).expect("values");
            var.set(&values.to_dtype(dtype).expect("values"))
                .expect("values");
        }
        Self { varmap, layers }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = probe(&layer.forward(&x)?.tanh()?)?;
        }
        Ok(x)
    }

    /// The mean over samples of the squared distance.
    pub fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        (self.forward(x)? - y)?.sqr()?.mean_all()
    }

    /// Takes another model's values.
    pub fn copy(&self, other: &Self) {
        let pairs = sorted(&self.varmap).into_iter().zip(sorted(&other.varmap));
        pairs.for_each(|((_, into), (_, from))| {
            into.set(&from.as_detached_tensor()).expect("values")
        });
    }

    /// All values, by name.
    pub fn values(&self) -> Vec<f64> {
        let values = sorted(&self.varmap).into_iter().flat_map(|(_, var)| {
            let values = var.flatten_all().and_then(|var| var.to_dtype(DType::F64));
            values
                .and_then(|values| values.to_vec1::<f64>())
                .expect("values")
        });
        values.collect()
    }
}

fn sorted(varmap: &VarMap) -> Vec<(String, candle_core::Var)> {
    let data = varmap.data().lock().expect("the map");
    let mut vars: Vec<_> = data
        .iter()
        .map(|(name, var)| (name.clone(), var.clone()))
        .collect();
    vars.sort_by(|a, b| a.0.cmp(&b.0));
    vars
}

/// Inputs and targets of `samples` samples.
pub fn data(samples: usize, widths: (usize, usize), dtype: DType, seed: u64) -> (Tensor, Tensor) {
    let mut generator = StdRng::seed_from_u64(seed);
    let mut make = |width: usize| {
        let values: Vec<f64> = (0..samples * width)
            .map(|_| generator.random_range(-1.0..1.0))
            .collect();
        let tensor = Tensor::from_vec(values, (samples, width), &Device::Cpu).expect("data");
        tensor.to_dtype(dtype).expect("data")
    };
    (make(widths.0), make(widths.1))
}

/// A run of samples, which may be empty.
pub fn cut(pair: &(Tensor, Tensor), range: std::ops::Range<usize>) -> (Tensor, Tensor) {
    let cut = |tensor: &Tensor| tensor.narrow(0, range.start, range.len()).expect("a part");
    (cut(&pair.0), cut(&pair.1))
}
