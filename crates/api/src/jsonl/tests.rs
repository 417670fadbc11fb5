use mainspring_core::{RunStatus, SessionId, Usage};

use super::*;

fn encoded(reply: &Reply<'_>, line_ids: &LineIds) -> String {
    String::from_utf8(reply.encode(line_ids)).unwrap()
}

#[test]
fn a_reply_is_encoded_as_one_object_with_its_ids() {
    let line_ids = LineIds {
        protocol_version: Some(2),
        request_id: Some("r".into()),
        session_id: Some(SessionId::from_random([1; 16])),
        adapter_session_id: Some("native".into()),
        ..LineIds::default()
    };
    insta::assert_snapshot!(encoded(&Reply::TextDelta { text: "a\nb".into() }, &line_ids), @r#"{"type":"text_delta","text":"a\nb","protocolVersion":2,"requestId":"r","sessionId":"ses_01010101010141018101010101010101","adapterSessionId":"native"}"#);
    insta::assert_snapshot!(encoded(&Reply::Init { session_id: "".into() }, &LineIds::default()), @r#"{"type":"init","sessionId":""}"#);
    let result = Reply::Result {
        text: "hi".into(),
        session_id: "ses".into(),
        adapter_session_id: Some(Some("native".into())),
        terminal_status: RunStatus::Succeeded,
        usage: Usage::default(),
    };
    insta::assert_snapshot!(encoded(&result, &line_ids), @r#"{"type":"result","text":"hi","sessionId":"ses","adapterSessionId":"native","terminalStatus":"succeeded","inputTokens":0,"outputTokens":0,"cacheReadTokens":0,"cacheWriteTokens":0,"costUsd":0.0,"protocolVersion":2,"requestId":"r"}"#);
}

#[test]
fn a_reply_round_trips() {
    let line_ids = LineIds {
        protocol_version: Some(2),
        request_id: Some("r".into()),
        session_id: Some(SessionId::from_random([1; 16])),
        ..LineIds::default()
    };
    for reply in [
        Reply::TextDelta { text: "a".into() },
        Reply::ToolActivity {
            name: "shell".into(),
            status: Activity::Started,
            tool_use_id: Some("t".into()),
            input: None,
        },
        Reply::error("session_busy", "no"),
        Reply::CancelAck {
            accepted: false,
            dispatch_attempted: false,
            adapter_acknowledged: false,
            code: Some(Code::new("not_found")),
            message: Some("none".into()),
        },
        Reply::AuthRequired { methods: vec![].into(), auth_url: None },
        Reply::Status { available: false, code: Some(Code::new("store_full")), message: "no space".into() },
        Reply::Status { available: true, code: None, message: "it goes on".into() },
    ] {
        let line: ReplyLine = serde_json::from_slice(&reply.encode(&line_ids)).unwrap();
        assert_eq!((line.reply, line.line_ids), (reply, line_ids.clone()));
    }
    let newer: ReplyLine = serde_json::from_str(r#"{"type":"hologram","depth":3}"#).unwrap();
    assert_eq!(newer.reply, Reply::Unknown);
    let init: ReplyLine = serde_json::from_str(r#"{"type":"init","sessionId":""}"#).unwrap();
    assert_eq!((init.reply, init.line_ids), (Reply::Init { session_id: "".into() }, LineIds::default()));
}
