//! Activation functions of one number, and their derivatives.

use crate::bounds::{at_least, at_most};
use crate::kernel::Number;
use candle_core::{Result, Tensor};

#[derive(Debug, Clone, Copy)]
pub enum Curve {
    Gelu,
    GeluErf,
    Silu,
    Relu,
    Sigmoid,
    Elu(f64),
    Relu2,
    Relu6,
    HardSigmoid,
    HardSwish,
    Mish,
    LeakyRelu(f64),
    Selu { alpha: f64, gamma: f64 },
}

/// √(2/π), and the factor of the cube in the approximation of GELU by tanh.
const GELU: [f64; 2] = [0.797_884_560_802_865_4, 0.044_715];

/// The curves as candle computes them.
impl Curve {
    /// Whether that is one operation.
    pub fn is_candles(self) -> bool {
        use Curve::*;
        matches!(self, Gelu | GeluErf | Silu | Relu | Sigmoid | Elu(_))
    }

    pub fn by_candle(self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Gelu => xs.gelu(),
            Self::GeluErf => xs.gelu_erf(),
            Self::Silu => xs.silu(),
            Self::Relu => xs.relu(),
            Self::Sigmoid => candle_nn::ops::sigmoid(xs),
            Self::Elu(alpha) => xs.elu(alpha),
            Self::Relu2 => xs.relu()?.sqr(),
            Self::Relu6 => at_most(&at_least(xs, 0.)?, 6.),
            Self::HardSigmoid => candle_nn::ops::hard_sigmoid(xs),
            Self::HardSwish => xs * candle_nn::ops::hard_sigmoid(xs)?,
            // Without infinite powers, whose derivative is NaN.
            Self::Mish => xs * (at_most(xs, 20.)?.exp()? + 1.)?.log()?.tanh()?,
            Self::LeakyRelu(slope) => candle_nn::ops::leaky_relu(xs, slope),
            Self::Selu { alpha, gamma } => {
                // candle differentiates both branches, and zero times an infinite power is NaN.
                let below = ((at_most(xs, 1.)?.exp()? - 1.)? * alpha)?;
                xs.gt(0f32)?.where_cond(xs, &below)? * gamma
            }
        }
    }
}

#[inline(always)]
pub fn sigmoid<S: Number>(x: S) -> S {
    S::one() / (S::one() + (-x).fast_exp())
}

