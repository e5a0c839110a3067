//! The same gradients as without regions: deep and nested ones, shared and captured tensors.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, IndexOp, Result, Tensor};
use candle_headroom_nn::recompute;

use super::{Block, WIDTH, region, same_gradients, var};
use crate::check::{
    FLOATS, STRIDES, agrees_with_differences, difference, differentiate, numbers, same_bits,
};

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
