use std::sync::Arc;

use mainspring_api::threads::{
    AgentContent, AgentMessage, AgentMessageStatus, AgentThreadDelta, AgentThreadRecord,
};
use mainspring_api::{GoalsSnapshot, OpenBlock, OpenText};
use mainspring_core::{Block, Cursor, Message, MessageId, MessageStatus, Position, Role, Session, Time};
use mainspring_kernel::kernel::Transcript;
use serde_json::json;

use super::read::record;
use super::token::{Client, MustReload, Token};
use super::view::View;

const NEW: Client = Client { resets: true, has_own_message: false };
const OLD: Client = Client { resets: false, has_own_message: false };

/// A session whose messages a test writes.
struct Thread {
    path: Vec<Arc<Message>>,
    partial: String,
    next: u8,
    title: Option<String>,
}

impl Thread {
    const fn new() -> Self {
        Self { path: vec![], partial: String::new(), next: 0, title: None }
    }

    fn id(&mut self) -> MessageId {
        self.next = self.next.wrapping_add(1);
        MessageId::from_random([self.next; 16])
    }

    fn write(&mut self, role: Role, status: MessageStatus, content: Vec<Block>) {
        let message = Message {
            id: self.id(),
            session: session().id,
            run: None,
            role,
            status,
            content,
            usage: None,
            created_at: Time(1),
            agent: None,
            external_id: None,
        };
        self.path.push(Arc::new(message));
    }

    fn say(&mut self, role: Role, text: &str) {
        self.write(role, MessageStatus::Completed, vec![Block::text(text)]);
    }

    fn stream(&mut self, text: &str) {
        self.partial.push_str(text);
    }

    /// Completes the streamed message with a block after its text.
    fn complete(&mut self, status: MessageStatus, more: Option<Block>) {
        let text = Block::text(std::mem::take(&mut self.partial));
        self.write(Role::Assistant, status, std::iter::once(text).chain(more).collect());
    }

    /// Builds the view of the thread, as the continuation of `earlier` if there is one.
    fn view(&self, earlier: Option<&View>) -> View {
        let is_kept = |(number, message): &(usize, &Arc<Message>)| {
            earlier.and_then(|earlier| earlier.path.get(*number)?.id) == Some(message.id)
        };
        let kept = self.path.iter().enumerate().take_while(is_kept).count();
        let mut session = session();
        session.title.clone_from(&self.title);
        let open = OpenBlock { block: 0, text: self.partial.clone() };
        let transcript = Transcript {
            session,
            active: None,
            queued: vec![],
            head: None,
            kept,
            new: self.path[kept..].to_vec(),
            partial: vec![OpenText { message_id: MessageId::from_random([255; 16]), blocks: vec![open] }],
            position: Position::START,
        };
        let plan = GoalsSnapshot { goals: Some(vec![]), tasks: None, cursor: Cursor::START };
        View::new(transcript, plan, earlier)
    }
}

fn session() -> Session {
    serde_json::from_value(json!({
        "sessionId": "ses_11111111111141118111111111111111", "ownerId": "ada", "visibility": "private",
        "status": "open", "surfaceKind": "threads", "agentDefinition": "default", "adapter": "native",
        "metadata": {}, "version": 1, "createdAtMs": 1, "updatedAtMs": 1, "lastActivityAtMs": 1, "pinned": false,
    }))
    .unwrap()
}

fn delta(token: &str, view: &View, client: Client) -> Result<AgentThreadDelta, MustReload> {
    Token::decode(token, &session().id.to_string()).unwrap().delta(view, client)
}

/// Returns the messages of a client, with adjacent pieces of text joined.
fn joined(record: &AgentThreadRecord) -> Vec<(AgentMessageStatus, Vec<AgentContent>)> {
    let join = |message: &AgentMessage| {
        let mut content: Vec<AgentContent> = vec![];
        for block in &message.content {
            match (block, content.last_mut()) {
                (AgentContent::Text(more), Some(AgentContent::Text(text))) => text.text.push_str(&more.text),
                (block, _) => content.push(block.clone()),
            }
        }
        (message.status, content)
    };
    record.messages.iter().map(join).collect()
}

