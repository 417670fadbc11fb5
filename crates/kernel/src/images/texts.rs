//! The text that the agents of the runs in an image have written, so that a caller that waits for a run is answered
//! without a read of the store.
//!
//! Only runs that began while their session was loaded and that are in their first attempt, or ended with it, are here: all
//! messages of such a run are on its path. Long texts are read from the store.

use mainspring_core::{Message, MessageId, Role, Run, RunId, RunStatus};

use crate::kernel::{TextPart, join_text};
use crate::store::Row;

/// The longest text of a run that is kept. A loaded session keeps the text of its last run.
const MAX_BYTES: usize = 4 << 10;

/// The cost of a part of a text besides its bytes.
const PART_BYTES: usize = 48;

/// The texts of some runs.
#[derive(Debug, Default)]
pub(super) struct RunTexts(Vec<RunText>);

#[derive(Debug)]
struct RunText {
    run: RunId,
    /// The run's last message, of the agent or of the user's side.
    last: Option<MessageId>,
    /// The agent's messages in order.
    parts: Vec<(MessageId, TextPart)>,
}

impl RunTexts {
    /// Adds the messages of a durable commit.
    pub(super) fn apply(&mut self, rows: &[Row]) {
        let messages = || {
            rows.iter().filter_map(|row| match row {
                Row::Message(message, _) => Some(&**message),
                _ => None,
            })
        };
        for row in rows {
            let Row::Run(run) = row else { continue };
            // The commit that accepts or starts a run stores its prompt.
            if messages().any(|message| Some(message.id) == run.prompt) {
                self.0.retain(|text| text.run != run.id);
                self.0.push(RunText { run: run.id, last: None, parts: vec![] });
            }
            let is_tried_again = run.attempts > 0 && run.state.status() == RunStatus::Queued;
            if is_tried_again || run.merged_into.is_some() {
                self.0.retain(|text| text.run != run.id);
            }
        }
        for message in messages() {
            self.0.retain_mut(|text| message.run != Some(text.run) || text.add(message));
        }
    }

    /// Keeps the texts of the runs for which `keeps` returns true.
    pub(super) fn retain(&mut self, keeps: impl Fn(RunId) -> bool) {
        self.0.retain(|text| keeps(text.run));
        if self.0.is_empty() {
            self.0.shrink_to_fit();
        }
    }

    /// Returns the text of an ended run; `None` if it is not kept here as a whole.
    pub(super) fn final_text(&self, run: &Run) -> Option<String> {
        let text = self.0.iter().find(|text| text.run == run.id && run.attempts == 1)?;
        let is_whole = text.last.is_some() && text.last == run.final_message;
        is_whole.then(|| join_text(text.parts.iter().map(|(_, part)| part)))
    }
}

impl RunText {
    /// Adds a message, or replaces its earlier version. Returns false if the text has become too long.
    fn add(&mut self, message: &Message) -> bool {
        if message.is_prompt() {
            return true;
        }
        self.last = Some(message.id);
        if message.role != Role::Assistant {
            if let Some((_, last)) = self.parts.last_mut() {
                last.is_followed = true;
            }
            return true;
        }
        let part = TextPart::new(message, false);
        match self.parts.iter_mut().find(|(id, _)| *id == message.id) {
            Some((_, earlier)) => *earlier = part,
            None => self.parts.push((message.id, part)),
        }
        self.parts.iter().map(|(_, part)| part.text.len() + PART_BYTES).sum::<usize>()
            <= MAX_BYTES + PART_BYTES
    }
}
