//! State of sessions, runs and the owner: the same five operations, with conditions on versions.

use mainspring_client::{State, StateHistoryQuery, StateListQuery, StateQuery};
use mainspring_core::{Expect, StateWriter};
use serde_json::json;

use crate::world::{World, code};

#[tokio::test]
async fn the_state_of_a_session_is_kept_by_version_and_message() {
    let world = World::start().await;
    let client = &world.client;
    let now = StateQuery::default();
    let run = world.play("a", "say one").await;
    let before = run.final_message.unwrap();
    let first = client.session_state_set("a", "theme", &json!("dark"), Expect::Absent).await.unwrap();
    let expect = Expect::Version(first.version);
    let second = client.session_state_set("a", "theme", &json!("light"), expect).await.unwrap();
    assert!(second.version > first.version);
    for expect in [Expect::Absent, Expect::Version(first.version)] {
        let refused = client.session_state_set("a", "theme", &json!(0), expect).await;
        assert_eq!(code(refused), "version_conflict", "{expect:?}");
    }
    assert_eq!(client.session_state_get("a", "theme", &now).await.unwrap(), second);
    world.play("a", "say two").await;
    client.session_state_set("a", "theme", &json!("blue"), Expect::Present).await.unwrap();
    let at = StateQuery { at: Some(before) };
    assert_eq!(
        client.session_state_get("a", "theme", &at).await.unwrap().value,
        "light",
        "the value as of the earlier message"
    );
    client.session_state_set("a", "size", &json!(3), Expect::Any).await.unwrap();
    let query = StateListQuery { limit: Some(1), ..StateListQuery::default() };
    let page = client.session_state_list("a", &query).await.unwrap();
    assert_eq!((page.items[0].key.as_str(), page.next.as_deref()), ("size", Some("size")));
    let rest = client.session_state_list("a", &StateListQuery { after: page.next, ..query }).await.unwrap();
    assert_eq!(rest.items[0].value, "blue");
    client.session_state_delete("a", "theme", Expect::Any).await.unwrap();
    assert!(client.session_state_get("a", "theme", &now).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn the_state_of_a_run_is_separate_from_its_session() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.prompt("a", "say here; hang").await.run.id;
    let entry = client.run_state_set(run, "step", &json!(1), Expect::Absent).await.unwrap();
    assert_eq!(client.run_state_get(run, "step").await.unwrap(), entry);
    let listed = client.run_state_list(run, &StateListQuery::default()).await.unwrap();
    assert_eq!(listed.items, std::slice::from_ref(&entry));
    assert_eq!(client.session_state_list("a", &StateListQuery::default()).await.unwrap().items, []);
    let stale = client.run_state_delete(run, "step", Expect::Version(entry.version + 1)).await;
    assert_eq!(code(stale), "version_conflict");
    client.run_state_delete(run, "step", Expect::Version(entry.version)).await.unwrap();
    assert!(client.run_state_get(run, "step").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn the_state_of_an_owner_is_not_visible_to_other_owners() {
    let World { client, .. } = &World::start().await;
    let entry = client.owner_state_set("theme", &json!({"dark": true}), Expect::Any).await.unwrap();
    assert_eq!(client.owner_state_get("theme").await.unwrap(), entry);
    let other = client.clone().for_owner("ben");
    assert!(other.owner_state_get("theme").await.unwrap_err().is_not_found());
    assert_eq!(other.owner_state_list(&StateListQuery::default()).await.unwrap().items, []);
    client.owner_state_delete("theme", Expect::Present).await.unwrap();
    assert_eq!(code(client.owner_state_delete("theme", Expect::Present).await), "version_conflict");
    assert_eq!(client.owner_state_list(&StateListQuery::default()).await.unwrap().items, []);
}

#[tokio::test]
async fn state_is_read_and_written_as_rust_values() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Plan {
        steps: Vec<String>,
    }
    let world = World::start().await;
    let client = &world.client;
    let run = world.play("a", "say one").await;
    for state in [State::of_session(client, "a"), State::of_owner(client)] {
        let plan = Plan { steps: vec!["look".into()] };
        assert_eq!(state.get::<Plan>("plan").await.unwrap(), None);
        assert!(!state.has("plan").await.unwrap());
        let first = state.set_if("plan", &plan, Expect::Absent).await.unwrap();
        assert_eq!(state.get_versioned::<Plan>("plan").await.unwrap(), Some((plan, first)));
        let second = state.set("plan", &Plan { steps: vec![] }).await.unwrap();
        assert!(second > first);
        assert_eq!(code(state.set_if("plan", &1, Expect::Version(first)).await), "version_conflict");
        assert!(state.get::<u32>("plan").await.unwrap_err().to_string().contains("another type"));
        let all = state.all::<Plan>().await.unwrap();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), [("plan".to_owned(), Plan { steps: vec![] })]);
        state.delete_if("plan", Expect::Version(second)).await.unwrap();
        state.delete("plan").await.unwrap();
        assert!(!state.has("plan").await.unwrap());
    }
    let of_run = State::of_run(client, run.id);
    assert_eq!(of_run.get::<u32>("k").await.unwrap(), None);
    assert!(State::of_session(client, "nowhere").get::<u32>("k").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn the_changes_of_a_key_are_listed_newest_first() {
    let world = World::start().await;
    let client = &world.client;
    let run = world.play("a", "say one").await;
    for value in 1..=3 {
        client.session_state_set("a", "k", &json!(value), Expect::Any).await.unwrap();
        client.owner_state_set("k", &json!(value), Expect::Any).await.unwrap();
    }
    let two = StateHistoryQuery { limit: Some(2), before: None };
    for page in [
        client.session_state_history("a", "k", &two).await.unwrap(),
        client.owner_state_history("k", &two).await.unwrap(),
    ] {
        assert_eq!(
            page.items.iter().map(|change| change.value.clone()).collect::<Vec<_>>(),
            [Some(json!(3)), Some(json!(2))]
        );
        assert_eq!(page.next, Some(page.items[1].version.to_string()));
        assert_eq!(page.items[0].by, StateWriter::Caller { key_id: None });
    }
    let none = client.run_state_history(run.id, "k", &StateHistoryQuery::default()).await.unwrap();
    assert!(none.items.is_empty());
}
