//! `Recompute::Auto` with the default policy against every fixed way to cut the same batch evenly, at ten budgets: from one where
//! nothing is cut to one in which a single sample does not fit with its blocks kept.
//!
//! The best fixed way is chosen by its median time in rounds of its own, and then compared with `Auto` in others. In the rounds
//! in which it was chosen, the fastest of up to fourteen ways is also the luckiest, so that even one of equal ways would look
//! faster than another.

use candle_core::Tensor;
use candle_headroom::batch::{Fixed, Recompute};
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory, Sgd};

use crate::llama::{Llama, texts};
use crate::support::{Contender, alternate, figure, median};

const SAMPLES: usize = 16;
const BUDGETS: usize = 10;

type Trainer = AdaptiveTrainer<Sgd>;

struct Work {
    model: Llama,
    batch: (Tensor, Tensor),
}

impl Work {
    fn step(&self, trainer: &mut Trainer) {
        let stepped = trainer.step(&self.batch, |(x, y), _| self.model.marked_loss(&x, &y));
        stepped.expect("a step");
    }

    fn trainer(&self, memory: &DeviceMemory) -> candle_headroom::Result<Trainer> {
        let optimizer = Sgd::builder(self.model.vars()?)
            .learning_rate(1e-4)
            .build()?;
        AdaptiveTrainer::builder(optimizer).memory(memory).build()
    }
}

/// One size of micro-batches, kept or recomputed.
struct Way {
    name: &'static str,
    trainer: Trainer,
    /// Bytes that a step takes.
    need: u64,
}

fn ways(work: &Work, memory: &DeviceMemory) -> candle_headroom::Result<Vec<Way>> {
    // The sizes that even cuts of the batch give: any other needs as many parts as a smaller one.
    let names = [
        (1, "kept 1", "recomputed 1"),
        (2, "kept 2", "recomputed 2"),
        (3, "kept 3", "recomputed 3"),
        (4, "kept 4", "recomputed 4"),
        (6, "kept 6", "recomputed 6"),
        (8, "kept 8", "recomputed 8"),
        (16, "kept 16", "recomputed 16"),
    ];
    let mut ways = Vec::new();
    for (size, kept, recomputed) in names {
        for (name, recompute) in [(kept, Recompute::Never), (recomputed, Recompute::Always)] {
            let optimizer = Sgd::builder(work.model.vars()?)
                .learning_rate(1e-4)
                .build()?;
            let builder = AdaptiveTrainer::builder(optimizer).recompute(recompute);
            let mut trainer = builder.memory(memory).policy(Fixed::new(size)?).build()?;
            work.step(&mut trainer);
            let scope = memory.peak_scope();
            work.step(&mut trainer);
            let need = scope.peak().unwrap_or_default() - scope.start().unwrap_or_default();
            ways.push(Way {
                name,
                trainer,
                need,
            });
        }
    }
    Ok(ways)
}

pub fn sweep(memory: &DeviceMemory, is_quick: bool) -> candle_headroom::Result<()> {
    let work = Work {
        model: Llama::new()?,
        batch: texts(SAMPLES)?,
    };
    let mut ways = ways(&work, memory)?;
    let need = |name: &str| {
        let way = ways.iter().find(|way| way.name == name);
        way.expect("a way").need as f64
    };
    let most = 1.05 * need("kept 16");
    let least = (need("kept 1") + need("recomputed 1")) / 2.;
    println!("Recompute::Auto, {SAMPLES} samples of llama2-c:");
    let mut shares = Vec::new();
    // Steps until the policy has settled.
    let (step, settled) = if is_quick { (6, 24) } else { (1, 60) };
    let (choosing, comparing) = if is_quick { (4, 2) } else { (8, 24) };
    for index in (0..BUDGETS).rev().step_by(step) {
        let part = index as f64 / (BUDGETS - 1) as f64;
        let room = (most.powf(1. - part) * least.powf(part)) as u64;
        let mut auto = work.trainer(memory)?;
        // What is allocated once does not count.
        work.step(&mut auto);
        let in_use = memory.in_use().unwrap_or_default();
        memory.set_limit(ByteSize(in_use + room))?;
        for _ in 0..settled {
            work.step(&mut auto);
        }
        let fits = |way: &&mut Way| way.need <= room;
        let fixed = ways.iter_mut().filter(fits);
        let fixed = fixed.map(|way| Contender::new(way.name, || work.step(&mut way.trainer)));
        let best = alternate(fixed.collect(), choosing).fastest();
        let way = ways.iter_mut().find(|way| way.name == best).expect("a way");
        let need = ByteSize(way.need);
        let contenders = vec![
            Contender::new(best, || work.step(&mut way.trainer)),
            Contender::new("auto", || work.step(&mut auto)),
        ];
        let share = alternate(contenders, comparing).ratio(best, "auto");
        let plan = auto.plan().map(|plan| plan.to_string()).unwrap_or_default();
        println!(
            "  room {}: {share:.3} x the best ({best}, which takes {need}); {plan}",
            ByteSize(room)
        );
        shares.push(share);
        memory.set_limit(candle_headroom::memory::Limit::Unlimited)?;
    }
    figure(
        "fit/auto_vs_best_fixed_throughput",
        shares.iter().copied().fold(f64::INFINITY, f64::min),
        "x",
    );
    figure(
        "fit/auto_vs_best_fixed_throughput_median",
        median(shares),
        "x",
    );
    Ok(())
}
