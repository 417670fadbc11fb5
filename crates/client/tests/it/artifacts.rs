//! Artifacts: stored once, listed, read whole and in ranges, deleted.

use mainspring_client::{ArtifactListQuery, ArtifactQuery, SessionTarget};
use mainspring_core::ArtifactRole;
use mainspring_kernel::adapter::{AttemptHandle, Capabilities, End, Executed, NewArtifact};

use crate::world::{World, bytes, code};

fn described(name: &str) -> ArtifactQuery {
    ArtifactQuery {
        name: Some(name.into()),
        kind: Some("note".into()),
        role: Some(ArtifactRole::Result),
        metadata: Some(r#"{"page":1}"#.into()),
        run: None,
    }
}

#[tokio::test]
async fn an_artifact_is_stored_once_and_read_whole_or_in_part() {
    let World { client, .. } = &World::start().await;
    client.session_resolve(&SessionTarget::key("a"), None).await.unwrap();
    let put = |content: &[u8]| {
        let content = content.to_vec();
        async move { client.artifact_put("a", &described("n.txt"), Some("text/plain"), content, "k").await }
    };
    let artifact = put(b"0123456789").await.unwrap();
    assert_eq!(put(b"0123456789").await.unwrap(), artifact, "the same request");
    assert_eq!(code(put(b"other").await), "request_conflict");
    assert_eq!((artifact.kind.as_str(), artifact.size_bytes), ("note", Some(10)));
    assert_eq!(client.artifact_get(artifact.id).await.unwrap(), artifact);
    let read = async |range| bytes(client.artifact_content(artifact.id, range).await.unwrap()).await;
    assert_eq!(read(None).await, b"0123456789");
    assert_eq!(read(Some(2..5)).await, b"234");
    assert_eq!(read(Some(8..99)).await, b"89");
    assert_eq!(code(client.artifact_content(artifact.id, Some(10..11)).await), "range_not_satisfiable");
    assert_eq!(code(client.artifact_content(artifact.id, Some(3..3)).await), "invalid_request");
    client.artifact_delete(artifact.id).await.unwrap();
    assert!(client.artifact_get(artifact.id).await.unwrap_err().is_not_found());
    assert_eq!(code(client.artifact_content(artifact.id, None).await), "not_found");
    assert!(client.artifact_delete(artifact.id).await.unwrap_err().is_not_found());
}

/// Stores the prompt as an artifact of the run.
async fn store_prompt(attempt: AttemptHandle) -> Executed {
    let text = attempt.assignment().prompt.text();
    attempt.artifact(NewArtifact::default(), &mut text.as_bytes()).await.unwrap();
    End::succeeded()
}

#[tokio::test]
async fn artifacts_are_listed_by_session_and_by_run() {
    let world = World::with_agent(Capabilities::minimal("agent"), store_prompt).await;
    let client = &world.client;
    let run = world.prompt_agent("a", "made by the run").await.run;
    world.ended(run.id).await;
    world.node.clock.advance(1);
    let put = client.artifact_put("a", &described("mine"), None, b"mine".to_vec(), "k").await.unwrap();
    let everything = ArtifactListQuery::default();
    let of_run = client.run_artifacts(run.id, &everything).await.unwrap().items;
    assert_eq!((of_run.len(), of_run[0].run), (1, Some(run.id)));
    assert_eq!(bytes(client.artifact_content(of_run[0].id, None).await.unwrap()).await, b"made by the run");
    let first = ArtifactListQuery { limit: Some(1), before: None };
    let page = client.session_artifacts("a", &first).await.unwrap();
    assert_eq!(page.items, [put], "the newest first");
    let rest =
        client.session_artifacts("a", &ArtifactListQuery { before: page.next, ..first }).await.unwrap();
    assert_eq!(rest.items, of_run);
}
