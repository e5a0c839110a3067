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

    /// Goes to samples that cost this much each.
    pub(super) fn select(&mut self, each: usize, room: Option<Room>) {
        if self.active.is_blank() || key(self.active.each) == key(each) {
            self.active.each = each;
            return;
        }
        let known = (self.others.iter()).position(|regime| key(regime.each) == key(each));
        let mut regime = match known {
            Some(index) => self.others.remove(index),
            None => self.derived(each, room),
        };
        regime.each = each;
        self.others
            .push(std::mem::replace(&mut self.active, regime));
        if self.others.len() >= MOST {
            self.others.remove(0);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Regime> {
        self.others.iter().chain([&self.active])
    }

    /// A beginning for a shape that was never seen: what the most similar one says.
    fn derived(&self, each: usize, room: Option<Room>) -> Regime {
        let distance = |regime: &&Regime| key(regime.each).abs_diff(key(each));
        let Some(similar) = self.all().min_by_key(distance) else {
            return Regime::new(each);
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
        let mut regime = Regime::new(each);
        if let Some(cap) = fits.or(capped) {
            regime.set(cap.max(each));
        }
        regime
    }

    /// With which power of the samples' length a unit of cost takes more, between 0 and 1: the most that two neighbouring
    /// shapes show.
    fn exponent(&self) -> f64 {
        let slopes = self.all().map(|regime| {
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
