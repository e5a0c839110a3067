use std::fmt;
use std::sync::atomic::AtomicBool;

use bytesize::ByteSize;
use candle_core::Device;

use super::Loader;
use super::produce::{Maker, Skipped};
use super::queue::Ahead;
use crate::batch::{Fingerprint, SharedDivision};
use crate::data::check::Check;
use crate::data::loaded::Reader;
use crate::data::order::{Batching, Size};
use crate::data::{Dataset, Tensors};
use crate::distributed::Group;
use crate::error::{BoxedError, Result, invalid};
use crate::memory::DeviceMemory;

/// More threads than any machine has cores.
const MOST_WORKERS: usize = 4096;

/// The most that a number of samples or a cost may be, so that sums cannot overflow.
const MOST: usize = usize::MAX >> 8;

/// Options of a [`Loader`]; from [`Loader::builder`]. Some are for a [`Dataset`] only, and [`buffer`](Self::buffer) for a [`Stream`].
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use candle_headroom::data::{Items, Loader};
/// # use candle_headroom::error::BoxedError;
/// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
/// let builder = Loader::builder(Items(Vec::from_iter(0..10)), collate).name("train").batch(4).shuffle(7);
/// let loader = builder.epochs(2).workers(2).build()?;
/// assert_eq!(loader.name(), "train");
/// assert_eq!(loader.count(), 6); // 3 batches in each epoch
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[must_use = "call `build()`"]
pub struct LoaderBuilder<S: Source, B> {
    pub(super) source: S,
    /// Its name is set once the loader is built.
    pub(super) maker: Maker<S::Sample, B>,
    pub(super) name: String,
    pub(super) batching: Batching,
    pub(super) seed: Option<u64>,
    /// Of a stream.
    pub(super) buffer: Option<usize>,
    /// Of a dataset: the number of blocks whose samples are shuffled together.
    pub(super) blocks: Option<usize>,
    pub(super) mixture: Option<Vec<f64>>,
    pub(super) samples: Option<usize>,
    pub(super) epochs: Option<u64>,
    pub(super) rank: (usize, usize),
    /// Of this rank alone.
    pub(super) has_own_data: bool,
    pub(super) accepts_changes: bool,
    pub(super) ahead: Ahead,
}

impl<B: Tensors + Send + 'static> Loader<B> {
    /// Loads a [`Dataset`] or a [`Stream`] in batches. `collate` makes a batch of a vector of samples; the
    /// worker threads call it.
    ///
    /// By default batches have 1 sample and come in the dataset's order, for one epoch, read ahead by one worker.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::data::{Items, Loader};
    /// use candle_headroom::error::BoxedError;
    ///
    /// let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut loader = Loader::builder(Items(vec![5, 6, 7]), collate).build()?;
    /// assert_eq!(loader.next().expect("a batch")?.to_vec1::<u32>()?, [5]);
    /// assert_eq!(loader.count(), 2); // what is left of the epoch
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder<S: Source>(
        source: S,
        collate: impl Fn(Vec<S::Sample>) -> Result<B, BoxedError> + Send + Sync + 'static,
    ) -> LoaderBuilder<S, B> {
        LoaderBuilder {
            source,
            maker: Maker {
                name: String::new(),
                collate: Box::new(collate),
                checks: Vec::new(),
                checks_every_batch: false,
                has_checked: AtomicBool::new(false),
                retries: 0,
                skips: 0,
                skipped: Skipped::default(),
            },
            name: "data".to_owned(),
            batching: Batching {
                size: Size::Samples(1),
                sorted: None,
                drops_last: false,
            },
            seed: None,
            buffer: None,
            blocks: None,
            mixture: None,
            samples: None,
            epochs: Some(1),
            rank: (0, 1),
            has_own_data: false,
            accepts_changes: false,
            ahead: Ahead {
                workers: 1,
                batches: None,
                bytes: 1 << 30,
                memory: None,
                device: None,
            },
        }
    }
}

