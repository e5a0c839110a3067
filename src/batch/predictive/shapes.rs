use super::shape::{Room, Shape};

/// Number of shapes that are remembered, those used last.
pub(super) const MOST_SHAPES: usize = 32;
/// Samples have the same shape if their costs differ by less than a factor of 2^(1/8), 9 %.
const OCTAVE: f64 = 8.;

/// What is known about each shape of samples, since a unit of cost does not take the same in all of them: attention grows with
/// the square of a text's length, so longer samples take more. Until two shapes have shown how much more, in proportion to
/// the length is assumed.
#[derive(Debug, Clone)]
pub(super) struct Shapes {
    pub(super) active: Shape,
    /// The last used one last.
    pub(super) others: Vec<Shape>,
}

impl Default for Shapes {
    fn default() -> Self {
        Self {
            active: Shape::new(1),
            others: Vec::new(),
        }
    }
}

impl Shapes {
    /// Selects the shape of a batch with `samples` samples that cost `each`.
    pub(super) fn select(&mut self, each: usize, samples: usize, room: Option<Room>) {
        if key(self.active.each) != key(each) {
            let known = (self.others.iter()).position(|shape| key(shape.each) == key(each));
            let shape = match known {
                Some(index) => self.others.remove(index),
                None => Shape::new(each),
            };
            let before = std::mem::replace(&mut self.active, shape);
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

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Shape> {
        self.others.iter_mut().chain([&mut self.active])
    }

    /// The shape of samples that cost `each`, if it is remembered.
    pub(super) fn find(&mut self, each: usize) -> Option<&mut Shape> {
        self.all().find(|shape| key(shape.each) == key(each))
    }

    /// Starts a shape that has not run yet with what the most similar one says.
    pub(super) fn derive(&mut self, room: Option<Room>) {
        if self.active.is_known() {
            return;
        }
        let each = self.active.each;
        let distance = |shape: &&Shape| key(shape.each).abs_diff(key(each));
        let Some(similar) = self.others.iter().min_by_key(distance) else {
            return;
        };
        let ratio = each as f64 / similar.each as f64;
        let factor = ratio.max(1.).powf(self.exponent());
        let part = |bytes: u64| (bytes as f64 / factor) as u64;
        let fits = room.and_then(|room| {
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
        let slopes = self.others.iter().filter_map(|shape| {
            let slope = shape.model.slope().filter(|slope| *slope > 0.)?;
            Some((shape.each as f64, slope))
        });
        let mut slopes: Vec<_> = slopes.collect();
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
