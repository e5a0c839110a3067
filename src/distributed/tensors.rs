use candle_core::{DType, Tensor};

use super::group::Group;
use crate::error::{GroupError, Result};

impl Group {
    /// Returns the sum of the ranks' tensors, which all have one shape and type: f64, f32, or f16 and bf16, which are added in f32.
    ///
    /// A trainer adds gradients by itself. This is for other numbers, such as metrics that lie on the device.
    ///
    /// # Errors
    /// [`GroupError`]: the ranks' tensors differ, a rank is lost, or there is no engine for the device. Errors from candle.
    pub fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        self.compare(tensor, "sum")?;
        let Some(engine) = self.collectives(tensor.device())? else {
            return Ok(tensor.copy()?);
        };
        let dtype = match tensor.dtype() {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        };
        let len = tensor.elem_count();
        let padding = len.next_multiple_of(self.size()) - len;
        let flat = tensor.to_dtype(dtype)?.flatten_all()?;
        let flat = flat.pad_with_zeros(0, 0, padding)?.copy()?;
        let watch = self.watch("sum");
        engine.all_reduce(&flat, 1., &watch)?;
        engine.finish(&watch)?;
        let sum = flat.narrow(0, 0, len)?.reshape(tensor.shape())?;
        Ok(sum.to_dtype(tensor.dtype())?)
    }

    /// Replaces the values of this tensor by rank `from`'s, on all ranks. It is contiguous, such as a [`Var`](candle_core::Var), and has one shape and
    /// type on all ranks.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub fn broadcast(&self, tensor: &Tensor, from: usize) -> Result<()> {
        self.compare(tensor, "broadcast")?;
        if from >= self.size() {
            let size = self.size();
            let error = format!("there is no rank {from} to copy from in a group of {size}");
            return Err(candle_core::Error::Msg(error).into());
        }
        if let Some(engine) = self.collectives(tensor.device())? {
            let watch = self.watch("broadcast");
            engine.broadcast(tensor, from, &watch)?;
            engine.finish(&watch)?;
        }
        Ok(())
    }

    /// Fails on all ranks if their tensors differ in shape or type.
    fn compare(&self, tensor: &Tensor, call: &str) -> Result<()> {
        let own = format!("{:?} {:?}", tensor.dims(), tensor.dtype());
        let all = self.control().gather(call, own.as_bytes())?;
        if all.iter().all(|theirs| theirs == own.as_bytes()) {
            return Ok(());
        }
        let all = all.iter().enumerate();
        let differences =
            all.map(|(rank, text)| format!("rank {rank} has {}", String::from_utf8_lossy(text)));
        Err(GroupError::Different {
            what: "the tensor's shape or type",
            differences: differences.collect(),
        }
        .into())
    }
}
