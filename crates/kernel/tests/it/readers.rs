//! Readers of a shared session pin it, fork it, list it and find it, each for themselves.

use mainspring_core::{AccessRole, Block, Run, RunId, RunStatus, Session, Visibility};
use mainspring_kernel::Error;
use mainspring_kernel::kernel::{
    Caller, ForkRequest, NewArtifact, NewSession, RunRequest, Scope, SearchQuery, SessionPatch, SessionQuery,
    SessionTarget,
};
use mainspring_kernel::store::SessionRef;
use tokio::io::AsyncReadExt as _;

use crate::artifacts::world_with_artifacts;
use crate::world::{Disk, World, every_store, with_timeout};

fn ada() -> Caller {
    Caller::new("ada").in_org("acme")
}

fn ben() -> Caller {
    Caller::new("ben").in_org("acme")
}

/// Plays a turn in a session of `caller`.
async fn play(world: &World, caller: &Caller, key: &str, script: &str, visibility: Visibility) -> Session {
    let mut request = RunRequest::text(key, script);
    let new = NewSession { visibility: Some(visibility), title: Some(key.into()), ..NewSession::default() };
    request.session.new = new;
    let accepted = world.kernel.run_create(caller, request).await.unwrap();
    assert_eq!(ended(world, caller, accepted.run.id).await.state.status(), RunStatus::Succeeded);
    session(world, caller, SessionRef::Id(accepted.session.id)).await
}

async fn ended(world: &World, caller: &Caller, run: RunId) -> Run {
    with_timeout(world.kernel.run_wait_ended(caller, run)).await.unwrap()
}

async fn session(world: &World, caller: &Caller, by: SessionRef) -> Session {
    world.kernel.session_get(caller, &by).await.unwrap()
}

async fn set_visibility(world: &World, of: &Session, visibility: Visibility) {
    let patch = SessionPatch { visibility: Some(visibility), ..SessionPatch::default() };
    world.kernel.session_patch(&ada(), &SessionRef::Id(of.id), patch).await.unwrap();
}

fn code<T>(result: Result<T, Error>) -> &'static str {
    result.map_err(|error| error.code()).err().unwrap_or("done")
}

#[tokio::test]
async fn a_pin_belongs_to_one_reader_and_changes_neither_version_nor_activity() {
    for disk in every_store() {
        let world = World::on(disk.clone()).await;
        let shared = play(&world, &ada(), "a", "say hi", Visibility::Org).await;
        let (kernel, by) = (&world.kernel, SessionRef::Id(shared.id));
        let events = kernel.session_events(&ada(), &by, mainspring_core::Cursor::START, None).await.unwrap();
        world.clock.advance(50);
        let pinned = kernel.session_pin(&ben(), &by, true).await.unwrap();
        assert_eq!((pinned.pinned, pinned.pinned_at), (true, Some(world.clock.now())), "{}", disk.name);
        assert_eq!(Session { pinned: false, pinned_at: None, ..pinned.clone() }, shared);
        world.clock.advance(50);
        assert_eq!(kernel.session_pin(&ben(), &by, true).await.unwrap(), pinned, "a second pin is the first");
        assert_eq!(session(&world, &ada(), by.clone()).await, shared, "the owner has not pinned it");
        let now = kernel.session_events(&ada(), &by, mainspring_core::Cursor::START, None).await.unwrap();
        assert_eq!(now, events, "a pin is no event");
        let list = async |caller: &Caller, pinned| {
            let query = SessionQuery { scope: Scope::Org, pinned: Some(pinned), ..SessionQuery::default() };
            let listed = kernel.session_list(caller, query).await.unwrap().items;
            listed.into_iter().map(|(session, _)| (session.id, session.pinned)).collect::<Vec<_>>()
        };
        assert_eq!(list(&ben(), true).await, [(shared.id, true)], "{}", disk.name);
        assert_eq!((list(&ben(), false).await, list(&ada(), true).await), (vec![], vec![]));
        assert_eq!(list(&ada(), false).await, [(shared.id, false)]);
        let viewer = ben().with_role(AccessRole::Viewer);
        assert_eq!(code(kernel.session_pin(&viewer, &by, true).await), "forbidden");
        assert_eq!(code(kernel.session_pin(&Caller::new("eve"), &by, true).await), "not_found");
        // A pin outlives the process.
        kernel.shutdown().await;
        let world = World::reboot(&disk).await;
        assert_eq!(session(&world, &ben(), by.clone()).await, pinned, "{}", disk.name);
        let unpinned = world.kernel.session_pin(&ben(), &by, false).await.unwrap();
        assert_eq!(unpinned, shared, "{}", disk.name);
    }
}

