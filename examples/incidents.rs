//! Reads a file of incidents back and says what it comes down to: `cargo run --example incidents -- incidents.jsonl`.
//!
//! Without a file it makes one first, of a model that has room for 12 samples and is given 64.

use std::env;
use std::path::PathBuf;

use anyhow::Result;
use candle_core::{Device, Tensor};
use candle_headroom::batch::BatchProcessor;
use candle_headroom::incident::{IncidentLog, Incidents};
use candle_headroom::{Monitor, Predictive};

fn main() -> Result<()> {
    let path = match env::args().nth(1) {
        Some(path) => PathBuf::from(path),
        None => make()?,
    };
    let incidents = Incidents::read(&path)?;
    for incident in &incidents.list {
        let task = incident.task.as_deref().unwrap_or_default();
        let (step, kind, text) = (incident.step, &incident.kind, &incident.text);
        println!("{task} {step:>4}  {kind:<10} {text}");
        if let Some(plan) = &incident.plan {
            println!("  {:<24}{plan}", "");
        }
    }
    if incidents.unreadable > 0 {
        println!("{} lines cannot be read", incidents.unreadable);
    }
    println!("\n{}", incidents.summary());
    Ok(())
}

/// A short job with a monitor, whose incidents go to a file.
fn make() -> Result<PathBuf> {
    let path = env::temp_dir().join("incidents.jsonl");
    let _former = std::fs::remove_file(&path); // of another run; a log goes on with what is there
    let monitor = Monitor::builder().start()?;
    let log = IncidentLog::open(&path)?.monitor(&monitor);
    let x = Tensor::randn(0f32, 1., (64, 8), &Device::Cpu)?;
    let mut processor = BatchProcessor::builder(Predictive::new())
        .observer(log)
        .build();
    processor.process(&x, |chunk, _| match chunk.dim(0)? {
        0..=12 => chunk.sqr()?.sum_all(),
        _ => candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY"),
    })?;
    Ok(path)
}
