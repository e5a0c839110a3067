use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

use candle_core::Device;

use crate::batch::{Batch, Extent, Origin, Place, Position, SharedDivision};
use crate::error::Result;

/// A batch from a [`Loader`](super::Loader), and where it comes from. It dereferences to the batch. Trainers take a reference to it, or the
/// loader's item as it is, and remember its position once an update has consumed it.
///
/// A rank whose part of a batch has no samples, because there are fewer of them than ranks or because it could read none, gets an
/// [empty](Self::is_empty) batch, with which it takes part in the update: the tensors are those of one sample, cut to 0 along the first
/// dimension.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use candle_headroom::data::{Items, Loader};
/// # use candle_headroom::error::BoxedError;
/// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
/// let mut loader = Loader::builder(Items(Vec::from_iter(0..10)), collate).batch(4).build()?;
/// let loaded = loader.next().expect("a batch")?;
/// assert_eq!(loaded.dims(), [4]); // of the tensor
/// assert_eq!((loaded.epoch, loaded.indices.as_slice()), (0, &[0, 1, 2, 3][..]));
/// let batch: Tensor = loaded.into_inner();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Loaded<B> {
    /// The batch.
    pub batch: B,
    /// The indices of its samples in the dataset, without those that were skipped; of a stream, their numbers in the epoch.
    pub indices: Vec<usize>,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// How long the caller waited for it.
    pub waited: Duration,
    pub(super) reader: Arc<Reader>,
    /// The loader's position after it.
    pub(super) position: Position,
    /// Where the loader stood before, and the place of the batch.
    pub(super) places: [Place; 2],
    /// Number of its samples, of all ranks.
    pub(super) samples: usize,
    pub(super) is_empty: bool,
}

/// What all batches of a loader have in common.
#[derive(Debug)]
pub(super) struct Reader {
    /// The loader's name.
    pub(super) name: String,
    /// The rank for which it reads; `None` for data of the rank's own.
    pub(super) rank: Option<(usize, usize)>,
    pub(super) accepts_changes: bool,
    /// How the next batches are divided among the ranks.
    pub(super) division: SharedDivision,
}

impl<B> Loaded<B> {
    /// Returns whether this rank has no samples of the batch. Its [`extent`](Batch::extent) is 0 samples of cost 0 then.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use candle_headroom::data::{Items, Loader};
    /// # use candle_headroom::error::BoxedError;
    /// # let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> { Ok(Tensor::new(samples, &Device::Cpu)?) };
    /// // One sample, and this is the first of two ranks.
    /// let mut loader = Loader::builder(Items(vec![7]), collate).rank(0, 2).build()?;
    /// let loaded = loader.next().expect("a batch")?;
    /// assert!(loaded.is_empty());
    /// assert_eq!(loaded.dims(), [0]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Returns the batch alone. A trainer that is given it does not know how far the loader has been read.
    pub fn into_inner(self) -> B {
        self.batch
    }
}

impl<B> Deref for Loaded<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.batch
    }
}

impl<B> DerefMut for Loaded<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.batch
    }
}

impl<B: Batch> Batch for Loaded<B> {
    type Slice<'a>
        = B::Slice<'a>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        match self.is_empty {
            true => Ok(Extent::new(0, 0)),
            false => self.batch.extent(),
        }
    }

    fn slice(&self, range: Range<usize>) -> Result<B::Slice<'_>> {
        self.batch.slice(range)
    }

    fn device(&self) -> Option<Device> {
        self.batch.device()
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        let [begin, place] = self.places;
        vec![Origin {
            loader: &self.reader.name,
            position: &self.position,
            rank: self.reader.rank,
            accepts_changes: self.reader.accepts_changes,
            begin,
            place,
            samples: self.samples,
            waited: self.waited,
            division: &self.reader.division,
        }]
    }
}
