//! Writes a page of a run under memory pressure: `cargo run --example timeline -- page.html [trace.json]`.
//!
//! A small transformer trains within a memory limit and is evaluated every 20 steps. Some texts are longer than the others and need
//! more memory. After a third of the run a cache takes memory away, as another process on a GPU would; later it is dropped.
//!
//! `mpirun -n 3 target/release/examples/timeline run`, built with `--features mpi`, trains on three ranks, of which the first has the cache,
//! and writes `run.html` and `run.json` of all.

#[path = "train_text/model.rs"]
mod model;

use std::env;

use candle_core::{DType, Device, Tensor};
use candle_headroom::distributed::Group;
use candle_headroom::nn::loss;
use candle_headroom::{
    AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, Timeline, TrackingAllocator,
};
use candle_nn::{VarBuilder, VarMap};
use model::{Config, Transformer};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

const STEPS: usize = 60;
const SAMPLES: usize = 144;
const TEXT: usize = 32;
const LONG_TEXT: usize = 48;

fn main() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    let page = arguments.next().unwrap_or("timeline.html".to_owned());
    let group = Group::from_environment()?; // one rank, without a launcher
    let share = group.share(SAMPLES);
    let varmap = VarMap::new();
    let config = Config {
        context: LONG_TEXT,
        width: 48,
        heads: 4,
        layers: 2,
    };
    let model = Transformer::new(
        config,
        VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu),
    )?;
    let memory = DeviceMemory::host().limit(ByteSize::mib(40)).open()?;
    let timeline = Timeline::new();
    let mut trainer =
        AdaptiveTrainer::builder(AdamW::builder(&varmap).learning_rate(3e-3).build()?)
            .memory(&memory)
            .group(&group)
            .observer(timeline.clone())
            .build()?;

    let mut cache = Vec::new();
    for step in 0..STEPS {
        match step {
            20 if group.rank() == 0 => {
                cache = vec![1u8; 24 << 20];
                timeline.note("a cache takes 24 of 40 MiB");
            }
            40 if group.rank() == 0 => {
                cache = Vec::new();
                timeline.note("the cache is dropped");
            }
            _ => {}
        }
        let length = match step % 14 {
            9 => LONG_TEXT,
            _ => TEXT,
        };
        let bytes = (0..SAMPLES * length).map(|i| ((i * 31 + step * 7) % 97) as u32);
        let x = Tensor::from_iter(bytes, &Device::Cpu)?.reshape((SAMPLES, length))?;
        let x = x.narrow(0, share.start, share.len())?;
        let report = trainer.step(&(&x, &x), |(x, y), _| model.loss(&x, &y))?;
        timeline.number("loss", report.loss()?);
        if group.rank() == 0 {
            println!("{report}");
        }
        if step % 20 == 19 {
            // Without gradients, and so with other micro-batch sizes.
            let weighted = trainer.evaluate(&(&x, &x), |(x, y), _| {
                let logits = model.forward(&x)?.flatten_to(1)?;
                let loss = loss::cross_entropy(&logits, &y.flatten_all()?)?;
                Ok(x.dim(0)? as f64 * f64::from(loss.to_scalar::<f32>()?))
            })?;
            let loss = weighted.results.iter().sum::<f64>() / share.len() as f64;
            println!("evaluation: loss {loss:.3}");
        }
    }
    drop(cache);
    let title = "A transformer, and a cache that takes its memory";
    if group.size() > 1 {
        let times = timeline.save_all(&group, title, &page)?;
        if group.rank() == 0 {
            println!(
                "{times}; open {page}.html in a browser, {page}.json in https://ui.perfetto.dev"
            );
        }
        return Ok(());
    }
    timeline.save_page(title, &page)?;
    println!("{page}: open it in a browser");
    if let Some(trace) = arguments.next() {
        timeline.save_trace(&trace)?;
        println!("{trace}: open it in https://ui.perfetto.dev");
    }
    Ok(())
}
