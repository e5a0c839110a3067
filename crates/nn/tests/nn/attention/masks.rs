use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{Attention, attention};

use super::{Plain, coarse, inputs, options};
use crate::check::{agrees_from_output as agrees, numbers};

/// All shapes that can be broadcast to these scores.
fn shapes(scores: [usize; 4]) -> Vec<Vec<usize>> {
    let full = (0..16).map(|bits| {
        let dims = scores.iter().enumerate();
        dims.map(|(axis, dim)| if bits >> axis & 1 == 0 { *dim } else { 1 })
            .collect()
    });
    let mut shapes: Vec<Vec<usize>> = full.collect();
    shapes.extend((1..=4).map(|from| scores[from..].to_vec()));
    shapes
}

#[test]
fn constant_masks_of_all_shapes() -> Result<()> {
    for shape in shapes([2, 4, 3, 5]) {
        let plain = Plain {
            mask: Some(coarse(&shape, 9)?),
            last_seen: Some(1),
            ..Plain::default()
        };
        agrees(
            &|x| attention(&x[0], &x[1], &x[2], &options(&plain, &x[0])?),
            &|x| plain.run(&x[0], &x[1], &x[2]),
            &inputs([2, 4, 2, 3, 5, 4, 4]),
        )?;
    }
    Ok(())
}

#[test]
fn masks_of_all_shapes_get_their_gradients() -> Result<()> {
    // Added to all keys of a query, a bias changes nothing: see below.
    let shapes = shapes([2, 4, 3, 5]).into_iter();
    for shape in shapes.filter(|shape| shape.last() == Some(&5)) {
        let [q, k, v] = inputs([2, 4, 2, 3, 5, 4, 4]);
        let run = |x: &[Tensor]| {
            let options = Attention::default().causal().softcap(3.).mask(&x[3]);
            attention(&x[0], &x[1], &x[2], &options)
        };
        let plain = |x: &[Tensor]| {
            let plain = Plain {
                mask: Some(x[3].clone()),
                last_seen: Some(2),
                softcap: Some(3.),
                ..Plain::default()
            };
            plain.run(&x[0], &x[1], &x[2])
        };
        agrees(&run, &plain, &[q, k, v, numbers(&shape, 9)])?;
    }
    Ok(())
}

#[test]
fn a_bias_of_all_keys_has_no_gradient() -> Result<()> {
    for shape in [&[2, 4, 3, 1][..], &[3, 1], &[1]] {
        let vars = inputs([2, 4, 2, 3, 5, 4, 4]).map(|x| Var::from_tensor(&x));
        let [q, k, v] = vars;
        let (q, k, v) = (q?, k?, v?);
        let mask = Var::from_tensor(&numbers(shape, 9))?;
        let y = attention(&q, &k, &v, &Attention::default().mask(&mask))?;
        let store = y.sqr()?.sum_all()?.backward()?;
        let gradient = store.get(&mask).expect("a gradient");
        assert_eq!(gradient.dims(), shape);
        let largest = gradient.abs()?.flatten_all()?.max(0)?.to_scalar::<f64>()?;
        assert!(largest < 1e-12, "{largest:e}");
    }
    Ok(())
}

/// The gradients of a mask come in chunks of at most 1024 queries.
#[test]
fn gradients_of_masks_are_joined() -> Result<()> {
    let queries = 1030;
    for shape in [vec![queries, 3], vec![2, 1, 3]] {
        let [q, k, v] = inputs([1, 2, 1, queries, 3, 2, 2]);
        let run = |x: &[Tensor]| {
            let options = Attention::default().causal().mask(&x[3]);
            attention(&x[0], &x[1], &x[2], &options)
        };
        let plain = |x: &[Tensor]| {
            let plain = Plain {
                mask: Some(x[3].clone()),
                last_seen: Some(3 - queries as i64),
                ..Plain::default()
            };
            plain.run(&x[0], &x[1], &x[2])
        };
        agrees(&run, &plain, &[q, k, v, numbers(&shape, 9)])?;
    }
    Ok(())
}

/// ALiBi with learned slopes: the gradient goes on through what the mask was made of.
#[test]
fn learned_slopes_get_their_gradient() -> Result<()> {
    let [q, k, v] = inputs([2, 4, 4, 5, 5, 3, 3]);
    let distances = Tensor::from_iter(
        (0..25).map(|at| -f64::from((at / 5i32 - at % 5).abs())),
        &Device::Cpu,
    )?;
    let bias = |slopes: &Tensor| {
        let distances = distances.to_dtype(slopes.dtype())?.reshape((1, 5, 5))?;
        slopes.reshape((4, 1, 1))?.broadcast_mul(&distances)
    };
    agrees(
        &|x| {
            attention(
                &x[0],
                &x[1],
                &x[2],
                &Attention::default().mask(&bias(&x[3])?),
            )
        },
        &|x| {
            let plain = Plain {
                mask: Some(bias(&x[3])?),
                ..Plain::default()
            };
            plain.run(&x[0], &x[1], &x[2])
        },
        &[q, k, v, numbers(&[4], 8)],
    )
}

#[test]
fn queries_that_see_nothing_get_zeros() -> Result<()> {
    let mut hidden = vec![0f32; 2 * 4 * 5];
    hidden[5..10].fill(f32::NEG_INFINITY);
    hidden[37] = f32::NEG_INFINITY;
    let mask = Tensor::from_vec(hidden, (2, 1, 4, 5), &Device::Cpu)?;
    for dtype in [DType::F32, DType::F64, DType::F16] {
        for learned in [false, true] {
            let [q, k, v] = inputs([2, 2, 2, 4, 5, 3, 3]).map(|x| x.to_dtype(dtype));
            let (q, k, v) = (
                Var::from_tensor(&q?)?,
                Var::from_tensor(&k?)?,
                Var::from_tensor(&v?)?,
            );
            let mask = Var::from_tensor(&mask.to_dtype(dtype)?)?;
            let added = match learned {
                true => mask.as_tensor().clone(),
                false => mask.as_detached_tensor(),
            };
            let y = attention(&q, &k, &v, &Attention::default().mask(&added).softcap(5.))?;
            let all = |x: &Tensor| x.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>();
            assert_eq!(all(&y.get(0)?.narrow(1, 1, 1)?)?, [0.; 6]);
            let store = y.sqr()?.sum_all()?.backward()?;
            let gradient = |var: &Var| store.get(var).expect("a gradient");
            assert_eq!(all(&gradient(&q).get(0)?.narrow(1, 1, 1)?)?, [0.; 6]);
            assert_eq!(store.get(&mask).is_some(), learned);
        }
    }
    let run = |x: &[Tensor], mask: &Tensor| {
        let options = Attention::default().mask(mask).softcap(5.);
        attention(&x[0], &x[1], &x[2], &options)
    };
    let plain = |x: &[Tensor], mask: &Tensor| {
        let plain = Plain {
            mask: Some(mask.clone()),
            softcap: Some(5.),
            ..Plain::default()
        };
        plain.run(&x[0], &x[1], &x[2])
    };
    let [q, k, v] = inputs([2, 2, 2, 4, 5, 3, 3]);
    agrees(
        &|x| run(x, &mask.to_dtype(x[0].dtype())?),
        &|x| plain(x, &mask),
        &[q.clone(), k.clone(), v.clone()],
    )?;
    agrees(
        &|x| run(x, &x[3]),
        &|x| plain(x, &x[3]),
        &[q, k, v, mask.to_dtype(DType::F64)?],
    )
}
