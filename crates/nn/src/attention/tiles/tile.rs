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

/// The gradients that a tile adds to.
pub struct Part<'a, T> {
    /// Of the tile's queries.
    pub dq: Option<&'a mut [T]>,
    /// Of the tile's keys and values.
    pub of_keys: Option<[&'a mut [T]; 2]>,
}

/// What a tile is computed in.
pub struct Scratch<T> {
    pub weights: Vec<T>,
    pub gradients: Vec<T>,
    pub slopes: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self {
            weights: Vec::new(),
            gradients: Vec::new(),
            slopes: Vec::new(),
        }
    }
}
