//! Artifacts: bytes are written before rows, stored once, and removed with the last row that refers to them.

use std::path::{Path, PathBuf};

use mainspring_core::{
    AccessRole, Artifact, ArtifactRole, Block, Body, KeyId, KeyLists, Limits, Message, Place, RunId,
    Visibility,
};
use mainspring_kernel::adapter::{End, HandleError};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::kernel::{
    ArtifactQuery, ArtifactsOf, Caller, ForkRequest, NewArtifact, NewSession, RunRequest, SessionTarget,
};
use mainspring_kernel::store::SessionRef;
use mainspring_kernel::{Error, Options};
use mainspring_store::Fault;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::puppet::{PuppetBehavior, puppet, puppet_request};
use crate::world::{Disk, NOW, World, by_key, every_store, run_process, with_timeout};

/// Starts a kernel that stores artifacts in `folder`.
pub(crate) async fn world_with_artifacts(disk: Disk, folder: &TempDir, seed: u64) -> World {
    let options = Options {
        artifacts: Some(folder.path().join("artifacts")),
        limits: Limits { artifact_bytes: 1 << 20, ..Limits::default() },
        ..Options::default()
    };
    let world = World::boot(disk, options, vec![], Clock::manual(NOW), seed).await;
    for key in ["a", "b"] {
        let target = SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
        world.kernel.session_open(&world.me, &target, None).await.unwrap();
    }
    world
}

impl World {
    pub(crate) async fn put(&self, key: &str, content: &[u8]) -> Result<Artifact, Error> {
        self.put_once(key, content, None).await.map(|(artifact, _)| artifact)
    }

    async fn put_once(
        &self,
        key: &str,
        content: &[u8],
        once: Option<&str>,
    ) -> Result<(Artifact, bool), Error> {
        let mut content = content;
        self.kernel.artifact_put(&self.me, &by_key(key), text_file(), once, &mut content).await
    }

    pub(crate) async fn bytes(&self, artifact: &Artifact, from: u64, length: Option<u64>) -> Vec<u8> {
        let (_, mut reader) = self.kernel.artifact_read(&self.me, artifact.id, from, length).await.unwrap();
        let mut bytes = vec![];
        reader.read_to_end(&mut bytes).await.unwrap();
        bytes
    }

    pub(crate) async fn list(&self, of: ArtifactsOf) -> Vec<Artifact> {
        let query = ArtifactQuery { of, before: None, limit: None };
        self.kernel.artifact_list(&self.me, query).await.unwrap().items
    }
}

fn text_file() -> NewArtifact {
    NewArtifact {
        name: Some("a.txt".into()),
        mime_type: Some("text/plain".into()),
        role: ArtifactRole::Input,
        ..NewArtifact::default()
    }
}

