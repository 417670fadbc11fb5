//! Transcripts: every message of a path, read once.

use mainspring_core::MessageId;
use mainspring_kernel::kernel::{Caller, KnownPath, Transcript};
use mainspring_kernel::store::SessionRef;

use crate::world::{World, every_store, message_text};

fn texts(transcript: &Transcript) -> Vec<String> {
    transcript.new.iter().map(|message| message_text(message)).collect()
}

#[tokio::test]
async fn a_transcript_continues_an_earlier_one() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("s", "say one").await;
        let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
        let owner = Caller::new(run.owner.clone());
        let (first, _) = kernel.session_transcript(&owner, &by, None).await.unwrap();
        assert_eq!((first.kept, first.new.len()), (0, 2));
        let ids: Vec<MessageId> = first.new.iter().map(|message| message.id).collect();
        let id = |number: usize| ids.get(number).copied();
        let known = Some(KnownPath { head: first.head, count: ids.len(), id: &id });
        let (same, _) = kernel.session_transcript(&owner, &by, known).await.unwrap();
        assert_eq!((same.kept, same.new.len(), same.position), (2, 0, first.position), "nothing has changed");
        // More new messages than the first page holds for a reader that has an earlier transcript.
        for number in 0..12 {
            world.play("s", &format!("say {number}")).await;
        }
        let (next, _) = kernel.session_transcript(&owner, &by, known).await.unwrap();
        let (whole, _) = kernel.session_transcript(&owner, &by, None).await.unwrap();
        assert_eq!((whole.kept, whole.new.len()), (0, 26));
        assert_eq!((next.kept, texts(&next)), (2, texts(&whole)[2..].to_vec()));
        assert!(kernel.session_transcript(&Caller::new("eve"), &by, known).await.is_err());
    }
}

#[tokio::test]
async fn a_watch_reports_whether_a_transcript_is_current() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("s", "say one").await;
        let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
        let owner = Caller::new(run.owner.clone());
        let (first, watch) = kernel.session_transcript(&owner, &by, None).await.unwrap();
        assert!(watch.is_at(first.position));
        kernel.session_close(&owner, &by).await.unwrap();
        assert!(watch.is_at(first.position), "also of a session that is not in memory");
        world.play("s", "say two").await;
        assert!(!watch.is_at(first.position));
        let (second, later) = kernel.session_transcript(&owner, &by, None).await.unwrap();
        kernel.session_delete(&owner, &by).await.unwrap();
        assert!(!later.is_at(second.position), "the session is deleted");
    }
}
