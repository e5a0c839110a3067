//! llama2-c with its blocks kept and recomputed.

use candle_core::Result;
use candle_headroom::DeviceMemory;

use crate::llama::{Lean, Llama, slope_of, texts};
use crate::support::{Contender, alternate, figure};

pub fn compare(memory: &DeviceMemory, is_quick: bool) -> candle_headroom::Result<()> {
    let model = Llama::new()?;
    let (tokens, next) = texts(8)?;
    let losses = [
        model
            .loss_without_scores::<Lean>(&tokens, &next)?
            .to_scalar::<f32>()?,
        model.marked_loss(&tokens, &next)?.to_scalar()?,
    ];
    println!("llama2-c, 8 samples: losses {losses:?}");
    assert_eq!(losses[0], losses[1]);

    let kept = slope_of(memory, |samples| {
        texts(samples).and_then(|(x, y)| model.loss_without_scores::<Lean>(&x, &y))
    })?;
    let recomputed = slope_of(memory, |samples| {
        texts(samples).and_then(|(x, y)| model.marked_loss(&x, &y))
    })?;
    figure("fit/mib_per_sample_kept", kept, "MiB");
    figure("fit/mib_per_sample_recomputed", recomputed, "MiB");

    let step = |loss: Result<candle_core::Tensor>| {
        loss.and_then(|loss| loss.backward()).expect("a step");
    };
    let contenders = vec![
        Contender::new("kept", || {
            step(model.loss_without_scores::<Lean>(&tokens, &next))
        }),
        Contender::new("recomputed", || step(model.marked_loss(&tokens, &next))),
    ];
    let times = alternate(contenders, if is_quick { 5 } else { 40 });
    let ratio = times.ratio("recomputed", "kept");
    figure("fit/step_time_recomputed_vs_kept", ratio, "x");
    Ok(())
}
