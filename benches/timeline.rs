//! The cost of a timeline and an incident log: a trainer with both against the same trainer without.
//!
//! `cargo bench --bench timeline [-- --quick]`

mod support;

use candle_headroom::batch::{BatchPolicy, Completed, Failed, Fixed, Plan};
use candle_headroom::incident::IncidentLog;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Predictive, Timeline, TrackingAllocator};
use support::transformer::Config;
use support::{Contender, Job, alternate, figure, is_quick, measures_with_steady_heap};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const MICRO_BATCHES: usize = 4;

/// A constant size, so that all steps are alike, with the plan of the default policy, which observers receive.
#[derive(Debug)]
struct Planned(Fixed, Predictive);

impl BatchPolicy for Planned {
    fn size(&self, remaining: usize) -> usize {
        self.0.size(remaining)
    }

    fn succeeded(&mut self, completed: &Completed) {
        self.1.succeeded(completed);
    }

    fn failed(&mut self, failed: &Failed<'_>) {
        self.0.failed(failed);
    }

    fn plan(&self) -> Option<Plan> {
        self.1.plan()
    }
}

/// The time of a step with a record, divided by that without.
fn ratio(title: &str, config: Config, size: usize, rounds: usize) -> candle_headroom::Result<f64> {
    let job = Job::new(config, MICRO_BATCHES * size)?;
    let memory = DeviceMemory::host().open()?;
    let builder = || -> candle_headroom::Result<_> {
        let builder = AdaptiveTrainer::builder(job.sgd()?);
        let policy = Planned(Fixed::new(size)?, Predictive::default());
        Ok(builder.memory(&memory).policy(policy))
    };
    let timeline = Timeline::new();
    let incidents = IncidentLog::builder("/dev/null").open()?;
    let mut watched = builder()?.observer(timeline).observer(incidents).build()?;
    let mut plain = builder()?.build()?;
    let batch = (&job.x, &job.y);
    let contenders = vec![
        Contender::new("watched", || {
            let step = watched.step(&batch, |(x, y), _| job.model.loss(&x, &y));
            step.expect("a step");
        }),
        Contender::new("plain", || {
            let step = plain.step(&batch, |(x, y), _| job.model.loss(&x, &y));
            step.expect("a step");
        }),
    ];
    let rounds = alternate(contenders, rounds);
    rounds.print(title, 1);
    Ok(rounds.ratio("watched", "plain"))
}

fn main() -> candle_headroom::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let rounds = if is_quick() { 201 } else { 1601 };
    let mut worst = 0f64;
    for (name, context, width, size) in [("tiny", 16, 16, 4), ("small", 32, 48, 4)] {
        let config = Config {
            context,
            width,
            heads: 4,
            layers: 1,
        };
        let title =
            format!("{MICRO_BATCHES} micro-batches of {size} × {context} bytes, {width} wide");
        let ratio = ratio(&title, config, size, rounds)?;
        figure(&format!("timeline/step_cost_{name}"), ratio, "x");
        worst = worst.max(ratio);
    }
    figure("timeline/step_cost", worst, "x");
    Ok(())
}
