//! NCCL: the engine between GPUs. It is loaded at run time, so that one program runs with and without it.
//!
//! Before it is opened, all ranks tell each other whether they can use it. Where one cannot, all do without and know why; different versions of the
//! library, and one GPU for two ranks, are errors.

mod communicator;
mod library;

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, DevicePtrMut};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Tensor};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::distributed::collectives::{Collectives, Operation, Watch};
use crate::distributed::control::Control;
use crate::error::{Error, Result, different, invalid, ranks_text};
use crate::host;
use crate::memory::recover;
use crate::optim::blend;
use communicator::{Communicator, Turn};
use library::{FLOAT32, FLOAT64, Library, SUM, UINT8, UniqueId};

/// What a rank that can use NCCL tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    version: String,
    /// A name that no other running machine has; the containers of one machine share it.
    machine: String,
    gpu: String,
    /// The name of the communicator, from rank 0.
    id: Vec<u8>,
}

/// Connects the GPUs of all ranks, which have to call this together. All have NCCL afterwards, or none for the reason that is returned.
///
/// NCCL takes some hundred MiB of the GPU outside the pool of a [`DeviceMemory`](crate::DeviceMemory), here and with the first calls: a limit
/// has to leave it that room.
///
/// # Errors
/// The same on all ranks: two that use one GPU, and different versions ([`is_group`](Error::is_group)). Then
/// [`Broken`](crate::error::GroupError::Broken) with NCCL's own error, and [`PeerLost`](crate::error::GroupError::PeerLost) on the other ranks.
pub(super) fn open(
    device: &Device,
    control: &Arc<Control>,
    watch: &Watch,
) -> Result<Result<Arc<dyn Collectives>, String>> {
    let prepared = prepare(device, control.rank() == 0);
    let own = prepared.as_ref().map(|(.., offer)| offer);
    let own = serde_json::to_vec(&own).map_err(candle_core::Error::wrap)?;
    let offers = control.gather("open NCCL", &own)?;
    let offers = offers.iter().map(|offer| serde_json::from_slice(offer));
    let offers: Vec<Result<Offer, String>> = offers
        .collect::<Result<_, _>>()
        .map_err(candle_core::Error::wrap)?;
    let offers = offers.into_iter().enumerate();
    let offers = offers
        .map(|(rank, offer)| offer.map_err(|problem| format!("on rank {rank}, {problem}")))
        .collect::<Result<Vec<_>, _>>();
    let (library, context, offers) = match (prepared, offers) {
        (Ok((library, context, _)), Ok(offers)) => (library, context, offers),
        (_, Err(reason)) | (Err(reason), _) => return Ok(Err(reason)),
    };
    check(&offers)?;
    let id = offers
        .first()
        .and_then(|first| first.id.as_slice().try_into().ok());
    let Some(id) = id else {
        return Ok(Err("rank 0 has sent no name of a communicator".to_owned()));
    };
    // NCCL cannot use what the pool keeps.
    recover(device).inspect_err(|error| control.fail(&error.to_string()))?;
    Ok(Ok(Arc::new(Engine {
        communicator: Communicator::open(library, context, UniqueId(id), control, watch)?,
        streams: Mutex::default(),
    })))
}

fn prepare(device: &Device, is_first: bool) -> Result<(Library, Arc<CudaContext>, Offer), String> {
    let Device::Cuda(cuda) = device else {
        return Err("the device is not a GPU".to_owned());
    };
    let stream = cuda.cuda_stream();
    check_stream(&stream)?;
    let context = stream.context();
    let uuid = context
        .uuid()
        .map_err(|error| format!("the GPU has no UUID: {error:?}"))?;
    let library = Library::load()?;
    let id = match is_first {
        true => library.unique_id()?.0.to_vec(),
        false => Vec::new(),
    };
    let boot = Some(host::boot()).filter(|id| !id.is_empty());
    let hex = |byte: &_| format!("{:02x}", *byte as u8);
    let offer = Offer {
        version: library.version.clone(),
        machine: boot.unwrap_or_else(host::name),
        gpu: format!("GPU-{}", uuid.bytes.iter().map(hex).collect::<String>()),
        id,
    };
    Ok((library, context.clone(), offer))
}

/// Fails if ranks have other versions of NCCL than rank 0, or share a GPU.
fn check(offers: &[Offer]) -> Result<()> {
    let own = offers.first().map_or("", |first| first.version.as_str());
    let others = offers.iter().enumerate();
    let others = others.filter(|(_, offer)| offer.version != own);
    let differences: Vec<_> = others
        .map(|(rank, offer)| format!("rank 0 has NCCL {own}, rank {rank} {}", offer.version))
        .collect();
    if !differences.is_empty() {
        return Err(different("the version of NCCL", differences));
    }
    for offer in offers {
        let same = offers.iter().enumerate();
        let same =
            same.filter(|(_, other)| (&other.gpu, &other.machine) == (&offer.gpu, &offer.machine));
        let ranks: Vec<_> = same.map(|(rank, _)| rank).collect();
        if ranks.len() > 1 {
            return Err(invalid!(
                Group,
                "{} use one GPU ({}): give each rank its own, as `DeviceMemory::cuda(group.local_rank())` does, and start one rank for each GPU",
                ranks_text(&ranks),
                offer.gpu
            ));
        }
    }
    Ok(())
}

/// All in one call: NCCL cuts it itself, and each call passes all ranks of a ring.
const BUCKET: usize = usize::MAX;

/// NCCL between buffers on GPUs. Its work runs on the tensors' own streams, in order with their kernels.
#[derive(Debug)]
struct Engine {
    communicator: Communicator,
    /// The streams with work since the last [`finish`](Collectives::finish).
    streams: Mutex<Vec<Arc<CudaStream>>>,
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
fn check_stream(stream: &CudaStream) -> Result<(), String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(gpus: &[(&str, &str, &str)]) -> Vec<Offer> {
        let offer = |(machine, gpu, version): &(&str, &str, &str)| Offer {
            machine: (*machine).to_owned(),
            gpu: (*gpu).to_owned(),
            version: (*version).to_owned(),
            id: Vec::new(),
        };
        gpus.iter().map(offer).collect()
    }

    #[test]
    fn ranks_on_one_gpu_and_other_versions_are_named() {
        let fine = [
            ("a", "1", "2.27.3"),
            ("b", "1", "2.27.3"),
            ("a", "2", "2.27.3"),
        ];
        check(&offers(&fine)).unwrap();
        let same = [
            ("a", "1", "2.27.3"),
            ("a", "2", "2.27.3"),
            ("a", "1", "2.27.3"),
        ];
        let error = check(&offers(&same)).unwrap_err().to_string();
        assert!(
            error.starts_with("ranks 0 and 2 use one GPU (1): "),
            "{error}"
        );
        let versions = [("a", "1", "2.27.3"), ("a", "2", "2.18.1")];
        let error = check(&offers(&versions)).unwrap_err().to_string();
        assert!(error.contains("rank 1 2.18.1"), "{error}");
    }
}
