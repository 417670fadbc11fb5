//! Scripted tests of one run: commands in, the events of the last command out.
//!
//! A script is a list of commands, `start; open; finish ok`. `a2` names an attempt (the latest if none is named),
//! `w2` a wait (`w1` if none is named); `held` marks a wait on which an execution blocks.

use insta::assert_snapshot;
use serde_json::json;

use super::*;
use crate::{Approval, Cancellation, ClientCall, ClientResult, OnExpiry};

mod random;

/// A run with its attempts, driven the way the kernel does it.
#[derive(Debug, Clone, PartialEq)]
struct World {
    run: Run,
    attempts: Vec<Attempt>,
    events: Vec<Body>,
    now: Time,
}

fn attempt_id(n: u8) -> AttemptId {
    AttemptId::from_random([n; 16])
}

fn wait_id(n: u8) -> WaitId {
    WaitId::from_random([n; 16])
}

/// A run that waits for its first attempt.
pub(crate) fn queued_run() -> Run {
    Run {
        id: RunId::from_random([1; 16]),
        session: SessionId::from_random([1; 16]),
        owner: "ann".into(),
        no: 1,
        parent: None,
        request: RequestName::default(),
        fingerprint: [0; 16],
        adapter: "scripted".into(),
        mode: Mode::Act,
        prompt: None,
        options: RunOptions::default(),
        system_prompt_hash: None,
        place: Place::Tip,
        steers: false,
        merged_into: None,
        budget: None,
        final_text: None,
        output: None,
        goals: vec![],
        tasks: vec![],
        pen: None,
        state: RunState::Queued { retry_at: None, retry_reason: None },
        attempts: 0,
        last_attempt: None,
        final_message: None,
        usage: Usage::default(),
        created_at: Time(0),
        started_at: None,
        retried_at: None,
        completed_at: None,
        updated_at: Time(0),
    }
}

impl World {
    fn new() -> Self {
        Self { run: queued_run(), attempts: vec![], events: vec![], now: Time(0) }
    }

    /// Executes one command of a script and returns its events.
    fn step(&mut self, text: &str) -> Result<Vec<Body>, Refusal> {
        if text == "steers" {
            self.run.steers = true;
            return Ok(vec![]);
        }
        let bodies = match usage_of(text) {
            // The kernel accepts usage reports only from the attempt with authority.
            Some(usage) => {
                self.run.state.holder().map(|_| Body::UsageUpdated { usage }).into_iter().collect()
            }
            None => decide(&self.run, self.attempts.last(), self.command(text))?,
        };
        if !bodies.is_empty() {
            self.now = self.now.plus(1);
        }
        let wait = wait(text);
        for body in &bodies {
            if let Body::AttemptCreated { .. } = body {
                let id = attempt_id(self.attempts.len() as u8 + 1);
                self.attempts.push(new_attempt(&self.run, id, None, NodeId::from_random([1; 16]), self.now));
            }
            let latest = self.attempts.last().map(|attempt| attempt.id);
            apply(&mut self.run, body, latest, Some(&wait), self.now);
            if let Some(attempt) = self.attempts.last_mut() {
                attempt::apply(attempt, body, self.now);
            }
        }
        self.events.extend(bodies.iter().cloned());
        Ok(bodies)
    }

