use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView, PushKernelArg};
use candle_core::{CudaDevice, Result};

use super::{CudaElement, CudaKernel, Module, each_element, function, module};
use crate::nn::kernel::Kernel;
use crate::nn::ops::curves::Curve;
use crate::nn::ops::elementwise::{Slopes, Values};
use crate::nn::ops::swiglu::{Swiglu, SwigluBackward};

const MODULE: Module = module!("activation");

/// The curve's number in kernels/activation.cu, and its parameters.
fn numbers(curve: Curve) -> (u32, f64, f64) {
    match curve {
        Curve::Gelu => (0, 0., 0.),
        Curve::GeluErf => (1, 0., 0.),
        Curve::Silu => (2, 0., 0.),
        Curve::Relu => (3, 0., 0.),
        Curve::Sigmoid => (4, 0., 0.),
        Curve::Elu(alpha) => (5, alpha, 0.),
        Curve::Relu2 => (6, 0., 0.),
        Curve::Relu6 => (7, 0., 0.),
        Curve::HardSigmoid => (8, 0., 0.),
        Curve::HardSwish => (9, 0., 0.),
        Curve::Mish => (10, 0., 0.),
        Curve::LeakyRelu(slope) => (11, slope, 0.),
        Curve::Selu { alpha, gamma } => (12, alpha, gamma),
    }
}

impl CudaKernel<1, 1> for Values {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [ys]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (len, (curve, first, second)) = (xs.len(), numbers(self.0));
        let mut launch = function.builder();
        launch.arg(&len).arg(&curve).arg(&first).arg(&second);
        launch.arg(&xs).arg(ys);
        // SAFETY: the arguments are those of the kernel in kernels/activation.cu; both tensors have `len` elements.
        unsafe { launch.launch(each_element(len)) }.w()?;
        Ok(())
    }
}

impl CudaKernel<2, 1> for Slopes {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, dys]: [CudaView<'_, T>; 2],
        [dxs]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let (len, (curve, first, second)) = (xs.len(), numbers(self.0));
        let mut launch = function.builder();
        launch.arg(&len).arg(&curve).arg(&first).arg(&second);
        launch.arg(&xs).arg(&dys).arg(dxs);
        // SAFETY: the arguments are those of the kernel in kernels/activation.cu; all tensors have `len` elements.
        unsafe { launch.launch(each_element(len)) }.w()?;
        Ok(())
    }
}

impl CudaKernel<1, 1> for Swiglu {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs]: [CudaView<'_, T>; 1],
        [ys]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let len = xs.len() / 2;
        let mut launch = function.builder();
        launch.arg(&len).arg(&self.width).arg(&xs).arg(ys);
        // SAFETY: the arguments are those of the kernel in kernels/activation.cu; ys have `len` elements, and xs twice as many.
        unsafe { launch.launch(each_element(len)) }.w()?;
        Ok(())
    }
}

impl CudaKernel<2, 1> for SwigluBackward {
    fn cuda<T: CudaElement, O: CudaElement>(
        &self,
        device: &CudaDevice,
        [xs, dys]: [CudaView<'_, T>; 2],
        [dxs]: [&mut CudaSlice<O>; 1],
    ) -> Result<()> {
        let function = function::<T>(device, MODULE, Self::NAME)?;
        let len = dys.len();
        let mut launch = function.builder();
        launch
            .arg(&len)
            .arg(&self.width)
            .arg(&xs)
            .arg(&dys)
            .arg(dxs);
        // SAFETY: the arguments are those of the kernel in kernels/activation.cu; dys have `len` elements, xs and dxs twice as many.
        unsafe { launch.launch(each_element(len)) }.w()?;
        Ok(())
    }
}
