//! Reduce-scatter and all-gather on a ring through all GPUs, node by node.

use crate::constants::{BETWEEN, CALL, HOP_BETWEEN, HOP_INSIDE, INSIDE, NODE};

/// A link from one rank of the ring to the next.
#[derive(Clone, Copy)]
pub struct Link {
    /// Seconds until the first byte has arrived.
    pub latency: f64,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// The links of a ring of this many ranks. Only the last rank of a node sends to another node.
pub fn links(ranks: usize) -> Vec<Link> {
    let between = |rank: usize| ranks > NODE && (rank % NODE == NODE - 1 || rank == ranks - 1);
    let link = |rank| match between(rank) {
        true => Link {
            latency: HOP_BETWEEN,
            bandwidth: BETWEEN,
        },
        false => Link {
            latency: HOP_INSIDE,
            bandwidth: INSIDE,
        },
    };
    (0..ranks).map(link).collect()
}

/// Seconds of a reduce-scatter or an all-gather of this many bytes: a piece passes all links but one, and the slowest link carries all
/// pieces but one.
pub fn call(ranks: usize, bytes: f64) -> f64 {
    if ranks < 2 {
        return 0.;
    }
    let hops = (ranks - 1) as f64;
    let nodes = ranks.div_ceil(NODE) as f64;
    let (latency, bandwidth) = match ranks > NODE {
        true => (
            (hops - (nodes - 1.)) * HOP_INSIDE + (nodes - 1.) * HOP_BETWEEN,
            BETWEEN.min(INSIDE),
        ),
        false => (hops * HOP_INSIDE, INSIDE),
    };
    CALL + latency + hops / ranks as f64 * bytes / bandwidth
}

/// Seconds of a reduce-scatter and an all-gather of each bucket, one after the other.
pub fn update(ranks: usize, bytes: f64, bucket: f64) -> f64 {
    let buckets = (bytes / bucket).ceil().max(1.);
    2. * buckets * call(ranks, bytes / buckets)
}

/// The same as `call` without its constant, hop by hop: each rank passes on a piece as soon as it has received it and its link is free.
pub fn hop_by_hop(links: &[Link], bytes: f64) -> f64 {
    let ranks = links.len();
    let piece = bytes / ranks as f64;
    // When each rank has its piece of the round, and when its link is free.
    let (mut has, mut free) = (vec![0f64; ranks], vec![0f64; ranks]);
    for _ in 1..ranks {
        let mut next = vec![0f64; ranks];
        for rank in 0..ranks {
            let sent = has[rank].max(free[rank]) + piece / links[rank].bandwidth;
            free[rank] = sent;
            next[(rank + 1) % ranks] = sent + links[rank].latency;
        }
        has = next;
    }
    has.into_iter().fold(0., f64::max)
}