#[tokio::test]
async fn a_patch_pins_for_the_caller_without_a_new_version() {
    let world = World::on(Disk::memory()).await;
    let known = play(&world, &ada(), "a", "say hi", Visibility::Private).await;
    let by = SessionRef::Id(known.id);
    let pin = SessionPatch { pinned: Some(true), ..SessionPatch::default() };
    let pinned = world.kernel.session_patch(&ada(), &by, pin.clone()).await.unwrap();
    assert_eq!((pinned.pinned, pinned.version), (true, known.version));
    let stale = SessionPatch { pinned: Some(false), version: Some(known.version + 1), ..pin };
    assert_eq!(code(world.kernel.session_patch(&ada(), &by, stale).await), "version_conflict");
    assert!(session(&world, &ada(), by).await.pinned, "a refused change changes nothing");
}

#[tokio::test]
async fn a_reader_who_forks_a_shared_session_owns_the_fork() {
    for disk in every_store() {
        let world = World::on(disk.clone()).await;
        let source = play(&world, &ada(), "a", "say hi", Visibility::Org).await;
        let (kernel, by) = (&world.kernel, SessionRef::Id(source.id));
        let secret = SessionPatch {
            metadata: Some(serde_json::json!({"note": "of Ada"})),
            rules: Some(vec!["allow fs write *".into()]),
            ..SessionPatch::default()
        };
        let source = kernel.session_patch(&ada(), &by, secret).await.unwrap();
        let fork =
            ForkRequest { message: source.tip_message.unwrap(), key: Some("mine".into()), title: None };
        assert_eq!(
            code(kernel.session_fork(&Caller::new("eve"), &by, fork.clone(), None).await),
            "not_found"
        );
        let viewer = ben().with_role(AccessRole::Viewer);
        assert_eq!(code(kernel.session_fork(&viewer, &by, fork.clone(), None).await), "forbidden");
        let forked = kernel.session_fork(&ben(), &by, fork, None).await.unwrap().0;
        assert_eq!((&*forked.owner, forked.org.as_deref()), ("ben", Some("acme")), "{}", disk.name);
        assert_eq!((forked.visibility, forked.rules.len()), (Visibility::Private, 0));
        assert_eq!(
            (&forked.cwd, &forked.metadata),
            (&None, &serde_json::json!({})),
            "Ada's folder and metadata are not copied"
        );
        let forked = SessionRef::Id(forked.id);
        assert_eq!(code(kernel.session_get(&ada(), &forked).await), "not_found", "nobody else reads it");
        // Each goes on without the other.
        let target = |by: &SessionRef| match by {
            SessionRef::Id(id) => SessionTarget { id: Some(*id), ..SessionTarget::default() },
            _ => unreachable!(),
        };
        let prompt = |by| RunRequest { session: target(by), ..RunRequest::text("unused", "say mine") };
        let run = kernel.run_create(&ben(), prompt(&forked)).await.unwrap().run;
        ended(&world, &ben(), run.id).await;
        assert_eq!(kernel.session_path(&ben(), &forked, None, None).await.unwrap().len(), 4);
        assert_eq!(kernel.session_path(&ada(), &by, None, None).await.unwrap().len(), 2, "{}", disk.name);
        // The fork outlives its source, which names only the forks of its own owner.
        let deleted = kernel.session_delete(&ada(), &by).await.unwrap();
        assert_eq!(deleted.forks, [], "a fork of another owner is not named");
        assert_eq!(kernel.session_path(&ben(), &forked, None, None).await.unwrap().len(), 4, "{}", disk.name);
    }
}

