use candle_core::{DType, Device, IndexOp, Result, Tensor, Var};
use candle_headroom_nn::{Attention, attention, seeded};

use super::{Plain, inputs, options};
use crate::check::{agrees_from_output as agrees, agrees_with_differences, numbers, same_bits};

/// Asserts that attention agrees with plain operations.
fn compare(plain: &Plain, sizes: [usize; 7]) -> Result<()> {
    agrees(
        &|x| attention(&x[0], &x[1], &x[2], &options(plain, &x[0])?),
        &|x| plain.run(&x[0], &x[1], &x[2]),
        &inputs(sizes),
    )
}

#[test]
fn attention_agrees_with_plain_operations() -> Result<()> {
    let all = Plain::default();
    let causal = Plain {
        last_seen: Some(0),
        ..Plain::default()
    };
    let after_cache = Plain {
        last_seen: Some(4),
        scale: Some(0.3),
        softcap: Some(1.5),
        ..Plain::default()
    };
    for sizes in [
        [1, 1, 1, 2, 3, 1, 1],
        [2, 3, 3, 5, 5, 4, 4],
        // A key head for two and for all query heads, values of another width, more keys than queries and fewer.
        [2, 4, 2, 3, 7, 5, 6],
        [1, 3, 1, 8, 5, 2, 1],
        // One query.
        [2, 4, 2, 1, 9, 8, 8],
    ] {
        compare(&all, sizes)?;
        // One query that sees one key has no gradient, which rounding would be compared with.
        if sizes[3] > 1 {
            compare(&causal, sizes)?;
        }
        compare(&after_cache, sizes)?;
    }
    Ok(())
}

#[test]
fn tiles_agree_with_plain_operations() -> Result<()> {
    // More than a tile of queries and of keys, neither a multiple of a tile.
    for last_seen in [None, Some(0), Some(150)] {
        let plain = Plain {
            last_seen,
            ..Plain::default()
        };
        compare(&plain, [1, 2, 1, 150, 300, 5, 7])?;
    }
    let plain = Plain {
        last_seen: Some(3),
        softcap: Some(2.),
        mask: Some(super::coarse(&[1, 2, 1, 530], 4)?),
        ..Plain::default()
    };
    compare(&plain, [2, 2, 1, 140, 530, 3, 3])
}

#[test]
fn gradients_agree_with_differences() -> Result<()> {
    let causal = |q: &Tensor| {
        q.dims4()
            .map(|_| Attention::default().causal().softcap(0.7))
    };
    agrees_with_differences(
        &|x| attention(&x[0], &x[1], &x[2], &causal(&x[0])?),
        &inputs([2, 4, 2, 3, 4, 2, 3]),
    )?;
    let mask = numbers(&[2, 1, 4], 5);
    let dropped = Attention::default().scale(1.3).dropout(0.4);
    let [q, k, v] = inputs([1, 2, 2, 2, 4, 3, 2]);
    agrees_with_differences(
        &|x| {
            seeded(7, || {
                attention(&x[0], &x[1], &x[2], &dropped.clone().mask(&x[3]))
            })
        },
        &[q, k, v, mask],
    )
}

#[test]
fn the_last_query_sees_the_last_key() -> Result<()> {
    let [q, k, v] = inputs([1, 2, 2, 3, 5, 4, 4]);
    let (q, k, v) = (
        Var::from_tensor(&q)?,
        Var::from_tensor(&k)?,
        Var::from_tensor(&v)?,
    );
    let causal = attention(&q, &k, &v, &Attention::default().causal())?;
    let from = attention(&q, &k, &v, &Attention::default().causal_from(2))?;
    same_bits(&causal, &from)?;
    // More queries than keys: the first ones see nothing.
    let [q, k, v] = inputs([1, 1, 1, 6, 4, 3, 2]);
    let (q, k, v) = (
        Var::from_tensor(&q)?,
        Var::from_tensor(&k)?,
        Var::from_tensor(&v)?,
    );
    let y = attention(&q, &k, &v, &Attention::default().causal())?;
    let blind = y.narrow(2, 0, 2)?;
    assert_eq!(blind.flatten_all()?.to_vec1::<f64>()?, [0.; 4]);
    let seeing = attention(&q.narrow(2, 2, 4)?, &k, &v, &Attention::default().causal())?;
    same_bits(&y.narrow(2, 2, 4)?, &seeing)?;
    let gradients = y.sqr()?.sum_all()?.backward()?;
    let dq = gradients.get(&q).expect("a gradient").narrow(2, 0, 2)?;
    assert_eq!(dq.flatten_all()?.to_vec1::<f64>()?, [0.; 6]);
    Ok(())
}

