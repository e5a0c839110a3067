//! Attention on CUDA without copies: products read views of the inputs and write into views of the results, which all parts share, and kernels
//! find the rows of a chunk among those of all samples. An operand is copied where cuBLAS cannot read it as it lies in memory.

use candle_core::{Result, Tensor};

use super::{Chunk, MOST_QUERIES, Part, Sizes, chunks, kernels};
use crate::attention::rule::{NAME, Rule, wide};
use crate::kernel::{cuda, mismatch};

/// Parts, and how many scores a chunk has at most. Chunks of more than one group of query heads have all queries: a group is one matrix in them.
fn cut(sizes: &Sizes, most: usize) -> (Vec<Part>, usize) {
    let of_key_head = (sizes.group() * sizes.queries).saturating_mul(sizes.keys);
    match sizes.group() {
        // A part is a chunk, whose number of queries is not rounded.
        _ if sizes.queries <= MOST_QUERIES && of_key_head <= most => {
            (Part::of(sizes, most), usize::MAX)
        }
        1 => (Part::of(sizes, most), most),
        _ => (Part::of(sizes, 1), most),
    }
}

/// As `forward` in mod.rs.
pub fn forward(rule: &Rule, all: [&Tensor; 3], most: usize) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype, device) = (rule.sizes, all[0].dtype(), all[0].device());
    let output = (sizes.batch, sizes.queries, sizes.heads, sizes.value_width);
    let mut output = Tensor::zeros(output, dtype, device)?;
    let statistics = (sizes.batch, sizes.heads, sizes.queries, 2);
    let statistics = Tensor::zeros(statistics, wide(dtype), device)?;
    let (parts, most) = cut(&sizes, most);
    for part in &parts {
        let rule = rule.part(&part.samples, &part.key_heads)?;
        let [q, k, v] = all.map(|tensor| cuda::regular(&part.narrow(tensor)?));
        let (q, k, v) = (q?, k?, v?);
        for chunk in chunks(&rule, most).filter(|chunk| chunk.keys > 0) {
            let scores = chunk.product(rule.scale, &q, &k)?;
            let weights = kernels::weights(&chunk, &scores, &statistics, dtype)?;
            if chunk.writes_output() {
                let into = part.narrow(&output.transpose(1, 2)?)?;
                chunk.write_output(&into, &weights, &chunk.seen(&v)?)?;
                continue;
            }
            let (weights, v) = (chunk.shaped(&weights)?, chunk.columns(&v)?);
            let values = cuda::product_of(1., &weights, &v, dtype)?;
            let values = chunk.ungroup(&values)?.transpose(1, 2)?.contiguous()?;
            if values.dims() == output.dims() {
                output = values;
                continue;
            }
            let into = output.narrow(0, part.samples.start, part.samples.len())?;
            into.slice_set(&values, 1, chunk.first)?;
        }
    }
    Ok((output, statistics))
}

/// As `backward` in mod.rs, without a gradient of the mask.
pub fn backward(
    rule: &Rule,
    [q, k, v, output, gradient]: [&Tensor; 5],
    statistics: &Tensor,
    most: usize,
) -> Result<[Tensor; 3]> {
    let (sizes, dtype) = (rule.sizes, q.dtype());
    let output = output.transpose(1, 2)?.contiguous()?;
    let gradient = gradient.transpose(1, 2)?.contiguous()?;
    let rows = [statistics, &output, &gradient];
    let inputs = [q, k, v, &gradient.transpose(1, 2)?];
    let (parts, most) = cut(&sizes, most);
    let adds = most < usize::MAX;
    // Sums over several chunks.
    let of_sums = if adds { wide(dtype) } else { dtype };
    let found = [(q, dtype), (k, of_sums), (v, of_sums)];
    let found = found.map(|(like, dtype)| Tensor::zeros(like.shape(), dtype, like.device()));
    let [dq, dk, dv] = found;
    let found = [dq?, dk?, dv?];
    for part in &parts {
        let rule = rule.part(&part.samples, &part.key_heads)?;
        let inputs = inputs.map(|tensor| cuda::regular(&part.narrow(tensor)?));
        let found = found.each_ref().map(|tensor| part.narrow(tensor));
        let ([q, k, v, gradient], [dq, dk, dv]) = (inputs, found);
        let (inputs, found) = ([&q?, &k?, &v?, &gradient?], [&dq?, &dk?, &dv?]);
        for chunk in chunks(&rule, most).filter(|chunk| chunk.keys > 0) {
            chunk.differentiate(inputs, rows, found, adds)?;
        }
    }
    let [dq, dk, dv] = found;
    Ok([dq, dk.to_dtype(dtype)?, dv.to_dtype(dtype)?])
}

