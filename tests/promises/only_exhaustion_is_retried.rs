//! Promise 4, only exhaustion is retried. How errors are classified: tests/library/error/classified.rs; on CUDA, at every launch: tests/cuda/faults.rs.

use candle_core::DType;
use candle_headroom::batch::CutFinding;
use candle_headroom::error::Phase;
use candle_headroom::testing::{Faults, illegal_address};
use candle_headroom::{AdamW, AdaptiveTrainer, Error};

use crate::jobs::{Job, Language, Perceptron, points, uninterrupted, whole_splits};
use crate::support::{ConvNet, Halves, Mlp, snapshot};

/// At every point, an error that a smaller micro-batch does not help against: it is returned, nothing has changed, and training
/// continues.
fn errors_everywhere<J: Job>(error: fn() -> candle_core::Error, check: impl Fn(Error)) {
    let points = points::<J>();
    let expected = uninterrupted::<J>(&whole_splits());
    for point in 0..points {
        let job = J::new();
        let mut trainer = job.trainer(Halves(4));
        let armed = Faults::at(point).failing_with(error).arm();
        let mut errors = 0;
        for state in &expected {
            let before = job.state();
            let report = match job.step(&mut trainer) {
                Ok(report) => report,
                Err(error) => {
                    errors += 1;
                    check(error);
                    assert_eq!(job.state(), before, "point {point}");
                    job.step(&mut trainer).unwrap()
                }
            };
            // In the check of the first cut, the closure's own error changes nothing.
            let check = report.cut_check().map(|check| &check.finding);
            errors += usize::from(matches!(check, Some(CutFinding::Undecided(_))));
            assert_eq!(report.retries, 0, "point {point}");
            assert_eq!(&job.state(), state, "point {point}");
        }
        assert_eq!((armed.fired(), errors), (1, 1), "point {point}");
    }
}

#[test]
fn sticky_fault_at_every_point_is_never_retried() {
    let check = |error: Error| match error {
        Error::DeviceFault(fault) => assert_eq!(fault.code, 700),
        Error::WindowLost(_) => panic!("the trainer holds the whole batch: {error}"),
        error => panic!("{error}"),
    };
    errors_everywhere::<Perceptron>(illegal_address, check);
    errors_everywhere::<ConvNet>(illegal_address, check);
}

#[derive(Debug, thiserror::Error)]
#[error("the user's own")]
struct Own;

#[test]
fn any_other_error_at_every_point_comes_back_unchanged() {
    fn own() -> candle_core::Error {
        candle_core::Error::WrappedContext {
            wrapped: Box::new(Own),
            context: "out of memory".into(),
        }
    }
    let check = |error: Error| {
        let Error::Candle(error) = error else {
            panic!("{error}")
        };
        let candle_core::Error::WrappedContext { wrapped, .. } = *error else {
            panic!("{error}")
        };
        assert!(wrapped.is::<Own>());
    };
    errors_everywhere::<Perceptron>(own, check);
    errors_everywhere::<Language>(own, check);
}

#[test]
fn a_fault_in_the_update_ends_it() {
    let model = Mlp::new(DType::F32);
    let (x, y) = Mlp::data(8, DType::F32);
    let optimizer = AdamW::builder(&model.varmap).build().unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let before = snapshot(&model.vars);
    let _armed = Faults::in_phase(Phase::Optimizer, 2)
        .failing_with(illegal_address)
        .arm();
    let error = trainer
        .step(&(x, y), |(x, y), _| model.loss(&x, &y))
        .unwrap_err();
    assert!(matches!(error, Error::DeviceFault(_)), "{error}");
    assert_eq!(snapshot(&model.vars), before);
}