/// Lists the files in the folder of artifacts, relative to it.
pub(crate) fn files(folder: &TempDir) -> Vec<String> {
    fn walk(at: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(at).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let root = folder.path().join("artifacts");
    let mut found = vec![];
    walk(&root, &mut found);
    let mut names: Vec<String> =
        found.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn file_of(artifact: &Artifact) -> String {
    let hash = artifact.content_hash.as_deref().unwrap();
    format!("{}/{hash}", &hash[..2])
}

/// Waits until the folder contains exactly these files.
async fn wait_for_files(folder: &TempDir, wanted: Vec<String>) {
    let settled = async {
        while files(folder) != wanted {
            tokio::task::yield_now().await;
        }
    };
    with_timeout(settled).await;
}

#[tokio::test]
async fn equal_bytes_are_stored_once_and_removed_with_the_last_artifact() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let world = world_with_artifacts(disk, &folder, 1).await;
        let large: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).take(1 << 20).collect();
        let (first, same) =
            (world.put("a", b"hello").await.unwrap(), world.put("b", b"hello").await.unwrap());
        let third = world.put("a", &large).await.unwrap();
        let empty = world.put("a", b"").await.unwrap();
        assert_eq!(first.content_hash.as_deref(), Some(blake3_of(b"hello").as_str()), "{name}");
        assert_eq!((first.size_bytes, first.run), (Some(5), None), "{name}");
        let mut kept = vec![file_of(&first), file_of(&third), file_of(&empty)];
        kept.sort();
        assert_eq!(files(&folder), kept, "{name}: nothing is left in staging");
        assert_eq!(world.bytes(&same, 0, None).await, b"hello", "{name}");
        assert_eq!(world.bytes(&same, 1, Some(3)).await, b"ell", "{name}");
        assert_eq!(world.bytes(&same, 3, Some(99)).await, b"lo", "{name}");
        assert_eq!(world.bytes(&third, 0, None).await, large, "{name}");
        assert_eq!(world.list(ArtifactsOf::Session(by_key("a"))).await.len(), 3, "{name}");
        assert_eq!(world.kernel.blobs_check(true).await.unwrap().problems, Vec::<String>::new(), "{name}");

        world.kernel.artifact_delete(&world.me, first.id).await.unwrap();
        let gone = world.kernel.artifact_get(&world.me, first.id).await.unwrap_err();
        assert_eq!(gone.code(), "not_found", "{name}");
        assert_eq!(files(&folder), kept, "{name}: another session has the same bytes");
        world.kernel.session_delete(&world.me, &by_key("b")).await.unwrap();
        kept.retain(|file| *file != file_of(&first));
        wait_for_files(&folder, kept).await;
        world.kernel.session_delete(&world.me, &by_key("a")).await.unwrap();
        wait_for_files(&folder, vec![]).await;
    }
}

fn blake3_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

#[tokio::test]
async fn the_next_attempt_continues_from_the_newest_checkpoint_of_its_run() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let world = world_with_artifacts(disk, &folder, 1).await;
        let run = world.prompt("a", "fail once; say done").await;
        world.wait_until(run.id, |run| run.attempts == 1 && run.state.holder().is_none()).await;
        let put = async |role, run| {
            let new = NewArtifact { role, run, ..text_file() };
            let put = world.kernel.artifact_put(&world.me, &by_key("a"), new, None, &mut &b"x"[..]).await;
            world.clock.advance(1);
            put.unwrap().0
        };
        put(ArtifactRole::Checkpoint, Some(run.id)).await;
        let newest = put(ArtifactRole::Checkpoint, Some(run.id)).await;
        put(ArtifactRole::Log, Some(run.id)).await;
        put(ArtifactRole::Checkpoint, None).await;
        world.advance_until(100, world.ended(run.id)).await;
        let attempts = world.kernel.run_attempts(&world.me, run.id).await.unwrap().items;
        let checkpoints: Vec<_> = attempts.iter().map(|attempt| attempt.checkpoint).collect();
        assert_eq!(checkpoints, [None, Some(newest.id)], "{name}");
        let events = serde_json::to_string(&world.events("a").await).unwrap();
        assert!(events.contains(&format!(r#""checkpointArtifactId":"{}""#, newest.id)), "{name}: {events}");
        let all = world.events("a").await;
        let created = all.iter().filter(|event| matches!(event.body, Body::ArtifactCreated { .. }));
        let runs: Vec<_> = created.map(|event| event.run).collect();
        assert_eq!(runs, [Some(run.id), Some(run.id), Some(run.id), None], "{name}");
        // A run of another session, and one that does not exist.
        for (run, code) in [(run.id, "invalid_request"), (RunId::from_random([9; 16]), "not_found")] {
            let new = NewArtifact { run: Some(run), ..text_file() };
            let put = world.kernel.artifact_put(&world.me, &by_key("b"), new, None, &mut &b"x"[..]).await;
            assert_eq!(put.unwrap_err().code(), code, "{name}");
        }
    }
}

#[tokio::test]
async fn a_refused_artifact_leaves_nothing() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let world = world_with_artifacts(disk, &folder, 1).await;
        let put = async |new: NewArtifact, mut content: &[u8]| {
            let put = world.kernel.artifact_put(&world.me, &by_key("a"), new, None, &mut content).await;
            put.unwrap_err().code()
        };
        assert_eq!(put(text_file(), &vec![0; (1 << 20) + 1]).await, "too_large", "{name}");
        let bad = |mime: &str| NewArtifact { mime_type: Some(mime.into()), ..text_file() };
        assert_eq!(put(bad("text/html\r\nx: y"), b"x").await, "invalid_request", "{name}");
        let named = NewArtifact { name: Some("a\nb".into()), ..text_file() };
        assert_eq!(put(named, b"x").await, "invalid_request", "{name}");
        let mut broken = failing_content();
        let put = world.kernel.artifact_put(&world.me, &by_key("a"), text_file(), None, &mut broken).await;
        assert_eq!(put.unwrap_err().code(), "invalid_request", "{name}");
        let other = Caller::new("bob");
        let put = world.kernel.artifact_put(&other, &by_key("a"), text_file(), None, &mut &b"x"[..]).await;
        assert_eq!(put.unwrap_err().code(), "not_found", "{name}");
        world.disk.inject_fault(Fault::CommitFails);
        assert_eq!(world.put("a", b"x").await.unwrap_err().code(), "unavailable", "{name}");
        assert_eq!(files(&folder), Vec::<String>::new(), "{name}");
        assert_eq!(world.list(ArtifactsOf::Session(by_key("a"))).await, [], "{name}");
        world.disk.inject_fault(Fault::OutcomeUnknown);
        let known = world.put("a", b"x").await.unwrap();
        assert_eq!(world.bytes(&known, 0, None).await, b"x", "{name}: it was looked up");
        let hidden = world.kernel.artifact_get(&other, known.id).await.unwrap_err();
        assert_eq!(hidden.code(), "not_found", "{name}");
        assert!(world.kernel.artifact_delete(&other, known.id).await.is_err(), "{name}");
    }
}

