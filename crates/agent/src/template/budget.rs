//! The budget of one evaluation: steps and bytes, charged before they are spent.

use super::{MAX_MEMORY_BYTES, MAX_OUTPUT_BYTES, MAX_STEPS, TemplateError};

/// The bytes that one value takes, besides its text.
pub(super) const VALUE_BYTES: usize = 32;

/// The remaining limits of an evaluation. Charges are never refunded, so the total memory that an evaluation allocates
/// is bounded, and so is its time.
#[derive(Debug)]
pub(super) struct Budget {
    steps: usize,
    bytes: usize,
    output: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { steps: MAX_STEPS, bytes: MAX_MEMORY_BYTES, output: MAX_OUTPUT_BYTES }
    }

    /// Charges one step.
    pub(super) fn step(&mut self) -> Result<(), TemplateError> {
        take(&mut self.steps, 1, "steps", MAX_STEPS)
    }

    /// Charges `bytes` of memory, or work in proportion to `bytes`.
    pub(super) fn bytes(&mut self, bytes: usize) -> Result<(), TemplateError> {
        take(&mut self.bytes, bytes, "bytes of memory", MAX_MEMORY_BYTES)
    }

    /// Charges `count` values.
    pub(super) fn values(&mut self, count: usize) -> Result<(), TemplateError> {
        self.bytes(count.saturating_mul(VALUE_BYTES))
    }

    /// Charges `bytes` of the resulting text.
    pub(super) fn output(&mut self, bytes: usize) -> Result<(), TemplateError> {
        take(&mut self.output, bytes, "bytes of text", MAX_OUTPUT_BYTES)
    }
}

fn take(left: &mut usize, wanted: usize, unit: &str, limit: usize) -> Result<(), TemplateError> {
    match left.checked_sub(wanted) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err(TemplateError::new(format!("the template needs more than {limit} {unit}"))),
    }
}
