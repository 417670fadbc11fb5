//! Reproducible random numbers.

/// A small random generator, so that a failure can be reproduced from its seed.
pub struct Rng(u64);

impl Rng {
    /// Starts at a seed other than 0.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
