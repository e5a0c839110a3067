//! What layers are told by whoever runs them, and what they tell.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Instant;

use candle_core::{DType, Device, Error, Result, Tensor, Var};
use candle_headroom_nn::scope::{Guard, Surroundings, watch, within};
use candle_headroom_nn::{RecomputeError, SecondRun, recompute, recompute_tiled};

/// Writes down what it is told.
#[derive(Default)]
struct Notes {
    told: RefCell<Vec<&'static str>>,
    refuses: bool,
}

impl Notes {
    fn note(&self, what: &'static str) {
        self.told.borrow_mut().push(what);
    }
}

struct Ends(Rc<Notes>, &'static str);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

struct Told(Rc<Notes>);

impl Surroundings for Told {
    fn in_use(&self) -> Option<u64> {
        self.0.note("in use");
        Some(1 << 20)
    }

    fn place(&self) -> u64 {
        self.0.note("place");
        7
    }

    fn copies(&self) -> Guard {
        Box::new(Ends(self.0.clone(), "copied"))
    }

    fn begins_again(&self) -> Result<Guard> {
        self.0.note("begins again");
        match self.0.refuses {
            true => Err(Error::Msg("no room in the cellar".to_owned())),
            false => Ok(Box::new(Ends(self.0.clone(), "ended"))),
        }
    }

    fn runs_again(&self, place: u64) -> Guard {
        assert_eq!(place, 7);
        Box::new(Ends(self.0.clone(), "ran"))
    }

    fn ran_again(&self, _: Instant, succeeded: bool) {
        self.0.note(if succeeded { "succeeded" } else { "failed" });
    }
}

fn loss(xs: &Var) -> Result<Tensor> {
    recompute(xs.as_tensor(), |xs| recompute(xs, |xs| xs.exp()))?.sum_all()
}

fn notes(refuses: bool) -> Rc<Notes> {
    Rc::new(Notes {
        refuses,
        ..Notes::default()
    })
}

#[test]
fn regions_tell_when_they_run() -> Result<()> {
    let xs = Var::ones(3, DType::F32, &Device::Cpu)?;
    let notes = notes(false);
    let (loss, watched) = within(Rc::new(Told(notes.clone())), || watch(false, || loss(&xs)));
    let loss = loss?;
    assert_eq!(
        (watched.count, watched.held.map(|held| held.all)),
        (1, Some(0))
    );
    assert_eq!(
        notes.told.take(),
        ["place", "in use", "place", "copied", "in use", "copied"]
    );
    within(Rc::new(Told(notes.clone())), || loss.backward())?;
    // The outer region runs again, and in it the inner one for the first time; its second run is within the outer one's.
    assert_eq!(
        notes.told.take(),
        [
            "begins again",
            "place",
            "copied",
            "ran",
            "begins again",
            "ran",
            "ended",
            "succeeded",
            "ended"
        ]
    );
    // Elsewhere nobody is told.
    loss.backward()?;
    assert!(notes.told.take().is_empty());
    Ok(())
}

#[test]
fn surroundings_may_refuse_a_second_run() -> Result<()> {
    let xs = Var::ones(3, DType::F32, &Device::Cpu)?;
    let (loss, notes) = (loss(&xs)?, notes(true));
    let done = within(Rc::new(Told(notes.clone())), || loss.backward());
    let error = done.expect_err("refused");
    assert!(SecondRun::of(&error).is_some(), "{error}");
    assert_eq!(error.to_string(), "no room in the cellar");
    assert_eq!(notes.told.take(), ["begins again"]);
    Ok(())
}

#[test]
fn a_panic_ends_the_surroundings() -> Result<()> {
    let xs = Var::ones(3, DType::F32, &Device::Cpu)?;
    let (loss, notes) = (loss(&xs)?, notes(false));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        within::<()>(Rc::new(Told(notes.clone())), || {
            resume_unwind(Box::new("on purpose")) // prints nothing
        })
    }));
    assert!(panicked.is_err());
    loss.backward()?;
    assert!(notes.told.take().is_empty());
    Ok(())
}

/// Work whose graph is walked back for the last time, once that is said.
#[derive(Default)]
struct Last {
    work: u64,
    is_last: Cell<bool>,
}

impl Surroundings for Last {
    fn work(&self) -> u64 {
        self.work
    }

    fn walks_back_last(&self) -> bool {
        self.is_last.get()
    }
}

/// A region of the same work frees its inputs in the last pass, with the same bits, and says so in another one. One of earlier work does not.
#[test]
fn a_graph_that_is_walked_back_last_is_freed() -> Result<()> {
    let xs = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
    let gradient = |loss: &Tensor| {
        loss.backward()?
            .get(&xs)
            .expect("a gradient")
            .to_vec1::<f32>()
    };
    fn tiled(xs: &Tensor) -> Result<Tensor> {
        recompute_tiled(&xs.reshape((3, 1))?, 2, |xs| xs.sqr())
    }
    let expected = gradient(&tiled(&xs.exp()?)?.sum_all()?)?;
    let [earlier, work] = [1, 2].map(|work| {
        Rc::new(Last {
            work,
            ..Last::default()
        })
    });
    let shared = within(earlier, || recompute(xs.as_tensor(), |xs| xs.exp()))?;
    let [whole, other] = within(work.clone(), || -> Result<_> {
        let inner = recompute(&shared, |xs| recompute(xs, tiled))?.sum_all()?;
        Ok([inner, tiled(&shared)?.sum_all()?])
    })?;
    // Any number of times before.
    for loss in [&whole, &other, &whole] {
        assert_eq!(within(work.clone(), || gradient(loss))?, expected);
    }
    work.is_last.set(true);
    for loss in [&whole, &other] {
        assert_eq!(within(work.clone(), || gradient(loss))?, expected);
        let error = gradient(loss).expect_err("a second pass");
        let error = RecomputeError::of(&error)
            .expect("of the region")
            .to_string();
        assert!(
            error.starts_with("a recomputed region has freed its inputs in the backward pass"),
            "{error}"
        );
    }
    // What was made before lasts.
    let loss = tiled(&shared)?.sum_all()?;
    assert_eq!(gradient(&loss)?, expected);
    Ok(())
}
