//! Reproducible random numbers.

/// A small random generator, so that a failure can be reproduced from its seed.
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. `seed` must not be 0, which the generator would return for ever.
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