/// Content whose reader fails.
fn failing_content() -> impl tokio::io::AsyncRead + Unpin + Send {
    struct Broken(bool);
    impl tokio::io::AsyncRead for Broken {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            buffer: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            if std::mem::replace(&mut self.0, true) {
                return std::task::Poll::Ready(Err(std::io::Error::other("gone")));
            }
            buffer.put_slice(b"begun");
            std::task::Poll::Ready(Ok(()))
        }
    }
    Broken(false)
}

#[tokio::test]
async fn a_repeated_upload_returns_the_same_artifact() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let world = world_with_artifacts(disk, &folder, 1).await;
        let (first, made) = world.put_once("a", b"once", Some("k")).await.unwrap();
        let (again, remade) = world.put_once("a", b"once", Some("k")).await.unwrap();
        assert_eq!((first.id, made, remade), (again.id, true, false), "{name}");
        let conflict = world.put_once("a", b"twice", Some("k")).await.unwrap_err();
        assert_eq!(conflict.code(), "request_conflict", "{name}");
        let both = tokio::join!(world.put_once("a", b"x", Some("l")), world.put_once("a", b"x", Some("l")));
        let (one, other) = (both.0.unwrap(), both.1.unwrap());
        assert_eq!((one.0.id, one.1 != other.1), (other.0.id, true), "{name}: one of two made it");
        assert_eq!(world.list(ArtifactsOf::Session(by_key("a"))).await.len(), 2, "{name}");
        assert_eq!(files(&folder).len(), 2, "{name}");
    }
}

