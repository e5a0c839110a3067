use std::sync::PoisonError;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use candle_nn::{Init, VarMap};

use super::Lora;
use crate::bias::sum_of_rows;
use crate::graph::record_lean;
use crate::kernel::{multiply, sum_type};
use crate::ops;
use crate::rows::{fill, product, rows};
use crate::seed::is_frozen;

/// Elements of a weight whose squares are in memory at once.
const SQUARES: usize = 1 << 24;

/// The trained matrices beside a frozen linear layer, from [`Lora::attach`] or [`at`](super::at). A clone shares them.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// (rank, inputs)
    a: Tensor,
    /// (outputs, rank)
    b: Tensor,
    magnitude: Option<Magnitude>,
    scale: f64,
    dropout: f32,
}

#[derive(Clone, Debug)]
struct Magnitude {
    /// (outputs)
    value: Tensor,
    /// The squared norms of the rows of W, (outputs).
    squares: Tensor,
}

impl Adapter {
    pub(super) fn new(
        lora: &Lora,
        vars: &VarMap,
        path: &str,
        (outputs, inputs): (usize, usize),
        dtype: DType,
        device: &Device,
        weight: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Self> {
        let (dtype, bound) = (sum_type(dtype), 1. / (inputs.max(1) as f64).sqrt());
        // PEFT's name of the model that has adapters.
        let name = |own: &str| format!("base_model.model.{path}.{own}");
        let matrix =
            |own, shape: (usize, usize), init| vars.get(shape, &name(own), init, dtype, device);
        let (lo, up) = (-bound, bound);
        let a = matrix(
            "lora_A.weight",
            (lora.rank, inputs),
            Init::Uniform { lo, up },
        )?;
        let b = matrix("lora_B.weight", (outputs, lora.rank), Init::Const(0.))?;
        let scale = lora.scale();
        let magnitude = || {
            let weight = weight()?;
            let (name, squares) = (name("lora_magnitude_vector"), squares(&weight, dtype)?);
            let mut data = vars.data().lock().unwrap_or_else(PoisonError::into_inner);
            let value = match data.get(&name) {
                Some(var) if var.dims() != [outputs] => {
                    bail!("{name} has shape {:?}, expected [{outputs}]", var.shape())
                }
                Some(var) => var.as_tensor().clone(),
                None => {
                    let var = Var::from_tensor(&norms(&moved(&weight, &a, &b, scale)?)?)?;
                    data.entry(name).or_insert(var).as_tensor().clone()
                }
            };
            Ok(Magnitude { value, squares })
        };
        Ok(Self {
            magnitude: lora.dora.then(magnitude).transpose()?,
            a,
            b,
            scale,
            dropout: lora.dropout as f32,
        })
    }

    /// Applies a frozen layer with this adapter: `base` computes x (…, inputs) · Wᵀ, and adds the bias (outputs) that it is given, if it is
    /// given one. That is the layer's `bias`, or none where DoRA scales the product first.
    ///
    /// It keeps x, which adapters of one x share if nothing is dropped, and rank numbers for each row, those in f32; with DoRA also an output. Rows of x are those of
    /// a layer of any number of dimensions, at least 2. An example is at [`at`](super::at).
    ///
    /// # Errors
    /// If shapes or devices do not match, and those of `base`.
    pub fn forward(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        base: impl Fn(&Tensor, Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let dropped = ops::dropout(x, self.dropout)?;
        let beside = beside(&dropped, &self.a, &self.b, self.scale)?;
        let Some(magnitude) = &self.magnitude else {
            return ops::add(&base(x, bias)?, &beside);
        };
        let base = |x: &Tensor| base(x, None);
        let y = base(x)?;
        let factor = (&magnitude.value / self.norms(magnitude, x.dtype(), base)?)?;
        // As in PEFT, the factor of what the base computes is of the input that the adapter sees.
        if self.dropout == 0. || is_frozen() {
            return scaled(&y, &beside, &factor, bias);
        }
        let seen = base(&dropped)?;
        (y - &seen)? + scaled(&seen, &beside, &factor, bias)?
    }

    /// The norms of the rows of W + scale · B · A, without a graph, by products with A and B alone: the matrix is not made.
    fn norms(
        &self,
        magnitude: &Magnitude,
        dtype: DType,
        base: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (a, b) = (self.a.detach(), self.b.detach());
        let of_base = base(&a.to_dtype(dtype)?)?.detach();
        let of_base = of_base.to_dtype(b.dtype())?.t()?;
        let both = (of_base * (2. * self.scale))?;
        let both = (both + (b.matmul(&a.matmul(&a.t()?)?)? * self.scale.powi(2))?)?;
        let squares = (&magnitude.squares + (both * &b)?.sum(1)?)?;
        // Rounding may leave less than nothing of a row that is almost 0.
        squares.maximum(f64::from(f32::MIN_POSITIVE))?.sqrt()
    }

    /// The layer's `weight` (outputs, inputs) with this adapter in it, for a model without adapters, in the type of `weight`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_headroom_nn::lora::Lora;
    /// use candle_headroom_nn::{Linear, VarBuilder, VarMap, linear_no_bias};
    ///
    /// let base = VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// let (layer, adapters) = Lora::default().attach(&VarMap::new(), || linear_no_bias(8, 4, base.pp("layer")))?;
    /// let merged = Linear::new(adapters["layer"].merge(layer.weight())?, None);
    /// let x = Tensor::ones((1, 8), DType::F32, &Device::Cpu)?;
    /// assert_eq!(merged.forward(&x)?.to_vec2::<f32>()?, layer.forward(&x)?.to_vec2::<f32>()?);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shape is another one.
    pub fn merge(&self, weight: &Tensor) -> Result<Tensor> {
        let merged = moved(weight, &self.a, &self.b, self.scale)?;
        let merged = match &self.magnitude {
            None => merged,
            Some(magnitude) => {
                let factor = (magnitude.value.detach() / norms(&merged)?)?;
                merged.broadcast_mul(&factor.unsqueeze(1)?)?
            }
        };
        merged.to_dtype(weight.dtype())
    }

    /// The same adapter for evaluation: it shares the parameters, also later changes of them, keeps no graph, and drops nothing.
    ///
    /// ```
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_headroom_nn::lora::Lora;
    /// use candle_headroom_nn::{VarBuilder, VarMap, linear};
    ///
    /// let base = VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// let (layer, adapters) = Lora::default().attach(&VarMap::new(), || linear(8, 4, base.pp("layer")))?;
    /// let x = Tensor::ones((1, 8), DType::F32, &Device::Cpu)?;
    /// let still = adapters["layer"].without_graph();
    /// assert!(!still.forward(&x, None, |x, _| Ok(x.narrow(1, 0, 4)?))?.track_op());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn without_graph(&self) -> Self {
        let detached = |magnitude: &Magnitude| Magnitude {
            value: magnitude.value.detach(),
            squares: magnitude.squares.clone(),
        };
        Self {
            a: self.a.detach(),
            b: self.b.detach(),
            magnitude: self.magnitude.as_ref().map(detached),
            scale: self.scale,
            dropout: 0.,
        }
    }
}

/// W + scale · B · A, in the type of A, without a graph.
fn moved(weight: &Tensor, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
    let beside = b.detach().matmul(&a.detach())?;
    weight.detach().to_dtype(a.dtype())? + (beside * scale)?
}

/// Of the rows.
fn norms(matrix: &Tensor) -> Result<Tensor> {
    squares(matrix, matrix.dtype())?.sqrt()
}

/// The squared norms of rows, some of which are cast and squared at a time.
fn squares(matrix: &Tensor, dtype: DType) -> Result<Tensor> {
    let ((count, width), matrix) = (matrix.dims2()?, matrix.detach());
    let most = (SQUARES / width.max(1)).max(1);
    let part = |first: usize| {
        let rows = matrix.narrow(0, first, most.min(count - first))?;
        rows.to_dtype(dtype)?.sqr()?.sum(1)
    };
    let parts: Vec<_> = (0..count).step_by(most).map(part).collect::<Result<_>>()?;
    Tensor::cat(&parts, 0)
}

/// scale · B · A · x in the type of x, computed in that of A: one operation, which keeps x in its own type. Where that is narrower, some rows at
/// a time are in the type of A.
fn beside(x: &Tensor, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
    let (dtype, wide) = (x.dtype(), a.dtype());
    let [kept, a_, b_] = [x, a, b].map(Tensor::detach);
    let flat = rows(&kept)?;
    let (count, outputs) = (flat.dim(0)?, b.dim(0)?);
    let parts = parts(&flat, outputs.max(flat.dim(1)?), wide);
    let (mut inners, mut ys) = (Vec::with_capacity(parts.len()), None);
    for &(first, len) in &parts {
        let part = flat.narrow(0, first, len)?.to_dtype(wide)?;
        let inner = (product(&part, &a_)? * scale)?;
        put(
            &mut ys,
            (count, first),
            &product(&inner, &b_)?.to_dtype(dtype)?,
        )?;
        inners.push(inner);
    }
    let shape = [&x.dims()[..x.rank() - 1], &[outputs]].concat();
    let y = joined(ys)?.reshape(shape)?;
    let backward = move |dy: Tensor, [needs_x, needs_a, needs_b]: [bool; 3]| {
        let (dy, flat) = (rows(&dy)?, rows(&kept)?);
        let (mut da, mut db, mut dxs) = (None, None, None);
        for (&(first, len), inner) in parts.iter().zip(&inners) {
            let dy = dy.narrow(0, first, len)?.to_dtype(wide)?;
            if needs_b {
                add(&mut db, &dy.t()?, inner)?;
            }
            let dinner = (dy.matmul(&b_)? * scale)?;
            if needs_a {
                let part = flat.narrow(0, first, len)?.to_dtype(wide)?;
                add(&mut da, &dinner.t()?, &part)?;
            }
            if needs_x {
                let dx = dinner.matmul(&a_)?.to_dtype(dtype)?;
                put(&mut dxs, (count, first), &dx)?;
            }
        }
        let dx = dxs.map(|dxs| dxs.reshape(kept.shape())).transpose()?;
        Ok([dx, da, db])
    };
    record_lean("lora", [x, a, b], y, backward)
}

/// Bytes of rows that are cast at a time.
const AT_ONCE: usize = 32 << 20;

/// The first row and the number of rows of each part of a matrix: of all, if nothing is cast.
fn parts(rows: &Tensor, width: usize, wide: DType) -> Vec<(usize, usize)> {
    let count = rows.dims().first().copied().unwrap_or(0);
    let most = match rows.dtype() == wide {
        true => count.max(1),
        false => (AT_ONCE / (width * wide.size_in_bytes()).max(1)).max(1),
    };
    let firsts = (0..count.max(1)).step_by(most);
    firsts
        .map(|first| (first, most.min(count - first)))
        .collect()
}

/// Puts some of `count` rows where they belong.
fn put(all: &mut Option<Tensor>, (count, first): (usize, usize), part: &Tensor) -> Result<()> {
    if part.dim(0)? == count {
        *all = Some(part.clone());
        return Ok(());
    }
    fill(all, count, first, part)
}

fn joined(all: Option<Tensor>) -> Result<Tensor> {
    all.map_or_else(|| bail!("lora: an input without rows"), Ok)
}

/// Adds a · b to a sum.
fn add(sum: &mut Option<Tensor>, a: &Tensor, b: &Tensor) -> Result<()> {
    match sum {
        Some(sum) => multiply(sum, true, a, b),
        None => {
            *sum = Some(a.matmul(b)?);
            Ok(())
        }
    }
}

/// factor · (y + beside) + bias, in the type of y: one operation, which keeps the sum.
fn scaled(y: &Tensor, beside: &Tensor, factor: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (dtype, wide) = (y.dtype(), factor.dtype());
    let sum = (y.detach() + beside.detach())?;
    let by = factor.detach();
    let times = move |rows: &Tensor, by: &Tensor| rows.to_dtype(wide)?.broadcast_mul(by);
    let mut scaled = times(&sum, &by)?;
    if let Some(bias) = bias {
        scaled = scaled.broadcast_add(&bias.detach().to_dtype(wide)?)?;
    }
    let backward = move |gradient: Tensor, needs: [bool; 4]| {
        let [needs_y, needs_beside, needs_factor, needs_bias] = needs;
        let dsum = times(&gradient, &by)?.to_dtype(dtype)?;
        let dfactor = needs_factor.then(|| {
            let product = (rows(&gradient)?.to_dtype(wide)? * rows(&sum)?.to_dtype(wide)?)?;
            product.sum(0)
        });
        let dbias = needs_bias.then(|| sum_of_rows(&rows(&gradient)?));
        let given = |needed: bool| needed.then(|| dsum.clone());
        let (dfactor, dbias) = (dfactor.transpose()?, dbias.transpose()?);
        Ok([given(needs_y), given(needs_beside), dfactor, dbias])
    };
    let none = y.detach();
    let inputs = [y, beside, factor, bias.unwrap_or(&none)];
    record_lean("dora", inputs, scaled.to_dtype(dtype)?, backward)
}
