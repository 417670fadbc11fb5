//! Kernels that share a PostgreSQL and the place of the bytes of artifacts: no artifact is without its bytes, whatever is
//! stored and removed at the same time, and files of a process that has ended are removed.

use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use mainspring_core::{Artifact, ArtifactId};
use mainspring_kernel::kernel::{NewArtifact, SessionTarget};
use mainspring_kernel::{BlobBytes, BlobError, BlobStore, Error, Options};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::Notify;

use crate::artifacts::files;
use crate::cluster::database;
use crate::homes::{Server, node, server_with};
use crate::world::{by_key, with_timeout};

/// An object store in memory. Other tasks run between the steps of each operation, and an upload can be delayed.
#[derive(Debug, Default)]
struct MemoryBlobStore {
    bytes: Mutex<HashMap<String, Vec<u8>>>,
    /// The hash whose uploads wait.
    held: Mutex<Option<String>>,
    /// Notified when an upload waits.
    waits: Notify,
    /// Notified when that upload may go on.
    goes_on: Notify,
}

async fn yield_often() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

fn missing() -> BlobError {
    BlobError::Missing("no such object".into())
}

#[async_trait]
impl BlobStore for MemoryBlobStore {
    fn place(&self, hash: &str) -> String {
        format!("objects/{hash}")
    }

    async fn put(&self, hash: &str, _size: u64, part: &Path) -> Result<(), BlobError> {
        let bytes = std::fs::read(part).unwrap();
        let goes_on = self.goes_on.notified();
        if self.held.lock().as_deref() == Some(hash) {
            self.waits.notify_one();
            goes_on.await;
        }
        self.bytes.lock().insert(hash.to_owned(), bytes);
        yield_often().await;
        Ok(())
    }

    async fn open(&self, hash: &str, _range: Option<(u64, u64)>) -> Result<BlobBytes, BlobError> {
        let bytes = self.bytes.lock().get(hash).cloned().ok_or_else(missing)?;
        Ok(Box::new(Cursor::new(bytes)))
    }

    async fn size(&self, hash: &str) -> Result<u64, BlobError> {
        self.bytes.lock().get(hash).map(|bytes| bytes.len() as u64).ok_or_else(missing)
    }

    fn removal_delay_ms(&self) -> u64 {
        0
    }

    async fn remove(&self, hash: &str) -> Result<bool, BlobError> {
        yield_often().await;
        self.bytes.lock().remove(hash);
        Ok(true)
    }
}

async fn start(url: &str, n: u8, folder: &TempDir, objects: Option<&Arc<MemoryBlobStore>>) -> Server {
    let options = Options {
        artifacts: Some(folder.path().join("artifacts")),
        blob_store: objects.map(|objects| Arc::clone(objects) as Arc<dyn BlobStore>),
        ..Options::default()
    };
    let server = server_with(url, n, &["script"], &[], options).await;
    let target = SessionTarget { key: Some(format!("of-{n}")), ..SessionTarget::default() };
    server.kernel.session_open(&server.me, &target, None).await.unwrap();
    server
}

impl Server {
    async fn put(&self, n: u8, mut content: &[u8]) -> Result<Artifact, Error> {
        let by = by_key(&format!("of-{n}"));
        let put = self.kernel.artifact_put(&self.me, &by, NewArtifact::default(), None, &mut content).await;
        put.map(|(artifact, _)| artifact)
    }

