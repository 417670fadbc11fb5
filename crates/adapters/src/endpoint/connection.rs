//! One connection of an agent: lines in, results out.

use std::sync::Arc;

use mainspring_api::jsonl::endpoint::{AgentLine, EndpointLine, ToolResult, ToolUse};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{Semaphore, mpsc};

use super::{Shared, call};

/// Maximum number of results queued for an agent.
const QUEUED_RESULTS: usize = 16;
/// Maximum number of concurrent calls of one connection.
const MAX_CONCURRENT_CALLS: usize = 256;
/// Chunk size for discarding the rest of a line over the limit.
const DISCARD_CHUNK_BYTES: u64 = 64 << 10;

/// Serves the calls of one connection until the agent disconnects.
pub(super) async fn serve(shared: Arc<Shared>, agent: UnixStream) {
    let (read, mut write) = agent.into_split();
    let (answers, mut waiting) = mpsc::channel::<EndpointLine>(QUEUED_RESULTS);
    shared.tasks.spawn(async move {
        while let Some(answer) = waiting.recv().await {
            if write.write_all(&answer.encode()).await.is_err() {
                return;
            }
        }
    });
    let (mut lines, limit) = (BufReader::new(read), shared.options.line_bytes);
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS));
    while let Some(line) = next(&mut lines, limit).await {
        let answer = match call::read(line, limit) {
            Err((call_id, why)) => {
                tool_result(call_id, mainspring_control::error_answer("invalid_tool_input", &why))
            }
            Ok(AgentLine::Context { call_id }) => call::context_line(&shared, call_id),
            Ok(AgentLine::ToolUse(call)) => {
                // At the limit, the agent waits until one of its calls has a result.
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                let (shared, answers) = (shared.clone(), answers.clone());
                shared.tasks.clone().spawn(async move {
                    Box::pin(answer(&shared, &answers, call)).await;
                    drop(permit);
                });
                continue;
            }
        };
        if answers.send(answer).await.is_err() {
            return;
        }
    }
}

/// Sends the result of a call, unless the agent disconnects before.
async fn answer(shared: &Arc<Shared>, answers: &mpsc::Sender<EndpointLine>, call: ToolUse) {
    let call_id = call.call_id.clone();
    let result = tokio::select! {
        result = call::run(shared, call) => result,
        () = answers.closed() => return,
    };
    // An agent that has disconnected needs no result.
    let _ = answers.send(tool_result(call_id, result)).await;
}

fn tool_result(call_id: String, result: String) -> EndpointLine {
    EndpointLine::ToolResult(ToolResult { call_id, result })
}

/// Reads the next line, cut to one byte over the limit; `None` at the end of the input.
async fn next(lines: &mut BufReader<OwnedReadHalf>, limit: usize) -> Option<Vec<u8>> {
    loop {
        let mut line = vec![];
        (&mut *lines).take(limit as u64 + 1).read_until(b'\n', &mut line).await.ok()?;
        let mut rest = vec![];
        while line.len() > limit && !line.ends_with(b"\n") && !rest.ends_with(b"\n") {
            rest.clear();
            if (&mut *lines).take(DISCARD_CHUNK_BYTES).read_until(b'\n', &mut rest).await.ok()? == 0 {
                break;
            }
        }
        match line.trim_ascii().is_empty() {
            true if line.is_empty() => return None,
            true => {}
            false => return Some(line),
        }
    }
}
