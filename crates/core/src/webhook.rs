//! Webhooks: addresses that receive an owner's events.
//!
//! ```text
//! event ──send──▶ delivered
//!   ▲ │
//!   │ ├── no answer, 5xx, 408, 425, 429 ──▶ sent again, later each time ──▶ dead after MAX_ATTEMPTS
//!   │ └── any other answer ──▶ dead
//!   └── a person retries a dead letter
//! ```
//!
//! Invariant: events are sent in their order, and the cursor of a webhook passes an event only when the event is
//! delivered or a dead letter. An event may be delivered more than once.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::{Body, Cursor, EventId, KeyId, SessionId, Time, WebhookId};

/// Attempts after which an event is a dead letter.
pub const MAX_ATTEMPTS: u32 = 10;
/// The longest URL of a webhook, in bytes.
pub const MAX_URL_BYTES: usize = 2_048;
/// The pause before the second attempt. Each further pause is four times as long as the one before, up to the maximum.
const FIRST_PAUSE_MS: u64 = 1_000;
const MAX_PAUSE_MS: u64 = 60 * 60 * 1_000;

/// The types of events that concern a person: questions and their answers, and runs that failed.
pub const ATTENTION: &[&str] = &[
    "approval.requested",
    "approval.resolved",
    "input.requested",
    "input.provided",
    "run.failed",
    "run.timed_out",
    "run.orphaned",
];

/// An address that receives events of its owner's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// The webhook's id.
    #[serde(rename = "webhookId")]
    pub id: WebhookId,
    /// The owner whose events are delivered.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The key that created the webhook. The webhook ends with the key. Absent if it was created with the token of the
    /// state directory.
    #[serde(rename = "keyId", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// The address that events are posted to.
    pub url: String,
    /// The types of the events that are delivered, such as `run.failed`, or the first words of types, such as `run`.
    pub types: Vec<String>,
    /// The events up to this one are delivered, dead, or of other types.
    #[serde(rename = "deliveredTo")]
    pub cursor: Cursor,
    /// The number of failed attempts to deliver the next event.
    pub failures: u32,
    /// Why the last attempt failed. Absent if it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When an event was last delivered. Absent if none was.
    #[serde(rename = "deliveredAtMs", default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Time>,
    /// When the webhook was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
}

/// An event that could not be delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The webhook.
    #[serde(rename = "webhookId")]
    pub webhook: WebhookId,
    /// The cursor of the event.
    pub cursor: Cursor,
    /// The event.
    #[serde(rename = "eventId")]
    pub event: EventId,
    /// The session of the event.
    #[serde(rename = "sessionId")]
    pub session: SessionId,
    /// The type of the event.
    pub event_type: String,
    /// The number of attempts.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: String,
    /// When the last attempt failed.
    #[serde(rename = "failedAtMs")]
    pub failed_at: Time,
}

/// The result of an attempt to deliver an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The receiver has accepted the event.
    Delivered,
    /// The receiver may accept the event later.
    Failed(String),
    /// The receiver will not accept the event, however often it is sent.
    Refused(String),
}

impl Delivery {
    /// The result of an answer with this HTTP status.
    pub fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Delivered,
            408 | 425 | 429 | 500..=599 => Self::Failed(format!("the receiver answers {status}")),
            _ => Self::Refused(format!("the receiver answers {status}")),
        }
    }
}

/// The next step of a delivery after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The event is done: the webhook's cursor passes it.
    Advance,
    /// The event is sent again after this pause.
    Pause(u64),
    /// The event becomes a dead letter with this error.
    DeadLetter(String),
}

impl Webhook {
    /// Applies the result of an attempt to deliver the next event, which has the cursor `event`. Returns the next step.
    pub fn apply(&mut self, event: Cursor, delivery: Delivery, now: Time) -> Next {
        let (error, is_last) = match delivery {
            Delivery::Delivered => {
                (self.cursor, self.failures, self.last_error) = (event, 0, None);
                self.delivered_at = Some(now);
                return Next::Advance;
            }
            Delivery::Failed(error) => (error, self.failures + 1 >= MAX_ATTEMPTS),
            Delivery::Refused(error) => (error, true),
        };
        self.last_error = Some(error.clone());
        match is_last {
            true => {
                (self.cursor, self.failures) = (event, 0);
                Next::DeadLetter(error)
            }
            false => {
                self.failures += 1;
                Next::Pause(pause_ms(self.failures))
            }
        }
    }
}

/// The pause after this many failed attempts.
fn pause_ms(failures: u32) -> u64 {
    let factor = 4_u64.saturating_pow(failures.saturating_sub(1));
    FIRST_PAUSE_MS.saturating_mul(factor).min(MAX_PAUSE_MS)
}

/// The types of events that webhooks deliver: those that are stored.
pub fn deliverable_types() -> impl Iterator<Item = &'static str> {
    Body::TYPES.iter().copied().filter(|kind| !Body::TRANSIENT_TYPES.contains(kind))
}

