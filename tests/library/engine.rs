//! The loop under trainers and processors, seen through policies and closures from outside the crate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{
    BatchPolicy, BatchProcessor, EventKind, Extent, Failed, Halving, Observer, Plan, Reason,
    TrainingEvent,
};
use candle_headroom::error::{Phase, UpdateInterrupted};
use candle_headroom::optim::{Commit, Committed, Parameter};
use candle_headroom::testing::{Faults, out_of_memory};
use candle_headroom::{AdaptiveTrainer, Error, Result, Sgd, process_batches};

/// A policy that halves, and records its calls.
#[derive(Debug, Clone)]
struct Noting {
    size: usize,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Noting {
    fn new(size: usize) -> Self {
        Self {
            size,
            calls: Arc::default(),
        }
    }

    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

impl BatchPolicy for Noting {
    fn size(&self, _: usize) -> usize {
        self.size
    }

    fn begin(&mut self, batch: &Extent) {
        self.note(format!("begin {} {}", batch.samples, batch.cost));
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.note(format!("failed {}", failed.size));
        self.size = failed.size / 2;
    }

    fn plan(&self) -> Option<Plan> {
        let mut plan = Plan::new(Reason::Failed);
        plan.using = Some(self.size);
        Some(plan)
    }
}

fn w() -> Var {
    Var::new(&[1f32], &Device::Cpu).unwrap()
}

fn sgd(w: &Var) -> Sgd {
    Sgd::builder(vec![w.clone()]).build().unwrap()
}

#[test]
fn a_size_outside_of_what_is_left_is_clamped() {
    let x = Tensor::arange(0f32, 5., &Device::Cpu).unwrap();
    for (size, expected) in [(0, vec![1; 5]), (3, vec![3, 2]), (usize::MAX, vec![5])] {
        let mut processor = BatchProcessor::builder(Noting::new(size)).build();
        let processed = processor.process(&x, |_, _| Ok(())).unwrap();
        assert_eq!(processed.sizes, expected);
    }
}

#[test]
fn a_restarted_batch_begins_again_for_the_policy() {
    let (a, b) = (w(), w());
    let optimizer = Sgd::builder(vec![a.clone(), b.clone()]).build().unwrap();
    let policy = Noting::new(2);
    let calls = Arc::clone(&policy.calls);
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .policy(policy)
        .build()
        .unwrap();
    let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap();
    // The second micro-batch fails between the two parameters, so that the first one's gradients are lost.
    let _armed = Faults::in_phase(Phase::Accumulate, 5).arm();
    let loss = |x: Tensor| (x.broadcast_mul(&a)?.broadcast_mul(&b))?.mean_all();
    let report = trainer.step(&x, |x, _| loss(x)).unwrap();
    assert_eq!(report.samples, 4);
    let calls = calls.lock().unwrap();
    let begun = calls
        .iter()
        .filter(|call| call.starts_with("begin"))
        .count();
    assert_eq!(begun, 2, "{calls:?}");
    assert!(
        calls
            .iter()
            .all(|call| call == "begin 4 12" || call == "failed 2"),
        "{calls:?}"
    );
}

/// After short samples have fitted, a batch of as many long ones that does not fit is not tried a second time at the same size,
/// because this cost has never fitted.
#[test]
fn sizes_are_proven_by_cost_and_not_by_samples() {
    let mut processor = BatchProcessor::builder(Halving::default()).build();
    let short = Tensor::zeros((16, 1), DType::F32, &Device::Cpu).unwrap();
    let long = Tensor::zeros((16, 100), DType::F32, &Device::Cpu).unwrap();
    let mut sizes = Vec::new();
    for batch in [&short, &long] {
        let room = |x: Tensor| match x.elem_count() > 800 {
            true => Err(out_of_memory()),
            false => Ok(()),
        };
        processor
            .process(batch, |x, micro| {
                sizes.push(micro.samples.len());
                room(x)
            })
            .unwrap();
    }
    assert_eq!(sizes, [16, 16, 8, 8]);
}

#[derive(Debug, thiserror::Error)]
enum MyError {
    #[error("text {0} is empty")]
    Empty(usize),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    #[error(transparent)]
    Headroom(#[from] Error),
}

#[test]
fn a_closures_own_error_comes_back_typed() {
    let w = w();
    let mut trainer = AdaptiveTrainer::builder(sgd(&w)).build().unwrap();
    let x = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
    let failed = trainer.try_step(&x, |_, _| Err::<Tensor, _>(MyError::Empty(3)));
    assert!(matches!(failed, Err(MyError::Empty(3))), "{failed:?}");
    // An exhaustion within the closure's error is found and retried.
    let report = trainer.try_step(&x, |x, _| match x.dim(0)? > 2 {
        true => Err(MyError::from(Error::from(out_of_memory()))),
        false => Ok(x.broadcast_mul(&w)?.mean_all()?),
    });
    assert_eq!(report.unwrap().sizes, [2, 2]);
    // A final exhaustion is returned converted.
    let failed = trainer.try_step(&x, |_, _| -> Result<Tensor, MyError> {
        Err(MyError::Candle(out_of_memory()))
    });
    assert!(matches!(
        failed,
        Err(MyError::Headroom(Error::ResourceExhausted(_)))
    ));
    // A closure that returns candle's result can carry the error too.
    let error = process_batches(&x, 2, |_| -> candle_core::Result<()> {
        Err(Error::external(MyError::Empty(7)).into())
    });
    let error = error.unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(MyError::Empty(7))));
    assert!(matches!(error.downcast(), Ok(MyError::Empty(7))));
}

/// An optimizer from outside that can be interrupted.
struct Interrupted(Vec<Parameter>);

impl Commit for Interrupted {
    fn parameters(&self) -> &[Parameter] {
        &self.0
    }

