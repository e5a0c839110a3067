//! What the remedies of an exhaustion save, against what the error says.

use candle_headroom::DeviceMemory;

use crate::support::figure;
use crate::tried::{Outcome, try_all};

pub fn compare(memory: &DeviceMemory, _: bool) -> candle_headroom::Result<()> {
    let outcomes = try_all(memory)?;
    for outcome in &outcomes {
        let Outcome {
            advice,
            said,
            saved,
        } = outcome;
        println!("  {advice}: said {said}, saved {saved}");
    }
    let worst = outcomes.iter().map(Outcome::error).fold(0., f64::max);
    figure("fit/remedy_error_worst", 100. * worst, "%");
    Ok(())
}
