//! The context: what of a path a model is shown, so that it fits.
//!
//! ```text
//! path    1 2 3 4 5 6 7 8 9          the tree keeps it all
//! shown   [digest of 1-5] 6 7 8 9    and, if it lies in 1-5, the prompt that the run answers
//! ```
//!
//! A digest is made when the path comes to more than the model takes, or when its provider says so. It lies with the
//! last message it stands for and is found again by every later run through there, after a restart as well. It never
//! parts a tool call from its answer.

use std::sync::Arc;

use mainspring_core::{Digest, DigestAuthor, Message, MessageStatus, Point, PromptRef, Role};
use mainspring_kernel::adapter::{Compacted, Context, End, Record};

use super::aside::Aside;
use super::summary;
use super::turn::Looper;
use super::{Stop, estimate, prompt};
use crate::models::{Chosen, SUMMARIZER};
use crate::provider::Turn;

/// Why a digest is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The path comes to more than the model takes, by our own estimate.
    Estimate,
    /// The provider said so.
    Provider,
}

impl Looper<'_> {
    /// The path as the model is shown it, as short as it must be.
    pub(super) async fn fitting(&mut self) -> Result<Context, Stop> {
        let context = self.context().await?;
        let tokens = self.tokens(&context).await?;
        match self.plan.model.room() {
            Some(room) if tokens > room => {
                Ok(self.compact(&context, Cause::Estimate).await?.unwrap_or(context))
            }
            _ => Ok(context),
        }
    }

    /// The path as the model is shown it.
    pub(super) async fn context(&self) -> Result<Context, Stop> {
        Ok(self.attempt.context(self.plan.model.room()).await?)
    }

    /// The conversation that a context is.
    pub(super) fn turns(&self, context: &Context) -> Vec<Turn> {
        let path: Vec<Arc<Message>> = context.messages.iter().map(|(_, message)| message.clone()).collect();
        let mut turns = vec![];
        if let Some(digest) = &context.digest {
            turns.push(prompt::note(digest.text()));
            // Whatever is left out, what the run is to answer is not, nor what was said last.
            let asked = self.attempt.assignment().prompt.clone();
            let last = context.prompt.clone().filter(|last| last.id != asked.id);
            let missing = [asked].into_iter().chain(last);
            let missing: Vec<_> =
                missing.filter(|one| path.iter().all(|message| message.id != one.id)).collect();
            turns.extend(prompt::turns(&missing, &self.private, &self.files));
        }
        turns.extend(prompt::turns(&path, &self.private, &self.files));
        turns
    }

    /// What a context comes to.
    async fn tokens(&self, context: &Context) -> Result<u64, Stop> {
        let bare = self.bare(context);
        let by_size = bare + context.messages.iter().map(|(_, message)| estimate::of(message)).sum::<u64>();
        let by_usage = self.last_used(context).await?.map(|(at, used)| {
            used + context.messages[at + 1..].iter().map(|(_, message)| estimate::of(message)).sum::<u64>()
        });
        Ok(by_usage.unwrap_or(0).max(by_size))
    }

    /// What a context comes to without its messages: instructions, tools, the digest.
    fn bare(&self, context: &Context) -> u64 {
        let tools = self.plan.tools.iter().map(|entry| estimate::tool(&entry.spec)).sum::<u64>();
        let told = self.plan.told().map_or(0, |told| estimate::text(&told));
        tools + told + context.digest.as_ref().map_or(0, |digest| estimate::text(&digest.text()))
    }

    /// Leaves out older messages, and says so; none if there are none that can be left out.
    pub(super) async fn compact(&mut self, context: &Context, cause: Cause) -> Result<Option<Context>, Stop> {
        let before = self.tokens(context).await?;
        let room = self.plan.model.room().unwrap_or(u64::MAX);
        // Half of what there is room for, so that it is not to be done again soon.
        let goal = room.min(before) / 2;
        let scale = self.scale(context).await?;
        let bare = self.bare(context);
        let keep = goal.saturating_sub(bare).saturating_sub(goal / 4);
        let Some(cut) = cut(&context.messages, |message| scale.of(estimate::of(message)), keep) else {
            return Ok(None);
        };
        let (old, kept) = context.messages.split_at(cut);
        let Some((at, last)) = old.last() else { return Ok(None) };
        let (summary, by, mut records) = self.summary(context, old).await?;
        let earlier = context.digest.as_ref();
        let new = u32::try_from(old.len()).unwrap_or(u32::MAX);
        let covered = old.iter().map(|(_, message)| scale.of(estimate::of(message))).sum::<u64>();
        let covered = covered.saturating_add(earlier.map_or(0, |earlier| earlier.below_tokens / 2));
        let below = match cause {
            Cause::Estimate => covered.saturating_mul(2).max(room.saturating_add(1)),
            // How much the model takes is not known after all.
            Cause::Provider => u64::MAX,
        };
        let mut prompts =
            old.iter().filter(|(_, message)| message.is_prompt()).map(|(_, message)| message.id);
        let left_out = earlier.map_or(0, |earlier| earlier.left_out);
        let digest = Digest {
            at: *at,
            message: last.id,
            prompt: prompts.next_back().or(earlier.and_then(|earlier| earlier.prompt)),
            summary: match by {
                DigestAuthor::Summarizer => summary,
                DigestAuthor::Fallback => earlier.and_then(|earlier| earlier.summary.clone()),
            },
            left_out: left_out + if by == DigestAuthor::Fallback { new } else { 0 },
            below_tokens: below,
            made_at: self.attempt.now(),
        };
        let smaller = Context { digest: Some(digest.clone()), prompt: None, messages: kept.to_vec() };
        let after = kept.iter().map(|(_, message)| scale.of(estimate::of(message))).sum::<u64>();
        let from = old.first().map_or(last.id, |(_, first)| first.id);
        records.push(Record::Compacted(Box::new(Compacted {
            digest,
            from,
            messages: new,
            by,
            tokens_before: before,
            tokens_after: self.bare(&smaller) + after,
        })));
        self.attempt.record(records).await?;
        // As every later run will find it.
        Ok(Some(self.context().await?))
    }

    /// How far our estimates are from what the provider counted.
    async fn scale(&self, context: &Context) -> Result<Scale, Stop> {
        let Some((at, used)) = self.last_used(context).await? else {
            return Ok(Scale { used: 1, estimated: 1 });
        };
        let shown = &context.messages[..=at];
        let estimated =
            self.bare(context) + shown.iter().map(|(_, message)| estimate::of(message)).sum::<u64>();
        Ok(Scale { used: used.max(1), estimated: estimated.max(1) })
    }

    /// The last answer of which is known what the model was shown, and what it came to with that answer. The step says
    /// it; the message says what all of its turn used.
    async fn last_used(&self, context: &Context) -> Result<Option<(usize, u64)>, Stop> {
        let since = context.digest.as_ref().map(|digest| digest.made_at);
        let told = |message: &Message| {
            let newer = since.is_none_or(|since| message.created_at > since);
            let whole = message.status == MessageStatus::Completed;
            message.run.filter(|_| message.role == Role::Assistant && whole && newer)
        };
        let found = context.messages.iter().enumerate().rev();
        let found = { found }.find_map(|(at, (_, message))| Some((at, message.id, told(message)?)));
        let Some((at, message, run)) = found else { return Ok(None) };
        let steps = self.attempt.steps_of(run).await?;
        let step = steps.iter().rfind(|step| step.output == Some(message));
        Ok(step.map(|step| (at, step.usage.tokens())).filter(|(_, used)| *used > 0))
    }

    /// What `old` says, summarised by the model that is configured for it; nothing if there is none or it fails.
    async fn summary(
        &mut self,
        context: &Context,
        old: &[(Point, Arc<Message>)],
    ) -> Result<(Option<String>, DigestAuthor, Vec<Record>), Stop> {
        let mut records = vec![];
        // What costs nobody knows how much cannot be kept within a limit of cost.
        let affordable = |model: &Chosen| self.plan.limits.max_cost.is_none() || model.price.is_some();
        let Some(model) = self.adapter.models.purpose(SUMMARIZER).filter(affordable) else {
            return Ok((None, DigestAuthor::Fallback, records));
        };
        let mut summary = context.digest.as_ref().and_then(|digest| digest.summary.clone());
        let prompt = PromptRef {
            last: old.last().map(|(_, message)| message.id),
            messages: u32::try_from(old.len()).unwrap_or(u32::MAX),
        };
        let messages = old.iter().map(|(_, message)| message.as_ref());
        for part in summary::parts(messages, model.room().unwrap_or(summary::ROOM)) {
            match self.summarise(&model, prompt, summary.as_deref(), &part, &mut records).await? {
                Some(text) => summary = Some(text),
                None => return Ok((None, DigestAuthor::Fallback, records)),
            }
        }
        Ok((summary, DigestAuthor::Summarizer, records))
    }

    /// One part of it, asked for again if that may help; what was asked goes to `records`.
    async fn summarise(
        &mut self,
        model: &Chosen,
        prompt: PromptRef,
        so_far: Option<&str>,
        part: &str,
        records: &mut Vec<Record>,
    ) -> Result<Option<String>, Stop> {
        let (attempt, options) = (self.attempt.clone(), &self.adapter.options);
        for tries in 1.. {
            let started_at = attempt.now();
            let aside = Aside { model, system: summary::INSTRUCTION, text: summary::question(so_far, part) };
            let told = tokio::select! {
                biased;
                () = attempt.cancelled() => {
                    attempt.record_at_end(std::mem::take(records)).await?;
                    return Err(End::stopped().into());
                }
                told = aside.ask() => told,
            };
            let by = (self.steps + 1, self.plan.agent.name());
            records.push(Record::Step(Box::new(told.step(&attempt, by, model, prompt, started_at))));
            if !told.usage.is_zero() {
                self.usage += told.usage;
                records.push(Record::Usage(told.usage));
            }
            let error = match told.text {
                Ok(text) => return Ok(Some(text)),
                Err(error) => error,
            };
            let wait = options.wait(tries, &error);
            if !error.kind.is_retryable() || tries >= options.tries || wait > options.retry_max {
                tracing::warn!(%error, "a conversation could not be summarised; its oldest turns are left out");
                return Ok(None);
            }
            let text = format!("the conversation could not be summarised yet: {error}; it is tried again");
            records.push(Record::Progress { text });
            attempt.record(std::mem::take(records)).await?;
            tokio::select! {
                () = attempt.sleep_until(attempt.now().plus(wait)) => {}
                () = attempt.cancelled() => return Err(End::stopped().into()),
            }
        }
        Ok(None)
    }
}

