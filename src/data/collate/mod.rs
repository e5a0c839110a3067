//! Makes a batch of samples.

mod pack;

use std::fmt::Display;
use std::ops::Range;

use candle_core::{DType, Device, Tensor, WithDType};

use crate::batch::{Batch, Extent};
use crate::data::Tensors;
use crate::error::{BoxedError, Result, invalid};
pub use pack::{Pack, Packed, Piece};

/// Stacks samples, for [`Loader::builder`](crate::data::Loader::builder): each tensor of the batch is `[samples, …]`, made of the
/// samples' tensors `[…]` at the same place.
///
/// A sample is a tensor, a tuple or a vector of tensors, or a type of your own that implements [`Tensors`]; the batch has the same type.
/// What else such a type holds is that of the first sample.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::data::{Items, Loader, stack};
///
/// let sample = |label: u32| -> candle_core::Result<_> {
///     let image = Tensor::zeros((1, 28, 28), DType::F32, &Device::Cpu)?;
///     Ok((image, Tensor::new(label, &Device::Cpu)?))
/// };
/// let samples = (0..6).map(sample).collect::<Result<Vec<_>, _>>()?;
/// for batch in Loader::builder(Items(samples), stack).batch(3).build()? {
///     let (images, labels) = &*batch?;
///     assert_eq!((images.dims(), labels.dims()), (&[3, 1, 28, 28][..], &[3][..]));
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there are no samples or they have different numbers of tensors, shapes or dtypes, with the place in the
/// batch. Those of candle if tensors are on different devices.
pub fn stack<S: Tensors>(mut samples: Vec<S>) -> Result<S, BoxedError> {
    let parts: Vec<_> = samples.iter().map(S::tensors).collect();
    let Some(first) = parts.first() else {
        return Err(refused("there are no samples to stack"));
    };
    for (place, sample) in parts.iter().enumerate() {
        let [found, expected] = [sample.len(), first.len()];
        if found != expected {
            return Err(refused(format!(
                "the sample at place {place} has {found} tensors, that at place 0 has {expected}"
            )));
        }
        for (number, (tensor, expected)) in sample.iter().zip(first).enumerate() {
            let [shape, there] = [tensor.dims(), expected.dims()];
            let [dtype, other] = [tensor, expected].map(|tensor| tensor.dtype().as_str());
            let problem = if shape != there {
                format!("shape {shape:?}, that at place 0 has {there:?}: crop, resize or pad them")
            } else if dtype != other {
                format!("dtype {dtype}, that at place 0 has {other}")
            } else {
                continue;
            };
            return Err(refused(format!(
                "tensor {number} of the sample at place {place} has {problem}"
            )));
        }
    }
    let mut stacked = Vec::new();
    for number in 0..first.len() {
        let tensors = parts.iter().filter_map(|sample| sample.get(number));
        stacked.push(Tensor::stack(&tensors.collect::<Vec<_>>(), 0)?);
    }
    let mut batch = samples.swap_remove(0);
    for (tensor, stacked) in batch.tensors_mut().into_iter().zip(stacked) {
        *tensor = stacked;
    }
    Ok(batch)
}

/// The error for samples that do not make a batch.
fn refused(problem: impl Display) -> BoxedError {
    invalid!(Data, "{problem}").into()
}

