//! The status projection: it shows the statuses that the server reported, and marks them as stale when the connection
//! breaks.

use mainspring_client::bridge::Surface;
use mainspring_client::status::{Freshness, RunView, StatusStore};
use mainspring_client::{Client, Prompt, SessionPatch, SessionTarget};
use mainspring_core::RunStatus;
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, End, Executed, NewArtifact};
use mainspring_test_support::TOKEN;

use crate::world::World;

async fn current(store: &StatusStore) {
    store.until(|store| (store.freshness() == Freshness::Current).then_some(())).await;
}

async fn latest(store: &StatusStore, surface: &Surface, status: RunStatus) -> RunView {
    store.until(|store| store.surface(surface)?.1.filter(|run| run.status == status)).await
}

async fn prompt(client: &Client, surface: &Surface, adapter: &str, text: &str) {
    let session = SessionTarget::from(surface);
    let prompt = Prompt { session, adapter: Some(adapter.into()), ..Prompt::text("", text) };
    let prompt = Prompt { session: SessionTarget { key: None, ..prompt.session.clone() }, ..prompt };
    client.run_create(&prompt).await.unwrap();
}

/// Stores two artifacts and waits until it is cancelled.
async fn store_artifacts(attempt: AttemptHandle) -> Executed {
    for name in ["one", "two"] {
        let new = NewArtifact { name: Some(name.into()), ..NewArtifact::default() };
        attempt.artifact(new, &mut name.as_bytes()).await.unwrap();
    }
    attempt.cancelled().await;
    End::stopped()
}

#[tokio::test]
async fn a_run_that_was_followed_from_its_start_shows_its_artifacts() {
    let capabilities = Capabilities { supports_cancellation: true, ..Capabilities::minimal("agent") };
    let world = World::with_agent(capabilities, store_artifacts).await;
    let store = StatusStore::follow(world.client.clone());
    assert_eq!(store.freshness(), Freshness::Unknown);
    current(&store).await;
    let task = Surface::task_chat("1");
    prompt(&world.client, &task, "agent", "go").await;
    let names = |run: &RunView| {
        let artifacts = run.artifacts.as_ref()?;
        Some(artifacts.iter().filter_map(|artifact| artifact.name.clone()).collect::<Vec<_>>())
    };
    let shown = store.until(|store| {
        let run = store.surface(&task)?.1?;
        (names(&run)?.len() == 2).then_some(run)
    });
    let shown = shown.await;
    assert_eq!(names(&shown).unwrap(), ["one", "two"]);
    // A store that began later does not know the artifacts, and says so.
    let late = StatusStore::follow(world.client.clone());
    current(&late).await;
    assert_eq!(late.run(shown.run_id).unwrap().artifacts, None);
    world.client.run_cancel(shown.run_id).await.unwrap();
    latest(&late, &task, RunStatus::Cancelled).await;
}

#[tokio::test]
async fn statuses_are_stale_while_the_server_is_away_and_current_afterwards() {
    let world = World::start().await;
    let main = Surface::main_chat(None);
    prompt(&world.client, &main, "script", "ask Which?").await;
    let store = StatusStore::follow(world.client.clone());
    let waiting = latest(&store, &main, RunStatus::WaitingInput).await;
    let World { node, client, listening } = world;
    let address = listening.address.clone();
    // Streams end with their server, connections with their socket.
    drop(listening);
    store.until(|store| matches!(store.freshness(), Freshness::Stale { .. }).then_some(())).await;
    assert_eq!(store.run(waiting.run_id).unwrap().status, RunStatus::WaitingInput, "the last known status");
    // The run ends while nobody follows it.
    let elsewhere = node.listen().await;
    let other = Client::over_tcp(&elsewhere.url(), TOKEN).unwrap();
    other.run_cancel(waiting.run_id).await.unwrap();
    let _listening = node.listen_on(&address).await;
    latest(&store, &main, RunStatus::Cancelled).await;
    current(&store).await;
    let title = SessionPatch { title: Some(Some("Tea".into())), ..SessionPatch::default() };
    client.session_patch(&waiting.session_id.to_string(), &title, None).await.unwrap();
    let titled = |store: &StatusStore| store.session(waiting.session_id)?.title;
    assert_eq!(store.until(titled).await, "Tea");
    client.session_delete(&waiting.session_id.to_string()).await.unwrap();
    store.until(|store| store.surface(&main).is_none().then_some(())).await;
    assert_eq!(store.latest_run(waiting.session_id), None);
}