/// A proportion.
#[derive(Debug, Clone, Copy)]
struct Scale {
    used: u64,
    estimated: u64,
}

impl Scale {
    /// What an estimate comes to; never less than it.
    fn of(self, tokens: u64) -> u64 {
        let scaled = u128::from(tokens) * u128::from(self.used) / u128::from(self.estimated);
        u64::try_from(scaled).unwrap_or(u64::MAX).max(tokens)
    }
}

/// How many of `messages` are left out so that the others come to at most `keep`: as few as possible and, where that
/// can be, whole turns. Never parts a call from its answer, and never leaves out the last message.
fn cut(messages: &[(Point, Arc<Message>)], tokens: impl Fn(&Message) -> u64, keep: u64) -> Option<usize> {
    let mut kept = 0_u64;
    let mut fits = messages.len();
    for (at, (_, message)) in messages.iter().enumerate().rev() {
        kept = kept.saturating_add(tokens(message));
        if kept > keep {
            break;
        }
        fits = at;
    }
    let parts = |at: &usize| !messages[at - 1].1.tool_calls().is_empty();
    let allowed = || (1..messages.len()).filter(|at| !parts(at));
    let begins = |at: &usize| messages[*at].1.is_prompt();
    let from = |at: &usize| *at >= fits;
    let whole = allowed().filter(from).find(begins);
    whole.or_else(|| allowed().find(from)).or_else(|| allowed().next_back())
}

