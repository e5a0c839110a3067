//! Samples that cannot be read, and the user's code that panics.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use candle_core::Tensor;
use candle_headroom::data::{Concat, Dataset, Items, Loader, LoaderBuilder};
use candle_headroom::error::{BoxedError, DataError, Error};

use super::{collate, held};

/// Fails, or panics, at some indices; at `flaky` every other time only.
#[derive(Default)]
struct Faulty {
    bad: BTreeSet<usize>,
    panics: BTreeSet<usize>,
    flaky: BTreeSet<usize>,
    reads: AtomicUsize,
}

impl Dataset for Faulty {
    type Sample = u32;

    fn len(&self) -> usize {
        12
    }

    fn get(&self, index: usize) -> Result<u32, BoxedError> {
        let reads = self.reads.fetch_add(1, SeqCst);
        assert!(!self.panics.contains(&index), "cannot stand {index}");
        if self.bad.contains(&index) || self.flaky.contains(&index) && reads.is_multiple_of(2) {
            return Err(format!("no {index} today").into());
        }
        Ok(u32::try_from(index)?)
    }

    fn name(&self) -> String {
        "faulty".to_owned()
    }
}

fn faulty(bad: &[usize], panics: &[usize]) -> LoaderBuilder<Faulty, Tensor> {
    let dataset = Faulty {
        bad: bad.iter().copied().collect(),
        panics: panics.iter().copied().collect(),
        ..Faulty::default()
    };
    Loader::builder(dataset, collate).batch(3)
}

fn data_error(error: Error) -> DataError {
    match error {
        Error::Data(error) => *error,
        other => panic!("{other}"),
    }
}

#[test]
fn an_error_names_dataset_index_and_cause() {
    for workers in [0, 1, 3] {
        let mut loader = faulty(&[4], &[8]).workers(workers).build().unwrap();
        assert_eq!(held(&loader.next().unwrap().unwrap()), [0, 1, 2]);
        let before = loader.state().clone();
        let error = loader.next().unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "faulty: sample 4 cannot be read: no 4 today"
        );
        assert!(matches!(
            data_error(error),
            DataError::Sample { index: 4, .. }
        ));
        // A run that is saved now tries the batch again.
        assert_eq!(*loader.state(), before);
        let error = loader.next().unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "faulty: reading sample 8 panicked: cannot stand 8"
        );
        assert!(error.is_data());
        assert_eq!(held(&loader.next().unwrap().unwrap()), [9, 10, 11]);
        assert!(loader.next().is_none());
        assert!(loader.next().is_none());
    }
}

#[test]
fn failures_are_skipped_up_to_a_number() {
    let mut loader = faulty(&[1, 7], &[2]).skip_failures(3).build().unwrap();
    let batches: Vec<_> = loader.by_ref().map(|batch| held(&batch.unwrap())).collect();
    assert_eq!(
        batches,
        [vec![0], vec![3, 4, 5], vec![6, 8], vec![9, 10, 11]]
    );
    assert_eq!(loader.stats().skipped, 3);
    assert_eq!(loader.state().samples, 12);

    let mut loader = faulty(&[1, 7], &[2])
        .skip_failures(2)
        .workers(0)
        .build()
        .unwrap();
    let results: Vec<_> = loader.by_ref().collect();
    let error = results.into_iter().find_map(Result::err).unwrap();
    assert!(error.is_data());
    let reason = error.downcast_ref();
    assert!(matches!(reason, Some(DataError::Sample { index: 7, .. })));
    assert_eq!(
        error.to_string(),
        "faulty: sample 7 cannot be read: no 7 today; 2 samples were skipped before, as many as `skip_failures` allows"
    );
}

#[test]
fn failures_are_read_again() {
    let dataset = Faulty {
        flaky: (0..12).collect(),
        ..Faulty::default()
    };
    // The first read of a sample fails, the second does not.
    let mut loader = Loader::builder(dataset, collate)
        .batch(12)
        .retries(1)
        .workers(0)
        .build()
        .unwrap();
    assert_eq!(held(&loader.next().unwrap().unwrap()).len(), 12);
    // A panic is not tried again.
    let mut loader = faulty(&[], &[0]).retries(5).workers(0).build().unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "faulty: reading sample 0 panicked: cannot stand 0"
    );
}

#[test]
fn collating_may_fail_and_panic() {
    let failing = |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
        match samples.first() {
            Some(0) => Err("sizes differ".into()),
            Some(3) => panic!("out of patience"),
            _ => collate(samples),
        }
    };
    let mut loader = Loader::builder(Faulty::default(), failing)
        .batch(3)
        .workers(2)
        .build()
        .unwrap();
    let texts: Vec<_> = (0..2)
        .map(|_| loader.next().unwrap().unwrap_err().to_string())
        .collect();
    assert_eq!(
        texts,
        [
            "faulty: samples [0, 1, 2] cannot be made into a batch: sizes differ",
            "faulty: samples [3, 4, 5] cannot be made into a batch: it panicked: out of patience",
        ]
    );
    assert_eq!(held(&loader.next().unwrap().unwrap()), [6, 7, 8]);
}