impl Chunk<'_> {
    /// (batch, heads, queries, …) for products with keys and values, where each head is a matrix if the chunk has not all queries, else each
    /// group of heads.
    fn shaped(&self, tensor: &Tensor) -> Result<Tensor> {
        match self.queries < self.rule.sizes.queries {
            true => Ok(tensor.clone()),
            false => self.group(tensor),
        }
    }

    /// The chunk's rows of (batch, heads, queries, …).
    fn rows(&self, tensor: &Tensor) -> Result<Tensor> {
        self.shaped(&tensor.narrow(2, self.first, self.queries)?)
    }

    /// What the chunk sees of (batch, key heads, keys, …), for products with rows.
    fn columns(&self, tensor: &Tensor) -> Result<Tensor> {
        let (sizes, seen) = (self.rule.sizes, self.seen(tensor)?);
        match self.queries < sizes.queries {
            true => seen.broadcast_as((sizes.batch, sizes.heads, self.keys, seen.dim(3)?)),
            false => Ok(seen),
        }
    }

    /// `factor` · x · yᵀ of (batch, heads, queries, …) and of keys or values, in the type of sums.
    fn product(&self, factor: f64, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (x, y) = (self.rows(x)?, self.columns(y)?);
        cuda::product_of(factor, &x, &y.t()?, wide(x.dtype()))
    }

    /// Whether weights · values are written into the output, where heads lie between others: for one sample, if its heads are matrices, or there
    /// are others. Else one product and a copy are less than a product for each sample and key head.
    fn writes_output(&self) -> bool {
        let (rule, sizes) = (self.rule, self.rule.sizes);
        let is_by_head = sizes.group() == 1 || self.queries < sizes.queries;
        sizes.batch == 1 && (is_by_head || sizes.heads < rule.all_heads)
    }

    /// Given the part's view of the output, (1, heads, queries, value width), and the values that it sees.
    fn write_output(&self, into: &Tensor, weights: &Tensor, v: &Tensor) -> Result<()> {
        let sizes = self.rule.sizes;
        let into = into.narrow(2, self.first, self.queries)?;
        let parts = match sizes.group() {
            1 => vec![Part::whole(&sizes)],
            _ => Part::of(&sizes, 1),
        };
        for part in parts {
            let [into, weights, v] = [&into, weights, v].map(|tensor| part.narrow(tensor));
            let (into, weights) = (into?, weights?);
            let v = v?.broadcast_as((1, into.dim(1)?, self.keys, sizes.value_width))?;
            cuda::put_product(1., false, &into, &weights, &v)?;
        }
        Ok(())
    }

    /// Writes the gradients of the chunk's queries, and writes or adds those of keys and values.
    fn differentiate(
        &self,
        [q, k, v, gradient]: [&Tensor; 4],
        rows: [&Tensor; 3],
        [dq, dk, dv]: [&Tensor; 3],
        adds: bool,
    ) -> Result<()> {
        let scale = self.rule.scale;
        let scores = [self.product(scale, q, k)?, self.product(1., gradient, v)?];
        let [weights, scores] = kernels::differentiate(self, scores, rows)?;
        let dq = dq.narrow(2, self.first, self.queries)?;
        if self.queries == self.rule.sizes.queries && !dq.is_contiguous() {
            return Err(mismatch(NAME)); // a copy would be written
        }
        let (dq, k) = (self.shaped(&dq)?, self.columns(k)?);
        cuda::put_product(scale, false, &dq, &self.shaped(&scores)?, &k)?;
        for (factor, into, left, right) in [(1., dv, weights, gradient), (scale, dk, scores, q)] {
            let right = right.narrow(2, self.first, self.queries)?;
            let (left, right) = (self.group(&left)?.t()?, self.group(&right)?);
            cuda::put_product(factor, adds, &self.seen(into)?, &left, &right)?;
        }
        Ok(())
    }
}
