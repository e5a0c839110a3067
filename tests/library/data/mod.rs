//! Loaders, datasets and what makes batches of them.

mod ahead;
mod check;
mod collate;
mod device;
mod divisions;
mod empty;
mod failing;
mod interruptions;
mod order;
mod positions;
mod sources;
mod stream;
mod waiting;

use candle_core::{Device, Tensor};
use candle_headroom::data::{Dataset, Loaded, Loader, LoaderBuilder};
use candle_headroom::error::BoxedError;

/// Samples that are their own indices, with costs that vary.
struct Numbers(usize);

impl Dataset for Numbers {
    type Sample = u32;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<u32, BoxedError> {
        Ok(u32::try_from(index)?)
    }

    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        Ok(cost(index))
    }

    fn name(&self) -> String {
        "numbers".to_owned()
    }
}

fn cost(index: usize) -> usize {
    1 + index * 7919 % 13
}

fn collate(samples: Vec<u32>) -> Result<Tensor, BoxedError> {
    Ok(Tensor::new(samples, &Device::Cpu)?)
}

fn numbers(len: usize) -> LoaderBuilder<Numbers, Tensor> {
    Loader::builder(Numbers(len), collate)
}

/// What a batch holds, which must be what it says.
fn held(batch: &Loaded<Tensor>) -> Vec<usize> {
    let held: Vec<_> = batch
        .to_vec1::<u32>()
        .unwrap()
        .into_iter()
        .map(|number| number as usize)
        .collect();
    assert_eq!(held, batch.indices);
    held
}

/// The batches of a whole loader.
fn all(loader: &mut Loader<Tensor>) -> Vec<Vec<usize>> {
    loader.map(|batch| held(&batch.unwrap())).collect()
}
