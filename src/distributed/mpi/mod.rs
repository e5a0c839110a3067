//! MPI: the engine on CPUs, and by way of the host's memory also between GPUs where NCCL is missing.
//!
//! What this rank gives to a sum or a gather is copied first, because MPI fills the buffer meanwhile. MPI counts in C's `int`: a broadcast goes in
//! parts, and a longer sum is an error.

mod library;

use std::collections::hash_map::RandomState;
use std::ffi::{c_int, c_void};
use std::hash::BuildHasher;
use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, Weak};
use std::{io, mem};

use bytemuck::Pod;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use mpi::collective::SystemOperation;
use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::raw::AsRaw;
use parking_lot::Mutex;

use crate::distributed::collectives::{Collectives, Operation, Watch};
use crate::distributed::control::{Control, Deadline, Meeting};
use crate::distributed::launch::Launch;
use crate::elements::plain_mut;
use crate::error::{Error, Result, engine_failed};
use crate::host;

pub(super) use library::Mpi;

impl Mpi {
    /// Initializes MPI, unless the program has done so.
    pub(super) fn start(launch: &Launch, deadline: &mut Deadline) -> Result<Option<Arc<Self>>> {
        // Groups share it, because the first end of MPI is the last.
        static SHARED: Mutex<Weak<Mpi>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        let mpi = match shared.upgrade() {
            Some(mpi) => mpi,
            None => Arc::new(Self::initialize(launch, deadline)?),
        };
        *shared = Arc::downgrade(&mpi);
        mpi.begin_group();
        Ok(Some(mpi))
    }

    /// Connects the ranks, by way of rank 0, whose addresses, port and secret MPI passes on.
    pub(super) fn control(
        &self,
        launch: &Launch,
        fan_out: usize,
        deadline: &mut Deadline,
    ) -> Result<Control> {
        let (rank, size) = (self.rank, self.size);
        if size == 1 {
            return Ok(Control::alone(deadline.timeout()));
        }
        let listen = || -> io::Result<_> {
            let listener = TcpListener::bind(("0.0.0.0", 0))?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        };
        let listener = (rank == 0).then(listen).transpose();
        let listener = listener.map_err(|e| engine_failed(&self.version, "opening a port", &e))?;
        let port = listener.as_ref().map_or(0, |(_, port)| *port);
        // The standard library keys its hashes with numbers from the system's source of random ones.
        let secret = [0, 1].map(|part| RandomState::new().hash_one((part, std::process::id())));
        let [a, b] = secret;
        let (name, address) = (host::name(), own_address().unwrap_or_default());
        let mut card = format!("{port} {a:016x}{b:016x} {name} {address}").into_bytes();
        card.resize(CARD, b' ');
        let cards = self.all_gather(&card, launch, deadline)?;
        let first = String::from_utf8_lossy(cards.get(..CARD).unwrap_or_default());
        let mut words = first.split_ascii_whitespace();
        let port = words.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let secret = words.next().unwrap_or_default();
        let meeting = Meeting::new((rank, size), fan_out, "MPI", secret);
        match listener {
            Some((listener, _)) => meeting.host(listener, deadline),
            None => {
                let first = words.next().unwrap_or_default();
                let mut hosts: Vec<_> = words.chain([first]).map(str::to_owned).collect();
                if first == name {
                    hosts.insert(0, "127.0.0.1".to_owned());
                }
                meeting.join(&hosts, port, deadline)
            }
        }
    }

    /// The engine for tensors on this device.
    pub(super) fn collectives(
        self: &Arc<Self>,
        device: &Device,
        control: &Arc<Control>,
    ) -> Arc<dyn Collectives> {
        let engine = Engine {
            library: Arc::clone(self),
            control: Arc::clone(control),
            buffers: Mutex::default(),
        };
        match device {
            Device::Cpu => Arc::new(engine),
            _ => Arc::new(Staged(engine)),
        }
    }

    /// What makes MPI an engine.
    pub(super) fn absent() -> &'static str {
        "start with `mpirun`, or with `srun --mpi=pmix`"
    }
}

/// The bytes in which a rank describes itself to the others.
const CARD: usize = 512;

/// The address from which this machine would reach others. Nothing is sent.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

/// 4 MiB of f32, which a processor's cache holds: measured with 2 and 4 ranks on one machine, larger pieces of 64 MB took up to twice as long.
const BUCKET: usize = 1 << 20;

