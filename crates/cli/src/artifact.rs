//! `mainspring artifact`

use std::path::{Path, PathBuf};

use clap::Subcommand;
use mainspring_client::{ArtifactListQuery, ArtifactQuery};
use mainspring_core::{Artifact as Stored, ArtifactId, ArtifactRole};
use mainspring_kernel::ids::Ids;

use super::Context;
use super::connection::{Connection, Purpose};
use super::error::{CliError, Exit};
use super::file::{read_file, write_stream};
use super::ids::{find_artifact, find_run, find_session};
use super::output::format_table_time;

/// List, get and put artifacts: files that runs use and produce
#[derive(Subcommand)]
pub(super) enum Artifact {
    /// List the artifacts of a session or a run, newest first
    List {
        /// Session key, or id (ses_…) or its beginning
        #[arg(required_unless_present = "run")]
        session: Option<String>,
        /// List only the artifacts of this run (id or its beginning)
        #[arg(long, short, value_name = "RUN", conflicts_with = "session")]
        run: Option<String>,
        /// Maximum number of artifacts to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: usize,
    },
    /// Write the bytes of an artifact to a file or to standard output; --json prints its description
    Get {
        /// Artifact id, or its beginning
        artifact: String,
        /// File to write [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Store a file as an artifact of a session
    Put {
        /// Session key, or id (ses_…) or its beginning
        session: String,
        /// File to store; - reads standard input
        file: PathBuf,
        /// Name to show [default: the name of the file]
        #[arg(long)]
        name: Option<String>,
        /// Kind, for example patch [default: file]
        #[arg(long)]
        kind: Option<String>,
        /// Purpose: input, result, checkpoint, tool_output, log or other [default: input]
        #[arg(long, value_parser = role)]
        role: Option<ArtifactRole>,
        /// Media type [default: recognized by the content]
        #[arg(long, value_name = "TYPE")]
        media_type: Option<String>,
        /// Further facts, as a JSON object
        #[arg(long, value_name = "JSON")]
        metadata: Option<String>,
        /// Run of the session that the artifact belongs to (id or its beginning)
        #[arg(long, short, value_name = "RUN")]
        run: Option<String>,
    },
}

fn role(name: &str) -> Result<ArtifactRole, String> {
    let unknown = || "use input, result, checkpoint, tool_output, log or other".to_owned();
    ArtifactRole::from_name(name).ok_or_else(unknown)
}

impl Artifact {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let work = async |connection: &mut Connection<'_>| self.dispatch(context, connection).await;
        context.with_connection(Purpose::Records, work).await.map(|()| Exit::Done)
    }

    async fn dispatch(self, context: &Context<'_>, connection: &mut Connection<'_>) -> Result<(), CliError> {
        match self {
            Self::List { session, run, limit } => {
                list(context, connection, session.as_deref(), run.as_deref(), limit).await
            }
            Self::Get { artifact, output } => {
                let artifact = find_artifact(connection, &artifact).await?;
                get(context, connection, artifact, output.as_deref()).await
            }
            Self::Put { session, file, name, kind, role, media_type, metadata, run } => {
                let session = find_session(connection, &session).await?;
                let run = match run {
                    Some(run) => Some(find_run(connection, &run).await?),
                    None => None,
                };
                let name = name.or_else(|| Some(file.file_name()?.to_str()?.to_owned()));
                let name = name.filter(|name| name != "-");
                let query = ArtifactQuery { name, kind, role, metadata, run };
                // The same key in a request that is repeated after a takeover gives the same artifact.
                let (bytes, key) = (read_file(&file)?, Ids::system().event().to_string());
                let put = async |client: &mainspring_client::Client| {
                    let media_type = media_type.as_deref();
                    client.artifact_put(&session, &query, media_type, bytes.clone(), &key).await
                };
                let artifact = connection.request(put).await?;
                match context.output.json {
                    true => Ok(context.output.print_json(&artifact)?),
                    false => Ok(context.output.print_line(artifact.id)?),
                }
            }
        }
    }
}

async fn list(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: Option<&str>,
    run: Option<&str>,
    limit: usize,
) -> Result<(), CliError> {
    let query = ArtifactListQuery { limit: Some(limit), before: None };
    let page = match run {
        Some(run) => {
            let run = find_run(connection, run).await?;
            connection.request(async |client| client.run_artifacts(run, &query).await).await?
        }
        None => {
            let session = find_session(connection, session.unwrap_or_default()).await?;
            connection.request(async |client| client.session_artifacts(&session, &query).await).await?
        }
    };
    let output = context.output;
    output.print_damaged(&page.damaged)?;
    if output.json {
        return Ok(page.items.iter().try_for_each(|artifact| output.print_json(artifact))?);
    }
    if page.items.is_empty() {
        return Ok(output.print_note("there are no artifacts")?);
    }
    let row = |artifact: &Stored| {
        let size = artifact.size_bytes.map_or_else(String::new, |size| size.to_string());
        vec![
            artifact.id.to_string(),
            format_table_time(artifact.created_at),
            artifact.kind.clone(),
            artifact.role.to_string(),
            size,
            artifact.mime_type.clone().unwrap_or_default(),
            artifact.name.clone().unwrap_or_default(),
        ]
    };
    let headings = ["artifact", "created", "kind", "role", "bytes", "media type", "name"];
    output.print_table(&headings, page.items.iter().map(row).collect())?;
    Ok(output.print_limit_note(page.items.len(), limit)?)
}

/// Writes the bytes of an artifact.
async fn get(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    artifact: ArtifactId,
    file: Option<&Path>,
) -> Result<(), CliError> {
    let output = context.output;
    if output.json {
        let about = connection.request(async |client| client.artifact_get(artifact).await).await?;
        output.print_json(&about)?;
        if file.is_none() {
            return Ok(());
        }
    }
    let stream = connection.request(async |client| client.artifact_content(artifact, None).await).await?;
    write_stream(output, file, stream).await
}
