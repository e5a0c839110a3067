use std::collections::BTreeSet;
use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::checkpoint::{Checkpoints, CheckpointsBuilder, Saving};
use candle_headroom::error::CheckpointError;
use candle_headroom::{AdaptiveTrainer, Error, Sgd};

use crate::server::Fault;
use crate::{SERVER, quick, with};

/// A model of one parameter, large enough that its file is uploaded in parts.
struct Run {
    w: Var,
    trainer: AdaptiveTrainer<Sgd>,
}

impl Run {
    fn new(elements: usize) -> Self {
        let w = Var::ones(elements, DType::F32, &Device::Cpu).unwrap();
        let optimizer = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1);
        let trainer = AdaptiveTrainer::builder(optimizer.build().unwrap());
        let trainer = trainer.build().unwrap();
        Self { w, trainer }
    }

    fn step(&mut self, checkpoints: &mut Checkpoints) -> Saving {
        let x = Tensor::ones((1, 1), DType::F32, &Device::Cpu).unwrap();
        let w = &self.w;
        let report = self.trainer.step(&x, |x, _| x.broadcast_mul(w)?.sum_all());
        let report = report.unwrap();
        let after = checkpoints.after(&report, &self.trainer).unwrap();
        after.continue_value().unwrap()
    }

    fn first(&self) -> f32 {
        self.w.get(0).unwrap().to_scalar().unwrap()
    }
}

fn builder(folder: &Path, run: &str) -> CheckpointsBuilder {
    let builder = Checkpoints::builder(folder).every_updates(1).keep_last(2);
    builder
        .in_foreground()
        .upload_to(format!("s3://checkpoints/{run}"))
}

fn open(folder: &Path, run: &str) -> Result<Checkpoints, Error> {
    with(quick(), || builder(folder, run).open())
}

/// The folders in the bucket, and whether each has a manifest.
fn copies(run: &str) -> BTreeSet<(String, bool)> {
    let names = SERVER.names(&format!("checkpoints/{run}/step-"));
    let folder = |name: &str| name.split('/').nth(2).unwrap().to_owned();
    let folders = names.iter().map(|name| folder(name));
    let manifest = |name: &str| names.contains(&format!("checkpoints/{run}/{name}/manifest.json"));
    folders
        .map(|name| {
            let is_whole = manifest(&name);
            (name, is_whole)
        })
        .collect()
}

fn step(number: u64) -> (String, bool) {
    (format!("step-{number:09}"), true)
}

#[test]
fn a_run_continues_on_another_machine() {
    let [here, there] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    // 12 MB: two parts.
    let mut run = Run::new(3_000_000);
    let mut checkpoints = open(here.path(), "moves").unwrap();
    for _ in 0..3 {
        assert!(matches!(run.step(&mut checkpoints), Saving::Saved(_)));
    }
    checkpoints.finish().unwrap();
    assert_eq!(copies("moves"), [step(2), step(3)].into());
    let model = "step-000000003/model.safetensors";
    let copy = SERVER.get(&format!("checkpoints/moves/{model}"));
    assert!(copy == std::fs::read(here.path().join(model)).unwrap());

    let mut other = Run::new(3_000_000);
    let mut checkpoints = open(there.path(), "moves").unwrap();
    let resumed = checkpoints
        .resume_trainer(&mut other.trainer)
        .unwrap()
        .unwrap();
    assert_eq!((resumed.step, other.trainer.updates()), (3, 3));
    assert_eq!(other.first(), run.first());
    assert!(matches!(other.step(&mut checkpoints), Saving::Saved(_)));
    assert_eq!(copies("moves"), [step(3), step(4)].into());
    drop(checkpoints);
    // The first machine finds what the other has saved.
    let mut checkpoints = open(here.path(), "moves").unwrap();
    let resumed = checkpoints
        .resume_trainer(&mut run.trainer)
        .unwrap()
        .unwrap();
    assert_eq!((resumed.step, run.first()), (4, other.first()));
}