#[test]
fn a_part_is_named_with_its_own_index() {
    let parts = Concat::new(vec![
        Faulty::default(),
        Faulty {
            bad: [2].into(),
            ..Faulty::default()
        },
    ]);
    let mut loader = Loader::builder(parts, collate)
        .batch(24)
        .workers(0)
        .build()
        .unwrap();
    let error = loader.next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "faulty: sample 2 cannot be read: no 2 today"
    );
}

#[test]
fn costs_that_panic_are_errors() {
    struct Costly;
    impl Dataset for Costly {
        type Sample = u32;
        fn len(&self) -> usize {
            5
        }
        fn get(&self, _: usize) -> Result<u32, BoxedError> {
            Ok(0)
        }
        fn cost(&self, index: usize) -> Result<usize, BoxedError> {
            Ok([1, 2][index])
        }
    }
    for workers in [0, 2] {
        let mut loader = Loader::builder(Costly, collate)
            .batch_cost(4)
            .workers(workers)
            .build()
            .unwrap();
        let error = loader.next().unwrap().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("reading sample 2 panicked: index out of bounds"),
            "{error}"
        );
    }
}

#[test]
fn costs_are_asked_for_again() {
    struct Flaky(AtomicUsize);
    impl Dataset for Flaky {
        type Sample = u32;
        fn len(&self) -> usize {
            6
        }
        fn get(&self, index: usize) -> Result<u32, BoxedError> {
            Ok(u32::try_from(index)?)
        }
        /// Every other time it fails.
        fn cost(&self, _: usize) -> Result<usize, BoxedError> {
            match self.0.fetch_add(1, SeqCst).is_multiple_of(2) {
                true => Err("not now".into()),
                false => Ok(1),
            }
        }
    }
    let read = |retries| {
        let builder = Loader::builder(Flaky(AtomicUsize::new(0)), collate).batch_cost(3);
        let loader = builder.retries(retries).build().unwrap();
        loader.map(|batch| Ok::<_, Error>(held(&batch?))).collect()
    };
    let batches: Result<Vec<_>, Error> = read(1);
    assert_eq!(batches.unwrap(), [[0, 1, 2], [3, 4, 5]]);
    assert!(matches!(
        data_error(read(0).unwrap_err()),
        DataError::Sample { index: 0, .. }
    ));
}

#[test]
fn settings_that_cannot_be_meant_are_refused() {
    let builder = || faulty(&[], &[]);
    let refused = [
        builder().batch(0),
        builder().batch(usize::MAX),
        builder().batch_cost(0),
        builder().sort_by_cost(0),
        builder().ahead(0),
        builder().rank(2, 2),
        builder().rank(0, 0),
        builder().samples(5),
        builder().workers(1 << 20),
        builder().name(""),
        builder().name("a\0b"),
    ];
    for builder in refused {
        let error = builder.build().unwrap_err();
        assert!(error.is_data(), "{error}");
    }
    let empty = Loader::builder(Items(Vec::new()), collate)
        .build()
        .unwrap_err();
    assert!(empty.is_data(), "{empty}");
    assert!(empty.to_string().ends_with(" has no samples"), "{empty}");
}

/// The last batches of both epochs fail: each epoch ends where it ends, and so does a loop over epochs.
#[test]
fn an_epoch_ends_also_after_a_batch_that_failed() {
    for workers in [0, 2] {
        let mut loader = faulty(&[10], &[])
            .epochs(2)
            .workers(workers)
            .build()
            .unwrap();
        let mut epochs = Vec::new();
        for epoch in loader.epochs() {
            assert_eq!(epoch.number(), epochs.len() as u64);
            let batches = epoch.map(|batch| batch.map(|batch| held(&batch)).ok());
            epochs.push(batches.collect::<Vec<_>>());
            assert!(epochs.len() < 9, "it never ends");
        }
        assert_eq!(loader.state().epoch, 2);
        let epoch = vec![
            Some(vec![0, 1, 2]),
            Some(vec![3, 4, 5]),
            Some(vec![6, 7, 8]),
            None,
        ];
        assert_eq!(epochs, [epoch.clone(), epoch]);
    }
}

#[test]
fn a_batch_of_which_nothing_is_left_does_not_come() {
    let stack = |samples: Vec<u32>| match samples.is_empty() {
        true => Err("nothing to stack".into()),
        false => collate(samples),
    };
    let dataset = Faulty {
        bad: [3, 4, 5, 11].into(),
        ..Faulty::default()
    };
    let builder = Loader::builder(dataset, stack).batch(3).skip_failures(4);
    let mut loader = builder.workers(2).build().unwrap();
    let read: Vec<_> = loader.by_ref().map(|batch| held(&batch.unwrap())).collect();
    assert_eq!(read, [vec![0, 1, 2], vec![6, 7, 8], vec![9, 10]]);
    assert_eq!((loader.state().epoch, loader.state().samples), (1, 12));
}

#[test]
fn long_batches_do_not_fill_the_screen() {
    let failing = |_: Vec<u32>| -> Result<Tensor, BoxedError> { Err("no".into()) };
    let mut loader = Loader::builder(Faulty::default(), failing)
        .batch(12)
        .build()
        .unwrap();
    assert_eq!(
        loader.next().unwrap().unwrap_err().to_string(),
        "faulty: samples [0, 1, 2, 3, 4, 5, 6, 7] and 4 more cannot be made into a batch: no"
    );
}
