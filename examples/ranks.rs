//! Data-parallel training on several ranks that stops on a signal, and goes on with `--resume`.
//! Run: `cargo run --features mpi --example ranks`, then `mpirun -n 2 target/debug/examples/ranks`.
//! Prints the same losses on one rank and on two. `ranks run-7` keeps its checkpoints in a folder.

use std::{ops::ControlFlow::Break, path::PathBuf, process::ExitCode};

use candle_core::{DType, Device, Tensor};
use candle_headroom::checkpoint::{Checkpoints, Signal};
use candle_headroom::data::{Loader, TensorDataset, stack};
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, distributed::Group};
use candle_nn::{Init, Linear, Module, VarBuilder, VarMap, loss};
use clap::Parser;

#[derive(Parser)]
struct Options {
    /// Folder of the run's checkpoints. Without it they go to a temporary one.
    folder: Option<PathBuf>,
    /// Goes on from the latest checkpoint, if there is one.
    #[arg(long)]
    resume: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let (options, temporary) = (Options::parse(), tempfile::tempdir()?);
    let folder = options.folder.as_deref().unwrap_or(temporary.path());

    let group = Group::from_environment()?; // 1. find the other ranks
    let memory = DeviceMemory::host().open()?; // on GPUs `DeviceMemory::cuda(group.local_rank())`
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
    let model = Linear::new(vb.get_with_hints((1, 16), "weight", Init::Const(0.))?, None);
    let optimizer = AdamW::builder(&varmap).learning_rate(0.05).build()?;
    let trainer = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let mut trainer = trainer.group(&group).build()?; // 2. update together

    let x = Tensor::arange(0f32, 1600., &Device::Cpu)?.sin()?;
    let x = x.reshape((100, 16))?; // [samples, features], the same on all ranks
    let dataset = TensorDataset::new((x.clone(), x.sum_keepdim(1)?))?;
    let loader = Loader::builder(dataset, stack).batch(32).shuffle(7); // 32 on all ranks together
    let loader = loader.epochs(5).device(memory.device());
    let mut loader = loader.group(&group).build()?; // 3. read this rank's part
    let signals = [Signal::Interrupt, Signal::Terminate, Signal::User1];
    let checkpoints = Checkpoints::builder(folder).on_signals(signals);
    let mut checkpoints = checkpoints.group(&group).open()?; // 4. save and stop together
    if options.resume {
        loader = checkpoints.resume(&mut trainer, loader)?;
    }
    for batch in loader {
        let report = trainer.step(batch, |(x, y), _| loss::mse(&model.forward(&x)?, &y))?;
        if group.rank() == 0 {
            println!("{report}");
        }
        if let Break(stopped) = checkpoints.after(&report, &trainer)? {
            println!("{stopped}"); // after it was saved
            return Ok(ExitCode::from(stopped.signal.exit_status() as u8)); // SIGUSR1: 138
        }
    }
    checkpoints.save_now(&trainer)?;
    Ok(ExitCode::SUCCESS)
}
