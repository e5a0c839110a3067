//! Data-parallel training on several ranks: one program, alone or started by a launcher.
//! Run: `cargo run --features mpi --example ranks`, then `mpirun -n 2 target/debug/examples/ranks`.
//! Prints the loss of each step and the accuracy: the same on one rank and on two.

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Loader, TensorDataset, stack};
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, process_batches};
use candle_nn::{Init, Linear, Module, VarBuilder, VarMap, loss};

fn main() -> candle_headroom::Result<()> {
    let group = Group::from_environment()?; // 1. find the other ranks
    let memory = DeviceMemory::host().open()?; // on GPUs `DeviceMemory::cuda(group.local_rank())`

    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
    // Not random, so that each run has the same losses. Ranks may begin at random: rank 0's
    // parameters are copied to all.
    let model = Linear::new(vb.get_with_hints((2, 16), "weight", Init::Const(0.))?, None);
    let optimizer = AdamW::builder(&varmap).learning_rate(0.05).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .group(&group) // 2. update together
        .build()?;

    // All ranks have the same data, of which each reads its part.
    let x = Tensor::arange(0f32, 1600., &Device::Cpu)?.sin()?;
    let x = x.reshape((100, 16))?; // [samples, features]
    let y = x.sum(1)?.gt(0f32)?.to_dtype(DType::U32)?; // [samples]
    let loader = Loader::builder(TensorDataset::new((x.clone(), y.clone()))?, stack)
        .batch(32) // of all ranks together
        .shuffle(7)
        .epochs(5)
        .group(&group) // 3. read this rank's part
        .build()?;
    for batch in loader {
        let report = trainer.step(batch, |(x, y), _| {
            loss::cross_entropy(&model.forward(&x)?, &y)
        })?;
        if group.rank() == 0 {
            println!("{report}");
        }
    }

    // 4. evaluate a part, and collect the results of all ranks.
    let part = group.share(100);
    let part = (
        x.narrow(0, part.start, part.len())?,
        y.narrow(0, part.start, part.len())?,
    );
    let right = process_batches(&part, 32, |(x, y)| {
        let is_right = model.forward(&x)?.argmax(1)?.eq(&y)?;
        is_right.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()
    });
    let right: f32 = group.collect(right)?.iter().sum();
    if group.rank() == 0 {
        println!("{right} of 100 are right, on {} ranks", group.size());
    }
    Ok(())
}
