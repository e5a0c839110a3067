//! Puts tensors that were computed without a graph into candle's graph.

mod take;

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, MetalStorage, Result,
    Shape, Storage, Tensor,
};
use parking_lot::Mutex;

use take::{take_storage, unshared};

/// What a backward pass is given. All tensors are detached.
pub struct Backward<const N: usize> {
    pub inputs: [Tensor; N],
    pub output: Tensor,
    /// The gradient of the output, in the output's shape; any strides.
    pub gradient: Tensor,
    /// Whether the gradient of each input is asked for.
    pub needs: [bool; N],
}

/// The gradient of each input; `None` where it is not asked for.
pub type Gradients<const N: usize> = [Option<Tensor>; N];

/// Makes `output` a function of `inputs` whose gradients `backward` computes.
///
/// The graph keeps the inputs and the output, and what the closure holds. The output's storage is moved, not copied, so no other
/// tensor may share it. Two cases are safe: an output that shares the storage of an input is copied, and so is one without elements,
/// for which many of candle's operations return an argument. If no input leads to a Var, the output is returned as it is.
pub fn record<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: impl Fn(Backward<N>) -> Result<Gradients<N>> + Send + Sync + 'static,
) -> Result<Tensor> {
    let needs = inputs.map(Tensor::track_op);
    if !needs.contains(&true) {
        return Ok(output);
    }
    let shape = output.shape().clone();
    let storage = take_storage(unshared(output, &inputs)?)?;
    let node = Node {
        name,
        output: Mutex::new(Some((storage, shape))),
        needs,
        backward,
    };
    match inputs.as_slice() {
        [a] => a.apply_op1(node),
        [a, b] => a.apply_op2(b, node),
        [a, b, c] => a.apply_op3(b, c, node),
        _ => Err(Error::Msg(format!("{name}: {N} inputs, candle records at most 3")).bt()),
    }
}

fn missing(name: &'static str) -> Error {
    Error::Msg(format!("{name}: the output was taken twice")).bt()
}

/// An operation of candle's graph whose output is already computed.
struct Node<const N: usize, F> {
    name: &'static str,
    output: Mutex<Option<(Storage, Shape)>>,
    needs: [bool; N],
    backward: F,
}

impl<const N: usize, F> Node<N, F>
where
    F: Fn(Backward<N>) -> Result<Gradients<N>>,
{
    fn output(&self) -> Result<(Storage, Shape)> {
        self.output.lock().take().ok_or_else(|| missing(self.name))
    }

    fn cpu(&self) -> Result<(CpuStorage, Shape)> {
        match self.output()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn cuda(&self) -> Result<(CudaStorage, Shape)> {
        match self.output()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn metal(&self) -> Result<(MetalStorage, Shape)> {
        match self.output()? {
            (Storage::Metal(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn elsewhere(&self) -> Error {
        Error::Msg(format!("{}: the inputs are on several devices", self.name)).bt()
    }

    /// The gradients of the inputs, of which there are N.
    fn gradients(
        &self,
        inputs: &[&Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<impl Iterator<Item = Option<Tensor>> + use<N, F>> {
        let inputs = <[&Tensor; N]>::try_from(inputs).map_err(|_| missing(self.name))?;
        let gradients = (self.backward)(Backward {
            inputs: inputs.map(Tensor::detach),
            output: output.detach(),
            gradient: gradient.detach(),
            needs: self.needs,
        })?;
        Ok(gradients.into_iter())
    }
}

/// Implements one of candle's traits for operations. [`record`] chooses the one for N inputs.
macro_rules! operation {
    ($operation:ident, $($input:ident: $storage:ident: $layout:ident),+ => $gradients:ty) => {
        impl<const N: usize, F> $operation for Node<N, F>
        where
            F: Fn(Backward<N>) -> Result<Gradients<N>>,
        {
            fn name(&self) -> &'static str {
                self.name
            }

            fn cpu_fwd(
                &self,
                $($storage: &CpuStorage, $layout: &Layout),+
            ) -> Result<(CpuStorage, Shape)> {
                $(let _ = ($storage, $layout);)+
                self.cpu()
            }

            fn cuda_fwd(
                &self,
                $($storage: &CudaStorage, $layout: &Layout),+
            ) -> Result<(CudaStorage, Shape)> {
                $(let _ = ($storage, $layout);)+
                self.cuda()
            }

            fn metal_fwd(
                &self,
                $($storage: &MetalStorage, $layout: &Layout),+
            ) -> Result<(MetalStorage, Shape)> {
                $(let _ = ($storage, $layout);)+
                self.metal()
            }

            fn bwd(&self, $($input: &Tensor,)+ output: &Tensor, gradient: &Tensor) -> Result<$gradients> {
                let mut gradients = self.gradients(&[$($input),+], output, gradient)?;
                Ok(($({
                    let _ = $input;
                    gradients.next().flatten()
                }),+))
            }
        }
    };
}

operation!(CustomOp1, a: s1: l1 => Option<Tensor>);
operation!(CustomOp2, a: s1: l1, b: s2: l2 => (Option<Tensor>, Option<Tensor>));
operation!(
    CustomOp3, a: s1: l1, b: s2: l2, c: s3: l3 => (Option<Tensor>, Option<Tensor>, Option<Tensor>)
);

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Tensor, Var};

    use super::record;

    /// The input as its own function.
    fn identity(xs: &Tensor) -> Result<Tensor> {
        record("identity", [xs], xs.detach(), |given| {
            Ok([Some(given.gradient)])
        })
    }

    #[test]
    fn an_output_that_shares_the_storage_of_an_input_is_copied() -> Result<()> {
        let var = Var::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
        for len in 0..=3 {
            let part = var.narrow(0, 0, len)?;
            let expected = part.to_vec2::<f32>()?;
            let output = identity(&part)?;
            assert_eq!(output.to_vec2::<f32>()?, expected);
            assert_eq!(part.to_vec2::<f32>()?, expected);
            assert_eq!(var.to_vec2::<f32>()?, [[1., 2.], [3., 4.], [5., 6.]]);
            let store = output.sum_all()?.backward()?;
            let sum = store.get(&var).map(Tensor::sum_all).transpose()?;
            let sum = sum.map(|sum| sum.to_scalar::<f32>()).transpose()?;
            assert_eq!(sum, Some(2. * len as f32));
        }
        Ok(())
    }
}
