use candle_core::{Result, Tensor};

/// Keys or values that a cache keeps, without a graph.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    tensor: Option<Tensor>,
    /// Whether the memory is also that of a tensor in a graph, so that it must not be written to.
    shared: bool,
}

impl Stored {
    /// A buffer, which may be written to.
    pub fn buffer(tensor: Tensor) -> Self {
        Self {
            tensor: Some(tensor),
            shared: false,
        }
    }

    /// The last positions of a tensor in a graph, as [`without_graph`].
    pub fn shared(all: &Tensor, dim: usize, count: usize) -> Result<Self> {
        let all = without_graph(all)?;
        let first = all.dim(dim)?.saturating_sub(count);
        Ok(Self {
            tensor: Some(all.narrow(dim, first, count)?),
            shared: true,
        })
    }

    pub fn tensor(&self) -> &Option<Tensor> {
        &self.tensor
    }

    /// Returns a contiguous buffer that may be written to. It has `size` positions, at least as many as are stored, and begins
    /// with these. The other dimensions and the type are those of `like`.
    pub fn writable(&self, like: &Tensor, dim: usize, size: usize) -> Result<Tensor> {
        let zeros = |count| {
            let mut shape = like.dims().to_vec();
            if let Some(positions) = shape.get_mut(dim) {
                *positions = count;
            }
            Tensor::zeros(shape, like.dtype(), like.device())
        };
        let Some(tensor) = &self.tensor else {
            return zeros(size);
        };
        match tensor.dim(dim)? {
            0 => zeros(size),
            have if have < size => Tensor::cat(&[&tensor.contiguous()?, &zeros(size - have)?], dim),
            _ if self.shared => tensor.force_contiguous(),
            _ => Ok(tensor.clone()),
        }
    }
}

/// The same values without the graph. Nothing is copied, except a Var: optimizers write to it.
pub fn without_graph(tensor: &Tensor) -> Result<Tensor> {
    match tensor.is_variable() {
        true => Ok(tensor.copy()?.detach()),
        false => Ok(tensor.detach()),
    }
}
