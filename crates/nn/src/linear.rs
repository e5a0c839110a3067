//! The linear layer of [`mod@candle_nn::linear`], as one operation.
//!
//! Product and bias are one node of the graph, which keeps the input for the gradient of the weight, and no input of a frozen weight.
//! Within [`Lora::attach`](crate::lora::Lora::attach) a layer may have an adapter beside it. Values are those that candle computes for a
//! contiguous input; an input may have any strides. Gradients of f16 and bf16 that are sums over all tokens, those of weight and bias, are
//! summed in f32.

use candle_core::{Module, Result, Shape, Tensor};
use candle_nn::VarBuilder;

use super::bias::{add_to_rows, sum_of_rows};
use super::graph::record_lean;
use super::kernel::sum_type;
use super::lora::{self, Adapter};
use super::rows::{product, rows};

/// y = x · Wᵀ + b, as [`candle_nn::Linear`]: the same numbers, with the gradient of the weight computed in the weight's layout. Any
/// strides; on the CPU candle's gives wrong numbers for an x of three or four dimensions whose last two are transposed.
///
/// It keeps its input, unless the weight is frozen, and not its output. With a bias that does not have the shape (out), which is
/// broadcast, it keeps the product without the bias as well. Gradients that nobody asks for, such as those of frozen weights, are not
/// computed.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Linear, Module};
///
/// # fn main() -> candle_core::Result<()> {
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?; // [out, in]
/// let bias = Tensor::new(&[0.5f32, 0., 0.], &Device::Cpu)?; // [out]
/// let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu)?; // [samples, in]
/// let y = Linear::new(weight, Some(bias)).forward(&x)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[3.5, 7., 11.]]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    adapter: Option<Adapter>,
}

impl Linear {
    /// A layer with a weight (out, in) and a bias (out).
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom_nn::{Linear, Module};
    ///
    /// let weight = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?; // [out, in]
    /// let x = Tensor::new(&[[1f32, 10.]], &Device::Cpu)?; // [samples, in]
    /// let y = Linear::new(weight, None).forward(&x)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[21., 43.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self {
            weight,
            bias,
            adapter: None,
        }
    }

    /// The layer at this path, within [`Lora::attach`](lora::Lora::attach) frozen and with an adapter if a target names it.
    fn at(self, path: &str) -> Result<Self> {
        let (shape, weight) = (self.weight.dims2()?, self.weight.detach());
        let (dtype, device) = (weight.dtype(), weight.device());
        Ok(
            match lora::at(path, shape, dtype, device, || Ok(weight.clone()))? {
                None => self,
                Some(adapter) => Self {
                    weight,
                    bias: self.bias.map(|bias| bias.detach()),
                    adapter: Some(adapter),
                },
            },
        )
    }

    /// The same layer for evaluation: it shares the parameters, also later changes of them, keeps no graph, and its adapter drops nothing.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{Module, VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// let layer = linear(8, 4, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let x = Tensor::ones((1, 8), DType::F32, &Device::Cpu)?;
    /// assert!(layer.forward(&x)?.track_op());
    /// assert!(!layer.without_graph().forward(&x)?.track_op());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn without_graph(&self) -> Self {
        Self {
            weight: self.weight.detach(),
            bias: self.bias.as_ref().map(Tensor::detach),
            adapter: self.adapter.as_ref().map(Adapter::without_graph),
        }
    }

    /// The weight (out, in).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::Linear;
    /// # let weight = Tensor::ones((3, 2), DType::F32, &Device::Cpu)?;
    /// # let bias = Tensor::ones(3, DType::F32, &Device::Cpu)?;
    /// let layer = Linear::new(weight, Some(bias));
    /// assert_eq!(layer.weight().dims(), [3, 2]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias (out).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::Linear;
    /// # let weight = Tensor::ones((3, 2), DType::F32, &Device::Cpu)?;
    /// # let bias = Tensor::ones(3, DType::F32, &Device::Cpu)?;
    /// let layer = Linear::new(weight, Some(bias));
    /// assert_eq!(layer.bias().expect("a bias").dims(), [3]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(layer: candle_nn::Linear) -> Self {
        Self::new(layer.weight().clone(), layer.bias().cloned())
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if let Some(adapter) = &self.adapter {
            return adapter.forward(x, self.bias.as_ref(), |x, bias| {
                Self::new(self.weight.clone(), bias.cloned()).forward(x)
            });
        }
        if self.weight.rank() != 2 || !(2..=4).contains(&x.rank()) {
            return candle_nn::Linear::new(self.weight.clone(), self.bias.clone()).forward(x);
        }
        let product = product(&x.detach(), &self.weight.detach())?;
        let kept = Kept::new(x, &self.weight);
        match &self.bias {
            Some(bias) if bias.dims() == [self.weight.dim(0)?] => {
                let sum = add_to_rows(product, bias)?;
                let backward = move |gradient: Tensor, [.., needs_bias]: [bool; 3]| {
                    let [dx, dweight] = kept.gradients(&gradient)?;
                    let dbias = needs_bias.then(|| sum_of_rows(&rows(&gradient)?));
                    Ok([dx, dweight, dbias.transpose()?])
                };
                record_lean("linear", [x, &self.weight, bias], sum, backward)
            }
            bias => {
                let backward = move |gradient: Tensor, _: [bool; 2]| kept.gradients(&gradient);
                let product = record_lean("linear", [x, &self.weight], product, backward)?;
                bias.iter()
                    .try_fold(product, |product, bias| product.broadcast_add(bias))
            }
        }
    }
}

