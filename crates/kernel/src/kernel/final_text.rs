//! The text of a run that has ended: all that its agent wrote on the run's path.
//!
//! The text is stored only in the messages and read from them, so it outlives the events of the run.

use mainspring_core::{Role, Run};

use super::Shared;
use crate::error::Error;

/// Messages that are read at once. Most runs have fewer.
const PAGE: usize = 32;

impl Shared {
    /// Adds the text of its agent to a run that has ended.
    pub(crate) async fn with_final_text(&self, mut run: Run) -> Result<Run, Error> {
        if run.state.status().is_ended() {
            run.final_text = Some(Box::pin(self.final_text(&run)).await?);
        }
        Ok(run)
    }

    /// Reads the text of the agent from the run's last message up to its prompt.
    pub(crate) async fn final_text(&self, run: &Run) -> Result<String, Error> {
        let last = match run.final_message {
            Some(message) => self.store.message_get(run.session, message).await?,
            None => None,
        };
        let Some(tip) = last.and_then(|(placed, _)| placed.point) else { return Ok(String::new()) };
        // The answer to a prompt that joined another run is in messages of that run.
        let author = Some(run.merged_into.unwrap_or(run.id));
        let (mut texts, mut before) = (vec![], None);
        loop {
            let page = self.store.path(tip, before, PAGE).await?;
            let (full, first) = (page.len() == PAGE, page.first().and_then(|placed| placed.point));
            for placed in page.into_iter().rev() {
                let message = placed.message;
                match message.role {
                    Role::Assistant if message.run == author => texts.push(message.text()),
                    // The answer of an earlier run.
                    Role::Assistant => return Ok(in_order(&texts)),
                    _ if Some(message.id) == run.prompt => return Ok(in_order(&texts)),
                    // A tool's result, or a prompt that joined the run.
                    _ => {}
                }
            }
            match first {
                Some(first) if full => before = Some(first.pos),
                _ => return Ok(in_order(&texts)),
            }
        }
    }
}

/// Joins texts that were read from the last to the first.
fn in_order(texts: &[String]) -> String {
    texts.iter().rev().map(String::as_str).collect()
}
