use candle_core::{
    CpuStorage, CudaStorage, Device, InplaceOp2, InplaceOp3, Layout, Result, Storage, Tensor, bail,
};

use super::arguments::Arguments;
use super::launch;
use crate::attention::chunks::chunk::Chunk;
use crate::attention::rule::{NAME, Rule, wide};

/// Whether there are kernels for a device.
pub fn run_on(device: &Device) -> bool {
    device.is_cuda()
}

/// Turns scores into weights in place; the statistics.
pub fn weights(rule: &Rule, chunk: &Chunk, scores: &Tensor) -> Result<Tensor> {
    let rows = (rule.sizes.batch, rule.sizes.heads, chunk.queries, 2);
    let statistics = Tensor::zeros(rows, wide(scores.dtype()), scores.device())?;
    let arguments = Arguments::new(rule, chunk);
    statistics.inplace_op2(scores, &Sums(&arguments))?;
    scores.inplace_op2(&statistics, &Weights(&arguments))?;
    Ok(statistics)
}

/// Turns gradients of weights into gradients of scores, and scores into weights, in place. Given also the statistics and
/// Σ weight · gradient of each row.
pub fn differentiate(
    rule: &Rule,
    chunk: &Chunk,
    [scores, gradients]: [&Tensor; 2],
    [statistics, sums]: [&Tensor; 2],
) -> Result<()> {
    let arguments = Arguments::new(rule, chunk);
    let of_rows = Gradients {
        arguments: &arguments,
        sums,
    };
    gradients.inplace_op3(scores, statistics, &of_rows)?;
    scores.inplace_op2(statistics, &Weights(&arguments))
}

/// Writes the statistics of scores.
struct Sums<'a>(&'a Arguments<'a>);

/// Turns scores into weights.
struct Weights<'a>(&'a Arguments<'a>);

/// Turns gradients of weights into gradients of scores.
struct Gradients<'a> {
    arguments: &'a Arguments<'a>,
    sums: &'a Tensor,
}

impl InplaceOp2 for Sums<'_> {
    fn name(&self) -> &'static str {
        "attention-sums"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        bail!("{NAME}: a kernel of CUDA on the CPU")
    }

    fn cuda_fwd(
        &self,
        statistics: &mut CudaStorage,
        of_statistics: &Layout,
        scores: &CudaStorage,
        of_scores: &Layout,
    ) -> Result<()> {
        launch::sums(self.0, (statistics, of_statistics), (scores, of_scores))
    }
}

impl InplaceOp2 for Weights<'_> {
    fn name(&self) -> &'static str {
        "attention-weights"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        bail!("{NAME}: a kernel of CUDA on the CPU")
    }

    fn cuda_fwd(
        &self,
        scores: &mut CudaStorage,
        of_scores: &Layout,
        statistics: &CudaStorage,
        of_statistics: &Layout,
    ) -> Result<()> {
        launch::weights(self.0, (scores, of_scores), (statistics, of_statistics))
    }
}

impl InplaceOp3 for Gradients<'_> {
    fn name(&self) -> &'static str {
        "attention-gradients"
    }

    fn cpu_fwd(
        &self,
        _: &mut CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<()> {
        bail!("{NAME}: a kernel of CUDA on the CPU")
    }

    fn cuda_fwd(
        &self,
        gradients: &mut CudaStorage,
        of_gradients: &Layout,
        scores: &CudaStorage,
        of_scores: &Layout,
        statistics: &CudaStorage,
        of_statistics: &Layout,
    ) -> Result<()> {
        let (storage, of_sums) = self.sums.storage_and_layout();
        let Storage::Cuda(sums) = &*storage else {
            bail!("{NAME}: sums on another device")
        };
        let sources = [(scores, of_scores), (statistics, of_statistics)];
        launch::gradients(
            self.arguments,
            (gradients, of_gradients),
            sources,
            (sums, of_sums),
        )
    }
}