/// Wherever an upload ends, the newest copy that has a manifest is whole, and the next save makes up for it.
#[test]
fn each_request_of_an_upload_fails() {
    for (number, name) in [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "manifest.json",
    ]
    .into_iter()
    .enumerate()
    {
        for fault in [Fault::Status(403), Fault::Status(503), Fault::NoAnswer] {
            let folder = tempfile::tempdir().unwrap();
            let run_name = format!("fails-{number}-{fault:?}").replace(['(', ')'], "-");
            let mut run = Run::new(10);
            let mut checkpoints = open(folder.path(), &run_name).unwrap();
            assert!(matches!(run.step(&mut checkpoints), Saving::Saved(_)));
            let file = format!("checkpoints/{run_name}/step-000000002/{name}");
            SERVER.fail(&file, (0..99).map(|at| (at, fault.clone())));
            let Saving::Failed(error) = run.step(&mut checkpoints) else {
                panic!("{file}")
            };
            let text = format!("{error} {error:?}");
            assert!(
                text.contains(&file.replace("checkpoints/", "s3://checkpoints/")),
                "{text}"
            );
            assert!(!text.contains("hunter") && error.is_checkpoint(), "{text}");
            assert!(copies(&run_name).contains(&step(1)) && !copies(&run_name).contains(&step(2)));
            // Another machine continues from the older one.
            let there = tempfile::tempdir().unwrap();
            let mut other = Run::new(10);
            let mut others = open(there.path(), &run_name).unwrap();
            assert_eq!(
                others
                    .resume_trainer(&mut other.trainer)
                    .unwrap()
                    .unwrap()
                    .step,
                1
            );
            SERVER.fail(&file, []);
            assert!(matches!(run.step(&mut checkpoints), Saving::Saved(_)));
            assert!(copies(&run_name).contains(&step(3)));
        }
    }
}

/// A passing failure is repeated, and nobody hears of it.
#[test]
fn a_passing_failure_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(10);
    let mut checkpoints = open(folder.path(), "passing").unwrap();
    let file = "checkpoints/passing/step-000000001/model.safetensors";
    SERVER.fail(file, [(0, Fault::Status(503)), (1, Fault::NoAnswer)]);
    assert!(matches!(run.step(&mut checkpoints), Saving::Saved(_)));
    assert_eq!(copies("passing"), [step(1)].into());
}

#[test]
fn damaged_copies_are_skipped() {
    let here = tempfile::tempdir().unwrap();
    let mut run = Run::new(10);
    let mut checkpoints = open(here.path(), "damaged").unwrap();
    for _ in 0..2 {
        run.step(&mut checkpoints);
    }
    drop(checkpoints);
    let file = |step: u64| format!("checkpoints/damaged/step-{step:09}/model.safetensors");
    damage(&file(2));
    let there = tempfile::tempdir().unwrap();
    let mut other = Run::new(10);
    let mut checkpoints = open(there.path(), "damaged").unwrap();
    assert_eq!(
        checkpoints
            .resume_trainer(&mut other.trainer)
            .unwrap()
            .unwrap()
            .step,
        1
    );
    drop(checkpoints);
    // Nothing is left but damage: the run does not begin anew without a word.
    damage(&file(1));
    let nowhere = tempfile::tempdir().unwrap();
    let Err(Error::Checkpoint(error)) = open(nowhere.path(), "damaged") else {
        panic!("damaged")
    };
    let CheckpointError::NoneIntact { skipped, .. } = *error else {
        panic!("{error}")
    };
    assert_eq!(skipped.len(), 2);
    assert!(
        skipped[0].problem.contains("model.safetensors"),
        "{}",
        skipped[0]
    );
    let left = std::fs::read_dir(nowhere.path()).unwrap();
    let left: Vec<_> = left
        .map(|it| it.unwrap().file_name())
        .filter(|it| it != ".lock")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

fn damage(file: &str) {
    let mut bytes = SERVER.get(file);
    *bytes.last_mut().unwrap() ^= 1;
    SERVER.put(file, bytes);
}

/// A copy that was cut, and one whose damage was found when the run was resumed.
#[test]
fn damaged_copies_are_replaced() {
    let [here, there] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let model = |step: u64| format!("step-{step:09}/model.safetensors");
    let copy = |step| format!("checkpoints/replaced/{}", model(step));
    let is_whole = |step, folder: &tempfile::TempDir| {
        SERVER.get(&copy(step)) == std::fs::read(folder.path().join(model(step))).unwrap()
    };
    let mut run = Run::new(10);
    let mut checkpoints = open(here.path(), "replaced").unwrap();
    run.step(&mut checkpoints);
    SERVER.put(&copy(1), b"cut".to_vec());
    checkpoints.save_now(&run.trainer).unwrap();
    assert!(is_whole(1, &here));
    run.step(&mut checkpoints);
    drop(checkpoints);

    damage(&copy(2));
    let mut other = Run::new(10);
    let mut checkpoints = open(there.path(), "replaced").unwrap();
    let resumed = checkpoints.resume_trainer(&mut other.trainer).unwrap();
    assert_eq!(resumed.unwrap().step, 1);
    other.step(&mut checkpoints);
    assert!(is_whole(2, &there));
    assert_eq!(copies("replaced"), [step(1), step(2)].into());
}

/// What an upload that failed has left is none of the copies that stay.
#[test]
fn incomplete_copies_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(10);
    let mut checkpoints = open(folder.path(), "incomplete").unwrap();
    run.step(&mut checkpoints);
    run.step(&mut checkpoints);
    let file = "checkpoints/incomplete/step-000000003/state.json";
    SERVER.fail(file, (0..9).map(|at| (at, Fault::Status(403))));
    assert!(matches!(run.step(&mut checkpoints), Saving::Failed(_)));
    assert_eq!(copies("incomplete").len(), 3);
    run.step(&mut checkpoints);
    assert_eq!(copies("incomplete"), [step(2), step(4)].into());
}

