use std::ops::ControlFlow;

use candle_headroom::checkpoint::{CheckpointsBuilder, Saving};

use super::*;

/// Saves steps 1, 2, … with these values of `accuracy`, and returns the steps that are left.
fn left(builder: CheckpointsBuilder, folder: &Path, values: &[f64]) -> Vec<String> {
    let mut checkpoints = builder.every_updates(1).in_foreground().open().unwrap();
    let mut run = Run::new();
    checkpoints.resume_trainer(&mut run.trainer).unwrap();
    for value in values {
        checkpoints.metric("accuracy", *value);
        let report = run.step().unwrap();
        let saving = checkpoints.after(&report, &run.trainer).unwrap();
        assert!(
            matches!(saving, ControlFlow::Continue(Saving::Saved(_))),
            "{saving:?}"
        );
    }
    names(folder)
}

fn steps(steps: &[u64]) -> Vec<String> {
    steps.iter().map(|step| format!("step-{step:09}")).collect()
}

#[test]
fn the_last_ones_stay() {
    let (_temporary, folder) = folder();
    let three = left(Checkpoints::builder(&folder), &folder, &[0.; 5]);
    assert_eq!(three, steps(&[3, 4, 5]));
    let one = left(Checkpoints::builder(&folder).keep_last(1), &folder, &[0.]);
    assert_eq!(one, steps(&[6]));
}

#[test]
fn the_best_one_stays_too_also_after_a_restart() {
    let (_temporary, folder) = folder();
    let highest = || {
        Checkpoints::builder(&folder)
            .keep_last(1)
            .highest("accuracy")
    };
    let values = [0.2, 0.9, f64::NAN, 0.9, f64::INFINITY];
    assert_eq!(
        left(highest(), &folder, &values),
        steps(&[2, 5]),
        "of equals the oldest"
    );
    let mut checkpoints = highest().open().unwrap();
    let best = checkpoints.best().unwrap().unwrap();
    assert_eq!(best, folder.join("step-000000002"));
    checkpoints.resume_trainer(&mut Run::new().trainer).unwrap();
    drop(checkpoints);
    assert_eq!(left(highest(), &folder, &[0.5]), steps(&[2, 6]));
    assert_eq!(left(highest(), &folder, &[0.95, 0.1]), steps(&[7, 8]));
}

#[test]
fn the_lowest_loss_is_read_from_the_report() {
    let (_temporary, folder) = folder();
    let mut losses = Vec::new();
    let mut run = Run::new();
    let builder = Checkpoints::builder(&folder)
        .every_updates(1)
        .keep_last(1)
        .lowest("loss");
    let mut checkpoints = builder.in_foreground().open().unwrap();
    for _ in 0..12 {
        let report = run.step().unwrap();
        losses.push(report.loss.read().unwrap());
        assert!(
            checkpoints
                .after(&report, &run.trainer)
                .unwrap()
                .is_continue()
        );
    }
    let lowest = losses.iter().copied().enumerate();
    let (best, _) = lowest.min_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap();
    let best = folder.join(format!("step-{:09}", best + 1));
    assert_eq!(checkpoints.best().unwrap(), Some(best.clone()));
    let metrics = candle_headroom::checkpoint::Checkpoint::open(best)
        .unwrap()
        .metrics()
        .clone();
    assert_eq!(
        Some(metrics["loss"]),
        losses.iter().copied().min_by(f64::total_cmp)
    );
}

/// The end of a run is often saved twice: when it is due and on request.
#[test]
fn a_step_that_is_saved_again_is_written_once_and_keeps_its_metrics() {
    let (_temporary, folder) = folder();
    let mut run = Run::new();
    let builder = || {
        let builder = Checkpoints::builder(&folder).keep_last(1);
        builder.highest("accuracy").in_foreground()
    };
    let mut checkpoints = builder().every_updates(2).open().unwrap();
    checkpoints.metric("accuracy", 0.9);
    run.until(2, &mut checkpoints, |_, _| {}).unwrap();
    let first = folder.join("step-000000002");
    let written = |path: &Path| path.metadata().unwrap().modified().unwrap();
    let before = written(&first);
    assert_eq!(checkpoints.save_now(&run.trainer).unwrap(), first);
    assert_eq!((names(&folder), written(&first)), (steps(&[2]), before));
    drop(checkpoints);

    // In another process, with a value that is new.
    let mut checkpoints = builder().every_updates(2).open().unwrap();
    checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    assert_eq!(checkpoints.last(), Some(&*first));
    assert_eq!(checkpoints.save_now(&run.trainer).unwrap(), first);
    checkpoints.set("note", "the end").unwrap();
    checkpoints.metric("other", 1.);
    let again = checkpoints.save_now(&run.trainer).unwrap();
    assert_eq!(names(&folder), ["step-000000002-2"]);
    let saved = candle_headroom::checkpoint::Checkpoint::open(&again).unwrap();
    assert_eq!(
        (saved.metrics()["accuracy"], saved.metrics()["other"]),
        (0.9, 1.)
    );
    assert!(saved.metrics()["loss"] > 0.);

    // It is still the best one.
    checkpoints.metric("accuracy", 0.1);
    run.until(4, &mut checkpoints, |_, _| {}).unwrap();
    assert_eq!(names(&folder), ["step-000000002-2", "step-000000004"]);
    assert_eq!(checkpoints.best().unwrap(), Some(again));
    assert_eq!(checkpoints.last(), Some(&*folder.join("step-000000004")));
}

/// A checkpoint whose file was damaged since is written again.
#[test]
fn a_step_whose_checkpoint_is_damaged_is_saved_again() {
    let (_temporary, folder) = folder();
    let run = Run::new();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let path = checkpoints.save_now(&run.trainer).unwrap();
    let file = path.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    checkpoints.save_now(&run.trainer).unwrap();
    assert_eq!(names(&folder), ["step-000000000-2"]);
    assert_eq!(latest(&folder), Some(0));
}