    /// Stores and deletes the same few contents many times.
    async fn churn(&self, n: u8, rounds: usize) {
        for round in 0..rounds {
            let content = format!("content {}", round % 2);
            let artifact = self.put(n, content.as_bytes()).await.unwrap();
            let check = self.kernel.blobs_check(true).await.unwrap();
            // Another artifact may be deleted between the reading of its row and of its bytes; this one is not.
            let hash = artifact.content_hash.as_deref().unwrap();
            let problems: Vec<_> = check.problems.iter().filter(|problem| problem.contains(hash)).collect();
            assert!(problems.is_empty(), "server {n}, round {round}: {problems:?}");
            self.kernel.artifact_delete(&self.me, artifact.id).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn equal_bytes_stored_and_removed_by_two_servers_are_never_missing() {
    for objects in [None, Some(Arc::new(MemoryBlobStore::default()))] {
        let (url, folder) = (database(), tempfile::tempdir().unwrap());
        let a = start(&url, 1, &folder, objects.as_ref()).await;
        let b = start(&url, 2, &folder, objects.as_ref()).await;
        let churn = async { tokio::join!(a.churn(1, 60), b.churn(2, 60), a.churn(1, 60)) };
        tokio::time::timeout(std::time::Duration::from_secs(300), churn).await.unwrap();
        let last = a.put(1, b"content 0").await.unwrap();
        b.churn(2, 2).await;
        assert_eq!(b.kernel.blobs_check(true).await.unwrap().problems, Vec::<String>::new());
        a.kernel.artifact_delete(&a.me, last.id).await.unwrap();
        let is_empty = || match &objects {
            Some(objects) => objects.bytes.lock().is_empty(),
            None => files(&folder).is_empty(),
        };
        let empty = async {
            while !is_empty() {
                tokio::task::yield_now().await;
            }
        };
        with_timeout(empty).await;
        assert_eq!(crate::cluster::psql(&url, "SELECT count(*) FROM blob_claims"), "0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upload_holds_up_neither_removals_nor_other_uploads() {
    let (url, folder, objects) =
        (database(), tempfile::tempdir().unwrap(), Arc::new(MemoryBlobStore::default()));
    let a = start(&url, 1, &folder, Some(&objects)).await;
    let b = start(&url, 2, &folder, Some(&objects)).await;
    let other = a.put(1, b"other").await.unwrap();
    *objects.held.lock() = Some(blake3::hash(b"slow").to_hex().to_string());
    let kernel = a.kernel.clone();
    let me = a.me.clone();
    let mut slow = tokio::task::JoinSet::new();
    slow.spawn(async move {
        kernel.artifact_put(&me, &by_key("of-1"), NewArtifact::default(), None, &mut &b"slow"[..]).await
    });
    with_timeout(objects.waits.notified()).await;
    // Meanwhile the same server removes other bytes at once, and another server finds the bytes claimed.
    with_timeout(a.kernel.artifact_delete(&a.me, other.id)).await.unwrap();
    assert!(objects.bytes.lock().is_empty());
    let quick = with_timeout(a.put(1, b"quick")).await.unwrap();
    with_timeout(b.put(2, b"quick")).await.unwrap();
    with_timeout(a.kernel.artifact_delete(&a.me, quick.id)).await.unwrap();
    *objects.held.lock() = None;
    let same = with_timeout(b.put(2, b"slow")).await.unwrap();
    with_timeout(b.kernel.artifact_delete(&b.me, same.id)).await.unwrap();
    assert_eq!(objects.bytes.lock().len(), 2, "the slow upload needs the bytes that are there");
    objects.goes_on.notify_one();
    with_timeout(slow.join_next()).await.unwrap().unwrap().unwrap();
    assert_eq!(a.kernel.blobs_check(true).await.unwrap().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_server_that_was_killed_are_removed_by_another_one() {
    let (url, folder) = (database(), tempfile::tempdir().unwrap());
    let a = start(&url, 1, &folder, None).await;
    let kept = a.put(1, b"kept").await.unwrap();
    let root = folder.path().join("artifacts");
    let write = |path: String, bytes: &[u8]| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let id = |n: u8| ArtifactId::from_random([n; 16]);
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let (lost, used) = (hash(b"lost"), hash(b"kept"));
    // A server that has ended: killed while it wrote a file, between bytes and row, and after the row.
    let ended = format!("staging/{}", node(9));
    write(format!("{ended}/{}.part", id(1)), b"half");
    write(format!("{ended}/{lost}.{}", id(2)), b"");
    write(format!("{}/{lost}", &lost[..2]), b"lost");
    write(format!("{ended}/{used}.{}", kept.id), b"");
    // A server at work writes a file.
    let writing = format!("staging/{}/{}.part", node(1), id(3));
    write(writing.clone(), b"half");
    let _b = start(&url, 2, &folder, None).await;
    let mut left = vec![format!("{}/{used}", &used[..2]), writing];
    left.sort();
    let settled = async {
        while files(&folder) != left || root.join(&ended).exists() {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(settled).await;
    assert_eq!(a.kernel.blobs_check(true).await.unwrap().problems, Vec::<String>::new());
}
