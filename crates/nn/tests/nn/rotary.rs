use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_headroom_nn::rotary_emb::{rope, rope_i, rope_i_slow, rope_slow, rope_thd};

use crate::check::{FLOATS, Operation, Strides, agrees, agrees_with_differences, difference};
use crate::check::{differentiate, numbers, same_bits};

/// Pairs of elements rotated with plain operations, from x of (batch, heads, time, d).
fn plain(x: &Tensor, cos: &Tensor, sin: &Tensor, neighbours: bool) -> Result<Tensor> {
    let (batch, heads, time, d) = x.dims4()?;
    let table = |table: &Tensor| match table.rank() {
        2 => table.narrow(0, 0, time)?.unsqueeze(0)?.unsqueeze(0),
        _ => table.narrow(1, 0, time)?.unsqueeze(1),
    };
    let (cos, sin) = (table(cos)?, table(sin)?);
    let pairs = match neighbours {
        true => x.reshape((batch, heads, time, d / 2, 2))?,
        false => x.reshape((batch, heads, time, 2, d / 2))?.transpose(3, 4)?,
    };
    let a = pairs.narrow(4, 0, 1)?.squeeze(4)?;
    let b = pairs.narrow(4, 1, 1)?.squeeze(4)?;
    let ya = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let yb = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    match neighbours {
        true => Tensor::stack(&[ya, yb], D::Minus1)?.reshape(x.shape()),
        false => Tensor::cat(&[ya, yb], D::Minus1),
    }
}

/// x and both tables, each differentiated; the tables are not unit vectors, so a wrong sign shows.
fn inputs(shape: [usize; 4], cos: &[usize], sin: &[usize]) -> [Tensor; 3] {
    [numbers(&shape, 1), numbers(cos, 2), numbers(sin, 3)]
}

fn heads_last(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)
}

#[test]
fn agree_with_plain_operations() -> Result<()> {
    let of_halves = |x: &[Tensor]| plain(&x[0], &x[1], &x[2], false);
    let of_neighbours = |x: &[Tensor]| plain(&x[0], &x[1], &x[2], true);
    let thd = |x: &[Tensor]| heads_last(&rope_thd(&heads_last(&x[0])?, &x[1], &x[2])?);
    for (shape, cos, sin) in [
        ([2, 3, 5, 8], &[5, 4][..], &[5, 4][..]),
        // Longer tables, of two lengths.
        ([2, 3, 5, 8], &[9, 4], &[7, 4]),
        // A table for each sample, also longer.
        ([2, 3, 5, 6], &[2, 5, 3], &[2, 5, 3]),
        ([3, 2, 4, 6], &[3, 6, 3], &[3, 9, 3]),
        // One table for each sample, one for all.
        ([3, 2, 4, 6], &[3, 4, 3], &[6, 3]),
        // A single step, and a single pair.
        ([2, 3, 1, 10], &[1, 5], &[4, 5]),
        ([2, 3, 1, 10], &[2, 1, 5], &[2, 4, 5]),
        ([1, 1, 7, 2], &[7, 1], &[7, 1]),
    ] {
        let inputs = inputs(shape, cos, sin);
        agrees(&|x| rope(&x[0], &x[1], &x[2]), &of_halves, &inputs)?;
        agrees(&|x| rope_i(&x[0], &x[1], &x[2]), &of_neighbours, &inputs)?;
        agrees(&thd, &of_halves, &inputs)?;
        if cos.len() == 2 && sin.len() == 2 {
            agrees(&|x| rope_slow(&x[0], &x[1], &x[2]), &of_halves, &inputs)?;
            agrees(
                &|x| rope_i_slow(&x[0], &x[1], &x[2]),
                &of_neighbours,
                &inputs,
            )?;
        }
    }
    let operations: [Operation; 3] = [
        &|x| rope(&x[0], &x[1], &x[2]),
        &|x| rope_i(&x[0], &x[1], &x[2]),
        &thd,
    ];
    for operation in operations {
        agrees_with_differences(operation, &inputs([2, 2, 3, 4], &[4, 2], &[2, 3, 2]))?;
    }
    Ok(())
}

#[test]
fn forward_equals_candles_bit_by_bit() -> Result<()> {
    use candle_nn::rotary_emb as candles;
    for dtype in FLOATS {
        for time in [1, 5] {
            let inputs = inputs([2, 3, time, 8], &[2, time, 4], &[2, time, 4]);
            let [x, cos, sin] = inputs.map(|input| input.to_dtype(dtype));
            let (x, cos, sin) = (x?, cos?, sin?);
            same_bits(&rope(&x, &cos, &sin)?, &candles::rope(&x, &cos, &sin)?)?;
            same_bits(&rope_i(&x, &cos, &sin)?, &candles::rope_i(&x, &cos, &sin)?)?;
            let x = heads_last(&x)?.contiguous()?;
            same_bits(
                &rope_thd(&x, &cos, &sin)?,
                &candles::rope_thd(&x, &cos, &sin)?,
            )?;
        }
    }
    Ok(())
}

