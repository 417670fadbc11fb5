//! `mainspring run answer`

use clap::Args;
use mainspring_core::{Answer, Approval, ClientResult, ResultStatus};
use serde_json::Value;

use super::session_position;
use crate::Context;
use crate::connection::Connection;
use crate::error::{CliError, Exit};
use crate::follow::{follow_run, print_wait};
use crate::ids::find_run;

#[derive(Args)]
pub(crate) struct AnswerArgs {
    /// Run id, or its beginning
    run: String,
    /// Text of the answer
    #[arg(
        required_unless_present_any = ["allow", "deny", "tool_result", "tool_error", "tool_decline"],
        conflicts_with_all = ["allow", "deny", "tool_result", "tool_error", "tool_decline"]
    )]
    text: Vec<String>,
    /// Approve the requested action
    #[arg(long, conflicts_with = "deny")]
    allow: bool,
    /// Deny the requested action
    #[arg(long)]
    deny: bool,
    /// Result of a call of a client tool; may be repeated
    #[arg(long, value_name = "ID=TEXT", value_parser = parse_result, conflicts_with_all = ["allow", "deny"])]
    tool_result: Vec<(String, String)>,
    /// Error of a call of a client tool; may be repeated
    #[arg(long, value_name = "ID=TEXT", value_parser = parse_result, conflicts_with_all = ["allow", "deny"])]
    tool_error: Vec<(String, String)>,
    /// Decline a call of a client tool; may be repeated
    #[arg(long, value_name = "ID", conflicts_with_all = ["allow", "deny"])]
    tool_decline: Vec<String>,
}

fn parse_result(text: &str) -> Result<(String, String), String> {
    let (id, text) = text.split_once('=').ok_or("expected ID=TEXT, with the id of the call")?;
    Ok((id.to_owned(), text.to_owned()))
}

impl AnswerArgs {
    /// Answers the run and follows it.
    pub(super) async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<Exit, CliError> {
        let (run, output) = (find_run(connection, &self.run).await?, context.output);
        let waiting = connection.request(async |client| client.run_get(run).await).await?;
        let Some(wait) = waiting.state.wait().map(|wait| wait.id) else {
            let status = waiting.state.status();
            let error = CliError::bad_request(format!("{run} is {status} and does not wait for an answer"));
            return Err(CliError { exit: Exit::Refused, code: "not_waiting".into(), ..error });
        };
        let answer = self.answer()?;
        let position = session_position(connection, run).await?;
        let answered = connection.request(async |client| client.run_answer(run, wait, &answer).await).await?;
        let Some(open) = answered.state.wait().filter(|open| open.answer.is_none()) else {
            return follow_run(context, connection, &waiting, position).await;
        };
        match output.json {
            true => output.print_json(&answered)?,
            false => print_wait(context, run, open)?,
        }
        Ok(Exit::Waiting)
    }

    fn answer(self) -> Result<Answer, CliError> {
        let text = self.text.join(" ");
        let succeeded = self.tool_result.into_iter().map(|result| (result, ResultStatus::Success));
        let failed = self.tool_error.into_iter().map(|result| (result, ResultStatus::Error));
        let declined = self.tool_decline.into_iter().map(|id| ((id, String::new()), ResultStatus::Declined));
        let results: Vec<ClientResult> = succeeded
            .chain(failed)
            .chain(declined)
            .map(|((tool_use_id, text), status)| ClientResult {
                tool_use_id,
                content: Value::String(text),
                status: Some(status),
                ..ClientResult::default()
            })
            .collect();
        match (self.allow, self.deny) {
            _ if !text.is_empty() => Ok(Answer::Input { input: Value::String(text) }),
            _ if !results.is_empty() => Ok(Answer::Tools { results }),
            (true, _) => Ok(Approval::Allowed.into()),
            (_, true) => Ok(Approval::Denied.into()),
            (false, false) => Err(CliError::bad_request("an answer must not be empty")),
        }
    }
}