impl<S: Source, B> LoaderBuilder<S, B> {
    /// Sets the name that tells this loader from a run's others in saved state; `data` by default.
    ///
    /// Ranks and resumed runs compare it, and the dataset's name and length, but read no samples. Data without a name of their own, such as
    /// [`Items`](crate::data::Items), [`TensorDataset`](crate::data::TensorDataset) and [`Stream`], differ from other data in
    /// this name only: put the data's version into it.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let loader = Loader::builder(Items(vec![5, 6, 7]), collate).name("reviews-v2").build()?;
    /// assert_eq!(loader.name(), "reviews-v2");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Makes batches of this many samples; the last one of an epoch may be smaller.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
    /// let mut sizes = Vec::new();
    /// for batch in loader {
    ///     sizes.push(batch?.indices.len());
    /// }
    /// assert_eq!(sizes, [4, 4, 2]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn batch(mut self, samples: usize) -> Self {
        self.batching.size = Size::Samples(samples);
        self
    }

    /// Shuffles the samples, in another order in each epoch. The sample at each place follows from this seed and the epoch.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let order = |seed| -> candle_headroom::Result<Vec<usize>> {
    ///     let builder = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(10);
    ///     let mut loader = builder.shuffle(seed).build()?;
    ///     Ok(loader.next().expect("one batch")?.indices)
    /// };
    /// assert_eq!(order(7)?, order(7)?);
    /// assert_ne!(order(7)?, order(8)?);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Goes through the dataset this many times; once by default. With 0 there are no batches.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).epochs(3).build()?;
    /// assert_eq!(loader.count(), 9); // 3 batches in each epoch
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Goes through the dataset again and again.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(5).endless().build()?;
    /// for batch in loader.by_ref().take(7) {
    ///     batch?;
    /// }
    /// assert_eq!(loader.state().samples, 35); // three epochs and a half
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn endless(mut self) -> Self {
        self.epochs = None;
        self
    }

    /// Hands out this rank's part of each batch: of `m` samples, rank `r` of `n` gets those from `m * r / n` to `m * (r + 1) / n`, unless
    /// [`Loader::divide`] or a trainer's [`measured_shares`](crate::train::AdaptiveTrainerBuilder::measured_shares) sets other parts. If a batch has
    /// fewer samples than there are ranks, some ranks get an [empty](crate::data::Loaded::is_empty) batch, for which one sample of the others is read,
    /// because it has the shapes of the tensors. [`drop_last`](Self::drop_last) avoids that.
    ///
    /// A trainer with a [group](crate::train::AdaptiveTrainerBuilder::group) refuses batches of a loader without it.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// use candle_headroom::distributed::Group;
    ///
    /// let group = Group::from_environment()?; // one rank, where no launcher started the program
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).group(&group).build()?;
    /// let loaded = loader.next().expect("a batch")?;
    /// assert_eq!(loaded.indices.len(), group.share(4).len()); // with 2 ranks, 2 samples on each
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "distributed")]
    pub fn group(mut self, group: &Group) -> Self {
        self.rank = (group.rank(), group.size());
        self
    }

    /// As [`group`](Self::group), for tests that have all ranks in one process.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut second = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(5).rank(1, 2).build()?;
    /// assert_eq!(second.next().expect("a batch")?.indices, [2, 3, 4]); // rank 0 gets 0 and 1
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    #[cfg(feature = "testing")]
    pub fn rank(mut self, rank: usize, ranks: usize) -> Self {
        self.rank = (rank, ranks);
        self
    }

    /// States that each rank of a group has data of its own, so that a rank's part of an update is the whole batch. Without it, ranks that
    /// train together have to read the same batches, and [`group`](Self::group) has to be called.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let own = Items(Vec::from_iter(0..10)); // such as the files of this rank's machine
    /// let mut loader = Loader::builder(own, collate).batch(4).own_data().build()?;
    /// assert_eq!(loader.next().expect("a batch")?.indices, [0, 1, 2, 3]); // all of the batch, on any number of ranks
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn own_data(mut self) -> Self {
        self.has_own_data = true;
        self
    }

    /// Continues a saved run although its dataset, order or batches have changed, or although this loader begins elsewhere than the run
    /// stopped. Without it, [`Loader::resume`] returns an error for the former, and the trainer's next step for the latter. With it, the step of
    /// the latter has an [`Event::ContinuedElsewhere`](crate::batch::Event::ContinuedElsewhere) in its report.
    ///
    /// `resume` then goes to the epoch of the saved position, to the window of batches in which as many samples are read as there. So with the
    /// same order and other batches no sample is left out, and those of up to one window come again. It returns what has changed.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor, Var};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # use candle_headroom::{AdaptiveTrainer, Sgd};
    /// # let collate = |samples: Vec<f32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// # let w = Var::ones(1, DType::F32, &Device::Cpu)?;
    /// # let mut trainer = AdaptiveTrainer::builder(Sgd::builder(vec![("w", w.clone())]).build()?).build()?;
    /// let loader = |batch| Loader::builder(Items(vec![1f32; 12]), collate).batch(batch).accept_changed_data().build();
    /// trainer.step(loader(2)?.next().expect("a batch"), |x, _| x.broadcast_mul(&w)?.mean_all())?;
    ///
    /// let continued = loader(4)?.resume(&trainer)?.expect("an update has consumed a batch");
    /// assert_eq!(continued.changes, ["batches: saved 2 samples in 2, here 4 samples in 4"]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn accept_changed_data(mut self) -> Self {
        self.accepts_changes = true;
        self
    }

    /// Reads with this many threads; 1 by default. With 0 each batch is read when it is asked for.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let first = |workers| -> candle_headroom::Result<Vec<usize>> {
    ///     let builder = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).shuffle(7);
    ///     let mut loader = builder.workers(workers).build()?;
    ///     Ok(loader.next().expect("a batch")?.indices)
    /// };
    /// assert_eq!(first(0)?, first(4)?); // the order does not depend on the threads
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn workers(mut self, workers: usize) -> Self {
        self.ahead.workers = workers;
        self
    }

    /// Reads at most this many batches ahead, those that are being read included; by default 2 for each worker, and at least 4.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(2).ahead(1).build()?;
    /// loader.next().expect("a batch")?;
    /// assert!(loader.stats().ready <= 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead.batches = Some(batches);
        self
    }

    /// Reads at most this many bytes of tensors ahead; 1 GiB by default. A batch that is being read counts as much as the largest so far. The
    /// batch that training waits for is always read.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::ByteSize;
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// // A batch of two u32 has 8 bytes: one is read ahead.
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(2).ahead_bytes(ByteSize(8)).build()?;
    /// loader.next().expect("a batch")?;
    /// assert!(loader.stats().ready_bytes <= 8);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn ahead_bytes(mut self, bytes: ByteSize) -> Self {
        self.ahead.bytes = bytes.0;
        self
    }

    /// Reads ahead only while the limit of this memory is not exceeded, with the batches that are being read. Pass the host's memory,
    /// [`DeviceMemory::host()`]. Without a limit this changes nothing.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// use candle_headroom::DeviceMemory;
    ///
    /// let host = DeviceMemory::host().open()?; // with `.limit(…)` under a `TrackingAllocator`
    /// let loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).memory(&host).build()?;
    /// assert_eq!(loader.count(), 3);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn memory(mut self, host: &DeviceMemory) -> Self {
        self.ahead.memory = Some(host.clone());
        self
    }

    /// Puts batches on this device. Tensors that are there already stay as they are.
    ///
    /// For a GPU, workers copy batches into page-locked memory, and each batch is copied to the device on a stream of its own while the
    /// batch before it is used. So the device holds one more batch, and the host holds page-locked memory for the batches that are read ahead and
    /// for one more; [`memory`](Self::memory) does not count it. Where page-locked memory is not available, this is logged, and candle copies
    /// batches when they are requested. Request batches on the thread that uses them.
    ///
    /// If memory runs out on the device while a batch is copied ahead, it is copied when it is requested. If it does not fit then either,
    /// the item is an error with [`Phase::Transfer`](crate::error::Phase::Transfer), and the next item is the same batch again. On the CPU nothing
    /// is copied.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let device = Device::Cpu; // or the one of `DeviceMemory::cuda(0)`
    /// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).device(&device).build()?;
    /// let batch = loader.next().expect("a batch")?.into_inner();
    /// assert!(batch.device().same_device(&device));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn device(mut self, device: &Device) -> Self {
        self.ahead.device = Some(device.clone());
        self
    }

    /// Reads a sample again up to this many times if it cannot be read; 0 by default. A sample that panicked is not read again. For a
    /// stream, only opening an epoch is tried again.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Dataset, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # struct Flaky(AtomicUsize);
    /// # impl Dataset for Flaky {
    /// #     type Sample = u32;
    /// #     fn len(&self) -> usize { 3 }
    /// #     fn get(&self, index: usize) -> Result<u32, BoxedError> {
    /// #         match self.0.fetch_add(1, Ordering::SeqCst) % 2 {
    /// #             0 => Err("try again".into()),
    /// #             _ => Ok(index as u32),
    /// #         }
    /// #     }
    /// # }
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// // Every other attempt to read from `Flaky` fails.
    /// let mut loader = Loader::builder(Flaky(AtomicUsize::new(0)), collate).batch(3).retries(1).build()?;
    /// assert_eq!(loader.next().expect("a batch")?.to_vec1::<u32>()?, [0, 1, 2]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn retries(mut self, times: usize) -> Self {
        self.maker.retries = times;
        self
    }

    /// Leaves out samples that cannot be read, up to this many in all, and logs them; 0 by default. One more is an
    /// [error of data](crate::Error::is_data). Batches with a skipped sample are smaller, and a batch without
    /// any sample left does not come; with several ranks it is [empty](crate::data::Loaded::is_empty). Other samples stay in their batches, so a
    /// rank or a resumed run that can read the sample has the same batches.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Dataset, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # struct Damaged;
    /// # impl Dataset for Damaged {
    /// #     type Sample = u32;
    /// #     fn len(&self) -> usize { 4 }
    /// #     fn get(&self, index: usize) -> Result<u32, BoxedError> {
    /// #         match index {
    /// #             1 => Err("damaged".into()),
    /// #             _ => Ok(index as u32),
    /// #         }
    /// #     }
    /// # }
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// // Sample 1 of the four in `Damaged` cannot be read.
    /// let mut loader = Loader::builder(Damaged, collate).batch(2).skip_failures(1).build()?;
    /// assert_eq!(loader.next().expect("a batch")?.indices, [0]);
    /// assert_eq!(loader.next().expect("a batch")?.indices, [2, 3]);
    /// assert_eq!(loader.stats().skipped, 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn skip_failures(mut self, most: usize) -> Self {
        self.maker.skips = most;
        self
    }

    /// Checks a tensor of the first batch before it is handed out; after [`load_state`](Loader::load_state), of the first one there. The
    /// first call is for the first tensor of the batch, in the order of [`Tensors::tensors`], the second for the second, and so on.
    ///
    /// A batch that is not as declared is an [error of data](crate::Error::is_data), which names the sample if the tensor has
    /// as many rows as the batch has samples. A rank without a part of the batch may have tensors without elements.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::data::{Check, Items, Loader, stack};
    ///
    /// let labels = [0u32, 3, 10, 1].map(|label| Tensor::new(label, &Device::Cpu));
    /// let labels = labels.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let check = Check::new("labels").dtype(DType::U32).shape([None]).range(0..10);
    /// let mut loader = Loader::builder(Items(labels), stack).batch(4).check(check).build()?;
    /// let error = loader.next().unwrap().unwrap_err();
    /// assert!(error.to_string().contains("sample 2, tensor `labels` holds 10 at [2], expected values in 0..10"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn check(mut self, check: Check) -> Self {
        self.maker.checks.push(check);
        self
    }

    /// Checks every batch, not only the first. A worker does it, before the batch is copied to a device; values of tensors that `collate`
    /// makes on a GPU are checked in the first batch only.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Check, Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// let labels = Items(vec![0, 3, 1, 10]);
    /// let builder = Loader::builder(labels, collate).batch(2).check(Check::new("labels").range(0..10));
    /// let mut loader = builder.check_every_batch().build()?;
    /// assert!(loader.next().expect("a batch").is_ok());
    /// let error = loader.next().expect("a batch").unwrap_err();
    /// assert!(error.to_string().ends_with("sample 3, tensor `labels` holds 10 at [1], expected values in 0..10"));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn check_every_batch(mut self) -> Self {
        self.maker.checks_every_batch = true;
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        let ((rank, ranks), workers) = (self.rank, self.ahead.workers);
        let (Size::Samples(size) | Size::Cost(size) | Size::PaddedCost(size)) = self.batching.size;
        let sizes = [
            ("batch", size),
            ("sort_by_cost", self.batching.sorted.unwrap_or(1)),
            ("samples", self.samples.unwrap_or(1)),
            ("ahead", self.ahead.batches.unwrap_or(1)),
            ("buffer", self.buffer.unwrap_or(1)),
            ("blocks", self.blocks.unwrap_or(1)),
        ];
        let problem = match sizes.iter().find(|(_, size)| !(1..=MOST).contains(size)) {
            Some((name, size)) => format!("`{name}` must be from 1 to {MOST}, got {size}"),
            None if workers > MOST_WORKERS => {
                format!("`workers` must be at most {MOST_WORKERS}, got {workers}")
            }
            None if self.name.is_empty() || self.name.contains('\0') => {
                format!("`name` must be a text without NUL, got {:?}", self.name)
            }
            None if self.has_own_data && ranks > 1 => {
                format!(
                    "`own_data` and `group` exclude each other, got both for rank {rank} of {ranks}"
                )
            }
            None if rank >= ranks => {
                format!("`rank` must be below the number of ranks, got {rank} of {ranks}")
            }
            None if self.blocks.is_some() && self.seed.is_none() && self.mixture.is_none() => {
                "`blocks` is a way to shuffle: call `shuffle` too".to_owned()
            }
            None if self.samples.is_some() && self.mixture.is_none() => {
                "`samples` is the length of a mixture's epoch: call `mixture` too".to_owned()
            }
            None => return Ok(()),
        };
        Err(invalid!(Data, "{problem}"))
    }

    /// What its batches have in common, and what decides which samples are in them.
    pub(super) fn reader(
        &self,
        dataset: &str,
        len: Option<usize>,
        order: String,
    ) -> (Reader, Fingerprint) {
        let reader = Reader {
            name: self.name.clone(),
            rank: (!self.has_own_data).then_some(self.rank),
            accepts_changes: self.accepts_changes,
            division: SharedDivision::default(),
        };
        let data = Fingerprint::new(dataset, len, order, self.batching.text());
        (reader, data)
    }
}

