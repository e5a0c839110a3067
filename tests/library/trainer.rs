//! `AdaptiveTrainer`: how it behaves under pressure, and what it refuses.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Halving;
use candle_headroom::error::Phase;
use candle_headroom::testing::{Faults, out_of_memory};

use candle_headroom::AdaptiveTrainer;

use crate::support::{Mlp, accumulating, batches, sgd};

#[test]
fn recovery_goes_to_tracing() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tracing::{Event as TracingEvent, Level, Metadata, span};

    #[derive(Default)]
    struct Counts(AtomicUsize, AtomicUsize);
    struct Counter(Arc<Counts>);
    impl tracing::Subscriber for Counter {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("candle_headroom")
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &TracingEvent<'_>) {
            let count = match *event.metadata().level() {
                Level::WARN => &self.0.0,
                _ => &self.0.1,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let counts = Arc::new(Counts::default());
    // With a single subscriber, `tracing` would cache that another test's thread has no interest in an event.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(Counter(counts.clone()), || {
        let model = Mlp::new(DType::F32);
        let mut vars = model.vars.clone();
        vars.push(Var::ones(1, DType::F32, &Device::Cpu).unwrap());
        let builder = AdaptiveTrainer::builder(sgd(&vars, 0.1)).allow_unreached(["4"]);
        let mut trainer = builder.build().unwrap();
        let _armed = Faults::in_phase(Phase::Backward, 0).arm();
        let batch = Mlp::data(4, DType::F32);
        for _ in 0..3 {
            trainer
                .step(&batch, |(x, y), _| model.loss(&x, &y))
                .unwrap();
        }
    });
    // One for the retry, and none for the Var that is allowed to receive no gradient.
    assert_eq!(counts.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_report_is_one_line() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let mut trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&w), 0.1))
        .build()
        .unwrap();
    let x = Tensor::new(&[1f32, 2., 3.], &Device::Cpu).unwrap();
    let report = trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all());
    assert_eq!(
        report.unwrap().to_string(),
        "step 1: loss 4.6667, 3 samples in 1 micro-batch of 3"
    );
}

#[test]
fn exhaustion_is_reported_with_its_micro_batch() {
    let model = Mlp::new(DType::F32);
    let mut trainer = accumulating(&model.vars, 2);
    let batch = &batches(&[8])[0];
    let _armed = Faults::in_phase(Phase::Backward, 0).arm();
    let error = trainer
        .step(batch, |(x, y), _| model.loss(&x, &y))
        .unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(
        (exhausted.micro_batch, exhausted.phase),
        (Some(8), Some(Phase::Backward))
    );
}

#[test]
fn evaluation_finds_the_size_that_fits_and_keeps_it() {
    let model = Mlp::new(DType::F32);
    let builder = AdaptiveTrainer::builder(sgd(&model.vars, 0.1));
    let builder = builder.evaluation_policy(Halving::default());
    let mut trainer = builder.build().unwrap();
    let (x, _) = Mlp::data(100, DType::F32);
    for retries in [2, 0] {
        let evaluated = trainer.evaluate(&x, |x, micro| {
            if x.dim(0)? > 32 {
                return Err(out_of_memory());
            }
            Ok(micro.samples.clone())
        });
        let evaluated = evaluated.unwrap();
        assert_eq!(evaluated.results, [0..25, 25..50, 50..75, 75..100]);
        assert_eq!((evaluated.sizes, evaluated.retries), (vec![25; 4], retries));
    }
    assert_eq!((trainer.updates(), trainer.samples()), (0, 0));
}
