//! Rotary position embeddings ([Su et al., 2021](https://arxiv.org/abs/2104.09864)), as [`candle_nn::rotary_emb`], with a backward pass.
//!
//! All rotate pairs of elements (a, b) of the last dimension to (a · cos − b · sin, a · sin + b · cos). They keep neither input
//! nor output, unless the angles lead to a Var.

use candle_core::{D, Result, Tensor, bail};

use super::graph::{Backward, Gradients, record, record_lean};
#[cfg(feature = "cuda")]
use super::graph::{Gradient, Mail, operation};
#[cfg(feature = "cuda")]
use super::kernel::{
    cuda::{Turn, rotate_both},
    dense,
};
use super::kernel::{in_range, sum_type};

/// Rotates element i together with i + d/2.
///
/// `xs` is of (batch, heads, time, d), `cos` and `sin` of (time, d/2) or (batch, time, d/2); they may be longer in time. Any strides.
/// If `cos` or `sin` lead to a Var, they receive a gradient too.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope;
///
/// # fn main() -> candle_core::Result<()> {
/// let angles = Tensor::new(&[[0f32, 0.], [1., 0.1], [2., 0.2]], &Device::Cpu)?; // [time, d / 2]
/// let x = Tensor::randn(0f32, 1., (1, 2, 3, 4), &Device::Cpu)?; // [batch, heads, time, d]
/// let y = rope(&x, &angles.cos()?, &angles.sin()?)?;
/// // An angle of 0 turns nothing.
/// let first = |of: &Tensor| of.narrow(2, 0, 1)?.flatten_all()?.to_vec1::<f32>();
/// assert_eq!(first(&y)?, first(&x)?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the shapes or types do not match, or the type is not f64, f32, f16 or bf16.
pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    Rotation::Halves.rotate(xs, cos, sin)
}

/// [`rope`] of queries and keys, in one launch on CUDA. They may differ in their number of heads.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_both;
///
/// let angles = Tensor::new(&[[0f32, 0.], [1., 0.1]], &Device::Cpu)?; // [time, d / 2]
/// let (cos, sin) = (angles.cos()?, angles.sin()?);
/// let q = Tensor::randn(0f32, 1., (1, 4, 2, 4), &Device::Cpu)?; // [batch, heads, time, d]
/// let k = q.narrow(1, 0, 2)?; // 2 key heads
/// let (q, k) = rope_both(&q, &k, &cos, &sin)?;
/// assert_eq!((q.dims(), k.dims()), (&[1, 4, 2, 4][..], &[1, 2, 2, 4][..]));
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`rope`].
pub fn rope_both(q: &Tensor, k: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<(Tensor, Tensor)> {
    Rotation::Halves.rotate_both(q, k, cos, sin)
}

/// [`rope_i`] of queries and keys, as [`rope_both`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_i_both;
///
/// let cos = Tensor::new(&[[0f32, 1.]], &Device::Cpu)?; // angles of 90° and 0°: [time, d / 2]
/// let sin = Tensor::new(&[[1f32, 0.]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 1, 4))?; // [batch, heads, time, d]
/// let (q, k) = rope_i_both(&x, &x.neg()?, &cos, &sin)?;
/// assert_eq!(q.flatten_all()?.to_vec1::<f32>()?, [-2., 1., 3., 4.]); // turns (1, 2), and not (3, 4)
/// assert_eq!(k.flatten_all()?.to_vec1::<f32>()?, [2., -1., -3., -4.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`rope`].
pub fn rope_i_both(q: &Tensor, k: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<(Tensor, Tensor)> {
    Rotation::Neighbours.rotate_both(q, k, cos, sin)
}

/// [`rope_thd`] of queries and keys of (batch, time, heads, d), as [`rope_both`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_thd_both;
///
/// let cos = Tensor::new(&[[1f32], [0.]], &Device::Cpu)?; // angles of 0° and 90°: [time, d / 2]
/// let sin = Tensor::new(&[[0f32], [1.]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 2, 1, 2))?; // [batch, time, heads, d]
/// let (q, k) = rope_thd_both(&x, &x.neg()?, &cos, &sin)?;
/// assert_eq!(q.flatten_all()?.to_vec1::<f32>()?, [1., 2., -4., 3.]); // turns the second position
/// assert_eq!(k.flatten_all()?.to_vec1::<f32>()?, [-1., -2., 4., -3.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`rope`].
pub fn rope_thd_both(
    q: &Tensor,
    k: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
) -> Result<(Tensor, Tensor)> {
    Rotation::HalvesTimeFirst.rotate_both(q, k, cos, sin)
}

/// Rotates element 2i together with 2i + 1; else as [`rope`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_i;
///
/// let cos = Tensor::new(&[[0f32, 1.]], &Device::Cpu)?; // angles of 90° and 0°: [time, d / 2]
/// let sin = Tensor::new(&[[1f32, 0.]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 1, 4))?; // [batch, heads, time, d]
/// let y = rope_i(&x, &cos, &sin)?.flatten_all()?;
/// assert_eq!(y.to_vec1::<f32>()?, [-2., 1., 3., 4.]); // turns (1, 2), and not (3, 4)
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`rope`].
pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    Rotation::Neighbours.rotate(xs, cos, sin)
}

