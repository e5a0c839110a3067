//! Lists of rows with a bound.

use std::collections::VecDeque;

/// Appends a row and drops the oldest if there are `most` already.
pub(super) fn push<R>(rows: &mut VecDeque<R>, row: R, most: usize) {
    if rows.len() >= most {
        rows.pop_front();
    }
    rows.push_back(row);
}

/// Rows of a run of any length in a list of at most `MOST` rows, which must be even. When the list is full, neighbouring rows are
/// merged in pairs, and each later row holds twice as many as before.
#[derive(Debug, Clone)]
pub(super) struct Thinned<R, const MOST: usize> {
    pub(super) rows: Vec<R>,
    /// How many pushed rows one row of the list holds.
    stride: u32,
    /// How many the last row holds so far.
    filled: u32,
}

/// A row that can absorb the next one.
pub(super) trait Merge {
    fn merge(&mut self, next: Self);
}

impl<R, const MOST: usize> Default for Thinned<R, MOST> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            stride: 1,
            filled: 0,
        }
    }
}

impl<R: Merge, const MOST: usize> Thinned<R, MOST> {
    pub(super) fn push(&mut self, row: R) {
        match self.rows.last_mut() {
            Some(last) if self.filled < self.stride => {
                last.merge(row);
                self.filled += 1;
                return;
            }
            _ => {}
        }
        if self.rows.len() == MOST {
            let mut rows = std::mem::take(&mut self.rows).into_iter();
            while let Some(mut first) = rows.next() {
                rows.next().into_iter().for_each(|next| first.merge(next));
                self.rows.push(first);
            }
            self.stride = self.stride.saturating_mul(2);
        }
        self.rows.push(row);
        self.filled = 1;
    }
}
