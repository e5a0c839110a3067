//! Sinks and thresholds: each gets its samples, and none of them stops the monitor.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use candle_headroom::incident::IncidentLog;
use candle_headroom::monitor::{Crossing, HeldDown, Sink, Source};

use super::*;

#[test]
fn a_holder_of_samples_keeps_no_sink_alive() {
    let path = std::env::temp_dir().join(format!("monitor-kept-{}.jsonl", std::process::id()));
    let kept = Arc::new(());
    let in_sink = Arc::clone(&kept);
    let sink = move |_: &Source, _: &Sample| {
        drop(Arc::clone(&in_sink));
        Ok(())
    };
    let monitor = without_gpus().sink(sink).start().unwrap();
    let log = IncidentLog::builder(&path)
        .monitor(&monitor)
        .open()
        .unwrap();
    drop(monitor);
    assert_eq!(Arc::strong_count(&kept), 1);
    drop(log);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_sink_that_fails_is_tried_again_and_counted() {
    struct Every(Arc<AtomicUsize>);
    impl Sink for Every {
        fn write(&mut self, _: &Source, _: &Sample) -> io::Result<()> {
            match self.0.fetch_add(1, Ordering::Relaxed) % 3 {
                2 => Ok(()),
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        }
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let sink = Every(Arc::clone(&calls));
    let monitor = without_gpus().sink(sink).start().unwrap();
    while calls.load(Ordering::Relaxed) < 30 {
        std::thread::sleep(Duration::from_millis(2));
    }
    // Read in this order, each call but the last has been counted.
    let (failed, calls) = (
        monitor.failed_writes(),
        calls.load(Ordering::Relaxed) as u64,
    );
    assert!(
        (19..=calls - calls / 3).contains(&failed),
        "{failed} of {calls}"
    );
}

#[test]
fn a_sink_that_panics_is_dropped_and_what_it_lost_is_counted() {
    struct Third(Arc<AtomicUsize>);
    impl Sink for Third {
        fn write(&mut self, _: &Source, _: &Sample) -> io::Result<()> {
            let calls = self.0.fetch_add(1, Ordering::Relaxed);
            assert!(calls < 2, "this test's sink panics");
            Ok(())
        }
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let sink = Third(Arc::clone(&calls));
    let monitor = without_gpus().sink(sink).start().unwrap();
    let began = Instant::now();
    while monitor.failed_writes() < 8 {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "the monitor goes on"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "not called again");
    assert_eq!(Arc::strong_count(&calls), 1, "dropped");
}

#[test]
fn thresholds_ring_once_and_again_after_recovering() {
    const GPU: u32 = 4;
    let simulator = Simulator::load();
    let rings = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&rings);
    let note = move |crossing: &Crossing<'_>| {
        let source = crossing.sample.source;
        noted
            .lock()
            .unwrap()
            .push((source, crossing.to_string(), crossing.is_over));
    };
    let monitor = quick()
        .threshold(Threshold::Temperature(80), note.clone())
        .threshold(Threshold::HeldDown, note.clone())
        .threshold(Threshold::MemoryShare(0.5), note)
        .start()
        .unwrap();
    let heat = |celsius: u64| {
        simulator.set(GPU, "nvmlDeviceGetTemperature", celsius);
        until(&monitor, 4, |sample| sample.temperature == Some(celsius));
    };
    for celsius in [79, 80, 79, 81, 76, 75, 79, 80] {
        heat(celsius);
    }
    simulator.set(GPU, "nvmlDeviceGetCurrentClocksEventReasons", 0x40);
    until(&monitor, 4, |sample| {
        sample.held_down == Some(HeldDown::from_bits(0x40))
    });
    simulator.neighbour(GPU, GIB + GIB / 2);
    until(&monitor, 4, |sample| sample.others == Some(GIB + GIB / 2));
    drop(monitor);
    let rings = rings.lock().unwrap();
    let of_gpu: Vec<_> = rings.iter().filter(|(source, ..)| *source == 4).collect();
    let temperature: Vec<bool> = of_gpu
        .iter()
        .filter(|ring| ring.1.contains("80 °C"))
        .map(|ring| ring.2)
        .collect();
    assert_eq!(temperature, [true, false, true]);
    for words in ["clocks held down", "50 % of the memory used"] {
        assert_eq!(
            of_gpu.iter().filter(|ring| ring.1.contains(words)).count(),
            1,
            "{of_gpu:?}"
        );
    }
}

#[test]
fn history_is_a_ring_and_each_closure_gets_the_samples() {
    let (send, receive) = mpsc::channel();
    let sends = move |source: &Source, sample: &Sample| {
        send.send((source.name.clone(), sample.at)).unwrap();
        Ok(())
    };
    let panicked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&panicked);
    let panics = move |_: &Source, _: &Sample| -> io::Result<()> {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("this test's sink panics");
    };
    let builder = quick().history(5).sink(sends).sink(panics);
    let monitor = builder.start().unwrap();
    for _ in 0..9 * 20 {
        receive.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    assert_eq!(panicked.load(Ordering::SeqCst), 1, "not called again");
    let history = monitor.history(8);
    assert_eq!(history.len(), 5);
    assert!(history.is_sorted_by(|a, b| a.at < b.at));
    assert!(monitor.history(99).is_empty());
    drop(monitor);
    let left = receive.try_iter().count();
    let ended = receive.try_recv();
    assert!(
        matches!(ended, Err(mpsc::TryRecvError::Disconnected)),
        "{left}"
    );
}
