//! Ranks that have no samples of a batch.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{Batch, Extent};
use candle_headroom::data::{Check, Dataset, Items, Loader, Pack, Pad, Stream, Tensors, stack};
use candle_headroom::error::BoxedError;

use super::{collate, numbers};

fn samples() -> Vec<(Tensor, Tensor)> {
    let sample = |n: u32| {
        let image = Tensor::full(n as f32, (2, 3), &Device::Cpu).unwrap();
        (image, Tensor::new(n, &Device::Cpu).unwrap())
    };
    (0..3).map(sample).collect()
}

#[test]
fn an_empty_part_is_a_batch_of_no_samples() {
    let shares: Vec<_> = (0..5)
        .map(|rank| {
            let checks = [
                Check::new("images")
                    .dtype(DType::F32)
                    .shape([None, Some(2), Some(3)])
                    .finite(),
                Check::new("labels").range(0..3).finite(),
            ];
            let builder = Loader::builder(Items(samples()), stack)
                .batch(3)
                .rank(rank, 5);
            let builder = checks
                .into_iter()
                .fold(builder, |builder, check| builder.check(check));
            let mut loader = builder.check_every_batch().build().unwrap();
            let batch = loader.next().unwrap().unwrap();
            assert_eq!(
                (loader.state().samples, loader.stats().samples),
                (3, batch.indices.len() as u64)
            );
            assert!(loader.next().is_none());
            batch
        })
        .collect();
    let indices: Vec<_> = shares.iter().map(|batch| batch.indices.clone()).collect();
    assert_eq!(indices, [vec![], vec![0], vec![], vec![1], vec![2]]);
    for batch in shares {
        let count = batch.indices.len();
        assert_eq!(batch.is_empty(), count == 0);
        // A loop that looks at its batch goes on as with any other.
        let (images, labels) = &*batch;
        assert_eq!(
            (images.dims(), labels.dims()),
            (&[count, 2, 3][..], &[count][..])
        );
        assert_eq!((images.dtype(), labels.dtype()), (DType::F32, DType::U32));
        assert_eq!(
            images.sum_all().unwrap().to_scalar::<f32>().unwrap() as usize,
            6 * batch.indices.iter().sum::<usize>()
        );
        assert_eq!(labels.to_vec1::<u32>().unwrap().len(), count);
        assert_eq!(batch.extent().unwrap(), Extent::new(count, 7 * count));
        assert_eq!(batch.slice(0..count).unwrap().0.dims(), images.dims());
        assert_eq!(batch.origins().len(), 1);
    }
}

#[test]
fn built_in_batches_can_be_empty() {
    let texts = || Items(vec![vec![1_u32, 2, 3], vec![4]]);
    let pack = Pack::new(4);
    let mut packed = Loader::builder(texts(), move |texts| pack.documents(texts))
        .batch(2)
        .rank(0, 3)
        .build()
        .unwrap();
    let packed = packed.next().unwrap().unwrap();
    assert!(packed.is_empty() && packed.pieces().is_empty());
    assert_eq!(packed.tokens.dims(), [0, 4]);
    assert_eq!(packed.seqlens().unwrap().dims(), [0]);
    assert_eq!(packed.extent().unwrap(), Extent::new(0, 0));

    let pad = Pad::new(0_u32);
    let mut padded = Loader::builder(texts(), move |texts| pad.sequences(texts))
        .batch(2)
        .rank(0, 3)
        .build()
        .unwrap();
    let padded = padded.next().unwrap().unwrap();
    assert_eq!(
        (padded.values.dim(0).unwrap(), padded.lengths.dims()),
        (0, &[0][..])
    );
    assert_eq!(padded.mask(DType::U8).unwrap().dim(0).unwrap(), 0);
    assert_eq!(padded.next_tokens(-100).unwrap().dim(0).unwrap(), 0);

    // Every kind of nesting, and what has no dimension to cut.
    let x = || Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let scalar = Tensor::new(1_u32, &Device::Cpu).unwrap();
    let mut nested = (
        vec![x()],
        HashMap::from([("x", (x(), scalar))]),
        pack.documents(vec![[1_u32, 2]]).unwrap(),
    );
    nested.remove_samples().unwrap();
    let dims: Vec<_> = nested
        .tensors()
        .iter()
        .map(|tensor| tensor.dims().to_vec())
        .collect();
    assert_eq!(dims[..3], [vec![0, 3], vec![0, 3], vec![]]);
    assert!(nested.2.pieces().is_empty());
}

