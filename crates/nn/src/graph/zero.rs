//! Operations of candle's graph that compute nothing: their value is a zero.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Error, Layout, MetalStorage,
    Result, Shape, Tensor,
};

/// Puts a scalar into the graph. `backward` is given the arguments and returns a gradient for each one; those of the scalar
/// itself mean nothing.
pub fn zero(
    name: &'static str,
    arguments: &[Tensor],
    backward: impl Fn(&[&Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Tensor> {
    let backward = Box::new(backward);
    let zero = Zero { name, backward };
    match arguments {
        [a] => a.apply_op1(zero),
        [a, b] => a.apply_op2(b, zero),
        [a, b, c] => a.apply_op3(b, c, zero),
        _ => {
            let count = arguments.len();
            Err(Error::Msg(format!("{name}: {count} arguments, candle records 1 to 3")).bt())
        }
    }
}

/// Given the arguments, a gradient for each one.
type HandOn = Box<dyn Fn(&[&Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// One type for all closures, so that it is compiled once.
struct Zero {
    name: &'static str,
    backward: HandOn,
}

/// On the device of another storage.
fn beside<S>(storage: &S) -> Result<(S, Shape)>
where
    S: BackendStorage<Device: BackendDevice<Storage = S>>,
{
    let scalar = Shape::from(());
    Ok((storage.device().zeros_impl(&scalar, DType::F32)?, scalar))
}

/// Implements one of candle's traits for operations.
macro_rules! operation {
    ($operation:ident, $storage:ident: $layout:ident $(, $s:ident: $l:ident)* => $($input:ident),+ => $gradients:ty) => {
        impl $operation for Zero {
            fn name(&self) -> &'static str {
                self.name
            }

            fn cpu_fwd(
                &self,
                $storage: &CpuStorage, $layout: &Layout $(, $s: &CpuStorage, $l: &Layout)*
            ) -> Result<(CpuStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                beside($storage)
            }

            fn cuda_fwd(
                &self,
                $storage: &CudaStorage, $layout: &Layout $(, $s: &CudaStorage, $l: &Layout)*
            ) -> Result<(CudaStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                beside($storage)
            }

            fn metal_fwd(
                &self,
                $storage: &MetalStorage, $layout: &Layout $(, $s: &MetalStorage, $l: &Layout)*
            ) -> Result<(MetalStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                beside($storage)
            }

            fn bwd(&self, $($input: &Tensor,)+ _: &Tensor, _: &Tensor) -> Result<$gradients> {
                let mut gradients = (self.backward)(&[$($input),+])?.into_iter();
                Ok(($({
                    let _ = $input;
                    gradients.next()
                }),+))
            }
        }
    };
}

operation!(CustomOp1, s1: l1 => a => Option<Tensor>);
operation!(CustomOp2, s1: l1, s2: l2 => a, b => (Option<Tensor>, Option<Tensor>));
operation!(
    CustomOp3, s1: l1, s2: l2, s3: l3 => a, b, c => (Option<Tensor>, Option<Tensor>, Option<Tensor>)
);
