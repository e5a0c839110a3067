//! A region that runs for some rows at a time.

use std::collections::HashSet;

use candle_core::{Result, Tensor, Var, bail};

use super::offload::{Inputs, Kept};
use super::region::{Region, leads_to_var, put, vars_of};
use super::scope;
use crate::graph::{Gradient, Mail};
use crate::kernel::{dense, sum_type};
use crate::rows::fill;
use crate::scope::current;
use crate::seed::{derive, mix, seeded};

const NAME: &str = "recompute_tiled";

/// Runs `f` for so many tokens at a time, and in the backward pass again, one tile after the other, so that the activations of one tile exist
/// at once, forward and backward.
///
/// Use it for a perceptron over a long context, whose inner activations are several times as wide as its input. `x` has the shape
/// (…, width); its leading dimensions together are the tokens. `f` is given (tokens of a tile, width) and returns (tokens of a tile, outputs),
/// of which each row may depend on the row of its own only. The result has the shape (…, outputs). The last tile may be shorter.
///
/// Memory holds `x`, the result, and in the backward pass their gradients and one tile. The gradients of a Var are added tile by tile from the
/// first to the last, f16 and bf16 in f32, so they differ from those of one tile by rounding; the values of `f` are those of its own
/// operations on fewer rows.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, VarBuilder, VarMap, linear, recompute_tiled};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let (up, down) = (linear(8, 32, vb.pp("up"))?, linear(32, 8, vb.pp("down"))?);
/// let x = Tensor::ones((2, 50, 8), DType::F32, &Device::Cpu)?; // [samples, time, width]
/// let y = recompute_tiled(&x, 16, move |x| down.forward(&up.forward(x)?.silu()?))?;
/// assert_eq!(y.dims(), [2, 50, 8]);
/// let gradients = y.sqr()?.mean_all()?.backward()?;
/// assert!(varmap.all_vars().iter().all(|var| gradients.get(var).is_some()));
/// # Ok(())
/// # }
/// ```
///
/// `f` must hold to what [`recompute`](crate::recompute()) asks. Each tile has a seed of its own, so its dropout is the same in the second
/// run, and another one with tiles of another size. It is recomputed also where a trainer keeps the activations of regions, and may stand within
/// a region.
///
/// # Errors
/// Those of [`recompute`](crate::recompute()); if `tokens` is 0, if `x` has no dimension, and if `f` returns another number of
/// rows than it was given.
pub fn recompute_tiled<F>(x: &Tensor, tokens: usize, f: F) -> Result<Tensor>
where
    F: Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
{
    record(x, tokens, Box::new(f))
}

type OfTile = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// The tiles of a matrix: for each its number, first row, and rows.
#[derive(Clone, Copy)]
struct Tiles {
    rows: usize,
    most: usize,
}

impl Tiles {
    fn each(self) -> impl Iterator<Item = (u64, usize, usize)> {
        // Without tokens, one tile that is empty.
        let starts = (0..self.rows.max(1)).step_by(self.most);
        let tile = move |(at, start)| (at as u64, start, self.most.min(self.rows - start));
        starts.enumerate().map(tile)
    }
}

