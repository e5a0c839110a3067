//! How threads share the tiles of the backward pass. In each way a gradient is a sum of the same terms in the same order, so results
//! do not depend on the number of threads.

use candle_core::{Result, Tensor};

use super::backward::Backward;
use super::tensor::from_vec;
use super::tile::{Part, Tile};
use crate::kernel::matrix::Number;
use crate::kernel::with_scratch;

/// Size of a tile of scores.
const QUERIES: usize = 128;
const KEYS: usize = 256;

impl<T: Number> Backward<'_, T> {
    /// The gradients of q, k and v.
    pub fn run(&self) -> Result<[Tensor; 3]> {
        let sizes = self.rule.sizes;
        let q = (sizes.batch, sizes.heads, sizes.queries, sizes.width);
        let k = (sizes.batch, sizes.key_heads, sizes.keys, sizes.width);
        let v = (sizes.batch, sizes.key_heads, sizes.keys, sizes.value_width);
        let mut dq = vec![T::zero(); q.0 * q.1 * q.2 * q.3];
        let mut dk = vec![T::zero(); k.0 * k.1 * k.2 * k.3];
        let mut dv = vec![T::zero(); v.0 * v.1 * v.2 * v.3];
        // A tile takes five products of matrices. In two passes it takes seven, but all threads have work.
        match 7 * sizes.batch * sizes.key_heads < 5 * rayon::current_num_threads() {
            true => {
                self.of_queries(&mut dq)?;
                self.of_keys(&mut dk, &mut dv)?;
            }
            false => self.of_heads(&mut dq, &mut dk, &mut dv)?,
        }
        Ok([from_vec(dq, q), from_vec(dk, k), from_vec(dv, v)])
    }

    /// All gradients in one pass; a thread has a key head, and the heads that share it.
    fn of_heads(&self, dq: &mut [T], dk: &mut [T], dv: &mut [T]) -> Result<()> {
        let sizes = self.rule.sizes;
        let heads = dq.chunks_mut(sizes.group() * sizes.queries * sizes.width);
        let heads = heads.zip(dk.chunks_mut(sizes.keys * sizes.width));
        let heads = heads.zip(dv.chunks_mut(sizes.keys * sizes.value_width));
        with_scratch(heads.collect(), |scratch, index, ((dq, dk), dv)| {
            let of_heads = dq.chunks_mut(sizes.queries * sizes.width);
            for (head, dq) in (index * sizes.group()..).zip(of_heads) {
                let of_keys = dk.chunks_mut(KEYS * sizes.width);
                let of_keys = of_keys.zip(dv.chunks_mut(KEYS * sizes.value_width));
                for (key, (dk, dv)) in (0..).step_by(KEYS).zip(of_keys) {
                    let of_queries = dq.chunks_mut(QUERIES * sizes.width);
                    for (query, dq) in (0..).step_by(QUERIES).zip(of_queries) {
                        let at = self.at(head, query, key);
                        let part = Part {
                            dq: Some(dq),
                            of_keys: Some([&mut *dk, &mut *dv]),
                        };
                        self.tile(&at, part, scratch)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// The gradients of q; a thread has some queries of a head.
    fn of_queries(&self, dq: &mut [T]) -> Result<()> {
        let sizes = self.rule.sizes;
        let mut tiles = Vec::new();
        let of_heads = dq.chunks_mut(sizes.queries * sizes.width).enumerate();
        for (head, dq) in of_heads {
            let of_queries = dq.chunks_mut(QUERIES * sizes.width);
            let of_queries = (0..).step_by(QUERIES).zip(of_queries);
            tiles.extend(of_queries.map(|(query, dq)| (head, query, dq)));
        }
        with_scratch(tiles, |scratch, _, (head, query, dq)| {
            for key in (0..sizes.keys).step_by(KEYS) {
                let part = Part {
                    dq: Some(&mut *dq),
                    of_keys: None,
                };
                self.tile(&self.at(head, query, key), part, scratch)?;
            }
            Ok(())
        })
    }

    /// The gradients of k and v; a thread has some keys of a key head.
    fn of_keys(&self, dk: &mut [T], dv: &mut [T]) -> Result<()> {
        let sizes = self.rule.sizes;
        let mut tiles = Vec::new();
        let of_heads = dk.chunks_mut(sizes.keys * sizes.width);
        let of_heads = of_heads.zip(dv.chunks_mut(sizes.keys * sizes.value_width));
        for (key_head, (dk, dv)) in of_heads.enumerate() {
            let of_keys = dk.chunks_mut(KEYS * sizes.width);
            let of_keys = of_keys.zip(dv.chunks_mut(KEYS * sizes.value_width));
            let of_keys = (0..).step_by(KEYS).zip(of_keys);
            tiles.extend(of_keys.map(|(key, part)| (key_head, key, part)));
        }
        with_scratch(tiles, |scratch, _, (key_head, key, (dk, dv))| {
            for head in (key_head * sizes.group()..).take(sizes.group()) {
                for query in (0..sizes.queries).step_by(QUERIES) {
                    let part = Part {
                        dq: None,
                        of_keys: Some([&mut *dk, &mut *dv]),
                    };
                    self.tile(&self.at(head, query, key), part, scratch)?;
                }
            }
            Ok(())
        })
    }

    /// The tile that begins with a query and a key. Heads are counted over all samples.
    fn at(&self, head: usize, query: usize, key: usize) -> Tile {
        let sizes = self.rule.sizes;
        Tile {
            batch: head / sizes.heads,
            head: head % sizes.heads,
            query,
            queries: QUERIES.min(sizes.queries - query),
            key,
            keys: KEYS.min(sizes.keys - key),
        }
    }
}
