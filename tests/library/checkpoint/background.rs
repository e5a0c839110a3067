//! Writing in the background: what is written is what was there when the checkpoint was begun.

use std::ops::ControlFlow::Continue;

use candle_headroom::DeviceFault;
use candle_headroom::Error;
use candle_headroom::checkpoint::{Checkpoint, Saving};
use candle_headroom::testing::{FileFaults, FileOperation, illegal_address};

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

/// What the host has after a device fault, beside the checkpoint that was being written.
#[test]
fn a_lost_device_leaves_what_the_host_has() {
    let (_temporary, folder) = folder();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(2)
        .open()
        .unwrap();
    checkpoints.set("notes", "mine").unwrap();
    let mut run = Run::new();
    run.until(3, &mut checkpoints, |_, _| {}).unwrap();
    let other = Error::from(candle_core::Error::msg("no fault"));
    assert!(checkpoints.rescue(&other, &run.trainer).unwrap().is_none());

    let fault = Error::from(illegal_address());
    assert!(matches!(
        fault.device_fault(),
        Some(DeviceFault { code: 700, .. })
    ));
    let rescued = checkpoints.rescue(&fault, &run.trainer).unwrap().unwrap();
    let text = rescued.to_string();
    for words in [
        "step 3",
        "the number of updates",
        "training",
        "notes",
        "step-000000002",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(names(&rescued.path), ["manifest.json", "state.json"]);
    let state = std::fs::read_to_string(rescued.path.join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    assert_eq!(
        (&state["step"], &state["values"]["notes"]),
        (&3.into(), &"mine".into())
    );
    assert!(
        state["training"]["training"]
            .as_str()
            .unwrap()
            .contains("\"seed\":7")
    );
    assert_eq!(latest(&folder), Some(2), "a rescue is no checkpoint");
    let error = Checkpoint::open(&rescued.path).unwrap_err();
    assert!(error.to_string().contains("it is a rescue"), "{error}");
    let second = checkpoints.rescue(&fault, &run.trainer).unwrap().unwrap();
    assert_ne!(second.path, rescued.path);
}

/// A rescue names the fault, and nothing of the text in which it was found.
#[test]
fn a_rescue_holds_no_credentials() {
    let (_temporary, folder) = folder();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let secret = "https://user:5ec7e7@bucket/part-7?X-Amz-Signature=5ec7e7, Bearer 5ec7e7";
    let text = format!("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"…\") after {secret}");
    let fault = Error::from(candle_core::Error::Cuda(text.into()));
    assert!(fault.device_fault().is_some(), "{fault}");
    let run = Run::new();
    let rescued = checkpoints.rescue(&fault, &run.trainer).unwrap().unwrap();
    for name in names(&rescued.path) {
        let text = std::fs::read_to_string(rescued.path.join(&name)).unwrap();
        assert!(!text.contains("5ec7e7"), "{name}: {text}");
    }
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
