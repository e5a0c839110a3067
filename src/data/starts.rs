//! Where the samples of a file begin, in bounded memory however many there are.

use bytesize::ByteSize;

use super::cache::Cache;

/// What an index may take if nothing else was asked.
pub(super) const INDEX: ByteSize = ByteSize::mib(32);

/// Of the starts that are not stored, those of the last stretches that were found are kept: of so many, because they are looked through one by one,
/// and in so many bytes.
const FOUND: [u64; 2] = [64, 4 << 20];

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