#[cfg(test)]
mod tests {
    use mainspring_core::{Block, LineId, MessageId, MessageStatus, Role, SessionId, Time};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// `u` a prompt, `a` an answer, `c` one that calls a tool, `r` what that answered.
    fn path(script: &str) -> Vec<(Point, Arc<Message>)> {
        let message = |kind: char| {
            let result = Block::ToolResult {
                tool_use_id: "t".into(),
                name: "add".into(),
                content: vec![],
                is_error: false,
            };
            let call = Block::ToolUse { id: "t".into(), name: "add".into(), input: json!({}) };
            let (role, content) = match kind {
                'u' => (Role::User, vec![Block::text("hi")]),
                'a' => (Role::Assistant, vec![Block::text("ho")]),
                'c' => (Role::Assistant, vec![call]),
                _ => (Role::User, vec![result]),
            };
            Arc::new(Message {
                id: MessageId::from_random([1; 16]),
                session: SessionId::from_random([2; 16]),
                run: None,
                role,
                status: MessageStatus::Completed,
                content,
                usage: None,
                created_at: Time(1),
            })
        };
        let point = |pos| Point { line: LineId(1), pos };
        script.chars().enumerate().map(|(pos, kind)| (point(pos as u32), message(kind))).collect()
    }

    #[test]
    fn whole_turns_are_left_out_where_that_can_be() {
        let cut_at = |script: &str, keep| cut(&path(script), |_| 1, keep);
        assert_eq!(cut_at("uauau", 3), Some(2), "three fit");
        assert_eq!(cut_at("uauau", 2), Some(4), "two would begin with an answer");
        assert_eq!(cut_at("uacruau", 3), Some(4), "a turn begins there");
        assert_eq!(cut_at("ucrcrcr", 3), Some(5), "no turn begins there, but a round does");
        assert_eq!(cut_at("ucrcrcr", 1), Some(5), "a call stays with its answer");
        assert_eq!(cut_at("ucr", 0), Some(1));
        assert_eq!(cut_at("u", 0), None);
        assert_eq!(cut_at("", 9), None);
        assert_eq!(cut_at("cr", 0), None);
    }

    proptest! {
        #[test]
        fn nothing_is_parted_and_the_last_message_stays(turns in "(ua|u(cr){1,3}a|ua){0,6}u(cr){0,3}", keep in 0_u64..20) {
            let path = path(&turns);
            if let Some(at) = cut(&path, |_| 1, keep) {
                prop_assert!(at >= 1 && at < path.len(), "{turns} {at}");
                prop_assert!(path[at - 1].1.tool_calls().is_empty(), "{turns} {at}");
            }
        }
    }
}