/// MPI between buffers in host memory.
#[derive(Debug)]
struct Engine {
    library: Arc<Mpi>,
    control: Arc<Control>,
    /// What MPI reads, and what it writes. Other ranks may read both, also after this one has got an error, so a tensor's own memory, which the
    /// program may write then, is never among them.
    buffers: Mutex<[Vec<u64>; 2]>,
}

impl Collectives for Engine {
    fn name(&self) -> String {
        self.library.version.clone()
    }

    fn bucket(&self) -> usize {
        BUCKET
    }

    /// Sums everywhere: Open MPI's reduce-scatter that does not block sends the whole bucket to one rank, and takes as long. MPI requires that
    /// all ranks receive identical results.
    fn exchange(&self, buffer: &Tensor, operation: Operation, watch: &Watch) -> Result<()> {
        let operation = match operation {
            Operation::ReduceScatter => Operation::AllReduce { factor: 1. },
            operation => operation,
        };
        let done = buffer.inplace_op1(&Call {
            engine: self,
            operation,
            watch,
        });
        done.map_err(|error| {
            let error = Error::from(error);
            self.control.fail(&error.to_string());
            error
        })
    }

    fn finish(&self, _: &Watch) -> Result<()> {
        Ok(())
    }
}

/// A call with a tensor's own memory.
struct Call<'a> {
    engine: &'a Engine,
    operation: Operation,
    watch: &'a Watch,
}

impl Call<'_> {
    /// Exchanges the tensor's bytes.
    fn run(&self, bytes: &mut [u8], dtype: DType) -> Result<()> {
        let (library, operation) = (&self.engine.library, self.operation);
        let (size, rank) = (library.size, library.rank);
        let wrong = |reason: String| engine_failed(&library.version, operation.name(), &reason);
        let look = || self.watch.check();
        let is_cut = !matches!(operation, Operation::Broadcast { .. });
        let width = dtype.size_in_bytes().max(1);
        let elements = bytes.len() / width;
        if is_cut && !elements.is_multiple_of(size) {
            return Err(wrong(format!(
                "{elements} elements cannot be cut into {size} pieces"
            )));
        }
        if let Operation::Broadcast { from } = operation {
            let root = c_int::try_from(from).map_err(|e| wrong(e.to_string()))?;
            let byte = u8::equivalent_datatype().as_raw();
            for part in bytes.chunks_mut(BUCKET * size_of::<f32>()) {
                let count = part.len() as c_int;
                self.with_buffers([0, part.len()], |_, place| {
                    place.copy_from_slice(part);
                    let at: *mut c_void = place.as_mut_ptr().cast();
                    // SAFETY: `place` has `count` bytes, which stay valid and unwritten (`with_buffers`).
                    unsafe {
                        library.run(operation.name(), look, |comm, request| {
                            ffi::MPI_Ibcast(at, count, byte, root, comm, request)
                        })
                    }?;
                    part.copy_from_slice(place);
                    Ok(())
                })?;
            }
            return Ok(());
        }
        let length = bytes.len() / size;
        // Copies move bytes; sums know the type.
        let (unit, count, own) = match (operation, dtype) {
            (Operation::AllReduce { .. }, DType::F32) => {
                (f32::equivalent_datatype(), elements, 0..bytes.len())
            }
            (Operation::AllReduce { .. }, DType::F64) => {
                (f64::equivalent_datatype(), elements, 0..bytes.len())
            }
            (Operation::AllReduce { .. }, _) => {
                return Err(wrong(format!("no sum of type {dtype:?}")));
            }
            _ => (
                u8::equivalent_datatype(),
                length,
                rank * length..(rank + 1) * length,
            ),
        };
        let (unit, sum) = (unit.as_raw(), SystemOperation::sum().as_raw());
        // MPI counts in C's `int`.
        let count = c_int::try_from(count)
            .map_err(|_| wrong(format!("{elements} elements are too many for one call")))?;
        self.with_buffers([own.len(), bytes.len()], |sent, received| {
            let own = bytes.get(own);
            let own = own.ok_or_else(|| wrong("a piece out of bounds".to_owned()))?;
            match operation {
                Operation::AllReduce { factor } if factor != 1. => {
                    multiplied(own, dtype, factor, sent)
                }
                _ => sent.copy_from_slice(own),
            }
            let from: *const c_void = sent.as_ptr().cast();
            let all: *mut c_void = received.as_mut_ptr().cast();
            // SAFETY: `from` holds `count` elements of the type that `unit` is, and words are aligned for all types. `all` has room for as many in a
            // sum, and for those of all ranks else. Both stay valid and unwritten (`with_buffers`).
            unsafe {
                match operation {
                    Operation::AllReduce { .. } => {
                        library.run(operation.name(), look, |comm, request| {
                            ffi::MPI_Iallreduce(from, all, count, unit, sum, comm, request)
                        })
                    }
                    _ => library.run(operation.name(), look, |comm, request| {
                        ffi::MPI_Iallgather(from, count, unit, all, count, unit, comm, request)
                    }),
                }
            }?;
            bytes.copy_from_slice(received);
            Ok(())
        })
    }

    /// Runs a request with memory of these lengths, in bytes, that nobody else writes. After an error MPI may still hold its address, and other
    /// ranks may read it, so it is forgotten.
    fn with_buffers(
        &self,
        lengths: [usize; 2],
        request: impl FnOnce(&mut [u8], &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffers = self.engine.buffers.lock();
        for (buffer, length) in buffers.iter_mut().zip(lengths) {
            let words = length.div_ceil(size_of::<u64>());
            if buffer.len() < words {
                buffer.resize(words, 0);
            }
        }
        let [sent, received] = &mut *buffers;
        let bytes = |buffer| bytemuck::cast_slice_mut::<u64, u8>(buffer);
        let parts = (
            bytes(sent).get_mut(..lengths[0]).unwrap_or_default(),
            bytes(received).get_mut(..lengths[1]).unwrap_or_default(),
        );
        let done = request(parts.0, parts.1);
        done.inspect_err(|_| mem::forget(mem::take(&mut *buffers)))
    }
}

