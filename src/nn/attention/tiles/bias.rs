//! A mask that is added to scores.

use candle_core::{Error, Result, Storage, Tensor};

use crate::nn::kernel::matrix::Number;

/// What is added to a part of a row of scores.
#[derive(Clone, Copy)]
pub enum Bias<'a, T> {
    None,
    /// The same for all keys.
    All(T),
    Each(&'a [T]),
}

impl<T: Number> Bias<'_, T> {
    pub fn add_to(self, scores: &mut [T]) {
        match self {
            Self::None => {}
            Self::All(bias) => scores.iter_mut().for_each(|score| *score += bias),
            Self::Each(bias) => {
                for (score, bias) in scores.iter_mut().zip(bias) {
                    *score += *bias;
                }
            }
        }
    }
}

/// The elements of a rule's mask.
#[derive(Clone, Copy)]
pub struct Mask<'a, T> {
    data: &'a [T],
    strides: [usize; 4],
}

impl<'a, T: Number> Mask<'a, T> {
    /// What is added to the scores of a query, from a key on.
    pub fn bias(
        self,
        batch: usize,
        head: usize,
        query: usize,
        key: usize,
        count: usize,
    ) -> Result<Bias<'a, T>> {
        let [of_batch, of_head, of_query, of_key] = self.strides;
        let start = batch * of_batch + head * of_head + query * of_query + key * of_key;
        let bias = match of_key {
            0 => self.data.get(start).copied().map(Bias::All),
            _ => self.data.get(start..start + count).map(Bias::Each),
        };
        bias.ok_or_else(misfit)
    }
}

/// Calls `work` with the elements of a rule's mask, if it has one.
pub fn with_mask<T: Number, R>(
    mask: Option<&Tensor>,
    work: impl FnOnce(Option<Mask<T>>) -> Result<R>,
) -> Result<R> {
    let Some(mask) = mask else {
        return work(None);
    };
    let (storage, layout) = mask.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(misfit());
    };
    let data = T::cpu_storage_as_slice(storage)?.get(layout.start_offset()..);
    let strides = <[usize; 4]>::try_from(layout.stride()).map_err(|_| misfit())?;
    let mut mask = Mask {
        data: data.ok_or_else(misfit)?,
        strides,
    };
    for (stride, dim) in mask.strides.iter_mut().zip(layout.dims()) {
        if *dim == 1 {
            *stride = 0;
        }
    }
    work(Some(mask))
}

fn misfit() -> Error {
    Error::Msg("attention: the mask does not fit".into()).bt()
}
