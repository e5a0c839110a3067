//! Batches that consist of several parts, which are cut alike.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use candle_core::Device;

use super::policy::Extent;
use super::slices::Batch;
use crate::error::{BatchError, Result};

/// Returns the number of samples, if all parts agree on it, and the sum of their costs.
fn together(parts: impl IntoIterator<Item = Result<Extent>>) -> Result<Extent> {
    let mut parts = parts.into_iter();
    let mut all = parts.next().ok_or(BatchError::NoParts)??;
    for (index, part) in parts.enumerate() {
        let Extent { samples, cost } = part?;
        if samples != all.samples {
            return Err(BatchError::Lengths {
                part: index + 1,
                expected: all.samples,
                found: samples,
            }
            .into());
        }
        all.cost = all.cost.saturating_add(cost);
    }
    Ok(all)
}

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            type Slice<'a> = ($($name::Slice<'a>,)+) where Self: 'a;

            fn extent(&self) -> Result<Extent> {
                together([$(self.$index.extent()),+])
            }

            fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
                Ok(($(self.$index.slice(range.clone())?,)+))
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<B>(pub Vec<B>);

impl<B: Batch> Batch for Parts<B> {
    type Slice<'a>
        = Vec<B::Slice<'a>>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        together(self.0.iter().map(B::extent))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        let slices = self.0.iter().map(|part| part.slice(range.clone()));
        slices.collect()
    }

    fn device(&self) -> Option<Device> {
        self.0.iter().find_map(B::device)
    }
}

impl<K: Clone + Eq + Hash, B: Batch, S: BuildHasher + Default> Batch for HashMap<K, B, S> {
    type Slice<'a>
        = HashMap<K, B::Slice<'a>, S>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        together(self.values().map(B::extent))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        self.iter()
            .map(|(key, part)| Ok((key.clone(), part.slice(range.clone())?)))
            .collect()
    }

    fn device(&self) -> Option<Device> {
        self.values().find_map(B::device)
    }
}
