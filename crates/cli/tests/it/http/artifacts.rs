//! Artifacts across a real `kill -9`.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::*;

impl Server {
    async fn bytes(&self, artifact: &Value) -> (StatusCode, Vec<u8>) {
        let path = format!("/v1/artifacts/{}/content", artifact["artifactId"].as_str().unwrap());
        let response = self.request(Method::GET, &path).send().await.unwrap();
        (response.status(), response.bytes().await.unwrap().to_vec())
    }
}

/// Kills the server repeatedly during uploads: acknowledged artifacts exist, existing artifacts are complete, and after
/// the next start no other file is left.
#[tokio::test]
async fn a_kill_between_blob_and_row_loses_nothing_and_leaves_no_orphan() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut acknowledged: HashMap<String, String> = HashMap::new();
    for round in 0..8_usize {
        let mut server = Server::start_in(dir.clone(), &[]);
        server.post("/v1/sessions", json!({"key": "a"})).await;
        check_acknowledged(&server, &acknowledged).await;
        let mut uploads = tokio::task::JoinSet::new();
        let (client, token) = (server.client.clone(), server.token.clone());
        let address = format!("{}/v1/sessions/a/artifacts", server.url);
        let upload = |no: usize| {
            // Every third upload repeats the same content.
            let text = format!("round {round} content {}", if no.is_multiple_of(3) { 0 } else { no });
            let request = client.post(&address).bearer_auth(&token).body(text.clone());
            async move {
                let artifact: Value = request.send().await.ok()?.json().await.ok()?;
                Some((artifact["artifactId"].as_str()?.to_owned(), text))
            }
        };
        let mut next = 0..;
        uploads.spawn(upload(0));
        (0..6).zip(&mut next).for_each(|(_, no)| drop(uploads.spawn(upload(no))));
        let mut answers = 0;
        while let Some(answer) = uploads.join_next().await {
            if let Some((id, text)) = answer.unwrap() {
                acknowledged.insert(id, text);
                answers += 1;
                if answers <= round * 3 {
                    uploads.spawn(upload(next.next().unwrap()));
                } else if answers == round * 3 + 1 {
                    // Up to six uploads are in progress.
                    server.child.kill().unwrap();
                }
            }
        }
    }
    let server = Server::start_in(dir.clone(), &[]);
    check_acknowledged(&server, &acknowledged).await;
    let (_, page) = server.get("/v1/sessions/a/artifacts?limit=500").await;
    let mut hashes = HashSet::new();
    for artifact in page["items"].as_array().unwrap() {
        let (status, bytes) = server.bytes(artifact).await;
        assert_eq!((status, bytes.len() as u64), (StatusCode::OK, artifact["sizeBytes"].as_u64().unwrap()));
        hashes.insert(artifact["contentHash"].as_str().unwrap().to_owned());
    }
    drop(server);
    let files = |folder: PathBuf| -> Vec<PathBuf> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let root = dir.path().join("state/artifacts");
    let (staging, kept): (Vec<_>, Vec<_>) =
        files(root).into_iter().partition(|path| path.ends_with("staging"));
    assert_eq!(staging.into_iter().flat_map(files).count(), 0, "nothing is half done");
    let kept: HashSet<String> = kept
        .into_iter()
        .flat_map(files)
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(kept, hashes, "every row has its bytes, and no bytes are without a row");
    let checked = mainspring(dir.path()).args(["doctor", "--thorough"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

async fn check_acknowledged(server: &Server, acknowledged: &HashMap<String, String>) {
    for (id, text) in acknowledged {
        let (status, bytes) = server.bytes(&json!({"artifactId": id})).await;
        assert_eq!((status, bytes), (StatusCode::OK, text.clone().into_bytes()), "{id}");
    }
}
