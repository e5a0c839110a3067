//! Bytes of optimizer state on each rank.

use anyhow::Result;
use candle_headroom::AdamW;
use candle_headroom::train::AdaptiveTrainerBuilder;

use crate::ranks::Ranks;
use crate::training::{SMALL, Training};

type Options = fn(AdaptiveTrainerBuilder<AdamW>) -> AdaptiveTrainerBuilder<AdamW>;

/// How the ranks keep the state: all of it on each first, and then what is compared with that.
const WAYS: [(&str, Options); 1] = [("whole", |builder| builder)];

pub fn compare(ranks: &Ranks, _: bool) -> Result<()> {
    let mut whole = None;
    for (name, options) in WAYS {
        let mut training = Training::new(SMALL, 1, |builder| options(builder.group(&ranks.group)))?;
        // The state is allocated by the first update.
        training.step();
        let bytes = training.trainer.optimizer().state_bytes();
        let all = ranks.group.gather(&bytes.to_le_bytes())?;
        let all = all.iter().map(|bytes| bytes.as_slice().try_into());
        let all = all
            .map(|bytes| Ok(u64::from_le_bytes(bytes?)))
            .collect::<Result<Vec<_>>>()?;
        let most = all.iter().copied().max().unwrap_or_default();
        if ranks.is_first() {
            let parameters = training.parameters();
            println!("AdamW's state of {parameters} parameters, {name}: {all:?} bytes");
        }
        match whole {
            None => whole = Some(most),
            Some(whole) => {
                let name = format!("{name}_state_bytes");
                ranks.figure(&name, most as f64 / whole as f64, "x");
            }
        }
    }
    Ok(())
}
