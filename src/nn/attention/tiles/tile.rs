//! What the backward pass works on.

/// Some queries and keys of a head.
pub struct Tile {
    pub batch: usize,
    pub head: usize,
    pub query: usize,
    pub queries: usize,
    pub key: usize,
    pub keys: usize,
}

/// The gradients of a key head and of the query heads that share it.
pub struct Part<'a, T> {
    pub dq: &'a mut [T],
    pub dk: &'a mut [T],
    pub dv: &'a mut [T],
}

/// What a tile is computed in.
pub struct Scratch<T> {
    pub weights: Vec<T>,
    pub gradients: Vec<T>,
    pub slopes: Vec<T>,
    /// For each query, the sum of products of weights and their gradients.
    pub sums: Vec<T>,
}

impl<T> Scratch<T> {
    pub fn new() -> Self {
        Self {
            weights: Vec::new(),
            gradients: Vec::new(),
            slopes: Vec::new(),
            sums: Vec::new(),
        }
    }
}
