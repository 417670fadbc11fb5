//! Facts about the stored steps of the session.

/// Number of step inputs that are remembered. A run has one input unless its plan changes.
const MAX_KNOWN_INPUTS: usize = 8;

/// The inputs that are known to be stored, and whether private data may be.
#[derive(Debug, Clone)]
pub(crate) struct StoredSteps {
    /// Hashes of inputs that are known to be stored, the latest last.
    inputs: Vec<String>,
    /// True when a step may hold private data, which is erased when the run ends.
    keeps_private: bool,
}

impl StoredSteps {
    pub(crate) fn restore(keeps_private: bool) -> Self {
        Self { inputs: vec![], keeps_private }
    }

    /// Adds the hash of an input. Returns true if the input must be stored: it is not known to be.
    pub(crate) fn add_input(&mut self, hash: &String) -> bool {
        if self.inputs.contains(hash) {
            return false;
        }
        if self.inputs.len() >= MAX_KNOWN_INPUTS {
            self.inputs.remove(0);
        }
        self.inputs.push(hash.clone());
        true
    }

    /// Records whether a new step holds private data.
    pub(crate) fn add_private(&mut self, is_private: bool) {
        self.keeps_private |= is_private;
    }

    /// Returns true if private data may be stored, which the caller erases.
    pub(crate) fn take_private(&mut self) -> bool {
        std::mem::take(&mut self.keeps_private)
    }
}
