//! Commits: atomic, ordered, and only by the holder of the lease.

use std::sync::Arc;

use mainspring_core::*;
use mainspring_kernel::store::{Commit, Row, StoreError, Unique};
use mainspring_store::Fault;
use serde_json::json;

use crate::fixtures::*;

#[tokio::test]
async fn a_commit_is_visible_when_it_returns() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = lease(store, 1).await;
        let cursors = commit(store, fence, vec![row_session(session(1))], vec![progress(1), progress(2)])
            .await
            .unwrap();
        let events = events(store, 1).await;
        assert_eq!(events.iter().map(|event| event.cursor).collect::<Vec<_>>(), cursors, "{name}");
        assert_eq!(events[1].body, progress(2).body, "{name}");
        assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, session(1), "{name}");
    }
}

#[tokio::test]
async fn a_conflict_changes_nothing() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let running = RunState::Running { attempt: attempt_id(1) };
        let rows = vec![
            row_session(Session { title: Some("changed".into()), ..session(1) }),
            row_run(run(1, 1, 1, running.clone())),
            row_run(run(2, 1, 2, running)),
        ];
        let error = commit(store, fence, rows, vec![progress(1)]).await.unwrap_err();
        assert_eq!(error, StoreError::Conflict(Unique::Other), "{name}: two active runs in one session");
        assert_eq!(events(store, 1).await, [], "{name}");
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), None, "{name}");
        assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, session(1), "{name}");
    }
}

#[tokio::test]
async fn two_attempts_of_a_run_are_never_live_at_once() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let running = RunState::Running { attempt: attempt_id(1) };
        let numbered = |no: u32, status| attempt(no.into(), 1, no, status);
        let write = async |attempts: &[Attempt]| {
            let rows = attempts.iter().map(|attempt| Row::Attempt(Box::new(attempt.clone()))).collect();
            commit(store, fence, rows, vec![]).await
        };
        commit(store, fence, vec![row_run(run(1, 1, 1, running))], vec![]).await.unwrap();
        write(&[numbered(1, RunStatus::Running)]).await.unwrap();
        let added = write(&[numbered(2, RunStatus::Queued)]).await;
        assert_eq!(added, Err(StoreError::Conflict(Unique::Other)), "{name}: a second live attempt");
        write(&[numbered(1, RunStatus::Failed), numbered(2, RunStatus::Running)]).await.unwrap();
        let reopened = write(&[numbered(1, RunStatus::Running)]).await;
        assert_eq!(reopened, Err(StoreError::Conflict(Unique::Other)), "{name}: an ended one is live again");
        write(&[numbered(2, RunStatus::Starting)]).await.unwrap();
        let stored = store.attempts(run_id(1)).await.unwrap().items;
        let statuses: Vec<_> = stored.iter().map(|attempt| attempt.status).collect();
        assert_eq!(statuses, [RunStatus::Failed, RunStatus::Starting], "{name}");
    }
}

#[tokio::test]
async fn a_fenced_commit_changes_nothing() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let old = create_session(store, 1).await;
        let new = lease(store, 1).await;
        assert!(new.epoch > old.epoch, "{name}");
        let error = commit(store, old, vec![], vec![progress(1)]).await.unwrap_err();
        assert_eq!(error, StoreError::Fenced, "{name}");
        assert_eq!(events(store, 1).await, [], "{name}");
        commit(store, new, vec![], vec![progress(1)]).await.unwrap();
    }
}

#[tokio::test]
async fn a_session_without_a_lease_cannot_be_written() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let mut fence = create_session(store, 1).await;
        fence.session = session_id(2);
        let error = commit(store, fence, vec![row_session(session(2))], vec![]).await.unwrap_err();
        assert_eq!(error, StoreError::Fenced, "{name}");
    }
}