    fn commit(&mut self, _: &candle_core::backprop::GradStore) -> Result<Committed> {
        let reason = Error::from(candle_core::Error::Msg("the link is down".to_owned()));
        Err(UpdateInterrupted::new(Some(reason)).into())
    }
}

#[test]
fn an_optimizer_from_outside_can_report_an_interrupted_update() {
    let w = w();
    let optimizer = Interrupted(vec![Parameter::new("w", w.clone())]);
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let x = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
    for _ in 0..2 {
        let failed = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.mean_all());
        assert!(
            matches!(failed, Err(Error::UpdateInterrupted(_))),
            "{failed:?}"
        );
    }
    let sound = Interrupted(vec![Parameter::new("w", w.clone())]);
    trainer.replace_optimizer(sound);
    let failed = trainer
        .step(&x, |x, _| x.broadcast_mul(&w)?.mean_all())
        .unwrap_err();
    assert!(failed.to_string().contains("the link is down"), "{failed}");
}

#[derive(Debug, Default)]
struct Plans(Mutex<Vec<Option<Plan>>>);

impl Observer for Plans {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if let EventKind::BatchEnded { .. } = event.kind {
            self.0.lock().unwrap().push(event.plan);
        }
    }
}

#[test]
fn observers_see_the_plan_of_a_policy_from_outside() {
    let plans = Arc::new(Plans::default());
    let builder = BatchProcessor::builder(Noting::new(3)).observer(Arc::clone(&plans));
    let x = Tensor::arange(0f32, 5., &Device::Cpu).unwrap();
    builder.build().process(&x, |_, _| Ok(())).unwrap();
    let plans = plans.0.lock().unwrap();
    assert_eq!(plans[0].and_then(|plan| plan.using), Some(3));
}

/// A policy whose size somebody else sets.
#[derive(Debug, Clone, Default)]
struct Set(Arc<AtomicUsize>);

impl BatchPolicy for Set {
    fn size(&self, _: usize) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn failed(&mut self, _: &Failed<'_>) {}

    fn plan(&self) -> Option<Plan> {
        Some(Plan::new(Reason::Allowed))
    }
}

#[test]
fn a_plan_names_a_size_that_was_faster() {
    let policy = Set::default();
    let mut processor = BatchProcessor::builder(policy.clone()).build();
    let x = Tensor::arange(0f32, 4., &Device::Cpu).unwrap();
    // A chunk takes as long with any number of samples. The first of each size is slow, and does not count.
    let mut process = |size: usize, millis: [u64; 2]| {
        policy.0.store(size, Ordering::Relaxed);
        for millis in millis {
            let wait = Duration::from_millis(millis);
            let chunk = |_, _: &_| {
                std::thread::sleep(wait);
                Ok(())
            };
            processor.process(&x, chunk).unwrap();
        }
        processor.plan().unwrap()
    };
    assert_eq!(process(4, [60, 10]).faster, None);
    let plan = process(1, [10, 10]);
    let faster = plan.faster.expect("the whole batch at once was faster");
    assert_eq!(faster.size, 4);
    assert!(faster.samples_per_second <= 400., "{faster:?}");
    let text = plan.to_string();
    assert!(text.contains("; the fastest so far was 4, "), "{text}");
    assert_eq!(process(4, [10, 10]).faster, None);
}