    fn command(&self, text: &str) -> Command {
        let by = by(text).unwrap_or(attempt_id(self.attempts.len().max(1) as u8));
        let wait = wait(text);
        let has_word = |word: &str| text.split_whitespace().any(|other| other == word);
        match text.split_whitespace().next().unwrap() {
            "start" => Command::Start { checkpoint: None },
            "open" => Command::Open { by },
            "ask" => Command::Wait { by, wait },
            "input" => {
                Command::Answer { wait: wait.id, answer: Answer::Input { input: json!("blue") }, by: None }
            }
            "allow" => Command::Answer { wait: wait.id, answer: Approval::Allowed.into(), by: None },
            "deny" => Command::Answer { wait: wait.id, answer: Approval::Denied.into(), by: None },
            "give" => {
                let id = text.split_whitespace().find(|word| word.starts_with('t')).unwrap();
                let content = json!(if has_word("other") { "dry" } else { "wet" });
                let result = ClientResult { tool_use_id: id.into(), content, ..ClientResult::default() };
                Command::Answer { wait: wait.id, answer: Answer::Tools { results: vec![result] }, by: None }
            }
            "lapse" => Command::Lapse { by },
            "resume" => Command::Resume { by },
            "cancel" => Command::Cancel { reason: CancelReason::Requested },
            "dispatch" => Command::Dispatched {
                by,
                dispatched: !has_word("unsent"),
                acknowledged: has_word("acknowledged"),
            },
            "finish" => Command::Finish { by, outcome: outcome(text) },
            "retry" => {
                let mut words = text.split_whitespace().skip(1);
                let mut change = RunChange::default();
                while let (Some(key), Some(value)) = (words.next(), words.next()) {
                    match key {
                        "adapter" => change.adapter = Some(value.into()),
                        "model" => change.model = Some(value.into()),
                        "tokens" => change.limits.max_tokens = value.parse().ok(),
                        other => panic!("{other} cannot be changed"),
                    }
                }
                Command::Retry { reason: RetryReason::User, change }
            }
            "merge" => Command::Merge { into: RunId::from_random([9; 16]) },
            other => panic!("{other} is not a command"),
        }
    }
}

fn outcome(text: &str) -> Outcome {
    let word = text.split_whitespace().rfind(|word| *word != "again").unwrap();
    match word {
        "ok" => Outcome::Succeeded,
        "stopped" => Outcome::Stopped { proof: Proof::Ended },
        "killed" => Outcome::Stopped { proof: Proof::Killed },
        _ => Outcome::Failed {
            status: RunStatus::from_name(word).unwrap(),
            error: Failure::new("broke", "it broke"),
            retryable: true,
            retry: text.ends_with("again").then(|| Box::new(again())),
        },
    }
}

fn again() -> NextAttempt {
    NextAttempt::new(RetryReason::Crash, Time(99))
}

fn by(text: &str) -> Option<AttemptId> {
    numbered(text, 'a').map(attempt_id)
}

fn wait(text: &str) -> Wait {
    let has_word = |word: &str| text.split_whitespace().any(|other| other == word);
    let call = |id: &str| ClientCall {
        tool_use_id: id.into(),
        name: "rain".into(),
        input: json!({}),
        ..ClientCall::default()
    };
    Wait {
        id: wait_id(numbered(text, 'w').unwrap_or(1)),
        request: match () {
            () if has_word("input") => WaitRequest::Input,
            () if has_word("tools") => WaitRequest::Tools,
            () => WaitRequest::Approval,
        },
        question: "which?".into(),
        expires_at: None,
        on_expiry: OnExpiry::TimeOut,
        approval: None,
        held: text.ends_with("held"),
        calls: if has_word("tools") { ["t1", "t2"].map(call).to_vec() } else { vec![] },
        results: vec![],
        resume: json!(null),
        replies: None,
        answer: None,
    }
}

fn usage_of(text: &str) -> Option<Usage> {
    let input_tokens = text.strip_prefix("spend ")?.parse().unwrap();
    Some(Usage { input_tokens, ..Usage::default() })
}

fn numbered(text: &str, prefix: char) -> Option<u8> {
    text.split_whitespace().find_map(|word| word.strip_prefix(prefix)?.parse().ok())
}

