use std::ffi::c_void;
use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaStream, DevicePtrMut};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Tensor};
use parking_lot::Mutex;

use super::communicator::{Communicator, Turn};
use super::library::{FLOAT32, FLOAT64, SUM, UINT8};
use crate::distributed::collectives::{Collectives, Operation, Watch};
use crate::error::{Error, Result};
use crate::optim::blend;

/// All in one call: NCCL cuts it itself, and each call passes all ranks of a ring.
const BUCKET: usize = usize::MAX;

/// NCCL between buffers on GPUs. Its work runs on the tensors' own streams, in order with their kernels.
#[derive(Debug)]
pub(super) struct Engine {
    communicator: Communicator,
    /// The streams with work since the last [`finish`](Collectives::finish).
    streams: Mutex<Vec<Arc<CudaStream>>>,
}

impl Engine {
    pub(super) fn new(communicator: Communicator) -> Self {
        Self {
            communicator,
            streams: Mutex::default(),
        }
    }
}

impl Collectives for Engine {
    fn name(&self) -> String {
        self.communicator.library.name()
    }

    fn bucket(&self) -> usize {
        BUCKET
    }

    fn exchange(&self, buffer: &Tensor, operation: Operation, watch: &Watch) -> Result<()> {
        if let Operation::AllReduce { factor } = operation {
            if factor != 1. {
                blend(buffer, factor, 0., None)?;
            }
            self.exchange(buffer, Operation::ReduceScatter, watch)?;
            return self.exchange(buffer, Operation::AllGather, watch);
        }
        self.communicator.run(operation.name(), watch, |turn| {
            let exchange = Exchange {
                engine: self,
                turn,
                operation,
            };
            buffer.inplace_op1(&exchange).map_err(Error::from)
        })
    }

    fn finish(&self, watch: &Watch) -> Result<()> {
        let streams = std::mem::take(&mut *self.streams.lock());
        self.communicator.run("waiting for the GPU", watch, |turn| {
            for stream in &streams {
                let end = stream.record_event(None).w()?;
                turn.wait(|| Ok(end.try_is_complete().w()?))?;
            }
            Ok(())
        })
    }
}

/// The handle of each thread's own default stream.
const PER_THREAD: usize = 2;

/// NCCL may launch work from another thread, for which a thread's own stream is another stream.
pub(super) fn check_stream(stream: &CudaStream) -> Result<(), String> {
    match stream.cu_stream().addr() {
        PER_THREAD => Err(
            "the device is used through each thread's own stream, on which NCCL's work has no order: open it with `DeviceMemory::cuda` or \
             `Device::new_cuda_with_stream`"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}

/// A call with a tensor's own memory.
struct Exchange<'a> {
    engine: &'a Engine,
    turn: &'a Turn<'a>,
    operation: Operation,
}

impl InplaceOp1 for Exchange<'_> {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        let reason = "the tensor is in the host's memory".to_owned();
        Err(self.turn.error(reason))?
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let stream = storage.device.cuda_stream();
        let wrong = |reason: String| candle_core::Error::from(self.turn.error(reason));
        let own = self.engine.communicator.context.ordinal();
        let other = stream.context().ordinal();
        if own != other {
            let reason = format!("the tensor is on CUDA device {other}, NCCL was opened on {own}");
            return Err(wrong(reason));
        }
        check_stream(&stream).map_err(wrong)?;
        let dtype = storage.dtype();
        // The guard orders later work on other streams after this one. It is dropped when the work is queued.
        macro_rules! place_of {
            ($($dtype:ident)+) => {
                match (&mut storage.slice, layout.contiguous_offsets()) {
                    $((CudaStorageSlice::$dtype(values), Some(range)) => {
                        Some((values.device_ptr_mut(&stream), range))
                    })+
                    _ => None,
                }
            };
        }
        let Some(((address, _guard), (start, end))) =
            place_of!(U8 U32 I16 I32 I64 BF16 F16 F32 F64 F8E4M3)
        else {
            let reason =
                format!("a tensor of type {dtype:?} that is not contiguous, or only stored");
            return Err(wrong(reason));
        };
        if start == end {
            return Ok(());
        }
        let elements = end - start;
        let address = address + (start * dtype.size_in_bytes()) as u64;
        let control = &self.engine.communicator.control;
        let (rank, size) = (control.rank(), control.size());
        let is_cut = !matches!(self.operation, Operation::Broadcast { .. });
        if is_cut && !elements.is_multiple_of(size) {
            return Err(wrong(format!(
                "{elements} elements cannot be cut into {size} pieces"
            )));
        }
        let bytes = elements * dtype.size_in_bytes();
        let piece = bytes / size;
        let start = address as *mut c_void;
        let own = start.wrapping_byte_add(rank * piece);
        let queue = stream.cu_stream().cast();
        // Sums know the type, and copies move bytes.
        let (count, data, root) = match self.operation {
            // An all-reduce is made of the other two.
            Operation::ReduceScatter | Operation::AllReduce { .. } => {
                let data = match dtype {
                    DType::F32 => FLOAT32,
                    DType::F64 => FLOAT64,
                    _ => return Err(wrong(format!("no sum of type {dtype:?}"))),
                };
                (elements / size, data, 0)
            }
            Operation::AllGather => (piece, UINT8, 0),
            Operation::Broadcast { from } => {
                let root = i32::try_from(from).map_err(|error| wrong(error.to_string()))?;
                (bytes, UINT8, root)
            }
        };
        // SAFETY: the range is that of the tensor in its storage, which candle keeps in bounds, and the stream is that of its device, on which
        // cudarc frees it. It has `size` times `count` elements of the type `data`, or `count` for a broadcast, and this rank's piece is where
        // NCCL wants it for a call in place. NCCL refuses a rank that does not exist.
        unsafe {
            self.turn.call(|nccl, comm| match self.operation {
                Operation::ReduceScatter | Operation::AllReduce { .. } => {
                    (nccl.reduce_scatter)(start, own, count, data, SUM, comm, queue)
                }
                Operation::AllGather => (nccl.all_gather)(own, start, count, data, comm, queue),
                Operation::Broadcast { .. } => {
                    (nccl.broadcast)(start, start, count, data, root, comm, queue)
                }
            })
        }?;
        let mut streams = self.engine.streams.lock();
        let is_known = |known: &Arc<CudaStream>| known.cu_stream() == stream.cu_stream();
        if !streams.iter().any(is_known) {
            streams.push(Arc::clone(&stream));
        }
        Ok(())
    }
}
