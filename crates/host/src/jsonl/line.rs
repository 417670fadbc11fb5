//! Parses the host's lines: one JSON object each.
//!
//! Every line has an envelope (`protocolVersion`, `requestId`, `clientId`, `ownerId`) whose fields are all optional. A line
//! without a version has version 1. Only this module handles the `id` of version 1.

use mainspring_api::jsonl::{LineIds, Request};
use serde_json::{Map, Value};

/// The protocol version of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// Replies carry no ids: the host has one query at a time.
    V1,
    /// Every reply names its request.
    V2,
}

/// The sender and the request id of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) version: Version,
    pub(super) request: Option<String>,
    pub(super) client: Option<String>,
    pub(super) owner: Option<String>,
}

/// An invalid line and the readable part of its envelope.
#[derive(Debug, PartialEq)]
pub(super) struct InvalidLine {
    pub(super) code: &'static str,
    pub(super) message: String,
    pub(super) echo: Echo,
    pub(super) subject: Subject,
}

/// The subject of an invalid line, as far as readable.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Subject {
    /// An interrupt of version 2, which must be acknowledged.
    Interrupt,
    /// A tool call, with its id.
    Call(Option<String>),
    /// Anything else.
    #[default]
    Other,
}

/// The ids of an invalid line, returned with the error.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Echo {
    pub(super) version: Option<u64>,
    pub(super) request: Option<String>,
    pub(super) client: Option<String>,
}

impl From<&Envelope> for LineIds {
    /// Returns the ids of the reply to a line that is no query; none in version 1.
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

impl From<Echo> for LineIds {
    fn from(echo: Echo) -> Self {
        let Echo { version, request, client } = echo;
        Self { protocol_version: version, request_id: request, client_id: client, ..Self::default() }
    }
}

/// Parses a line.
pub(super) fn read(bytes: &[u8]) -> Result<(Envelope, Request), Box<InvalidLine>> {
    let invalid = |code, message| {
        Box::new(InvalidLine { code, message, echo: Echo::default(), subject: Subject::Other })
    };
    let parsed = serde_json::from_slice(bytes).or_else(|error| match replace_lone_surrogates(bytes) {
        Some(repaired) => serde_json::from_slice(&repaired),
        None => Err(error),
    });
    let object = match parsed {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Err(invalid("invalid_request", "a line is a JSON object".into())),
        Err(error) => return Err(invalid("invalid_json", format!("the line is not JSON: {error}"))),
    };
    let echo = Echo {
        version: object.get("protocolVersion").and_then(integer),
        request: object.get("requestId").and_then(Value::as_str).map(str::to_owned),
        client: object.get("clientId").and_then(Value::as_str).map(str::to_owned),
    };
    let text = |field: &str| object.get(field).and_then(Value::as_str);
    let subject = match text("type") {
        Some("interrupt") if echo.version == Some(2) => Subject::Interrupt,
        Some("tool_result") => Subject::Call(text("callId").map(str::to_owned)),
        _ => Subject::Other,
    };
    parse(object).map_err(|message| Box::new(InvalidLine { code: "invalid_request", message, echo, subject }))
}

/// Replaces unpaired surrogate escapes by `\u{fffd}`; `None` if there are none. Hosts that count in UTF-16 cut texts
/// inside a character and send half of it, such as `\ud83d`.
fn replace_lone_surrogates(line: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let digits = line.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mut repaired, mut at, mut found) = (Vec::with_capacity(line.len()), 0, false);
    while at < line.len() {
        let length = match (unit(at), unit(at + 6)) {
            _ if line[at] != b'\\' => 1,
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                found = true;
                repaired.extend_from_slice(b"\\ufffd");
                at += 6;
                continue;
            }
            // The escaped character may be a backslash.
            _ => 2,
        };
        let end = line.len().min(at + length);
        repaired.extend_from_slice(&line[at..end]);
        at = end;
    }
    found.then_some(repaired)
}

/// Reads an integer; also accepts `1.0` and `2.0`.
fn integer(value: &Value) -> Option<u64> {
    match value.as_f64() {
        Some(1.0) => Some(1),
        Some(2.0) => Some(2),
        _ => value.as_u64(),
    }
}

fn parse(mut object: Map<String, Value>) -> Result<(Envelope, Request), String> {
    let version = match object.get("protocolVersion") {
        None | Some(Value::Null) => Version::V1,
        Some(version) => match integer(version) {
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
        "answer" => Request::Answer(fields(&kind, object)?),
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
    // Ignores fields of newer protocol versions.
    serde_json::from_value(Value::Object(object)).map_err(|error| format!("{kind}: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(value: &Value) -> Result<(Envelope, Request), Box<InvalidLine>> {
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
    fn an_invalid_line_is_reported_with_its_request_id() {
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
    fn lone_surrogates_are_replaced() {
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
        assert_eq!(prompt(r"\\ud83d"), r"\ud83d", "an escaped backslash starts no surrogate");
        assert_eq!(read(br#"{"type":"\ud83d"#).unwrap_err().code, "invalid_json");
        assert_eq!(read(br#"{"type":"\u12"#).unwrap_err().code, "invalid_json");
    }

    #[test]
    fn a_token_is_never_printed() {
        let (_, line) = line(&json!({"type": "refresh_token", "token": "secret"})).unwrap();
        assert!(!format!("{line:?}").contains("secret"));
    }
}
