//! An update rule over stretches of a parameter: in place where all of it is in full precision, otherwise block after block through buffers on
//! the stack; compiled for AVX2 too, with the same bits.

use std::sync::Mutex;

use super::numbers::{BLOCK, CHUNK, Column, Gradient, Real, take};
use super::share::{is_shared, lock, share};
use crate::mix::part;

/// A step of an update rule. Rules treat each element by itself.
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

/// A stretch of a parameter, with its gradient and state: what one pass reads and writes.
#[derive(Debug)]
pub struct Lanes<'a, C> {
    /// The stretch's first element in the parameter.
    pub start: usize,
    /// For stochastic rounding in this update.
    pub seed: u64,
    /// Whether a bf16 parameter is rounded stochastically.
    pub is_noisy: bool,
    pub parameter: Column<'a, C>,
    /// The master weights; `parameter` is then their rounded copy.
    pub master: Option<&'a mut [C]>,
    /// The gradient, by elements of the whole parameter.
    pub gradient: Gradient<'a, C>,
    pub state: [Column<'a, C>; 2],
}

impl<C: Real> Lanes<'_, C> {
    /// Splits off the first `count` elements, or all if there are fewer; `None` at the end.
    fn take(&mut self, count: usize) -> Option<Self> {
        let parameter = self.parameter.take(count);
        if parameter.len() == 0 {
            return None;
        }
        let start = self.start;
        self.start += parameter.len();
        let master = self.master.as_mut();
        Some(Self {
            start,
            seed: self.seed,
            is_noisy: self.is_noisy,
            parameter,
            master: master.map(|master| take(master, count)),
            gradient: self.gradient,
            state: self.state.each_mut().map(|column| column.take(count)),
        })
    }

    /// Updates the stretch; a large one in pieces on several threads.
    pub fn update(self, step: &impl Elementwise) {
        let len = self.parameter.len();
        if !is_shared(len) {
            return self.update_here(step);
        }
        let rest = Mutex::new(self);
        share(len.div_ceil(CHUNK), &|| {
            let stretch = lock(&rest).take(CHUNK);
            if let Some(stretch) = stretch {
                stretch.update_here(step);
            }
        });
    }

    fn update_here(mut self, step: &impl Elementwise) {
        let adjust = self.gradient.adjust();
        if let Some(gradient) = self.gradient.slice(self.start)
            && let Column::Full(parameter) = &mut self.parameter
            && let [Column::Full(first), Column::Full(second)] = &mut self.state
        {
            return wide(|| step.update(adjust, parameter, gradient, [first, second]));
        }
        let [mut parameter, mut gradient, mut first, mut second] = [[C::default(); BLOCK]; 4];
        while let Some(mut block) = self.take(BLOCK) {
            let parameter = block.load_parameter(&mut parameter);
            let gradient = gradient.get_mut(..parameter.len()).unwrap_or_default();
            block.gradient.load(block.start, gradient);
            let first = block.state[0].load(&mut first);
            let second = block.state[1].load(&mut second);
            wide(|| step.update(adjust, parameter, gradient, [&mut *first, &mut *second]));
            block.state[0].store_noisy(first, block.start, part(block.seed, 0));
            block.state[1].store_noisy(second, block.start, part(block.seed, 1));
            block.store_parameter(parameter);
        }
    }

    /// Writes the parameter and its master weights.
    fn store_parameter(mut self, values: &[C]) {
        if let Some(master) = self.master {
            Column::Full(master).store(values);
        }
        match self.is_noisy {
            true => (self.parameter).store_noisy(values, self.start, part(self.seed, 2)),
            false => self.parameter.store(values),
        }
    }

    /// Reads at most a block of the parameter in full precision. Returns the part of `into` that holds it.
    fn load_parameter<'b>(&self, into: &'b mut [C]) -> &'b mut [C] {
        let into = self.parameter.load(into);
        if let Some(masters) = &self.master {
            // Where a master weight does not round to the parameter, something else has written to that: its value is used.
            self.parameter.restore(masters, into);
        }
        into
    }
}

/// Compiles the loop in `work` also for AVX2, which runs if the machine has it. FMA stays off, so that the bits are the same.
#[inline(always)]
pub fn wide(work: impl FnOnce()) {
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
