//! The context: the part of a path that is sent to the model, so that the request fits the model's context window.
//!
//! ```text
//! path      1 2 3 4 5 6 7 8 9          the tree keeps all of it
//! request   [digest of 1-5] 6 7 8 9    plus the prompt of the run, if it is among 1-5
//! ```
//!
//! A digest is made when the estimated size of the path exceeds the model's context window, or when the provider
//! rejects the request as too long. The digest is stored at the last message it replaces, and every later run through
//! that message finds it, also after a restart. A digest never separates a tool call from its result.

use std::sync::Arc;

use mainspring_core::{Block, Digest, DigestAuthor, Message, MessageStatus, Point, PromptRef, Role, Usage};
use mainspring_kernel::adapter::{Compacted, Context, End, Record};

use super::execution::Execution;
use super::one_shot::OneShot;
use super::summary;
use super::{Exit, estimate, prompt};
use crate::models::{SUMMARIZER, SelectedModel};
use crate::provider::RequestMessage;

/// Why a digest is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The estimated size of the path exceeds the context window.
    Estimate,
    /// The provider rejected the request as too long.
    Provider,
}

impl Execution<'_> {
    /// Returns the context of the path, compacted if it exceeds the model's context window.
    pub(super) async fn fitting_context(&mut self) -> Result<Context, Exit> {
        let context = self.context().await?;
        let tokens = self.tokens(&context).await?;
        match self.plan.model.max_prompt_tokens() {
            Some(max_tokens) if tokens > max_tokens => {
                Ok(self.compact(&context, Cause::Estimate).await?.unwrap_or(context))
            }
            _ => Ok(context),
        }
    }

    /// Reads the context of the path.
    pub(super) async fn context(&self) -> Result<Context, Exit> {
        Ok(self.attempt.context(self.plan.model.max_prompt_tokens()).await?)
    }

    /// Converts a context into the messages of a request.
    pub(super) fn request_messages(&self, context: &Context) -> Vec<RequestMessage> {
        let path = context.messages.iter().map(|(_, message)| self.with_checkpoint(message)).collect();
        let path = self.as_seen(path);
        let mut messages = vec![];
        if let Some(digest) = &context.digest {
            messages.push(RequestMessage::user(digest.text()));
            // The run's own prompt and the last prompt are always sent, even if the digest covers them.
            let own = self.with_checkpoint(&self.attempt.assignment().prompt);
            let last = context.prompt.clone().filter(|last| last.id != own.id);
            let prompts = [own].into_iter().chain(last);
            let missing: Vec<_> =
                prompts.filter(|prompt| path.iter().all(|message| message.id != prompt.id)).collect();
            messages.extend(prompt::messages(&missing, &self.private, &self.files));
        }
        messages.extend(prompt::messages(&path, &self.private, &self.files));
        self.finish_request(&mut messages);
        messages
    }

    /// Adds the checkpoint of an earlier attempt to the run's own prompt.
    fn with_checkpoint(&self, message: &Arc<Message>) -> Arc<Message> {
        match &self.checkpoint {
            Some(text) if message.id == self.attempt.assignment().prompt.id => {
                let mut message = Message::clone(message);
                message.content.push(Block::Text { text: text.clone() });
                Arc::new(message)
            }
            _ => message.clone(),
        }
    }

    /// Returns the size of a request with this context: its estimated size or, if larger, the provider's last count plus
    /// the estimated size of the messages after it.
    async fn tokens(&self, context: &Context) -> Result<u64, Exit> {
        let by_size = self.overhead_tokens(context) + estimated_tokens(&context.messages);
        let last_count = self.last_counted(context).await?;
        let by_count =
            last_count.map(|(at, counted)| counted + estimated_tokens(&context.messages[at + 1..]));
        Ok(by_count.unwrap_or(0).max(by_size))
    }

    /// Estimates the parts of a request beside its messages: system prompt, tools, digest.
    fn overhead_tokens(&self, context: &Context) -> u64 {
        let tools = self.plan.offered_tools().map(|entry| estimate::tool(&entry.spec)).sum::<u64>();
        let system = self.plan.system_prompt().map_or(0, |system| estimate::text(&system));
        let checkpoint = self.checkpoint.as_deref().map_or(0, estimate::text);
        tools
            + system
            + checkpoint
            + context.digest.as_ref().map_or(0, |digest| estimate::text(&digest.text()))
    }

    /// Replaces older messages by a digest and records it. Returns `None` if there is no message to replace.
    pub(super) async fn compact(&mut self, context: &Context, cause: Cause) -> Result<Option<Context>, Exit> {
        let before = self.tokens(context).await?;
        let max_tokens = self.plan.model.max_prompt_tokens().unwrap_or(u64::MAX);
        // Half of the window, so that the next compaction is not needed soon. A quarter of this half is for the digest.
        let goal = max_tokens.min(before) / 2;
        let scale = self.scale(context).await?;
        let keep = goal.saturating_sub(self.overhead_tokens(context)).saturating_sub(goal / 4);
        let Some(cut) = cut(&context.messages, |message| scale.apply(estimate::message(message)), keep)
        else {
            return Ok(None);
        };
        let (old, kept) = context.messages.split_at(cut);
        let Some((_, last)) = old.last() else { return Ok(None) };
        let (summary, by, mut records) = self.summarize(context, old).await?;
        let covered = scale.tokens(old);
        let covered =
            covered.saturating_add(context.digest.as_ref().map_or(0, |earlier| earlier.below_tokens / 2));
        let below = match cause {
            Cause::Estimate => covered.saturating_mul(2).max(max_tokens.saturating_add(1)),
            // The provider's real limit is unknown: the digest applies to every model.
            Cause::Provider => u64::MAX,
        };
        let Some(digest) = self.digest(context.digest.as_ref(), old, summary, by, below) else {
            return Ok(None);
        };
        let smaller = Context { digest: Some(digest.clone()), prompt: None, messages: kept.to_vec() };
        let tokens_after = self.overhead_tokens(&smaller) + scale.tokens(kept);
        let from = old.first().map_or(last.id, |(_, first)| first.id);
        records.push(Record::Compacted(Box::new(Compacted {
            digest,
            from,
            messages: u32::try_from(old.len()).unwrap_or(u32::MAX),
            by,
            tokens_before: before,
            tokens_after,
        })));
        self.attempt.record(records).await?;
        // Reads the context with the new digest from the store, exactly as every later run will.
        Ok(Some(self.context().await?))
    }

    /// Makes the digest of `old`, which also covers the messages of the `earlier` digest. `None` if `old` is empty.
    fn digest(
        &self,
        earlier: Option<&Digest>,
        old: &[(Point, Arc<Message>)],
        summary: Option<String>,
        by: DigestAuthor,
        below: u64,
    ) -> Option<Digest> {
        let (at, last) = old.last()?;
        let mut prompts =
            old.iter().filter(|(_, message)| message.is_prompt()).map(|(_, message)| message.id);
        let left_out = earlier.map_or(0, |earlier| earlier.left_out);
        Some(Digest {
            at: *at,
            message: last.id,
            prompt: prompts.next_back().or(earlier.and_then(|earlier| earlier.prompt)),
            summary: match by {
                DigestAuthor::Summarizer => summary,
                DigestAuthor::Fallback => earlier.and_then(|earlier| earlier.summary.clone()),
            },
            left_out: match by {
                DigestAuthor::Summarizer => left_out,
                DigestAuthor::Fallback => left_out + u32::try_from(old.len()).unwrap_or(u32::MAX),
            },
            below_tokens: below,
            made_at: self.attempt.now(),
        })
    }

    /// Returns the ratio between the provider's last count and our estimate of the same messages.
    async fn scale(&self, context: &Context) -> Result<Scale, Exit> {
        let Some((at, counted)) = self.last_counted(context).await? else {
            return Ok(Scale { counted: 1, estimated: 1 });
        };
        let estimated = self.overhead_tokens(context) + estimated_tokens(&context.messages[..=at]);
        Ok(Scale { counted: counted.max(1), estimated: estimated.max(1) })
    }

    /// Returns the index of the last answer since the digest, and the tokens that its provider counted up to and
    /// including it. The count is read from the step: a message holds the usage of its whole turn.
    async fn last_counted(&self, context: &Context) -> Result<Option<(usize, u64)>, Exit> {
        let digest_at = context.digest.as_ref().map(|digest| digest.made_at);
        let counted_run = |message: &Message| {
            let newer = digest_at.is_none_or(|digest_at| message.created_at > digest_at);
            let completed = message.status == MessageStatus::Completed;
            message.run.filter(|_| message.role == Role::Assistant && completed && newer)
        };
        let mut answers = context.messages.iter().enumerate().rev();
        let answer = answers.find_map(|(at, (_, message))| Some((at, message.id, counted_run(message)?)));
        let Some((at, message, run)) = answer else { return Ok(None) };
        let steps = self.attempt.steps_of(run).await?;
        let step = steps.iter().rfind(|step| step.output == Some(message));
        Ok(step
            .map(|step| (at, step.usage.map_or(0, |usage| usage.tokens())))
            .filter(|(_, counted)| *counted > 0))
    }

    /// Summarizes `old` with the configured summarizer. Returns no summary if no summarizer is configured, if it fails,
    /// or if its price is unknown and the run has a cost limit.
    async fn summarize(
        &mut self,
        context: &Context,
        old: &[(Point, Arc<Message>)],
    ) -> Result<(Option<String>, DigestAuthor, Vec<Record>), Exit> {
        let mut records = vec![];
        // A model without a known price cannot be kept within a cost limit.
        let affordable = |model: &SelectedModel| self.plan.limits.max_cost.is_none() || model.price.is_some();
        let Some(model) = self.adapter.models.for_purpose(SUMMARIZER).filter(affordable) else {
            return Ok((None, DigestAuthor::Fallback, records));
        };
        let mut summary = context.digest.as_ref().and_then(|digest| digest.summary.clone());
        let prompt = PromptRef {
            last: old.last().map(|(_, message)| message.id),
            messages: u32::try_from(old.len()).unwrap_or(u32::MAX),
            digest: context.digest.as_ref().map(|digest| digest.message),
        };
        let messages = old.iter().map(|(_, message)| message.as_ref());
        let max_tokens = model.max_prompt_tokens().unwrap_or(summary::DEFAULT_PROMPT_TOKENS);
        for part in summary::parts(messages, max_tokens) {
            match self.summarize_part(&model, prompt, summary.as_deref(), &part, &mut records).await? {
                Some(text) => summary = Some(text),
                None => return Ok((None, DigestAuthor::Fallback, records)),
            }
        }
        Ok((summary, DigestAuthor::Summarizer, records))
    }

    /// Summarizes one part, with retries. Adds the records of its model calls to `records`.
    async fn summarize_part(
        &mut self,
        model: &SelectedModel,
        prompt: PromptRef,
        so_far: Option<&str>,
        part: &str,
        records: &mut Vec<Record>,
    ) -> Result<Option<String>, Exit> {
        let (attempt, options) = (self.attempt.clone(), &self.adapter.options);
        for tries in 1.. {
            let started_at = attempt.now();
            let call = OneShot { model, system: summary::SYSTEM_PROMPT, text: summary::prompt(so_far, part) };
            let result = tokio::select! {
                biased;
                () = attempt.cancelled() => {
                    records.push(Record::Usage(Usage::UNKNOWN));
                    attempt.record_at_end(std::mem::take(records)).await?;
                    return Err(End::stopped().into());
                }
                result = call.call() => result,
            };
            let step =
                result.step(&attempt, (self.steps + 1, self.plan.agent.name()), model, prompt, started_at);
            records.push(Record::Step(Box::new(step)));
            // The kernel counts a step of unknown usage itself.
            self.usage += result.usage.unwrap_or(Usage::UNKNOWN);
            if let Some(usage) = result.usage.filter(|usage| !usage.is_zero()) {
                records.push(Record::Usage(usage));
            }
            let error = match result.text {
                Ok(text) => return Ok(Some(text)),
                Err(error) => error,
            };
            let wait_ms = options.retry_delay_ms(tries, &error);
            if !error.kind.is_retryable() || tries >= options.max_tries || wait_ms > options.retry_max_ms {
                tracing::warn!(%error, "the summarizer failed; the oldest turns are left out without a summary");
                return Ok(None);
            }
            let text = format!("the conversation could not be summarized: {error}; retrying");
            records.push(Record::Progress { text });
            attempt.record(std::mem::take(records)).await?;
            tokio::select! {
                () = attempt.sleep_for(wait_ms) => {}
                () = attempt.cancelled() => return Err(End::stopped().into()),
            }
        }
        Ok(None)
    }
}

