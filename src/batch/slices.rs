//! What can be cut into runs of samples: tensors, and everything that is made of them.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::ops::Range;

use candle_core::{Device, Tensor};

use super::policy::Extent;
use super::position::Origin;
use crate::error::{Error, Result, invalid};

/// An ordered collection of samples that can be cut into runs of them.
///
/// | type | its samples | a slice of it |
/// |---|---|---|
/// | [`Tensor`] | the first dimension | a view; nothing is copied |
/// | tuples of up to 8 batches, [`Parts`]`(Vec<B>)`, `HashMap<K, B>` | those of the parts, which must agree | the same type, of the parts' slices |
/// | `Option<B>`, as a part of a tuple | those of `B`; `None` agrees with every other part | `Option`, of the slice |
/// | [`Samples`]`(&[T])` of anything | the elements | `&[T]` |
/// | `&B` | those of `B` | that of `B` |
///
/// A vector is not a batch by itself, since it could mean either: `Parts(vec![x, y])` cuts two tensors alike, and
/// `Samples(&texts)` is a list of single samples. [`impl_batch!`](super::impl_batch) makes a batch of a struct whose fields are batches.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::{Extent, Samples};
///
/// let x = Tensor::zeros((8, 3), DType::F32, &Device::Cpu)?;
/// let y = Tensor::zeros(8, DType::U32, &Device::Cpu)?;
/// let batch = (x, y);
/// assert_eq!(batch.extent()?, Extent::new(8, 8 * 3 + 8)); // samples, elements
/// let (x, y) = batch.slice(2..5)?;
/// assert_eq!((x.dims(), y.dims()), (&[3, 3][..], &[3][..]));
///
/// let sentences = Samples(&["one", "two", "three"]);
/// assert_eq!(sentences.slice(1..3)?, ["two", "three"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be cut into micro-batches",
    note = "wrap a vector: `Samples(&vec)` is a list of samples, `Parts(vec)` is a list of tensors that are cut alike",
    note = "for a struct of tensors write `candle_headroom::batch::impl_batch!(Type {{ field, field }});`"
)]
pub trait Batch {
    /// The type of a run of samples.
    type Slice<'a>
    where
        Self: 'a;

    /// Returns the number of samples, and their cost: a number that memory use grows with, in any unit that is the same for
    /// every batch.
    ///
    /// A tensor's cost is its number of elements: longer texts or larger images are known to need more memory before they run.
    ///
    /// # Errors
    /// If the batch has no length: a 0-dimensional tensor, no parts, or parts that disagree ([`is_batch`](Error::is_batch)).
    fn extent(&self) -> Result<Extent>;

    /// Returns the samples in `range`.
    ///
    /// # Errors
    /// For a range outside of the batch, and those of [`extent`](Self::extent).
    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>>;

    /// Returns whether there is nothing to cut, as in `None`: beside other parts of a batch it does not count.
    fn is_absent(&self) -> bool {
        false
    }

    /// Returns the device that holds the samples, if they are tensors. It is synchronized before a retry.
    fn device(&self) -> Option<Device> {
        None
    }

    /// Returns where the batch, or its parts, come from, if they come from [`Loader`](crate::data::Loader)s.
    fn origins(&self) -> Vec<Origin<'_>> {
        Vec::new()
    }
}

/// Refuses a batch without samples.
pub(crate) fn not_empty(extent: Extent) -> Result<Extent> {
    match extent.samples {
        0 => Err(invalid!(Batch, "the batch is empty: skip it")),
        _ => Ok(extent),
    }
}

fn out_of_range(range: &Range<usize>, samples: usize) -> Error {
    invalid!(Batch, "samples {range:?} are not in a batch of {samples}")
}

impl Batch for Tensor {
    type Slice<'a> = Tensor;

    fn extent(&self) -> Result<Extent> {
        let Some(samples) = self.dims().first() else {
            return Err(invalid!(
                Batch,
                "a 0-dimensional tensor has no samples: give it a first dimension with `unsqueeze(0)`"
            ));
        };
        Ok(Extent::new(*samples, self.elem_count()))
    }

    fn slice(&self, range: Range<usize>) -> Result<Tensor> {
        let samples = self.extent()?.samples;
        if range.start > range.end || range.end > samples {
            return Err(out_of_range(&range, samples));
        }
        Ok(self.narrow(0, range.start, range.len())?)
    }

    fn device(&self) -> Option<Device> {
        Some(self.device().clone())
    }
}

/// A list of samples of any type, which all cost the same. A slice of it is `&[T]`.
///
/// ```
/// use candle_headroom::batch::{BatchProcessor, Fixed, Samples};
///
/// let texts = ["one", "two", "three"];
/// let mut processor = BatchProcessor::builder(Fixed::new(2)?).build();
/// let done = processor.process(&Samples(&texts), |texts, _| Ok(texts.concat()))?;
/// assert_eq!(done.results, ["onetwo", "three"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples<'s, T>(pub &'s [T]);

impl<'s, T> Batch for Samples<'s, T> {
    type Slice<'a>
        = &'s [T]
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        Ok(Extent::new(self.0.len(), self.0.len()))
    }

    fn slice(&self, range: Range<usize>) -> Result<&'s [T]> {
        let (slice, samples) = (self.0.get(range.clone()), self.0.len());
        slice.ok_or_else(|| out_of_range(&range, samples))
    }
}

impl<B: Batch + ?Sized> Batch for &B {
    type Slice<'a>
        = B::Slice<'a>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        (**self).extent()
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        (**self).slice(range)
    }

    fn is_absent(&self) -> bool {
        (**self).is_absent()
    }

    fn device(&self) -> Option<Device> {
        (**self).device()
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        (**self).origins()
    }
}

