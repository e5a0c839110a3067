//! The cost of a `LayerMemory`, and how much of the highest use it attributes: a step of a transformer with a span in each layer, as
//! candle-transformers' models have, against the same model without spans.
//!
//! `cargo bench --bench layers --features layers [-- --quick]`

#[path = "../../tests/support/spanned.rs"]
mod spanned;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use candle_core::{DType, Device};
use candle_headroom::batch::Fixed;
use candle_headroom::layers::LayerMemory;
use candle_headroom::nn::{VarBuilder, VarMap};
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, Result, TrackingAllocator};
use spanned::{Sizes, Spanned};
use support::{Contender, alternate, figure, is_quick, measures_with_steady_heap};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const SIZES: Sizes = Sizes {
    vocabulary: 256,
    width: 96,
    heads: 4,
    blocks: 4,
};
const SAMPLES: usize = 4;
const TIME: usize = 96;

/// Steps whose time counts in a round, after as many that do not.
const STEPS: usize = 2;

/// A trainer's step. Whether the model has spans depends on the subscriber, if there is one, that is installed now.
fn job(memory: &DeviceMemory, samples: usize) -> Result<impl FnMut()> {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = Spanned::new(SIZES, vb)?;
    let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
    let builder = AdaptiveTrainer::builder(optimizer).memory(memory);
    let mut trainer = builder.policy(Fixed::new(samples)?).build()?;
    let batch = SIZES.batch(samples, TIME)?;
    Ok(move || {
        let step = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        step.expect("a step");
    })
}

fn main() -> Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let memory = DeviceMemory::host().open()?;
    attributed(&memory)?;
    // A `LayerMemory` lives only in the rounds of the watched one: where none does, phases cost nothing either.
    let watched = || {
        let layers = LayerMemory::new(&memory);
        let subscriber = registry().with(layers.layer());
        tracing::subscriber::with_default(subscriber, || timed(&memory))
    };
    let contenders = vec![
        Contender::timing_itself("watched", || watched().expect("steps")),
        Contender::timing_itself("plain", || timed(&memory).expect("steps")),
    ];
    let rounds = alternate(contenders, if is_quick() { 21 } else { 101 });
    rounds.print(
        &format!(
            "{SAMPLES} samples of {TIME} tokens, {} blocks",
            SIZES.blocks
        ),
        STEPS,
    );
    figure("layers/step_cost", rounds.ratio("watched", "plain"), "x");
    Ok(())
}

/// The time of some steps of a new model.
fn timed(memory: &DeviceMemory) -> Result<Duration> {
    let mut step = job(memory, SAMPLES)?;
    (0..STEPS).for_each(|_| step());
    let began = Instant::now();
    (0..STEPS).for_each(|_| step());
    Ok(began.elapsed())
}

/// Prints the report of the last step, and what is attributed of it.
fn attributed(memory: &DeviceMemory) -> Result<()> {
    let layers = LayerMemory::new(memory);
    let subscriber = registry().with(layers.layer());
    tracing::subscriber::with_default(subscriber, || {
        // As many samples as use several times what the threads of matrix products keep.
        let mut step = job(memory, 4 * SAMPLES)?;
        (0..3).for_each(|_| step());
        let report = layers.report();
        println!("{report}");
        let share = report.attributed().expect("the allocator is installed");
        figure("layers/attributed_percent", share * 100., "%");
        Ok(())
    })
}