fn estimated_tokens(messages: &[(Point, Arc<Message>)]) -> u64 {
    messages.iter().map(|(_, message)| estimate::message(message)).sum()
}

/// The ratio between counted and estimated tokens.
#[derive(Debug, Clone, Copy)]
struct Scale {
    counted: u64,
    estimated: u64,
}

impl Scale {
    /// Corrects an estimate upwards, never downwards.
    fn apply(self, tokens: u64) -> u64 {
        let scaled = u128::from(tokens) * u128::from(self.counted) / u128::from(self.estimated);
        u64::try_from(scaled).unwrap_or(u64::MAX).max(tokens)
    }

    /// Returns the corrected estimate of `messages`.
    fn tokens(self, messages: &[(Point, Arc<Message>)]) -> u64 {
        messages.iter().map(|(_, message)| self.apply(estimate::message(message))).sum()
    }
}

/// Returns how many of the first `messages` to leave out so that the rest has at most `keep` tokens: as few as possible
/// and, where possible, whole turns. Never separates a call from its result and never leaves out the last message. If
/// the rest cannot be that small, leaves out as many as possible. `None` if no message can be left out.
fn cut(messages: &[(Point, Arc<Message>)], tokens: impl Fn(&Message) -> u64, keep: u64) -> Option<usize> {
    let mut kept = 0_u64;
    let mut fits_from = messages.len();
    for (at, (_, message)) in messages.iter().enumerate().rev() {
        kept = kept.saturating_add(tokens(message));
        if kept > keep {
            break;
        }
        fits_from = at;
    }
    let holds_results = |message: &Message| message.role == Role::User && !message.is_prompt();
    let separates_call =
        |at: &usize| !messages[at - 1].1.tool_calls().is_empty() || holds_results(&messages[*at].1);
    let allowed = || (1..messages.len()).filter(|at| !separates_call(at));
    let begins_turn = |at: &usize| messages[*at].1.is_prompt();
    let fits = |at: &usize| *at >= fits_from;
    let whole_turns = allowed().filter(fits).find(begins_turn);
    whole_turns.or_else(|| allowed().find(fits)).or_else(|| allowed().next_back())
}