#[inline(always)]
fn between<S: Number>(x: S, low: f64, high: f64) -> S {
    let (low, high) = (S::of(low), S::of(high));
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

/// `above` for positive numbers, `below` for negative ones, their mean for zero: so candle differentiates its maximum.
#[inline(always)]
fn by_sign<S: Number>(x: S, above: S, below: S) -> S {
    if x > S::zero() {
        above
    } else if x < S::zero() {
        below
    } else {
        S::of(0.5) * (above + below)
    }
}

#[inline(always)]
fn hard_sigmoid<S: Number>(x: S) -> S {
    between((x + S::of(3.)) / S::of(6.), 0., 1.)
}

#[inline(always)]
fn hard_sigmoid_slope<S: Number>(x: S) -> S {
    let sixth = S::of(1. / 6.);
    by_sign(S::of(3.) - x.abs(), sixth, S::zero())
}

/// The argument of tanh in GELU, twice: (1 + tanh u) / 2 is sigmoid(2u).
#[inline(always)]
fn gelu_argument<S: Number>(x: S) -> S {
    S::of(2. * GELU[0]) * x * (S::one() + S::of(GELU[1]) * x * x)
}

/// tanh(ln(1 + e^x)) and its derivative. Beyond 20 the first is 1 in both types.
#[inline(always)]
fn mish<S: Number>(x: S) -> (S, S) {
    let two = S::of(2.);
    let power = between(x, f64::NEG_INFINITY, 20.).fast_exp();
    let above = power * (power + two);
    let below = above + two;
    let slope = two * two * power * (power + S::one()) / (below * below);
    (above / below, slope)
}

fn map<S: Number>(xs: &[S], ys: &mut [S], curve: impl Fn(S) -> S) {
    for (y, x) in ys.iter_mut().zip(xs) {
        *y = curve(*x);
    }
}

/// y = curve(x) for each element.
pub fn values<S: Number>(curve: Curve, xs: &[S], ys: &mut [S]) {
    let of = S::of;
    let (zero, one) = (S::zero(), S::one());
    let above_zero = |x| if x < zero { zero } else { x };
    match curve {
        Curve::Gelu => map(xs, ys, |x| x * sigmoid(gelu_argument(x))),
        Curve::GeluErf => map(xs, ys, |x| x * x.normal().0),
        Curve::Silu => map(xs, ys, |x| x * sigmoid(x)),
        Curve::Relu => map(xs, ys, above_zero),
        Curve::Sigmoid => map(xs, ys, sigmoid),
        Curve::Elu(alpha) => map(xs, ys, |x| {
            let below = of(alpha) * (x.fast_exp() - one);
            if x > zero { x } else { below }
        }),
        Curve::Relu2 => map(xs, ys, |x| above_zero(x) * above_zero(x)),
        Curve::Relu6 => map(xs, ys, |x| between(x, 0., 6.)),
        Curve::HardSigmoid => map(xs, ys, hard_sigmoid),
        Curve::HardSwish => map(xs, ys, |x| x * hard_sigmoid(x)),
        Curve::Mish => map(xs, ys, |x| x * mish(x).0),
        Curve::LeakyRelu(slope) => map(xs, ys, |x| if x < zero { of(slope) * x } else { x }),
        Curve::Selu { alpha, gamma } => map(xs, ys, |x| {
            let below = of(alpha) * (x.fast_exp() - one);
            of(gamma) * if x > zero { x } else { below }
        }),
    }
}

fn chain<S: Number>(xs: &[S], dys: &[S], dxs: &mut [S], slope: impl Fn(S) -> S) {
    for ((dx, x), dy) in dxs.iter_mut().zip(xs).zip(dys) {
        *dx = *dy * slope(*x);
    }
}

/// dx = dy · curve'(x) for each element.
pub fn slopes<S: Number>(curve: Curve, xs: &[S], dys: &[S], dxs: &mut [S]) {
    let of = S::of;
    let (zero, one) = (S::zero(), S::one());
    match curve {
        Curve::Gelu => chain(xs, dys, dxs, |x| {
            let s = sigmoid(gelu_argument(x));
            // Far out, s or 1 - s is zero.
            let x = between(x, -30., 30.);
            let inner = of(2. * GELU[0]) * (one + of(3. * GELU[1]) * x * x);
            s + x * s * (one - s) * inner
        }),
        Curve::GeluErf => chain(xs, dys, dxs, |x| {
            let (below, density) = x.normal();
            below + between(x, -1e3, 1e3) * density
        }),
        Curve::Silu => chain(xs, dys, dxs, |x| {
            let s = sigmoid(x);
            s * (one + x * (one - s))
        }),
        Curve::Relu => chain(xs, dys, dxs, |x| if x < zero { zero } else { one }),
        Curve::Sigmoid => chain(xs, dys, dxs, |x| {
            let s = sigmoid(x);
            s * (one - s)
        }),
        Curve::Elu(alpha) => chain(xs, dys, dxs, |x| {
            let below = of(alpha) * x.fast_exp();
            if x > zero { one } else { below }
        }),
        Curve::Relu2 => chain(xs, dys, dxs, |x| if x < zero { zero } else { x + x }),
        Curve::Relu6 => chain(xs, dys, dxs, |x| {
            by_sign(of(3.) - (x - of(3.)).abs(), one, zero)
        }),
        Curve::HardSigmoid => chain(xs, dys, dxs, hard_sigmoid_slope),
        Curve::HardSwish => chain(xs, dys, dxs, |x| {
            hard_sigmoid(x) + x * hard_sigmoid_slope(x)
        }),
        Curve::Mish => chain(xs, dys, dxs, |x| {
            let (value, slope) = mish(x);
            // Beyond 20 the slope stays what it is there.
            value + between(x, -1e3, 20.) * slope
        }),
        Curve::LeakyRelu(slope) => chain(xs, dys, dxs, |x| by_sign(x, one, of(slope))),
        Curve::Selu { alpha, gamma } => chain(xs, dys, dxs, |x| {
            let below = of(alpha) * x.fast_exp();
            of(gamma) * if x > zero { one } else { below }
        }),
    }
}
