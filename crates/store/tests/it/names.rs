//! Names, pages and requests: uniqueness, lookup and order.

use mainspring_core::*;
use mainspring_kernel::store::{
    Pin, PinnedBy, Request, Row, RunPage, SessionPage, SessionRef, SessionsOf, StoreError, Unique,
};

use crate::fixtures::*;

fn own() -> SessionsOf {
    SessionsOf::Owner(OWNER.into())
}

/// A session with each kind of name, and the reference that finds it.
fn named_sessions() -> Vec<(SessionRef, Session)> {
    let external = ExternalRef { kind: "task".into(), id: "7".into() };
    let alias = LegacyAlias { scope: "desk".into(), key: "main".into() };
    vec![
        (SessionRef::Key("k".into()), Session { key: Some("k".into()), ..session(1) }),
        (SessionRef::External(external.clone()), Session { external_ref: Some(external), ..session(1) }),
        (SessionRef::Legacy(alias.clone()), Session { legacy_alias: Some(alias), ..session(1) }),
    ]
}

#[tokio::test]
async fn a_name_belongs_to_one_session_of_an_owner_until_it_is_deleted() {
    for (by, first) in named_sessions() {
        for (name, subject) in every_store() {
            let store = &*subject.store;
            let (one, two, other) = (lease(store, 1).await, lease(store, 2).await, lease(store, 3).await);
            commit(store, one, vec![row_session(first.clone())], vec![]).await.unwrap();
            assert_eq!(store.session_find(OWNER, &by).await.unwrap(), Some(first.clone()), "{name}");
            assert_eq!(store.session_find("eve", &by).await.unwrap(), None, "{name}");

            let second = Session { id: session_id(2), ..first.clone() };
            let error = commit(store, two, vec![row_session(second.clone())], vec![]).await.unwrap_err();
            assert_eq!(error, StoreError::Conflict(Unique::SessionName), "{name}");
            let foreign = Session { id: session_id(3), owner: "eve".into(), ..first.clone() };
            commit(store, other, vec![row_session(foreign)], vec![]).await.unwrap();

            delete_session(store, one).await;
            assert_eq!(store.session_find(OWNER, &by).await.unwrap(), None, "{name}");
            assert_eq!(store.session_load(session_id(1)).await.unwrap(), None, "{name}");
            commit(store, two, vec![row_session(second.clone())], vec![]).await.unwrap();
            assert_eq!(store.session_find(OWNER, &by).await.unwrap(), Some(second), "{name}");
        }
    }
}

#[tokio::test]
async fn an_id_finds_a_session_of_any_owner() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        create_session(store, 1).await;
        let by = SessionRef::Id(session_id(1));
        // The kernel checks who may read it.
        assert_eq!(store.session_find(OWNER, &by).await.unwrap(), Some(session(1)), "{name}");
        assert_eq!(store.session_find("eve", &by).await.unwrap(), Some(session(1)), "{name}");
    }
}