/// Pads sequences of different lengths at their ends, for [`Loader::builder`](crate::data::Loader::builder).
///
/// ```
/// use candle_core::DType;
/// use candle_headroom::data::{Items, Loader, Pad};
///
/// let sentences = vec![vec![7u32, 8, 9], vec![5], vec![1, 2]];
/// let pad = Pad::new(0u32).multiple_of(4);
/// let mut loader = Loader::builder(Items(sentences), move |batch| pad.sequences(batch)).batch(3).build()?;
/// let batch = loader.next().unwrap()?;
/// assert_eq!(batch.values.to_vec2::<u32>()?, [[7, 8, 9, 0], [5, 0, 0, 0], [1, 2, 0, 0]]);
/// assert_eq!(batch.lengths.to_vec1::<u32>()?, [3, 1, 2]);
/// assert_eq!(batch.mask(DType::U8)?.to_vec2::<u8>()?, [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]);
/// assert_eq!(batch.next_tokens(-100)?.to_vec2::<i64>()?[0], [8, 9, -100, -100]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// [`sort_by_cost`](crate::data::LoaderBuilder::sort_by_cost) puts sequences of similar length together, so that little is padded;
/// [`Pack`] pads less still.
#[derive(Debug, Clone, Copy)]
#[must_use = "call `sequences` or `tensors` on it"]
pub struct Pad<T> {
    value: T,
    multiple: usize,
    shortest: usize,
}

impl<T: WithDType> Pad<T> {
    /// Pads with a value, to the length of the longest sequence of the batch.
    ///
    /// ```
    /// use candle_headroom::data::Pad;
    ///
    /// let padded = Pad::new(0u32).sequences(vec![vec![1u32, 2], vec![3]])?;
    /// assert_eq!(padded.values.to_vec2::<u32>()?, [[1, 2], [3, 0]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn new(value: T) -> Self {
        Self {
            value,
            multiple: 1,
            shortest: 0,
        }
    }

    /// Pads to a multiple of this length, such as 8 for tensor cores.
    ///
    /// ```
    /// use candle_headroom::data::Pad;
    ///
    /// let padded = Pad::new(0u32).multiple_of(8).sequences(vec![vec![1u32; 9], vec![2; 3]])?;
    /// assert_eq!(padded.values.dims(), [2, 16]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn multiple_of(mut self, length: usize) -> Self {
        self.multiple = length;
        self
    }

    /// Pads to at least this length. With the length of the dataset's longest sequence, all batches have the same length.
    ///
    /// ```
    /// use candle_headroom::data::Pad;
    ///
    /// let padded = Pad::new(0u32).at_least(512).sequences(vec![vec![1u32; 9], vec![2; 3]])?;
    /// assert_eq!(padded.values.dims(), [2, 512]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    pub fn at_least(mut self, length: usize) -> Self {
        self.shortest = length;
        self
    }

    /// Makes a batch of vectors or slices, on the CPU: values of the shape `[samples, length]`. Sequences may be empty.
    ///
    /// ```
    /// use candle_headroom::data::Pad;
    ///
    /// let padded = Pad::new(-1i64).sequences(vec![vec![4i64], vec![], vec![5, 6]])?;
    /// assert_eq!(padded.values.to_vec2::<i64>()?, [[4, -1], [-1, -1], [5, 6]]);
    /// assert_eq!(padded.lengths.to_vec1::<u32>()?, [1, 0, 2]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) if there is no sequence, if the multiple is 0, or if memory does not
    /// suffice.
    pub fn sequences<S: AsRef<[T]>>(&self, sequences: Vec<S>) -> Result<Padded, BoxedError> {
        let sequences: Vec<_> = sequences.iter().map(S::as_ref).collect();
        let lengths = sequences.iter().map(|sequence| sequence.len());
        let (length, lengths) = self.lengths(lengths)?;
        let mut values = buffer(sequences.len(), length)?;
        for (row, sequence) in sequences.iter().enumerate() {
            values.extend_from_slice(sequence);
            values.resize((row + 1) * length, self.value);
        }
        let values = Tensor::from_vec(values, (sequences.len(), length), &Device::Cpu)?;
        Ok(Padded::new(values, lengths)?)
    }

    /// Makes a batch of tensors `[length, …]` that differ in their first dimension only, such as frames of sound: values of the shape
    /// `[samples, length, …]`, on the device of the tensors.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom::data::Pad;
    ///
    /// let frames = |count: usize| Tensor::ones((count, 80), DType::F32, &Device::Cpu); // [frames, features]
    /// let padded = Pad::new(0f32).tensors(vec![frames(3)?, frames(5)?])?;
    /// assert_eq!(padded.values.dims(), [2, 5, 80]);
    /// assert_eq!(padded.values.sum_all()?.to_scalar::<f32>()?, 640.); // 8 frames of 80 ones
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// An [error of data](crate::Error::is_data) as [`sequences`](Self::sequences), and if the shapes differ elsewhere or
    /// a tensor is not of the dtype of `T`, with the place in the batch. Those of candle if tensors are on different devices.
    pub fn tensors(&self, sequences: Vec<Tensor>) -> Result<Padded, BoxedError> {
        let first = sequences.first().map_or(&[][..], |first| first.dims());
        for (place, tensor) in sequences.iter().enumerate() {
            if tensor.dtype() != T::DTYPE {
                let (found, expected) = (tensor.dtype().as_str(), T::DTYPE.as_str());
                return Err(refused(format!(
                    "the sequence at place {place} has dtype {found}, the value to pad with has {expected}"
                )));
            }
            let dims = tensor.dims();
            if dims.is_empty() || dims.get(1..) != first.get(1..) {
                return Err(refused(format!(
                    "the sequence at place {place} has shape {dims:?}, that at place 0 has {first:?}: only the first dimension may differ"
                )));
            }
        }
        let own = |tensor: &Tensor| tensor.dims().first().copied().unwrap_or(0);
        let lengths = sequences.iter().map(own);
        let (length, lengths) = self.lengths(lengths)?;
        let width = first.iter().skip(1).product();
        // To refuse what does not fit: candle's own allocations cannot fail.
        drop(buffer::<T>(sequences.len(), length.saturating_mul(width))?);
        let mut rows = Vec::new();
        for tensor in &sequences {
            let mut dims = tensor.dims().to_vec();
            if let Some(own) = dims.first_mut() {
                *own = length - *own;
            }
            let padding = Tensor::full(self.value, dims, tensor.device())?;
            rows.push(Tensor::cat(&[tensor, &padding], 0)?);
        }
        Ok(Padded::new(Tensor::stack(&rows, 0)?, lengths)?)
    }

    /// The length to pad to, and each sequence's own.
    fn lengths(
        &self,
        lengths: impl Iterator<Item = usize> + Clone,
    ) -> Result<(usize, Vec<u32>), BoxedError> {
        let longest = lengths.clone().max();
        let longest = longest.ok_or_else(|| refused("there are no sequences to pad"))?;
        let length = longest.max(self.shortest);
        let length = length.checked_next_multiple_of(self.multiple);
        let fits = length.filter(|length| u32::try_from(*length).is_ok());
        let length = fits.ok_or_else(|| {
            let (multiple, shortest) = (self.multiple, self.shortest);
            refused(format!(
                "sequences of up to {longest} cannot be padded to a multiple of {multiple} and at least {shortest}: from 1 to {} are allowed",
                u32::MAX
            ))
        })?;
        // All are at most `length`, which is within u32.
        Ok((length, lengths.map(|length| length as u32).collect()))
    }
}

