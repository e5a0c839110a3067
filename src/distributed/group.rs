use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, DeviceLocation, Tensor};
use ciborium::{de, ser};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::collectives::{Collectives, Operation, Watch};
use super::control::{Control, Working};
use super::engines::{self, Mpi};
use crate::error::{Error, GroupError, Result, different};

const SHAPE: &str = "the tensor's shape or type";

/// The processes, called ranks, that train one model together, one for each GPU. A clone is the same group.
///
/// A launcher such as `mpirun`, torchrun or `srun` starts the same program several times and tells each process its rank.
///
/// ```
/// use candle_headroom::distributed::Group;
///
/// let group = Group::from_environment()?; // one rank, where no launcher started the program
/// let samples = group.share(1000); // this rank's part
/// let sums = group.collect(Ok(vec![samples.len()]))?; // from all ranks
/// assert_eq!(sums.iter().sum::<usize>(), 1000);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// All ranks have to make the same calls in the same order. A rank that dies, hangs or leaves is a
/// [`PeerLost`](GroupError::PeerLost) on every other one within the [timeout](super::GroupBuilder::timeout).
#[derive(Debug, Clone)]
pub struct Group(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) control: Arc<Control>,
    pub(super) local_rank: usize,
    pub(super) hosts: Vec<String>,
    /// The other ranks of this machine.
    pub(super) beside: Vec<usize>,
    pub(super) mpi: Option<Arc<Mpi>>,
    /// By device, since each one may need another.
    pub(super) engines: Mutex<Vec<(String, Arc<dyn Collectives>)>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Before MPI is finalized, which waits for ranks that may wait for this one.
        self.control.leave();
        if let Some(mpi) = &self.mpi {
            mpi.end_group(&self.control);
        }
    }
}

/// What a rank gives to a call: its results, or why it has none.
type Part<T> = Result<Vec<T>, String>;

fn to_bytes<T: Serialize>(part: &Part<T>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    ciborium::into_writer(part, &mut bytes).map_err(|error| {
        let reason = match error {
            ser::Error::Io(error) => error.to_string(),
            ser::Error::Value(reason) => reason,
        };
        candle_core::Error::Msg(format!("the results cannot be serialized: {reason}"))
    })?;
    Ok(bytes)
}