/// Executes `script` and returns the events of its last command with the resulting status, or the refusal.
fn play(script: &str) -> String {
    let mut world = World::new();
    let commands: Vec<&str> = script.split("; ").collect();
    let (last, before) = commands.split_last().unwrap();
    for command in before {
        world.step(command).unwrap_or_else(|refusal| panic!("{command}: {refusal}"));
    }
    let mut text = match world.step(last) {
        Ok(bodies) => {
            let status = world.run.state.status();
            bodies.iter().map(describe).chain([format!("= {status}")]).collect::<Vec<_>>().join("\n")
        }
        Err(refusal) => format!("refused: {refusal}"),
    };
    for n in 1..=9 {
        text = text.replace(&attempt_id(n).to_string(), &format!("a{n}"));
        text = text.replace(&wait_id(n).to_string(), &format!("w{n}"));
    }
    text
}

fn describe(body: &Body) -> String {
    let mut payload = serde_json::to_value(body).unwrap()["payload"].take();
    // The order of map keys depends on a feature of serde_json that other crates may enable.
    payload.sort_all_objects();
    let fields = payload.as_object().into_iter().flatten();
    let fields = fields.map(|(name, value)| format!(" {name}={}", value.to_string().replace('"', "")));
    format!("{}{}", body.kind(), fields.collect::<String>())
}

mod merging {
    use super::*;

    fn into(text: &str) -> String {
        text.replace(&RunId::from_random([9; 16]).to_string(), "r9")
    }

    #[test]
    fn a_merged_run_takes_no_commands() {
        assert_snapshot!(into(&play("steers; merge")), @"
        run.merged intoRunId=r9
        = queued
        ");
        for command in ["start", "cancel", "retry", "merge"] {
            let refusal = into(&play(&format!("steers; merge; {command}")));
            assert_eq!(refusal, "refused: the run's prompt became part of r9: use that run", "{command}");
        }
    }

    #[test]
    fn only_a_queued_run_that_steers_is_merged() {
        assert_snapshot!(play("merge"), @"refused: not possible while the run is queued");
        assert_snapshot!(play("steers; start; merge"), @"refused: not possible while the run is starting");
    }

    #[test]
    fn a_new_attempt_discards_the_output_of_the_attempt_before() {
        let run = &mut World::new().run;
        let output = Body::OutputCompleted { output: json!({"n": 1}), error: None };
        apply(run, &output, None, None, Time(5));
        assert_eq!(run.output.as_deref(), Some(&RunOutput::new(json!({"n": 1}), None)));
        let next = Body::AttemptCreated {
            attempt_no: 2,
            adapter: "scripted".into(),
            resume_from_attempt_id: None,
            checkpoint_artifact_id: None,
            retry_reason: None,
        };
        apply(run, &next, None, None, Time(6));
        assert_eq!(run.output, None);
    }

    #[test]
    fn a_merged_run_ends_and_is_requeued_with_the_other_run() {
        let mut world = World::new();
        world.step("steers").unwrap();
        world.step("merge").unwrap();
        let message_id = Some(MessageId::from_random([7; 16]));
        let usage = Usage { input_tokens: 3, ..Usage::default() };
        let close = Close { message_id, tip: message_id, usage };
        let failed = Body::RunFailed { error: Failure::new("broke", "it broke"), close };
        assert_eq!(follow(&world.run, &Body::RunRunning {}), None);
        assert_eq!(follow(&world.run, &run_queued(&world.run, again())), None, "it is already queued");
        let end = follow(&world.run, &failed).unwrap();
        apply(&mut world.run, &end, None, None, Time(5));
        let run = &world.run;
        assert_eq!((run.state.status(), run.final_message), (RunStatus::Failed, message_id));
        assert!(
            matches!(end, Body::RunFailed { close: Close { tip: None, usage, .. }, .. } if usage.is_zero())
        );
        assert_eq!(follow(run, &failed), None, "an ended run records nothing more");
        let again = follow(run, &run_queued(run, again())).unwrap();
        apply(&mut world.run, &again, None, None, Time(6));
        assert_eq!(world.run.state.status(), RunStatus::Queued);
    }
}

mod transitions {
    use super::*;

