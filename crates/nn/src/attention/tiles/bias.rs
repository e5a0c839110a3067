//! What is added to scores.

use candle_core::{Error, Result, Storage, Tensor};

use crate::attention::rule::Rule;
use crate::kernel::matrix::Number;

/// A rule's mask, and ALiBi's bias.
pub struct Bias<'a, T> {
    mask: Option<Mask<'a, T>>,
    slopes: Vec<T>,
    offset: i64,
}

struct Mask<'a, T> {
    data: &'a [T],
    strides: [usize; 4],
}

impl<T: Number> Bias<'_, T> {
    /// Adds to the scores of a query, from a key on.
    pub fn add_to(
        &self,
        [batch, head, query]: [usize; 3],
        key: usize,
        scores: &mut [T],
    ) -> Result<()> {
        if let Some(mask) = &self.mask {
            let [of_batch, of_head, of_query, of_key] = mask.strides;
            let start = batch * of_batch + head * of_head + query * of_query + key * of_key;
            if of_key == 0 {
                let bias = *mask.data.get(start).ok_or_else(misfit)?;
                scores.iter_mut().for_each(|score| *score += bias);
            } else {
                let bias = mask.data.get(start..start + scores.len());
                let pairs = scores.iter_mut().zip(bias.ok_or_else(misfit)?);
                pairs.for_each(|(score, bias)| *score += *bias);
            }
        }
        if let Some(slope) = self.slopes.get(head) {
            let at = query as i64 + self.offset - key as i64;
            for (key, score) in (0..).zip(scores) {
                *score -= *slope * T::from_f64((at - key).unsigned_abs() as f64);
            }
        }
        Ok(())
    }
}

/// Calls `work` with what a rule adds to scores.
pub fn with_bias<T: Number, R>(rule: &Rule, work: impl FnOnce(&Bias<T>) -> Result<R>) -> Result<R> {
    let slopes = rule.slopes.as_ref().map(Tensor::to_vec1);
    let mut bias = Bias {
        mask: None,
        slopes: slopes.transpose()?.unwrap_or_default(),
        offset: rule.offset,
    };
    let Some(mask) = &rule.mask else {
        return work(&bias);
    };
    let (storage, layout) = mask.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(misfit());
    };
    let data = T::cpu_storage_as_slice(storage)?.get(layout.start_offset()..);
    let mut strides = <[usize; 4]>::try_from(layout.stride()).map_err(|_| misfit())?;
    for (stride, dim) in strides.iter_mut().zip(layout.dims()) {
        if *dim == 1 {
            *stride = 0;
        }
    }
    bias.mask = Some(Mask {
        data: data.ok_or_else(misfit)?,
        strides,
    });
    work(&bias)
}

fn misfit() -> Error {
    Error::Msg("attention: the mask does not fit".into()).bt()
}
