use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, PushKernelArg};
use candle_core::{CudaDevice, Result};

use super::{CudaElement, CudaKernel, Module, each_element, each_row, function, module, view};
use crate::nn::kernel::Kernel;
use crate::nn::norm::cells::{CellGradient, CellMoments, CellScaling, CellSums};

const MODULE: Module = module!("cells");

impl CudaKernel<1, 2> for CellMoments {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [means, variances]: [&mut CudaSlice<O>; 2],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (cells, center) = (self.cells, u32::from(self.center));
        let mut launch = function.builder();
        launch.arg(&cells.outer).arg(&cells.cells).arg(&cells.inner);
        launch.arg(&center).arg(&xs).arg(means).arg(variances);
        // SAFETY: the arguments are those of the kernel in kernels/cells.cu; xs has the cells' elements, the outputs one for each.
        unsafe { launch.launch(each_row(cells.cells, cells.len())?) }.w()?;
        Ok(())
    }
}

impl CudaKernel<2, 2> for CellSums {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, dys]: [CudaView<'_, T>; 2],
        [sums, products]: [&mut CudaSlice<O>; 2],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (storage, layout) = self.mean.storage_and_layout();
        let means = view::<T::Wide>(&storage, layout, Self::NAME)?;
        let cells = self.cells;
        let mut launch = function.builder();
        launch.arg(&cells.outer).arg(&cells.cells).arg(&cells.inner);
        launch.arg(&means).arg(&xs).arg(&dys);
        launch.arg(sums).arg(products);
        // SAFETY: the arguments are those of the kernel in kernels/cells.cu; xs and dys have the cells' elements, the means and the
        // outputs one for each.
        unsafe { launch.launch(each_row(cells.cells, cells.len())?) }.w()?;
        Ok(())
    }
}

impl CudaKernel<1, 1> for CellScaling {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [ys]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let values = [&self.mean, &self.scale, &self.shift];
        let values = values.map(|values| values.storage_and_layout());
        let len = xs.len();
        let mut views = Vec::with_capacity(values.len());
        for (storage, layout) in &values {
            views.push(view::<T::Wide>(storage, layout, Self::NAME)?);
        }
        let mut launch = function.builder();
        launch
            .arg(&len)
            .arg(&self.cells.cells)
            .arg(&self.cells.inner);
        for view in &views {
            launch.arg(view);
        }
        launch.arg(&xs).arg(ys);
        // SAFETY: the arguments are those of the kernel in kernels/cells.cu; xs and ys have `len` elements, the others one for each
        // cell.
        unsafe { launch.launch(each_element(len)) }.w()?;
        Ok(())
    }
}

impl CudaKernel<2, 1> for CellGradient {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, dys]: [CudaView<'_, T>; 2],
        [dxs]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let values = [&self.mean, &self.scale, &self.slope, &self.shift];
        let values = values.map(|values| values.storage_and_layout());
        let len = xs.len();
        let mut views = Vec::with_capacity(values.len());
        for (storage, layout) in &values {
            views.push(view::<T::Wide>(storage, layout, Self::NAME)?);
        }
        let mut launch = function.builder();
        launch
            .arg(&len)
            .arg(&self.cells.cells)
            .arg(&self.cells.inner);
        for view in &views {
            launch.arg(view);
        }
        launch.arg(&xs).arg(&dys).arg(dxs);
        // SAFETY: the arguments are those of the kernel in kernels/cells.cu; xs, dys and dxs have `len` elements, the others one for
        // each cell.
        unsafe { launch.launch(each_element(len)) }.w()?;
        Ok(())
    }
}
