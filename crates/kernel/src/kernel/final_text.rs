//! The text of a run that has ended: all that its agent wrote on the run's path.
//!
//! The text is stored only in the messages and read from them, so it outlives the events of the run. The short text of a
//! loaded session's latest run is in its image.

use mainspring_core::{Point, Role, Rows, Run};

use super::Shared;
use crate::error::Error;
use crate::store::SessionRef;

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

    /// The point of the run's last message.
    async fn final_point(&self, run: &Run) -> Result<Option<Point>, Error> {
        let Some(message) = run.final_message else { return Ok(None) };
        // The last message of a run that has just succeeded is its session's tip.
        let session = self.images.session(&run.owner, &SessionRef::Id(run.session));
        if let Some(session) = session.filter(|session| session.tip_message == Some(message)) {
            return Ok(session.tip);
        }
        let found = self.store.message_get(run.session, message).await?;
        Ok(found.and_then(|(placed, _)| placed.point))
    }

    /// Reads the text of the agent from the run's last message up to its prompt.
    pub(crate) async fn final_text(&self, run: &Run) -> Result<String, Error> {
        if let Some(text) = self.images.final_text(run) {
            return Ok(text);
        }
        let Some(tip) = self.final_point(run).await? else { return Ok(String::new()) };
        // The answer to a prompt that joined another run is in messages of that run.
        let author = Some(run.merged_into.unwrap_or(run.id));
        let (mut texts, mut before) = (vec![], None);
        loop {
            let Rows { items: page, mut damaged } = self.store.path(tip, before, PAGE).await?;
            let (full, first) = (page.len() == PAGE, page.first().and_then(|placed| placed.point));
            for (index, placed) in page.into_iter().enumerate().rev() {
                // A damaged message of the run hides a part of its text; one before the run does not matter.
                if let Some(damage) = damaged.pop_if(|damage| damage.index > index) {
                    return Err(damage.into());
                }
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
            if let Some(damage) = damaged.pop() {
                return Err(damage.into());
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