impl Group {
    /// Returns this process's number in the group, counted from 0.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// if group.rank() == 0 {
    ///     println!("training on {} ranks", group.size()); // once for the whole job
    /// }
    /// assert!(group.rank() < group.size());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn rank(&self) -> usize {
        self.0.control.rank()
    }

    /// Returns this process's number, or `None` in a group of one.
    pub(crate) fn rank_of_several(&self) -> Option<usize> {
        (self.size() > 1).then(|| self.rank())
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.0.control.size()
    }

    /// Returns this process's number among the ranks of its machine, counted from 0: the GPU to use, unless the launcher shows each rank only
    /// one (`srun --gpus-per-task=1`), which then has number 0.
    ///
    /// ```
    /// use candle_core::Device;
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let device = Device::cuda_if_available(group.local_rank())?; // or `DeviceMemory::cuda(group.local_rank())`
    /// assert!(group.local_rank() < group.size());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn local_rank(&self) -> usize {
        self.0.local_rank
    }

    /// Returns the other ranks of this machine, which share its memory.
    pub(crate) fn beside(&self) -> &[usize] {
        &self.0.beside
    }

    /// Returns the names of the ranks' machines, one for each rank, in the order of ranks.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let own = &group.hosts()[group.rank()];
    /// let here = group.hosts().iter().filter(|host| *host == own).count();
    /// assert!(group.local_rank() < here);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn hosts(&self) -> &[String] {
        &self.0.hosts
    }

    /// Returns this rank's part of `samples` samples, divided evenly and in order.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let share = group.share(1000); // of 4 ranks, rank 1 has 250..500
    /// println!("rank {} of {}: samples {share:?}", group.rank(), group.size());
    /// assert_eq!(group.collect(Ok(vec![share.len()]))?.iter().sum::<usize>(), 1000);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn share(&self, samples: usize) -> Range<usize> {
        let (rank, size) = (self.rank() as u128, self.size() as u128);
        let at = |rank: u128| (samples as u128 * rank / size) as usize;
        at(rank)..at(rank + 1)
    }

    /// Gives all ranks the bytes of each, in the order of ranks. For small messages: all go to rank 0 and from there to every rank.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let words = group.gather(format!("rank {} is ready", group.rank()).as_bytes())?;
    /// assert_eq!(words.len(), group.size());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GroupError`] for a lost rank; a rank that called something else ([`is_group`](Error::is_group)).
    pub fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.control.gather("gather", bytes)
    }

    /// Waits until all ranks have come here.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    ///
    /// # let temporary = tempfile::tempdir()?;
    /// # let path = temporary.path().join("vocabulary.txt");
    /// let group = Group::from_environment()?;
    /// if group.rank() == 0 {
    ///     std::fs::write(&path, "a b c")?;
    /// }
    /// group.barrier()?; // now the file is there for all ranks
    /// assert_eq!(std::fs::read_to_string(&path)?, "a b c");
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// [`GroupError::PeerLost`] names the ranks that have not come within the timeout.
    pub fn barrier(&self) -> Result<()> {
        self.0.control.gather("barrier", &[]).map(|_| ())
    }

    /// Gives all ranks the results of each, in the order of ranks: of an evaluation, or of
    /// [`process_batches`](crate::process_batches), over each rank's [`share`](Self::share).
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::{distributed::Group, process_batches};
    ///
    /// let group = Group::from_environment()?;
    /// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
    /// let share = group.share(10);
    /// let part = x.narrow(0, share.start, share.len())?;
    /// let sums = group.collect(process_batches(&part, 4, |chunk| chunk.sum_all()?.to_scalar::<f32>()))?;
    /// assert_eq!(sums.iter().sum::<f32>(), 45.);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// All numbers arrive as they are, with NaN and infinity.
    ///
    /// # Errors
    /// This rank's own error, also if its results cannot be serialized; [`GroupError::PeerFailed`] with another rank's, or if its results
    /// cannot be read; or as [`gather`](Self::gather).
    pub fn collect<T: Serialize + DeserializeOwned>(
        &self,
        results: Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        match results {
            Ok(results) => self.collect_in("collect", results),
            Err(error) => Err(self.collect_none("collect", error)),
        }
    }

    /// Gives all ranks what each says of its work, in a call of this name. If one has failed, all fail.
    pub(crate) fn agree<T, S: Serialize + DeserializeOwned>(
        &self,
        call: &str,
        done: Result<T>,
        say: impl FnOnce(&T) -> S,
    ) -> Result<(T, Vec<S>)> {
        match done {
            Ok(done) => {
                let all = self.collect_in(call, vec![say(&done)])?;
                Ok((done, all))
            }
            Err(error) => Err(self.collect_none(call, error)),
        }
    }

    /// As [`collect`](Self::collect), in a call of this name.
    pub(crate) fn collect_in<T: Serialize + DeserializeOwned>(
        &self,
        call: &str,
        results: Vec<T>,
    ) -> Result<Vec<T>> {
        let own = match to_bytes(&Part::Ok(results)) {
            Ok(own) => own,
            Err(error) => return Err(self.collect_none(call, error)),
        };
        let mut collected = Vec::new();
        for (rank, bytes) in self.0.control.gather(call, &own)?.iter().enumerate() {
            let part: Result<Part<T>, _> = ciborium::from_reader(bytes.as_slice());
            let part = part.unwrap_or_else(|error| {
                let reason = match error {
                    de::Error::Semantic(_, reason) => reason,
                    error => error.to_string(),
                };
                Err(format!("its results cannot be read: {reason}"))
            });
            collected.extend(part.map_err(|reason| GroupError::PeerFailed {
                rank,
                call: call.to_owned(),
                reason,
            })?);
        }
        Ok(collected)
    }

    /// Tells the ranks that collect results why this one has none. Returns the error.
    pub(crate) fn collect_none(&self, call: &str, error: Error) -> Error {
        self.refuse(call, error.to_string());
        error
    }

    /// Tells the ranks that collect results that this one has none for this reason.
    pub(crate) fn refuse(&self, call: &str, reason: String) {
        // A group that has ended is the next call's error. This rank's own matters more now.
        if let Ok(own) = to_bytes(&Part::<()>::Err(reason)) {
            let _ = self.0.control.gather(call, &own);
        }
    }

    /// Returns the engine for tensors on this device, which all ranks have to ask for together; `None` in a group of one.
    ///
    /// # Errors
    /// Some rank has none ([`is_group`](Error::is_group)), and the engine's own errors.
    pub(crate) fn collectives(&self, device: &Device) -> Result<Option<Arc<dyn Collectives>>> {
        if self.size() == 1 {
            return Ok(None);
        }
        let (kind, key) = match device.location() {
            DeviceLocation::Cpu => ("the CPU", "the CPU".to_owned()),
            DeviceLocation::Cuda { gpu_id } => ("a CUDA device", format!("CUDA device {gpu_id}")),
            DeviceLocation::Metal { gpu_id } => {
                ("a Metal device", format!("Metal device {gpu_id}"))
            }
        };
        let mut known = self.0.engines.lock();
        if let Some((_, engine)) = known.iter().find(|(name, _)| *name == key) {
            return Ok(Some(Arc::clone(engine)));
        }
        // Ranks on different kinds of devices would each wait for another engine.
        let what = "the kind of device";
        self.same("choose an engine", what, kind.to_owned(), Ok(()))?;
        let engine = engines::open(&self.0.control, self.0.mpi.as_ref(), device, &key)?;
        known.push((key, Arc::clone(&engine)));
        Ok(Some(engine))
    }

    /// Tells the other ranks that this one works for all of them until the guard is dropped, so that they wait beyond the timeout.
    pub(crate) fn working(&self) -> Working {
        self.0.control.working()
    }

    /// Ends the group if this rank unwinds before the guard is dropped: the others wait in a call that does not come any more, and a program
    /// that catches the panic makes other calls than they do.
    pub(crate) fn in_step(&self, what: &'static str) -> InStep {
        InStep {
            control: Arc::clone(&self.0.control),
            what,
            was_panicking: std::thread::panicking(),
        }
    }

    pub(crate) fn watch(&self, what: &'static str) -> Watch {
        Watch::new(&self.0.control, what)
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.0.control
    }
}

