use super::lanes::Lanes;
use super::share::{By, CHUNK, SHARED, share};
use crate::optim::rule::Elementwise;

/// A parameter to update, with everything that a rule needs for it.
#[derive(Debug)]
pub struct Target<'a> {
    pub lanes: Lanes<'a>,
    pub dims: &'a [usize],
    /// A number for each chunk of the parameter, for sums.
    pub partials: &'a mut [f64],
    /// As many numbers as `Rule::scratch` asked for.
    pub scratch: &'a mut [f64],
    /// Whether several threads share it.
    pub is_shared: bool,
}

/// Whether several threads share a parameter of this many elements.
pub fn is_shared(len: usize) -> bool {
    len >= SHARED
}

impl Target<'_> {
    /// Updates the parameter in one pass.
    pub fn elementwise<R: Elementwise>(self, step: &R::Step, number: u64) {
        let seed = (number as u32).wrapping_mul(0x9e37_79b9);
        let update = |lanes: Lanes<'_>| lanes.update::<R>(step, seed);
        if !self.is_shared {
            return update(self.lanes);
        }
        let units = self.lanes.len().div_ceil(CHUNK);
        share(
            By::Candle,
            units,
            self.lanes,
            |rest| rest.take(CHUNK),
            update,
        );
    }
}
