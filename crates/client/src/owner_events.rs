//! The events of all of the caller's sessions, in one order.

use futures_util::StreamExt;
use mainspring_api::{CaughtUp, OwnerEventsQuery, StoreNotice};
use mainspring_core::{Body, Event, Position};
use sse_stream::{Sse, SseByteStream};

use crate::json::FromJson;
use crate::stream::{Connection, history_of};
use crate::{Client, Error};

/// Events of all of the caller's sessions, over one connection. When the connection breaks, resume at the position.
pub struct OwnerEvents {
    client: Client,
    connection: Connection,
    history: Option<String>,
    position: Option<Position>,
}

/// One item of the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnerItem {
    /// A durable event.
    Event(Box<Event>),
    /// All earlier events were returned: a projection of them is now up to date.
    CaughtUp(Position),
    /// The store of the server cannot be written, or can be written again.
    Store(Box<StoreNotice>),
    /// An item of a newer server that this client does not know.
    Unknown,
}

impl OwnerEvents {
    pub(crate) async fn open(client: Client, query: &OwnerEventsQuery) -> Result<Self, Error> {
        let response = client.stream(&["v1", "events"], query, None).await?;
        let history = history_of(&response);
        let connection: Connection = Box::pin(SseByteStream::new(response.bytes_stream()));
        let position = query.after.as_deref().and_then(|after| after.parse().ok());
        Ok(Self { client, connection, history, position })
    }

    /// Returns the history that the position belongs to. Store it together with the position.
    pub fn history(&self) -> Option<&str> {
        self.history.as_deref()
    }

    /// Returns the resume point: all events up to here were returned.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// Waits for the next item; `None` once the connection has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<OwnerItem, Error>> {
        loop {
            // A broken connection ends the stream too.
            let Sse { event, data, id, .. } = self.connection.next().await?.ok()?;
            let (Some(kind), Some(data)) = (event, data) else { continue };
            let item = parse_item(&kind, &data)
                .map_err(|error| self.client.protocol_error(format!("{error} in {data:?}")));
            if let Some(position) = id.and_then(|id| id.parse().ok()) {
                self.position = Some(position);
            }
            return Some(item);
        }
    }
}

fn parse_item(kind: &str, data: &str) -> Result<OwnerItem, serde_json::Error> {
    Ok(match kind {
        CaughtUp::KIND => OwnerItem::CaughtUp(CaughtUp::from_json(data)?.position),
        "store.failed" | "store.recovered" => OwnerItem::Store(StoreNotice::from_json(data)?.into()),
        kind if Body::TYPES.contains(&kind) => OwnerItem::Event(Event::from_json(data)?.into()),
        _ => OwnerItem::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use mainspring_core::Cursor;

    use super::*;

    #[test]
    fn a_sent_store_notice_is_parsed_back() {
        let position = Position { cursor: Cursor(7), pos: 0 };
        let body = Body::StoreFailed { code: "store_full".into(), message: "no space".into() };
        let notice = StoreNotice { position, body };
        let sent = serde_json::to_string(&notice).unwrap();
        let expected = r#"{"position":"7.0","type":"store.failed","payload":{"code":"store_full","message":"no space"}}"#;
        assert_eq!(sent, expected);
        assert_eq!(parse_item("store.failed", &sent).unwrap(), OwnerItem::Store(notice.into()));
    }
}
