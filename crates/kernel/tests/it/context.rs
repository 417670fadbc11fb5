//! The context of a model call: the messages that an execution has in memory equal the path in the store.

use std::sync::Arc;

use mainspring_core::{Block, Message, Point, Policy};
use mainspring_kernel::Options;
use mainspring_kernel::adapter::{AttemptHandle, End, Record};
use mainspring_kernel::kernel::RunRequest;
use mainspring_reference_store::MemoryStore;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, World, every_store, with_timeout};

fn message(text: &str) -> Record {
    Record::Message { blocks: vec![Block::text(text)], usage: None }
}

fn texts(messages: &[(Point, Arc<Message>)]) -> Vec<String> {
    messages.iter().map(|(_, message)| message.text()).collect()
}

/// Returns the texts of the context. Checks that the context equals the stored path.
async fn context(handle: &AttemptHandle) -> Vec<String> {
    let context = with_timeout(handle.context(None)).await.unwrap();
    let stored = with_timeout(handle.path(99)).await.unwrap();
    let known: Vec<Arc<Message>> = context.messages.iter().map(|(_, message)| message.clone()).collect();
    assert_eq!(known, stored);
    texts(&context.messages)
}

#[tokio::test]
async fn the_context_follows_messages_results_and_prompts_that_join() {
    for disk in every_store() {
        let (adapter, mut control) =
            puppet(&disk.store, PuppetBehavior { steers: true, ..PuppetBehavior::default() });
        let world = World::with(disk, Options::default(), vec![adapter]).await;
        world.send(puppet_request("a", "one")).await.unwrap();
        let execution = control.next().await;
        let handle = &execution.handle;
        assert_eq!(context(handle).await, ["one"]);
        handle.record(vec![message("first")]).await.unwrap();
        handle.record(vec![Record::Continued { blocks: vec![Block::text("go on")] }]).await.unwrap();
        assert_eq!(context(handle).await, ["one", "first", "go on"]);
        handle.delta(0, "second").unwrap();
        handle.record(vec![Record::Message { blocks: vec![], usage: None }]).await.unwrap();
        world.send(RunRequest { policy: Policy::Steer, ..puppet_request("a", "and two") }).await.unwrap();
        with_timeout(handle.steered()).await;
        handle.steer(vec![message("third")]).await.unwrap();
        let all = ["one", "first", "go on", "second", "third", "and two"];
        assert_eq!(context(handle).await, all);
        handle.record(vec![message("fourth")]).await.unwrap();
        assert_eq!(context(handle).await.last().map(String::as_str), Some("fourth"));
        execution.end(End::succeeded());
    }
}

#[tokio::test]
async fn a_context_that_is_known_is_not_read_again() {
    let store = Arc::new(MemoryStore::default());
    let disk = Disk::on_memory(store.clone());
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let world = World::with(disk, Options::default(), vec![adapter]).await;
    world.send(puppet_request("a", "one")).await.unwrap();
    let execution = control.next().await;
    let handle = &execution.handle;
    handle.context(None).await.unwrap();
    handle.steps().await.unwrap();
    let reads = store.reads();
    for text in ["first", "second"] {
        handle.record(vec![message(text)]).await.unwrap();
        let context = handle.context(None).await.unwrap();
        assert_eq!(texts(&context.messages).last().map(String::as_str), Some(text));
        assert!(handle.steps().await.unwrap().is_empty());
    }
    assert_eq!(store.reads(), reads);
    handle.context(Some(1_000)).await.unwrap();
    assert!(store.reads() > reads, "a model with another context may need a digest");
    execution.end(End::succeeded());
}
