//! `answer`: the host answers a question of one of its queries.

use std::sync::Arc;

use mainspring_api::jsonl::{AnswerLine, Code, LineIds, Reply};
use tokio::sync::OwnedSemaphorePermit;

use super::line::Envelope;
use super::live::Query;
use super::{DEFAULT_CLIENT_ID, Shared, code_and_message};

/// Answers a question of a live query, and acknowledges whether the answer was accepted.
pub(super) fn handle(
    shared: &Arc<Shared>,
    envelope: Envelope,
    line: AnswerLine,
    permit: OwnedSemaphorePermit,
) {
    let client = envelope.client.as_deref().unwrap_or(DEFAULT_CLIENT_ID);
    let owner = shared.owner(&envelope);
    let query = envelope.request.as_deref().and_then(|request| shared.live.find(owner, client, request));
    let shared = shared.clone();
    shared.tasks.clone().spawn(async move {
        let refused = match &query {
            Some(query) => send(&shared, query, &line).await.err(),
            None => Some(("not_found".to_owned(), "no live query has this requestId".to_owned())),
        };
        let ids = match &query {
            Some(query) => query.line_ids(None),
            None => LineIds::from(&envelope),
        };
        let reply = Reply::AnswerAck {
            wait_id: line.wait_id.to_string().into(),
            accepted: refused.is_none(),
            code: refused.as_ref().map(|(code, _)| Code::new(code)),
            message: refused.as_ref().map(|(_, message)| message.into()),
        };
        shared.reply(&reply, &ids).await;
        drop(permit);
    });
}

async fn send(shared: &Shared, query: &Query, line: &AnswerLine) -> Result<(), (String, String)> {
    let Some(run) = query.run().await else {
        return Err(("not_waiting".to_owned(), "the query was refused".to_owned()));
    };
    let answered = shared
        .link
        .ask(&query.owner, |client| async move { client.run_answer(run, line.wait_id, &line.answer).await });
    answered.await.map(drop).map_err(|error| code_and_message(&error))
}
