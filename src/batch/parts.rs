//! Batches that consist of several parts, which are cut alike.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use candle_core::Device;

use super::slices::Batch;
use crate::error::{BatchError, Result};

/// Returns the number of samples if all parts agree on it.
fn agreed(lengths: impl IntoIterator<Item = Result<usize>>) -> Result<usize> {
    let mut lengths = lengths.into_iter();
    let expected = lengths.next().ok_or(BatchError::NoParts)??;
    for (index, found) in lengths.enumerate() {
        let found = found?;
        if found != expected {
            let part = index + 1;
            return Err(BatchError::Lengths {
                part,
                expected,
                found,
            }
            .into());
        }
    }
    Ok(expected)
}

/// Returns the sum of the parts' costs.
fn summed(costs: impl IntoIterator<Item = Result<usize>>) -> Result<usize> {
    (costs.into_iter()).try_fold(0, |sum: usize, cost| Ok(sum.saturating_add(cost?)))
}

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            type Slice<'a> = ($($name::Slice<'a>,)+) where Self: 'a;

            fn samples(&self) -> Result<usize> {
                agreed([$(self.$index.samples()),+])
            }

            fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
                Ok(($(self.$index.slice(range.clone())?,)+))
            }

            fn cost(&self) -> Result<usize> {
                summed([$(self.$index.cost()),+])
            }

            fn device(&self) -> Option<Device> {
                [$(self.$index.device()),+].into_iter().flatten().next()
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

/// Any number of batches, such as tensors, that are cut alike. A slice of it is a vector of the parts' slices.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::Parts;
///
/// let x = Tensor::zeros((8, 3), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros((8, 5), DType::F32, &Device::Cpu)?;
/// let parts = Parts(vec![x, y]).slice(0..2)?;
/// assert_eq!((parts[0].dims(), parts[1].dims()), (&[2, 3][..], &[2, 5][..]));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<B>(pub Vec<B>);

impl<B: Batch> Batch for Parts<B> {
    type Slice<'a>
        = Vec<B::Slice<'a>>
    where
        Self: 'a;

    fn samples(&self) -> Result<usize> {
        agreed(self.0.iter().map(B::samples))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        self.0
            .iter()
            .map(|part| part.slice(range.clone()))
            .collect()
    }

    fn cost(&self) -> Result<usize> {
        summed(self.0.iter().map(B::cost))
    }

    fn device(&self) -> Option<Device> {
        self.0.iter().find_map(B::device)
    }
}

impl<B: Batch, const N: usize> Batch for [B; N] {
    type Slice<'a>
        = [B::Slice<'a>; N]
    where
        Self: 'a;

    fn samples(&self) -> Result<usize> {
        agreed(self.iter().map(B::samples))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        let parts = self.iter().map(|part| part.slice(range.clone()));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        // A vector of N parts always fits; the error is that of N = 0, which has no samples.
        Ok(<[_; N]>::try_from(parts).map_err(|_| BatchError::NoParts)?)
    }

    fn cost(&self) -> Result<usize> {
        summed(self.iter().map(B::cost))
    }

    fn device(&self) -> Option<Device> {
        self.iter().find_map(B::device)
    }
}

impl<K: Clone + Eq + Hash, B: Batch, S: BuildHasher + Default> Batch for HashMap<K, B, S> {
    type Slice<'a>
        = HashMap<K, B::Slice<'a>, S>
    where
        Self: 'a;

    fn samples(&self) -> Result<usize> {
        agreed(self.values().map(B::samples))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        self.iter()
            .map(|(key, part)| Ok((key.clone(), part.slice(range.clone())?)))
            .collect()
    }

    fn cost(&self) -> Result<usize> {
        summed(self.values().map(B::cost))
    }

    fn device(&self) -> Option<Device> {
        self.values().find_map(B::device)
    }
}