fn record(x: &Tensor, tokens: usize, f: OfTile) -> Result<Tensor> {
    let Some((&width, leading)) = x.dims().split_last() else {
        bail!("{NAME}: a scalar has no tokens")
    };
    if tokens == 0 {
        bail!("{NAME}: tiles must have at least 1 token, got 0")
    }
    let tiles = Tiles {
        rows: leading.iter().product(),
        most: tokens,
    };
    let x = x.reshape((tiles.rows, width))?;
    let seed = derive();
    let run = move |at: u64, tile: &Tensor| seeded(mix(seed ^ mix(at)), || f(tile));
    let given = x.detach();
    let kept = Inputs::new(std::slice::from_ref(&x), std::slice::from_ref(&given))?;
    let surroundings = current();
    let place = surroundings.as_ref().map(|s| s.place());
    let (mut output, mut vars, mut seen) = (None, Vec::new(), HashSet::new());
    for (at, start, len) in tiles.each() {
        let y = scope::inside(|| run(at, &given.narrow(0, start, len)?))?;
        if y.rank() != 2 || y.dim(0)? != len {
            let shape = y.shape();
            bail!(
                "{NAME}: the closure returned {shape:?} for {len} tokens: it must return a row for each"
            )
        }
        let found = vars_of(std::slice::from_ref(&y));
        vars.extend(found.into_iter().filter(|var| seen.insert(var.id())));
        fill(&mut output, tiles.rows, start, &y.detach())?;
    }
    kept.left()?;
    drop(given);
    let _copies = surroundings.as_ref().map(|s| s.copies());
    let outputs: Vec<Tensor> = output.into_iter().collect();
    let needs = leads_to_var(&x);
    let tracked = needs.then_some(&x).into_iter();
    let sources: Vec<_> = tracked.chain(&vars).collect();
    let outputs = match sources.is_empty() {
        true => outputs,
        false => {
            let known = vars.clone();
            put(&sources, outputs, move |arrived, first, is_last| {
                let of_tile = |at, tile, mail, first| {
                    let region = Region {
                        needs: vec![needs],
                        vars: known.clone(),
                        run: |inputs: &[Tensor]| inputs.iter().map(|tile| run(at, tile)).collect(),
                        place,
                    };
                    region.differentiate(&[tile], mail, &[first])
                };
                let mut gradients = differentiate(tiles, &kept, needs, arrived, first, of_tile)?;
                if is_last {
                    kept.free();
                }
                let of_vars = gradients.iter_mut().skip(usize::from(needs));
                for (gradient, var) in of_vars.zip(&known) {
                    if let Some(sum) = gradient {
                        sum.tensor = sum.tensor.to_dtype(var.dtype())?;
                    }
                }
                Ok(gradients)
            })?
        }
    };
    let Some(output) = outputs.first() else {
        bail!("{NAME}: no output")
    };
    output.reshape([leading, &output.dims()[1..]].concat())
}

/// Runs tile after tile again. `of_tile` returns the gradients of a tile's input, if it is needed, and of the Vars, whose sums are in the type
/// of sums.
fn differentiate(
    tiles: Tiles,
    kept: &Inputs,
    needs: bool,
    arrived: Mail,
    first: &[Kept],
    of_tile: impl Fn(u64, Tensor, Mail, Kept) -> Result<Mail>,
) -> Result<Mail> {
    let arrived = arrived.into_iter().flatten().next();
    let (Some(arrived), [first], [x]) = (arrived, first, &*kept.kept) else {
        return Ok(Mail::new());
    };
    let gradient = dense(NAME, &arrived.tensor)?;
    let x = x.get()?;
    kept.fetch_before();
    let (mut of_x, mut sums) = (None, Mail::new());
    for (at, start, len) in tiles.each() {
        let tile = x.narrow(0, start, len)?;
        let tile = match needs {
            true => Var::from_tensor(&tile)?.into_inner(),
            false => tile,
        };
        // A part of what other tiles need too.
        let mail = vec![Some(Gradient::new(gradient.narrow(0, start, len)?, false))];
        let mut found = of_tile(at, tile, mail, first.rows(start, len)?)?.into_iter();
        if needs && let Some(gradient) = found.next().flatten() {
            fill(&mut of_x, tiles.rows, start, &gradient.tensor)?;
        }
        for (place, gradient) in found.enumerate() {
            if sums.len() <= place {
                sums.push(None);
            }
            if let (Some(gradient), Some(sum)) = (gradient, sums.get_mut(place)) {
                let wide = gradient
                    .tensor
                    .to_dtype(sum_type(gradient.tensor.dtype()))?;
                let wide = Gradient::alone(wide);
                *sum = Some(match sum.take() {
                    Some(before) => before.plus(wide)?,
                    None => wide,
                });
            }
        }
    }
    let of_x = needs.then(|| of_x.map(Gradient::alone));
    Ok(of_x.into_iter().chain(sums).collect())
}