#[tokio::test]
async fn the_rows_of_a_commit_may_come_in_any_order() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = lease(store, 1).await;
        let running = |n| RunState::Running { attempt: attempt_id(n) };
        let mut rows = vec![
            row_message(message(2, 1, "hi"), Some(point(5, 0))),
            Row::Line(line(5, None, 1)),
            row_attempt(attempt(1, 1, 1, RunStatus::Running)),
            row_run(run(1, 1, 1, running(1))),
            row_session(session(1)),
        ];
        commit(store, fence, rows.clone(), vec![]).await.unwrap();
        // The rows that begin a run and an attempt stand before those that end the previous ones.
        rows = vec![
            row_run(run(2, 1, 2, running(3))),
            row_run(run(1, 1, 1, RunState::Succeeded {})),
            row_attempt(attempt(2, 1, 2, RunStatus::Succeeded)),
            row_attempt(attempt(1, 1, 1, RunStatus::Succeeded)),
        ];
        commit(store, fence, rows, vec![]).await.unwrap();
        assert_eq!(store.attempts(run_id(1)).await.unwrap().len(), 2, "{name}");
        assert_eq!(store.unfinished().await.unwrap().live, [session_id(1)], "{name}");
    }
}

#[tokio::test]
async fn the_last_of_several_rows_with_one_id_in_a_commit_is_stored() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let rows = vec![
            row_run(run(1, 1, 1, RunState::Running { attempt: attempt_id(1) })),
            row_run(run(1, 1, 1, RunState::Succeeded {})),
        ];
        commit(store, fence, rows, vec![]).await.unwrap();
        assert_eq!(store.run_get(run_id(1)).await.unwrap().unwrap().state, RunState::Succeeded {}, "{name}");
    }
}

#[tokio::test]
async fn cursors_grow_across_sessions() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (one, two) = (create_session(store, 1).await, create_session(store, 2).await);
        let mut all = vec![];
        for n in 0..10 {
            let fence = if n % 3 == 0 { one } else { two };
            all.extend(commit(store, fence, vec![], vec![progress(n), progress(n + 100)]).await.unwrap());
        }
        assert!(all.is_sorted_by(|a, b| a < b), "{name}: {all:?}");
        assert!(all[0] > Cursor::START, "{name}");
    }
}

#[tokio::test]
async fn a_failed_commit_is_not_stored() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let stored_session =
            async || store.session_load(session_id(1)).await.unwrap().map(|loaded| loaded.session);
        let before = stored_session().await;
        let renamed = row_session(Session { title: Some("renamed".into()), ..session(1) });
        let rows = || vec![row_run(run(1, 1, 1, RunState::Succeeded {})), renamed.clone()];
        subject.inject_fault(Fault::CommitFails);
        let error = commit(store, fence, rows(), vec![progress(1)]).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{name}");
        assert_eq!(events(store, 1).await, [], "{name}");
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), None, "{name}");
        assert_eq!(stored_session().await, before, "{name}");
        // A row that violates a constraint rolls back the earlier rows and the events too.
        let running = |n| RunState::Running { attempt: attempt_id(n) };
        let two_active =
            vec![renamed.clone(), row_run(run(1, 1, 1, running(1))), row_run(run(2, 1, 2, running(2)))];
        let error = commit(store, fence, two_active, vec![progress(2)]).await.unwrap_err();
        assert!(matches!(error, StoreError::Conflict(_)), "{name}: {error:?}");
        assert_eq!(events(store, 1).await, [], "{name}");
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), None, "{name}");
        assert_eq!(stored_session().await, before, "{name}");
        commit(store, fence, rows(), vec![progress(3)]).await.unwrap();
        assert_eq!(events(store, 1).await.len(), 1, "{name}: the fault applies once");
        assert!(store.run_get(run_id(1)).await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_commit_of_unknown_outcome_may_be_stored() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        subject.inject_fault(Fault::OutcomeUnknown);
        let error = commit(store, fence, vec![], vec![progress(1)]).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable(_)), "{name}");
        assert_eq!(events(store, 1).await.len(), 1, "{name}");
    }
}

