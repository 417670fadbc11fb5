//! `mainspring session tail`

use std::collections::HashSet;

use mainspring_client::Item;
use mainspring_core::{Body, Position};

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;
use crate::event_line::{format_event, format_streamed};
use crate::follow::interrupt_signal;
use crate::output::DIM;

/// Prints events and text as they arrive.
pub(super) async fn tail(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    after: Option<&str>,
) -> Result<(), CliError> {
    let output = context.output;
    let from = match after {
        Some("start") => Position::START,
        Some(text) => text
            .parse()
            .map_err(|bad: mainspring_core::BadPosition| CliError::bad_request(bad.to_string()))?,
        None => connection.request(async |client| client.session_snapshot(session).await).await?.position,
    };
    let mut events = connection.events(session, from);
    let (mut mid_line, mut streamed) = (false, HashSet::new());
    let mut interrupt = std::pin::pin!(interrupt_signal());
    loop {
        let item = tokio::select! {
            item = events.next() => item,
            signal = &mut interrupt => return Ok(signal?),
        };
        let item = match item {
            None => return Ok(()),
            Some(Err(error)) if error.is_gone() && connection.is_guest() => {
                connection.reconnect().await?;
                events = connection.events(session, events.position().unwrap_or(from));
                continue;
            }
            Some(item) => item?,
        };
        if let (Item::Live(live), false) = (&item, output.json) {
            if let Body::MessageDelta { text, message_id, .. } = &live.body {
                streamed.insert(*message_id);
                output.print(text)?;
                mid_line = !text.ends_with('\n');
            }
            continue;
        }
        if std::mem::take(&mut mid_line) {
            output.print("\n")?;
        }
        match item {
            Item::Event(event) if output.json => output.print_json(&*event)?,
            Item::Live(live) => output.print_json(&live)?,
            Item::Event(event) => match &event.body {
                // The text was printed while it was streamed.
                Body::MessageCompleted { message, .. } if streamed.remove(&message.id) => {
                    output.print_line(format_streamed(&event))?;
                }
                _ => output.print_line(format_event(&event))?,
            },
            Item::Reset(now) if output.json => output.print_json(&*now)?,
            Item::Reset(_) => output.print_note("older events are no longer stored; continuing from now")?,
            Item::Thought(thought) => output.print_note(format_args!("{DIM}· ({}){DIM:#}", thought.text))?,
            Item::Unknown { kind, .. } => output.print_note(format_args!("{DIM}· {kind}{DIM:#}"))?,
        }
    }
}
