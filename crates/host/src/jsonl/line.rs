//! What the host says: one JSON object per line.
//!
//! Every line has an envelope (`protocolVersion`, `requestId`, `clientId`, `ownerId`), and all of it may be absent: a line
//! without a version is of version 1. What a field is called in version 1 is read here and nowhere else.

use mainspring_api::jsonl::{Names, Request};
use serde_json::{Map, Value};

/// The version of the protocol that a line is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// Answers carry no names: the host has one question at a time.
    V1,
    /// Every answer names what it belongs to.
    V2,
}

/// Who says a line, and what it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) version: Version,
    pub(super) request: Option<String>,
    pub(super) client: Option<String>,
    pub(super) owner: Option<String>,
}

/// A line that was not understood, and what of its envelope could be read.
#[derive(Debug, PartialEq)]
pub(super) struct Bad {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) echo: Echo,
    pub(super) of: Of,
}

/// What a line that was not understood is about, as far as that could be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Of {
    /// A wish of version 2 to stop a query, which is acknowledged.
    Interrupt,
    /// A call of a tool.
    Call(Option<String>),
    /// Anything else.
    #[default]
    Other,
}

/// What a line called itself, to be said back with what is wrong with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) version: Option<u64>,
    pub(super) request: Option<String>,
    pub(super) client: Option<String>,
}

impl From<&Envelope> for Names {
    /// Names the answer to a line that is no query: in version 1 nothing.
    fn from(envelope: &Envelope) -> Self {
        match envelope.version {
            Version::V1 => Self::default(),
            Version::V2 => Self {
                protocol_version: Some(2),
                request_id: envelope.request.clone(),
                client_id: envelope.client.clone(),
                ..Self::default()
            },
        }
    }
}

impl From<Echo> for Names {
    fn from(echo: Echo) -> Self {
        let Echo { version, request, client } = echo;
        Self { protocol_version: version, request_id: request, client_id: client, ..Self::default() }
    }
}

/// Reads a line.
pub(super) fn read(bytes: &[u8]) -> Result<(Envelope, Request), Box<Bad>> {
    let bad = |code, message| Box::new(Bad { code, message, echo: Echo::default(), of: Of::Other });
    let parsed = serde_json::from_slice(bytes).or_else(|error| match whole_characters(bytes) {
        Some(mended) => serde_json::from_slice(&mended),
        None => Err(error),
    });
    let object = match parsed {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err(bad("invalid_request", "a line is a JSON object".into())),
        Err(error) => return Err(bad("invalid_json", format!("the line is not JSON: {error}"))),
    };
    let echo = Echo {
        version: object.get("protocolVersion").and_then(whole),
        request: object.get("requestId").and_then(Value::as_str).map(str::to_owned),
        client: object.get("clientId").and_then(Value::as_str).map(str::to_owned),
    };
    let text = |field: &str| object.get(field).and_then(Value::as_str);
    let of = match text("type") {
        Some("interrupt") if echo.version == Some(2) => Of::Interrupt,
        Some("tool_result") => Of::Call(text("callId").map(str::to_owned)),
        _ => Of::Other,
    };
    understand(object).map_err(|message| Box::new(Bad { code: "invalid_request", message, echo, of }))
}

/// The line with `\u{fffd}` for every half of a character, if there are any: hosts that count in UTF-16 cut texts in the
/// middle of one, and say the half as `\ud83d`.
fn whole_characters(line: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let digits = line.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mut mended, mut at, mut halves) = (Vec::with_capacity(line.len()), 0, false);
    while at < line.len() {
        let length = match (unit(at), unit(at + 6)) {
            _ if line[at] != b'\\' => 1,
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                halves = true;
                mended.extend_from_slice(b"\\ufffd");
                at += 6;
                continue;
            }
            // What is escaped may be the mark itself.
            _ => 2,
        };
        let end = line.len().min(at + length);
        mended.extend_from_slice(&line[at..end]);
        at = end;
    }
    halves.then_some(mended)
}

/// A whole number, also one that was written with a fraction of nothing.
fn whole(value: &Value) -> Option<u64> {
    match value.as_f64() {
        Some(1.0) => Some(1),
        Some(2.0) => Some(2),
        _ => value.as_u64(),
    }
}

