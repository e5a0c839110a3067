//! Distorted training images, made by the loader's workers.

use std::f32::consts::PI;

use anyhow::Result;
use candle_core::{DType, Device};
use candle_headroom::DeviceMemory;
use candle_headroom::data::{Check, Dataset, Loader};
use candle_headroom::error::BoxedError;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::arguments::Arguments;
use crate::digits::{Batch, Digit, SIDE, batch};

/// Largest angle in either direction.
const TURN: f32 = 15. / 180. * PI;
/// Largest part by which an image grows or shrinks.
const GROWTH: f32 = 0.15;
/// Largest shift in each direction, in pixels.
const SHIFT: f32 = 0.8;
/// Largest change of a pixel's ink, of which the paper has 0 and the pen 1.
const NOISE: f32 = 0.1;

/// Each digit so many times, each time distorted in another way. An index names a digit and its distortion, so a sample does not depend
/// on the worker that makes it, or on what came before.
struct Distorted {
    digits: Vec<Digit>,
    times: usize,
    seed: u64,
    is_plain: bool,
}

impl Dataset for Distorted {
    type Sample = Digit;

    fn len(&self) -> usize {
        self.digits.len() * self.times
    }

    fn get(&self, index: usize) -> Result<Digit, BoxedError> {
        let digit = self.digits.get(index % self.digits.len());
        let digit = digit.ok_or("no such digit")?;
        if self.is_plain {
            return Ok(digit.clone());
        }
        let mut rng = StdRng::seed_from_u64(self.seed.rotate_left(32) ^ index as u64);
        Ok(distort(digit, &mut rng))
    }

    fn name(&self) -> String {
        "the digits".to_owned()
    }
}

/// Turns, scales and shifts an image, and adds noise.
fn distort(digit: &Digit, rng: &mut impl Rng) -> Digit {
    let (sin, cos) = rng.random_range(-TURN..TURN).sin_cos();
    let scale = 1. / rng.random_range(1. - GROWTH..1. + GROWTH);
    let shift = [(); 2].map(|()| rng.random_range(-SHIFT..SHIFT));
    let center = (SIDE - 1) as f32 / 2.;
    let mut pixels = [0.; SIDE * SIDE];
    for (place, pixel) in pixels.iter_mut().enumerate() {
        // Where in the image the ink of this pixel comes from.
        let x = (place % SIDE) as f32 - center - shift[0];
        let y = (place / SIDE) as f32 - center - shift[1];
        let (from_x, from_y) = (cos * x - sin * y, sin * x + cos * y);
        let ink = between(
            &digit.pixels,
            scale * from_x + center,
            scale * from_y + center,
        );
        *pixel = (ink + rng.random_range(-NOISE..NOISE)).clamp(0., 1.);
    }
    Digit {
        pixels,
        label: digit.label,
    }
}

/// The ink at a point between four pixels. Outside of the image is paper.
fn between(pixels: &[f32; SIDE * SIDE], x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let (right, below) = (x - left, y - top); // from 0 to 1
    let ink = |dx: f32, dy: f32| {
        let (x, y) = (left + dx, top + dy);
        let inside = 0. ..SIDE as f32;
        match inside.contains(&x) && inside.contains(&y) {
            true => pixels[y as usize * SIDE + x as usize],
            false => 0.,
        }
    };
    let upper = ink(0., 0.) * (1. - right) + ink(1., 0.) * right;
    let lower = ink(0., 1.) * (1. - right) + ink(1., 1.) * right;
    upper * (1. - below) + lower * below
}

/// Loads batches of distorted images. Workers read ahead on the host what the budget leaves room for; for a GPU they copy batches to it.
pub fn batches(
    digits: &[Digit],
    arguments: &Arguments,
    memory: &DeviceMemory,
) -> Result<Loader<Batch>> {
    let distorted = Distorted {
        digits: digits.to_vec(),
        times: arguments.passes,
        seed: arguments.seed,
        is_plain: arguments.plain,
    };
    let collate = |digits: Vec<Digit>| Ok(batch(&digits)?);
    let side = Some(SIDE);
    let images = Check::new("images").dtype(DType::F32);
    let images = images.shape([None, Some(1), side, side]);
    let loader = Loader::builder(distorted, collate)
        .batch(arguments.batch)
        .shuffle(arguments.seed)
        .workers(arguments.workers)
        .check(images.finite())
        .check(Check::new("labels").range(0..10));
    let loader = match memory.device() {
        Device::Cpu => loader.memory(memory),
        device => loader.device(device),
    };
    Ok(loader.build()?)
}
