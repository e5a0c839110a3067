//! The incident log: complete, in order, bounded, and never in the way of the work.

mod contents;
mod files;

use std::fs;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Halving;
use candle_headroom::error::Phase;
use candle_headroom::incident::{IncidentKind, IncidentLog, Incidents};
use candle_headroom::testing::{self, Faults};
use candle_headroom::{AdaptiveTrainer, ByteSize, Error, Sgd};

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("headroom-{}-{name}.jsonl", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

/// A step in which memory runs out twice, in the backward pass.
fn step(log: &IncidentLog) {
    let w = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let optimizer = Sgd::builder(vec![w.clone()])
        .learning_rate(0.1)
        .build()
        .unwrap();
    let builder = AdaptiveTrainer::builder(optimizer);
    let policy = Halving::builder().start(8).build().unwrap();
    let builder = builder.policy(policy).observer(log.clone());
    let mut trainer = builder.build().unwrap();
    let x = Tensor::ones((8, 2), DType::F32, &Device::Cpu).unwrap();
    let _armed = Faults::in_phase(Phase::Backward, 0).times(2).arm();
    let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.sqr()?.mean_all());
    assert_eq!(report.unwrap().retries, 2);
}
