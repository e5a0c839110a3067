//! A trainer's steps: phases, what is held outside of layers, recomputation.

use candle_core::{DType, Device};
use candle_headroom::batch::{Fixed, Recompute, Task};
use candle_headroom::layers::{LayerMemory, LayerReport, RowKind};
use candle_headroom::nn::{VarBuilder, VarMap};
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};

use super::spanned::{Sizes, Spanned};
use super::{names, row, watched};
use crate::support::alone;

const SIZES: Sizes = Sizes {
    vocabulary: 256,
    width: 64,
    heads: 4,
    blocks: 4,
};

/// Of a micro-batch, so that its tensors are far larger than what threads and the test harness keep.
const SAMPLES: usize = 32;
const TIME: usize = 64;
/// The bytes of a block's output.
const WIDE: u64 = (SAMPLES * TIME * 64 * 4) as u64;

/// Two steps of two micro-batches each, of which the second is reported.
fn train(layers: &LayerMemory, recompute: Recompute) -> LayerReport {
    let memory = DeviceMemory::host().open().unwrap();
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let mut model = Spanned::new(SIZES, vb).unwrap();
    model.marks_blocks = true;
    let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build().unwrap();
    let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let builder = builder.policy(Fixed::new(SAMPLES).unwrap());
    let mut trainer = builder.recompute(recompute).build().unwrap();
    let batch = SIZES.batch(2 * SAMPLES, TIME).unwrap();
    for _ in 0..2 {
        let loss = |(x, y), _: &_| model.loss(&x, &y);
        trainer.step(&batch, loss).unwrap();
    }
    layers.report()
}

/// At least this much is attributed.
const MOST: f64 = 0.97;

/// The bytes in use after a step, from which on the threads of matrix products keep what they keep, 1 MiB each.
fn warmed() -> u64 {
    watched(|layers| train(layers, Recompute::Never));
    in_use()
}

/// Of what came on top of what was there before, such as the tables of an earlier backtrace, all but a few percent.
fn assert_attributed(report: &LayerReport, before: u64) {
    let peak = report.peak.expect("memory is counted");
    let attributed = report.attributed().expect("memory is counted");
    let rest = (1. - attributed) * peak as f64 - before as f64;
    let share = 1. - rest / (peak - before) as f64;
    assert!(share > MOST, "{share} of {peak}, {before} before");
}

fn in_use() -> u64 {
    DeviceMemory::host().open().unwrap().in_use().unwrap()
}

fn at_peak(report: &LayerReport, name: &str) -> u64 {
    row(report, name).at_peak.expect("memory is counted")
}

#[test]
fn the_peak_of_a_step_belongs_to_layers_and_to_what_a_trainer_holds() {
    let _alone = alone();
    let before = warmed();
    let report = watched(|layers| train(layers, Recompute::Never));
    println!("{report}");
    let work = report.work.expect("a trainer's");
    assert_eq!(
        (work.task, work.step, work.samples),
        (Task::Training, 1, SAMPLES)
    );
    let folded = report.folded();
    let parameters = at_peak(&report, "parameters");
    assert_eq!(at_peak(&report, "accumulated gradients"), parameters);
    assert_eq!(at_peak(&report, "optimizer state"), 2 * parameters);
    // Attention keeps its norm's output, q, k, v, what was mixed and the projection; the hidden layer and its gelu are 4 wide each.
    let wide = 4 * WIDE;
    for (layer, widths) in [("attn", 5), ("mlp", 9)] {
        let bytes = at_peak(&folded, &format!("model.block.*.{layer}"));
        assert!(
            bytes >= widths * wide && bytes < (widths + 5) * wide,
            "{layer}: {bytes} of {wide}"
        );
    }
    assert_eq!(row(&folded, "model.block.*.mlp").calls, 4);
    assert_attributed(&report, before);
    assert_eq!(report.peak_at.first().map(String::as_str), Some("backward"));
    let sum: u64 = report.rows.iter().filter_map(|row| row.at_peak).sum();
    assert_eq!(Some(sum), report.peak);
    let backward = row(&report, "backward");
    assert!(backward.kind == RowKind::Phase && backward.at_peak > Some(0));
}

#[test]
fn recomputed_layers_are_told_apart() {
    let _alone = alone();
    let before = warmed();
    let kept = watched(|layers| train(layers, Recompute::Never));
    let report = watched(|layers| train(layers, Recompute::Always));
    println!("{}", report.table(40));
    let mlp = |report: &LayerReport, suffix: &str| {
        let name = format!("model.block.*.mlp{suffix}");
        let folded = report.folded();
        (
            row(&folded, &name).calls,
            row(&folded, &name).at_peak.unwrap_or(0),
        )
    };
    assert_eq!(mlp(&report, "").0, 4);
    assert_eq!(mlp(&report, " (recompute)").0, 4);
    // Numbers are those of the forward pass, though the last block is recomputed first.
    for block in 0..4 {
        row(&report, &format!("model.block.{block}.mlp (recompute)"));
    }
    let (_, held) = mlp(&kept, "");
    let (_, first) = mlp(&report, "");
    assert!(first < held / 8, "{first} of {held}");
    assert!(report.peak < kept.peak);
    // Each block keeps its output only, and nodes of the graph.
    let block = row(&report.folded(), "model.block.*").held.unwrap();
    assert!(
        (block - 4 * WIDE as i64).unsigned_abs() < WIDE / 2,
        "{block}"
    );
    // The peak is in the recomputation of one block, or in the backward pass of the head.
    let (_, again) = mlp(&report, " (recompute)");
    assert!(again <= held / 4 + held / 16, "{again} of {held}");
    assert_attributed(&report, before);
}

#[test]
fn an_evaluation_is_a_step_of_its_own() {
    let _alone = alone();
    watched(|layers| {
        let memory = DeviceMemory::host().open().unwrap();
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let model = Spanned::new(Sizes::SMALL, vb).unwrap();
        let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build().unwrap();
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .memory(&memory)
            .build()
            .unwrap();
        let batch = Sizes::SMALL.batch(32, 32).unwrap();
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
        let training = layers.report();
        trainer
            .evaluate(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
        let evaluation = layers.report();
        let task = |report: &LayerReport| report.work.map(|work| work.task);
        assert_eq!(
            (task(&training), task(&evaluation)),
            (Some(Task::Training), Some(Task::Evaluation))
        );
        assert_eq!(names(&training), names(&evaluation));
    });
}
