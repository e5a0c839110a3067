//! Operations of `nn::ops` in the place of methods of candle's tensors whose gradients are missing or wrong.
#![allow(dead_code, reason = "each test binary uses its own part")]

use candle_core::{Result, Tensor};
use candle_headroom_nn::{WithGradients, ops};

use crate::candle_operations::{Operation, indices, one, two};

/// An operation, and candle's that gives the same, if there is one.
pub struct Replacement {
    pub ours: Operation,
    pub candles: Option<Operation>,
}

/// A method of candle's name, which is called twice: on x with gradients, and on x.
macro_rules! method {
    ($name:expr, $dims:expr, |$x:ident| $call:expr) => {
        Replacement {
            ours: one($name, $dims, |$x| {
                let $x = $x.with_gradients();
                $call
            }),
            candles: Some(one($name, $dims, |$x| $call)),
        }
    };
    ($name:expr, $left:expr, $right:expr, |$x:ident, $y:ident| $call:expr) => {
        Replacement {
            ours: two($name, $left, $right, |$x, $y| {
                let $x = $x.with_gradients();
                $call
            }),
            candles: Some(two($name, $left, $right, |$x, $y| $call)),
        }
    };
}

fn new(
    name: &str,
    dims: &[usize],
    ours: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Replacement {
    Replacement {
        ours: one(name, dims, ours),
        candles: None,
    }
}

/// Every one, with several sizes and parameters.
pub fn replacements() -> Vec<Replacement> {
    let mut all = pooling();
    all.extend(resampling());
    all.extend(convolutions());
    all.extend(places());
    all
}

fn pooling() -> Vec<Replacement> {
    let image = &[2, 2, 5, 6];
    vec![
        method!("max_pool2d 2", image, |x| x.max_pool2d(2)),
        method!("max_pool2d 3x2", image, |x| x.max_pool2d((3, 2))),
        method!("max_pool2d 1", image, |x| x.max_pool2d(1)),
        method!("max_pool2d 3 every 2", image, |x| x
            .max_pool2d_with_stride(3, 2)),
        method!("max_pool2d 2 every 3", image, |x| x
            .max_pool2d_with_stride(2, 3)),
        method!("max_pool2d 3x2 every 1x3", image, |x| x
            .max_pool2d_with_stride((3, 2), (1, 3))),
        method!("max_pool2d 5 every 1", image, |x| x
            .max_pool2d_with_stride(5, 1)),
        new("max_pool2d 3 every 2, padding 1", image, |x| {
            ops::max_pool2d(x, 3, 2, 1)
        }),
        new("max_pool2d 2x3 every 1x2, padding 1x0", image, |x| {
            ops::max_pool2d(x, (2, 3), (1, 2), (1, 0))
        }),
        new("max_pool2d 4 every 3, padding 2", image, |x| {
            ops::max_pool2d(x, 4, 3, 2)
        }),
        new("max_pool2d 8 every 1, padding 3", image, |x| {
            ops::max_pool2d(x, 8, 1, 3)
        }),
        method!("avg_pool2d 2", image, |x| x.avg_pool2d(2)),
        method!("avg_pool2d 1x3", image, |x| x.avg_pool2d((1, 3))),
        method!("avg_pool2d 3 every 2", image, |x| x
            .avg_pool2d_with_stride(3, 2)),
        method!("avg_pool2d 2 every 3", image, |x| x
            .avg_pool2d_with_stride(2, 3)),
        new("avg_pool2d 3 every 2, padding 1", image, |x| {
            ops::avg_pool2d(x, 3, 2, 1)
        }),
        new("avg_pool2d 4x3 every 3x1, padding 2x1", image, |x| {
            ops::avg_pool2d(x, (4, 3), (3, 1), (2, 1))
        }),
        new("adaptive_avg_pool2d 1", image, |x| {
            ops::adaptive_avg_pool2d(x, 1)
        }),
        new("adaptive_avg_pool2d 3x4", image, |x| {
            ops::adaptive_avg_pool2d(x, (3, 4))
        }),
        new("adaptive_avg_pool2d 7x6", image, |x| {
            ops::adaptive_avg_pool2d(x, (7, 6))
        }),
    ]
}

fn resampling() -> Vec<Replacement> {
    let (sequence, image) = (&[2, 2, 4], &[2, 2, 3, 4]);
    vec![
        method!("upsample_nearest1d 8", sequence, |x| x
            .upsample_nearest1d(8)),
        method!("interpolate1d 7", sequence, |x| x.interpolate1d(7)),
        method!("upsample_nearest1d 3", sequence, |x| x
            .upsample_nearest1d(3)),
        method!("upsample_nearest2d 6x8", image, |x| x
            .upsample_nearest2d(6, 8)),
        method!("interpolate2d 5x4", image, |x| x.interpolate2d(5, 4)),
        method!("upsample_nearest2d 2x9", image, |x| x
            .upsample_nearest2d(2, 9)),
        method!("upsample_bilinear2d 6x8", image, |x| x
            .upsample_bilinear2d(6, 8, false)),
        method!("upsample_bilinear2d 5x3", image, |x| x
            .upsample_bilinear2d(5, 3, false)),
        method!("upsample_bilinear2d 5x7 by corners", image, |x| x
            .upsample_bilinear2d(5, 7, true)),
        method!("upsample_bilinear2d 1x2 by corners", image, |x| x
            .upsample_bilinear2d(1, 2, true)),
        // candle's copies the whole memory that a view lies in.
        new("upsample_bilinear2d of the same size", image, |x| {
            x.with_gradients().upsample_bilinear2d(3, 4, false)
        }),
    ]
}

fn convolutions() -> Vec<Replacement> {
    let (sequence, kernel) = (&[2, 4, 7], &[4, 2, 3]);
    vec![
        method!("conv1d", sequence, &[3, 4, 3], |x, k| x
            .conv1d(k, 0, 1, 1, 1)),
        method!(
            "conv1d padding 1 stride 2 groups 2",
            sequence,
            kernel,
            |x, k| x.conv1d(k, 1, 2, 1, 2)
        ),
        method!(
            "conv1d padding 2 dilation 2",
            sequence,
            &[2, 4, 3],
            |x, k| x.conv1d(k, 2, 1, 2, 1)
        ),
        method!(
            "conv2d of odd sizes",
            &[2, 2, 5, 4],
            &[2, 2, 3, 3],
            |x, k| x.conv2d(k, 1, 2, 1, 1)
        ),
        method!("conv2d groups 2", &[2, 4, 4, 4], &[4, 2, 3, 2], |x, k| x
            .conv2d(k, 1, 1, 1, 2)),
        // candle's output is wrong in batches without padding.
        Replacement {
            candles: None,
            ..method!("conv_transpose1d", sequence, &[4, 3, 3], |x, k| x
                .conv_transpose1d(k, 0, 0, 1, 1, 1))
        },
        method!(
            "conv_transpose1d padding 1 stride 2 groups 2",
            sequence,
            kernel,
            |x, k| x.conv_transpose1d(k, 1, 1, 2, 1, 2)
        ),
    ]
}

fn places() -> Vec<Replacement> {
    let (wide, narrow) = (&[3, 4], &[3, 2]);
    vec![
        method!("scatter_add 1", wide, narrow, |x, y| {
            x.scatter_add(&indices(&[0, 1, 1, 1, 2, 0], &[3, 2], y)?, y, 1)
        }),
        method!("scatter_add 0", &[4, 3], &[2, 3], |x, y| {
            x.scatter_add(&indices(&[0, 1, 1, 3, 1, 2], &[2, 3], y)?, y, 0)
        }),
        method!("scatter_add of the same size", &[2, 3], &[2, 3], |x, y| {
            x.scatter_add(&indices(&[0, 1, 1, 0, 0, 1], &[2, 3], y)?, y, 0)
        }),
        method!("scatter 1", wide, narrow, |x, y| {
            x.scatter(&indices(&[0, 1, 1, 3, 2, 0], &[3, 2], y)?, y, 1)
        }),
        method!("scatter 0", &[4, 3], &[2, 3], |x, y| {
            x.scatter(&indices(&[0, 1, 1, 3, 2, 2], &[2, 3], y)?, y, 0)
        }),
        method!("unfold 0 2 2", &[4, 3], |x| x.unfold(0, 2, 2)),
        method!("unfold 1 3 1", wide, |x| x.unfold(1, 3, 1)),
        method!("unfold 1 2 3", &[2, 7, 3], |x| x.unfold(1, 2, 3)),
        method!("unfold 0 3 2", &[7], |x| x.unfold(0, 3, 2)),
    ]
}