fn understand(mut object: Map<String, Value>) -> Result<(Envelope, Request), String> {
    let version = match object.get("protocolVersion") {
        None | Some(Value::Null) => Version::V1,
        Some(version) => match whole(version) {
            Some(1) => Version::V1,
            Some(2) => Version::V2,
            _ => return Err(format!("protocolVersion {version} is not spoken here; 1 and 2 are")),
        },
    };
    let mut name = |field: &'static str| match object.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) if !name.is_empty() => Ok(Some(name)),
        Some(_) => Err(format!("{field} is a text that is not empty")),
    };
    let (request, id) = (name("requestId")?, name("id")?);
    let envelope =
        Envelope { version, request: request.or(id), client: name("clientId")?, owner: name("ownerId")? };
    let kind = name("type")?.ok_or("a line has a type")?;
    let line = match kind.as_str() {
        "query" => Request::Query(Box::new(fields(&kind, object)?)),
        "interrupt" => Request::Interrupt(fields(&kind, object)?),
        "invalidate_session" => Request::InvalidateSession(fields(&kind, object)?),
        "warmup" => Request::Warmup(fields(&kind, object)?),
        "tool_result" => Request::ToolResult(fields(&kind, object)?),
        "refresh_token" => Request::RefreshToken(fields(&kind, object)?),
        "authenticate" => Request::Authenticate(fields(&kind, object)?),
        "stop" => Request::Stop {},
        other => {
            let other: String = other.chars().take(64).collect();
            return Err(format!("no line has the type {other:?}"));
        }
    };
    Ok((envelope, line))
}

fn fields<T: serde::de::DeserializeOwned>(kind: &str, object: Map<String, Value>) -> Result<T, String> {
    // What a newer host says besides is not our concern.
    serde_json::from_value(Value::Object(object)).map_err(|error| format!("{kind}: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(value: &Value) -> Result<(Envelope, Request), Box<Bad>> {
        read(value.to_string().as_bytes())
    }

    #[test]
    fn a_line_without_a_version_is_of_version_1_and_its_id_names_the_request() {
        let (envelope, _) =
            line(&json!({"type": "query", "id": "r1", "prompt": "hi", "systemPrompt": ""})).unwrap();
        assert_eq!((envelope.version, envelope.request.as_deref()), (Version::V1, Some("r1")));
        let both =
            json!({"type": "stop", "protocolVersion": 2, "id": "old", "requestId": "new", "clientId": null});
        let (envelope, read) = line(&both).unwrap();
        assert_eq!(
            (envelope.version, envelope.request.as_deref(), envelope.client),
            (Version::V2, Some("new"), None)
        );
        assert_eq!(read, Request::Stop {});
    }

    #[test]
    fn what_is_not_understood_is_said_back_with_its_names() {
        let cases = [
            (json!([1]), "invalid_request", "a line is a JSON object", None),
            (
                json!({"type": "nope", "requestId": "r"}),
                "invalid_request",
                "no line has the type \"nope\"",
                Some("r"),
            ),
            (json!({"requestId": "r"}), "invalid_request", "a line has a type", Some("r")),
            (
                json!({"type": "query", "requestId": "r"}),
                "invalid_request",
                "query: missing field `prompt`",
                Some("r"),
            ),
            (
                json!({"type": "query", "requestId": 5, "prompt": "x"}),
                "invalid_request",
                "requestId is a text that is not empty",
                None,
            ),
            (
                json!({"type": "query", "protocolVersion": 3, "requestId": "r", "prompt": "x"}),
                "invalid_request",
                "protocolVersion 3 is not spoken here; 1 and 2 are",
                Some("r"),
            ),
        ];
        for (value, code, message, request) in cases {
            let bad = line(&value).unwrap_err();
            assert_eq!(
                (bad.code, bad.message.as_str(), bad.echo.request.as_deref()),
                (code, message, request)
            );
        }
        assert_eq!(read(b"{\"type\":").unwrap_err().code, "invalid_json");
        assert_eq!(read(b"{\"type\":\"\xff\"}").unwrap_err().code, "invalid_json");
    }

    #[test]
    fn half_a_character_is_no_reason_not_to_read_a_line() {
        let prompt = |escaped: &str| {
            let line = format!(r#"{{"type":"query","requestId":"r","prompt":"{escaped}"}}"#);
            match read(line.as_bytes()) {
                Ok((_, Request::Query(query))) => query.prompt,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(prompt(r"cut \ud83d"), "cut \u{fffd}");
        assert_eq!(prompt(r"\ude00 \ud83d\ude00 \ud83d\ud83d\ude00"), "\u{fffd} 😀 \u{fffd}😀");
        assert_eq!(prompt(r#"\\ud83d \" \ud83d"#), "\\ud83d \" \u{fffd}");
        assert_eq!(prompt(r"\\ud83d"), r"\ud83d", "nothing is half here");
        assert_eq!(read(br#"{"type":"\ud83d"#).unwrap_err().code, "invalid_json");
        assert_eq!(read(br#"{"type":"\u12"#).unwrap_err().code, "invalid_json");
    }

    #[test]
    fn a_token_is_never_shown() {
        let (_, line) = line(&json!({"type": "refresh_token", "token": "secret"})).unwrap();
        assert!(!format!("{line:?}").contains("secret"));
    }
}
