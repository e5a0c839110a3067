//! Regions that are recomputed in the backward pass, against the same layers without regions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, IndexOp, Result, Tensor, Var};
use candle_headroom::ErrorExt;
use candle_headroom::error::{Phase, RecomputeError, Resource};
use candle_headroom::nn::{self, BatchNorm, Dropout, ModuleT, is_recomputing, recompute};
use candle_headroom::{Error, testing};

use super::check::{
    FLOATS, STRIDES, agrees_with_differences, difference, differentiate, numbers, same_bits,
};

const WIDTH: usize = 6;

fn var(shape: &[usize], seed: u64) -> Result<Var> {
    Var::from_tensor(&numbers(shape, seed).to_dtype(DType::F32)?)
}

/// A block with parameters of its own.
#[derive(Clone)]
struct Block {
    up: Var,
    down: Var,
}

impl Block {
    fn new(seed: u64) -> Result<Self> {
        Ok(Self {
            up: var(&[WIDTH, 2 * WIDTH], seed)?,
            down: var(&[2 * WIDTH, WIDTH], seed + 1)?,
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs + xs.matmul(&self.up)?.tanh()?.matmul(&self.down)?
    }

    fn vars(&self) -> [Var; 2] {
        [self.up.clone(), self.down.clone()]
    }
}

/// Runs a block as a region, or as it is.
fn region(is_region: bool, xs: &Tensor, block: &Block) -> Result<Tensor> {
    let block = block.clone();
    match is_region {
        true => recompute(xs, move |xs| block.forward(xs)),
        false => block.forward(xs),
    }
}

/// Asserts that the gradients of two runs agree to the bit, and that there is one for each Var.
fn same_gradients(found: &GradStore, expected: &GradStore, vars: &[Var]) -> Result<()> {
    for var in vars {
        let gradient = |store: &GradStore| store.get(var).expect("a gradient").detach();
        same_bits(&gradient(found), &gradient(expected))?;
    }
    Ok(())
}

#[test]
fn each_type_and_layout_agrees_with_plain_operations() -> Result<()> {
    let inputs = [numbers(&[4, 3], 1), numbers(&[4, 3], 2)];
    let plain = |t: &[Tensor]| -> Result<Tensor> { (t[0].tanh()? * &t[1])?.exp()?.sum_keepdim(0) };
    let regions = |t: &[Tensor]| {
        recompute((&t[0], &t[1]), |(a, b)| {
            (a.tanh()? * b)?.exp()?.sum_keepdim(0)
        })
    };
    for dtype in FLOATS {
        let typed = inputs.iter().map(|input| input.to_dtype(dtype));
        let typed = typed.collect::<Result<Vec<_>>>()?;
        for strides in STRIDES {
            let (found, gradients) = differentiate(&regions, &typed, strides)?;
            let (expected, plain) = differentiate(&plain, &typed, strides)?;
            same_bits(&found, &expected)?;
            (gradients.iter().zip(&plain)).try_for_each(|(a, b)| same_bits(a, b))?;
        }
    }
    agrees_with_differences(&regions, &inputs)
}

#[test]
fn a_deep_model_gets_the_same_bits() -> Result<()> {
    let blocks = (0..4)
        .map(|i| Block::new(10 + 2 * i))
        .collect::<Result<Vec<_>>>()?;
    let embedding = var(&[5, WIDTH], 1)?;
    let loss = |is_region: bool| -> Result<Tensor> {
        let mut xs = embedding.i(1..4)?;
        for block in &blocks {
            xs = region(is_region, &xs, block)?;
        }
        xs.sqr()?.mean_all()
    };
    let (found, expected) = (loss(true)?, loss(false)?);
    same_bits(&found, &expected)?;
    let mut vars: Vec<_> = blocks.iter().flat_map(Block::vars).collect();
    vars.push(embedding.clone());
    same_gradients(&found.backward()?, &expected.backward()?, &vars)?;
    // A graph can be differentiated more than once.
    same_gradients(&found.backward()?, &expected.backward()?, &vars)
}

/// PyTorch's reentrant variant skips such a region silently.
#[test]
fn a_region_whose_input_leads_to_no_var_is_differentiated() -> Result<()> {
    let block = Block::new(3)?;
    let xs = numbers(&[2, WIDTH], 5).to_dtype(DType::F32)?; // frozen
    let found = region(true, &xs, &block)?.sqr()?.sum_all()?.backward()?;
    let expected = region(false, &xs, &block)?.sqr()?.sum_all()?.backward()?;
    same_gradients(&found, &expected, &block.vars())?;
    assert!(found.get(&xs).is_none());
    Ok(())
}

#[test]
fn a_var_in_two_regions_and_outside_receives_the_sum() -> Result<()> {
    let (block, xs) = (Block::new(3)?, var(&[2, WIDTH], 5)?);
    let loss = |is_region: bool| -> Result<Tensor> {
        let once = region(is_region, &xs, &block)?;
        let twice = region(is_region, &once, &block)?;
        (twice.matmul(&block.up)?.sum_all()? + once.sum_all()?)? + xs.sum_all()?
    };
    let (found, expected) = (loss(true)?.backward()?, loss(false)?.backward()?);
    for var in block.vars().iter().chain([&xs]) {
        let (a, b) = (
            found.get(var).expect("found"),
            expected.get(var).expect("expected"),
        );
        // Sums in another order.
        assert!(difference(&a.to_dtype(DType::F64)?, &b.to_dtype(DType::F64)?) < 1e-6);
    }
    Ok(())
}

#[test]
fn regions_nest() -> Result<()> {
    let (inner, outer, xs) = (Block::new(3)?, Block::new(7)?, var(&[2, WIDTH], 5)?);
    let (a, b) = (inner.clone(), outer.clone());
    let nested = recompute(xs.as_tensor(), move |xs| {
        let ys = b.forward(xs)?;
        let a = a.clone();
        recompute(&ys, move |ys| {
            recompute(ys, {
                let a = a.clone();
                move |ys| a.forward(ys)
            })
        })
    })?;
    let plain = inner.forward(&outer.forward(&xs)?)?;
    let (found, expected) = (nested.sum_all()?.backward()?, plain.sum_all()?.backward()?);
    let vars: Vec<_> = [inner.vars(), outer.vars()].concat();
    same_gradients(&found, &expected, &vars)?;
    same_gradients(&found, &expected, &[xs])
}

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

#[test]
fn dropout_draws_the_same_mask_again() -> Result<()> {
    let (xs, block) = (var(&[64, WIDTH], 5)?, Block::new(3)?);
    let loss = || -> Result<Tensor> {
        let mut ys = xs.as_tensor().clone();
        for _ in 0..2 {
            let block = block.clone();
            ys = recompute(&ys, move |ys| {
                Dropout::new(0.5).forward(&block.forward(ys)?, true)
            })?;
        }
        Ok(ys)
    };
    let ys = nn::seeded(3, loss)?;
    let same = nn::seeded(3, loss)?;
    same_bits(&ys, &same)?;
    let zeros =
        |t: &Tensor| -> Result<f32> { t.eq(0f32)?.to_dtype(DType::F32)?.mean_all()?.to_scalar() };
    assert!((zeros(&ys)? - 0.5).abs() < 0.1);
    let (first, second) = (ys.sum_all()?.backward()?, same.sum_all()?.backward()?);
    same_gradients(&first, &second, &block.vars())?;
    // The masks of one run, made into constants, give plain operations the same gradients.
    let kept = ys.ne(0f32)?.to_dtype(DType::F32)?;
    let last = |ys: &Tensor| (block.forward(ys)? * 2.)?.mul(&kept);
    let once = nn::seeded(3, || {
        let block = block.clone();
        recompute(xs.as_tensor(), move |ys| {
            Dropout::new(0.5).forward(&block.forward(ys)?, true)
        })
    })?;
    let first_kept = once.ne(0f32)?.to_dtype(DType::F32)?;
    let plain = last(&(block.forward(&xs)? * 2.)?.mul(&first_kept)?)?;
    let expected = plain.sum_all()?.backward()?;
    for var in block.vars().iter().chain([&xs]) {
        let of = |store: &GradStore| store.get(var).expect("a gradient").to_dtype(DType::F64);
        assert!(difference(&of(&first)?, &of(&expected)?) < 1e-5);
    }
    // Without a scope each region draws a seed, and keeps it: another mask would be an error, as below.
    loss()?.sum_all()?.backward()?;
    // Two regions in a row draw different masks.
    let masks = nn::seeded(3, || -> Result<_> {
        let mask = || {
            recompute(xs.as_tensor(), |xs| {
                Dropout::new(0.5).forward(&xs.ones_like()?, true)
            })
        };
        Ok([mask()?, mask()?])
    })?;
    assert!(
        masks[0]
            .sub(&masks[1])?
            .abs()?
            .max_all()?
            .to_scalar::<f32>()?
            > 0.
    );
    Ok(())
}

/// Returns the error of the backward pass.
fn failure(ys: &Tensor) -> Error {
    let loss = ys.sum_all().expect("a sum");
    Error::from(loss.backward().expect_err("the region differs"))
}

#[test]
fn a_region_that_differs_is_an_error() -> Result<()> {
    let xs = var(&[4, 4], 1)?;
    let random = recompute(xs.as_tensor(), |xs| {
        xs * Tensor::rand(0f32, 1., (4, 4), &Device::Cpu)?
    })?;
    let error = failure(&random);
    assert!(
        matches!(&error, Error::Recompute(e) if matches!(**e, RecomputeError::Values { .. })),
        "{error}"
    );

    let grows = recompute(xs.as_tensor(), |xs| {
        if is_recomputing() {
            Tensor::cat(&[xs, xs], 0)
        } else {
            xs.exp()
        }
    })?;
    let error = failure(&grows);
    assert!(error.to_string().contains("[8, 4]"), "{error}");
    assert!(
        matches!(&error, Error::Recompute(e) if matches!(**e, RecomputeError::Shape { .. })),
        "{error}"
    );

    let fewer = recompute(xs.as_tensor(), |xs| {
        Ok(if is_recomputing() {
            vec![]
        } else {
            vec![xs.exp()?]
        })
    })?;
    let error = failure(&fewer[0]);
    assert!(
        matches!(&error, Error::Recompute(e) if matches!(**e, RecomputeError::Outputs { .. })),
        "{error}"
    );

    let (a, b) = (var(&[4], 2)?, var(&[4], 2)?);
    let switches = recompute(xs.as_tensor(), move |xs| {
        xs.broadcast_mul(if is_recomputing() { &a } else { &b })
    })?;
    let error = failure(&switches);
    assert!(
        matches!(&error, Error::Recompute(e) if matches!(**e, RecomputeError::Var(_))),
        "{error}"
    );

    // NaN is no difference: the loss shows it.
    let nan = recompute(xs.as_tensor(), |xs| xs * f64::NAN)?;
    nan.sum_all()?.backward()?;
    Ok(())
}

#[test]
fn running_statistics_move_once() -> Result<()> {
    let statistics = || -> Result<BatchNorm> {
        let (mean, variance) = (
            var(&[WIDTH], 1)?,
            Var::ones(WIDTH, DType::F32, &Device::Cpu)?,
        );
        let (weight, bias) = (var(&[WIDTH], 2)?, var(&[WIDTH], 3)?);
        BatchNorm::new(
            WIDTH,
            mean.into_inner(),
            variance.into_inner(),
            weight.into_inner(),
            bias.into_inner(),
            1e-5,
        )
    };
    let (norm, plain, xs) = (statistics()?, statistics()?, var(&[8, WIDTH], 5)?);
    let inside = norm.clone();
    let ys = recompute(xs.as_tensor(), move |xs| {
        let inside = inside.clone();
        recompute(xs, move |xs| inside.forward_t(xs, true))
    })?;
    let found = ys.sqr()?.sum_all()?.backward()?;
    let expected = plain.forward_t(&xs, true)?.sqr()?.sum_all()?.backward()?;
    same_bits(norm.running_mean(), plain.running_mean())?;
    same_bits(norm.running_var(), plain.running_var())?;
    same_gradients(&found, &expected, &[xs])
}

#[test]
fn a_failure_in_the_second_run_is_typed_and_leaves_nothing() -> Result<()> {
    let (xs, block) = (var(&[2, WIDTH], 1)?, Block::new(3)?);
    let fails = Arc::new(AtomicBool::new(true));
    let (inner, is_broken) = (block.clone(), Arc::clone(&fails));
    let ys = recompute(xs.as_tensor(), move |xs| {
        let (inner, is_broken) = (inner.clone(), Arc::clone(&is_broken));
        recompute(xs, move |xs| {
            match is_recomputing() && is_broken.load(Relaxed) {
                true => Err(testing::out_of_memory()),
                false => inner.forward(xs),
            }
        })
    })?;
    let loss = ys.sum_all()?;
    let error = loss.backward().expect_err("the second run fails");
    let exhausted = error.resource_exhausted().expect("an exhaustion");
    assert_eq!(exhausted.phase, Some(Phase::Recompute));
    assert_ne!(exhausted.resource, Resource::default());
    // An error of the closure comes back as it is.
    let broken = recompute(xs.as_tensor(), |xs| match is_recomputing() {
        true => candle_core::bail!("no room in the cellar"),
        false => xs.exp(),
    })?;
    let error = broken
        .sum_all()?
        .backward()
        .expect_err("the second run fails");
    assert!(
        error.to_string().contains("no room in the cellar"),
        "{error}"
    );
    // The same graph once the cause is gone.
    fails.store(false, Relaxed);
    let expected = block.forward(&xs)?.sum_all()?.backward()?;
    same_gradients(&loss.backward()?, &expected, &block.vars())?;
    assert!(!is_recomputing());
    Ok(())
}

/// A captured tensor with a graph of its own, even one that other regions lead to.
#[test]
fn a_captured_tensor_gets_its_gradient() -> Result<()> {
    let (xs, block, time) = (var(&[2, WIDTH], 1)?, Block::new(3)?, var(&[2, WIDTH], 9)?);
    let loss = |is_region: bool| -> Result<Tensor> {
        let embedded = match is_region {
            true => recompute(time.as_tensor(), |t| Ok([t.exp()?, t.tanh()?]))?,
            false => [time.exp()?, time.tanh()?],
        };
        let mut ys = (&embedded[1] * xs.as_tensor())?;
        for _ in 0..2 {
            let (captured, block) = (embedded.clone(), block.clone());
            let add = move |ys: &Tensor| (block.forward(ys)? + &captured[0])? * &captured[1];
            ys = if is_region {
                recompute(&ys, add)?
            } else {
                add(&ys)?
            };
        }
        (ys * &embedded[0])?.sum_all()
    };
    let (found, expected) = (loss(true)?.backward()?, loss(false)?.backward()?);
    for var in block.vars().iter().chain([&xs, &time]) {
        let of = |store: &GradStore| store.get(var).expect("a gradient").to_dtype(DType::F64);
        // Sums in another order.
        let off = difference(&of(&found)?, &of(&expected)?);
        assert!(off < 1e-6, "{off:e}");
    }
    Ok(())
}

#[test]
fn nothing_to_differentiate_is_no_region() -> Result<()> {
    let xs = numbers(&[2, 2], 1);
    let ys = recompute(&xs, |xs| xs.exp())?;
    assert!(!ys.track_op());
    let tokens = Tensor::new(&[1u32, 0], &Device::Cpu)?;
    let table = var(&[2, 3], 1)?;
    let rows = table.clone();
    let embedded = recompute(&tokens, move |tokens| rows.embedding(tokens))?;
    let gradients = embedded.sum_all()?.backward()?;
    assert_eq!(
        gradients
            .get(&table)
            .expect("of the table")
            .to_vec2::<f32>()?,
        [[1.; 3]; 2]
    );
    Ok(())
}

/// A sum that is split in another way changes the last bit of a value, which is much in bf16.
#[test]
fn a_rounding_is_no_difference() -> Result<()> {
    for dtype in FLOATS {
        let xs = Var::from_tensor(&Tensor::full(3f32, (4, 4), &Device::Cpu)?.to_dtype(dtype)?)?;
        let again = match dtype {
            DType::BF16 => 1. + 1. / 128.,
            DType::F16 => 1. + 1. / 1024.,
            _ => 1. + 1e-6,
        };
        let ys = recompute(xs.as_tensor(), move |xs| {
            xs * if is_recomputing() { again } else { 1. }
        })?;
        ys.sum_all()?.backward()?;
        let ys = recompute(xs.as_tensor(), |xs| {
            xs * if is_recomputing() { 1.25 } else { 1. }
        })?;
        assert!(matches!(failure(&ys), Error::Recompute(_)));
    }
    Ok(())
}