fn every_state() -> Vec<RunState> {
    let attempt = attempt_id(1);
    let wait = |request, held: bool| Wait {
        id: wait_id(1),
        request,
        question: "which \"one\"?".into(),
        expires_at: held.then_some(NOW),
        on_expiry: OnExpiry::Continue,
        approval: Some(Box::new(ApprovalRequest::plain())),
        held,
        calls: vec![],
        results: vec![],
        resume: json!({"call": ["t1", null, 1.5]}),
        replies: None,
        answer: held.then(|| Answer::Input { input: serde_json::json!("yes") }),
    };
    let call = ClientCall {
        tool_use_id: "t1".into(),
        name: "rain".into(),
        input: json!({"at": 1.5}),
        answered: true,
        ..ClientCall::default()
    };
    let result = ClientResult {
        tool_use_id: "t1".into(),
        content: json!({"mm": 3}),
        is_error: true,
        ..ClientResult::default()
    };
    let calls = Wait {
        calls: vec![call.clone(), ClientCall { tool_use_id: "t2".into(), answered: false, ..call }],
        results: vec![result],
        ..wait(WaitRequest::Tools, false)
    };
    let error = || Failure::new("timeout", "took too long");
    vec![
        RunState::Queued { retry_at: None, retry_reason: None },
        RunState::Queued { retry_at: Some(NOW), retry_reason: Some(RetryReason::Failover) },
        RunState::Queued { retry_at: None, retry_reason: Some(RetryReason::User) },
        RunState::Starting { attempt },
        RunState::Running { attempt },
        RunState::WaitingInput { attempt, wait: Box::new(wait(WaitRequest::Input, true)) },
        RunState::WaitingApproval { attempt, wait: Box::new(wait(WaitRequest::Approval, false)) },
        RunState::WaitingInput { attempt, wait: Box::new(calls) },
        RunState::Cancelling { attempt, reason: CancelReason::Superseded },
        RunState::Succeeded {},
        RunState::Failed { error: error() },
        RunState::Cancelled { reason: CancelReason::Parent },
        RunState::TimedOut { error: error() },
        RunState::Orphaned { error: error() },
    ]
}

#[tokio::test]
async fn every_state_of_a_run_reads_back_as_written() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        for state in every_state() {
            commit(store, fence, vec![row_run(run(1, 1, 1, state.clone()))], vec![]).await.unwrap();
            assert_eq!(store.run_get(run_id(1)).await.unwrap().unwrap().state, state, "{name}");
        }
    }
}

fn full_run() -> Run {
    let usage = Usage {
        input_tokens: u64::MAX,
        output_tokens: 1,
        cost: Cost(123_456_789_012),
        at_least: true,
        ..Usage::default()
    };
    Run {
        parent: Some(run_id(9)),
        request: RequestName {
            client_id: Some("desk".into()),
            request_id: Some("r1".into()),
            idempotency_key: Some("k".into()),
        },
        mode: Mode::Ask,
        prompt: Some(message_id(2)),
        options: RunOptions {
            system_prompt: Some("be kind".into()),
            cwd: Some("/tmp".into()),
            model_options: Some(serde_json::Map::from_iter([("seed".to_owned(), json!(7))])),
            ..RunOptions::default()
        },
        system_prompt_hash: Some("abc".into()),
        place: Place::Edit { message_id: message_id(3) },
        pen: Some(point(i64::MAX, u32::MAX)),
        attempts: 2,
        last_attempt: Some(attempt_id(2)),
        final_message: Some(message_id(4)),
        usage,
        started_at: Some(NOW),
        retried_at: Some(NOW.plus(5)),
        completed_at: Some(Time(-1)),
        ..run(1, 1, 1, queued())
    }
}

