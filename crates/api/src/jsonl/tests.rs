use mainspring_core::{RunStatus, SessionId, Usage};

use super::*;

fn shown(reply: &Reply<'_>, names: &Names) -> String {
    String::from_utf8(reply.encode(names)).unwrap()
}

#[test]
fn a_line_is_its_type_what_it_says_and_what_it_belongs_to() {
    let names = Names {
        protocol_version: Some(2),
        request_id: Some("r".into()),
        session_id: Some(SessionId::from_random([1; 16])),
        adapter_session_id: Some("native".into()),
        ..Names::default()
    };
    insta::assert_snapshot!(shown(&Reply::TextDelta { text: "a\nb".into() }, &names), @r#"{"type":"text_delta","text":"a\nb","protocolVersion":2,"requestId":"r","sessionId":"ses_01010101010141018101010101010101","adapterSessionId":"native"}"#);
    insta::assert_snapshot!(shown(&Reply::Init { session_id: "".into() }, &Names::default()), @r#"{"type":"init","sessionId":""}"#);
    let result = Reply::Result {
        text: "hi".into(),
        session_id: "ses".into(),
        adapter_session_id: Some("native".into()),
        terminal_status: RunStatus::Succeeded,
        usage: Usage::default(),
    };
    insta::assert_snapshot!(shown(&result, &names), @r#"{"type":"result","text":"hi","sessionId":"ses","adapterSessionId":"native","terminalStatus":"succeeded","inputTokens":0,"outputTokens":0,"cacheReadTokens":0,"cacheWriteTokens":0,"costUsd":0.0,"protocolVersion":2,"requestId":"r"}"#);
}

#[test]
fn a_reply_is_read_back_as_it_was_written() {
    let names = Names {
        protocol_version: Some(2),
        request_id: Some("r".into()),
        session_id: Some(SessionId::from_random([1; 16])),
        ..Names::default()
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
            code: Some(Code::of("not_found")),
            message: Some("none".into()),
        },
        Reply::AuthRequired { methods: vec![].into(), auth_url: None },
    ] {
        let line: ReplyLine = serde_json::from_slice(&reply.encode(&names)).unwrap();
        assert_eq!((line.reply, line.names), (reply, names.clone()));
    }
    let newer: ReplyLine = serde_json::from_str(r#"{"type":"hologram","depth":3}"#).unwrap();
    assert_eq!(newer.reply, Reply::Unknown);
    let init: ReplyLine = serde_json::from_str(r#"{"type":"init","sessionId":""}"#).unwrap();
    assert_eq!((init.reply, init.names), (Reply::Init { session_id: "".into() }, Names::default()));
}
