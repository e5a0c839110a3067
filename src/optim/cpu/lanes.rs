use super::gradient::Gradient;
use super::moment::{Moment, noise};
use super::real::{Real, Stored};
use super::share::{BLOCK, By, CHUNK, share, take};

/// A step of a rule that treats each element by itself.
pub trait Elementwise: Sync {
    /// Updates elements. All slices have the same length, but a state that the rule does not keep is empty.
    fn update<C: Real>(
        &self,
        adjust: impl Fn(C) -> C,
        parameter: &mut [C],
        gradient: &[C],
        state: [&mut [C]; 2],
    );
}

/// A parameter to update, with everything that a rule needs to update it.
#[derive(Debug)]
pub struct Target<'a, P: Stored> {
    pub lanes: Lanes<'a, P>,
    pub dims: &'a [usize],
    /// A number for each chunk of the parameter, for sums.
    pub partials: &'a mut [f64],
    /// A number for each matrix that the rule factors.
    pub scratch: &'a mut [f64],
    /// Whether several threads share it.
    pub is_shared: bool,
}

impl<P: Stored> Target<'_, P> {
    /// Updates the parameter in one pass, for the `number`-th time.
    pub fn elementwise(self, step: &impl Elementwise, number: u64) {
        let seed = (number as u32).wrapping_mul(0x9e37_79b9);
        let update = |lanes: Lanes<'_, P>| lanes.update(step, seed);
        self.lanes.share(self.is_shared, update);
    }
}

/// A stretch of a parameter, with its gradient and state: what one pass reads and writes.
#[derive(Debug)]
pub struct Lanes<'a, P: Stored> {
    /// The stretch's first element in the parameter.
    pub start: usize,
    pub parameter: &'a mut [P],
    /// The master weights; `parameter` is then their rounded copy.
    pub master: Option<&'a mut [P::Real]>,
    /// The gradient of the whole parameter.
    pub gradient: Gradient<'a, P>,
    pub state: [Moment<'a, P::Real>; 2],
}

impl<'a, P: Stored> Lanes<'a, P> {
    /// Splits off the first `count` elements, or all if there are fewer; `None` at the end.
    pub fn take(&mut self, count: usize) -> Option<Self> {
        if self.parameter.is_empty() {
            return None;
        }
        let start = self.start;
        let parameter = take(&mut self.parameter, count);
        self.start += parameter.len();
        Some(Self {
            start,
            parameter,
            master: self.master.as_mut().map(|master| take(master, count)),
            gradient: self.gradient,
            state: self.state.each_mut().map(|moment| moment.take(count)),
        })
    }

    /// Runs `work` on the whole stretch, or on pieces of it on several threads.
    pub fn share(self, is_shared: bool, work: impl Fn(Self) + Sync) {
        if !is_shared {
            return work(self);
        }
        let units = self.parameter.len().div_ceil(CHUNK);
        share(By::Candle, units, self, |rest| rest.take(CHUNK), work);
    }

    /// Updates the stretch by an elementwise rule; `seed` is for the stochastic rounding of moments.
    pub fn update(mut self, step: &impl Elementwise, seed: u32) {
        let adjust = self.gradient.adjust();
        if let Some(gradient) = self.gradient.slice(self.start)
            && let Some(parameter) = P::reals(self.parameter)
            && let [Moment::Full(first), Moment::Full(second)] = &mut self.state
        {
            return wide(|| step.update(adjust, parameter, gradient, [first, second]));
        }
        let (mut parameter, mut gradient) = (zeros::<P>(), zeros::<P>());
        let (mut first, mut second) = (zeros::<P>(), zeros::<P>());
        while let Some(mut block) = self.take(BLOCK) {
            let len = block.parameter.len();
            let parameter = parameter.get_mut(..len).unwrap_or_default();
            let gradient = gradient.get_mut(..len).unwrap_or_default();
            block.load_parameter(0, parameter);
            block.gradient.load(block.start, gradient);
            let first = block.state[0].load(&mut first);
            let second = block.state[1].load(&mut second);
            wide(|| step.update(adjust, parameter, gradient, [&mut *first, &mut *second]));
            block.state[0].store(first, block.start, noise(seed, 0));
            block.state[1].store(second, block.start, noise(seed, 1));
            block.store_parameter(parameter);
        }
    }

    /// Reads the parameter in full precision, from this element of the stretch on; at most a block of it.
    pub fn load_parameter(&self, start: usize, into: &mut [P::Real]) {
        let stored = self.parameter.get(start..).unwrap_or_default();
        P::load(stored, into);
        let Some(masters) = &self.master else {
            return;
        };
        // A master weight is valid as long as it rounds to the stored parameter. Otherwise something else has written to the
        // parameter, and the written value is used.
        let masters = masters.get(start..).unwrap_or_default();
        let mut rounded = [P::default(); BLOCK];
        P::store(masters, &mut rounded);
        let pairs = rounded.iter().zip(stored);
        for (into, (master, (rounded, stored))) in into.iter_mut().zip(masters.iter().zip(pairs)) {
            if rounded == stored {
                *into = *master;
            }
        }
    }

    pub fn store_parameter(&mut self, from: &[P::Real]) {
        if let Some(master) = &mut self.master {
            P::Real::store(from, master);
        }
        P::store(from, self.parameter);
    }
}

fn zeros<P: Stored>() -> [P::Real; BLOCK] {
    [P::Real::default(); BLOCK]
}

/// Compiles the loop in `work` a second time for AVX2, and runs that if the machine has it. FMA stays off, so that the results are
/// bit-identical.
#[inline(always)]
fn wide(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(work: impl FnOnce()) {
            work();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has AVX2, the only feature that the function enables.
            return unsafe { wide(work) };
        }
    }
    work();
}