impl<S: Source, B> fmt::Debug for LoaderBuilder<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoaderBuilder")
            .field("name", &self.name)
            .field("batching", &self.batching)
            .finish_non_exhaustive()
    }
}

/// What a loader reads: a [`Dataset`], or a [`Stream`].
///
/// A function that takes any source sets up loaders of both alike:
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::data::{Items, Loader, LoaderBuilder, Source, Stream};
/// use candle_headroom::error::BoxedError;
///
/// fn pairs<S: Source<Sample = u32>>(source: S) -> LoaderBuilder<S, Tensor> {
///     let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
///     Loader::builder(source, collate).batch(2)
/// }
///
/// let open = |_epoch: u64| Ok::<_, BoxedError>((0..5_u32).map(Ok));
/// assert_eq!(pairs(Items(vec![7, 8, 9])).build()?.count(), 2);
/// assert_eq!(pairs(Stream(open)).build()?.count(), 3);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Source: sealed::Sealed {
    /// One sample.
    type Sample: Send;
}

/// Samples that can only be read one after the other, such as those of a network or of a compressed archive; for
/// [`Loader::builder`].
///
/// The function begins an epoch, counted from 0. One worker reads, and a resumed loader reads the epoch's samples again up to its
/// position, which it logs. The samples of an epoch must always come in the same order for that, with an error in the place of one that cannot
/// be read: a position counts items taken, so that other samples stay in their batches.
///
/// A stream has no name and no length, so neither a resumed run nor other ranks notice that it reads something else: name the loader by its data,
/// as in `.name("wiki-2024")`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::data::{Loader, Stream};
/// use candle_headroom::error::BoxedError;
///
/// let lines = Stream(|_epoch| Ok("1 2 3 4 5".split(' ').map(|number| Ok(number.parse::<f32>()?))));
/// let collate = |numbers: Vec<f32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(numbers, &Device::Cpu)?) };
/// let mut loader = Loader::builder(lines, collate).batch(2).build()?;
/// let mut sizes = Vec::new();
/// for batch in &mut loader {
///     sizes.push(batch?.elem_count());
/// }
/// assert_eq!(sizes, [2, 2, 1]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Stream<F>(pub F);

mod sealed {
    pub trait Sealed {}
}

impl<D: Dataset> sealed::Sealed for D {}
impl<D: Dataset> Source for D {
    type Sample = D::Sample;
}

impl<F> sealed::Sealed for Stream<F> {}
impl<S, I, F> Source for Stream<F>
where
    S: Send,
    I: Iterator<Item = Result<S, BoxedError>>,
    F: Fn(u64) -> Result<I, BoxedError>,
{
    type Sample = S;
}
