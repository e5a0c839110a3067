//! A run continues with its loader.

use candle_core::{Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::checkpoint::Resumed;
use candle_headroom::data::{Items, Loader, LoaderBuilder};
use candle_headroom::error::{BoxedError, DataError};
use candle_headroom::{AdaptiveTrainer, Error, Result, Sgd};

use super::*;

fn numbers(count: u32) -> LoaderBuilder<Items<u32>, Tensor> {
    let collate = |numbers: Vec<u32>| -> Result<Tensor, BoxedError> {
        let numbers: Vec<_> = numbers.iter().map(|number| *number as f32).collect();
        Ok(Tensor::new(numbers, &Device::Cpu)?)
    };
    let builder = Loader::builder(Items(Vec::from_iter(0..count)), collate);
    builder.batch(4).shuffle(3).epochs(3)
}

/// The epoch of a batch, and its samples.
type Read = (u64, Vec<usize>);

/// Trains for at most so many updates, and saves after each. Returns what was read, and where the run continued.
fn read(
    folder: &Path,
    loader: LoaderBuilder<Items<u32>, Tensor>,
    most: usize,
) -> Result<(Vec<Read>, Option<Resumed>)> {
    let w = Var::new(&[1f32], &Device::Cpu)?;
    let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(1e-4);
    let builder = AdaptiveTrainer::builder(optimizer.build()?).policy(Fixed::whole_batch());
    let mut trainer = builder.build()?;
    let builder = Checkpoints::builder(folder).every_updates(1);
    let mut checkpoints = builder.in_foreground().open()?;
    let mut loader = checkpoints.resume(&mut trainer, loader.build()?)?;
    let mut seen = Vec::new();
    'run: for epoch in loader.epochs() {
        let number = epoch.number();
        for batch in epoch {
            if seen.len() == most {
                break 'run;
            }
            let batch = batch?;
            let report = trainer.step(&batch, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all())?;
            assert!(checkpoints.after(&report, &trainer)?.is_continue());
            seen.push((number, batch.indices.clone()));
        }
    }
    Ok((seen, checkpoints.resumed().cloned()))
}

#[test]
fn a_run_goes_on_with_the_next_batch_epoch_by_epoch() {
    let (_temporary, whole) = folder();
    let (whole, resumed) = read(&whole, numbers(10), 99).unwrap();
    assert_eq!((whole.len(), resumed), (9, None));
    let epochs: Vec<_> = whole.iter().map(|(epoch, _)| *epoch).collect();
    assert_eq!(epochs, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    for stopped in 1..9 {
        let (_temporary, folder) = folder();
        let (mut seen, _) = read(&folder, numbers(10), stopped).unwrap();
        let (rest, resumed) = read(&folder, numbers(10), 99).unwrap();
        seen.extend(rest);
        assert_eq!(seen, whole, "stopped after {stopped}");
        let resumed = resumed.unwrap();
        assert_eq!((resumed.step, resumed.changes), (stopped as u64, vec![]));
        let (rest, resumed) = read(&folder, numbers(10), 99).unwrap();
        assert_eq!((rest.len(), resumed.unwrap().step), (0, 9));
    }
}

#[test]
fn changed_data_is_an_error_unless_it_is_accepted() {
    let (_temporary, folder) = folder();
    read(&folder, numbers(10), 3).unwrap();
    let error = read(&folder, numbers(11), 99).unwrap_err();
    assert!(
        matches!(&error, Error::Data(error) if matches!(**error, DataError::Position(_))),
        "{error}"
    );
    let accepting = numbers(11).accept_changed_data();
    let (rest, resumed) = read(&folder, accepting, 99).unwrap();
    assert_eq!((rest.len(), rest[0].0), (6, 1));
    let resumed = resumed.unwrap();
    assert_eq!(resumed.changes.len(), 1, "{resumed}");
    let text = resumed.to_string();
    let end = format!("; the data has changed: {}", resumed.changes[0]);
    assert!(text.ends_with(&end), "{text}");
}
