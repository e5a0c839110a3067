use candle_core::{Result, Tensor};

use crate::graph::record;

/// Keys or values of some positions, without a graph.
#[derive(Debug, Clone)]
pub struct Stored {
    pub dim: usize,
    tensor: Option<Tensor>,
    /// Whether the memory is also that of a tensor in a graph, so that it must not be written to.
    is_shared: bool,
}

impl Stored {
    pub fn new(dim: usize) -> Self {
        Self {
            dim,
            tensor: None,
            is_shared: false,
        }
    }

    pub fn tensor(&self) -> &Option<Tensor> {
        &self.tensor
    }

    /// The first `count` positions; `None` if there never were any.
    pub fn first(&self, count: usize) -> Result<Option<Tensor>> {
        let tensor = self.tensor.as_ref();
        tensor.map(|all| all.narrow(self.dim, 0, count)).transpose()
    }

    /// Writes positions to a ring of `size`, which holds `held`, from index `at` on, and returns all that it holds then. In a graph they
    /// carry it, and no memory is written to; an empty ring then returns all of `new`, and stores its last `size` positions.
    pub fn extend(
        &mut self,
        new: &Tensor,
        in_graph: bool,
        [at, held, size]: [usize; 3],
    ) -> Result<Tensor> {
        let (dim, count) = (self.dim, new.dim(self.dim)?);
        let all_held = (held + count).min(size);
        if in_graph {
            let all = match self.first(held)? {
                Some(kept) => overwrite(&kept, new, dim, at, size)?,
                None => new.clone(),
            };
            let kept = without_graph(&all)?;
            let first = kept.dim(dim)? - all_held;
            self.tensor = Some(kept.narrow(dim, first, all_held)?);
            self.is_shared = true;
            return Ok(all);
        }
        let buffer = self.writable(new, size)?;
        let write = |from, count, at| {
            let part = new.narrow(dim, from, count)?.contiguous()?;
            buffer.slice_set(&part, dim, at)
        };
        let before_end = count.min(size - at);
        write(0, before_end, at)?;
        if before_end < count {
            write(before_end, count - before_end, 0)?;
        }
        self.tensor = Some(buffer.clone());
        self.is_shared = false;
        buffer.narrow(dim, 0, all_held)
    }

    /// A contiguous buffer that may be written to. It has `size` positions, at least as many as are stored, and begins with these. The
    /// other dimensions and the type are those of `like`.
    fn writable(&self, like: &Tensor, size: usize) -> Result<Tensor> {
        let zeros = |count| {
            let mut shape = like.dims().to_vec();
            if let Some(positions) = shape.get_mut(self.dim) {
                *positions = count;
            }
            Tensor::zeros(shape, like.dtype(), like.device())
        };
        let Some(tensor) = &self.tensor else {
            return zeros(size);
        };
        match tensor.dim(self.dim)? {
            0 => zeros(size),
            have if have < size => {
                Tensor::cat(&[&tensor.contiguous()?, &zeros(size - have)?], self.dim)
            }
            _ if self.is_shared => tensor.force_contiguous(),
            _ => Ok(tensor.clone()),
        }
    }
}

/// `kept` with `new` written to it along `dim` from index `at` on, which is at most its length; where `new` passes index `end`, it goes
/// on at index 0. `new` is shorter than `end`.
///
/// The gradient arrives at `new`; `kept` is a constant. The graph keeps `new`. If one of them is empty, the other comes back.
pub fn overwrite(kept: &Tensor, new: &Tensor, dim: usize, at: usize, end: usize) -> Result<Tensor> {
    let (have, count) = (kept.dim(dim)?, new.dim(dim)?);
    if have == 0 {
        return Ok(new.clone());
    }
    if count == 0 {
        return Ok(kept.detach());
    }
    let before_end = count.min(end - at);
    let from_start = count - before_end;
    let behind = (at + before_end).min(have);
    let (kept, constant) = (kept.detach(), new.detach());
    let mut parts = vec![
        constant.narrow(dim, before_end, from_start)?,
        kept.narrow(dim, from_start, at - from_start)?,
        constant.narrow(dim, 0, before_end)?,
        kept.narrow(dim, behind, have - behind)?,
    ];
    parts.retain(|part| part.dims().get(dim) != Some(&0));
    let all = Tensor::cat(&parts, dim)?;
    record("kv-cache", [new], all, move |given| {
        let first = given.gradient.narrow(dim, at, before_end)?;
        let gradient = match from_start {
            0 => first,
            _ => Tensor::cat(&[first, given.gradient.narrow(dim, 0, from_start)?], dim)?,
        };
        Ok([Some(gradient)])
    })
}

/// The same values without the graph. Nothing is copied, except a Var: optimizers write to it.
pub fn without_graph(tensor: &Tensor) -> Result<Tensor> {
    match tensor.is_variable() {
        true => Ok(tensor.copy()?.detach()),
        false => Ok(tensor.detach()),
    }
}