#[tokio::test]
async fn everything_about_a_run_and_its_attempts_reads_back_as_written() {
    let full_attempt = Attempt {
        instance: Some("worker-1".into()),
        native_run: Some("7".into()),
        metadata: serde_json::Map::from_iter([("pid".to_owned(), json!(4242))]),
        binding: Some(binding_id(1)),
        resume_from: Some(attempt_id(1)),
        checkpoint: Some(artifact_id(7)),
        retry_reason: Some(RetryReason::Failover),
        error: Some(Failure::new("lost", "gone")),
        retryable: true,
        usage: full_run().usage,
        sandbox: Some(Sandbox {
            profile: SandboxProfile::Workspace,
            enforcement: Enforcement::Landlock,
            abi: Some(7),
            note: Some("a note".into()),
            folder: Some("/work".into()),
            reach: Some(SandboxReach { writable: vec!["/data".into()], ports: Some(vec![443]) }),
        }),
        left_running: vec![LeftProcess { pid: 7, command: "sleep 9".into() }],
        cancellation: Cancellation {
            requested_at: Some(NOW),
            dispatched_at: Some(NOW.plus(1)),
            acknowledged_at: Some(NOW.plus(2)),
        },
        started_at: Some(NOW),
        completed_at: Some(NOW),
        ..attempt(2, 1, 2, RunStatus::Orphaned)
    };
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let attempts = [attempt(1, 1, 1, RunStatus::Failed), full_attempt.clone()];
        let rows =
            vec![row_run(full_run()), row_attempt(attempts[1].clone()), row_attempt(attempts[0].clone())];
        commit(store, fence, rows, vec![]).await.unwrap();
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(full_run()), "{name}");
        assert_eq!(store.attempts(run_id(1)).await.unwrap().items, attempts, "{name}");
        let by_id = store.attempt_get(full_attempt.id).await.unwrap();
        assert_eq!(by_id, Some(full_attempt.clone()), "{name}");
        assert_eq!(store.attempt_get(attempt_id(99)).await.unwrap(), None, "{name}");
        let loaded = store.session_load(session_id(1)).await.unwrap().unwrap();
        assert_eq!(loaded.runs, [(full_run(), Some(full_attempt.clone()))], "{name}");
        assert_eq!(loaded.latest, Some(full_run()), "{name}");
    }
}

#[tokio::test]
async fn only_the_options_of_a_request_change() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        commit(store, fence, vec![row_run(full_run())], vec![]).await.unwrap();
        let changed = Run {
            owner: "eve".into(),
            request: RequestName::default(),
            fingerprint: [0; 16],
            place: Place::Root,
            state: RunState::Succeeded {},
            ..full_run()
        };
        commit(store, fence, vec![row_run(changed)], vec![]).await.unwrap();
        let kept = Run { state: RunState::Succeeded {}, ..full_run() };
        assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(kept.clone()), "{name}");
        let options = RunOptions { model: Some("m2".into()), ..RunOptions::default() };
        for options in [options, RunOptions::default()] {
            let retried = Run { options, ..kept.clone() };
            commit(store, fence, vec![row_run(retried.clone())], vec![]).await.unwrap();
            assert_eq!(store.run_get(run_id(1)).await.unwrap(), Some(retried), "{name}");
        }
    }
}

