use candle_core::{DType, Tensor};

use super::collectives::Operation;
use super::group::Group;
use crate::error::{GroupError, Result};

const SHAPE: &str = "the tensor's shape or type";

impl Group {
    /// Returns the sum of the ranks' tensors, which all have one shape and type: f64, f32, or f16 and bf16, which are added in f32.
    ///
    /// A trainer adds gradients by itself. This is for other numbers, such as metrics that lie on the device.
    ///
    /// # Errors
    /// [`GroupError`]: the ranks' tensors differ, a rank is lost or fails, or there is no engine for the device. Errors from candle, which a tensor of
    /// another type is as well; the other ranks get [`PeerFailed`](GroupError::PeerFailed), nothing is exchanged, and the group goes on.
    pub fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        // Before the ranks compare, so that one without room for the copy tells the others.
        let flat = self.same("sum", SHAPE, text(tensor), self.flat(tensor))?;
        let Some(engine) = self.collectives(tensor.device())? else {
            return Ok(tensor.copy()?);
        };
        let watch = self.watch("sum");
        engine.exchange(&flat, Operation::AllReduce { factor: 1. }, &watch)?;
        engine.finish(&watch)?;
        let sum = flat
            .narrow(0, 0, tensor.elem_count())?
            .reshape(tensor.shape())?;
        Ok(sum.to_dtype(tensor.dtype())?)
    }

    /// Copies a tensor to a type that engines add, with zeros at the end so that each rank has a piece of one length.
    fn flat(&self, tensor: &Tensor) -> Result<Tensor> {
        let dtype = match tensor.dtype() {
            DType::F16 | DType::BF16 => DType::F32,
            dtype @ (DType::F32 | DType::F64) => dtype,
            other => {
                let problem = format!(
                    "a sum over ranks of type {other:?} is not possible: convert the tensor to F32 or F64"
                );
                return Err(candle_core::Error::Msg(problem).into());
            }
        };
        let len = tensor.elem_count();
        let padding = len.next_multiple_of(self.size()) - len;
        let flat = tensor.to_dtype(dtype)?.flatten_all()?;
        Ok(flat.pad_with_zeros(0, 0, padding)?.copy()?)
    }

    /// Replaces the values of this tensor by rank `from`'s, on all ranks. It is contiguous, such as a [`Var`](candle_core::Var), and has one shape and
    /// type on all ranks, which give the same `from`.
    ///
    /// # Errors
    /// As [`sum`](Self::sum), and on all ranks if one of them gives another `from`, no rank of the group, or a
    /// tensor that is not contiguous or of a type without operations.
    pub fn broadcast(&self, tensor: &Tensor, from: usize) -> Result<()> {
        let own = format!("{} from rank {from}", text(tensor));
        let what = "the tensor's shape or type, or the rank to copy from";
        self.same("broadcast", what, own, self.check_source(tensor, from))?;
        if let Some(engine) = self.collectives(tensor.device())? {
            let watch = self.watch("broadcast");
            engine.exchange(tensor, Operation::Broadcast { from }, &watch)?;
            engine.finish(&watch)?;
        }
        Ok(())
    }

    fn check_source(&self, tensor: &Tensor, from: usize) -> Result<()> {
        let size = self.size();
        let dtype = tensor.dtype();
        let is_stored_only = matches!(
            dtype,
            DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0
        );
        let problem = match from < size {
            true if is_stored_only => {
                format!("a tensor of type {dtype:?}, which is only stored, cannot be copied")
            }
            true if tensor.is_contiguous() => return Ok(()),
            true => "a tensor to copy into has to be contiguous: call `contiguous()`".to_owned(),
            false => format!("there is no rank {from} to copy from in a group of {size}"),
        };
        Err(candle_core::Error::Msg(problem).into())
    }

    /// Fails on all ranks if one of them is not ready, or if their own descriptions differ.
    fn same<T>(&self, call: &str, what: &'static str, own: String, ready: Result<T>) -> Result<T> {
        let (ready, all) = self.agree(call, ready, |_| own.clone())?;
        if all.iter().all(|theirs| *theirs == own) {
            return Ok(ready);
        }
        let all = all.iter().enumerate();
        let differences = all.map(|(rank, text)| format!("rank {rank} has {text}"));
        let differences = differences.collect();
        Err(GroupError::Different { what, differences }.into())
    }
}

fn text(tensor: &Tensor) -> String {
    format!("{:?} {:?}", tensor.dims(), tensor.dtype())
}
