//! Seeded random numbers of the distributions that the model needs.

use std::f64::consts::TAU;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub struct Random(StdRng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// In (0, 1], so that its logarithm is finite.
    pub fn uniform(&mut self) -> f64 {
        1. - self.0.random::<f64>()
    }

    /// With mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    /// With mean 0 and standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        (2. * self.exponential()).sqrt() * (TAU * self.uniform()).cos()
    }

    pub fn happens(&mut self, probability: f64) -> bool {
        self.uniform() <= probability
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.random_range(0..all.len())]
    }
}