#[cfg(test)]
mod tests {
    use mainspring_core::{Block, LineId, MessageId, MessageStatus, Role, SessionId, Time};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Builds a path: `u` is a prompt, `a` an answer, `c` a tool call, `r` its result.
    fn path(script: &str) -> Vec<(Point, Arc<Message>)> {
        let message = |kind: char| {
            let result = Block::tool_result("t", "add", vec![], false);
            let call = Block::tool_use("t", "add", json!({}));
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
                agent: None,
                external_id: None,
            })
        };
        let point = |pos| Point { line: LineId(1), pos };
        script.chars().enumerate().map(|(pos, kind)| (point(pos as u32), message(kind))).collect()
    }

    #[test]
    fn whole_turns_are_left_out_where_possible() {
        let cut_at = |script: &str, keep| cut(&path(script), |_| 1, keep);
        assert_eq!(cut_at("uauau", 3), Some(2), "three messages fit");
        assert_eq!(cut_at("uauau", 2), Some(4), "two would begin with an answer");
        assert_eq!(cut_at("uacruau", 3), Some(4), "a turn begins there");
        assert_eq!(cut_at("ucrcrcr", 3), Some(5), "no turn begins there, but a tool round does");
        assert_eq!(cut_at("ucrcrcr", 1), Some(5), "a call stays with its result");
        assert_eq!(cut_at("ucr", 0), Some(1));
        assert_eq!(cut_at("u", 0), None);
        assert_eq!(cut_at("", 9), None);
        assert_eq!(cut_at("cr", 0), None);
    }

    proptest! {
        #[test]
        fn no_call_is_separated_and_the_last_message_stays(turns in "(ua|u(cr){1,3}a|ua){0,6}u(cr){0,3}", keep in 0_u64..20) {
            let path = path(&turns);
            if let Some(at) = cut(&path, |_| 1, keep) {
                prop_assert!(at >= 1 && at < path.len(), "{turns} {at}");
                prop_assert!(path[at - 1].1.tool_calls().is_empty(), "{turns} {at}");
            }
        }
    }
}