#[test]
fn a_delta_holds_only_what_is_new() {
    let mut thread = Thread::new();
    thread.say(Role::User, "hi");
    thread.stream("Hel");
    let view = thread.view(None);
    let token = view.token().to_owned();
    thread.stream("lo");
    let next = delta(&token, &thread.view(Some(&view)), NEW).unwrap();
    assert_eq!(next.messages_by_idx.len(), 1);
    assert_eq!(next.messages_by_idx[&1].content, [AgentContent::text("lo")]);
    assert_eq!(next.reset_from_message_sequence_num, None);
    // The end of a message is sent even if it adds no text.
    thread.complete(MessageStatus::Completed, None);
    let last = delta(&next.continuation_token, &thread.view(None), NEW).unwrap();
    assert_eq!(last.messages_by_idx[&1].status, AgentMessageStatus::Completed);
    assert_eq!(last.messages_by_idx[&1].content, []);
}

#[test]
fn the_present_token_gives_an_empty_delta_and_the_same_token() {
    let mut thread = Thread::new();
    thread.say(Role::User, "hi");
    let view = thread.view(None);
    for client in [NEW, OLD] {
        let same = delta(view.token(), &view, client).unwrap();
        assert!(same.messages_by_idx.is_empty() && same.goals.is_none() && same.title.is_none());
        assert_eq!(same.continuation_token, view.token());
    }
}

#[test]
fn the_sender_of_a_message_does_not_hold_it_twice() {
    let mut thread = Thread::new();
    thread.say(Role::User, "one");
    thread.say(Role::Assistant, "two");
    let token = thread.view(None).token().to_owned();
    thread.say(Role::User, "three");
    let view = thread.view(None);
    let new = delta(&token, &view, NEW).unwrap();
    assert_eq!((new.reset_from_message_sequence_num, new.messages_by_idx.len()), (Some(2), 1));
    let own = delta(&token, &view, Client { has_own_message: true, ..OLD }).unwrap();
    assert_eq!((own.reset_from_message_sequence_num, own.messages_by_idx[&2].content.len()), (None, 0));
    let other = delta(&token, &view, OLD).unwrap();
    assert_eq!(other.messages_by_idx[&2].content, [AgentContent::text("three")]);
}

#[test]
fn a_sender_that_had_not_read_everything_does_not_mix_messages() {
    let mut thread = Thread::new();
    thread.say(Role::User, "one");
    let mut client = record(&thread.view(None));
    thread.say(Role::Assistant, "two");
    // The client appends its own message to the only one that it has read.
    client.messages.push(AgentMessage::text("three"));
    thread.say(Role::User, "three");
    let view = thread.view(None);
    let next = delta(&client.continuation_token, &view, NEW).unwrap();
    assert_eq!(next.reset_from_message_sequence_num, Some(1));
    client.apply(next);
    assert_eq!(joined(&client), joined(&record(&view)));
}

#[test]
fn a_token_of_the_first_messages_gives_the_rest() {
    let mut thread = Thread::new();
    for number in 0..5 {
        thread.say(if number % 2 == 0 { Role::User } else { Role::Assistant }, &format!("message {number}"));
        thread.title = Some("a title".into());
    }
    let view = thread.view(None);
    let whole = record(&view);
    for count in 0..5 {
        let continuation_token = Token::of_first(&view, count).encode();
        let messages = whole.messages[..count].to_vec();
        let mut client = AgentThreadRecord { messages, continuation_token, title: None, ..whole.clone() };
        let token = client.continuation_token.clone();
        client.apply(delta(&token, &view, NEW).unwrap());
        assert_eq!(client, whole, "{count}");
    }
}

