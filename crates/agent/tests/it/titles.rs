//! Titles that a model generates.

use mainspring_core::{Body, Cursor, SessionChange, TitleSource};
use mainspring_kernel::kernel::SessionPatch;
use mainspring_kernel::store::SessionRef;
use mainspring_model_server::{Action, Fault, Gate, Protocol, Reply, Tokens};

use crate::world::{Setup, World, within_timeout};

const TITLER: &str = "[models.titler]\nprovider = \"acme\"\nmodel = \"m-title\"";

fn session() -> SessionRef {
    SessionRef::Key("s".into())
}

impl World {
    async fn title(&self) -> (Option<String>, Option<TitleSource>) {
        let session = self.kernel.session_get(&self.me, &session()).await.unwrap();
        (session.title, session.title_source)
    }

    /// Waits until the session has a title from `source`.
    async fn wait_title(&self, source: TitleSource) -> Option<String> {
        let titled = async {
            let mut events = self.kernel.session_subscribe(&self.me, &session(), None).await.unwrap();
            while self.title().await.1 != Some(source) {
                events.next().await.unwrap().unwrap();
            }
        };
        within_timeout(titled).await;
        self.title().await.0
    }
}

#[tokio::test]
async fn a_model_titles_the_session_after_its_first_turn_without_delaying_the_run() {
    for protocol in Protocol::ALL {
        let world = Setup { profile: TITLER, titles: true, ..Setup::protocol(protocol) }.start().await;
        let gate = Gate::default();
        world.server.enqueue(Reply::text("It is green."));
        let title = Reply::default().and(Action::Hold(gate.clone())).and_text("\"The colour of grass.\"");
        world.server.enqueue(title.with_tokens(Tokens { input: 40, output: 4, ..Tokens::default() }));
        let run = world.run_prompt("what colour has grass?").await;
        assert_eq!(
            world.title().await,
            (Some("what colour has grass?".into()), Some(TitleSource::Heuristic))
        );
        within_timeout(gate.reached()).await;
        gate.open();
        assert_eq!(
            world.wait_title(TitleSource::Agent).await.as_deref(),
            Some("The colour of grass"),
            "{protocol:?}"
        );
        let request = world.request_body(1);
        assert!(
            request.to_string().contains("It is green.") && request.to_string().contains("what colour"),
            "{request}"
        );
        // The usage is reported for the session and does not change the run's usage.
        let events = world.kernel.session_events(&world.me, &session(), Cursor::START, None).await.unwrap();
        let reported = events.iter().rev().find_map(|event| match &event.body {
            Body::UsageUpdated { usage } => Some((event.run, usage.input_tokens)),
            _ => None,
        });
        assert_eq!(reported, Some((None, 40)), "{protocol:?}");
        assert_eq!(world.get(run.id).await.usage, run.usage);

        // The next turn generates no title.
        world.server.enqueue(Reply::text("Still green."));
        world.run_prompt("and now?").await;
        assert_eq!(world.server.counts().received, 3, "{protocol:?}");
    }
}

#[tokio::test]
async fn a_manual_title_stays_and_a_failing_model_leaves_the_first_words() {
    let world = Setup { profile: TITLER, titles: true, ..Setup::default() }.start().await;
    let gate = Gate::default();
    world
        .server
        .enqueue(Reply::text("ok"))
        .enqueue(Reply::default().and(Action::Hold(gate.clone())).and_text("By a model"));
    world.run_prompt("first words").await;
    within_timeout(gate.reached()).await;
    let patch = SessionPatch { title: Some(Some("Mine".into())), ..SessionPatch::default() };
    world.kernel.session_patch(&world.me, &session(), patch).await.unwrap();
    gate.open();
    // The usage is reported in the commit that would have set the title.
    let reported = async {
        let mut events = world.kernel.session_subscribe(&world.me, &session(), None).await.unwrap();
        loop {
            let all = world.kernel.session_events(&world.me, &session(), Cursor::START, None).await.unwrap();
            if all.iter().any(|event| event.run.is_none() && event.body.kind() == "usage.updated") {
                return;
            }
            events.next().await.unwrap().unwrap();
        }
    };
    within_timeout(reported).await;
    assert_eq!(world.title().await, (Some("Mine".into()), Some(TitleSource::Manual)));

    let world = Setup { profile: TITLER, titles: true, ..Setup::default() }.start().await;
    world
        .server
        .enqueue(Reply::text("ok"))
        .enqueue(Reply::fail(Fault::Unauthorized))
        .enqueue(Reply::text("ok"));
    world.run_prompt("first words").await;
    within_timeout(world.server.wait(|counts| counts.received == 2)).await;
    world.run_prompt("second words").await;
    assert_eq!(world.title().await, (Some("first words".into()), Some(TitleSource::Heuristic)));
    assert_eq!(world.server.counts().received, 3);
}

#[tokio::test]
async fn the_summarizer_is_the_fallback_titler_and_titles_can_be_off() {
    let profile = "[models.summarizer]\nprovider = \"acme\"\nmodel = \"m-sum\"";
    let world = Setup { profile, titles: true, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::text("ok")).enqueue(Reply::text("By the summarizer"));
    world.run_prompt("first words").await;
    assert_eq!(world.wait_title(TitleSource::Agent).await.as_deref(), Some("By the summarizer"));
    let changes = world.kernel.session_events(&world.me, &session(), Cursor::START, None).await.unwrap();
    let titles = changes
        .iter()
        .filter(|event| matches!(&event.body, Body::SessionUpdated { change: SessionChange::Title { .. } }));
    assert_eq!(titles.count(), 2);

    let world = Setup { profile, titles: false, ..Setup::default() }.start().await;
    world.server.enqueue(Reply::text("ok")).enqueue(Reply::text("ok"));
    world.run_prompt("first words").await;
    world.run_prompt("second words").await;
    assert_eq!(world.server.counts().received, 2);
    assert_eq!(world.title().await, (None, None));
}