#[tokio::test]
async fn the_next_start_removes_files_left_by_a_crash() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let world = world_with_artifacts(disk.clone(), &folder, 1).await;
        let kept = world.put("a", b"kept").await.unwrap();
        let loose = world.put("a", b"loose").await.unwrap();
        let id = |seed| mainspring_core::ArtifactId::from_random([seed; 16]);
        world.kernel.shutdown().await;
        // Crashes while writing, between bytes and row, after the row, and between removing the row and its bytes.
        let staging = folder.path().join("artifacts/staging");
        let lost = blake3_of(b"lost");
        let write = |path: &Path, bytes: &[u8]| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        write(&staging.join(format!("{}.part", id(1))), b"half");
        write(&staging.join(format!("{lost}.{}", id(2))), b"");
        write(&folder.path().join("artifacts").join(&lost[..2]).join(&lost), b"lost");
        write(&staging.join(format!("{}.{}", blake3_of(b"kept"), kept.id)), b"");
        let fence = disk
            .store
            .lease_take(loose.session, mainspring_core::NodeId::from_random([9; 16]))
            .await
            .unwrap();
        let rows = vec![mainspring_kernel::store::Row::ArtifactGone(loose.id)];
        let commit = mainspring_kernel::store::Commit { fence, events: vec![], rows };
        disk.store.commit(commit.into()).await.unwrap();
        assert_eq!(files(&folder).len(), 6, "{name}");

        let world = world_with_artifacts(disk, &folder, 2).await;
        wait_for_files(&folder, vec![file_of(&kept)]).await;
        assert_eq!(world.bytes(&kept, 0, None).await, b"kept", "{name}");
        // The check of `doctor` finds missing, truncated and changed files.
        let file = folder.path().join("artifacts").join(file_of(&kept));
        for (bytes, thorough, problems) in [
            (Some(&b"kept"[..]), true, 0),
            (Some(b"kepT"), false, 0),
            (Some(b"kepT"), true, 1),
            (Some(b"k"), false, 1),
            (None, false, 1),
        ] {
            std::fs::remove_file(&file).unwrap();
            bytes.into_iter().for_each(|bytes| std::fs::write(&file, bytes).unwrap());
            let check = world.kernel.blobs_check(thorough).await.unwrap();
            assert_eq!(
                (check.blobs, check.bytes, check.problems.len()),
                (1, 4, problems),
                "{name} {bytes:?}"
            );
            std::fs::write(&file, b"kept").unwrap();
        }
    }
}

#[tokio::test]
async fn an_attempt_records_artifacts_and_prompts_refer_to_them() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let options = Options { artifacts: Some(folder.path().join("artifacts")), ..Options::default() };
        let world = World::with(disk, options, vec![adapter]).await;
        world.send(puppet_request("a", "go")).await.unwrap();
        let execution = control.next().await;
        let new = NewArtifact { role: ArtifactRole::ToolOutput, ..text_file() };
        let made = execution.handle.artifact(new.clone(), &mut &b"patch"[..]).await.unwrap();
        let run = execution.handle.assignment().run.id;
        assert_eq!((made.run, made.attempt), (Some(run), Some(execution.handle.id())), "{name}");
        let handle = execution.end(End::succeeded());
        world.ended(run).await;
        let late = handle.artifact(new, &mut &b"late"[..]).await;
        assert_eq!(late, Err(HandleError::Revoked), "{name}");
        assert_eq!(files(&folder), [file_of(&made)], "{name}: late artifacts are not stored");
        assert_eq!(world.list(ArtifactsOf::Run(run)).await, std::slice::from_ref(&made), "{name}");
        let recorded = world.events("a").await.into_iter().find_map(|event| match event.body {
            Body::ArtifactCreated { artifact_id, size_bytes, .. } => {
                Some((artifact_id, size_bytes, event.run))
            }
            _ => None,
        });
        assert_eq!(recorded, Some((made.id, Some(5), Some(run))), "{name}");

        // Another session of the owner may refer to it. Its type comes from the artifact.
        let attachment = |artifact| Block::Attachment { artifact, mime_type: "x/y".into(), name: None };
        let with = |artifact| RunRequest { prompt: vec![attachment(artifact)], ..RunRequest::text("b", "") };
        let run = world.send(with(made.id)).await.unwrap().run;
        world.ended(run.id).await;
        let prompt: Message = Message::clone(&world.path("b").await[0]);
        let Block::Attachment { mime_type, name: called, .. } = &prompt.content[0] else {
            panic!("{prompt:?}")
        };
        assert_eq!((mime_type.as_str(), called.as_deref()), ("text/plain", Some("a.txt")), "{name}");
        let unknown = mainspring_core::ArtifactId::from_random([7; 16]);
        assert_eq!(world.send(with(unknown)).await.unwrap_err().code(), "not_found", "{name}");
        let bob = world.kernel.run_create(&Caller::new("bob"), with(made.id)).await.unwrap_err();
        assert_eq!(bob.code(), "not_found", "{name}");
    }
}

