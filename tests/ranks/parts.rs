//! Each rank writes its part of a sharded optimizer's state into a file of its own.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow::Continue;
use std::path::Path;

use candle_core::DType;
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::CheckpointError;
use candle_headroom::optim::StateDict;
use candle_headroom::testing::FileFaults;
use candle_headroom::train::StepReport;
use candle_headroom::{AdamW, AdaptiveTrainer};

use crate::launch::together;
use crate::model::{Model, data};
use crate::run::{folder, same};

const WIDTHS: [usize; 4] = [300, 211, 77, 5];

struct Sharded {
    model: Model,
    trainer: AdaptiveTrainer<AdamW>,
    rank: u64,
}

impl Sharded {
    fn new(group: &Group) -> Self {
        let model = Model::new(&WIDTHS, DType::F32, 1);
        let adamw = AdamW::builder(&model.varmap).learning_rate(0.01);
        let optimizer = adamw.sharded().build().expect("an optimizer");
        let trainer = AdaptiveTrainer::builder(optimizer).group(group).build();
        Self {
            model,
            trainer: trainer.expect("a trainer"),
            rank: group.rank() as u64,
        }
    }

    fn step(&mut self) -> StepReport {
        let seed = self.trainer.updates() * 8 + self.rank;
        let batch = data(4, (WIDTHS[0], WIDTHS[3]), DType::F32, seed);
        let report = (self.trainer).step(&batch, |(x, y), _| self.model.loss(&x, &y));
        report.expect("a step")
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().expect("a folder");
    let names = entries.map(|entry| entry.expect("a file").file_name().into_string());
    let mut names: Vec<_> = names.map(|name| name.expect("a name")).collect();
    names.sort();
    names
}

fn contents(state: &StateDict) -> BTreeMap<&String, Vec<f64>> {
    let tensors = state.tensors.iter();
    let values = tensors.map(|(name, tensor)| {
        let values = tensor.to_dtype(DType::F64).and_then(|it| it.flatten_all());
        let values = values.and_then(|values| values.to_vec1());
        (name, values.expect("values"))
    });
    values.collect()
}

/// In a folder that all share, and where the other ranks have their own disks.
#[test]
fn each_part_is_a_file_where_all_see_the_folder() {
    together(3, |group| {
        let (_made, shared) = folder(group);
        let is_first = group.rank() == 0;
        let mut run = Sharded::new(group);
        run.step();
        let open = |folder: &Path| {
            let checkpoints = Checkpoints::builder(folder).in_foreground().group(group);
            checkpoints.open().expect("a folder")
        };
        let mut checkpoints = open(&shared);
        let armed = FileFaults::in_folder(&shared).arm();
        let path = checkpoints.save_now(&run.trainer).expect("a checkpoint");
        // Its own file: made, written, flushed, and the folder.
        assert!(is_first || armed.operations() == 4);
        drop(armed);
        let again = checkpoints.save_now(&run.trainer).expect("the same");
        assert_eq!(same(group, &path), same(group, &again));
        checkpoints.finish().expect("an end");

        let elsewhere = tempfile::tempdir().expect("a folder");
        let own = match group.rank() {
            0 => shared.with_file_name("another"),
            1 => elsewhere.path().to_owned(),
            _ => elsewhere.path().join("none"),
        };
        let mut checkpoints = open(&own);
        let sent = checkpoints.save_now(&run.trainer).expect("a checkpoint");
        checkpoints.finish().expect("an end");
        let whole = run.trainer.state().expect("the state");
        if !is_first {
            assert!(names(elsewhere.path()).is_empty());
            return;
        }
        let part = |rank| format!("optimizer-rank-0000{rank}-of-00003.safetensors");
        let whole_file = vec!["optimizer.safetensors".to_owned()];
        for (path, state) in [(&path, [0, 1, 2].map(part).into()), (&sent, whole_file)] {
            let mut files = vec!["manifest.json".to_owned(), "model.safetensors".to_owned()];
            files.extend(state);
            files.push("state.json".to_owned());
            assert_eq!(names(path), files);
            let checkpoint = Checkpoint::open(path).expect("a checkpoint");
            let state = checkpoint.state().expect("a state");
            assert_eq!(contents(&state), contents(&whole));
        }
        assert_eq!(names(&shared), [".lock", "step-000000001"]);
    });
}

/// Nothing of a part that could not be written is taken for a checkpoint, and training goes on.
#[test]
fn a_failure_of_one_rank_is_one_of_saving_on_all() {
    together(3, |group| {
        let (_made, folder) = folder(group);
        let mut run = Sharded::new(group);
        let checkpoints = Checkpoints::builder(&folder).every_updates(1).keep_last(1);
        let mut checkpoints = checkpoints
            .in_foreground()
            .group(group)
            .open()
            .expect("a folder");
        for point in 0..4 {
            let full = FileFaults::in_folder(&folder).at(point);
            let full = full.failing_with(ErrorKind::StorageFull);
            let armed = (group.rank() == 1).then(|| full.arm());
            let report = run.step();
            let saving = checkpoints.after(&report, &run.trainer).expect("no error");
            let Continue(Saving::Failed(error)) = saving else {
                panic!("{saving:?}")
            };
            let is_typed = match error.downcast_ref() {
                Some(CheckpointError::File { .. }) => group.rank() == 1,
                _ => error.is_checkpoint() && group.rank() != 1,
            };
            assert!(is_typed, "{error}");
            let of_peer = error
                .to_string()
                .starts_with("rank 1 could not write a checkpoint: ");
            assert_eq!(of_peer, group.rank() != 1, "{error}");
            assert!(checkpoints.last_error().is_some());
            assert!(armed.is_none_or(|armed| armed.fired() == 1));
            let before = format!("step-{:09}", 2 * point);
            let left = names(&folder);
            assert!(group.rank() > 0 || left.iter().all(|it| *it == ".lock" || *it == before));
            group.barrier().expect("all have looked");

            let report = run.step();
            let saving = checkpoints.after(&report, &run.trainer).expect("no error");
            assert!(matches!(saving, Continue(Saving::Saved(_))), "{saving:?}");
            assert!(checkpoints.last_error().is_none());
        }
        checkpoints.finish().expect("an end");
    });
}
