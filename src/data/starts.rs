//! Where the samples of a file begin, in bounded memory however many there are.

use bytesize::ByteSize;

use super::cache::Cache;

/// What an index may take if nothing else was asked.
pub(super) const INDEX: ByteSize = ByteSize::mib(32);

/// Of the starts that are not stored, those of the last stretches that were found are kept: of so many, because they are looked through one by one,
/// and in so many bytes. Stretches of 16 samples are enough for 16 blocks of 1,024 that are mixed; of shorter ones there is little to find again.
const FOUND: [u64; 2] = [1024 + 64, 4 << 20];

/// The starts of samples. Once they would take too many bytes, only each second is stored, then each fourth and so on, and the others are
/// found again by reading from a stored one to the next.
#[derive(Debug)]
pub(super) struct Starts<T> {
    stored: Vec<T>,
    /// Samples from one that is stored to the next: a power of 2.
    stride: usize,
    len: usize,
    /// An even number.
    most: usize,
    found: Cache<usize, Vec<T>>,
}

impl<T: Copy> Starts<T> {
    pub(super) fn new(room: u64) -> Self {
        let most = usize::try_from(room).unwrap_or(usize::MAX) / size_of::<T>();
        Self {
            stored: Vec::new(),
            stride: 1,
            len: 0,
            most: most.max(2) & !1,
            found: Cache::new(0),
        }
    }

    pub(super) fn push(&mut self, start: T) {
        if self.len.is_multiple_of(self.stride) {
            if self.stored.len() == self.most {
                let mut is_kept = false;
                self.stored.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
                self.stride *= 2;
            }
            self.stored.push(start);
        }
        self.len += 1;
    }

    /// After the last one.
    pub(super) fn finish(&mut self) {
        self.stored.shrink_to_fit();
        let [stretches, most] = FOUND;
        let stretch = (self.stride * size_of::<T>()) as u64;
        self.found = Cache::new(most.min(stretches.saturating_mul(stretch)));
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The start of a sample, and that of the next one. `find` finds all from a stored one up to the next, or to the end.
    pub(super) fn get<E>(
        &self,
        index: usize,
        find: impl FnOnce(T, Option<T>) -> Result<Vec<T>, E>,
    ) -> Result<Option<(T, Option<T>)>, E> {
        let (at, within) = (index / self.stride, index % self.stride);
        let next = self.stored.get(at.saturating_add(1)).copied();
        let Some(start) = self.stored.get(at).copied() else {
            return Ok(None);
        };
        if self.stride == 1 {
            return Ok(Some((start, next)));
        }
        let found = self.found.get(at, || {
            let found = find(start, next)?;
            let bytes = (found.len() * size_of::<T>()) as u64;
            Ok((found, bytes))
        })?;
        let start = found.get(within).copied();
        Ok(start.map(|start| (start, found.get(within + 1).copied().or(next))))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::Starts;

    /// The samples of 16 blocks, mixed: each stretch is found once, however short stretches are.
    #[test]
    fn samples_of_blocks_that_are_mixed_are_found_once() {
        const LEN: usize = 16 * 1024;
        for stride in [16, 32, 64, 128, 1024] {
            let mut starts = Starts::new((LEN / stride * size_of::<usize>()) as u64);
            (0..LEN).for_each(|at| starts.push(at));
            starts.finish();
            let found = Cell::new(0);
            for place in 0..LEN {
                let index = place * 4_099 % LEN;
                let find = |from, to: Option<usize>| {
                    found.set(found.get() + 1);
                    Ok::<_, ()>((from..to.unwrap_or(LEN)).collect())
                };
                let next = Some(index + 1).filter(|next| *next < LEN);
                assert_eq!(starts.get(index, find), Ok(Some((index, next))));
            }
            assert_eq!(found.get(), LEN / stride, "{stride}");
        }
    }
}
