use std::time::Duration;

use candle_core::{DType, Var};
use candle_headroom::checkpoint::{Checkpoint, Saving};
use candle_headroom::error::CheckpointError;
use candle_headroom::optim::StateDict;
use candle_headroom::{AdamW, Error, GradientAccumulator};

use super::run::{differing, uninterrupted};
use super::*;

/// After every step once: the rest of the run is the same, bit by bit.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let whole = uninterrupted(9);
    for interrupted in 0..9 {
        let (_temporary, folder) = folder();
        train(&folder, interrupted, 1);
        let builder = Checkpoints::builder(&folder)
            .every_updates(2)
            .in_foreground();
        let mut checkpoints = builder.open().unwrap();
        let mut run = Run::new();
        let resumed = checkpoints.resume_trainer(&mut run.trainer).unwrap();
        assert_eq!(
            resumed.map(|it| it.step),
            (interrupted > 0).then_some(interrupted)
        );
        run.until(9, &mut checkpoints, |run, _| {
            let step = run.trainer.updates() as usize;
            assert_eq!(differing(&run.bits(), &whole[step]), 0, "step {step}");
        })
        .unwrap();
        checkpoints.finish().unwrap();
        assert_eq!(latest(&folder), Some(8));
    }
}

#[test]
fn a_checkpoint_holds_named_files_that_others_can_read() {
    let (_temporary, folder) = folder();
    train(&folder, 3, 3);
    let path = folder.join("step-000000003");
    assert_eq!(
        names(&path),
        [
            "manifest.json",
            "model.safetensors",
            "optimizer.safetensors",
            "state.json"
        ]
    );
    let model = StateDict::load(path.join("model.safetensors")).unwrap();
    assert_eq!(model.tensors["layer.weight"].dims(), [3, 2]);
    assert_eq!(model.metadata["format"], "pt");
    let optimizer = StateDict::load(path.join("optimizer.safetensors")).unwrap();
    assert!(optimizer.tensors.contains_key("layer.bias.exp_avg_sq"));
    let text = std::fs::read_to_string(path.join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(state["step"], 3);
    assert!(state["metrics"]["loss"].as_f64().unwrap() > 0.);
}

#[test]
fn values_of_the_caller_come_back() {
    let (_temporary, folder) = folder();
    let run = Run::new();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    checkpoints.set("sampler", &(3, "x", 0.1)).unwrap();
    checkpoints.set("old", &1).unwrap();
    checkpoints.save_now(&run.trainer).unwrap();
    drop(checkpoints);

    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    checkpoints.set("old", &2).unwrap();
    let mut run = Run::new();
    checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    let sampler: (i32, String, f64) = checkpoints.get("sampler").unwrap().unwrap();
    assert_eq!(sampler, (3, "x".to_owned(), 0.1));
    assert_eq!(checkpoints.get::<i32>("old").unwrap(), Some(1));
    assert_eq!(checkpoints.get::<i32>("none").unwrap(), None);
    let error = checkpoints.get::<i32>("sampler").unwrap_err();
    assert!(error.to_string().contains("`sampler`"), "{error}");
    let keys = std::collections::HashMap::from([((1, 2), 3)]);
    let error = checkpoints.set("keys", &keys).unwrap_err();
    assert!(error.is_checkpoint(), "JSON has no such keys: {error}");
    // Nor has it these numbers, at any depth.
    #[derive(serde::Serialize)]
    enum Kind {
        One { x: f64 },
        Two(Vec<Option<f32>>),
    }
    let limits = std::collections::BTreeMap::from([("a", 1.), ("b", f64::NAN)]);
    for error in [
        checkpoints.set("best", &f64::INFINITY),
        checkpoints.set("best", &Kind::One { x: f64::NAN }),
        checkpoints.set("best", &Kind::Two(vec![None, Some(f32::NEG_INFINITY)])),
        checkpoints.set("best", &(1, "x", limits)),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("`best`") && error.contains("is not finite"),
            "{error}"
        );
    }
    assert_eq!(checkpoints.get::<f64>("best").unwrap(), None);
    checkpoints
        .set("best", &Kind::Two(vec![None, Some(1.)]))
        .unwrap();
    checkpoints.set("best", &None::<f64>).unwrap();
    assert_eq!(checkpoints.get::<Option<f64>>("best").unwrap(), Some(None));
}