#[test]
fn fixed_tables_receive_nothing() -> Result<()> {
    let [x, cos, sin] = inputs([2, 2, 3, 4], &[3, 2], &[3, 2]);
    let operation = |x: &[Tensor]| rope(&x[0], &cos, &sin);
    let (_, gradients) = differentiate(&operation, std::slice::from_ref(&x), Strides::Transposed)?;
    let reference = |x: &[Tensor]| plain(&x[0], &cos, &sin, false);
    let (_, plain) = differentiate(&reference, std::slice::from_ref(&x), Strides::Transposed)?;
    assert!(difference(&gradients[0], &plain[0]) < 1e-12);
    let x = Var::from_tensor(&x)?;
    let store = rope(&x, &cos, &sin)?.sum_all()?.backward()?;
    assert!(store.get(&cos).is_none() && store.get(&sin).is_none());
    Ok(())
}

#[test]
fn learned_frequencies_receive_their_gradient_from_a_fixed_input() -> Result<()> {
    let [x, angles, _] = inputs([2, 2, 3, 4], &[3, 2], &[3, 2]);
    let angles = Var::from_tensor(&angles)?;
    let gradient = |of: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| -> Result<Tensor> {
        let ys = of(&angles.cos()?, &angles.sin()?)?;
        let store = (ys * numbers(&[2, 2, 3, 4], 9))?.sum_all()?.backward()?;
        Ok(store.get(&angles).expect("a gradient").clone())
    };
    let found = gradient(&|cos, sin| rope_i(&x, cos, sin))?;
    let expected = gradient(&|cos, sin| plain(&x, cos, sin, true))?;
    assert!(difference(&found, &expected) < 1e-12);
    Ok(())
}

#[test]
fn slow_forms_accept_what_candles_accept() -> Result<()> {
    use candle_nn::rotary_emb as candles;
    let [x, cos, sin] = inputs([2, 3, 5, 8], &[9, 1, 4], &[9, 4, 1]);
    let off = difference(
        &rope_i_slow(&x, &cos, &sin)?,
        &candles::rope_i_slow(&x, &cos, &sin)?,
    );
    assert!(off < 1e-12);
    // A table that is broadcast over the pairs.
    let [x, cos, sin] = inputs([2, 3, 5, 2], &[5, 1], &[5, 1]);
    let off = difference(
        &rope_slow(&x, &cos, &sin)?,
        &candles::rope_slow(&x, &cos, &sin)?,
    );
    assert!(off < 1e-12);
    Ok(())
}

#[test]
fn odd_inputs_are_errors_or_empty() -> Result<()> {
    let [x, cos, sin] = inputs([2, 3, 5, 8], &[5, 4], &[5, 4]);
    for wrong in [
        &[4, 4][..],
        &[5, 3],
        &[3, 5, 4],
        &[2, 4, 4],
        &[20],
        &[1, 2, 5, 4],
    ] {
        let table = numbers(wrong, 1);
        for result in [rope(&x, &table, &sin), rope_i(&x, &cos, &table)] {
            let error = result.expect_err("a wrong table").to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
    assert!(rope(&x.squeeze(0)?.narrow(0, 0, 1)?.squeeze(0)?, &cos, &sin).is_err());
    assert!(rope(&x, &cos.to_dtype(DType::F32)?, &sin).is_err());
    assert!(rope_slow(&x, &cos.narrow(0, 0, 4)?, &sin).is_err());
    assert!(rope_i_slow(&x, &cos.narrow(0, 0, 4)?, &sin).is_err());
    let odd = numbers(&[1, 1, 5, 7], 1);
    let table = numbers(&[5, 3], 1);
    for result in [
        rope(&odd, &table, &table),
        rope_i(&odd, &table, &table),
        rope_thd(&odd, &table, &table),
    ] {
        let error = result.expect_err("an odd dimension").to_string();
        assert!(error.contains("even") && error.contains("d = 7"), "{error}");
    }
    for shape in [[0, 3, 5, 8], [2, 0, 5, 8], [2, 3, 0, 8]] {
        let x = Tensor::zeros(&shape, DType::F64, &Device::Cpu)?;
        for ys in [
            rope(&x, &cos, &sin)?,
            rope_i(&x, &cos, &sin)?,
            rope_slow(&x, &cos, &sin)?,
        ] {
            assert_eq!(ys.dims(), shape);
        }
        let [x, cos, sin] = [&x, &cos, &sin].map(Var::from_tensor);
        let (x, cos, sin) = (x?, cos?, sin?);
        let mut store = rope(&x, &cos, &sin)?.sum_all()?.backward()?;
        for var in [&x, &cos, &sin] {
            let gradient = store.remove(var).expect("a gradient");
            same_bits(&gradient, &var.zeros_like()?)?;
        }
    }
    Ok(())
}