/// True if `name` is a type that webhooks deliver, or the first word of such types.
pub fn is_deliverable(name: &str) -> bool {
    deliverable_types().any(|kind| matches(name, kind))
}

/// Returns the event types that match `names`: a name is a type, or the first word of types. Earlier versions accepted
/// names of types that are never delivered; they match none.
pub fn event_types(names: &[String]) -> Vec<&'static str> {
    deliverable_types().filter(|kind| names.iter().any(|name| matches(name, kind))).collect()
}

fn matches(name: &str, kind: &str) -> bool {
    kind == name || kind.split('.').next() == Some(name)
}

/// True for a public address: not one of this machine, of a private network, or reserved.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    // Reserved: 0/8 (this network), 100.64/10 (carrier-grade NAT), 192.0.0/24 (protocol assignments), 192.88.99/24 (6to4
    // relays), 198.18/15 (benchmarks), and everything from 224/3 (multicast) on.
    let is_reserved = matches!(
        (a, b, c),
        (0 | 224.., ..) | (100, 64..=127, _) | (192, 0, 0) | (192, 88, 99) | (198, 18 | 19, _)
    );
    !(is_reserved || ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_documentation())
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (a, b) {
        // IPv6 addresses that contain an IPv4 address: mapped, translated, and 6to4.
        (0, 0) if [c, d, e] == [0; 3] && f == 0xffff => v4(g, h),
        (0x64, 0xff9b) if [c, d, e, f] == [0; 4] => v4(g, h),
        (0x2002, _) => v4(b, c),
        // Public addresses are in 2000::/3, except for its ranges for documentation, tunnels and protocols.
        _ => {
            matches!(a, 0x2000..=0x3fff)
                && !matches!((a, b), (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> Webhook {
        Webhook {
            id: WebhookId::from_random([1; 16]),
            owner: "ada".into(),
            key: None,
            url: "https://example.com/".into(),
            types: vec!["run".into()],
            cursor: Cursor(1),
            failures: 0,
            last_error: None,
            delivered_at: None,
            created_at: Time(0),
        }
    }

    #[test]
    fn an_event_is_retried_after_longer_pauses_and_then_becomes_a_dead_letter() {
        let mut webhook = webhook();
        let mut pauses = vec![];
        let last = loop {
            match webhook.apply(Cursor(7), Delivery::of_status(503), Time(5)) {
                Next::Pause(pause) => pauses.push(pause),
                next => break next,
            }
            assert_eq!(webhook.cursor, Cursor(1), "the event is not passed");
        };
        assert_eq!(pauses.len() + 1, MAX_ATTEMPTS as usize);
        assert_eq!((pauses[0], pauses[1], pauses[8]), (1_000, 4_000, 3_600_000));
        assert_eq!(last, Next::DeadLetter("the receiver answers 503".into()));
        assert_eq!((webhook.cursor, webhook.failures), (Cursor(7), 0));
        assert_eq!(webhook.apply(Cursor(8), Delivery::Delivered, Time(9)), Next::Advance);
        assert_eq!(
            (webhook.cursor, webhook.last_error, webhook.delivered_at),
            (Cursor(8), None, Some(Time(9)))
        );
    }

    #[test]
    fn a_permanent_refusal_makes_a_dead_letter_at_once() {
        for status in [301, 400, 404, 410] {
            assert!(
                matches!(
                    webhook().apply(Cursor(7), Delivery::of_status(status), Time(5)),
                    Next::DeadLetter(_)
                ),
                "{status}"
            );
        }
        for status in [408, 429, 500] {
            assert!(
                matches!(webhook().apply(Cursor(7), Delivery::of_status(status), Time(5)), Next::Pause(_)),
                "{status}"
            );
        }
    }

    #[test]
    fn types_are_named_whole_or_by_their_first_word() {
        let types =
            |names: &[&str]| event_types(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(types(&["run.failed", "run.failed"]), ["run.failed"]);
        assert!(types(&["run"]).contains(&"run.orphaned"));
        assert_eq!(types(&["run.failed", "nothing"]), ["run.failed"]);
        assert!(is_deliverable("run") && !is_deliverable("nothing"));
        assert!(ATTENTION.iter().all(|kind| is_deliverable(kind)));
    }

    #[test]
    fn types_that_are_never_stored_cannot_be_delivered() {
        for name in Body::TRANSIENT_TYPES.into_iter().chain(["store"]) {
            assert!(!is_deliverable(name), "{name}");
            assert_eq!(event_types(&[name.to_owned()]), Vec::<&str>::new(), "{name}");
        }
        assert!(event_types(&["message".to_owned()]).contains(&"message.completed"));
        assert!(!event_types(&["message".to_owned()]).contains(&"message.delta"));
    }

    #[test]
    fn private_and_reserved_addresses_are_not_public() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.9",
            "::1",
            "::",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001:db8::1",
            "2001::1",
            "::127.0.0.1",
            "100::1",
            "3fff::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "8.8.8.8",
            "93.184.216.34",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
