use candle_core::{Device, Result, Tensor};

use super::overwrite::overwrite;
use super::stored::Stored;

/// The keys or the values of the last positions in a ring, as [`candle_nn::kv_cache::RotatingCache`], with a backward pass for the
/// new positions.
///
/// With a graph, an append to a cache that is not empty copies the ring once; graph and cache share the copy. The graph keeps the
/// new positions besides. Without one, what is returned changes with the next append:
/// [what this means for other gradients](super#constant-keys-and-values).
#[derive(Debug, Clone)]
pub struct RotatingCache {
    stored: Stored,
    dim: usize,
    offset: usize,
    current_seq_len: usize,
    max_seq_len: usize,
}

impl RotatingCache {
    /// Makes an empty cache of the last `max_seq_len` positions along dimension `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Self {
            stored: Stored::default(),
            dim,
            offset: 0,
            current_seq_len: 0,
            max_seq_len,
        }
    }

    /// Returns the index in the ring to which the next position is written.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the dimension of the positions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of positions seen, which may exceed those in the ring.
    pub fn current_seq_len(&self) -> usize {
        self.current_seq_len
    }

    /// Returns the size of the ring in positions.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Returns the ring of [`max_seq_len`](Self::max_seq_len) positions. While it is not full, an append with a graph leaves the
    /// positions so far alone.
    pub fn all_data(&self) -> &Option<Tensor> {
        self.stored.tensor()
    }

    /// Returns the positions in the ring, in its order, without a graph; `None` before the first append.
    ///
    /// # Errors
    /// candle's.
    pub fn current_data(&self) -> Result<Option<Tensor>> {
        let held = self.current_seq_len.min(self.max_seq_len);
        let data = self.stored.tensor().as_ref();
        data.map(|data| data.narrow(self.dim, 0, held)).transpose()
    }

    /// Empties the cache and drops the ring.
    pub fn reset(&mut self) {
        *self = Self::new(self.dim, self.max_seq_len);
    }

    /// Appends positions. Returns those in the ring, in its order; if there are at least as many new ones as fit into the ring,
    /// these alone, all of them. They carry their graph.
    ///
    /// # Errors
    /// If `src` does not have the shape, apart from the number of positions, the type and the device of earlier ones; if the ring
    /// cannot be allocated.
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        self.extend(src, src.track_op())
    }

    /// As [`append`](Self::append). With a graph, no memory is written to.
    pub(super) fn extend(&mut self, src: &Tensor, in_graph: bool) -> Result<Tensor> {
        let (dim, size, at) = (self.dim, self.max_seq_len, self.offset);
        let count = src.dim(dim)?;
        let seen = self.current_seq_len + count;
        let is_longer = count >= size;
        let all = match (is_longer, in_graph) {
            (true, true) => {
                self.stored = Stored::shared(src, dim, size)?;
                src.clone()
            }
            (true, false) => {
                self.write(&src.narrow(dim, count - size, size)?, 0)?;
                src.clone()
            }
            (false, true) => {
                let all = match self.current_data()? {
                    Some(kept) => overwrite(&kept, src, dim, at, size)?,
                    None => src.clone(),
                };
                self.stored = Stored::shared(&all, dim, seen.min(size))?;
                all
            }
            (false, false) => self.write(src, at)?.narrow(dim, 0, seen.min(size))?,
        };
        self.current_seq_len = seen;
        self.offset = if is_longer { 0 } else { (at + count) % size };
        Ok(all)
    }

    /// Writes to the ring from index `at` on, at most once around, and returns it.
    fn write(&mut self, src: &Tensor, at: usize) -> Result<Tensor> {
        let (dim, size) = (self.dim, self.max_seq_len);
        let ring = self.stored.writable(src, dim, size)?;
        let (count, before_end) = (src.dim(dim)?, size - at);
        if count <= before_end {
            ring.slice_set(&src.contiguous()?, dim, at)?;
        } else {
            let rest = src.narrow(dim, before_end, count - before_end)?;
            let (first, rest) = (src.narrow(dim, 0, before_end)?, rest.contiguous()?);
            ring.slice_set(&first.contiguous()?, dim, at)?;
            ring.slice_set(&rest, dim, 0)?;
        }
        self.stored = Stored::buffer(ring.clone());
        Ok(ring)
    }

    /// Returns the position of each entry that an append of `seq_len` positions will return.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let (size, seen) = (self.max_seq_len, self.current_seq_len + seq_len);
        if seq_len > size {
            return (self.current_seq_len..seen).collect();
        }
        let next = (self.offset + seq_len).checked_rem(size).unwrap_or(0);
        // Entries from the next index on are one turn older.
        let age = |index| next + if index < next { 0 } else { size };
        (0..seen.min(size))
            .map(|index| seen + index - age(index))
            .collect()
    }

    /// Returns the mask for an append of `seq_len` positions, of shape (`seq_len`, entries returned): 1 where an entry lies after a
    /// new position or more than `max_seq_len` before it, else 0. `None` for one position, which sees all.
    ///
    /// # Errors
    /// candle's.
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        if seq_len == 1 {
            return Ok(None);
        }
        let window = self.max_seq_len;
        let new = self.current_seq_len..self.current_seq_len + seq_len;
        let entries = match seq_len < window {
            true => self.positions(seq_len),
            false => new.clone().collect(),
        };
        let masked = |new: usize, entry: usize| entry > new || entry + window < new;
        let mask = new.flat_map(|new| {
            entries
                .iter()
                .map(move |&entry| u8::from(masked(new, entry)))
        });
        let mask: Vec<u8> = mask.collect();
        Tensor::from_vec(mask, (seq_len, entries.len()), device).map(Some)
    }
}
