//! The results of steps: the model's input and its answer, the results of the tools that it called, and a
//! checksum of the answer and these results.

use mainspring_api::{AnsweredCall, StepResult};
use mainspring_core::{Block, Message, Point, RunId, SessionId, Step, StepInput};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Caller, Kernel, Shared};
use crate::error::Error;

/// The most messages directly beneath a model's answer that are searched for the results of its calls. Each
/// may begin a branch.
const MAX_CHILDREN: usize = 100;

impl Kernel {
    /// Gets the model call with this number, with its input, its answer and the results of its tools. Of several tries,
    /// the one that succeeded, else the last.
    pub async fn run_step(&self, caller: &Caller, run: RunId, no: u32) -> Result<StepResult, Error> {
        let session = self.run_readable(caller, run).await?.session;
        let store = &self.shared.store;
        let steps = store.steps(run).await?.items.into_iter().filter(|step| step.no == no);
        let step = steps.max_by_key(|step| (step.output.is_some(), step.completed_at));
        let step = step.ok_or_else(|| Error::not_found("step", format!("{no} of {run}")))?;
        let input = match &step.input_hash {
            Some(hash) => self.shared.step_input(session, hash).await?,
            None => None,
        };
        let placed = match step.output {
            Some(output) => store.message_get(session, output).await?.map(|(placed, _)| placed),
            None => None,
        };
        let Some(placed) = placed else {
            return Ok(StepResult { step, input, output: None, answered_calls: vec![], checksum: None });
        };
        let mut calls = calls_of(&placed.message);
        if let Some(point) = placed.point.filter(|_| !calls.is_empty()) {
            self.add_results(session, run, point, &mut calls).await?;
        }
        let checksum = checksum(&step, &placed.message, &calls);
        Ok(StepResult { step, input, output: Some(placed.message), answered_calls: calls, checksum })
    }

    /// Adds the results in the messages of `run` beneath `answer`.
    async fn add_results(
        &self,
        session: SessionId,
        run: RunId,
        answer: Point,
        calls: &mut [AnsweredCall],
    ) -> Result<(), Error> {
        let store = &self.shared.store;
        for child in store.children(session, Some(answer), MAX_CHILDREN).await? {
            let Some((placed, _)) = store.message_get(session, child).await? else { continue };
            if placed.message.run != Some(run) {
                continue;
            }
            for block in &placed.message.content {
                let Block::ToolResult { tool_use_id, content, is_error, .. } = block else { continue };
                if let Some(call) = calls.iter_mut().find(|call| call.tool_use_id == *tool_use_id) {
                    (call.result, call.is_error) = (Some(content.clone()), *is_error);
                }
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Gets the input of steps of a session. Its hash is also its checksum.
    pub(super) async fn step_input(
        &self,
        session: SessionId,
        hash: &str,
    ) -> Result<Option<StepInput>, Error> {
        let Some(json) = self.store.step_input(session, hash).await? else { return Ok(None) };
        let damaged = || Error::Corrupt(format!("the input {hash} of steps of {session} is damaged"));
        if blake3::hash(json.as_bytes()).to_hex().as_str() != hash {
            return Err(damaged());
        }
        serde_json::from_str(&json).map(Some).map_err(|_| damaged())
    }
}

fn calls_of(message: &Message) -> Vec<AnsweredCall> {
    let call = |block: &Block| match block {
        Block::ToolUse { id, name, input, .. } => Some(AnsweredCall {
            tool_use_id: id.clone(),
            name: name.clone(),
            input: input.clone(),
            result: None,
            is_error: false,
        }),
        _ => None,
    };
    message.content.iter().filter_map(call).collect()
}

/// The checksum of a step: of its agent, its output, its calls with their results, and its time. None while a result is
/// missing.
fn checksum(step: &Step, output: &Message, calls: &[AnsweredCall]) -> Option<String> {
    if calls.iter().any(|call| call.result.is_none()) {
        return None;
    }
    let parts = json!([step.agent, output.content, calls, step.completed_at]);
    Some(blake3::hash(canonical_json(&parts)?.as_bytes()).to_hex().to_string())
}

/// The JSON of a step's input, and its hash.
pub(crate) fn hashed_input(input: &StepInput) -> Option<(String, String)> {
    let json = canonical_json(input)?;
    Some((blake3::hash(json.as_bytes()).to_hex().to_string(), json))
}

/// JSON without spaces whose keys are sorted.
fn canonical_json(value: &impl Serialize) -> Option<String> {
    let mut value: Value = serde_json::to_value(value).ok()?;
    value.sort_all_objects();
    serde_json::to_string(&value).ok()
}

#[cfg(test)]
mod tests {
    use mainspring_core::{AttemptId, MessageId, MessageStatus, PromptRef, Role, StepId, StopReason, Time};

    use super::*;

    fn step(agent: &str, at: i64) -> Step {
        Step {
            id: StepId::from_random([1; 16]),
            run: RunId::from_random([2; 16]),
            attempt: AttemptId::from_random([3; 16]),
            no: 1,
            agent: agent.into(),
            provider: "p".into(),
            model: "m".into(),
            profile: None,
            prompt: PromptRef::default(),
            output: None,
            tool_calls: vec![],
            stop_reason: StopReason::Stop,
            error: None,
            usage: None,
            raw_usage: Value::Null,
            started_at: Time(1),
            first_piece_at: None,
            completed_at: Time(at),
            input_hash: None,
            raw: Value::Null,
            private: None,
        }
    }

    #[test]
    fn a_checksum_depends_on_the_agent_and_the_millisecond_and_needs_all_results() {
        let output = Message {
            id: MessageId::from_random([4; 16]),
            session: SessionId::from_random([5; 16]),
            run: None,
            role: Role::Assistant,
            status: MessageStatus::Completed,
            content: vec![Block::tool_use("t1", "add", json!({"b": 2, "a": 1}))],
            usage: None,
            created_at: Time(7),
            agent: None,
            external_id: None,
        };
        let mut calls = calls_of(&output);
        assert_eq!(checksum(&step("coder@1", 1_000), &output, &calls), None, "its call has no result");
        calls[0].result = Some(vec![Block::text("3")]);
        let sum = |agent, at| checksum(&step(agent, at), &output, &calls).unwrap();
        let expected = r#"["coder@1",[{"id":"t1","input":{"a":1,"b":2},"name":"add","type":"tool_use"}],[{"input":{"a":1,"b":2},"isError":false,"name":"add","result":[{"text":"3","type":"text"}],"toolUseId":"t1"}],1000]"#;
        assert_eq!(sum("coder@1", 1_000), blake3::hash(expected.as_bytes()).to_hex().to_string());
        assert_ne!(sum("coder@1", 1_000), sum("coder@1", 1_001));
        assert_ne!(sum("coder@1", 1_000), sum("critic@1", 1_000));
    }
}