#[tokio::test]
async fn a_request_of_a_client_makes_one_run() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let requested = |n: u64, client: Option<&str>| Run {
            request: RequestName {
                client_id: client.map(Into::into),
                request_id: Some("r".into()),
                idempotency_key: None,
            },
            ..run(n, 1, u32::try_from(n).unwrap(), queued())
        };
        commit(store, fence, vec![row_run(requested(1, Some("desk")))], vec![]).await.unwrap();
        let error =
            commit(store, fence, vec![row_run(requested(2, Some("desk")))], vec![]).await.unwrap_err();
        assert_eq!(error, StoreError::Conflict(Unique::RunRequest), "{name}");
        let rows = vec![
            row_run(requested(2, None)),
            row_run(requested(3, None)),
            row_run(requested(4, Some("web"))),
        ];
        commit(store, fence, rows, vec![]).await.unwrap();
        let found = store.run_by_request(OWNER, "desk", "r").await.unwrap();
        assert_eq!(found, Some(requested(1, Some("desk"))), "{name}");
        assert_eq!(store.run_by_request("eve", "desk", "r").await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn a_request_is_remembered_for_a_day() {
    const DAY_MS: u64 = Request::RETENTION_MS;
    assert_eq!(DAY_MS, 86_400_000);
    let request = |answer: &str, at| Request {
        owner: OWNER.into(),
        operation: "session_create".into(),
        key: "k".into(),
        fingerprint: [9; 16],
        answer: answer.into(),
        at,
    };
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let put = |request| commit(store, fence, vec![Row::Request(Box::new(request))], vec![]);
        let get = || store.request_get(OWNER, "session_create", "k");
        put(request("first", NOW)).await.unwrap();
        let again = put(request("second", NOW.plus(DAY_MS))).await.unwrap_err();
        assert_eq!(again, StoreError::Conflict(Unique::RequestKey), "{name}");
        assert_eq!(get().await.unwrap(), Some(request("first", NOW)), "{name}");
        put(request("third", NOW.plus(DAY_MS + 1))).await.unwrap();
        assert_eq!(get().await.unwrap().unwrap().answer, "third", "{name}");
        store.requests_forget(NOW.plus(DAY_MS + 1)).await.unwrap();
        assert!(get().await.unwrap().is_some(), "{name}");
        store.requests_forget(NOW.plus(DAY_MS + 2)).await.unwrap();
        assert_eq!(get().await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn a_repeated_request_is_reported_as_such() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let create = |n| {
            let request = Request {
                owner: OWNER.into(),
                operation: "session_create".into(),
                key: "k".into(),
                fingerprint: [9; 16],
                answer: session_id(n).to_string(),
                at: NOW,
            };
            vec![
                row_session(Session { key: Some("k".into()), ..session(n) }),
                Row::Request(Box::new(request)),
            ]
        };
        let (one, two) = (lease(store, 1).await, lease(store, 2).await);
        commit(store, one, create(1), vec![]).await.unwrap();
        let error = commit(store, two, create(2), vec![]).await.unwrap_err();
        assert_eq!(error, StoreError::Conflict(Unique::RequestKey), "{name}: not on the session's name");
    }
}

#[tokio::test]
async fn sessions_are_paged_by_activity() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        for n in 1..=7 {
            let fence = lease(store, n).await;
            // From 2 on, two share each time.
            let made = Session { last_activity_at: NOW.plus(n / 2), ..session(n) };
            commit(store, fence, vec![row_session(made)], vec![]).await.unwrap();
            if n == 4 {
                delete_session(store, fence).await;
            }
        }
        let mut page =
            SessionPage { of: own(), pinned: None, status: None, surface_kind: None, before: None, limit: 2 };
        let mut seen = vec![];
        loop {
            let found = store.session_page(&page).await.unwrap().items;
            let Some((last, _)) = found.last() else { break };
            page.before = Some((last.last_activity_at, last.id));
            seen.extend(found.into_iter().map(|(session, _)| (session.last_activity_at, session.id)));
        }
        assert_eq!(seen.len(), 6, "{name}");
        assert!(seen.is_sorted_by(|a, b| a > b), "{name}: {seen:?}");
        page = SessionPage { surface_kind: Some("phone".into()), before: None, ..page };
        assert_eq!(store.session_page(&page).await.unwrap().items, [], "{name}");
        let fence = lease(store, 2).await;
        let pin = Pin { owner: "eve".into(), session: session_id(2), at: Some(NOW) };
        commit(store, fence, vec![Row::Pin(Box::new(pin))], vec![]).await.unwrap();
        page = SessionPage { surface_kind: None, limit: 99, ..page };
        for (owner, is_pinned) in [("eve", true), ("eve", false), ("ada", true), ("ada", false)] {
            page.pinned = Some(PinnedBy { owner: owner.into(), is_pinned });
            let found = store.session_page(&page).await.unwrap().items;
            let ids: Vec<_> = found.iter().map(|(session, _)| session.id).collect();
            let has_pin = owner == "eve";
            assert_eq!(ids.contains(&session_id(2)), is_pinned == has_pin, "{name}: pins of {owner}");
            assert_eq!(ids.len(), [[6, 0], [5, 1]][usize::from(has_pin)][usize::from(is_pinned)], "{name}");
        }
    }
}