#[tokio::test]
async fn an_attempt_reads_only_the_files_of_its_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::memory();
    let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
    let options = Options { artifacts: Some(folder.path().join("artifacts")), ..Options::default() };
    let world = World::boot(disk, options, vec![adapter], Clock::manual(NOW), 1).await;
    let target = SessionTarget { key: Some("a".into()), ..SessionTarget::default() };
    world.kernel.session_open(&world.me, &target, None).await.unwrap();
    let (named, other) = (world.put("a", b"hello").await.unwrap(), world.put("a", b"other").await.unwrap());
    let attachment = Block::Attachment { artifact: named.id, mime_type: String::new(), name: None };
    let run = RunRequest { prompt: vec![attachment], ..puppet_request("a", "") };
    let run = world.send(run).await.unwrap().run;
    let execution = control.next().await;
    let prompt = &execution.handle.assignment().prompt;
    let (artifact, mut reader) = execution.handle.attachment(prompt, named.id).await.unwrap();
    let mut bytes = vec![];
    reader.read_to_end(&mut bytes).await.unwrap();
    assert_eq!((artifact.id, bytes.as_slice()), (named.id, &b"hello"[..]));
    for (id, why) in [(other.id, "it is not named"), (named.id, "it is gone")] {
        if id == named.id {
            world.kernel.artifact_delete(&world.me, id).await.unwrap();
        }
        let refused = execution.handle.attachment(prompt, id).await.map(drop).unwrap_err();
        let HandleError::Kernel(error) = refused else { panic!("{refused}") };
        assert_eq!(error.code(), "not_found", "{why}");
    }
    execution.end(End::succeeded());
    world.ended(run.id).await;
}

#[tokio::test]
async fn an_attempt_in_a_fork_reads_the_files_of_an_inherited_prompt() {
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let options = Options { artifacts: Some(folder.path().join("artifacts")), ..Options::default() };
        let world = World::with(disk, options, vec![adapter]).await;
        let target = SessionTarget { key: Some("a".into()), ..SessionTarget::default() };
        world.kernel.session_open(&world.me, &target, None).await.unwrap();
        let named = world.put("a", b"hello").await.unwrap();
        let attachment = Block::Attachment { artifact: named.id, mime_type: String::new(), name: None };
        let request = RunRequest { prompt: vec![attachment], ..puppet_request("a", "") };
        let run = world.send(request).await.unwrap().run;
        control.next().await.end(End::succeeded());
        world.ended(run.id).await;
        let path = world.path("a").await;
        let fork = ForkRequest { message: path[1].id, key: Some("f".into()), title: None };
        world.kernel.session_fork(&world.me, &by_key("a"), fork, None).await.unwrap();
        let place = Place::Regenerate { message_id: path[0].id };
        let again = RunRequest { prompt: vec![], place, ..puppet_request("f", "") };
        world.send(again).await.unwrap();
        let handle = control.next().await.handle;
        let (_, mut reader) = handle.attachment(&handle.assignment().prompt, named.id).await.unwrap();
        let mut bytes = vec![];
        reader.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, b"hello", "{name}");
    }
}