#[test]
fn another_branch_resends_from_its_first_message() {
    let mut thread = Thread::new();
    for number in 0..40 {
        thread.say(if number % 2 == 0 { Role::User } else { Role::Assistant }, &format!("message {number}"));
    }
    let token = thread.view(None).token().to_owned();
    thread.path.truncate(30);
    thread.say(Role::User, "another");
    let view = thread.view(None);
    assert_eq!(delta(&token, &view, OLD), Err(MustReload));
    let next = delta(&token, &view, NEW).unwrap();
    let reset = next.reset_from_message_sequence_num.unwrap();
    assert!((20..=30).contains(&reset), "{reset}");
    assert_eq!(next.messages_by_idx.keys().copied().collect::<Vec<_>>(), (reset..31).collect::<Vec<_>>());
}

#[test]
fn a_token_of_another_thread_or_with_an_error_is_refused() {
    let token = Thread::new().view(None).token().to_owned();
    assert!(Token::decode(&token, "ses_2").is_none());
    for bad in ["", "AAAA", "not base64!", &token[1..], &token[..token.len() - 1]] {
        assert!(Token::decode(bad, &session().id.to_string()).is_none(), "{bad}");
    }
}

/// Numbers that depend on the seed only.
struct Random(u64);

impl Random {
    const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Makes one random change to the thread.
fn step(thread: &mut Thread, random: &mut Random) {
    let number = thread.next;
    match random.below(9) {
        0 => thread.say(Role::User, &format!("prompt {number}")),
        1..=3 => {
            thread.stream(["a", "é", "longer text ", "\u{1f980}"][usize::try_from(random.below(4)).unwrap()]);
        }
        4 => thread.complete(MessageStatus::Completed, None),
        5 => {
            let call = Block::tool_use(format!("t{number}"), "add", json!({"a": number}));
            thread.complete(MessageStatus::Completed, Some(call));
            let content = vec![Block::text(r#"{"sum": 3}"#)];
            let (tool_use_id, name) = (format!("t{number}"), "add".to_owned());
            let result = Block::ToolResult {
                tool_use_id,
                name,
                content,
                is_error: false,
                declined: false,
                runtime_ms: Some(2),
            };
            thread.write(Role::User, MessageStatus::Completed, vec![result]);
        }
        6 => {
            let error = Block::Error { code: "cancelled".into(), message: "the run was cancelled".into() };
            thread.complete(MessageStatus::Cancelled, Some(error));
        }
        // A crash loses streamed text.
        7 => drop(thread.partial.pop()),
        _ => {
            let keep = usize::try_from(random.below(thread.path.len() as u64 + 1)).unwrap();
            thread.path.truncate(keep);
            thread.partial.clear();
            thread.title = Some(format!("title {number}"));
        }
    }
}

#[test]
fn a_client_that_applies_deltas_equals_the_record() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut thread = Thread::new();
        let empty = record(&thread.view(None));
        let start = Token::start(&session().id.to_string()).encode();
        let mut clients =
            [empty.clone(), empty.clone(), AgentThreadRecord { continuation_token: start, ..empty }];
        let mut view = thread.view(None);
        for _ in 0..60 {
            step(&mut thread, &mut random);
            view = thread.view(Some(&view));
            let client = &mut clients[usize::try_from(random.below(3)).unwrap()];
            let next = delta(&client.continuation_token, &view, NEW).unwrap();
            // A repeated request gives the same answer.
            assert_eq!(delta(&client.continuation_token, &view, NEW).as_ref(), Ok(&next), "seed {seed}");
            client.apply(next);
            let whole = record(&view);
            assert_eq!(whole, record(&thread.view(None)), "seed {seed}: a view that is extended");
            assert_eq!(joined(client), joined(&whole), "seed {seed}");
            assert_eq!((&client.title, &client.goals), (&whole.title, &whole.goals), "seed {seed}");
            assert_eq!(client.continuation_token, whole.continuation_token, "seed {seed}");
        }
    }
}