/// bf16, f64, u8 and i64 parameters, an empty one and a scalar, and one that shares its storage with others.
#[test]
fn every_type_and_shape_comes_back() {
    let vars = || {
        let mut vars = Vec::new();
        let types = [DType::BF16, DType::F16, DType::F32, DType::F64];
        for (index, dtype) in types.into_iter().enumerate() {
            for (place, shape) in [vec![7], vec![], vec![2, 3, 1]].into_iter().enumerate() {
                let values = crate::support::wave(shape.iter().product(), index, dtype).unwrap();
                let var = Var::from_tensor(&values.reshape(shape).unwrap()).unwrap();
                vars.push((format!("{dtype:?}.{place}"), var));
            }
        }
        vars
    };
    let accumulator = |vars: &[(String, Var)]| {
        let optimizer = AdamW::builder(vars.to_vec()).build().unwrap();
        GradientAccumulator::builder(optimizer).build().unwrap()
    };
    let (_temporary, folder) = folder();
    let (saved, loaded) = (vars(), vars());
    for (_, var) in &loaded {
        var.set(&var.zeros_like().unwrap()).unwrap();
    }
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    checkpoints.save_now(&accumulator(&saved)).unwrap();
    checkpoints
        .resume_trainer(&mut accumulator(&loaded))
        .unwrap()
        .unwrap();
    for ((name, a), (_, b)) in saved.iter().zip(&loaded) {
        assert_eq!(crate::support::flat(a), crate::support::flat(b), "{name}");
    }
    assert!(
        saved
            .iter()
            .any(|(_, var)| crate::support::flat(var).iter().any(|v| *v != 0.))
    );
}

#[test]
fn steps_and_time_say_when() {
    let hour = Duration::from_secs(3600);
    for (every, time, expected) in [
        (Some(3), Some(hour), vec![3, 6]),
        (None, Some(hour), vec![]),
        (Some(7), Some(Duration::from_nanos(1)), (1..=8).collect()),
        (None, None, vec![]),
    ] {
        let (_temporary, folder) = folder();
        let mut builder = Checkpoints::builder(&folder).in_foreground();
        if let Some(every) = every {
            builder = builder.every_updates(every);
        }
        if let Some(time) = time {
            builder = builder.every_duration(time);
        }
        let mut checkpoints = builder.open().unwrap();
        let (mut run, mut saved) = (Run::new(), Vec::new());
        run.until(8, &mut checkpoints, |run, saving| match saving {
            Saving::Saved(_) => saved.push(run.trainer.updates()),
            other => assert!(matches!(other, Saving::NotDue), "{other:?}"),
        })
        .unwrap();
        assert_eq!(saved, expected, "every {every:?}, {time:?}");
    }
}

#[test]
fn settings_of_zero_and_a_second_writer_are_refused() {
    let (_temporary, folder) = folder();
    for builder in [
        Checkpoints::builder(&folder).every_updates(0),
        Checkpoints::builder(&folder).every_duration(Duration::ZERO),
        Checkpoints::builder(&folder).keep_last(0),
        Checkpoints::builder(&folder).shard_size(candle_headroom::ByteSize(0)),
    ] {
        let error = builder.open().unwrap_err();
        assert!(error.is_checkpoint(), "{error}");
        assert!(error.to_string().contains("must be above 0"), "{error}");
    }
    assert!(!folder.exists(), "nothing was created");
    let first = Checkpoints::builder(&folder).open().unwrap();
    let error = Checkpoints::builder(&folder).open().unwrap_err();
    let Error::Checkpoint(error) = error else {
        panic!("{error}")
    };
    assert!(matches!(*error, CheckpointError::InUse(_)), "{error}");
    drop(first);
    Checkpoints::builder(&folder).open().unwrap();
}

/// Other ranks read the checkpoint of the one that writes, while it has the folder.
#[test]
fn several_trainers_resume_from_one_checkpoint() {
    let (_temporary, folder) = folder();
    train(&folder, 4, 2);
    let mut writer = Run::new();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let resumed = checkpoints
        .resume_trainer(&mut writer.trainer)
        .unwrap()
        .unwrap();
    for _ in 0..2 {
        let mut reader = Run::new();
        let checkpoint = Checkpoint::open(&resumed.path).unwrap();
        checkpoint.resume(&mut reader.trainer).unwrap();
        assert_eq!(differing(&reader.bits(), &writer.bits()), 0);
        assert_eq!(reader.trainer.updates(), 4);
    }
}

/// A run that did not resume must not overwrite, or be hidden by, one that came before.
#[test]
fn a_new_run_in_the_folder_of_another_is_refused() {
    let (_temporary, folder) = folder();
    train(&folder, 4, 2);
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(2)
        .open()
        .unwrap();
    let mut run = Run::new();
    let report = run.step().unwrap();
    for error in [
        checkpoints.after(&report, &run.trainer).unwrap_err(),
        checkpoints.save_now(&run.trainer).unwrap_err(),
    ] {
        let text = format!(
            "{} holds step 4, and this run did not resume",
            folder.display()
        );
        assert!(error.to_string().starts_with(&text), "{error}");
        assert!(error.to_string().contains("`resume`") && error.is_checkpoint());
    }
    assert_eq!(names(&folder), ["step-000000002", "step-000000004"]);
    assert_eq!(
        Checkpoint::latest(folder.join("none"))
            .unwrap()
            .map(|it| it.step()),
        None
    );
}

#[test]
fn a_step_that_is_saved_twice_is_there_once() {
    let (_temporary, folder) = folder();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    let run = Run::new();
    for value in 1..=3 {
        checkpoints.set("value", &value).unwrap();
        checkpoints.save_now(&run.trainer).unwrap();
    }
    assert_eq!(names(&folder), ["step-000000000-3"]);
    let latest = Checkpoint::latest(&folder).unwrap().unwrap();
    assert_eq!(latest.get::<i32>("value").unwrap(), Some(3));
}