/// What the gradients that are asked for are computed from.
struct Kept {
    /// For that of the weight.
    x: Option<Tensor>,
    /// For that of x.
    weight: Option<Tensor>,
    shape: Shape,
}

impl Kept {
    fn new(x: &Tensor, weight: &Tensor) -> Self {
        Self {
            x: weight.track_op().then(|| x.detach()),
            weight: x.track_op().then(|| weight.detach()),
            shape: x.shape().clone(),
        }
    }

    /// dx = dy · W and dW = dyᵀ · x.
    fn gradients(&self, dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let dy = rows(dy)?;
        let dx = self.weight.as_ref();
        let dx = dx.map(|weight| dy.matmul(&weight.contiguous()?)?.reshape(&self.shape));
        let dweight = self.x.as_ref().map(|x| {
            // A sum over all tokens. On the CPU candle's product of f16 and bf16 rounds parts of it; on CUDA it sums in f32.
            let wide = match dy.device().is_cpu() {
                true => sum_type(dy.dtype()),
                false => dy.dtype(),
            };
            let product = dy.to_dtype(wide)?.t()?.matmul(&rows(x)?.to_dtype(wide)?)?;
            product.to_dtype(dy.dtype())
        });
        Ok([dx.transpose()?, dweight.transpose()?])
    }
}

/// Makes a [`Linear`] with a weight (`out_dim`, `in_dim`) named `weight` and a bias named `bias`, initialized as by
/// [`candle_nn::linear()`].
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, linear};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let hidden = linear(16, 32, vb.pp("hidden"))?; // `hidden.weight` and `hidden.bias`
/// assert_eq!(hidden.weight().dims(), [32, 16]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let path = vb.prefix();
    Linear::from(candle_nn::linear(in_dim, out_dim, vb)?).at(&path)
}

/// Makes a [`Linear`] without a bias.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, linear_no_bias};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let projection = linear_no_bias(16, 32, vb.pp("projection"))?; // `projection.weight`
/// assert_eq!(projection.weight().dims(), [32, 16]);
/// assert!(projection.bias().is_none());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder) -> Result<Linear> {
    let path = vb.prefix();
    Linear::from(candle_nn::linear_no_bias(in_dim, out_dim, vb)?).at(&path)
}

/// Makes a [`Linear`], with a bias if `bias`.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{VarBuilder, VarMap, linear_b};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let has_bias = true; // from a model's configuration
/// let query = linear_b(16, 32, has_bias, vb.pp("query"))?;
/// assert_eq!(query.bias().expect("a bias").dims(), [32]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder) -> Result<Linear> {
    let path = vb.prefix();
    Linear::from(candle_nn::linear_b(in_dim, out_dim, bias, vb)?).at(&path)
}
