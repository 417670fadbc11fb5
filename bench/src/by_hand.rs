//! Writes the rows of a turn by hand, with the schema and settings of the store and each transaction synced.
//! The time that this takes is the least that a turn or an accepted prompt can take.

use std::sync::Arc;
use std::time::Instant;

use mainspring_core::{Attempt, Block, LineId, Message, Point, Role, Run, Session};
use mainspring_kernel::store::NewEvent;
use rusqlite::Connection;

use crate::history::Builder;
use crate::raw;
use crate::stats::ms;
use crate::world;

/// Writes turns to some sessions, one after the other.
pub(crate) struct ByHand {
    connection: Connection,
    builder: Builder,
    sessions: Vec<OwnSession>,
    turns: usize,
    seq: i64,
}

struct OwnSession {
    session: Session,
    line: LineId,
    turns: u32,
}

/// The rows of one turn.
struct Turn {
    session: usize,
    run: Run,
    attempt: Attempt,
    prompt: Arc<Message>,
    answer: Arc<Message>,
    accepted: Vec<NewEvent>,
    ended: Vec<NewEvent>,
}

impl ByHand {
    /// Creates the sessions.
    pub(crate) fn new(connection: Connection, sessions: usize) -> Self {
        let builder = Builder::new();
        let last = "SELECT coalesce(max(event_seq), 0) FROM events";
        let seq = connection.query_row(last, [], |row| row.get(0)).unwrap();
        let mut by_hand = Self { connection, builder, sessions: vec![], turns: 0, seq };
        raw::transaction(&by_hand.connection, || {
            for _ in 0..sessions {
                let (session, line) = (by_hand.builder.session(), by_hand.builder.ids.line());
                raw::session(&by_hand.connection, session.id);
                raw::line(&by_hand.connection, line.0, session.id);
                by_hand.sessions.push(OwnSession { session, line, turns: 0 });
            }
        });
        by_hand
    }

    /// Writes one turn in two transactions and returns its duration in milliseconds.
    pub(crate) fn turn(&mut self) -> f64 {
        let (mut turn, content) = (self.build(), content(world::text(500)));
        let begin = Instant::now();
        self.accept(&turn, &content);
        turn.run.final_message = Some(turn.answer.id);
        self.end(&turn, &content);
        ms(begin.elapsed())
    }

    /// Writes an accepted prompt in one transaction. Returns the id of its run.
    pub(crate) fn prompt(&mut self, text: String) -> String {
        let (turn, content) = (self.build(), content(text));
        self.accept(&turn, &content);
        turn.run.id.to_string()
    }

    fn build(&mut self) -> Turn {
        let index = self.turns % self.sessions.len();
        self.turns += 1;
        let (builder, own) = (&self.builder, &mut self.sessions[index]);
        own.turns += 1;
        let session = own.session.id;
        let mut run = builder.run(session, own.turns);
        let attempt = builder.attempt(run.id);
        let prompt = builder.message(session, run.id, Role::User);
        let answer = builder.message(session, run.id, Role::Assistant);
        let mut accepted: Vec<_> = (builder.bodies(&own.session, &prompt, &answer).into_iter())
            .map(|body| builder.event(run.id, Some(attempt.id), body))
            .collect();
        let ended = accepted.split_off(accepted.len() - 2);
        run.prompt = Some(prompt.id);
        run.last_attempt = Some(attempt.id);
        Turn { session: index, run, attempt, prompt, answer, accepted, ended }
    }

    fn accept(&mut self, turn: &Turn, content: &str) {
        let at = self.point(turn, 0);
        let (connection, seq) = (&self.connection, &mut self.seq);
        raw::transaction(connection, || {
            raw::run_started(connection, &turn.run);
            raw::run(connection, &turn.run, *seq);
            raw::attempt(connection, &turn.attempt);
            raw::message(connection, &turn.prompt, at, content);
            events(connection, turn, &turn.accepted, seq);
        });
    }

    fn end(&mut self, turn: &Turn, content: &str) {
        let at = self.point(turn, 1);
        let (connection, seq) = (&self.connection, &mut self.seq);
        raw::transaction(connection, || {
            raw::message(connection, &turn.answer, at, content);
            raw::run_ended(connection, &turn.run, at);
            events(connection, turn, &turn.ended, seq);
        });
    }

    /// The place of the prompt or of the answer.
    fn point(&self, turn: &Turn, message: u32) -> Point {
        let own = &self.sessions[turn.session];
        Point { line: own.line, pos: (own.turns - 1) * 2 + message }
    }
}

fn events(connection: &Connection, turn: &Turn, events: &[NewEvent], seq: &mut i64) {
    for event in events {
        *seq += 1;
        raw::event(connection, turn.run.session, event, r#"{"adapter":"answer","mode":"act"}"#, *seq);
    }
}

fn content(text: String) -> String {
    serde_json::to_string(&vec![Block::text(text)]).unwrap()
}
