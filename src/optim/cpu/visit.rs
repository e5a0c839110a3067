use std::cell::Cell;

use candle_core::{CpuStorage, InplaceOp2, Layout, Result, Tensor};

use crate::optim::fused::Managed;

/// Gives `work` the storage of a parameter to change, and of its gradient.
pub fn visit(
    parameter: &Managed,
    gradient: &Tensor,
    work: impl FnOnce(&mut CpuStorage, &CpuStorage, &Layout) -> Result<()>,
) -> Result<()> {
    let visit = Visit(Cell::new(Some(work)));
    parameter.handle.inplace_op2(gradient, &visit)
}

struct Visit<F>(Cell<Option<F>>);

impl<F: FnOnce(&mut CpuStorage, &CpuStorage, &Layout) -> Result<()>> InplaceOp2 for Visit<F> {
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        _: &Layout,
        gradient: &CpuStorage,
        layout: &Layout,
    ) -> Result<()> {
        let work = self.0.take();
        work.map_or(Ok(()), |work| work(parameter, gradient, layout))
    }
}