/// As [`rope`], for `xs` of (batch, time, heads, d).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_thd;
///
/// let cos = Tensor::new(&[[1f32], [0.]], &Device::Cpu)?; // angles of 0° and 90°: [time, d / 2]
/// let sin = Tensor::new(&[[0f32], [1.]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 2, 1, 2))?; // [batch, time, heads, d]
/// let y = rope_thd(&x, &cos, &sin)?.flatten_all()?;
/// assert_eq!(y.to_vec1::<f32>()?, [1., 2., -4., 3.]); // turns the second position
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// As [`rope`].
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    Rotation::HalvesTimeFirst.rotate(xs, cos, sin)
}

/// The same as [`rope`]. Shapes that only candle's composition broadcasts are left to it; it keeps several times the output.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_slow;
///
/// let cos = Tensor::new(&[[0f32, 1.]], &Device::Cpu)?; // angles of 90° and 0°: [time, d / 2]
/// let sin = Tensor::new(&[[1f32, 0.]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 1, 4))?; // [batch, heads, time, d]
/// let y = rope_slow(&x, &cos, &sin)?.flatten_all()?;
/// assert_eq!(y.to_vec1::<f32>()?, [-3., 2., 1., 4.]); // turns (1, 3), and not (2, 4)
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If the shapes cannot be broadcast, or the types differ.
pub fn rope_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (_, _, time, d) = x.dims4()?;
    let fits =
        |table: &Tensor| matches!(*table.dims(), [len, half] if len >= time && 2 * half == d);
    match fits(cos) && fits(sin) {
        true => rope(x, cos, sin),
        false => candle_nn::rotary_emb::rope_slow(x, cos, sin),
    }
}

/// The same as [`rope_i`], with `cos` and `sin` of (time, …) and d/2 elements for each time.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::rotary_emb::rope_i_slow;
///
/// let cos = Tensor::new(&[[[0f32, 1.]]], &Device::Cpu)?; // angles of 90° and 0°: [time, 1, d / 2]
/// let sin = Tensor::new(&[[[1f32, 0.]]], &Device::Cpu)?;
/// let x = Tensor::new(&[1f32, 2., 3., 4.], &Device::Cpu)?.reshape((1, 1, 1, 4))?; // [batch, heads, time, d]
/// let y = rope_i_slow(&x, &cos, &sin)?.flatten_all()?;
/// assert_eq!(y.to_vec1::<f32>()?, [-2., 1., 3., 4.]); // as `rope_i`
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If the shapes or types do not match.
pub fn rope_i_slow(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (_, _, time, d) = x.dims4()?;
    let table = |table: &Tensor| table.narrow(0, 0, time)?.reshape((time, d / 2));
    rope_i(x, &table(cos)?, &table(sin)?)
}

/// Which elements are a pair, and where the heads are.
#[derive(Debug, Clone, Copy)]
enum Rotation {
    Halves,
    Neighbours,
    HalvesTimeFirst,
}