#[tokio::test]
async fn a_session_reads_back_as_written() {
    let full = Session {
        org: Some("acme".into()),
        visibility: Visibility::Org,
        model: Some("m1".into()),
        system_prompt: Some("be kind".into()),
        model_options: Some(serde_json::Map::from_iter([("seed".to_owned(), json!(7))])),
        key: Some("k".into()),
        external_ref: Some(ExternalRef { kind: "task".into(), id: "7".into() }),
        legacy_alias: Some(LegacyAlias { scope: "desk".into(), key: "main".into() }),
        cwd: Some("/home".into()),
        model_profile: Some("fast".into()),
        metadata: json!({"a": [1, "two", null], "b": {"c": 1.5}}),
        tip: Some(point(4, 2)),
        tip_message: Some(message_id(3)),
        version: u64::MAX,
        status: SessionStatus::Archived,
        pinned: true,
        title_source: Some(TitleSource::Agent),
        forked_from: Some(Origin { session: session_id(9), message: message_id(8) }),
        base: Some(point(9, 1)),
        rules: vec!["deny fs write *".into(), "ask tool call \"x\"".into()],
        labels: vec!["gpu".into(), "eu".into()],
        ..session(1)
    };
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        commit(store, fence, vec![row_session(full.clone())], vec![]).await.unwrap();
        assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, full, "{name}");
        // A turn, a change of settings and a change of visibility are written by different statements.
        let moved = Session { tip: Some(point(4, 3)), title: None, version: 5, ..full.clone() };
        let set = Session {
            model: None,
            system_prompt: None,
            model_options: None,
            rules: vec![],
            labels: vec![],
            ..moved.clone()
        };
        let hidden = Session { visibility: Visibility::Private, ..set.clone() };
        let unpinned = Session { pinned: false, title_source: None, ..hidden.clone() };
        for image in [moved, set, hidden, unpinned] {
            commit(store, fence, vec![row_session(image.clone())], vec![]).await.unwrap();
            assert_eq!(store.session_load(session_id(1)).await.unwrap().unwrap().session, image, "{name}");
        }
    }
}

#[tokio::test]
async fn a_conflict_does_not_affect_other_commits_of_its_group() {
    for (name, subject) in every_store() {
        let store = Arc::clone(&subject.store);
        let mut fences = vec![];
        for n in 0..20 {
            fences.push(create_session(&*store, n).await);
        }
        let commits = fences.iter().map(|fence| {
            let taken =
                Session { key: Some("same".into()), ..session(u64::from(fence.session.as_bytes()[15])) };
            let rows = vec![row_session(taken)];
            let commit = Commit { fence: *fence, events: vec![progress(1)], rows };
            let store = Arc::clone(&store);
            async move { store.commit(Arc::new(commit)).await }
        });
        let mut answers = vec![];
        // All are queued before the first is awaited.
        let mut tasks = tokio::task::JoinSet::new();
        for commit in commits {
            tasks.spawn(commit);
        }
        while let Some(answer) = tasks.join_next().await {
            answers.push(answer.unwrap());
        }
        let succeeded = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(succeeded, 1, "{name}");
        let conflict = Err(StoreError::Conflict(Unique::SessionName));
        assert_eq!(answers.iter().filter(|answer| **answer == conflict).count(), 19, "{name}");
        let mut stored = 0;
        for n in 0..20 {
            stored += events(&*store, n).await.len();
        }
        assert_eq!(stored, 1, "{name}");
    }
}

#[tokio::test]
async fn bindings_are_read_back_newest_first() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = lease(store, 1).await;
        let old = Binding {
            last_used_at: Some(NOW.plus(3)),
            invalidated_at: Some(NOW.plus(4)),
            invalidation_reason: Some("unknown session".into()),
            ..binding(1, 1, "acp", 1, BindingStatus::Stale)
        };
        let new = Binding {
            instance: Some("worker-1".into()),
            model: Some("m1".into()),
            metadata: serde_json::Map::from_iter([("agent".to_owned(), json!({"version": "1.2"}))]),
            ..binding(2, 1, "acp", 2, BindingStatus::Active)
        };
        let other = binding(3, 1, "pi", 1, BindingStatus::Invalid);
        let rows = [&old, &new, &other].map(|binding| Row::Binding(Box::new(binding.clone())));
        let mut all = vec![row_session(session(1))];
        all.extend(rows);
        commit(store, fence, all, vec![]).await.unwrap();
        let read = async |adapter, limit| store.bindings(session_id(1), adapter, None, limit).await.unwrap();
        assert_eq!(read(None, 9).await, [new.clone(), old.clone(), other.clone()], "{name}");
        assert_eq!(read(Some("acp"), 1).await, std::slice::from_ref(&new), "{name}");
        assert_eq!(read(Some("pi"), 9).await, std::slice::from_ref(&other), "{name}");
        let after = async |adapter, generation, limit| {
            store.bindings(session_id(1), None, Some((adapter, generation)), limit).await.unwrap()
        };
        assert_eq!(after("acp", 3, 1).await, [new], "{name}");
        assert_eq!(after("acp", 2, 9).await, [old, other.clone()], "{name}");
        assert_eq!(after("acp", 1, 9).await, [other], "{name}");
        assert_eq!(after("pi", 1, 9).await, [], "{name}");
        assert_eq!(read(Some("none"), 9).await, [], "{name}");
        assert_eq!(store.bindings(session_id(2), None, None, 9).await.unwrap(), [], "{name}");
    }
}

