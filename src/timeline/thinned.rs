use serde::{Deserialize, Serialize};

/// Rows of a run of any length in a list of at most `MOST` rows, which must be even. When the list is full, neighbouring rows are
/// merged in pairs, and each later row holds twice as many as before.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Thinned<R, const MOST: usize> {
    pub(super) rows: Vec<R>,
    /// How often the list was full. Each row of the list holds 2 to this power of pushed rows.
    #[serde(skip)]
    doublings: u32,
    /// How many the last row holds so far.
    #[serde(skip)]
    filled: u64,
}

impl<R, const MOST: usize> Thinned<R, MOST> {
    /// Adds a row. `merge` lets a row absorb the next one.
    pub(super) fn push(&mut self, row: R, merge: impl Fn(&mut R, R)) {
        if self.filled < 1 << self.doublings
            && let Some(last) = self.rows.last_mut()
        {
            self.filled += 1;
            return merge(last, row);
        }
        if self.rows.len() == MOST {
            self.halve(&merge);
            self.doublings += 1;
        }
        self.rows.push(row);
        self.filled = 1;
    }

    /// Merges neighbouring rows in pairs.
    pub(super) fn halve(&mut self, merge: impl Fn(&mut R, R)) {
        let mut rows = std::mem::take(&mut self.rows).into_iter();
        while let Some(mut first) = rows.next() {
            if let Some(next) = rows.next() {
                merge(&mut first, next);
            }
            self.rows.push(first);
        }
    }

    /// Merges rows until there are at most this many, which must not be 0. No more can be added.
    pub(super) fn shorten(&mut self, most: usize, merge: impl Fn(&mut R, R)) {
        while self.rows.len() > most.max(1) {
            self.halve(&merge);
        }
    }
}
