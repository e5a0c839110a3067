//! Reading ahead: how far, by whom, and for how long.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candle_headroom::ByteSize;
use candle_headroom::data::{Dataset, Loader, LoaderBuilder};
use candle_headroom::error::BoxedError;

/// Samples of 1 KiB that take a while, in times that vary, and count how often they were read.
#[derive(Clone, Default)]
struct Slow {
    reads: Arc<AtomicUsize>,
    milliseconds: u64,
}

impl Dataset for Slow {
    type Sample = Tensor;

    fn len(&self) -> usize {
        64
    }

    fn get(&self, index: usize) -> Result<Tensor, BoxedError> {
        self.reads.fetch_add(1, SeqCst);
        let uneven = index as u64 * 7919 % 3;
        thread::sleep(Duration::from_millis(self.milliseconds * uneven));
        Ok(Tensor::full(index as f32, 256, &Device::Cpu)?)
    }
}

fn slow(milliseconds: u64) -> (LoaderBuilder<Slow, Tensor>, Arc<AtomicUsize>) {
    let dataset = Slow {
        milliseconds,
        ..Slow::default()
    };
    let reads = Arc::clone(&dataset.reads);
    let builder = Loader::builder(dataset, |samples: Vec<Tensor>| {
        Ok(Tensor::stack(&samples, 0)?)
    });
    (builder, reads)
}

/// Waits until a value is as expected, and sees that it stays.
fn comes_to<T: PartialEq + Debug>(value: impl Fn() -> T, expected: T) {
    let began = Instant::now();
    while value() != expected && began.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!(value(), expected);
}

/// How often samples were read, and whether those behind the first 16 may end.
#[derive(Default)]
struct Gate {
    reads: AtomicUsize,
    is_open: AtomicBool,
}

/// Samples that end when the gate opens, but for those of the first batch of 16.
struct Late(Arc<Gate>);

impl Dataset for Late {
    type Sample = Tensor;

    fn len(&self) -> usize {
        64
    }

    fn get(&self, index: usize) -> Result<Tensor, BoxedError> {
        self.0.reads.fetch_add(1, SeqCst);
        while index >= 16 && !self.0.is_open.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Tensor::full(index as f32, 256, &Device::Cpu)?)
    }
}

#[test]
fn order_is_kept_whatever_the_workers_do() {
    let (builder, _) = slow(2);
    let mut loader = builder.batch(2).workers(4).shuffle(1).build().unwrap();
    let mut again = slow(0).0.batch(2).workers(0).shuffle(1).build().unwrap();
    for expected in &mut again {
        let (expected, batch) = (expected.unwrap(), loader.next().unwrap().unwrap());
        assert_eq!(batch.indices, expected.indices);
        assert_eq!(batch.dims(), [2, 256]);
    }
    assert!(loader.next().is_none());
}

#[test]
fn nothing_is_read_before_it_is_asked_for() {
    let (builder, reads) = slow(0);
    let mut loader = builder.batch(2).workers(3).build().unwrap();
    comes_to(|| reads.load(SeqCst), 0);
    loader.next().unwrap().unwrap();
    // The batch in hand, and twice the workers ahead of the next.
    let seen = || (reads.load(SeqCst), loader.stats().ready);
    comes_to(seen, (2 * (1 + 6), 6));
}

#[test]
fn batches_and_bytes_bound_what_is_read_ahead() {
    let (builder, reads) = slow(0);
    let mut loader = builder.batch(4).workers(2).ahead(3).build().unwrap();
    loader.next().unwrap().unwrap();
    comes_to(|| reads.load(SeqCst), 4 * (1 + 3));

    // Each batch has 4 KiB, so two fit.
    let (builder, reads) = slow(0);
    let mut loader = builder
        .batch(4)
        .workers(3)
        .ahead(9)
        .ahead_bytes(ByteSize::kib(9))
        .build()
        .unwrap();
    for batches in 1..=3 {
        loader.next().unwrap().unwrap();
        let seen = || (reads.load(SeqCst), loader.stats().ready_bytes);
        comes_to(seen, (4 * (batches + 2), 8 << 10));
    }
    // What training waits for is always read.
    let (builder, reads) = slow(0);
    let mut loader = builder
        .batch(4)
        .workers(3)
        .ahead_bytes(ByteSize(1))
        .build()
        .unwrap();
    for batches in 1..=3 {
        loader.next().unwrap().unwrap();
        comes_to(|| reads.load(SeqCst), 4 * (batches + 1));
    }
}

#[test]
fn dropping_a_loader_ends_its_threads() {
    let gate = Arc::new(Gate::default());
    let stack = |samples: Vec<Tensor>| Ok(Tensor::stack(&samples, 0)?);
    let builder = Loader::builder(Late(Arc::clone(&gate)), stack);
    let mut loader = builder.batch(16).workers(3).build().unwrap();
    loader.next().unwrap().unwrap();
    let waits_until = |is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "never");
            thread::sleep(Duration::from_millis(1));
        }
    };
    // Each thread has a sample in its hands, which does not end.
    waits_until(&|| gate.reads.load(SeqCst) == 16 + 3);
    let (dropped, is_dropped) = mpsc::channel();
    thread::spawn(move || {
        drop(loader);
        dropped.send(()).unwrap();
    });
    let waited = is_dropped.recv_timeout(Duration::from_secs(60));
    waited.expect("dropping does not wait for samples");
    // A thread finishes that sample, not its batch; then it drops the dataset.
    gate.is_open.store(true, SeqCst);
    waits_until(&|| Arc::strong_count(&gate) == 1);
    assert!(gate.reads.load(SeqCst) <= 16 + 3 + 3);
}

#[test]
fn moving_drops_what_was_read_ahead() {
    let (builder, _) = slow(1);
    let mut loader = builder
        .batch(3)
        .workers(3)
        .shuffle(2)
        .epochs(3)
        .build()
        .unwrap();
    let start = loader.state().clone();
    let epoch = |loader: &mut Loader<_>| -> Vec<_> {
        let batches = loader.epochs().take(1).flatten();
        batches.map(|batch| batch.unwrap().indices).collect()
    };
    let first = epoch(&mut loader);
    assert_eq!(first.concat().len(), 64);
    loader.next().unwrap().unwrap();
    for _ in 0..20 {
        loader.load_state(&start).unwrap();
        loader.next().unwrap().unwrap();
    }
    loader.load_state(&start).unwrap();
    assert_eq!(epoch(&mut loader), first);
    assert_eq!(loader.count(), 2 * 22);
}

#[test]
fn waiting_is_measured() {
    // Reading takes 64 ms for a batch, and training nothing.
    let (builder, _) = slow(8);
    let mut loader = builder.batch(8).workers(1).build().unwrap();
    let waited: Duration = loader.by_ref().map(|batch| batch.unwrap().waited).sum();
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.samples), (8, 64));
    assert_eq!(stats.waited, waited);
    assert!(stats.wait_share() > 0.5, "{stats:?}");

    // Reading takes less than a third of training's time: 512 ms in all, of which little is waited for.
    let (builder, _) = slow(8);
    let mut loader = builder.batch(4).workers(1).build().unwrap();
    for batch in &mut loader {
        assert_eq!(batch.unwrap().dtype(), DType::F32);
        thread::sleep(Duration::from_millis(100));
    }
    let stats = loader.stats();
    // The first batch cannot be ready.
    assert!(
        stats.wait_share() <= 0.05 || stats.waited < Duration::from_millis(256),
        "{stats:?}"
    );
}
