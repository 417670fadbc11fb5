//! Requests that clients repeat without a name of their own.

use mainspring_core::SessionId;
use mainspring_core::repeat::REPEAT_MS;
use mainspring_kernel::kernel::Caller;
use mainspring_kernel::store::{EdgeChange, EdgeRecord};
use serde_json::json;

use crate::world::{Disk, World, every_store};

fn thread(no: u8) -> SessionId {
    SessionId::from_random([no; 16])
}

#[tokio::test]
async fn a_request_keeps_its_name_until_the_caller_sends_another_one() {
    let world = World::on(Disk::memory()).await;
    let (kernel, ada) = (&world.kernel, Caller::new("ada"));
    let begin = async |by: &Caller, body: &[u8]| {
        kernel.repeat_begin(by, "send", Some(thread(1)), body).await.unwrap()
    };
    let first = begin(&ada, b"more").await;
    assert!(!first.is_repeated);
    let again = begin(&ada, b"more").await;
    assert_eq!((again.is_repeated, &again.name), (true, &first.name));
    assert!(!begin(&Caller::new("ben"), b"more").await.is_repeated, "another caller");
    // Another call of ada about the thread.
    kernel.repeat_close(&ada, thread(2), None).await.unwrap();
    assert!(begin(&ada, b"more").await.is_repeated, "that was another thread");
    kernel.repeat_close(&ada, thread(1), None).await.unwrap();
    let second = begin(&ada, b"more").await;
    assert!(!second.is_repeated && second.name != first.name);
    // Another request of the caller about the thread also closes the earlier one.
    assert!(!begin(&ada, b"other").await.is_repeated);
    assert!(!begin(&ada, b"more").await.is_repeated);
    kernel.repeat_refused(&begin(&ada, b"more").await).await;
    assert!(!begin(&ada, b"more").await.is_repeated, "a refused request is forgotten");
}

#[tokio::test]
async fn equal_starts_that_overlap_are_different_requests() {
    let world = World::on(Disk::memory()).await;
    let (kernel, ada) = (&world.kernel, Caller::new("ada"));
    let begin = async || kernel.repeat_begin(&ada, "start", None, b"hi").await.unwrap();
    let first = begin().await;
    let second = begin().await;
    assert_ne!(first.name, second.name);
    let names = [first.name.clone(), second.name.clone()];
    drop((first, second));
    let repeated = begin().await;
    assert!(repeated.is_repeated && names.contains(&repeated.name));
    // The first call about the new thread closes the start.
    kernel.repeat_created(&repeated, thread(1)).await.unwrap();
    let closed = repeated.name.clone();
    drop(repeated);
    kernel.repeat_close(&ada, thread(1), None).await.unwrap();
    assert_ne!(begin().await.name, closed);
}

#[tokio::test]
async fn a_name_survives_a_restart_and_expires() {
    for disk in every_store() {
        let ada = Caller::new("ada");
        let world = World::on(disk.clone()).await;
        let begin =
            async |world: &World| world.kernel.repeat_begin(&ada, "start", None, b"hi").await.unwrap();
        let name = begin(&world).await.name.clone();
        drop(world);
        let world = World::reboot(&disk).await;
        assert_eq!(begin(&world).await.name, name);
        world.clock.advance(REPEAT_MS + 1);
        assert_ne!(begin(&world).await.name, name);
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_refuses_the_requests_of_its_owner_until_it_has_expired() {
    let disk = Disk::memory();
    let bad = EdgeRecord { kind: "repeat", scope: "ada".into(), id: "torn".into(), body: json!(null) };
    disk.store.edge_write(&EdgeChange::Put(bad)).await.unwrap();
    let world = World::reboot(&disk).await;
    let begin = async |owner: &str| {
        world.kernel.repeat_begin(&Caller::new(owner), "start", None, b"hi").await.map(drop)
    };
    let error = begin("ada").await.unwrap_err();
    assert!(error.code() == "corrupt" && error.to_string().contains("torn"), "{error}");
    assert_eq!(begin("ben").await, Ok(()), "of another owner");
    world.clock.advance(REPEAT_MS + 1);
    assert_eq!(begin("ada").await, Ok(()));
    let left = disk.store.edge_records("repeat", Some("ada")).await.unwrap();
    assert!(left.iter().all(|record| record.id != "torn"));
}
