//! Operations of candle's graph that compute nothing: their value was computed before, or they are scalars that nobody reads.
//!
//! Such a scalar is there for the graph alone. candle adds those that [`node`]s hand back as gradients, and gives the sum to the `backward`
//! of another node, which does not look at it; sums are taken out of the store on the way, and it is dropped where the pass fails. So on
//! CUDA scalars are not initialized. On the CPU they are NaN in debug builds, so that a test of gradients notices a read.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Error, Layout, MetalStorage,
    Result, Shape, Storage, Tensor,
};
use parking_lot::Mutex;

use crate::kernel::cuda;

/// What a forward pass returns.
type Value = (Storage, Shape);

/// Puts a value into the graph, or without one a scalar that means nothing. `backward` is given the arguments, the node itself and the value's
/// gradient, which means nothing for such a scalar, and returns a gradient for each argument; `None` if candle shall add nothing.
pub fn node(
    name: &'static str,
    arguments: &[Tensor],
    value: Option<Value>,
    backward: impl Fn(&[&Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>>
    + Send
    + Sync
    + 'static,
) -> Result<Tensor> {
    let node = Node {
        name,
        value: Mutex::new(value),
        backward: Box::new(backward),
    };
    match arguments {
        [a] => a.apply_op1(node),
        [a, b] => a.apply_op2(b, node),
        [a, b, c] => a.apply_op3(b, c, node),
        _ => {
            let count = arguments.len();
            Err(Error::Msg(format!("{name}: {count} arguments, candle records 1 to 3")).bt())
        }
    }
}

/// Given the arguments, the node and the value's gradient, a gradient for each argument.
type HandOn =
    Box<dyn Fn(&[&Tensor], &Tensor, &Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync>;

/// One type for all closures, so that it is compiled once.
struct Node {
    name: &'static str,
    /// Taken by the forward pass.
    value: Mutex<Option<Value>>,
    backward: HandOn,
}

impl Node {
    /// A scalar that nobody reads, where no value is `given`.
    fn scalar<S>(
        &self,
        given: Option<Value>,
        make: impl FnOnce(&Shape) -> Result<S>,
    ) -> Result<(S, Shape)> {
        if given.is_some() {
            let name = self.name;
            return Err(Error::Msg(format!("{name}: the inputs are on several devices")).bt());
        }
        let scalar = Shape::from(());
        Ok((make(&scalar)?, scalar))
    }
}

/// A scalar's value on the CPU.
const UNREAD: f32 = if cfg!(debug_assertions) { f32::NAN } else { 0. };

/// Implements one of candle's traits for operations.
macro_rules! operation {
    ($operation:ident, $storage:ident: $layout:ident $(, $s:ident: $l:ident)* => $($input:ident),+ => $gradients:ty) => {
        impl $operation for Node {
            fn name(&self) -> &'static str {
                self.name
            }

            fn cpu_fwd(
                &self,
                $storage: &CpuStorage, $layout: &Layout $(, $s: &CpuStorage, $l: &Layout)*
            ) -> Result<(CpuStorage, Shape)> {
                let _ = ($storage, $layout, $($s, $l),*);
                match self.value.lock().take() {
                    Some((Storage::Cpu(value), shape)) => Ok((value, shape)),
                    given => self.scalar(given, |_| Ok(CpuStorage::F32(vec![UNREAD]))),
                }
            }

            fn cuda_fwd(
                &self,
                $storage: &CudaStorage, $layout: &Layout $(, $s: &CudaStorage, $l: &Layout)*
            ) -> Result<(CudaStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                match self.value.lock().take() {
                    Some((Storage::Cuda(value), shape)) => Ok((value, shape)),
                    given => self.scalar(given, |_| cuda::unread($storage.device(), DType::F32)),
                }
            }

            fn metal_fwd(
                &self,
                $storage: &MetalStorage, $layout: &Layout $(, $s: &MetalStorage, $l: &Layout)*
            ) -> Result<(MetalStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                match self.value.lock().take() {
                    Some((Storage::Metal(value), shape)) => Ok((value, shape)),
                    given => self.scalar(given, |scalar| {
                        $storage.device().zeros_impl(scalar, DType::F32)
                    }),
                }
            }

            fn bwd(&self, $($input: &Tensor,)+ node: &Tensor, gradient: &Tensor) -> Result<$gradients> {
                let mut gradients = (self.backward)(&[$($input),+], node, gradient)?.into_iter();
                Ok(($({
                    let _ = $input;
                    gradients.next().flatten()
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
