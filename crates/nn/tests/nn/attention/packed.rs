use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::varlen_attention::flash_attn_varlen_unfused;
use candle_headroom_nn::{Attention, attention};

use super::Plain;
use crate::check::{agrees, difference, numbers};

/// Of each head.
const SLOPES: [f32; 4] = [0.5, 0.25, 0.125, 0.0625];

/// How sequences of these lengths attend.
#[derive(Clone, Copy)]
struct Packed<'a> {
    lengths: &'a [[usize; 2]],
    causal: bool,
    window: [Option<usize>; 2],
    slopes: bool,
}

impl Packed<'_> {
    /// (all positions, heads, width)
    fn inputs(&self) -> [Tensor; 3] {
        let all = |at: usize| self.lengths.iter().map(|of| of[at]).sum();
        let (queries, keys) = (all(0), all(1));
        [
            numbers(&[queries, 4, 6], 1),
            numbers(&[keys, 2, 6], 2),
            numbers(&[keys, 2, 6], 3),
        ]
    }

    fn tensors(&self) -> Result<[Tensor; 3]> {
        let lengths = |at: usize| self.lengths.iter().map(move |of| of[at] as u32);
        let tensor = |values: Vec<u32>| Tensor::new(values, &Device::Cpu);
        Ok([
            tensor(lengths(0).collect())?,
            tensor(lengths(1).collect())?,
            Tensor::new(&SLOPES, &Device::Cpu)?,
        ])
    }

    fn ours(&self, x: &[Tensor]) -> Result<Tensor> {
        let ([queries, keys, slopes], [left, right]) = (self.tensors()?, self.window);
        let slopes = self.slopes.then_some(&slopes);
        flash_attn_varlen_unfused(
            &x[0],
            &x[1],
            &x[2],
            slopes,
            &queries,
            &keys,
            9,
            9,
            0.4,
            self.causal,
            left,
            right,
        )
    }

    fn theirs(&self, x: &[Tensor]) -> Result<Tensor> {
        let ([queries, keys, slopes], [left, right]) = (self.tensors()?, self.window);
        let slopes = self.slopes.then_some(&slopes);
        candle_nn::attention::flash_attn_varlen_unfused(
            &x[0],
            &x[1],
            &x[2],
            slopes,
            &queries,
            &keys,
            9,
            9,
            0.4,
            self.causal,
            left,
            right,
        )
    }

    /// Plain operations on each sequence.
    fn plain(&self, x: &[Tensor]) -> Result<Tensor> {
        let mut outputs = Vec::new();
        let mut first = [0, 0];
        for [queries, keys] in self.lengths.iter().copied() {
            let part = |at: usize, kind: usize, count: usize| {
                let part = x[at].narrow(0, first[kind], count)?;
                part.transpose(0, 1)?.unsqueeze(0)?.contiguous()
            };
            if queries > 0 && keys > 0 {
                let plain = Plain {
                    mask: Some(self.mask(queries as i128, keys as i128)?),
                    scale: Some(0.4f32.into()),
                    ..Plain::default()
                };
                let y = plain.run(
                    &part(0, 0, queries)?,
                    &part(1, 1, keys)?,
                    &part(2, 1, keys)?,
                )?;
                outputs.push(y.squeeze(0)?.transpose(0, 1)?);
            } else if queries > 0 {
                outputs.push(Tensor::zeros((queries, 4, 6), DType::F64, &Device::Cpu)?);
            }
            first = [first[0] + queries, first[1] + keys];
        }
        Tensor::cat(&outputs, 0)
    }

    /// What is added to the scores of a sequence.
    fn mask(&self, queries: i128, keys: i128) -> Result<Tensor> {
        let mut values = Vec::new();
        let [left, right] = self.window;
        for slope in SLOPES {
            for query in 0..queries {
                for key in 0..keys {
                    let after = key - (query + keys - queries);
                    let past = left.is_some_and(|left| -after > left as i128);
                    let ahead = left.is_some() && after > right.unwrap_or(0) as i128;
                    values.push(match past || ahead || self.causal && after > 0 {
                        true => f64::NEG_INFINITY,
                        false if self.slopes => -f64::from(slope) * after.abs() as f64,
                        false => 0.,
                    });
                }
            }
        }
        Tensor::from_vec(values, (4, queries as usize, keys as usize), &Device::Cpu)
    }
}

