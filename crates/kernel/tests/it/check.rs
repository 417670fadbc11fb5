//! Checks of the invariants through the public interface.

use std::collections::{HashMap, HashSet};

use mainspring_core::{Body, Event, RunId, RunStatus, Usage};
use mainspring_kernel::store::SessionRef;

use crate::simulation::{KEYS, Memory};
use crate::world::{World, by_key};

/// Checks the invariants, and remembers the facts that must not change.
pub(crate) async fn check(world: &World, memory: &mut Memory) {
    for key in KEYS {
        if let Ok(session) = world.kernel.session_get(&world.me, &by_key(key)).await {
            let events = events_hold(world, memory, key).await;
            session_holds(world, key, session.id, &events).await;
        }
    }
    for (id, key, name) in &memory.runs {
        let run = world.kernel.run_get(&world.me, *id).await.expect("an acknowledged run exists");
        let session = world.kernel.session_get(&world.me, &by_key(key)).await.unwrap();
        assert_eq!(run.session, session.id);
        assert_eq!(&run.request.request_id, name);
        let attempts = world.kernel.run_attempts(&world.me, *id).await.unwrap().items;
        let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.no).collect();
        assert_eq!(numbers, (1..=run.attempts).collect::<Vec<_>>(), "attempts of {id}");
        assert_eq!(run.last_attempt, attempts.last().map(|attempt| attempt.id));
        let mut earlier = None;
        for attempt in &attempts {
            assert_eq!(attempt.resume_from, earlier, "attempt {} of {id}", attempt.no);
            earlier = Some(attempt.id);
        }
        let live: Vec<_> = attempts.iter().filter(|attempt| !attempt.status.is_ended()).collect();
        assert_eq!(live.first().map(|attempt| attempt.id), run.state.holder(), "{id} is {:?}", run.state);
        assert!(live.len() <= 1);
        let sum = attempts.iter().fold(Usage::default(), |sum, attempt| sum + attempt.usage);
        assert_eq!(run.usage, sum, "usage of {id}");
        if let Some(before) = memory.ended.get(id) {
            assert_eq!(*before, run, "an ended run stays as it is");
        }
        if run.state.status().is_ended() {
            memory.ended.insert(*id, run);
        }
    }
}

/// Checks that events never change, are in order, and agree with the stored runs.
async fn events_hold(world: &World, memory: &mut Memory, key: &'static str) -> Vec<Event> {
    let events = world.events(key).await;
    assert!(events.windows(2).all(|pair| pair[0].cursor < pair[1].cursor));
    assert!(events.windows(2).all(|pair| pair[0].pos <= pair[1].pos), "positions of {key}");
    let known = memory.events.entry(key).or_default();
    assert!(events.len() >= known.len());
    for (now, then) in events.iter().zip(known.iter()) {
        assert_eq!(now, then, "the past of {key}");
    }
    known.clone_from(&events);
    let mut ids = HashSet::new();
    assert!(events.iter().all(|event| ids.insert(event.id)));
    let mut states: HashMap<RunId, &str> = HashMap::new();
    let mut tools: HashMap<&str, bool> = HashMap::new();
    for event in &events {
        if let (Some(run), true) = (event.run, event.body.kind().starts_with("run.")) {
            states.insert(run, event.body.kind());
        }
        match &event.body {
            Body::ToolStarted { tool_use_id, .. } => {
                assert_eq!(tools.insert(tool_use_id, false), None, "{tool_use_id} is begun once");
            }
            Body::ToolCompleted { tool_use_id, .. } | Body::ToolFailed { tool_use_id, .. } => {
                assert_eq!(tools.insert(tool_use_id, true), Some(false), "{tool_use_id} ends once");
            }
            _ => {}
        }
    }
    let mut acts = false;
    for (run, kind) in states {
        let status = world.get(run).await.state.status();
        acts |= matches!(status, RunStatus::Starting | RunStatus::Running | RunStatus::Cancelling);
        assert_eq!(kind, format!("run.{status}"), "{run}");
    }
    assert!(acts || tools.values().all(|ended| *ended), "a tool call without an outcome: {tools:?}");
    events
}

/// Checks that the session can be read, is consistent, and has at most one active run.
async fn session_holds(world: &World, key: &str, id: mainspring_core::SessionId, events: &[Event]) {
    let loaded = world.disk.store.session_load(id).await.unwrap().unwrap();
    let live: Vec<_> = loaded.runs.iter().filter(|(run, _)| run.state.holder().is_some()).collect();
    assert!(live.len() <= 1, "{key} has two active runs");
    assert!(loaded.runs.iter().all(|(run, _)| !run.state.status().is_ended()), "an ended run is queued");
    if live.is_empty() {
        assert!(loaded.chunks.is_empty(), "streamed text without a run: {:?}", loaded.chunks);
        assert!(loaded.open_tool_calls.is_empty(), "tool calls without a run: {:?}", loaded.open_tool_calls);
    }
    assert_eq!(Some(loaded.cursor), events.last().map(|event| event.cursor));
    let session = world.kernel.session_get(&world.me, &SessionRef::Id(id)).await.unwrap();
    let path = world.path(key).await;
    assert_eq!(session.tip_message, path.last().map(|message| message.id), "the tip of {key}");
    let tree = world.tree(key).await;
    let places: HashMap<_, _> = tree.nodes.iter().map(|node| (node.message.id, node.depth)).collect();
    assert_eq!(places.len(), tree.nodes.len(), "every message is in the tree once");
    for node in &tree.nodes {
        let parent = node.parent_id.map(|parent| places[&parent]);
        assert_eq!(parent.map_or(0, |depth| depth + 1), node.depth, "{}", node.message.id);
    }
    let active: HashSet<_> =
        tree.nodes.iter().filter(|node| node.active).map(|node| node.message.id).collect();
    assert_eq!(active, path.iter().map(|message| message.id).collect(), "the path of {key}");
    for event in events {
        let Body::MessageCompleted { message, parent_id } = &event.body else {
            continue;
        };
        let node = tree.nodes.iter().find(|node| node.message.id == message.id);
        let node = node.unwrap_or_else(|| panic!("{} was published and is missing", message.id));
        assert_eq!(node.parent_id, *parent_id, "the parent of {}", message.id);
        assert_eq!(node.message, *message);
    }
}
