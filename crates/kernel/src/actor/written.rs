//! The messages and steps that the active run has written since its adapter took them last.
//!
//! An adapter that reads its path before each model call gets them from here, and not from the store. They are collected
//! only for adapters that ask, and until they ask again.

use std::sync::Arc;

use mainspring_core::{AttemptId, Message, Point, Step};

use super::Actor;
use crate::adapter::HandleError;
use crate::store::Row;

/// Messages and steps of a run, in the order of their commits.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) messages: Vec<(Point, Arc<Message>)>,
    pub(crate) steps: Vec<Step>,
}

impl Written {
    /// Adds the rows of a commit. Returns none if the path has changed by more than new messages at its end: the adapter
    /// then reads it from the store.
    pub(super) fn with(mut self: Box<Self>, rows: &[Row]) -> Option<Box<Self>> {
        for row in rows {
            match row {
                Row::Message(message, Some(point)) => self.messages.push((*point, message.clone())),
                Row::Step(step) => self.steps.push(Step::clone(step)),
                Row::MessagePlace(..) | Row::Digest(_) => return None,
                _ => {}
            }
        }
        Some(self)
    }
}

impl Actor {
    /// Returns the end of the active run's path, and what the run has written since the last call; none at the first call,
    /// and if that is not known.
    pub(super) fn take_written(
        &mut self,
        by: AttemptId,
    ) -> Result<(Option<Point>, Option<Box<Written>>), HandleError> {
        let head = self.head(by)?;
        let active = self.authority(by).ok_or(HandleError::Revoked)?;
        Ok((head, active.written.replace(Box::default())))
    }
}
