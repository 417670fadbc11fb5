//! Resolves ids that are shortened to a unique prefix, and suggests names that are similar to an unknown name.
//!
//! Only the command line takes prefixes: it resolves a prefix to the complete id and sends that id. Programs
//! send complete ids, because a prefix that is unique today may match a second id tomorrow.

use std::str::FromStr;

use mainspring_api::request::nearest;
use mainspring_client::{AgentListQuery, IdQuery, SessionListQuery};
use mainspring_core::{ArtifactId, BadId, GrantId, IdKind, IdPrefix, KeyId, MessageId, RunId, SessionId};

use super::connection::Connection;
use super::error::{CliError, Exit};

/// Resolves the id of a run, or a unique prefix of it.
pub(super) async fn find_run(connection: &mut Connection<'_>, text: &str) -> Result<RunId, CliError> {
    find(connection, IdKind::Run, text, None).await
}

/// Resolves the name of a session: returns a key unchanged, and the complete id for an id or a unique prefix.
pub(super) async fn find_session(connection: &mut Connection<'_>, name: &str) -> Result<String, CliError> {
    match name.starts_with("ses_") {
        true => {
            let id: SessionId = find(connection, IdKind::Session, name, None).await?;
            Ok(id.to_string())
        }
        false => Ok(name.to_owned()),
    }
}

/// Resolves the id of a message of the session, or a unique prefix of it.
pub(super) async fn find_message(
    connection: &mut Connection<'_>,
    session: &str,
    text: &str,
) -> Result<MessageId, CliError> {
    find(connection, IdKind::Message, text, Some(session)).await
}

/// Resolves the id of an API key, or a unique prefix of it.
pub(super) async fn find_key(connection: &mut Connection<'_>, text: &str) -> Result<KeyId, CliError> {
    find(connection, IdKind::Key, text, None).await
}

/// Resolves the id of an artifact, or a unique prefix of it.
pub(super) async fn find_artifact(
    connection: &mut Connection<'_>,
    text: &str,
) -> Result<ArtifactId, CliError> {
    find(connection, IdKind::Artifact, text, None).await
}

/// Resolves the id of a grant, or a unique prefix of it.
pub(super) async fn find_grant(connection: &mut Connection<'_>, text: &str) -> Result<GrantId, CliError> {
    find(connection, IdKind::Grant, text, None).await
}

/// Resolves `text`: a complete id, which is not looked up, or a unique prefix of an id.
async fn find<T: FromStr<Err = BadId>>(
    connection: &mut Connection<'_>,
    kind: IdKind,
    text: &str,
    session: Option<&str>,
) -> Result<T, CliError> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let prefix =
        IdPrefix::parse(kind, text).map_err(|bad| CliError::bad_request(bad.to_string()))?.to_string();
    let query = IdQuery { kind, prefix: prefix.clone(), session: session.map(str::to_owned) };
    let found = connection.request(async |client| client.id_find(&query).await).await?;
    only(kind, &prefix, &found.ids)?.parse().map_err(|bad: BadId| CliError::bad_request(bad.to_string()))
}

/// Returns the only id that was found.
fn only<'a>(kind: IdKind, prefix: &str, found: &'a [String]) -> Result<&'a str, CliError> {
    match found {
        [only] => Ok(only),
        [] => Err(CliError::not_found(format!("no {kind} begins with {prefix}"))),
        [one, other, ..] => Err(CliError::bad_request(format!(
            "more than one {kind} begins with {prefix}, such as {one} and {other}; give more of the id"
        ))),
    }
}

/// Adds the most similar session key to the error of a session that does not exist.
pub(super) async fn suggest_session(
    connection: &mut Connection<'_>,
    name: &str,
    error: CliError,
) -> CliError {
    if error.exit != Exit::NotFound || !error.message.contains(name) {
        return error;
    }
    let query = SessionListQuery::default();
    let Ok(page) = connection.request(async |client| client.session_list(&query).await).await else {
        return error;
    };
    let keys: Vec<&str> = page.items.iter().filter_map(|listed| listed.session.key.as_deref()).collect();
    suggest(error, nearest(name, &keys), "session")
}

/// Adds the most similar agent to the error of an agent definition that does not exist.
pub(super) async fn suggest_agent(connection: &mut Connection<'_>, name: &str, error: CliError) -> CliError {
    if error.exit != Exit::NotFound {
        return error;
    }
    let query = AgentListQuery::default();
    let Ok(page) = connection.request(async |client| client.agent_list(&query).await).await else {
        return error;
    };
    let id = name.split('@').next().unwrap_or(name);
    let ids: Vec<&str> = page.items.iter().map(|agent| agent.definition.id.as_str()).collect();
    // Suggest the latest version: if only the version is unknown, the most similar id is the id itself.
    let near = nearest(id, &ids).map(|near| {
        let versions = page.items.iter().filter(|agent| agent.definition.id == near);
        let latest = versions.max_by_key(|agent| agent.definition.version);
        latest.map(|agent| agent.definition.name().to_string()).unwrap_or_default()
    });
    suggest(error, near.as_deref(), "agent")
}

/// Adds the most similar name to an error, or the command that lists all names.
fn suggest(error: CliError, near: Option<&str>, noun: &str) -> CliError {
    let remedy = match near {
        Some(near) => format!("did you mean {near}?"),
        None => format!("`mainspring {noun} list` lists them"),
    };
    CliError { message: format!("{}; {remedy}", error.message), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_must_match_one_id() {
        let [one, other] = ["run_1a", "run_1b"].map(str::to_owned);
        let find = |found: &[String]| {
            only(IdKind::Run, "run_1", found).map(str::to_owned).map_err(|error| error.message)
        };
        assert_eq!(find(std::slice::from_ref(&one)), Ok(one.clone()));
        assert_eq!(find(&[]).unwrap_err(), "no run begins with run_1");
        let ambiguous = find(&[one, other]).unwrap_err();
        assert_eq!(
            ambiguous,
            "more than one run begins with run_1, such as run_1a and run_1b; give more of the id"
        );
    }
}