    #[test]
    fn start() {
        assert_snapshot!(play("start"), @"
        attempt.created adapter=scripted attemptNo=1
        run.starting
        = starting
        ");
    }

    #[test]
    fn open() {
        assert_snapshot!(play("start; open"), @"
        attempt.started
        run.running
        = running
        ");
    }

    #[test]
    fn success() {
        assert_snapshot!(play("start; open; finish a1 ok"), @"
        run.succeeded
        = succeeded
        ");
    }

    #[test]
    fn a_wait_for_an_input_and_its_answer() {
        assert_snapshot!(play("start; open; ask input"), @"
        input.requested question=which? waitId=w1
        run.waiting_input waitId=w1
        = waiting_input
        ");
        assert_snapshot!(play("start; open; ask input; input"), @"
        input.provided input=blue waitId=w1
        = waiting_input
        ");
        assert_snapshot!(play("start; open; ask input; input; resume"), @"
        run.running
        = running
        ");
    }

    #[test]
    fn an_attempt_continues_after_its_wait_lapses() {
        assert_snapshot!(play("start; open; ask input held; lapse"), @"
        input.provided waitId=w1
        = waiting_input
        ");
        assert_snapshot!(play("start; open; ask approval held; lapse; resume"), @"
        run.running
        = running
        ");
        assert_snapshot!(play("start; open; ask approval held; lapse; allow"), @"refused: w1 has been answered already");
        assert_snapshot!(play("start; open; ask approval held; allow; lapse"), @"refused: not possible while the run is waiting_approval");
        assert_snapshot!(play("start; open; lapse"), @"refused: not possible while the run is running");
    }

    #[test]
    fn a_wait_for_an_approval_and_its_answers() {
        assert_snapshot!(play("start; open; ask approval"), @"
        approval.requested onExpiry=time_out question=which? waitId=w1
        run.waiting_approval waitId=w1
        = waiting_approval
        ");
        assert_snapshot!(play("start; open; ask approval; allow"), @"
        approval.resolved decision=allowed waitId=w1
        = waiting_approval
        ");
        assert_snapshot!(play("start; open; ask approval; allow; resume"), @"
        run.running
        = running
        ");
        assert_snapshot!(play("start; open; ask approval; deny"), @"
        approval.resolved decision=denied waitId=w1
        = waiting_approval
        ");
        assert_snapshot!(play("start; open; ask approval; deny; resume"), @"
        run.running
        = running
        ");
    }

    #[test]
    fn a_wait_expires() {
        assert_snapshot!(play("start; open; ask input; finish timed_out"), @"
        input.provided waitId=w1
        attempt.failed error={code:broke,message:it broke} retryable=true status=timed_out
        run.timed_out error={code:broke,message:it broke}
        = timed_out
        ");
    }

    #[test]
    fn a_failure_without_a_retry() {
        assert_snapshot!(play("start; open; finish failed"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=failed
        run.failed error={code:broke,message:it broke}
        = failed
        ");
        assert_snapshot!(play("start; open; finish timed_out"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=timed_out
        run.timed_out error={code:broke,message:it broke}
        = timed_out
        ");
        assert_snapshot!(play("start; finish orphaned"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=orphaned
        run.orphaned error={code:broke,message:it broke}
        = orphaned
        ");
    }

    #[test]
    fn a_failure_with_a_retry() {
        assert_snapshot!(play("start; open; finish failed again"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=failed
        run.queued adapter=scripted mode=act retryAtMs=99 retryReason=crash
        = queued
        ");
        assert_snapshot!(play("start; open; finish failed again; start"), @"
        attempt.created adapter=scripted attemptNo=2 resumeFromAttemptId=a1 retryReason=crash
        run.starting
        = starting
        ");
    }

    #[test]
    fn a_retry_reopens_a_settled_run() {
        assert_snapshot!(play("start; open; finish failed; retry"), @"
        run.queued adapter=scripted mode=act retryReason=user
        = queued
        ");
        assert_snapshot!(play("start; open; finish failed; retry adapter other model m tokens 9; start"), @"
        attempt.created adapter=other attemptNo=2 resumeFromAttemptId=a1 retryReason=user
        run.starting
        = starting
        ");
        assert_snapshot!(play("start; open; finish failed; retry model m tokens 9"), @"
        run.queued adapter=scripted limits={maxTokens:9} mode=act model=m retryReason=user
        = queued
        ");
        assert_snapshot!(play("start; finish timed_out; retry; start; open; finish a2 ok"), @"
        run.succeeded
        = succeeded
        ");
    }

    #[test]
    fn losing_a_waiting_attempt_closes_its_wait() {
        assert_snapshot!(play("start; open; ask approval held; finish orphaned"), @"
        approval.resolved decision=expired waitId=w1
        attempt.failed error={code:broke,message:it broke} retryable=true status=orphaned
        run.orphaned error={code:broke,message:it broke}
        = orphaned
        ");
        assert_snapshot!(play("start; open; ask input held; finish failed again"), @"
        input.provided waitId=w1
        attempt.failed error={code:broke,message:it broke} retryable=true status=failed
        run.queued adapter=scripted mode=act retryAtMs=99 retryReason=crash
        = queued
        ");
    }

    #[test]
    fn an_answered_wait_is_not_closed_again() {
        assert_snapshot!(play("start; open; ask input; input; cancel"), @"
        run.cancellation_requested reason=requested
        attempt.cancelled proof=idle
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; open; ask approval held; allow; cancel"), @"
        run.cancellation_requested reason=requested
        run.cancelling
        = cancelling
        ");
        assert_snapshot!(play("start; open; ask input held; input; finish orphaned"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=orphaned
        run.orphaned error={code:broke,message:it broke}
        = orphaned
        ");
    }

    #[test]
    fn an_agent_stops_by_itself() {
        assert_snapshot!(play("start; open; finish stopped"), @"
        attempt.cancelled proof=ended
        run.cancelled reason=agent
        = cancelled
        ");
    }
}

mod cancelling {
    use super::*;

    #[test]
    fn a_queued_run_is_cancelled_at_once() {
        assert_snapshot!(play("cancel"), @"
        run.cancellation_requested reason=requested
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; finish failed again; cancel"), @"
        run.cancellation_requested reason=requested
        run.cancelled reason=requested
        = cancelled
        ");
    }

    #[test]
    fn an_executing_attempt_is_signalled_to_stop() {
        assert_snapshot!(play("start; cancel"), @"
        run.cancellation_requested reason=requested
        run.cancelling
        = cancelling
        ");
        assert_snapshot!(play("start; open; cancel"), @"
        run.cancellation_requested reason=requested
        run.cancelling
        = cancelling
        ");
    }

    #[test]
    fn a_run_that_waits_without_an_execution_is_cancelled_at_once() {
        assert_snapshot!(play("start; open; ask input; cancel"), @"
        run.cancellation_requested reason=requested
        input.provided waitId=w1
        attempt.cancelled proof=idle
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; open; ask approval; cancel"), @"
        run.cancellation_requested reason=requested
        approval.resolved decision=expired waitId=w1
        attempt.cancelled proof=idle
        run.cancelled reason=requested
        = cancelled
        ");
    }

    #[test]
    fn a_run_that_waits_with_an_execution_is_signalled_to_stop() {
        assert_snapshot!(play("start; open; ask approval held; cancel"), @"
        run.cancellation_requested reason=requested
        approval.resolved decision=expired waitId=w1
        run.cancelling
        = cancelling
        ");
    }

    #[test]
    fn the_stages_of_a_cancellation_are_recorded() {
        assert_snapshot!(play("start; open; cancel; dispatch"), @"
        attempt.cancel_dispatch acknowledged=false dispatched=true
        = cancelling
        ");
        assert_snapshot!(play("start; open; cancel; dispatch; dispatch acknowledged"), @"
        attempt.cancel_dispatch acknowledged=true dispatched=true
        = cancelling
        ");
        assert_snapshot!(play("start; open; cancel; dispatch unsent"), @"
        attempt.cancel_dispatch acknowledged=false dispatched=false
        = cancelling
        ");
    }

    #[test]
    fn a_stage_keeps_its_first_time() {
        let mut world = World::new();
        for command in ["start", "open", "cancel", "dispatch", "dispatch acknowledged", "dispatch unsent"] {
            world.step(command).unwrap();
        }
        let reached = Cancellation {
            requested_at: Some(Time(3)),
            dispatched_at: Some(Time(4)),
            acknowledged_at: Some(Time(5)),
        };
        assert_eq!(world.attempts[0].cancellation, reached);
    }

    #[test]
    fn an_attempt_that_ends_while_cancelling_is_cancelled() {
        assert_snapshot!(play("start; open; cancel; finish ok"), @"
        attempt.cancelled proof=ended
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; open; cancel; finish failed"), @"
        attempt.cancelled proof=ended
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; open; cancel; finish timed_out"), @"
        attempt.cancelled proof=ended
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; open; cancel; finish failed again"), @"
        attempt.cancelled proof=ended
        run.cancelled reason=requested
        = cancelled
        ");
        assert_snapshot!(play("start; open; cancel; finish killed"), @"
        attempt.cancelled proof=killed
        run.cancelled reason=requested
        = cancelled
        ");
    }

    #[test]
    fn an_orphaned_attempt_is_not_reported_as_cancelled() {
        assert_snapshot!(play("start; open; cancel; finish orphaned"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=orphaned
        run.orphaned error={code:broke,message:it broke}
        = orphaned
        ");
        assert_snapshot!(play("start; open; cancel; finish orphaned again"), @"
        attempt.failed error={code:broke,message:it broke} retryable=true status=orphaned
        run.orphaned error={code:broke,message:it broke}
        = orphaned
        ");
    }

    #[test]
    fn cancelling_twice_changes_nothing() {
        assert_snapshot!(play("start; open; cancel; cancel"), @"= cancelling");
    }
}

mod refusals {
    use super::*;

    #[test]
    fn a_stale_attempt_has_no_authority() {
        assert_snapshot!(play("start; finish failed again; start; finish a1 ok"), @"refused: attempt a1 is stale, a2 has authority");
        assert_snapshot!(play("start; finish failed again; start; open a1"), @"refused: attempt a1 is stale, a2 has authority");
        assert_snapshot!(play("start; finish failed again; start; open; ask a1 input"), @"refused: attempt a1 is stale, a2 has authority");
        assert_snapshot!(play("start; finish failed again; start; cancel; dispatch a1"), @"refused: attempt a1 is stale, a2 has authority");
    }

    #[test]
    fn no_attempt_has_authority_over_a_run_that_is_not_executing() {
        assert_snapshot!(play("finish a1 ok"), @"refused: the run is queued; attempt a1 has no authority");
        assert_snapshot!(play("start; finish failed again; finish a1 ok"), @"refused: the run is queued; attempt a1 has no authority");
        assert_snapshot!(play("start; open; finish ok; finish a1 failed"), @"refused: the run is succeeded; attempt a1 has no authority");
    }

    #[test]
    fn an_ended_run_stays_ended() {
        assert_snapshot!(play("start; open; finish ok; cancel"), @"refused: the run has ended: succeeded");
        assert_snapshot!(play("cancel; cancel"), @"refused: the run has ended: cancelled");
        assert_snapshot!(play("cancel; start"), @"refused: not possible while the run is cancelled");
        assert_snapshot!(play("cancel; retry"), @"refused: not possible while the run is cancelled");
        assert_snapshot!(play("start; open; finish ok; retry"), @"refused: not possible while the run is succeeded");
        assert_snapshot!(play("start; open; finish failed; cancel"), @"refused: the run has ended: failed");
        assert_snapshot!(play("start; open; finish failed; start"), @"refused: not possible while the run is failed");
    }

    #[test]
    fn only_a_running_run_succeeds() {
        assert_snapshot!(play("start; finish ok"), @"refused: not possible while the run is starting");
        assert_snapshot!(play("start; open; ask input held; finish ok"), @"refused: not possible while the run is waiting_input");
    }

    #[test]
    fn an_answer_must_match_its_wait() {
        assert_snapshot!(play("start; open; ask approval; input"), @"refused: w1 asks for approval, not input");
        assert_snapshot!(play("start; open; ask input; allow"), @"refused: w1 asks for input, not approval");
        assert_snapshot!(play("start; open; ask input w1; input w2"), @"refused: w2 is not open; the run is waiting_input");
        assert_snapshot!(play("start; open; input"), @"refused: w1 is not open; the run is running");
    }

    #[test]
    fn a_wait_is_answered_once_while_it_is_open() {
        assert_snapshot!(play("start; open; ask input; input; input"), @"refused: w1 has been answered already");
        assert_snapshot!(play("start; open; ask input; input; resume; input"), @"refused: w1 is not open; the run is running");
        assert_snapshot!(play("start; open; ask input held; cancel; input"), @"refused: w1 is not open; the run is cancelling");
    }

    #[test]
    fn only_an_answered_wait_resumes() {
        assert_snapshot!(play("start; open; ask input; resume"), @"refused: not possible while the run is waiting_input");
        assert_snapshot!(play("start; open; resume"), @"refused: not possible while the run is running");
        assert_snapshot!(play("start; open; ask input; input; resume; resume"), @"refused: not possible while the run is running");
        assert_snapshot!(play("start; finish failed again; start; open; ask input; input; resume a1"), @"refused: attempt a1 is stale, a2 has authority");
        assert_snapshot!(play("start; open; ask input held; input; cancel; resume"), @"refused: not possible while the run is cancelling");
    }

    #[test]
    fn only_a_running_attempt_opens_a_wait() {
        assert_snapshot!(play("start; ask input"), @"refused: not possible while the run is starting");
        assert_snapshot!(play("start; open; ask input; ask input w2"), @"refused: not possible while the run is waiting_input");
        assert_snapshot!(play("start; open; cancel; ask input"), @"refused: not possible while the run is cancelling");
    }

    #[test]
    fn commands_out_of_order_are_refused() {
        assert_snapshot!(play("start; start"), @"refused: not possible while the run is starting");
        assert_snapshot!(play("start; open; open"), @"refused: not possible while the attempt is running");
        assert_snapshot!(play("start; cancel; open"), @"refused: not possible while the attempt is cancelling");
        assert_snapshot!(play("start; open; dispatch"), @"refused: not possible while the attempt is running");
        assert_snapshot!(play("retry"), @"refused: not possible while the run is queued");
        assert_snapshot!(play("start; open; retry"), @"refused: not possible while the run is running");
    }
}

#[test]
fn a_failure_with_a_status_that_is_not_settled_becomes_failed() {
    let mut world = World::new();
    for command in ["start", "open", "finish running"] {
        world.step(command).unwrap();
    }
    assert_eq!((world.run.state.status(), world.attempts[0].status), (RunStatus::Failed, RunStatus::Failed));
}

#[test]
fn the_time_limit_counts_from_a_retry_by_a_caller() {
    let mut world = World::new();
    world.run.options.limits.max_time = Some(1_000);
    for command in ["start", "open"] {
        world.step(command).unwrap();
    }
    let limits = world.run.options.limits;
    let budget = Budget::of(&limits, 1, 1, &Usage::default(), world.run.limited_since()).unwrap();
    apply(&mut world.run, &Body::LimitExceeded { budget }, None, None, world.now);
    world.step("finish failed").unwrap();
    world.now = Time(5_000);
    world.step("retry").unwrap();
    let left = |now: u64| {
        let now = world.now.plus(now);
        world.run.limits_left(AgentLimits::default(), &Usage::default(), now).max_time
    };
    assert_eq!([left(0), left(1), left(2_000)], [Some(1_000), Some(999), Some(0)]);
}
