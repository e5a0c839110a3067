//! Several inputs and outputs, and outputs that share storage.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use candle_core::{D, DType, Device, Result, Tensor};
use candle_headroom_nn::recompute;

use super::{same_gradients, var};
use crate::check::{numbers, same_bits};

#[test]
fn several_inputs_and_outputs() -> Result<()> {
    let (x, y, w) = (var(&[3, 4], 1)?, var(&[3, 4], 2)?, var(&[4, 4], 3)?);
    let compute = |x: &Tensor, y: &Tensor, w: &Tensor| -> Result<(Tensor, Tensor, Tensor)> {
        let product = x.matmul(w)?;
        Ok(((&product * y)?, product.t()?, product.argmax(D::Minus1)?))
    };
    let weight = w.clone();
    let regions = recompute((x.as_tensor(), y.as_tensor()), move |(x, y)| {
        compute(x, y, &weight)
    })?;
    let plain = compute(&x, &y, &w)?;
    assert_eq!(regions.2.to_vec1::<u32>()?, plain.2.to_vec1::<u32>()?);
    let vars = [x.clone(), y.clone(), w.clone()];
    for (outputs, count) in [((true, true), 3), ((true, false), 3), ((false, true), 2)] {
        let loss = |(a, b, _): &(Tensor, Tensor, Tensor)| -> Result<Tensor> {
            let zero = Tensor::zeros((), DType::F32, &Device::Cpu)?;
            let a = if outputs.0 {
                a.sqr()?.sum_all()?
            } else {
                zero.clone()
            };
            let b = if outputs.1 { b.exp()?.sum_all()? } else { zero };
            a + b
        };
        let (found, expected) = (loss(&regions)?.backward()?, loss(&plain)?.backward()?);
        let reached: Vec<_> = (vars.iter())
            .filter(|v| expected.get(v).is_some())
            .cloned()
            .collect();
        assert_eq!(reached.len(), count);
        same_gradients(&found, &expected, &reached)?;
    }
    // An output that nobody uses has no gradient, so the region is not run again.
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let tensors = [x.as_tensor().clone(), y.as_tensor().clone()];
    let outputs = recompute(&tensors[..], move |tensors| {
        counter.fetch_add(1, Relaxed);
        tensors.iter().map(Tensor::exp).collect::<Result<Vec<_>>>()
    })?;
    assert_eq!(outputs.len(), 2);
    x.sum_all()?.backward()?;
    assert_eq!(runs.load(Relaxed), 1);
    outputs[1].sum_all()?.backward()?;
    assert_eq!(runs.load(Relaxed), 2);
    Ok(())
}

#[test]
fn outputs_may_share_storage_with_anything() -> Result<()> {
    let (xs, w) = (var(&[2, 3], 1)?, var(&[2, 3], 2)?);
    let (weight, kept) = (w.clone(), Arc::new(Mutex::new(None)));
    let constant = numbers(&[2, 3], 4).to_dtype(DType::F32)?;
    let (keep, captured) = (Arc::clone(&kept), constant.clone());
    let [same, view, of_var, fixed, stored, again] = recompute(xs.as_tensor(), move |xs| {
        let stored = xs.exp()?;
        *keep.lock().expect("the lock") = Some(stored.detach());
        let view = stored.t()?;
        Ok([
            xs.clone(),
            view,
            weight.t()?,
            captured.clone(),
            stored.clone(),
            stored,
        ])
    })?;
    let exp = xs.exp()?;
    same_bits(&same, &xs)?;
    same_bits(&view, &exp.t()?)?;
    same_bits(&of_var, &w.t()?)?;
    same_bits(&fixed, &constant)?;
    same_bits(&stored, &exp)?;
    same_bits(kept.lock().expect("the lock").as_ref().expect("kept"), &exp)?;
    let loss = (((same + stored)? + again)?.sum_all()? + (view + of_var)?.sum_all()?)?;
    let gradients = (loss + fixed.sum_all()?)?.backward()?;
    let expected = ((exp * 3.)? + 1.)?;
    let off = (gradients.get(&xs).expect("of xs") - expected)?
        .abs()?
        .max_all()?;
    assert!(off.to_scalar::<f32>()? < 1e-5);
    assert_eq!(
        gradients
            .get(&w)
            .expect("of w")
            .sum_all()?
            .to_scalar::<f32>()?,
        6.
    );
    Ok(())
}
