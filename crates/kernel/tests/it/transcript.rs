//! Transcripts: every message of a path, read once.

use mainspring_kernel::kernel::{Caller, Transcript};
use mainspring_kernel::store::SessionRef;

use crate::world::{World, every_store, message_text};

fn texts(transcript: &Transcript) -> Vec<String> {
    transcript.path.iter().map(|message| message_text(message)).collect()
}

#[tokio::test]
async fn a_transcript_continues_an_earlier_one() {
    for disk in every_store() {
        let world = World::on(disk).await;
        let run = world.play("s", "say one").await;
        let (kernel, by) = (&world.kernel, SessionRef::Id(run.session));
        let owner = Caller::new(run.owner.clone());
        let first = kernel.session_transcript(&owner, &by, None).await.unwrap().unwrap();
        assert_eq!(first.path.len(), 2);
        assert!(
            kernel.session_transcript(&owner, &by, Some(&first)).await.unwrap().is_none(),
            "nothing has changed"
        );
        // More messages than the first page of a reader who has the first ones.
        for number in 0..12 {
            world.play("s", &format!("say {number}")).await;
        }
        let next = kernel.session_transcript(&owner, &by, Some(&first)).await.unwrap().unwrap();
        let whole = kernel.session_transcript(&owner, &by, None).await.unwrap().unwrap();
        assert_eq!((texts(&next), next.path.len()), (texts(&whole), 26));
        assert!(kernel.session_transcript(&Caller::new("eve"), &by, Some(&next)).await.is_err());
    }
}
