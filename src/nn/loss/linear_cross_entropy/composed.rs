use candle_core::{D, Result, Tensor};

use super::arguments::Arguments;
use super::counted::zero_others;

/// The losses of rows of logits and, if they are asked for, the gradients of the sum of the losses, with candle's operations.
pub fn losses(arguments: &Arguments, logits: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
    let rule = arguments.rule;
    let (_, classes) = logits.dims2()?;
    let counted = arguments.targets.ne(arguments.none)?;
    let weights = match arguments.weights {
        Some(of_tokens) => zero_others(&counted, of_tokens)?,
        None => counted.to_dtype(logits.dtype())?,
    };
    let counted = weights.ne(0.)?;
    let mut xs = match arguments.bias {
        Some(bias) => logits.broadcast_add(bias)?,
        None => logits.clone(),
    };
    if let Some(cap) = rule.softcap {
        xs = ((xs / cap)?.tanh()? * cap)?;
    }
    let max = xs.max_keepdim(D::Minus1)?;
    let below = xs.broadcast_sub(&max)?;
    let logs = below.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let wholes = (&logs + max)?;
    // A target that stands for none reads the first class, and its row becomes 0.
    let targets = counted.where_cond(arguments.targets, &arguments.targets.zeros_like()?)?;
    let targets = targets.unsqueeze(1)?;
    let above = (&logs - below.gather(&targets, 1)?)?;
    let mut losses = above.clone();
    if rule.smoothing > 0. {
        let mean = (&logs - below.mean_keepdim(D::Minus1)?)?;
        losses = ((above * (1. - rule.smoothing))? + (mean * rule.smoothing)?)?;
    }
    if rule.z_loss > 0. {
        losses = (losses + (wholes.sqr()? * rule.z_loss)?)?;
    }
    let losses = zero_others(&counted, &(losses.squeeze(1)? * &weights)?)?;
    if !arguments.differentiates {
        return Ok((losses, None));
    }
    let weights = weights.unsqueeze(1)?;
    let of_softmax = ((wholes * (2. * rule.z_loss))? + 1.)?;
    let softmax = below.broadcast_sub(&logs)?.exp()?;
    let slopes = softmax.broadcast_mul(&of_softmax)?;
    let slopes = (slopes - rule.smoothing / classes as f64)?;
    let of_targets = (weights.ones_like()? * (rule.smoothing - 1.))?;
    let slopes = slopes.scatter_add(&targets, &of_targets, 1)?;
    let slopes = slopes.broadcast_mul(&weights)?;
    let slopes = match rule.softcap {
        Some(cap) => {
            let steepness = ((xs / cap)?.sqr()? * -1.)?;
            (slopes * (steepness + 1.)?)?
        }
        None => slopes,
    };
    Ok((losses, Some(zero_others(&counted, &slopes)?)))
}
