//! Titles: by a model where one is configured, beside the runs.

use mainspring_core::{Body, Cursor, SessionChange, TitleSource};
use mainspring_kernel::kernel::SessionPatch;
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};

use crate::world::{Setup, World, soon};

const TITLER: &str = "[models.titler]\nprovider = \"acme\"\nmodel = \"m-title\"";

fn here() -> SessionRef {
    SessionRef::Key("s".into())
}

impl World {
    async fn title(&self) -> (Option<String>, Option<TitleSource>) {
        let session = self.kernel.session_get(&self.me, &here()).await.unwrap();
        (session.title, session.title_source)
    }

    /// Waits until the session has a title from `source`.
    async fn titled(&self, source: TitleSource) -> Option<String> {
        let titled = async {
            let mut events = self.kernel.session_subscribe(&self.me, &here(), None).await.unwrap();
            while self.title().await.1 != Some(source) {
                events.next().await.unwrap().unwrap();
            }
        };
        soon(titled).await;
        self.title().await.0
    }
}

#[tokio::test]
async fn a_model_names_the_session_after_its_first_turn_and_the_run_does_not_wait() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: TITLER, titles: true, ..Setup::protocol(protocol) }.start().await;
        let gate = Gate::default();
        world.server.enqueue(Reply::text("It is green."));
        let named = Reply::default().and(Action::Hold(gate.clone())).and_text("\"The colour of grass.\"");
        world.server.enqueue(named.with_tokens(Tokens { input: 40, output: 4, ..Tokens::default() }));
        let run = world.play("what colour has grass?").await;
        assert_eq!(
            world.title().await,
            (Some("what colour has grass?".into()), Some(TitleSource::Heuristic))
        );
        soon(gate.reached()).await;
        gate.open();
        assert_eq!(
            world.titled(TitleSource::Agent).await.as_deref(),
            Some("The colour of grass"),
            "{protocol:?}"
        );
        let asked = world.asked(1);
        assert!(
            asked.to_string().contains("It is green.") && asked.to_string().contains("what colour"),
            "{asked}"
        );
        // What it cost is told, as the session's; the run's own usage is what it was.
        let events = world.kernel.session_events(&world.me, &here(), Cursor::START, None).await.unwrap();
        let told = events.iter().rev().find_map(|event| match &event.body {
            Body::UsageUpdated { usage } => Some((event.run, usage.input_tokens)),
            _ => None,
        });
        assert_eq!(told, Some((None, 40)), "{protocol:?}");
        assert_eq!(world.get(run.id).await.usage, run.usage);

        // The next turn does not ask again.
        world.server.enqueue(Reply::text("Still green."));
        world.play("and now?").await;
        assert_eq!(world.server.counts().received, 3, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_title_of_a_person_stays_and_where_the_model_fails_the_first_words_do() {
    let world = Setup { profile: TITLER, titles: true, ..Setup::default() }.start().await;
    let gate = Gate::default();
    world
        .server
        .enqueue(Reply::text("ok"))
        .enqueue(Reply::default().and(Action::Hold(gate.clone())).and_text("By a model"));
    world.play("first words").await;
    soon(gate.reached()).await;
    let patch = SessionPatch { title: Some(Some("Mine".into())), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &here(), patch).await.unwrap();
    gate.open();
    // What it used is told in the very commit that would have named it.
    let told = async {
        let mut events = world.kernel.session_subscribe(&world.me, &here(), None).await.unwrap();
        loop {
            let all = world.kernel.session_events(&world.me, &here(), Cursor::START, None).await.unwrap();
            if all.iter().any(|event| event.run.is_none() && event.body.kind() == "usage.updated") {
                return;
            }
            events.next().await.unwrap().unwrap();
        }
    };
    soon(told).await;
    assert_eq!(world.title().await, (Some("Mine".into()), Some(TitleSource::Manual)));

    let world = Setup { profile: TITLER, titles: true, ..Setup::default() }.start().await;
    world
        .server
        .enqueue(Reply::text("ok"))
        .enqueue(Reply::fail(Fault::Unauthorized))
        .enqueue(Reply::text("ok"));
    world.play("first words").await;
    soon(world.server.wait(|counts| counts.received == 2)).await;
    world.play("second words").await;
    assert_eq!(world.title().await, (Some("first words".into()), Some(TitleSource::Heuristic)));
    assert_eq!(world.server.counts().received, 3);
}

#[tokio::test]
async fn the_summarizer_names_sessions_where_no_other_does_and_nobody_where_titles_are_off() {
    let profile = "[models.summarizer]\nprovider = \"acme\"\nmodel = \"m-sum\"";
    let world = Setup { profile, titles: true, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::text("ok")).enqueue(Reply::text("By the summarizer"));
    world.play("first words").await;
    assert_eq!(world.titled(TitleSource::Agent).await.as_deref(), Some("By the summarizer"));
    let changes = world.kernel.session_events(&world.me, &here(), Cursor::START, None).await.unwrap();
    let titles = changes
        .iter()
        .filter(|event| matches!(&event.body, Body::SessionUpdated { change: SessionChange::Title { .. } }));
    assert_eq!(titles.count(), 2);

    let world = Setup { profile, titles: false, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::text("ok")).enqueue(Reply::text("ok"));
    world.play("first words").await;
    world.play("second words").await;
    assert_eq!(world.server.counts().received, 2);
    assert_eq!(world.title().await, (None, None));
}