#[test]
fn the_output_can_be_joined_without_a_copy() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let [q, k, v] = inputs([2, 4, 2, 6, 6, 3, 5]).map(|x| x.to_dtype(dtype));
        let (q, k, v) = (
            Var::from_tensor(&q?)?,
            Var::from_tensor(&k?)?,
            Var::from_tensor(&v?)?,
        );
        let y = attention(&q, &k, &v, &Attention::default())?;
        assert_eq!(y.dims(), [2, 4, 6, 5]);
        assert!(y.transpose(1, 2)?.is_contiguous());
        assert!(!y.is_contiguous());
    }
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() -> Result<()> {
    // With one key head, three threads share it.
    for sizes in [[2, 4, 2, 200, 300, 16, 16], [1, 2, 1, 300, 600, 16, 8]] {
        let [q, k, v] = inputs(sizes).map(|x| x.to_dtype(DType::F32));
        let (q, k, v) = (
            Var::from_tensor(&q?)?,
            Var::from_tensor(&k?)?,
            Var::from_tensor(&v?)?,
        );
        let run = |threads: usize| -> Result<Vec<Tensor>> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads").install(|| {
                let options = Attention::default().causal().dropout(0.1);
                let y = seeded(3, || attention(&q, &k, &v, &options))?;
                let store = y.sqr()?.sum_all()?.backward()?;
                let gradients = [&q, &k, &v].map(|var| store.get(var).expect("a gradient").clone());
                Ok([vec![y.detach()], gradients.to_vec()].concat())
            })
        };
        for (one, three) in run(1)?.iter().zip(run(3)?) {
            same_bits(one, &three)?;
        }
    }
    Ok(())
}

#[test]
fn odd_inputs_are_errors_or_zeros() -> Result<()> {
    let none = Attention::default();
    let zeros = |shape: [usize; 4]| Tensor::zeros(&shape, DType::F32, &Device::Cpu);
    let x = zeros([2, 2, 3, 4])?;
    let message = |k: [usize; 4], v: [usize; 4], options: &Attention| -> Result<String> {
        let result = attention(&x, &zeros(k)?, &zeros(v)?, options);
        Ok(result.expect_err("an error").to_string())
    };
    let fits = [2, 2, 3, 4];
    for (k, v, options, part) in [
        ([2, 2, 3, 5], fits, &none, "width of q"),
        ([1, 2, 3, 4], fits, &none, "batch and width"),
        (fits, [2, 2, 5, 4], &none, "length of k"),
        (fits, [2, 1, 3, 4], &none, "heads and length"),
        ([2, 3, 3, 4], [2, 3, 3, 4], &none, "not a multiple"),
        ([2, 0, 3, 4], [2, 0, 3, 4], &none, "not a multiple"),
        (
            fits,
            fits,
            &none.clone().scale(f64::NAN),
            "scale must be finite",
        ),
        (
            fits,
            fits,
            &none.clone().softcap(0.),
            "softcap must be positive",
        ),
        (
            fits,
            fits,
            &none.clone().dropout(1.),
            "dropout rate must be in [0, 1)",
        ),
        (
            fits,
            fits,
            &none.clone().mask(&zeros([2, 2, 3, 2])?),
            "cannot be broadcast",
        ),
    ] {
        let message = message(k, v, options)?;
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
    let integers = x.to_dtype(DType::U32)?;
    assert!(attention(&integers, &integers, &integers, &none).is_err());
    assert!(attention(&x, &x.to_dtype(DType::F64)?, &x, &none).is_err());
    assert!(attention(&x, &x, &x.i((0, 0))?, &none).is_err());

    // No keys, no queries, no samples, values of width 0.
    for (q, k, v) in [
        ([2, 2, 3, 4], [2, 2, 0, 4], [2, 2, 0, 5]),
        ([2, 2, 0, 4], [2, 2, 3, 4], [2, 2, 3, 5]),
        ([0, 2, 3, 4], [0, 2, 3, 4], [0, 2, 3, 5]),
        ([2, 2, 3, 4], [2, 2, 3, 4], [2, 2, 3, 0]),
    ] {
        let vars = [q, k, v].map(|shape| Var::zeros(shape.as_slice(), DType::F32, &Device::Cpu));
        let [q, k, v] = vars;
        let (q, k, v) = (q?, k?, v?);
        let y = attention(&q, &k, &v, &none)?;
        assert_eq!(y.dims(), [q.dim(0)?, 2, q.dim(2)?, v.dim(3)?]);
        assert!(y.flatten_all()?.to_vec1::<f32>()?.iter().all(|y| *y == 0.));
        let store = y.sum_all()?.backward()?;
        assert!([&q, &k, &v].iter().all(|var| store.get(var).is_some()));
    }
    Ok(())
}