#[test]
fn empty_parts_of_a_stream() {
    let build = |rank| {
        let collate = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
            match samples.is_empty() {
                true => Err("nothing to collate".into()),
                false => collate(samples),
            }
        };
        let stream = Stream(|_| Ok((0..6).map(Ok)));
        Loader::builder(stream, collate)
            .batch(4)
            .rank(rank, 4)
            .build()
            .unwrap()
    };
    let mut parts = Vec::new();
    for rank in 0..4 {
        let batches: Vec<_> = build(rank).map(|batch| batch.unwrap()).collect();
        assert!(
            batches
                .iter()
                .all(|batch| batch.extent().unwrap().samples == batch.indices.len())
        );
        parts.push(
            batches
                .into_iter()
                .map(|batch| batch.indices)
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(parts[0], [vec![0], vec![]]);
    assert_eq!(parts[1], [vec![1], vec![4]]);
    assert_eq!(parts[2], [vec![2], vec![]]);
    assert_eq!(parts[3], [vec![3], vec![5]]);
}

/// Some indices cannot be read.
struct Torn(&'static [usize]);

impl Dataset for Torn {
    type Sample = u32;

    fn len(&self) -> usize {
        4
    }

    fn get(&self, index: usize) -> Result<u32, BoxedError> {
        match self.0.contains(&index) {
            true => Err("torn".into()),
            false => Ok(index as u32),
        }
    }

    fn name(&self) -> String {
        "torn".to_owned()
    }
}

#[test]
fn another_sample_stands_in_where_one_cannot_be_read() {
    let refuse = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
        match samples.as_slice() {
            [] => Err("nothing to collate".into()),
            [1, ..] => Err("no 1".into()),
            _ => collate(samples),
        }
    };
    // Rank 0 of 5 has none of 4 samples. The first cannot be read and the second not be collated.
    let mut loader = Loader::builder(Torn(&[0]), refuse)
        .batch(4)
        .rank(0, 5)
        .build()
        .unwrap();
    assert!(loader.next().unwrap().unwrap().is_empty());
    assert_eq!(loader.stats().skipped, 0);
    // If none can be, the first one's error says why.
    let mut loader = Loader::builder(Torn(&[0, 1, 2, 3]), refuse)
        .batch(4)
        .rank(0, 5)
        .build()
        .unwrap();
    let error = loader.next().unwrap().unwrap_err().to_string();
    assert_eq!(error, "torn: sample 0 cannot be read: torn");

    // A rank whose samples were all left out takes part as well.
    let mut loader = Loader::builder(Torn(&[0, 1]), refuse)
        .batch(4)
        .skip_failures(2)
        .rank(0, 2)
        .build()
        .unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert!(batch.is_empty());
    assert_eq!(
        (batch.extent().unwrap(), loader.stats().skipped),
        (Extent::new(0, 0), 2)
    );
}

/// A trainer without ranks refuses a batch of nothing.
#[test]
fn a_trainer_by_itself_refuses_an_empty_part() {
    use candle_core::Var;
    use candle_headroom::{AdaptiveTrainer, Sgd};

    let var = Var::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![var]).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let mut loader = numbers(1).rank(0, 2).build().unwrap();
    let batch = loader.next().unwrap().unwrap();
    let error = trainer.step(&batch, |x, _| x.to_dtype(DType::F32)?.mean_all());
    assert!(error.unwrap_err().is_batch());
}

/// The last batch has one sample, which cannot be read: all ranks get an empty batch, none an error and none nothing.
#[test]
fn an_unreadable_last_batch_comes_to_all_ranks() {
    for skips in [1, 0] {
        let mut ranks: Vec<_> = (0..3)
            .map(|rank| {
                let builder = Loader::builder(Torn(&[3]), collate).batch(3).epochs(2);
                builder
                    .skip_failures(2 * skips)
                    .rank(rank, 3)
                    .build()
                    .unwrap()
            })
            .collect();
        for epoch in 0..2 {
            for (rank, loader) in ranks.iter_mut().enumerate() {
                assert_eq!(loader.next().unwrap().unwrap().indices, [rank]);
                match loader.next().unwrap() {
                    Ok(batch) => assert!(batch.is_empty() && batch.epoch == epoch),
                    // Without skipping, the rank whose sample it is has the error.
                    Err(error) => {
                        assert!(skips == 0 && rank == 2, "{error}");
                        assert!(
                            error.to_string().contains("sample 3 cannot be read"),
                            "{error}"
                        );
                    }
                }
            }
        }
        assert!(ranks.iter_mut().all(|loader| loader.next().is_none()));
        assert_eq!(ranks[2].stats().skipped, 2 * skips);
    }
}