/// Room for the elements of `[rows, length]`.
fn buffer<T>(rows: usize, length: usize) -> Result<Vec<T>, BoxedError> {
    let mut buffer = Vec::new();
    let elements = rows.checked_mul(length);
    let is_reserved = elements.is_some_and(|elements| buffer.try_reserve_exact(elements).is_ok());
    match is_reserved {
        true => Ok(buffer),
        false => Err(refused(format!(
            "no memory for {rows} rows of {length} elements"
        ))),
    }
}

/// Sequences that were padded to one length, from [`Pad`]. It is a [`Batch`] of sequences.
///
/// ```
/// use candle_core::DType;
/// use candle_headroom::data::Pad;
///
/// let padded = Pad::new(0u32).sequences(vec![vec![7u32, 8, 9], vec![5]])?;
/// assert_eq!(padded.values.to_vec2::<u32>()?, [[7, 8, 9], [5, 0, 0]]);
/// assert_eq!(padded.lengths.to_vec1::<u32>()?, [3, 1]);
/// assert_eq!(padded.mask(DType::F32)?.to_vec2::<f32>()?, [[1., 1., 1.], [1., 0., 0.]]);
/// # Ok::<(), candle_headroom::error::BoxedError>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Padded {
    /// The values: `[samples, length, …]`.
    pub values: Tensor,
    /// How many of each row's values are its own: u32, `[samples]`.
    pub lengths: Tensor,
}

