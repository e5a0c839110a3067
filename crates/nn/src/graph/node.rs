//! Operations of candle's graph that compute nothing: their value is a zero, or was computed before.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Error, Layout, MetalStorage,
    Result, Shape, Storage, Tensor,
};
use parking_lot::Mutex;

/// What a forward pass returns.
type Value = (Storage, Shape);

/// Puts a value into the graph, or without one a scalar zero. `backward` is given the arguments and the value's gradient, which means
/// nothing for a zero, and returns a gradient for each argument.
pub fn node(
    name: &'static str,
    arguments: &[Tensor],
    value: Option<Value>,
    backward: impl Fn(&[&Tensor], &Tensor) -> Result<Vec<Tensor>> + Send + Sync + 'static,
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

/// Given the arguments and the value's gradient, a gradient for each argument.
type HandOn = Box<dyn Fn(&[&Tensor], &Tensor) -> Result<Vec<Tensor>> + Send + Sync>;

/// One type for all closures, so that it is compiled once.
struct Node {
    name: &'static str,
    /// Taken by the forward pass.
    value: Mutex<Option<Value>>,
    backward: HandOn,
}

impl Node {
    /// A zero on the device of another storage, where no value is `given`.
    fn zero<S>(&self, given: Option<Value>, beside: &S) -> Result<(S, Shape)>
    where
        S: BackendStorage<Device: BackendDevice<Storage = S>>,
    {
        if given.is_some() {
            let name = self.name;
            return Err(Error::Msg(format!("{name}: the inputs are on several devices")).bt());
        }
        let scalar = Shape::from(());
        Ok((beside.device().zeros_impl(&scalar, DType::F32)?, scalar))
    }
}

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
                let _ = ($layout, $($s, $l),*);
                match self.value.lock().take() {
                    Some((Storage::Cpu(value), shape)) => Ok((value, shape)),
                    given => self.zero(given, $storage),
                }
            }

            fn cuda_fwd(
                &self,
                $storage: &CudaStorage, $layout: &Layout $(, $s: &CudaStorage, $l: &Layout)*
            ) -> Result<(CudaStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                match self.value.lock().take() {
                    Some((Storage::Cuda(value), shape)) => Ok((value, shape)),
                    given => self.zero(given, $storage),
                }
            }

            fn metal_fwd(
                &self,
                $storage: &MetalStorage, $layout: &Layout $(, $s: &MetalStorage, $l: &Layout)*
            ) -> Result<(MetalStorage, Shape)> {
                let _ = ($layout, $($s, $l),*);
                match self.value.lock().take() {
                    Some((Storage::Metal(value), shape)) => Ok((value, shape)),
                    given => self.zero(given, $storage),
                }
            }

            fn bwd(&self, $($input: &Tensor,)+ _: &Tensor, gradient: &Tensor) -> Result<$gradients> {
                let mut gradients = (self.backward)(&[$($input),+], gradient)?.into_iter();
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
