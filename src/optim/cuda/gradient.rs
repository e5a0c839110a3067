use std::cell::Cell;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp2, Layout, Result, Tensor};

use super::layout::{address, address_mut, misplaced};
use crate::optim::fused::Managed;

/// The addresses of a parameter and its gradient, under candle's own locks and checks.
pub fn locate(parameter: &Managed, gradient: &Tensor) -> Result<(u64, u64)> {
    let locate = Locate(Cell::new(None));
    parameter.handle.inplace_op2(gradient, &locate)?;
    locate.0.get().ok_or_else(misplaced)
}

/// An operation that only takes the addresses of its operands.
struct Locate(Cell<Option<(u64, u64)>>);

impl InplaceOp2 for Locate {
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<()> {
        Err(misplaced())
    }

    fn cuda_fwd(
        &self,
        parameter: &mut CudaStorage,
        parameter_layout: &Layout,
        gradient: &CudaStorage,
        gradient_layout: &Layout,
    ) -> Result<()> {
        let stream = parameter.device.cuda_stream();
        let place = |address: u64, layout: &Layout, dtype: DType| {
            address + (layout.start_offset() * dtype.size_in_bytes()) as u64
        };
        let (moved, read) = (parameter.dtype(), gradient.dtype());
        self.0.set(Some((
            place(
                address_mut(parameter, moved, &stream)?,
                parameter_layout,
                moved,
            ),
            place(address(gradient, read, &stream)?, gradient_layout, read),
        )));
        Ok(())
    }
}