impl<B: Batch> Batch for Option<B> {
    type Slice<'a>
        = Option<B::Slice<'a>>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        Extent::together([self.as_ref().and_then(Extent::of_part)])
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        self.as_ref().map(|batch| batch.slice(range)).transpose()
    }

    fn is_absent(&self) -> bool {
        self.as_ref().is_none_or(B::is_absent)
    }

    fn device(&self) -> Option<Device> {
        self.as_ref()?.device()
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.as_ref().map(B::origins).unwrap_or_default()
    }
}

impl Extent {
    /// Returns the extent of a part of a batch; `None` if it is absent.
    #[doc(hidden)]
    pub fn of_part(part: &(impl Batch + ?Sized)) -> Option<Result<Self>> {
        (!part.is_absent()).then(|| part.extent())
    }

    /// Returns the number of samples, if all parts agree on it, and the sum of their costs.
    #[doc(hidden)]
    pub fn together(parts: impl IntoIterator<Item = Option<Result<Self>>>) -> Result<Self> {
        let parts = parts.into_iter().enumerate();
        let mut parts = parts.filter_map(|(index, part)| Some((index, part?)));
        let Some((_, first)) = parts.next() else {
            return Err(invalid!(
                Batch,
                "the batch has no parts: give at least one tensor"
            ));
        };
        let mut all = first?;
        for (part, extent) in parts {
            let Self { samples, cost } = extent?;
            if samples != all.samples {
                let expected = all.samples;
                return Err(invalid!(
                    Batch,
                    "part {part} of the batch holds {samples} samples but the first part holds {expected}: all parts need the same first dimension"
                ));
            }
            all.cost = all.cost.saturating_add(cost);
        }
        Ok(all)
    }
}

macro_rules! tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Batch),+> Batch for ($($name,)+) {
            type Slice<'a> = ($($name::Slice<'a>,)+) where Self: 'a;

            fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
                Ok(($(self.$index.slice(range.clone())?,)+))
            }

            $crate::__impl_batch!(@of $($index),+);
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);

/// Implements [`Batch`](crate::Batch) for a struct. All its fields are listed. Each is a batch whose slices have the field's own type, such as a
/// tensor, a tuple of tensors, an `Option` of these, or another struct of this kind; they are cut alike, and a slice of the struct is the struct.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::impl_batch;
///
/// struct Texts {
///     tokens: Tensor,       // [samples, tokens]
///     mask: Option<Tensor>, // [samples, tokens]
/// }
///
/// impl_batch!(Texts { tokens, mask });
///
/// let tokens = Tensor::zeros((8, 128), DType::U32, &Device::Cpu)?;
/// let texts = Texts { tokens, mask: None };
/// assert_eq!(texts.extent()?.samples, 8);
/// assert_eq!(texts.slice(2..5)?.tokens.dims(), [3, 128]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __impl_batch {
    ($name:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::Batch for $name {
            type Slice<'a> = Self;

            fn slice(&self, range: ::std::ops::Range<usize>) -> $crate::Result<Self> {
                Ok(Self {
                    $($field: $crate::Batch::slice(&self.$field, range.clone())?,)+
                })
            }

            $crate::__impl_batch!(@of $($field),+);
        }
    };
    // All but the slices of a batch with these fields.
    (@of $($field:tt),+) => {
        fn extent(&self) -> $crate::Result<$crate::batch::Extent> {
            use $crate::batch::Extent;
            Extent::together([$(Extent::of_part(&self.$field)),+])
        }

        fn device(&self) -> ::std::option::Option<$crate::batch::Device> {
            [$($crate::Batch::device(&self.$field)),+].into_iter().flatten().next()
        }

        fn origins(&self) -> ::std::vec::Vec<$crate::batch::Origin<'_>> {
            [$($crate::Batch::origins(&self.$field)),+].concat()
        }
    };
}

/// Any number of batches, such as tensors, that are cut alike. A slice of it is a vector of the parts' slices.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::Batch;
/// use candle_headroom::batch::Parts;
///
/// let views = [(8, 3), (8, 5)].map(|shape| Tensor::zeros(shape, DType::F32, &Device::Cpu));
/// let views = views.into_iter().collect::<Result<Vec<_>, _>>()?;
/// let slices = Parts(views).slice(0..2)?;
/// assert_eq!(slices[1].dims(), [2, 5]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<B>(pub Vec<B>);

impl<B: Batch> Batch for Parts<B> {
    type Slice<'a>
        = Vec<B::Slice<'a>>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        Extent::together(self.0.iter().map(Extent::of_part))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        let slices = self.0.iter().map(|part| part.slice(range.clone()));
        slices.collect()
    }

    fn device(&self) -> Option<Device> {
        self.0.iter().find_map(B::device)
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.0.iter().flat_map(B::origins).collect()
    }
}

impl<K: Clone + Eq + Hash, B: Batch, S: BuildHasher + Default> Batch for HashMap<K, B, S> {
    type Slice<'a>
        = HashMap<K, B::Slice<'a>, S>
    where
        Self: 'a;

    fn extent(&self) -> Result<Extent> {
        Extent::together(self.values().map(Extent::of_part))
    }

    fn slice(&self, range: Range<usize>) -> Result<Self::Slice<'_>> {
        self.iter()
            .map(|(key, part)| Ok((key.clone(), part.slice(range.clone())?)))
            .collect()
    }

    fn device(&self) -> Option<Device> {
        self.values().find_map(B::device)
    }

    fn origins(&self) -> Vec<Origin<'_>> {
        self.values().flat_map(B::origins).collect()
    }
}
