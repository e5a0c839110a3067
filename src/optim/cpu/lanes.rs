use std::sync::Mutex;

use super::column::Column;
use super::gradient::Gradient;
use super::noise::part;
use super::real::Real;
use super::share::{BLOCK, CHUNK, is_shared, share, take};
use super::team::lock;
use super::wide::wide;

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
pub struct Target<'a, C> {
    pub lanes: Lanes<'a, C>,
    pub dims: &'a [usize],
    /// A number for each chunk of the parameter, for sums.
    pub partials: &'a mut [f64],
    /// A number for each matrix that the rule factors.
    pub scratch: &'a mut [f64],
}

impl<C: Real> Target<'_, C> {
    /// Updates the parameter in one pass.
    pub fn elementwise(self, step: &impl Elementwise) {
        self.lanes.share(&|lanes| lanes.update(step));
    }
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

    /// Runs `work` on the whole stretch or, if it is large, on pieces of it on several threads.
    pub fn share(self, work: &(dyn Fn(Self) + Sync)) {
        let len = self.parameter.len();
        if !is_shared(len) {
            return work(self);
        }
        let rest = Mutex::new(self);
        share(len.div_ceil(CHUNK), &|| {
            let stretch = lock(&rest).take(CHUNK);
            if let Some(stretch) = stretch {
                work(stretch);
            }
        });
    }

    /// Updates the stretch by an elementwise rule.
    fn update(mut self, step: &impl Elementwise) {
        let adjust = self.gradient.adjust();
        if let Some(gradient) = self.gradient.slice(self.start)
            && let Column::Full(parameter) = &mut self.parameter
            && let [Column::Full(first), Column::Full(second)] = &mut self.state
        {
            return wide(|| step.update(adjust, parameter, gradient, [first, second]));
        }
        let (mut first, mut second) = (zeros(), zeros());
        self.in_blocks(|block, parameter, gradient| {
            let first = block.state[0].load(0, &mut first);
            let second = block.state[1].load(0, &mut second);
            wide(|| step.update(adjust, parameter, gradient, [&mut *first, &mut *second]));
            block.state[0].store_noisy(first, block.start, part(block.seed, 0));
            block.state[1].store_noisy(second, block.start, part(block.seed, 1));
        });
    }

    /// Passes each block, its parameter in full precision and its unadjusted gradient to `work`, then stores the parameter.
    pub fn in_blocks(mut self, mut work: impl FnMut(&mut Self, &mut [C], &mut [C])) {
        let (mut parameter, mut gradient) = (zeros(), zeros());
        while let Some(mut block) = self.take(BLOCK) {
            let parameter = block.load_parameter(0, &mut parameter);
            let gradient = gradient.get_mut(..parameter.len()).unwrap_or_default();
            block.gradient.load(block.start, gradient);
            work(&mut block, parameter, gradient);
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

    /// Reads at most a block of the parameter in full precision, from `start` on. Returns the part of `into` that holds it.
    pub fn load_parameter<'b>(&self, start: usize, into: &'b mut [C]) -> &'b mut [C] {
        let into = self.parameter.load(start, into);
        if let Some(masters) = &self.master {
            // Where a master weight does not round to the parameter, something else has written to that: its value is used.
            self.parameter.restore(masters, start, into);
        }
        into
    }
}

fn zeros<C: Real>() -> [C; BLOCK] {
    [C::default(); BLOCK]
}
