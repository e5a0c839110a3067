use candle_core::{Device, Result, Tensor};
use candle_headroom_nn::loss::{linear_cross_entropy, linear_cross_entropy_sum};

use super::{Plain, targets};
use crate::check::{agrees, agrees_with_differences, difference, numbers};

/// Hidden states (…, width), a weight and a bias.
fn inputs(tokens: &[usize], width: usize, classes: usize) -> [Tensor; 3] {
    let hidden = [tokens, &[width]].concat();
    [
        numbers(&hidden, 1),
        numbers(&[classes, width], 2),
        numbers(&[classes], 3),
    ]
}

fn each_option(shape: &[usize]) -> Result<Vec<Plain>> {
    let all = Plain::everything(shape)?;
    let none = Plain::default();
    Ok(vec![
        none.clone(),
        Plain {
            smoothing: 0.3,
            ..none.clone()
        },
        Plain {
            z_loss: 0.1,
            ..none.clone()
        },
        Plain {
            softcap: Some(0.7),
            ..none.clone()
        },
        Plain {
            ignored: Some(2),
            ..none.clone()
        },
        Plain {
            weights: all.weights.clone(),
            ..none
        },
        all,
    ])
}

/// In all types and layouts.
#[test]
fn agrees_with_plain_operations() -> Result<()> {
    for (shape, width, classes) in [(&[5][..], 3, 7), (&[2, 3], 4, 5), (&[2, 1, 9], 33, 70)] {
        let (targets, inputs) = (targets(shape, classes)?, inputs(shape, width, classes));
        for plain in each_option(shape)? {
            let options = plain.options(&Device::Cpu)?;
            agrees(
                &|x| linear_cross_entropy(&x[0], &x[1], &targets, &options),
                &|x| plain.mean(x, &targets),
                &inputs[..2],
            )?;
            agrees(
                &|x| {
                    let options = options.clone().bias(&x[2]);
                    Ok(linear_cross_entropy_sum(&x[0], &x[1], &targets, &options)?.value)
                },
                &|x| Ok(plain.sum(x, &targets)?.0),
                &inputs,
            )?;
        }
    }
    Ok(())
}

#[test]
fn gradients_are_finite_differences() -> Result<()> {
    let (targets, inputs) = (targets(&[2, 3], 5)?, inputs(&[2, 3], 4, 5));
    for plain in each_option(&[2, 3])? {
        let options = plain.options(&Device::Cpu)?;
        agrees_with_differences(
            &|x| linear_cross_entropy(&x[0], &x[1], &targets, &options.clone().bias(&x[2])),
            &inputs,
        )?;
    }
    Ok(())
}

#[test]
fn the_size_of_a_chunk_changes_roundings_only() -> Result<()> {
    let (targets, inputs) = (targets(&[13], 7)?, inputs(&[13], 4, 7));
    let plain = Plain::everything(&[13])?;
    for rows in [1, 2, 3, 5, 12, 13, 14, usize::MAX] {
        let options = plain.options(&Device::Cpu)?.chunk_rows(rows);
        agrees(
            &|x| linear_cross_entropy(&x[0], &x[1], &targets, &options.clone().bias(&x[2])),
            &|x| plain.mean(x, &targets),
            &inputs,
        )?;
    }
    Ok(())
}

/// More classes than are multiplied at a time, and more tokens than in a chunk.
#[test]
fn many_classes_and_tokens() -> Result<()> {
    for (tokens, width, classes) in [(3, 2, 9000), (1100, 3, 5)] {
        let (targets, inputs) = (
            targets(&[tokens], classes)?,
            inputs(&[tokens], width, classes),
        );
        let plain = Plain {
            smoothing: 0.1,
            ignored: Some(2),
            ..Plain::default()
        };
        let options = plain.options(&Device::Cpu)?;
        agrees(
            &|x| linear_cross_entropy(&x[0], &x[1], &targets, &options.clone().bias(&x[2])),
            &|x| plain.mean(x, &targets),
            &inputs,
        )?;
    }
    Ok(())
}

#[test]
fn the_sum_has_the_weight_of_what_counts() -> Result<()> {
    let (shape, inputs) = ([2, 6], inputs(&[2, 6], 4, 7));
    let targets = targets(&shape, 7)?;
    for plain in each_option(&shape)? {
        let options = plain.options(&Device::Cpu)?;
        let sum = linear_cross_entropy_sum(&inputs[0], &inputs[1], &targets, &options)?;
        let (value, weight) = plain.sum(&inputs[..2], &targets)?;
        assert_eq!(sum.weight, weight, "{plain:?}");
        assert!(difference(&sum.value, &value) < 1e-12, "{plain:?}");
    }
    Ok(())
}
