use super::regime::{Regime, Room};

/// Shapes that are remembered, the last used ones.
const MOST: usize = 32;
/// Samples whose costs differ by less than a factor of 2^(1/8), 9 %, have one shape.
const OCTAVE: f64 = 8.;

/// One regime for each shape of samples, and what one tells about another.
///
/// The cost of a micro-batch is expected to tell what it takes; but attention grows with the square of a text's length, so
/// longer samples may take more for each unit of cost. As long as two shapes have not shown how much more, in proportion to
/// the length is assumed.
#[derive(Debug, Clone, Default)]
pub(super) struct Shapes {
    pub(super) active: Regime,
    /// The last used one last.
    pub(super) others: Vec<Regime>,
}

impl Shapes {
    pub(super) fn new() -> Self {
        Self {
            active: Regime::new(1),
            others: Vec::new(),
        }
    }

    /// Goes to a batch of so many samples that cost this much each.
    pub(super) fn select(&mut self, each: usize, samples: usize, room: Option<Room>) {
        if !self.active.is_blank() && key(self.active.each) != key(each) {
            let known = (self.others.iter()).position(|regime| key(regime.each) == key(each));
            let regime = match known {
                Some(index) => self.others.remove(index),
                None => Regime::new(each),
            };
            self.others
                .push(std::mem::replace(&mut self.active, regime));
            if self.others.len() >= MOST {
                self.others.remove(0);
            }
        }
        self.active.begin(each, samples);
        self.derive(room);
    }

    /// A beginning for a shape of which nothing was seen: what the most similar one says.
    pub(super) fn derive(&mut self, room: Option<Room>) {
        if self.active.model.largest_seen().is_some() || self.active.has_run() {
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

    /// With which power of the samples' length a unit of cost takes more, between 0 and 1: the most that two neighbouring
    /// shapes show.
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
}

fn key(each: usize) -> u32 {
    ((each.max(1) as f64).log2() * OCTAVE) as u32
}
