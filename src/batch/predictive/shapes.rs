use super::probing::{Probing, next_larger};
use super::regime::{Regime, Room};

/// Number of shapes that are remembered, those used last.
pub(super) const MOST_SHAPES: usize = 32;
/// Samples have the same shape if their costs differ by less than a factor of 2^(1/8), 9 %.
const OCTAVE: f64 = 8.;

/// One regime for each shape of samples, since a unit of cost does not take the same in all of them: attention grows with
/// the square of a text's length, so longer samples take more. Until two shapes have shown how much more, in proportion to
/// the length is assumed.
#[derive(Debug, Clone)]
pub(super) struct Shapes {
    pub(super) active: Regime,
    /// The last used one last.
    pub(super) others: Vec<Regime>,
    pub(super) probing: Probing,
}

impl Shapes {
    pub(super) fn new() -> Self {
        Self {
            active: Regime::new(1, 0),
            others: Vec::new(),
            probing: Probing::default(),
        }
    }

    /// Selects the shape of a batch with `samples` samples that cost `each`.
    pub(super) fn select(&mut self, each: usize, samples: usize, room: Option<Room>) {
        if key(self.active.each) != key(each) {
            let known = (self.others.iter()).position(|regime| key(regime.each) == key(each));
            let regime = match known {
                Some(index) => self.others.remove(index),
                None => Regime::new(each, self.probing.found()),
            };
            let before = std::mem::replace(&mut self.active, regime);
            if before.is_known() {
                self.others.push(before);
            }
            if self.others.len() >= MOST_SHAPES {
                self.others.remove(0);
            }
        }
        self.active.begin(each, samples);
        self.derive(room);
    }

    /// The regime of samples that cost `each`, if it is remembered.
    pub(super) fn find(&mut self, each: usize) -> Option<&mut Regime> {
        let mut regimes = std::iter::once(&mut self.active).chain(&mut self.others);
        regimes.find(|regime| key(regime.each) == key(each))
    }

    /// Starts a shape that has not run yet with what the most similar one says.
    pub(super) fn derive(&mut self, room: Option<Room>) {
        if self.active.is_known() {
            return;
        }
        let each = self.active.each;
        let distance = |regime: &&Regime| key(regime.each).abs_diff(key(each));
        let Some(similar) = self.others.iter().min_by_key(distance) else {
            return;
        };
        let ratio = each as f64 / similar.each as f64;
        let factor = ratio.max(1.).powf(self.exponent());
        let fits = room.and_then(|room| {
            let part = |bytes: u64| (bytes as f64 / factor) as u64;
            similar.fits(Room {
                all: part(room.all),
                usable: part(room.usable),
            })
        });
        let capped = similar.cap.map(|cap| (cap as f64 / factor) as usize);
        let base = similar.model.base().unwrap_or(0);
        self.active.model.assume_base(base);
        if let Some(cap) = fits.or(capped) {
            self.active.set(cap);
        }
    }

    /// The exponent with which a unit of cost takes more as samples get longer, from 0 to 1: the largest that two
    /// neighbouring shapes show.
    fn exponent(&self) -> f64 {
        let slopes = self.others.iter().map(|regime| {
            let slope = regime.model.slope().filter(|slope| *slope > 0.);
            slope.map(|slope| (regime.each as f64, slope))
        });
        let mut slopes: Vec<_> = slopes.flatten().collect();
        slopes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let pairs = slopes.iter().zip(slopes.iter().skip(1));
        let exponents = pairs.map(|(a, b)| (b.1 / a.1).ln() / (b.0 / a.0).ln());
        let exponents = exponents.filter(|exponent| exponent.is_finite());
        exponents.reduce(f64::max).unwrap_or(1.).clamp(0., 1.)
    }

    /// The size to try next where memory is not measured, in samples, if it is time for that.
    pub(super) fn probe(&self, samples: usize, room: Option<Room>) -> Option<usize> {
        let Regime { cap, pace, .. } = &self.active;
        let cap = cap.filter(|cap| pace.limit(*cap) == *cap)?;
        let is_due = self.probing.is_due(self.active.failed_at);
        match is_due && self.active.is_blind(room) {
            true => next_larger(samples, cap / self.active.each),
            false => None,
        }
    }

    /// A micro-batch went well where memory is not measured.
    pub(super) fn succeeded_blind(&mut self, cost: usize) {
        self.probing.advance();
        if self.active.cap.is_some_and(|cap| cost > cap) {
            self.probing.find(self.active.failed_at);
            self.active.set(cost);
        }
    }

    /// A micro-batch failed where memory is not measured, and the cap was lowered.
    pub(super) fn failed_blind(&mut self, is_passing: bool) {
        let Regime { batch, cap, .. } = self.active;
        self.active.failed_at = self.probing.found();
        let parts = batch.div_ceil(cap.unwrap_or(batch).max(1));
        self.probing.restart(parts, is_passing);
    }
}

fn key(each: usize) -> u32 {
    ((each.max(1) as f64).log2() * OCTAVE) as u32
}