impl Rotation {
    fn name(self) -> &'static str {
        match self {
            Self::Halves => "rope",
            Self::Neighbours => "rope-i",
            Self::HalvesTimeFirst => "rope-thd",
        }
    }

    /// The dimensions of time and of the heads.
    fn time_and_heads(self) -> (usize, usize) {
        match self {
            Self::Halves | Self::Neighbours => (2, 1),
            Self::HalvesTimeFirst => (1, 2),
        }
    }

    fn rotate(self, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let (_, _, _, d) = xs.dims4()?;
        if d % 2 != 0 {
            bail!(
                "{}: the last dimension must be even to rotate pairs, got d = {d} of {:?}",
                self.name(),
                xs.shape()
            )
        }
        in_range(self.name(), [xs, cos, sin])?;
        let (cos, sin) = (&self.table(xs, cos, sin)?, &self.table(xs, sin, cos)?);
        let is_empty = xs.elem_count() == 0;
        let ys = match is_empty {
            true => xs.zeros_like()?,
            false => self.forward(xs, cos, sin)?,
        };
        if !cos.track_op() && !sin.track_op() && !is_empty {
            let tables = [cos.detach(), sin.detach()];
            return record_lean(self.name(), [xs], ys, move |gradient, _| {
                let [cos, sin] = &tables;
                Ok([Some(self.forward(&gradient, cos, &sin.neg()?)?)])
            });
        }
        record(self.name(), [xs, cos, sin], ys, move |given| {
            self.backward(given)
        })
    }

    fn rotate_both(
        self,
        q: &Tensor,
        k: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        #[cfg(feature = "cuda")]
        if let Some(both) = self.at_once([q, k], cos, sin)? {
            return Ok(both);
        }
        Ok((self.rotate(q, cos, sin)?, self.rotate(k, cos, sin)?))
    }

    /// Both by one kernel; `None` on another device, or where they are no pair: one alone leads to Vars, or the tables do.
    #[cfg(feature = "cuda")]
    fn at_once(
        self,
        tensors: [&Tensor; 2],
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let [q, k] = tensors;
        let ends = |x: &Tensor| {
            Result::Ok((
                x.dtype(),
                x.dim(0)?,
                x.dim(self.time_and_heads().0)?,
                x.dim(3)?,
            ))
        };
        let is_pair = q.device().is_cuda()
            && q.device().same_device(k.device())
            && (q.rank(), k.rank()) == (4, 4)
            && ends(q)? == ends(k)?
            && q.dim(3)? % 2 == 0
            && [q, k].iter().all(|x| x.elem_count() > 0)
            && q.track_op() == k.track_op()
            && [cos, sin].iter().all(|table| {
                let fits = table.dtype() == q.dtype() && table.device().same_device(q.device());
                fits && !table.track_op()
            });
        if !is_pair {
            return Ok(None);
        }
        let tables = [self.table(q, cos, sin)?, self.table(q, sin, cos)?];
        let tables = [
            dense(self.name(), &tables[0])?,
            dense(self.name(), &tables[1])?,
        ];
        let turn = move |tensors: [&Tensor; 2], back| {
            let turn = Turn {
                neighbours: matches!(self, Self::Neighbours),
                time_first: matches!(self, Self::HalvesTimeFirst),
                back,
            };
            let [q, k] = tensors;
            let (q, k) = (
                dense(self.name(), &q.detach())?,
                dense(self.name(), &k.detach())?,
            );
            rotate_both(
                &turn,
                q.device().as_cuda_device()?,
                tables.each_ref(),
                [&q, &k],
            )
        };
        let both = turn(tensors, false)?;
        if !q.track_op() {
            return Ok(Some(both.into()));
        }
        let backward = move |arrived: Mail, _: &[Tensor]| {
            let mut arrived = arrived.into_iter().map(|gradient| Some(gradient?.tensor));
            let (of_q, of_k) = (arrived.next().flatten(), arrived.next().flatten());
            let (q, k) = (
                of_q.as_ref().or(of_k.as_ref()),
                of_k.as_ref().or(of_q.as_ref()),
            );
            let Some((q, k)) = q.zip(k) else {
                return Ok(Mail::new());
            };
            // The gradient of one alone is rotated twice.
            let [dq, dk] = turn([q, k], true)?;
            let (dq, dk) = (of_q.as_ref().map(|_| dq), of_k.as_ref().map(|_| dk));
            Ok(vec![dq.map(Gradient::alone), dk.map(Gradient::alone)])
        };
        let outputs = operation(
            self.name(),
            &tensors,
            both.into(),
            false,
            Box::new(backward),
        )?;
        let mut outputs = outputs.into_iter();
        Ok(outputs.next().zip(outputs.next()))
    }

    /// The part of a table that `xs` needs, with a batch dimension if the other table has one.
    fn table(self, xs: &Tensor, table: &Tensor, other: &Tensor) -> Result<Tensor> {
        let (batch, _, _, d) = xs.dims4()?;
        let time = xs.dim(self.time_and_heads().0)?;
        let fits = match *table.dims() {
            [len, half] => len >= time && 2 * half == d,
            [of, len, half] => of == batch && len >= time && 2 * half == d,
            _ => false,
        };
        if !fits {
            bail!(
                "{}: {:?} needs cos and sin of ({time}, {}) or ({batch}, {time}, {}), got {:?}",
                self.name(),
                xs.shape(),
                d / 2,
                d / 2,
                table.shape()
            )
        }
        let part = table.narrow(D::Minus2, 0, time)?;
        match part.rank() < other.rank() {
            true => part.broadcast_as((batch, time, d / 2)),
            false => Ok(part),
        }
    }

    /// candle's fused operation.
    fn forward(self, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let xs = xs.detach().contiguous()?;
        let cos = cos.detach().contiguous()?;
        let sin = sin.detach().contiguous()?;
        match self {
            Self::Halves => candle_nn::rotary_emb::rope(&xs, &cos, &sin),
            Self::Neighbours => candle_nn::rotary_emb::rope_i(&xs, &cos, &sin),
            Self::HalvesTimeFirst => candle_nn::rotary_emb::rope_thd(&xs, &cos, &sin),
        }
    }

    /// The input's gradient is the output's, rotated back.
    fn backward(self, given: Backward<3>) -> Result<Gradients<3>> {
        let [xs, cos, sin] = &given.inputs;
        let [input, of_cos, of_sin] = given.needs;
        let mut gradients = [None, None, None];
        let [dx, dcos, dsin] = &mut gradients;
        if input {
            *dx = Some(self.forward(&given.gradient, cos, &sin.neg()?)?);
        }
        if of_cos || of_sin {
            let (a, b) = self.pairs(xs)?;
            let (da, db) = self.pairs(&given.gradient)?;
            if of_cos {
                *dcos = Some(self.sum(((&da * &a)? + (&db * &b)?)?, cos)?);
            }
            if of_sin {
                *dsin = Some(self.sum(((db * a)? - (da * b)?)?, sin)?);
            }
        }
        Ok(gradients)
    }

    /// The first and the second elements of all pairs.
    fn pairs(self, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let xs = xs.to_dtype(sum_type(xs.dtype()))?;
        let half = xs.dim(D::Minus1)? / 2;
        let (first, second) = (
            xs.narrow(D::Minus1, 0, half),
            xs.narrow(D::Minus1, half, half),
        );
        match self {
            Self::Halves | Self::HalvesTimeFirst => Ok((first?, second?)),
            Self::Neighbours => {
                let mut dims = xs.dims().to_vec();
                dims.pop();
                dims.extend([half, 2]);
                let pairs = xs.reshape(dims)?;
                let element = |index| pairs.narrow(D::Minus1, index, 1)?.squeeze(D::Minus1);
                Ok((element(0)?, element(1)?))
            }
        }
    }

    /// Adds up what the heads, and the samples if they share a table, contribute to its gradient.
    fn sum(self, contributions: Tensor, table: &Tensor) -> Result<Tensor> {
        let (_, heads) = self.time_and_heads();
        let of_samples = contributions.sum(heads)?;
        let sum = match table.rank() {
            2 => of_samples.sum(0)?,
            _ => of_samples,
        };
        sum.to_dtype(table.dtype())
    }
}