#[test]
fn packed_sequences_equal_candles_and_get_gradients() -> Result<()> {
    const MOST: usize = usize::MAX;
    for (causal, window, slopes) in [
        (false, [None, None], false),
        (true, [None, None], true),
        (false, [Some(1), Some(2)], true),
        (true, [Some(2), None], false),
        (false, [Some(MOST), Some(0)], false),
        (false, [Some(1), Some(MOST)], false),
        (false, [Some(MOST), Some(MOST)], true),
    ] {
        let packed = Packed {
            lengths: &[[3, 4], [5, 7], [1, 1]],
            causal,
            window,
            slopes,
        };
        agrees(&|x| packed.ours(x), &|x| packed.plain(x), &packed.inputs())?;
        let typed = packed.inputs().map(|x| x.to_dtype(DType::F32));
        let typed = typed.into_iter().collect::<Result<Vec<_>>>()?;
        let (ours, theirs) = (packed.ours(&typed)?, packed.theirs(&typed)?);
        let off = difference(&ours.to_dtype(DType::F64)?, &theirs.to_dtype(DType::F64)?);
        assert!(off < 2e-6, "{off:e} off"); // rounding of f32
    }
    Ok(())
}

/// A window that begins and ends within tiles.
#[test]
fn long_sequences_with_windows() -> Result<()> {
    for causal in [false, true] {
        let packed = Packed {
            lengths: &[[300, 600], [2, 5]],
            causal,
            window: [Some(70), Some(9)],
            slopes: true,
        };
        agrees(&|x| packed.ours(x), &|x| packed.plain(x), &packed.inputs())?;
    }
    Ok(())
}

/// Where there are queries but no keys, candle leaves the queries out of the result: here they get zeros.
#[test]
fn sequences_may_be_empty() -> Result<()> {
    for slopes in [false, true] {
        let packed = Packed {
            lengths: &[[0, 0], [2, 3], [0, 4], [3, 0], [4, 4], [0, 0]],
            causal: false,
            window: [Some(2), Some(1)],
            slopes,
        };
        agrees(&|x| packed.ours(x), &|x| packed.plain(x), &packed.inputs())?;
    }
    Ok(())
}

/// Slopes that would not learn, slopes of other heads, and a mask of all positions.
#[test]
fn options_that_cannot_be_followed_are_errors() -> Result<()> {
    let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[1, 4, 3, 2], seed));
    let slopes = Tensor::new(&SLOPES, &Device::Cpu)?;
    let learned = Var::from_tensor(&slopes)?;
    let lengths = Attention::default().lengths(&[1, 2], &[2, 1]);
    for (options, expected) in [
        (Attention::default().alibi(&learned), "get no gradient"),
        (
            Attention::default().alibi(&slopes.narrow(0, 0, 2)?),
            "for 4 heads",
        ),
        (lengths.clone().mask(&q.zeros_like()?), "take no mask"),
        (lengths.clone().lengths(&[3], &[1, 2]), "do not add up"),
        (lengths.lengths(&[3, 1], &[usize::MAX, 4]), "do not add up"),
    ] {
        let error = attention(&q, &k, &v, &options).expect_err("an error");
        assert!(error.to_string().contains(expected), "{error}");
    }
    // Sizes that no index reaches hide nothing, and are finite distances.
    let far = Attention::default().causal_from(usize::MAX).alibi(&slopes);
    let y = attention(&q, &k, &v, &far)?;
    assert!(y.sum_all()?.to_scalar::<f64>()?.is_finite());
    let all = attention(&q, &k, &v, &Attention::default())?;
    let far = Attention::default().causal_from(usize::MAX);
    assert_eq!(difference(&attention(&q, &k, &v, &far)?, &all), 0.);
    Ok(())
}

#[test]
fn lengths_that_do_not_add_up_are_errors() -> Result<()> {
    let packed = Packed {
        lengths: &[[3, 4], [5, 7], [1, 1]],
        causal: false,
        window: [None, None],
        slopes: false,
    };
    let wrong = Packed {
        lengths: &[[3, 4], [5, 7], [1, 2]],
        ..packed
    };
    let message = wrong
        .ours(&packed.inputs())
        .expect_err("an error")
        .to_string();
    assert!(message.contains("do not add up"), "{message}");
    Ok(())
}