#[tokio::test]
async fn artifacts_are_visible_to_readers_of_their_session_only() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_with_artifacts(Disk::memory(), &folder, 1).await;
    let acme = |owner: &str| Caller::new(owner).in_org("acme");
    let new = NewSession { visibility: Some(Visibility::Org), ..NewSession::default() };
    let target = SessionTarget { key: Some("shown".into()), new, ..SessionTarget::default() };
    let (session, _) = world.kernel.session_open(&acme("ada"), &target, None).await.unwrap();
    let by = SessionRef::Id(session.id);
    let put = world.kernel.artifact_put(&acme("ada"), &by, text_file(), None, &mut &b"x"[..]).await;
    let (made, _) = put.unwrap();
    let viewer = acme("ada").with_role(AccessRole::Viewer);
    let (key_id, adapters) = (KeyId::from_random([5; 16]), Some(vec!["other".to_owned()]));
    let lists = KeyLists { key_id, adapters, models: None, tools: None, spend_per_day: None };
    let limited = Caller { lists: Some(Box::new(lists)), ..acme("ada") };
    for (caller, reads, deletes) in [
        (acme("bob"), true, "forbidden"),
        (viewer, true, "forbidden"),
        (limited, true, "not_allowed_by_key"),
        (Caller::new("eve"), false, "not_found"),
        (acme("ada"), true, ""),
    ] {
        assert_eq!(world.kernel.artifact_get(&caller, made.id).await.is_ok(), reads, "{caller:?}");
        assert_eq!(world.kernel.artifact_read(&caller, made.id, 0, None).await.is_ok(), reads, "{caller:?}");
        let deleted = world.kernel.artifact_delete(&caller, made.id).await;
        assert_eq!(deleted.err().map_or("", |error| error.code()), deletes, "{caller:?}");
    }
}

#[tokio::test]
async fn damaged_bytes_are_never_returned_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_with_artifacts(Disk::memory(), &folder, 1).await;
    let (small, large) = (vec![b'a'; 100], vec![b'b'; 700_000]);
    for content in [&small, &large] {
        let artifact = world.put("a", content).await.unwrap();
        assert_eq!(world.bytes(&artifact, 0, None).await, *content);
        assert_eq!(world.bytes(&artifact, 7, Some(9)).await, content[7..16]);
        let hash = artifact.content_hash.as_ref().unwrap();
        let file = folder.path().join("artifacts").join(&hash[..2]).join(hash);
        let mut damaged = content.clone();
        damaged[50] ^= 1;
        std::fs::write(&file, &damaged).unwrap();
        let read = world.kernel.artifact_read(&world.me, artifact.id, 0, None).await;
        if content.len() == small.len() {
            let error = read.unwrap_err();
            assert_eq!(error.code(), "corrupt");
            assert!(error.to_string().contains(&artifact.id.to_string()), "{error}");
            continue;
        }
        let mut bytes = vec![];
        read.unwrap().1.read_to_end(&mut bytes).await.unwrap_err();
        assert!(bytes.len() < content.len(), "the stream breaks off");
        // A range is returned as it is stored.
        assert_eq!(world.bytes(&artifact, 40, Some(20)).await, damaged[40..60]);
        std::fs::write(&file, &content[..600_000]).unwrap();
        let (_, mut reader) = world.kernel.artifact_read(&world.me, artifact.id, 0, None).await.unwrap();
        reader.read_to_end(&mut vec![]).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_new_upload_replaces_damaged_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_with_artifacts(Disk::memory(), &folder, 1).await;
    let first = world.put("a", b"the content").await.unwrap();
    std::fs::write(folder.path().join("artifacts").join(file_of(&first)), b"THE content").unwrap();
    let second = world.put("b", b"the content").await.unwrap();
    for artifact in [first, second] {
        assert_eq!(world.bytes(&artifact, 0, None).await, b"the content");
    }
}

