/// Rows of a run of any length in a list of bounded length: when it is full, neighbours are put together, and from then on as
/// many rows as that makes one.
#[derive(Debug, Clone)]
pub(super) struct Thinned<R> {
    rows: Vec<R>,
    most: usize,
    /// How many rows become one.
    stride: u32,
    /// How many the last row holds already.
    filled: u32,
}

/// What can be put together with what comes next.
pub(super) trait Merge: Clone {
    fn merge(&mut self, next: &Self);
}

impl<R: Merge> Thinned<R> {
    /// At most `most` rows, an even number.
    pub(super) fn new(most: usize) -> Self {
        Self {
            rows: Vec::new(),
            most,
            stride: 1,
            filled: 0,
        }
    }

    pub(super) fn push(&mut self, row: R) {
        match self.rows.last_mut() {
            Some(last) if self.filled < self.stride => {
                last.merge(&row);
                self.filled += 1;
                return;
            }
            _ => {}
        }
        if self.rows.len() == self.most {
            self.halve();
        }
        self.rows.push(row);
        self.filled = 1;
    }

    fn halve(&mut self) {
        let pairs = self.rows.chunks(2).filter_map(|pair| {
            let (first, rest) = pair.split_first()?;
            let mut merged = first.clone();
            rest.iter().for_each(|next| merged.merge(next));
            Some(merged)
        });
        self.rows = pairs.collect();
        self.stride = self.stride.saturating_mul(2);
    }

    pub(super) fn last_mut(&mut self) -> Option<&mut R> {
        self.rows.last_mut()
    }

    pub(super) fn rows(&self) -> &[R] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Sum(u64);

    impl Merge for Sum {
        fn merge(&mut self, next: &Self) {
            self.0 += next.0;
        }
    }

    #[test]
    fn nothing_is_lost_and_the_length_is_bounded() {
        for count in [0, 1, 7, 8, 9, 100, 12_345] {
            let mut thinned = Thinned::new(8);
            (0..count).for_each(|_| thinned.push(Sum(1)));
            let total: u64 = thinned.rows().iter().map(|row| row.0).sum();
            assert_eq!(total, count);
            assert!(thinned.rows().len() <= 8, "{count}");
            assert!(count < 8 || thinned.rows().len() >= 4, "{count}");
        }
    }

    #[test]
    fn a_short_run_keeps_each_row() {
        let mut thinned = Thinned::new(8);
        (0..8).for_each(|i| thinned.push(Sum(i)));
        assert_eq!(thinned.rows(), (0..8).map(Sum).collect::<Vec<_>>());
    }
}
