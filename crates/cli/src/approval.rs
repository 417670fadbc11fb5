//! `mainspring approval`

use clap::{Args, Subcommand};
use mainspring_client::RunListQuery;
use mainspring_core::{
    Answer, Approval as Decision, ApprovalAnswer, ApprovalScope, Run, RunStatus, SuppliedResult, Wait,
};

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::follow::follow_run;
use super::ids::find_run;
use super::limits::parse_millis;
use super::output::{self, format_table_time};
use super::run::session_position;

mod request;
pub(crate) use request::{answer_hint, chat_prompt, parse_answer, request_lines};

/// List, show and answer the approvals that agents wait for
#[derive(Subcommand)]
pub(super) enum Approval {
    /// List the runs that wait for an approval, newest first
    List {
        /// Maximum number of approvals to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Show what a run asks for: the call, its input and the changes it would make
    Show {
        /// Run id, or its beginning
        run: String,
    },
    /// Allow the requested action
    Allow {
        #[command(flatten)]
        target: Target,
        /// Also allow the same request again in this session
        #[arg(long)]
        session: bool,
        /// How long the same request is allowed, with ms, s, m or h [default: 8h]
        #[arg(long = "for", value_name = "TIME", value_parser = parse_lifetime, requires = "session")]
        lifetime_ms: Option<i64>,
    },
    /// Deny the requested action
    Deny {
        #[command(flatten)]
        target: Target,
        /// Reason for the agent, if it can take one
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Supply a result instead of running the tool, if the agent can take one
    Supply {
        #[command(flatten)]
        target: Target,
        /// The result
        text: String,
        /// Tell the agent that the call failed
        #[arg(long)]
        error: bool,
    },
}

/// The approval that is answered.
#[derive(Args)]
pub(super) struct Target {
    /// Run id, or its beginning
    run: String,
    /// Follow the run after the answer
    #[arg(long, short)]
    follow: bool,
}

fn parse_lifetime(text: &str) -> Result<i64, String> {
    let millis = parse_millis(text).and_then(|millis| i64::try_from(millis).ok());
    millis.filter(|millis| *millis > 0).ok_or_else(|| "a number with ms, s, m or h, such as 30m".into())
}

impl Approval {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let reads = matches!(self, Self::List { .. } | Self::Show { .. });
        let mut connection = context.connect(if reads { Purpose::Records } else { Purpose::Execute }).await?;
        let outcome = self.dispatch(context, &mut connection).await;
        connection.close().await.and(outcome)
    }

    async fn dispatch(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
    ) -> Result<Exit, CliError> {
        match self {
            Self::List { limit } => list(context, connection, limit).await,
            Self::Show { run } => {
                let (run, wait) = open_approval(connection, &run).await?;
                show(context, &run, &wait)?;
                Ok(Exit::Done)
            }
            Self::Allow { target, session, lifetime_ms } => {
                let scope = if session { ApprovalScope::Session } else { ApprovalScope::Once };
                let allowed = ApprovalAnswer::from(Decision::Allowed);
                target
                    .answer(
                        context,
                        connection,
                        ApprovalAnswer { scope, expires_in_ms: lifetime_ms, ..allowed },
                    )
                    .await
            }
            Self::Deny { target, reason } => {
                let answer = ApprovalAnswer { reason, ..Decision::Denied.into() };
                target.answer(context, connection, answer).await
            }
            Self::Supply { target, text, error } => {
                let result = Some(SuppliedResult { text, is_error: error });
                let answer = ApprovalAnswer { result, ..Decision::Supplied.into() };
                target.answer(context, connection, answer).await
            }
        }
    }
}

impl Target {
    /// Answers the approval. Follows the run if that is asked for, or if this process executes it.
    async fn answer(
        self,
        context: &Context<'_>,
        connection: &mut Connection<'_>,
        answer: ApprovalAnswer,
    ) -> Result<Exit, CliError> {
        let (run, wait) = open_approval(connection, &self.run).await?;
        let position = session_position(connection, run.id).await?;
        let (decision, scope) = (answer.decision, answer.scope);
        let answer = Answer::Approval(answer);
        let answered =
            connection.request(async |client| client.run_answer(run.id, wait.id, &answer).await).await?;
        if self.follow || connection.is_owner() {
            return follow_run(context, connection, &run, position).await;
        }
        if context.output.json {
            context.output.print_json(&answered)?;
            return Ok(Exit::Done);
        }
        let scope_note = match scope {
            ApprovalScope::Once => "",
            ApprovalScope::Session => " for this session; end that with: mainspring grant revoke",
        };
        context.output.print_line(format_args!("{decision}{scope_note} {}", run.id))?;
        Ok(Exit::Done)
    }
}

/// Finds the open approval of a run.
async fn open_approval(connection: &mut Connection<'_>, run: &str) -> Result<(Run, Wait), CliError> {
    let id = find_run(connection, run).await?;
    let run = connection.request(async |client| client.run_get(id).await).await?;
    let wait = run.state.wait().filter(|_| run.state.status() == RunStatus::WaitingApproval).cloned();
    match wait {
        Some(wait) => Ok((run, wait)),
        None => {
            let status = run.state.status();
            let error = CliError::bad_request(format!("{id} is {status} and waits for no approval"));
            Err(CliError { exit: Exit::Refused, code: "not_waiting".into(), ..error })
        }
    }
}

async fn list(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    limit: usize,
) -> Result<Exit, CliError> {
    let status = Some(RunStatus::WaitingApproval);
    let query = RunListQuery { session: None, status, limit: Some(limit), before: None };
    let runs = connection.request(async |client| client.run_list(&query).await).await?.items;
    let output = context.output;
    if output.json {
        runs.iter().try_for_each(|run| output.print_json(run))?;
        return Ok(Exit::Done);
    }
    if runs.is_empty() {
        output.print_note("no run waits for an approval")?;
        return Ok(Exit::Done);
    }
    let count = runs.len();
    let row = |run: &Run| {
        let wait = run.state.wait().filter(|wait| wait.answer.is_none());
        let expires = wait.and_then(|wait| wait.expires_at).map(format_table_time).unwrap_or_default();
        let asked = wait.map(|wait| output::excerpt(&wait.question, 200)).unwrap_or_default();
        vec![run.id.to_string(), run.adapter.clone(), expires, asked]
    };
    output.print_table(&["run", "adapter", "expires", "request"], runs.iter().map(row).collect())?;
    output.print_limit_note(count, limit)?;
    Ok(Exit::Done)
}

fn show(context: &Context<'_>, run: &Run, wait: &Wait) -> Result<(), CliError> {
    let output = context.output;
    if output.json {
        return Ok(output.print_json(wait)?);
    }
    output.print_line(&wait.question)?;
    for line in request_lines(wait) {
        output.print_line(line)?;
    }
    let id = run.id;
    output.print_note(format_args!("answer with: mainspring approval allow {id} (or deny)"))?;
    Ok(())
}
