//! How policies find, keep and recover micro-batch sizes: this crate's and those of other libraries on simulated devices,
//! and the default policy's predictions on real models.
//!
//! `cargo bench --bench adaptation [-- --quick]`

mod compare;
mod curves;
mod models;
mod others;
mod ours;
mod steps;
#[path = "../support/mod.rs"]
mod support;
mod tally;

use candle_headroom::{DeviceMemory, TrackingAllocator};
use support::{figure, is_quick, median};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn predict() -> candle_headroom::Result<()> {
    let steps = if is_quick() { 7 } else { 28 };
    let memory = DeviceMemory::host().open()?;
    let (mut errors, mut new_errors, mut over) = (Vec::new(), Vec::new(), Vec::new());
    for (name, run) in [
        (
            "transformer",
            models::transformer as fn(&DeviceMemory, usize) -> _,
        ),
        ("convolution", models::convolution),
    ] {
        println!("{name}, micro-batches of each step by budget");
        let shown: models::Shown = run(&memory, steps)?;
        let all = shown.peaks.iter().map(|peak| peak.error());
        let new = shown.peaks.iter().filter(|peak| peak.is_new);
        let new: Vec<f64> = new.map(|peak| peak.error()).collect();
        let highest = shown.over_limit.iter().copied().fold(0., f64::max);
        let prefix = format!("adaptation/{name}");
        figure(
            &format!("{prefix}/peak_prediction_error_median"),
            100. * median(new.clone()),
            "%",
        );
        figure(
            &format!("{prefix}/peak_prediction_error_median_all_sizes"),
            100. * median(all.clone().collect()),
            "%",
        );
        figure(&format!("{prefix}/peak_over_budget"), highest, "x");
        figure(
            &format!("{prefix}/failures"),
            shown.failures as f64,
            "failures",
        );
        errors.extend(all);
        new_errors.extend(new);
        over.push(highest);
    }
    let overrun = (over.into_iter().fold(0., f64::max) - 1f64).max(0.);
    // For sizes that had never run; the others are easy to predict.
    figure(
        "adaptation/peak_prediction_error_median",
        100. * median(new_errors),
        "%",
    );
    figure(
        "adaptation/peak_prediction_error_median_all_sizes",
        100. * median(errors),
        "%",
    );
    figure("adaptation/budget_overrun_worst", 100. * overrun, "%");
    Ok(())
}

fn main() -> candle_headroom::Result<()> {
    compare::compare();
    predict()
}
