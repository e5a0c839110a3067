//! Writing in the background: what is written is what was there when the checkpoint was begun.

use std::ops::ControlFlow::Continue;

use candle_headroom::checkpoint::{Checkpoint, Saving};
use candle_headroom::testing::{FileFaults, FileOperation};

use super::run::{differing, uninterrupted};
use super::*;

#[test]
fn training_goes_on_while_an_older_state_is_written() {
    let (_temporary, folder) = folder();
    let builder = Checkpoints::builder(&folder)
        .every_updates(1)
        .keep_last(100);
    let mut checkpoints = builder.open().unwrap();
    let whole = uninterrupted(40);
    let (mut run, mut seen) = (Run::new(), [0; 3]);
    run.until(40, &mut checkpoints, |_, saving| match saving {
        Saving::Started => seen[0] += 1,
        Saving::Busy => seen[1] += 1,
        Saving::Saved(_) => seen[2] += 1,
        other => panic!("{other:?}"),
    })
    .unwrap();
    checkpoints.finish().unwrap();
    let steps: Vec<usize> = names(&folder)
        .iter()
        .map(|name| name[5..].parse().unwrap())
        .collect();
    println!("{seen:?}, {steps:?}");
    assert_eq!(steps.len(), seen[0], "as many as were begun");
    for step in steps {
        let path = folder.join(format!("step-{step:09}"));
        let checkpoint = Checkpoint::open(path).unwrap();
        let state = checkpoint.state().unwrap();
        for (name, tensor) in &state.tensors {
            let bits: Vec<_> = crate::support::flat(tensor)
                .iter()
                .map(|v| v.to_bits())
                .collect();
            assert_eq!(bits, whole[step][name], "step {step}: {name}");
        }
        let mut loaded = Run::new();
        let named = candle_headroom::train::Resumable::model(&loaded.trainer);
        candle_headroom::checkpoint::load_model(checkpoint.path())
            .into_parameters(named)
            .unwrap();
        candle_headroom::train::Resumable::load_state(&mut loaded.trainer, &state).unwrap();
        assert_eq!(differing(&loaded.bits(), &whole[step]), 0);
    }
}

#[test]
fn flushing_and_dropping_wait() {
    let (_temporary, folder) = folder();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(1)
        .open()
        .unwrap();
    let mut run = Run::new();
    run.until(1, &mut checkpoints, |_, _| {}).unwrap();
    checkpoints.flush().unwrap();
    assert_eq!(latest(&folder), Some(1));
    run.until(2, &mut checkpoints, |_, _| {}).unwrap();
    drop(checkpoints);
    assert_eq!(latest(&folder), Some(2));
}

/// Asking whether one is due touches no file, however long a disk would take.
#[test]
fn asking_whether_one_is_due_costs_nothing() {
    let (_temporary, folder) = folder();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(u64::MAX)
        .open()
        .unwrap();
    let mut run = Run::new();
    let report = run.step().unwrap();
    let changes = FileFaults::in_folder(&folder).at(0).times(usize::MAX);
    let changes = changes.arm();
    let reads = FileFaults::in_folder(&folder).only(FileOperation::Read);
    let reads = reads.at(0).times(usize::MAX).arm();
    for _ in 0..2_000 {
        let saving = checkpoints.after(&report, &run.trainer).unwrap();
        assert!(matches!(saving, Continue(Saving::NotDue)));
    }
    assert_eq!((changes.operations(), reads.fired()), (0, 0));
}

/// An evaluation beside the training, which replaces the only checkpoint again and again.
#[test]
fn a_reader_finds_the_newest_while_it_is_replaced() {
    let temporary = super::run::memory_folder();
    let folder = temporary.path().join("run");
    let builder = Checkpoints::builder(&folder).keep_last(1);
    let mut checkpoints = builder.open().unwrap();
    let mut run = Run::new();
    checkpoints.save_now(&run.trainer).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut last, mut seen) = (0, 0);
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let step = latest(&folder).expect("there is always one");
                assert!(step >= last);
                seen += usize::from(step > last);
                last = step;
            }
            seen
        });
        for _ in 0..300 {
            run.step().unwrap();
            checkpoints.save_now(&run.trainer).unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(reader.join().unwrap() > 10);
    });
}
