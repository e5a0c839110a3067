//! What a checkpoint of a sharded optimizer takes on each rank, measured on two sizes of a model; and by the same formula, which the measured files
//! have to follow, that of models of 7 and 70 billion parameters.

use std::fs;
use std::ops::ControlFlow::Continue;
use std::path::Path;

use candle_core::DType;
use candle_headroom::checkpoint::{Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer};

use crate::launch::together;
use crate::model::{Model, data};

/// Bytes for each parameter: of the model, and of AdamW's two moments.
const MODEL: u64 = 4;
const STATE: u64 = 8;

/// What a rank took for a model of one size.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// Bytes of this rank's part of the optimizer's state, and of all files that it writes.
    part: u64,
    written: u64,
    /// The most memory besides what was in use before.
    saving: u64,
    loading: u64,
}

/// Runs this, and returns how much more memory of the host it took at its peak than before.
fn peak(work: impl FnOnce()) -> u64 {
    let status = |name: &str| {
        let text = fs::read_to_string("/proc/self/status").expect("Linux");
        let line = text.lines().find(|line| line.starts_with(name));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.expect("a number") << 10
    };
    // SAFETY: it takes no pointer, and gives back only memory that is free.
    unsafe { libc::malloc_trim(0) };
    // Begins to measure the peak anew.
    fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own");
    let before = status("VmRSS");
    work();
    status("VmHWM") - before
}

fn take(group: &Group, width: usize, folder: &Path) -> Taken {
    let widths = [width; 4];
    let make = |seed| {
        let model = Model::new(&widths, DType::F32, seed);
        let adamw = AdamW::builder(&model.varmap).learning_rate(0.01).sharded();
        let trainer = AdaptiveTrainer::builder(adamw.build().expect("an optimizer")).group(group);
        (model, trainer.build().expect("a trainer"))
    };
    let open = || {
        let checkpoints = Checkpoints::builder(folder).group(group).every_updates(1);
        checkpoints.open().expect("checkpoints")
    };
    let (rank, size) = (group.rank(), group.size());
    let (model, mut trainer) = make(1);
    let batch = data(2, (width, width), DType::F32, rank as u64);
    let report = trainer
        .step(&batch, |(x, y), _| model.loss(&x, &y))
        .expect("a step");
    let mut checkpoints = open();
    // In the background, with rank 0's copy of the model.
    let saving = peak(|| {
        let began = checkpoints.after(&report, &trainer).expect("a checkpoint");
        assert!(matches!(began, Continue(Saving::Started)), "{began:?}");
        checkpoints.finish().expect("an end");
    });
    drop((trainer, model));
    let bytes = |name: &str| {
        fs::metadata(folder.join("step-000000001").join(name)).map_or(0, |it| it.len())
    };
    let part = bytes(&format!(
        "optimizer-rank-{rank:05}-of-{size:05}.safetensors"
    ));
    let model = if rank == 0 {
        bytes("model.safetensors")
    } else {
        0
    };

    let parameters = 3 * (width * width + width) as u64;
    let is_about = |bytes: u64, expected: u64| bytes.abs_diff(expected) < 20_000;
    assert!(is_about(part, STATE * parameters / size as u64), "{part}");
    assert!(rank > 0 || is_about(model, MODEL * parameters), "{model}");

    let (_other, mut trainer) = make(2);
    let mut checkpoints = open();
    let loading = peak(|| {
        let resumed = checkpoints
            .resume_trainer(&mut trainer)
            .expect("a checkpoint");
        assert!(resumed.is_some());
    });
    group.barrier().expect("all have loaded it");
    Taken {
        part,
        written: part + model,
        saving,
        loading,
    }
}

fn check(group: &Group) {
    let parent = std::os::unix::process::parent_id();
    let folder = std::env::temp_dir().join(format!("headroom-sizes-{parent}"));
    let [small, large] =
        [1024, 2560].map(|width| take(group, width, &folder.join(width.to_string())));
    // Between two sizes what does not grow with the model drops out.
    let more = |of: fn(&Taken) -> u64| (of(&large) as f64) - (of(&small) as f64);
    let own = more(|it| it.written);
    let copies = [
        more(|it| it.saving) / own,
        more(|it| it.loading) / more(|it| it.part),
    ];
    let all = group.collect(Ok(vec![copies])).expect("all ranks'");
    if group.rank() == 0 {
        let size = group.size();
        for (rank, [saving, loading]) in all.iter().enumerate().take(2) {
            println!("figure: checkpoint/copies_saving_{size}_ranks_rank_{rank} = {saving:.3} x");
            println!("figure: checkpoint/copies_loading_{size}_ranks_rank_{rank} = {loading:.3} x");
        }
        fs::remove_dir_all(&folder).expect("the folder");
    }
    for (rank, [saving, _]) in all.into_iter().enumerate() {
        assert!(saving <= 1.1, "rank {rank} of {}: {saving}", group.size());
    }
}

#[test]
fn on_two_ranks() {
    together(2, check);
}

#[test]
fn on_four_ranks() {
    together(4, check);
}
