//! A program as a stranger would write it: a loop and an error type of its own, candle's AdamW, and the library only where it is needed.
//! It ends with status 1 if something is not as the documentation says.

use std::cell::Cell;

use anyhow::{Context, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::{
    AdaptiveTrainer, DeviceMemory, ErrorExt, Foreign, GradientAccumulator, TrackingAllocator,
};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

/// What can go wrong in this program.
#[derive(Debug, thiserror::Error)]
enum TrainError {
    #[error("batch {batch} does not fit: {source}")]
    TooLarge {
        batch: usize,
        source: candle_headroom::Error,
    },
    #[error(transparent)]
    Headroom(#[from] candle_headroom::Error),
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A model, its Vars, and candle's optimizer for them.
fn model() -> Result<(Linear, Vec<Var>, AdamW), candle_core::Error> {
    let varmap = VarMap::new();
    let model = linear(
        16,
        4,
        VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu),
    )?;
    let vars = varmap.all_vars();
    let adamw = AdamW::new(
        vars.clone(),
        ParamsAdamW {
            lr: 1e-2,
            ..Default::default()
        },
    )?;
    Ok((model, vars, adamw))
}

/// Texts whose class is the largest of their first four numbers: `[samples, 16]` and `[samples]`.
fn samples(count: usize) -> Result<(Tensor, Tensor), candle_core::Error> {
    let x = Tensor::randn(0f32, 1., (count, 16), &Device::Cpu)?;
    let y = x.narrow(1, 0, 4)?.argmax(1)?;
    Ok((x, y))
}

/// A loop of its own that accumulates four micro-batches for each update of candle's AdamW.
fn by_hand() -> Result<(f32, f32), TrainError> {
    let (model, vars, adamw) = model()?;
    let mut accumulator = GradientAccumulator::builder(Foreign::new(adamw, vars)).build()?;
    let mut losses = Vec::new();
    for _ in 0..200 {
        for _ in 0..4 {
            let (x, y) = samples(32)?;
            let loss = loss::cross_entropy(&model.forward(&x)?, &y)?;
            losses.push(loss.to_scalar::<f32>()?);
            accumulator.add(loss, 32)?;
        }
        accumulator.update()?;
    }
    Ok((losses[0], losses[losses.len() - 1]))
}

/// A trainer whose closure fails like a GPU that has room for at most `room` samples at once.
fn cut(batch: usize, room: usize) -> Result<usize, TrainError> {
    let (model, vars, adamw) = model()?;
    let memory = DeviceMemory::host().open()?;
    let mut trainer = AdaptiveTrainer::builder(Foreign::new(adamw, vars))
        .memory(&memory)
        .build()?;
    let largest = Cell::new(0);
    let report = trainer
        .step(&samples(batch)?, |(x, y), _| {
            if x.dim(0)? > room {
                let text = r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#;
                return Err(candle_core::Error::Msg(text.into()));
            }
            largest.set(largest.get().max(x.dim(0)?));
            loss::cross_entropy(&model.forward(&x)?, &y)
        })
        .map_err(|source| match source.resource_exhausted() {
            Some(_) => TrainError::TooLarge { batch, source },
            None => source.into(),
        })?;
    assert_eq!(report.samples, batch);
    Ok(largest.get())
}

fn main() -> anyhow::Result<()> {
    let (first, last) = by_hand().context("a loop by hand")?;
    println!("by hand: loss {first:.2} -> {last:.2}");
    ensure!(
        last < first / 2.,
        "candle's AdamW learned nothing: {first} -> {last}"
    );

    let largest = cut(100, 24).context("a batch that is cut")?;
    println!("100 samples where 24 fit: at most {largest} at once");
    ensure!((1..=24).contains(&largest), "{largest} samples at once");

    let error = cut(100, 0).expect_err("not even one sample fits");
    println!("where none fits: {error}");
    ensure!(
        matches!(error, TrainError::TooLarge { batch: 100, .. }),
        "another error: {error:?}"
    );
    let error: Box<dyn std::error::Error + Send + Sync> = error.into();
    ensure!(
        error.resource_exhausted().is_some(),
        "the type is lost in a Box"
    );

    #[cfg(feature = "everything")]
    data()?;
    Ok(())
}

/// What the default features add: data and checkpoints.
#[cfg(feature = "everything")]
fn data() -> anyhow::Result<()> {
    use candle_headroom::checkpoint::Checkpoints;
    use candle_headroom::data::{Items, Loader};
    use candle_headroom::error::BoxedError;

    let folder = std::env::temp_dir().join(format!("downstream-{}", std::process::id()));
    let (model, vars, adamw) = model()?;
    let mut trainer = AdaptiveTrainer::builder(Foreign::new(adamw, vars)).build()?;
    let collate = |numbers: Vec<f32>| -> Result<Tensor, BoxedError> {
        Ok(Tensor::new(numbers, &Device::Cpu)?
            .unsqueeze(1)?
            .repeat((1, 16))?) // [samples, 16]
    };
    let numbers = (0..64u8).map(f32::from).collect();
    let loader = Loader::builder(Items(numbers), collate)
        .batch(16)
        .shuffle(1)
        .build()?;
    let mut checkpoints = Checkpoints::builder(&folder).open()?;
    let loader = checkpoints.resume(&mut trainer, loader)?;
    let mut steps = 0;
    for batch in loader {
        let report = trainer.step(&batch?, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
        ensure!(
            checkpoints.after(&report, &trainer)?.is_continue(),
            "a signal that nobody sent"
        );
        steps += 1;
    }
    println!("an epoch of a loader: {steps} steps");
    ensure!(steps == 4, "{steps} steps of 16 of 64 samples");
    checkpoints.save_now(&trainer)?;
    checkpoints.finish()?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
