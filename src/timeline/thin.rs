/// Rows of a run of any length in a list of bounded length. When the list is full, neighbouring rows are merged in pairs, and each
/// later row holds twice as many as before.
#[derive(Debug, Clone)]
pub(super) struct Thinned<R> {
    rows: Vec<R>,
    most: usize,
    /// How many pushed rows one row of the list holds.
    stride: u32,
    /// How many the last row holds so far.
    filled: u32,
}

/// A row that can absorb the next one.
pub(super) trait Merge: Clone {
    fn merge(&mut self, next: &Self);
}

impl<R: Merge> Thinned<R> {
    /// A list of at most `most` rows, which must be even.
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
