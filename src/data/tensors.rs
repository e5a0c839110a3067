use std::collections::{BTreeMap, HashMap};

use candle_core::{Result, Tensor};

use crate::batch::Parts;
use crate::elements::size;

/// A batch whose tensors a loader counts, checks and copies to a device.
///
/// It is implemented for tensors, tuples, vectors, options, [`Parts`] and maps of them. For a type of your own it takes two lines:
///
/// ```
/// use candle_core::Tensor;
/// use candle_headroom::data::Tensors;
///
/// struct Pairs {
///     images: Tensor,
///     labels: Tensor,
///     files: Vec<String>, // stays on the host
/// }
///
/// impl Tensors for Pairs {
///     fn tensors(&self) -> Vec<&Tensor> {
///         vec![&self.images, &self.labels]
///     }
///
///     fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
///         vec![&mut self.images, &mut self.labels]
///     }
/// }
///
/// # use candle_core::{DType, Device};
/// # let images = Tensor::zeros((2, 28, 28), DType::U8, &Device::Cpu)?;
/// # let labels = Tensor::new(&[3u32, 5], &Device::Cpu)?;
/// # let files = vec!["3.png".to_owned(), "5.png".to_owned()];
/// let mut pairs = Pairs { images, labels, files };
/// pairs.remove_samples()?; // what a rank without a part of the batch gets
/// assert_eq!((pairs.images.dims(), pairs.labels.dims()), (&[0, 28, 28][..], &[0][..]));
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait Tensors {
    /// Returns the tensors, always in the same order.
    fn tensors(&self) -> Vec<&Tensor>;

    /// Returns the same tensors, in the same order, to replace them.
    fn tensors_mut(&mut self) -> Vec<&mut Tensor>;

    /// Removes all samples, for a rank that has no part of a batch: cuts each tensor to 0 along its first dimension. Override it for a type
    /// that holds something else for each sample.
    ///
    /// # Errors
    /// Those of candle.
    fn remove_samples(&mut self) -> Result<()> {
        self.tensors_mut()
            .into_iter()
            .try_for_each(Tensor::remove_samples)
    }
}

/// The bytes of the tensors' elements.
pub(super) fn bytes(batch: &impl Tensors) -> u64 {
    batch.tensors().into_iter().map(size).sum::<usize>() as u64
}

impl Tensors for Tensor {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![self]
    }

    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        vec![self]
    }

    fn remove_samples(&mut self) -> Result<()> {
        if self.rank() > 0 {
            *self = self.narrow(0, 0, 0)?;
        }
        Ok(())
    }
}

macro_rules! of_each {
    ($($of:ident)+) => {$(
        impl<T: Tensors> Tensors for $of<T> {
            fn tensors(&self) -> Vec<&Tensor> {
                self.iter().flat_map(T::tensors).collect()
            }

            fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
                self.iter_mut().flat_map(T::tensors_mut).collect()
            }

            fn remove_samples(&mut self) -> Result<()> {
                self.iter_mut().try_for_each(T::remove_samples)
            }
        }
    )+};
}

of_each!(Vec Option);

impl<T: Tensors> Tensors for Parts<T> {
    fn tensors(&self) -> Vec<&Tensor> {
        self.0.tensors()
    }

    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        self.0.tensors_mut()
    }

    fn remove_samples(&mut self) -> Result<()> {
        self.0.remove_samples()
    }
}

/// In the order of the keys.
impl<K: Ord, T: Tensors, S> Tensors for HashMap<K, T, S> {
    fn tensors(&self) -> Vec<&Tensor> {
        let parts: BTreeMap<_, _> = self.iter().collect();
        parts.into_values().flat_map(T::tensors).collect()
    }

    fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        let parts: BTreeMap<_, _> = self.iter_mut().collect();
        parts.into_values().flat_map(T::tensors_mut).collect()
    }

    fn remove_samples(&mut self) -> Result<()> {
        self.values_mut().try_for_each(T::remove_samples)
    }
}

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Tensors),+> Tensors for ($($name,)+) {
            fn tensors(&self) -> Vec<&Tensor> {
                [$(self.$index.tensors()),+].into_iter().flatten().collect()
            }

            fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
                [$(self.$index.tensors_mut()),+].into_iter().flatten().collect()
            }

            fn remove_samples(&mut self) -> Result<()> {
                $(self.$index.remove_samples()?;)+
                Ok(())
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
