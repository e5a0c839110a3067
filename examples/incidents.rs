//! Lists a file of incidents and prints a summary: `cargo run --example incidents -- incidents.jsonl`.
//!
//! Without an argument it first writes such a file, from work with memory for 12 samples that is given 64.

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
        let task = incident.task.map_or(String::new(), |task| task.to_string());
        let (step, kind, text) = (incident.step, incident.kind, &incident.text);
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

/// Runs a short job with a monitor and writes its incidents to a file.
fn make() -> Result<PathBuf> {
    let path = env::temp_dir().join("incidents.jsonl");
    let _former = std::fs::remove_file(&path); // a log appends to an existing file
    let monitor = Monitor::builder().start()?;
    let log = IncidentLog::builder(&path).monitor(&monitor).open()?;
    let x = Tensor::randn(0f32, 1., (64, 8), &Device::Cpu)?;
    let mut processor = BatchProcessor::builder(Predictive::default())
        .observer(log)
        .build();
    processor.process(&x, |chunk, _| match chunk.dim(0)? {
        0..=12 => chunk.sqr()?.sum_all(),
        _ => candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY"),
    })?;
    Ok(path)
}