#[tokio::test]
async fn only_one_attempt_of_a_run_may_be_unfinished() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let first = row_attempt(attempt(1, 1, 1, RunStatus::Running));
        let active = row_run(run(1, 1, 1, RunState::Running { attempt: attempt_id(1) }));
        commit(store, fence, vec![active, first], vec![]).await.unwrap();
        let second = row_attempt(attempt(2, 1, 2, RunStatus::Starting));
        let refused = commit(store, fence, vec![second.clone()], vec![]).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{name}: {refused:?}");
        let ended = row_attempt(attempt(1, 1, 1, RunStatus::Failed));
        commit(store, fence, vec![ended, second], vec![]).await.unwrap();
    }
}

#[tokio::test]
async fn only_one_binding_of_a_session_and_adapter_is_active() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = lease(store, 1).await;
        let row = |binding: Binding| Row::Binding(Box::new(binding));
        let first = row(binding(1, 1, "acp", 1, BindingStatus::Active));
        commit(store, fence, vec![row_session(session(1)), first], vec![]).await.unwrap();
        let second = row(binding(2, 1, "acp", 2, BindingStatus::Active));
        let refused = commit(store, fence, vec![second.clone()], vec![]).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{name}: {refused:?}");
        let stale = row(binding(1, 1, "acp", 1, BindingStatus::Stale));
        commit(store, fence, vec![second, stale], vec![]).await.unwrap();
    }
}

#[tokio::test]
async fn a_native_session_has_one_active_binding_and_a_start_finds_process_local_ones() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let (one, two) = (create_session(store, 1).await, create_session(store, 2).await);
        let row = |n: u64, of: u64, status, fidelity| {
            let native = Some("n".to_owned());
            Row::Binding(Box::new(Binding { native, fidelity, ..binding(n, of, "acp", 1, status) }))
        };
        let bound = async || store.unfinished().await.unwrap().bound;
        let first = row(1, 1, BindingStatus::Active, Fidelity::None);
        commit(store, one, vec![first], vec![]).await.unwrap();
        assert_eq!(bound().await, [session_id(1)], "{name}");
        let second = row(2, 2, BindingStatus::Active, Fidelity::Native);
        let refused = commit(store, two, vec![second.clone()], vec![]).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{name}: {refused:?}");
        let stale = row(1, 1, BindingStatus::Stale, Fidelity::None);
        commit(store, one, vec![stale], vec![]).await.unwrap();
        commit(store, two, vec![second], vec![]).await.unwrap();
        assert_eq!(bound().await, [], "{name}");
    }
}

#[tokio::test]
async fn a_released_lease_is_void() {
    for (name, Subject { store, .. }) in every_store() {
        let first = create_session(&*store, 1).await;
        store.lease_release(first).await.unwrap();
        let refused = commit(&*store, first, vec![], vec![progress(1)]).await;
        assert_eq!(refused, Err(StoreError::Fenced), "{name}");
        let second = lease(&*store, 1).await;
        assert!(second.epoch > first.epoch, "{name}");
        store.lease_release(first).await.unwrap();
        commit(&*store, second, vec![], vec![progress(2)]).await.unwrap();
        store.health().await.unwrap();
    }
}