impl InplaceOp1 for Call<'_> {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        macro_rules! bytes_of {
            ($($dtype:ident)+) => {
                match (&mut *storage, layout.contiguous_offsets()) {
                    $((CpuStorage::$dtype(values), Some((start, end))) => {
                        values.get_mut(start..end).map(|values| (DType::$dtype, plain_mut(values)))
                    })+
                    _ => None,
                }
            };
        }
        let Some((dtype, bytes)) = bytes_of!(U8 U32 I16 I32 I64 BF16 F16 F32 F64 F8E4M3) else {
            let dtype = storage.dtype();
            candle_core::bail!(
                "a tensor of type {dtype:?} that is not contiguous, or only stored, cannot be exchanged"
            )
        };
        Ok(self.run(bytes, dtype)?)
    }
}

/// Writes the products of these numbers and a factor. Of other types than f32 and f64 it writes copies.
fn multiplied(from: &[u8], dtype: DType, factor: f64, into: &mut [u8]) {
    match dtype {
        DType::F32 => products(from, |x: f32| x * factor as f32, into),
        DType::F64 => products(from, |x: f64| x * factor, into),
        _ => into.copy_from_slice(from),
    }
}

/// Both are aligned for the numbers.
fn products<T: Pod>(from: &[u8], product: impl Fn(T) -> T, into: &mut [u8]) {
    let (from, into) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(into));
    let pairs = into.iter_mut().zip(from);
    pairs.for_each(|(into, from)| *into = product(*from));
}

/// MPI between buffers of devices, by way of host memory: for GPUs without NCCL, and several ranks on one GPU.
#[derive(Debug)]
struct Staged(Engine);

impl Collectives for Staged {
    fn name(&self) -> String {
        format!("{}, by way of host memory", self.0.name())
    }

    fn bucket(&self) -> usize {
        self.0.bucket()
    }

    /// Exchanges a copy in host memory, and copies the result back.
    fn exchange(&self, buffer: &Tensor, operation: Operation, watch: &Watch) -> Result<()> {
        let host = buffer.to_device(&Device::Cpu)?.flatten_all()?;
        self.0.exchange(&host, operation, watch)?;
        let back = host.reshape(buffer.shape())?.to_device(buffer.device())?;
        match buffer.rank() {
            0 => buffer.reshape(1)?.slice_set(&back.reshape(1)?, 0, 0)?,
            _ => buffer.slice_set(&back, 0, 0)?,
        }
        Ok(())
    }

    fn finish(&self, watch: &Watch) -> Result<()> {
        self.0.finish(watch)
    }
}