/// The newest checkpoint in the folder is damaged, and its copy is not.
#[test]
fn a_copy_replaces_a_damaged_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(10);
    let mut checkpoints = open(folder.path(), "own").unwrap();
    run.step(&mut checkpoints);
    run.step(&mut checkpoints);
    drop(checkpoints);
    std::fs::write(folder.path().join("step-000000002/state.json"), "{}").unwrap();
    let mut checkpoints = open(folder.path(), "own").unwrap();
    let resumed = checkpoints.resume_trainer(&mut run.trainer).unwrap();
    assert_eq!(resumed.unwrap().step, 2);
    run.step(&mut checkpoints);
    let names = ["step-000000002-2", "step-000000003"].map(|name| folder.path().join(name));
    assert!(names.iter().all(|name| name.exists()));
}

/// Parts that stay cost money.
#[test]
fn an_upload_that_fails_is_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(3_000_000);
    let mut checkpoints = open(folder.path(), "parts").unwrap();
    let file = "checkpoints/parts/step-000000001/model.safetensors";
    SERVER.fail(file, (1..99).map(|at| (at, Fault::Status(403))));
    assert!(matches!(run.step(&mut checkpoints), Saving::Failed(_)));
    let requests = SERVER.requests(file);
    assert!(
        requests.iter().any(|it| it.starts_with("DELETE")),
        "{requests:?}"
    );
}

/// The cache has room for what is read again.
#[test]
fn checkpoints_are_not_cached() {
    let [here, there, cache] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let mut run = Run::new(10);
    run.step(&mut open(here.path(), "uncached").unwrap());
    let settings = quick().cache(cache.path(), candle_headroom::ByteSize::mib(64));
    let fetched = with(settings, || builder(there.path(), "uncached").open());
    fetched.unwrap();
    assert!(there.path().join("step-000000001").exists());
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
}

/// The store's pauses between attempts have random parts, of which none is 0.
#[test]
fn uploads_without_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::new(10);
    let settings = quick().pause(std::time::Duration::ZERO);
    let mut checkpoints = with(settings, || builder(folder.path(), "pause").open()).unwrap();
    let file = "checkpoints/pause/step-000000001/model.safetensors";
    SERVER.fail(file, [(0, Fault::Status(503))]);
    assert!(matches!(run.step(&mut checkpoints), Saving::Saved(_)));
}

#[test]
fn what_is_no_bucket_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for url in [
        SERVER.url("run-7"),
        "runs/run-7".to_owned(),
        "s3:/bucket".to_owned(),
    ] {
        let builder = Checkpoints::builder(folder.path()).upload_to(&url);
        let error = with(quick(), || builder.open()).unwrap_err();
        assert!(
            error.is_checkpoint() && error.to_string().contains("is not a folder of a bucket"),
            "{error}"
        );
    }
    SERVER.fail("checkpoints", []);
    let error = with(quick(), || {
        Checkpoints::builder(folder.path())
            .upload_to("s3://no:hunter2@b/x")
            .open()
    })
    .unwrap_err();
    assert!(
        !format!("{error} {error:?}").contains("hunter2"),
        "{error:?}"
    );
}