/// This rank makes calls together with the others until this is dropped; see [`Group::in_step`].
#[derive(Debug)]
#[must_use = "a panic is noticed while this lives"]
pub(crate) struct InStep {
    control: Arc<Control>,
    /// What ranks do, such as `save or load`.
    what: &'static str,
    was_panicking: bool,
}

impl Drop for InStep {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            let reason = format!("it panicked while ranks {}", self.what);
            self.control.fail(&reason);
        }
    }
}

/// Tensors of a program's own.
impl Group {
    /// Returns the sum of the ranks' tensors, which all have one shape and type: f64, f32, or f16 and bf16, which are added in f32.
    ///
    /// A trainer adds gradients by itself. This is for other numbers, such as metrics that lie on the device.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// // The number of right answers, and of all, on this rank.
    /// let own = Tensor::new(&[90f32, 100.], &Device::Cpu)?;
    /// let all = group.sum(&own)?.to_vec1::<f32>()?;
    /// println!("accuracy {:.3}", all[0] / all[1]);
    /// assert_eq!(all[1], 100. * group.size() as f32);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// The ranks' tensors differ, a rank is lost or fails, or there is no engine for the device ([`is_group`](Error::is_group)). Errors from candle,
    /// also for a tensor of another type: then the other ranks get a [`PeerFailed`](GroupError::PeerFailed), nothing is exchanged, and the group can
    /// still be used.
    pub fn sum(&self, tensor: &Tensor) -> Result<Tensor> {
        // Before the ranks compare, so that one without room for the copy tells the others.
        let flat = self.same("sum", SHAPE, text(tensor), self.flat(tensor))?;
        self.exchange("sum", &flat, Operation::AllReduce { factor: 1. })?;
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
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?;
    /// let table = Var::zeros((8, 4), DType::F32, &Device::Cpu)?;
    /// if group.rank() == 0 {
    ///     table.set(&table.ones_like()?)?; // as if it was read from a file
    /// }
    /// group.broadcast(&table, 0)?;
    /// assert_eq!(table.sum_all()?.to_scalar::<f32>()?, 32.); // on all ranks
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`sum`](Self::sum), and on all ranks if one of them gives another `from`, no rank of the group, or a
    /// tensor that is not contiguous or of a type without operations.
    pub fn broadcast(&self, tensor: &Tensor, from: usize) -> Result<()> {
        let own = format!("{} from rank {from}", text(tensor));
        let what = "the tensor's shape or type, or the rank to copy from";
        self.same("broadcast", what, own, self.check_source(tensor, from))?;
        self.exchange("broadcast", tensor, Operation::Broadcast { from })
    }

    /// Does this with the ranks' buffers, and waits for it.
    fn exchange(&self, call: &'static str, buffer: &Tensor, operation: Operation) -> Result<()> {
        if let Some(engine) = self.collectives(buffer.device())? {
            let watch = self.watch(call);
            engine.exchange(buffer, operation, &watch)?;
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
    fn same<T>(&self, call: &str, what: &str, own: String, ready: Result<T>) -> Result<T> {
        let (ready, all) = self.agree(call, ready, |_| own.clone())?;
        if all.iter().all(|theirs| *theirs == own) {
            return Ok(ready);
        }
        // This rank's own is among them, since an error shows only some.
        let all = all.iter().enumerate();
        let all = all.filter(|(rank, theirs)| *rank == self.rank() || **theirs != own);
        let differences = all.map(|(rank, text)| format!("rank {rank} has {text}"));
        Err(different(what, differences.collect()))
    }
}

fn text(tensor: &Tensor) -> String {
    format!("{:?} {:?}", tensor.dims(), tensor.dtype())
}