impl Padded {
    fn new(values: Tensor, lengths: Vec<u32>) -> Result<Self> {
        let lengths = Tensor::new(lengths, values.device())?;
        Ok(Self { values, lengths })
    }

    /// Returns 1 for each value and 0 for padding: `[samples, length]`. Models such as BERT take it as their attention mask.
    ///
    /// ```
    /// use candle_core::DType;
    /// use candle_headroom::data::Pad;
    ///
    /// let padded = Pad::new(0u32).at_least(3).sequences(vec![vec![7u32, 0], vec![5]])?;
    /// assert_eq!(padded.mask(DType::U8)?.to_vec2::<u8>()?, [[1, 1, 0], [1, 0, 0]]); // also a 0 that is a value
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of candle.
    pub fn mask(&self, dtype: DType) -> Result<Tensor> {
        let length = self.values.dim(1)? as u32;
        let places = Tensor::arange(0, length, self.lengths.device())?;
        let lengths = self.lengths.unsqueeze(1)?;
        let is_own = places.unsqueeze(0)?.broadcast_lt(&lengths)?;
        Ok(is_own.to_dtype(dtype)?)
    }

    /// Returns the target of each token, the next one of its sequence, as i64 `[samples, length]`; `ignored` at a sequence's last token
    /// and in padding, to be passed to
    /// [`linear_cross_entropy`](crate::nn::loss::linear_cross_entropy) as its `ignore_index`.
    ///
    /// ```
    /// use candle_headroom::data::Pad;
    ///
    /// let padded = Pad::new(0u32).sequences(vec![vec![7u32, 8, 9], vec![5, 6]])?;
    /// assert_eq!(padded.next_tokens(-100)?.to_vec2::<i64>()?, [[8, 9, -100], [6, -100, -100]]);
    /// # Ok::<(), candle_headroom::error::BoxedError>(())
    /// ```
    ///
    /// # Errors
    /// Those of candle, also if values are not token ids of the shape `[samples, length]`.
    pub fn next_tokens(&self, ignored: i64) -> Result<Tensor> {
        let (samples, length) = self.values.dims2()?;
        if samples == 0 {
            return Ok(self.values.to_dtype(DType::I64)?);
        }
        let device = self.values.device();
        let last = Tensor::full(ignored, (samples, 1), device)?;
        let next = match length {
            0 | 1 => return Ok(last.narrow(1, 0, length)?),
            _ => self.values.narrow(1, 1, length - 1)?.to_dtype(DType::I64)?,
        };
        let is_own = self.mask(DType::U8)?.narrow(1, 1, length - 1)?;
        let others = Tensor::full(ignored, next.shape(), device)?;
        let next = is_own
            .contiguous()?
            .where_cond(&next.contiguous()?, &others)?;
        Ok(Tensor::cat(&[next, last], 1)?)
    }
}

/// Values, then lengths.
impl Tensors for Padded {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![&self.values, &self.lengths]
    }

    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        vec![&mut self.values, &mut self.lengths]
    }
}

impl Batch for Padded {
    type Slice<'a> = Padded;

    fn extent(&self) -> Result<Extent> {
        self.values.extent()
    }

    fn slice(&self, range: Range<usize>) -> Result<Padded> {
        Ok(Padded {
            values: self.values.slice(range.clone())?,
            lengths: self.lengths.slice(range)?,
        })
    }

    fn device(&self) -> Option<Device> {
        Some(self.values.device().clone())
    }
}