#[tokio::test]
async fn an_org_lists_the_sessions_shared_with_it() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let session_of = |n: u64, org: Option<&str>, visibility| Session {
            owner: format!("owner {n}"),
            org: org.map(Into::into),
            visibility,
            ..session(n)
        };
        let made = [
            session_of(1, Some("acme"), Visibility::Org),
            session_of(2, Some("acme"), Visibility::Private),
            session_of(3, Some("beta"), Visibility::Org),
            session_of(4, None, Visibility::Private),
            session_of(5, Some("acme"), Visibility::Org),
            session_of(6, Some("acme"), Visibility::Org),
        ];
        for (n, session) in (1..).zip(made) {
            let fence = lease(store, n).await;
            commit(store, fence, vec![row_session(session)], vec![]).await.unwrap();
            if n == 6 {
                delete_session(store, fence).await;
            }
        }
        let page =
            |of| SessionPage { of, pinned: None, status: None, surface_kind: None, before: None, limit: 9 };
        let listed = async |of| {
            let found = store.session_page(&page(of)).await.unwrap().items;
            found.into_iter().map(|(session, _)| session.id).collect::<Vec<_>>()
        };
        assert_eq!(listed(SessionsOf::Org("acme".into())).await, [session_id(5), session_id(1)], "{name}");
        assert_eq!(listed(SessionsOf::Org("none".into())).await, [], "{name}");
        let after = SessionPage {
            before: Some((NOW.plus(5), session_id(5))),
            limit: 1,
            ..page(SessionsOf::Org("acme".into()))
        };
        assert_eq!(store.session_page(&after).await.unwrap()[0].0.id, session_id(1), "{name}");
        let bad = Session { visibility: Visibility::Org, ..session(7) };
        let fence = lease(store, 7).await;
        let error = commit(store, fence, vec![row_session(bad)], vec![]).await.unwrap_err();
        assert_eq!(error, StoreError::Conflict(Unique::Other), "{name}: shared without an org");
    }
}

#[tokio::test]
async fn a_listed_session_has_its_latest_run() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        let fence = create_session(store, 1).await;
        let latest = run(1, 1, 2, queued());
        let rows = vec![row_run(run(2, 1, 1, RunState::Succeeded {})), row_run(latest.clone())];
        commit(store, fence, rows, vec![]).await.unwrap();
        let page =
            SessionPage { of: own(), pinned: None, status: None, surface_kind: None, before: None, limit: 9 };
        assert_eq!(store.session_page(&page).await.unwrap().items, [(session(1), Some(latest))], "{name}");
    }
}

#[tokio::test]
async fn runs_are_paged_newest_first() {
    for (name, subject) in every_store() {
        let store = &*subject.store;
        for of in 1..=3 {
            let fence = create_session(store, of).await;
            for no in 1..=4 {
                let state = if no == 4 { queued() } else { RunState::Succeeded {} };
                let made = run(of * 10 + u64::from(no), of, no, state);
                let made = Run { created_at: NOW.plus(u64::from(no)), ..made };
                commit(store, fence, vec![row_run(made)], vec![]).await.unwrap();
            }
        }
        let all = RunPage { owner: OWNER.into(), session: None, status: None, before: None, limit: 5 };
        let mut page = all.clone();
        let mut seen = vec![];
        loop {
            let found = store.run_page(&page).await.unwrap().items;
            let Some(last) = found.last() else { break };
            page.before = Some((last.created_at, last.id));
            seen.extend(found.into_iter().map(|run| (run.created_at, run.id)));
        }
        assert_eq!(seen.len(), 12, "{name}");
        assert!(seen.is_sorted_by(|a, b| a > b), "{name}");
        let count = async |page: RunPage| store.run_page(&page).await.unwrap().len();
        assert_eq!(count(RunPage { session: Some(session_id(2)), ..all.clone() }).await, 4, "{name}");
        assert_eq!(count(RunPage { status: Some(RunStatus::Queued), ..all.clone() }).await, 3, "{name}");
        assert_eq!(count(RunPage { owner: "eve".into(), ..all }).await, 0, "{name}");
    }
}
