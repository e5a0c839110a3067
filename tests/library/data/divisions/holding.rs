//! Loaders that are kept from reading on while their division changes, and what may go wrong meanwhile.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use candle_headroom::batch::{Batch, Division, Hold, Place};
use candle_headroom::data::{Loader, Position, Stream};
use candle_headroom::error::BoxedError;

use super::super::{collate, held};
use super::{divide, next, plain, sizes, text};

#[test]
fn a_held_loader_begins_nothing() {
    let mut loader = plain(60, &[2, 0]).remove(0);
    let batch = loader.next().unwrap().unwrap();
    let divide = batch.origins()[0].divide.unwrap();
    let hold = Hold::new(divide);
    let again = divide.stop();
    assert_eq!(hold.next(), again);
    // All that was begun still comes, and leaves room for more, but nothing more is begun. Each batch has a window of its own.
    let begun = serde_json::to_value(again).unwrap()[1].as_u64().unwrap();
    for _ in 1..begun {
        loader.next().unwrap().unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(loader.stats().ready, 0);
    drop(hold);
    assert_eq!(Hold::new(divide).next(), again, "held twice");
    divide.go_on();
    assert_eq!(loader.by_ref().count() as u64, 20 - begun);

    // A batch that is asked for meanwhile comes when the loader goes on.
    let mut lazy = plain(60, &[0]).remove(0);
    let batch = lazy.next().unwrap().unwrap();
    let divide = batch.origins()[0].divide;
    assert!(divide.is_none(), "one rank has nothing to divide");
    let mut lazy = plain(60, &[0, 0]).remove(0);
    let batch = lazy.next().unwrap().unwrap();
    let divide = batch.origins()[0].divide.unwrap();
    std::thread::scope(|scope| {
        let hold = Hold::new(divide);
        let next = scope.spawn(|| held(&lazy.next().unwrap().unwrap()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!next.is_finished());
        drop(hold);
        assert_eq!(next.join().unwrap(), [6, 7, 8]);
    });
}

#[test]
fn bad_divisions_change_nothing() {
    let mut loaders = plain(30, &[0, 0]);
    next(&mut loaders).unwrap();
    next(&mut loaders).unwrap();
    let refused = |from: Place, division: Division| {
        let error = loaders[0].divide().divide(from, &division).unwrap_err();
        error.to_string()
    };
    let next_place = Hold::new(loaders[0].divide()).next();
    assert_eq!(
        refused(next_place, Division::weighted([1, 2, 3]).unwrap()),
        "loader `data` has 2 ranks, a division is among 3"
    );
    assert_eq!(
        refused(Place::default(), Division::weighted([1, 2]).unwrap()),
        "batches cannot be divided from batch 0 of window 0 of epoch 0 on: batch 0 of window 1 of epoch 0 was begun; hold the loaders of \
         all ranks, and divide from the largest of their next places on"
    );
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [3, 3]);

    // A position whose weights are nonsense is refused as a whole.
    divide(&loaders, &[1, 2]);
    assert_eq!(sizes(&next(&mut loaders).unwrap()), [2, 4]);
    let saved = text(&loaders[0]);
    let damaged = saved.replace("[1,2]", "[0,0]");
    assert_ne!(saved, damaged);
    assert!(serde_json::from_str::<Position>(&damaged).is_err());
}

/// A batch outlives its loader, and a trainer may divide by it.
#[test]
fn a_loader_that_is_gone_is_divided_in_name_only() {
    let mut loaders = plain(30, &[1, 0]);
    let batch = loaders[0].next().unwrap().unwrap();
    drop(loaders);
    let divide = batch.origins()[0].divide.unwrap();
    let division = Division::weighted([3, 1]).unwrap();
    assert!(divide.division().is_equal());
    // A worker may be at its last batch still.
    let hold = Hold::new(divide);
    let from = hold.next();
    hold.divide(from, &division).unwrap();
    assert_eq!(divide.division(), division);
}

/// Only reading shows where a stream's epoch ends, which may be while the loader is held.
#[test]
fn a_stream_may_end_its_epoch_while_it_is_held() {
    type Numbers = Box<dyn Iterator<Item = Result<u32, BoxedError>> + Send>;
    let (end, ends) = mpsc::channel::<()>();
    let ends = Arc::new(Mutex::new(ends));
    let (ask, asked) = mpsc::channel();
    let open = move |_| -> Result<Numbers, BoxedError> {
        let (ask, ends) = (ask.clone(), Arc::clone(&ends));
        let last = std::iter::from_fn(move || {
            // Says so, waits, and ends then.
            ask.send(()).ok();
            ends.lock().unwrap().recv().ok();
            None
        });
        Ok(Box::new((0..6).map(Ok).chain(last)))
    };
    let builder = Loader::builder(Stream(open), collate).batch(3).epochs(2);
    let mut loader = builder.rank(0, 2).build().unwrap();
    assert_eq!(held(&loader.next().unwrap().unwrap()), [0]);
    let place = || {
        let place = loader.divide().stop();
        loader.divide().go_on();
        place
    };
    // Until the worker asks for the third batch, which the stream does not have.
    asked.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(loader.stats().ready, 1);
    let third = place();
    let hold = Hold::new(loader.divide());
    assert_eq!(hold.next(), third);
    end.send(()).unwrap();
    while place() == third {
        std::thread::sleep(Duration::from_millis(1));
    }
    hold.divide(third, &Division::weighted([2, 1]).unwrap())
        .unwrap();
    end.send(()).unwrap();
    let sizes: Vec<_> = loader.map(|batch| held(&batch.unwrap()).len()).collect();
    assert_eq!(sizes, [1, 2, 2]);
}