#[tokio::test]
async fn a_false_media_type_is_replaced_and_a_missing_one_recognized() {
    let folder = tempfile::tempdir().unwrap();
    let world = world_with_artifacts(Disk::memory(), &folder, 1).await;
    let png = b"\x89PNG\r\n\x1a\nrest".as_slice();
    for (declared, content, expected) in [
        (None, png, "image/png"),
        (Some("image/jpeg"), png, "image/png"),
        (None, b"hello".as_slice(), "text/plain"),
        (Some("text/markdown"), b"# hello", "text/markdown"),
        (None, b"\0\x01", "application/octet-stream"),
    ] {
        let new = NewArtifact { mime_type: declared.map(str::to_owned), ..NewArtifact::default() };
        let put = world.kernel.artifact_put(&world.me, &by_key("a"), new, None, &mut { content }).await;
        assert_eq!(put.unwrap().0.mime_type.as_deref(), Some(expected), "{declared:?}");
    }
}

#[tokio::test]
async fn expired_artifacts_are_removed_unless_something_names_them() {
    use mainspring_core::{ArtifactRetention, Expect};
    use mainspring_kernel::kernel::StateOf;
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let options = Options {
            artifacts: Some(folder.path().join("artifacts")),
            artifact_retention: ArtifactRetention { keep_days: 30, keep_bytes: 0 },
            ..Options::default()
        };
        let world = World::boot(disk, options, vec![], Clock::manual(NOW), 1).await;
        for key in ["a", "b"] {
            let target = SessionTarget { key: Some(key.into()), ..SessionTarget::default() };
            world.kernel.session_open(&world.me, &target, None).await.unwrap();
        }
        let forgotten = world.put("a", b"forgotten").await.unwrap();
        let attached = world.put("a", b"attached").await.unwrap();
        let in_fork = world.put("a", b"in a fork").await.unwrap();
        let in_state = world.put("a", b"in state").await.unwrap();
        let attach = |artifact: &Artifact| {
            let block = Block::Attachment { artifact: artifact.id, mime_type: String::new(), name: None };
            vec![Block::text("say hi"), block]
        };
        for (key, artifact) in [("b", &attached), ("c", &in_fork)] {
            let request = RunRequest { prompt: attach(artifact), ..RunRequest::text(key, "") };
            let run = world.send(request).await.unwrap().run;
            world.ended(run.id).await;
        }
        // The fork keeps the messages that it reads after their session was deleted.
        let message = world.path("c").await[1].id;
        let fork = ForkRequest { message, key: Some("f".into()), title: None };
        world.kernel.session_fork(&world.me, &by_key("c"), fork, None).await.unwrap();
        world.kernel.session_delete(&world.me, &by_key("c")).await.unwrap();
        let value = serde_json::json!({"plan": in_state.id});
        let set = world.kernel.state_set(&world.me, &StateOf::Owner, "k", Some(value), Expect::Any).await;
        set.unwrap();
        assert_eq!(world.kernel.artifacts_expire().await.unwrap(), [], "{name}: nothing is old");
        world.clock.advance(30 * 24 * 60 * 60 * 1_000);
        let young = world.put("a", b"young").await.unwrap();
        // The background task may find it first: the clock has passed its time.
        let file = folder.path().join("artifacts").join(file_of(&forgotten));
        with_timeout(async {
            while file.exists() {
                world.kernel.artifacts_expire().await.unwrap();
                tokio::task::yield_now().await;
            }
        })
        .await;
        for kept in [&attached, &in_fork, &in_state, &young] {
            assert!(!world.bytes(kept, 0, None).await.is_empty(), "{name}");
        }
        let gone = world.kernel.artifact_get(&world.me, forgotten.id).await.unwrap_err();
        assert_eq!(gone.code(), "not_found", "{name}");
        let deleted = world.events("a").await;
        let deleted = deleted.iter().filter(|event| matches!(event.body, Body::ArtifactDeleted { .. }));
        assert_eq!(deleted.count(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_memory_candidate_comes_from_a_run_and_is_decided_once() {
    use mainspring_core::memory::{CANDIDATE_KIND, MemoryDecision};
    use serde_json::json;
    for disk in every_store() {
        let (name, folder) = (disk.name, tempfile::tempdir().unwrap());
        let (adapter, mut control) = puppet(&disk.store, PuppetBehavior::default());
        let artifacts = Some(folder.path().join("artifacts"));
        let world = World::with(disk, Options { artifacts, ..Options::default() }, vec![adapter]).await;
        let run = world.send(puppet_request("a", "go")).await.unwrap().run;
        let execution = control.next().await;
        let candidate = |about: serde_json::Value| NewArtifact {
            kind: CANDIDATE_KIND.into(),
            metadata: about.as_object().unwrap().clone(),
            ..NewArtifact::default()
        };
        let about = json!({"uncertainty": 0.25});
        let by_caller = world
            .kernel
            .artifact_put(&world.me, &by_key("a"), candidate(about.clone()), None, &mut &b"x"[..])
            .await;
        let refused = by_caller.unwrap_err();
        assert!(refused.to_string().contains("comes from a run"), "{name}: {refused}");
        let refused = execution.handle.artifact(candidate(json!({})), &mut &b"x"[..]).await.unwrap_err();
        assert!(refused.to_string().contains("uncertainty"), "{name}: {refused}");
        let made = execution.handle.artifact(candidate(about), &mut &b"Ada likes tea"[..]).await.unwrap();
        assert_eq!(made.run, Some(run.id), "{name}");
        // Wakes the component that has candidates decided.
        with_timeout(world.kernel.memory_proposed()).await;
        assert_eq!(
            world.kernel.memory_candidates(None, 9).await.unwrap(),
            std::slice::from_ref(&made),
            "{name}"
        );
        assert_eq!(world.kernel.memory_text(&made).await.unwrap(), "Ada likes tea", "{name}");
        let decide = |decision| world.kernel.memory_decide(made.id, decision, Some("known"));
        let decided = decide(MemoryDecision::Rejected).await.unwrap().unwrap();
        assert_eq!(decided.metadata["decision"], "rejected", "{name}");
        assert_eq!(decide(MemoryDecision::Accepted).await.unwrap(), None, "{name}: decided before");
        assert_eq!(world.kernel.artifact_get(&world.me, made.id).await.unwrap(), decided, "{name}");
        assert_eq!(world.kernel.memory_candidates(None, 9).await.unwrap(), [], "{name}");
        execution.end(End::succeeded());
        world.ended(run.id).await;
    }
}

#[test]
fn a_session_that_fails_does_not_keep_the_expired_artifacts_of_others() {
    use mainspring_core::ArtifactRetention;
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    for disk in every_store() {
        let folder = tempfile::tempdir().unwrap();
        let (older, newer) = run_process(async {
            let world = world_with_artifacts(disk.clone(), &folder, 1).await;
            let older = world.put("a", b"older").await.unwrap();
            world.clock.advance(1);
            (older, world.put("b", b"newer").await.unwrap())
        });
        run_process(async {
            let options = Options {
                artifacts: Some(folder.path().join("artifacts")),
                artifact_retention: ArtifactRetention { keep_days: 30, keep_bytes: 0 },
                ..Options::default()
            };
            let clock = Clock::manual(NOW.plus(31 * DAY_MS));
            let world = World::boot(disk.clone(), options, vec![], clock, 2).await;
            disk.inject_fault(Fault::LoadPanics);
            assert_eq!(world.kernel.artifacts_expire().await.unwrap(), [newer.id], "{}", disk.name);
            // The session works again.
            assert_eq!(world.kernel.artifacts_expire().await.unwrap(), [older.id], "{}", disk.name);
        });
    }
}
