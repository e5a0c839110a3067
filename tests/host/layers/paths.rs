//! Which path a span gets, however spans are created and entered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use candle_headroom::DeviceMemory;
use candle_headroom::layers::LayerMemory;
use tracing::{Span, trace_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;

use super::{names, row, watched};
use crate::support::alone;

/// A model whose spans live as long as it does, created in the opposite order of their use.
struct Model {
    model: Span,
    blocks: Vec<(Span, Span)>,
}

impl Model {
    fn new() -> Self {
        let block = |_| (trace_span!("block"), trace_span!("attn"));
        let mut blocks: Vec<_> = (0..3).map(block).collect();
        blocks.reverse();
        Self {
            model: trace_span!("model"),
            blocks,
        }
    }

    fn forward(&self, which: &[usize]) {
        let _model = self.model.enter();
        for index in which {
            let (block, attn) = &self.blocks[*index];
            let _block = block.enter();
            attn.in_scope(|| {});
        }
    }
}

const ALL: [&str; 7] = [
    "model",
    "model.block.0",
    "model.block.0.attn",
    "model.block.1",
    "model.block.1.attn",
    "model.block.2",
    "model.block.2.attn",
];

#[test]
fn a_span_is_where_it_is_entered_and_keeps_its_number() {
    let _alone = alone();
    watched(|layers| {
        let model = Model::new();
        model.forward(&[0, 1, 2]);
        assert_eq!(names(&layers.report()), ALL);
        // The second block is left out, as by stochastic depth.
        model.forward(&[0, 2]);
        let report = layers.report();
        assert_eq!(names(&report), [ALL[0], ALL[1], ALL[2], ALL[5], ALL[6]]);
        assert!(report.rows.iter().all(|row| row.calls <= 1), "a new step");
        // One that shares weights is called twice.
        model.forward(&[0, 1, 1, 2]);
        assert_eq!(row(&layers.report(), "model.block.1").calls, 2);
        assert_eq!(names(&layers.report()), ALL);
        let folded = layers.report().folded();
        assert_eq!(
            names(&folded),
            ["model", "model.block.*", "model.block.*.attn"]
        );
        assert_eq!(row(&folded, "model.block.*").calls, 4);
    });
}

#[test]
fn a_block_that_is_first_used_later_is_numbered_later() {
    let _alone = alone();
    watched(|layers| {
        let model = Model::new();
        model.forward(&[0, 2]);
        model.forward(&[0, 1, 2]);
        let calls: Vec<_> = names(&layers.report());
        assert_eq!(calls, ALL);
    });
}

/// As `#[tracing::instrument]` does.
#[test]
fn spans_created_in_each_call_are_numbered_anew_in_each_call() {
    let _alone = alone();
    watched(|layers| {
        let model = trace_span!("model");
        for _ in 0..100 {
            let _model = model.enter();
            for _ in 0..2 {
                let _block = trace_span!("block").entered();
                drop(trace_span!("attn").entered());
                drop(trace_span!("attn").entered());
            }
        }
        let expected = [
            "model",
            "model.block.0",
            "model.block.0.attn.0",
            "model.block.0.attn.1",
            "model.block.1",
            "model.block.1.attn.0",
            "model.block.1.attn.1",
        ];
        assert_eq!(names(&layers.report()), expected);
        let folded = layers.report().folded();
        assert_eq!(row(&folded, "model.block.*.attn.*").calls, 4);
    });
}

#[test]
fn in_a_measured_step_outermost_spans_are_numbered_too() {
    let _alone = alone();
    watched(|layers| {
        for _ in 0..3 {
            layers.measure(|| {
                drop(trace_span!("block").entered());
                drop(trace_span!("block").entered());
            });
        }
        assert_eq!(names(&layers.report()), ["block.0", "block.1"]);
        // What comes after the step does not take its place.
        drop(trace_span!("other").entered());
        assert_eq!(names(&layers.report()), ["block.0", "block.1"]);
    });
}

#[test]
fn a_span_within_itself_is_one_level_deeper() {
    let _alone = alone();
    watched(|layers| {
        let span = trace_span!("again");
        let outer = span.enter();
        let inner = span.enter();
        drop(inner);
        drop(outer);
        assert_eq!(names(&layers.report()), ["again", "again.again"]);
    });
}

#[test]
fn spans_may_be_left_in_any_order() {
    let _alone = alone();
    watched(|layers| {
        let (a, b) = (trace_span!("a"), trace_span!("b"));
        let block = layers.measure(|| {
            let first = a.enter();
            let second = b.enter();
            let early = vec![0u8; 3 << 20];
            drop(first);
            let late = vec![0u8; 5 << 20];
            drop(second);
            (early, late)
        });
        let report = layers.report();
        assert_eq!(names(&report), ["a", "a.b"]);
        let mib = |name: &str| row(&report, name).held.unwrap() as f64 / (1 << 20) as f64;
        let own = |name: &str| row(&report, name).own_held.unwrap() as f64 / (1 << 20) as f64;
        // Less than 100 KiB for the registry and the test harness.
        assert!((mib("a") - 3.).abs() < 0.1 && (mib("a.b") - 8.).abs() < 0.1);
        assert!(own("a").abs() < 0.1 && (own("a.b") - 8.).abs() < 0.1);
        drop(block);
    });
}

#[test]
fn a_span_may_outlive_its_step() {
    let _alone = alone();
    watched(|layers| {
        let entered = layers.measure(|| trace_span!("long").entered());
        layers.measure(|| trace_span!("short").in_scope(|| {}));
        assert_eq!(names(&layers.report()), ["short"]);
        drop(entered);
        layers.measure(|| trace_span!("next").in_scope(|| {}));
        assert_eq!(names(&layers.report()), ["next"]);
    });
}

/// As a future that is polled on several threads.
#[test]
fn each_thread_has_a_path_of_its_own() {
    let _alone = alone();
    watched(|layers| {
        let (outer, task) = (trace_span!("outer"), trace_span!("task"));
        let _outer = outer.enter();
        task.in_scope(|| {});
        let there = thread::scope(|threads| {
            let thread = threads.spawn(|| {
                layers.measure(|| task.in_scope(|| {}));
                names(&layers.report())
            });
            thread.join().unwrap()
        });
        assert_eq!(there, ["task"]);
        // The thread has ended, and what it did is the latest.
        assert_eq!(names(&layers.report()), ["task"]);
        layers.measure(|| task.in_scope(|| {}));
        assert_eq!(names(&layers.report()), ["task"]);
    });
}

#[test]
fn a_panic_leaves_the_spans() {
    let _alone = alone();
    watched(|layers| {
        let model = Model::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            layers.measure(|| {
                let _model = model.model.enter();
                let _block = model.blocks[0].0.enter();
                panic!("in a layer");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(names(&layers.report()), ["model", "model.block"]);
        layers.measure(|| model.forward(&[0, 1, 2]));
        assert_eq!(names(&layers.report()), ALL);
    });
}

#[test]
fn subscribers_do_not_mix_their_spans() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let layers = LayerMemory::new(&memory);
    // Both number their spans from the same beginning.
    let first = tracing::Dispatch::new(registry().with(layers.layer()));
    let second = tracing::Dispatch::new(registry().with(layers.layer()));
    let a = tracing::dispatcher::with_default(&first, || trace_span!("a"));
    let b = tracing::dispatcher::with_default(&second, || trace_span!("b"));
    layers.measure(|| {
        let _a = a.enter();
        b.in_scope(|| {});
    });
    assert_eq!(names(&layers.report()), ["a", "a.b"]);
}

/// The newest measures, until it is dropped; the report of the one before stays.
#[test]
fn the_newest_measures() {
    let _alone = alone();
    let memory = DeviceMemory::host().open().unwrap();
    let old = LayerMemory::new(&memory);
    let subscriber = registry().with(old.layer());
    tracing::subscriber::with_default(subscriber, || {
        old.measure(|| trace_span!("a").in_scope(|| {}));
    });
    let new = LayerMemory::new(&memory);
    let both = registry().with(old.layer()).with(new.layer());
    tracing::subscriber::with_default(both, || {
        for layers in [&old, &new] {
            layers.measure(|| trace_span!("b").in_scope(|| {}));
        }
    });
    assert_eq!(names(&old.report()), ["a"]);
    assert_eq!(names(&new.report()), ["b"]);
    drop(new);
    let subscriber = registry().with(old.layer());
    tracing::subscriber::with_default(subscriber, || {
        old.measure(|| trace_span!("c").in_scope(|| {}));
    });
    assert_eq!(names(&old.report()), ["a"]);
}

#[test]
fn a_report_without_layers_says_why() {
    let _alone = alone();
    let seen = |report: &candle_headroom::layers::LayerReport| !report.is_empty();
    let memory = DeviceMemory::host().open().unwrap();
    let layers = LayerMemory::new(&memory);
    let before = Model::new(); // its spans are off for ever
    layers.measure(|| before.forward(&[0]));
    assert!(!seen(&layers.report()));
    assert!(
        layers
            .report()
            .to_string()
            .contains("before the model is created")
    );
    let filtered = registry().with(layers.layer().with_filter(LevelFilter::INFO));
    tracing::subscriber::with_default(filtered, || {
        layers.measure(|| Model::new().forward(&[0]));
        assert!(!seen(&layers.report()));
        assert!(layers.report().flame_graph(Default::default()).is_err());
    });
    tracing::subscriber::with_default(registry().with(layers.layer()), || {
        layers.measure(|| before.forward(&[0]));
        assert!(!seen(&layers.report()));
        layers.measure(|| Model::new().forward(&[0]));
        assert!(seen(&layers.report()));
    });
}
