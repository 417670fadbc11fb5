use serde_json::Map;

use super::*;
use crate::{TitleSource, Visibility};

/// The event types that every version must have; more are allowed.
const REQUIRED: &str = "session.created session.updated run.queued run.starting run.running run.waiting_input \
    run.waiting_approval run.cancellation_requested run.cancelling run.succeeded run.failed run.cancelled run.timed_out \
    run.orphaned attempt.created attempt.started attempt.failed attempt.cancel_dispatch attempt.cancelled \
    binding.created binding.resumed binding.stale binding.replaced message.delta message.completed progress.updated \
    tool.started tool.updated tool.completed tool.failed artifact.created usage.updated input.requested input.provided \
    approval.requested approval.resolved delegation.created delegation.completed";

#[test]
fn every_required_type_is_in_the_table() {
    for name in REQUIRED.split_whitespace() {
        assert!(Body::TYPES.contains(&name), "{name}");
    }
}

#[test]
fn classified_types_are_in_the_table() {
    let named = [Body::MESSAGE_COMPLETED];
    for name in named.iter().chain(&Body::SUPERSEDED_TYPES).chain(&Body::INTERNAL_TYPES) {
        assert!(Body::TYPES.contains(name), "{name}");
    }
}

#[test]
fn the_type_of_a_run_event_names_the_status() {
    let named = |kind: &&&str| {
        Body::run_status_of(kind).is_some_and(|status| **kind == format!("run.{}", status.name()))
    };
    let kinds: Vec<_> = Body::TYPES.iter().filter(named).copied().collect();
    let expected = "run.queued run.starting run.running run.waiting_input run.waiting_approval run.cancelling \
        run.succeeded run.failed run.cancelled run.timed_out run.orphaned";
    assert_eq!(kinds.join(" "), expected);
    for other in ["run.merged", "run.routed", "run.cancellation_requested", "attempt.failed", "failed"] {
        assert_eq!(Body::run_status_of(other), None, "{other}");
    }
}

#[test]
fn the_envelope_is_the_documented_one() {
    let event = Event {
        id: EventId::from_random([1; 16]),
        cursor: Cursor(184),
        pos: 5321,
        session: SessionId::from_random([2; 16]),
        run: Some(RunId::from_random([3; 16])),
        attempt: None,
        request: Some("r-1".into()),
        at: Time(1_782_240_000_000),
        body: Body::RunFailed { error: Failure::new("timeout", "too slow"), close: Close::default() },
    };
    insta::assert_snapshot!(serde_json::to_string_pretty(&event).unwrap(), @r#"
    {
      "protocolVersion": 2,
      "eventId": "evt_01010101010141018101010101010101",
      "cursor": 184,
      "pos": 5321,
      "sessionId": "ses_02020202020242028202020202020202",
      "runId": "run_03030303030343038303030303030303",
      "requestId": "r-1",
      "timestampMs": 1782240000000,
      "type": "run.failed",
      "payload": {
        "error": {
          "code": "timeout",
          "message": "too slow"
        }
      }
    }
    "#);
    let json = serde_json::to_string(&event).unwrap();
    assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
}

#[test]
fn only_the_printed_form_of_a_position_parses() {
    let position = Position { cursor: Cursor(184), pos: 5321 };
    assert_eq!(position.to_string().parse(), Ok(position));
    for text in ["", "1", "1.", ".1", "-1.0", "+1.0", "1.0.0", "1 .0", "99999999999999999999.0"] {
        assert!(text.parse::<Position>().is_err(), "{text:?}");
    }
}

#[test]
fn a_payload_survives_a_round_trip() {
    let bodies = [
        Body::SessionUpdated { change: SessionChange::Title { title: None, source: TitleSource::Agent } },
        Body::SessionUpdated { change: SessionChange::Visibility { visibility: Visibility::Org } },
        Body::SessionUpdated { change: SessionChange::ModelOptions { model_options: Some(Map::new()) } },
        Body::SessionUpdated { change: SessionChange::Metadata { metadata: Value::Null } },
        Body::SessionUpdated { change: SessionChange::Pinned { pinned: true } },
        Body::UsageUpdated { usage: Usage { input_tokens: 3, ..Usage::default() } },
        Body::RunSucceeded {
            close: Close { usage: Usage { output_tokens: 1, ..Usage::default() }, ..Close::default() },
        },
        Body::RunStarting {},
        Body::InputProvided {
            wait_id: WaitId::from_random([1; 16]),
            input: Some(Value::Null),
            answered_by: None,
        },
        Body::InputProvided { wait_id: WaitId::from_random([1; 16]), input: None, answered_by: None },
    ];
    for body in bodies {
        let json = serde_json::to_string(&body).unwrap();
        assert_eq!(serde_json::from_str::<Body>(&json).unwrap(), body, "{json}");
    }
}
