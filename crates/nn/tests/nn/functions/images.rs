//! Functions of images, and of places.

use candle_core::{Result, Tensor};
use candle_headroom_nn::{WithGradients, ops};

use super::case::{Argument, Argument::*, Case, Kind};

fn image(length: usize) -> Vec<Argument> {
    vec![Sample(vec![2, length + 4, 6])]
}

fn of_images(name: &'static str, kind: Kind, run: fn(&Tensor) -> Result<Tensor>) -> Case {
    Case::new(name, "", kind, image, move |x| run(&x[0]))
}

pub fn cases() -> Vec<Case> {
    let line = |length| vec![Sample(vec![4, length + 4]), Shared(vec![6, 4, 3])];
    let plane = |length| vec![Sample(vec![4, length + 3, 5]), Shared(vec![6, 4, 3, 3])];
    let spread = |length| vec![Sample(vec![4, length + 4]), Shared(vec![4, 6, 3])];
    let places = |length| {
        let source = vec![length, 3];
        vec![
            Sample(vec![9, 3]),
            Numbers(source.clone(), 9),
            Sample(source),
        ]
    };
    vec![
        of_images("ops::max_pool2d", Kind::Rows, |x| {
            ops::max_pool2d(x, 3, 2, 1)
        }),
        of_images("ops::avg_pool2d", Kind::Sums, |x| {
            ops::avg_pool2d(x, (3, 2), (1, 2), 1)
        }),
        of_images("ops::adaptive_avg_pool2d", Kind::Sums, |x| {
            ops::adaptive_avg_pool2d(x, (3, 4))
        }),
        of_images("ops::upsample_nearest2d", Kind::Sums, |x| {
            ops::upsample_nearest2d(x, 7, 9)
        }),
        of_images("ops::upsample_bilinear2d", Kind::Sums, |x| {
            ops::upsample_bilinear2d(x, 7, 9, false)
        }),
        Case::new(
            "ops::upsample_nearest1d",
            "",
            Kind::Sums,
            |length| vec![Sample(vec![2, length + 1])],
            |x| ops::upsample_nearest1d(&x[0], 7),
        ),
        of_images("WithGradients, Differentiable", Kind::Rows, |x| {
            x.with_gradients().max_pool2d_with_stride(3, 2)
        }),
        Case::new("Differentiable", "conv1d", Kind::Sums, line, |x| {
            x[0].with_gradients().conv1d(&x[1], 1, 2, 1, 1)
        }),
        Case::new("Differentiable", "conv2d", Kind::Sums, plane, |x| {
            x[0].with_gradients().conv2d(&x[1], 1, 2, 1, 1)
        }),
        Case::new(
            "Differentiable",
            "conv_transpose1d",
            Kind::Sums,
            spread,
            |x| x[0].with_gradients().conv_transpose1d(&x[1], 1, 1, 2, 1, 1),
        ),
        Case::new("ops::scatter_add", "", Kind::Rows, places, |x| {
            ops::scatter_add(&x[0], &x[1], &x[2], 1)
        }),
        Case::new(
            "ops::scatter",
            "",
            Kind::Rows,
            |_| {
                vec![
                    Sample(vec![9, 3]),
                    Numbers(vec![1, 3], 9),
                    Sample(vec![1, 3]),
                ]
            },
            |x| ops::scatter(&x[0], &x[1], &x[2], 1),
        ),
        Case::of_rows("ops::unfold", "", 3, |x| ops::unfold(x, 2, 2, 1)),
    ]
}
