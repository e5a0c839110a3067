//! What the ranks' words cost: an update of one parameter with other ranks, less the same update alone.

use anyhow::Result;
use candle_core::{Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::train::{AdaptiveTrainerBuilder, Exchange};
use candle_headroom::{AdaptiveTrainer, Sgd};

use crate::ranks::Ranks;
use crate::support::{alternate, median};

/// Updates of a round.
const UPDATES: usize = 200;

pub fn measure(ranks: &Ranks, is_quick: bool) -> Result<()> {
    let rounds = if is_quick { 11 } else { 101 };
    let mut together = updates(|builder| builder.group(&ranks.group))?;
    let mut alone = updates(|builder| builder)?;
    let (mut waited, mut reduced) = (Vec::new(), Vec::new());
    let contenders = vec![
        ranks.together("with the others", || {
            for _ in 0..UPDATES {
                let exchange = together().expect("the ranks' exchange");
                waited.push(exchange.waited.as_secs_f64());
                reduced.push(exchange.reduced.as_secs_f64());
            }
        }),
        ranks.together("alone", || {
            for _ in 0..UPDATES {
                alone();
            }
        }),
    ];
    let rounds = alternate(contenders, rounds);
    let size = ranks.group.size();
    let micros = |name| rounds.median(name) / UPDATES as f64 * 1e6;
    if ranks.is_first() {
        rounds.print(
            &format!("an update of one parameter, {size} ranks"),
            UPDATES,
        );
        let (waited, reduced) = (median(waited) * 1e6, median(reduced) * 1e6);
        println!("  of it on rank 0: waited {waited:.1} µs, reduced {reduced:.1} µs");
    }
    let words = micros("with the others") - micros("alone");
    ranks.figure(&format!("exchange_microseconds_{size}_ranks"), words, "µs");
    Ok(())
}

/// Makes an update of one parameter with each call.
fn updates(
    options: impl FnOnce(AdaptiveTrainerBuilder<Sgd>) -> AdaptiveTrainerBuilder<Sgd>,
) -> Result<impl FnMut() -> Option<Exchange>> {
    let var = Var::new(&[1f32], &Device::Cpu)?;
    let sgd = Sgd::builder(vec![var.clone()])
        .learning_rate(1e-3)
        .build()?;
    let builder = AdaptiveTrainer::builder(sgd).policy(Fixed::new(1)?);
    let mut trainer = options(builder).build()?;
    let x = Tensor::new(&[1f32], &Device::Cpu)?;
    Ok(move || {
        let report = trainer.step(&x, |x, _| (&x * var.as_tensor())?.sum_all());
        report.expect("an update").exchange
    })
}