#[tokio::test]
async fn a_fork_reads_its_inherited_artifacts_when_the_source_is_private_or_deleted() {
    for disk in every_store() {
        let folder = tempfile::tempdir().unwrap();
        let world = world_with_artifacts(disk.clone(), &folder, 1).await;
        let source = play(&world, &ada(), "s", "say hi", Visibility::Org).await;
        let (kernel, by) = (&world.kernel, SessionRef::Id(source.id));
        let put = async |bytes: &[u8]| {
            kernel.artifact_put(&ada(), &by, NewArtifact::default(), None, &mut &*bytes).await.unwrap().0
        };
        let file = put(b"plan").await;
        let mut prompt = RunRequest::text("s", "say with it");
        prompt.prompt.push(Block::Attachment { artifact: file.id, mime_type: String::new(), name: None });
        let run = kernel.run_create(&ada(), prompt).await.unwrap().run;
        let tip = ended(&world, &ada(), run.id).await.final_message.unwrap();
        world.clock.advance(10);
        let later = put(b"later").await;
        let fork = ForkRequest { message: tip, key: None, title: None };
        let forked = kernel.session_fork(&ben(), &by, fork, None).await.unwrap().0;
        set_visibility(&world, &source, Visibility::Private).await;
        let read = async |caller: &Caller, id| {
            let (artifact, mut bytes) = kernel.artifact_read(caller, id, 0, None).await?;
            let mut text = String::new();
            bytes.read_to_string(&mut text).await.unwrap();
            Ok::<_, Error>((artifact.session, text))
        };
        assert_eq!(read(&ben(), file.id).await.unwrap(), (forked.id, "plan".to_owned()), "{}", disk.name);
        assert_eq!(code(read(&ben(), later.id).await), "not_found", "the fork began before it");
        assert_eq!(code(read(&Caller::new("eve").in_org("acme"), file.id).await), "not_found");
        // A fork of the fork inherits it, too.
        let again = ForkRequest { message: tip, key: None, title: None };
        let second = kernel.session_fork(&ben(), &SessionRef::Id(forked.id), again, None).await.unwrap().0;
        kernel.session_delete(&ada(), &by).await.unwrap();
        kernel.session_delete(&ben(), &SessionRef::Id(forked.id)).await.unwrap();
        kernel.shutdown().await;
        let world = world_with_artifacts(disk.clone(), &folder, 2).await;
        let kernel = &world.kernel;
        let (artifact, mut bytes) = kernel.artifact_read(&ben(), file.id, 0, None).await.unwrap();
        let mut text = String::new();
        bytes.read_to_string(&mut text).await.unwrap();
        assert_eq!((artifact.session, &*text), (second.id, "plan"), "{}", disk.name);
        assert_eq!(code(kernel.artifact_get(&ada(), file.id).await), "not_found");
        assert_eq!(kernel.blobs_check(true).await.unwrap().problems, Vec::<String>::new());
    }
}

#[tokio::test]
async fn lists_and_searches_cover_the_sessions_of_their_scope() {
    for disk in every_store() {
        let world = World::on(disk.clone()).await;
        for (caller, key, visibility) in [
            (ada(), "ada-shared", Visibility::Org),
            (ada(), "ada-private", Visibility::Private),
            (ben(), "ben-shared", Visibility::Org),
            (ben(), "ben-private", Visibility::Private),
            (Caller::new("eve").in_org("beta"), "eve-shared", Visibility::Org),
        ] {
            world.clock.advance(10);
            play(&world, &caller, key, "say tea for two", visibility).await;
        }
        let kernel = &world.kernel;
        let list = async |scope, limit: usize| {
            let query = SessionQuery { scope, limit: Some(limit), ..SessionQuery::default() };
            let listed = kernel.session_list(&ben(), query).await.unwrap().items;
            listed.into_iter().filter_map(|(session, _)| session.key).collect::<Vec<_>>()
        };
        assert_eq!(list(Scope::Own, 9).await, ["ben-private", "ben-shared"], "{}", disk.name);
        assert_eq!(list(Scope::Org, 9).await, ["ben-shared", "ada-shared"], "{}", disk.name);
        let all = ["ben-private", "ben-shared", "ada-shared"];
        assert_eq!(list(Scope::All, 9).await, all, "{}: each once", disk.name);
        assert_eq!(list(Scope::All, 2).await, all[..2], "{}", disk.name);
        let search = async |text: &str, scope, limit: usize| {
            let (mut titles, mut before) = (vec![], None);
            loop {
                let limit = Some(limit);
                let query = SearchQuery { text: text.into(), scope, before, limit };
                let found = kernel.session_search(&ben(), &query).await.unwrap();
                titles.extend(found.hits.into_iter().filter_map(|hit| hit.title));
                before = found.next;
                if before.is_none() {
                    titles.dedup();
                    return titles;
                }
            }
        };
        for limit in [1, 2, 50] {
            assert_eq!(search("tea", Scope::Own, limit).await, ["ben-private", "ben-shared"]);
            assert_eq!(search("tea", Scope::Org, limit).await, ["ben-shared", "ada-shared"]);
            assert_eq!(search("tea", Scope::All, limit).await, all, "{} by {limit}", disk.name);
        }
        assert_eq!(search("shared", Scope::All, 1).await, ["ben-shared", "ada-shared"]);
        let loner = SearchQuery { text: "tea".into(), scope: Scope::Org, ..SearchQuery::default() };
        assert_eq!(code(kernel.session_search(&Caller::new("zoe"), &loner).await), "invalid_request");
    }
}
