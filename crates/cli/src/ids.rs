//! Ids may be shortened to a unique prefix, and unknown names get a suggestion.

use std::fmt::Display;
use std::str::FromStr;

use mainspring_api::request::nearest;
use mainspring_client::{KeyListQuery, RunListQuery, SessionListQuery};
use mainspring_core::{BadId, KeyId, MessageId, RunId, SessionId};

use super::connection::Connection;
use super::error::{CliError, Exit};
use super::tree::fetch_tree;

/// Finds the run of an id or of the unique beginning of one.
pub(super) async fn find_run(connection: &mut Connection<'_>, text: &str) -> Result<RunId, CliError> {
    let Some(mut matches) = Matches::new("run", "run_", text)? else { return parse(text) };
    let mut query = RunListQuery::default();
    loop {
        let page = connection.request(async |client| client.run_list(&query).await).await?;
        page.items.iter().for_each(|run| matches.add(run.id));
        query.before = page.next;
        if query.before.is_none() || matches.is_ambiguous() {
            return matches.only();
        }
    }
}

/// Returns the name of a session: a key as it is, or the id of the unique beginning of one.
pub(super) async fn find_session(connection: &mut Connection<'_>, name: &str) -> Result<String, CliError> {
    if !name.starts_with("ses_") {
        return Ok(name.to_owned());
    }
    let Some(mut matches) = Matches::<SessionId>::new("session", "ses_", name)? else {
        return Ok(name.to_owned());
    };
    let mut query = SessionListQuery::default();
    loop {
        let page = connection.request(async |client| client.session_list(&query).await).await?;
        page.items.iter().for_each(|listed| matches.add(listed.session.id));
        query.before = page.next;
        if query.before.is_none() || matches.is_ambiguous() {
            return matches.only().map(|id| id.to_string());
        }
    }
}

/// Finds the message of a session by its id or the unique beginning of one.
pub(super) async fn find_message(
    connection: &mut Connection<'_>,
    session: &str,
    text: &str,
) -> Result<MessageId, CliError> {
    let Some(mut matches) = Matches::new("message", "msg_", text)? else { return parse(text) };
    fetch_tree(connection, session).await?.iter().for_each(|node| matches.add(node.message.id));
    matches.only()
}

/// Finds the API key of an id or of the unique beginning of one.
pub(super) async fn find_key(connection: &mut Connection<'_>, text: &str) -> Result<KeyId, CliError> {
    let Some(mut matches) = Matches::new("key", "key_", text)? else { return parse(text) };
    let mut query = KeyListQuery::default();
    loop {
        let page = connection.request(async |client| client.key_list(&query).await).await?;
        page.items.iter().for_each(|key| matches.add(key.id));
        query.before = page.next;
        if query.before.is_none() || matches.is_ambiguous() {
            return matches.only();
        }
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
    match nearest(name, &keys) {
        Some(near) => CliError { message: format!("{}; did you mean {near}?", error.message), ..error },
        None => {
            CliError { message: format!("{}; `mainspring session list` lists them", error.message), ..error }
        }
    }
}

fn parse<T: FromStr<Err = BadId>>(text: &str) -> Result<T, CliError> {
    text.parse().map_err(|bad: BadId| CliError::bad_request(bad.to_string()))
}

/// The ids that begin with a prefix.
struct Matches<T> {
    what: &'static str,
    prefix: String,
    found: Vec<T>,
}

impl<T: FromStr<Err = BadId> + Display + Copy + PartialEq> Matches<T> {
    /// Begins a search for ids that begin with `text`, with or without `kind`. None if `text` is a whole id.
    fn new(what: &'static str, kind: &str, text: &str) -> Result<Option<Self>, CliError> {
        if text.parse::<T>().is_ok() {
            return Ok(None);
        }
        let digits = text.strip_prefix(kind).unwrap_or(text);
        let is_prefix =
            (1..32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_prefix {
            true => {
                Ok(Some(Self { what, prefix: format!("{kind}{}", digits.to_lowercase()), found: vec![] }))
            }
            false => parse::<T>(text).map(|_| None),
        }
    }

    fn add(&mut self, id: T) {
        if id.to_string().starts_with(&self.prefix) && !self.found.contains(&id) {
            self.found.push(id);
        }
    }

    fn is_ambiguous(&self) -> bool {
        self.found.len() > 1
    }

    fn only(self) -> Result<T, CliError> {
        let Self { what, prefix, found } = self;
        match found.as_slice() {
            [only] => Ok(*only),
            [] => Err(CliError {
                exit: Exit::NotFound,
                code: "not_found".into(),
                message: format!("no {what} begins with {prefix}"),
                retryable: false,
            }),
            [one, other, ..] => Err(CliError::bad_request(format!(
                "more than one {what} begins with {prefix}, such as {one} and {other}; give more of the id"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, ids: &[&str]) -> Result<String, String> {
        match Matches::<RunId>::new("run", "run_", text).map_err(|error| error.message)? {
            None => Ok(text.to_owned()),
            Some(mut matches) => {
                ids.iter().for_each(|id| matches.add(id.parse().unwrap()));
                matches.only().map(|id| id.to_string()).map_err(|error| error.message)
            }
        }
    }

    #[test]
    fn a_prefix_must_match_one_id() {
        let one = "run_1a000000000040008000000000000001";
        let other = "run_1b000000000040008000000000000002";
        let ids = [one, other, one];
        for text in ["run_1a", "1a", "1A0", one] {
            assert_eq!(find(text, &ids).as_deref(), Ok(one), "{text}");
        }
        assert!(find("run_1", &ids).unwrap_err().starts_with("more than one run begins with run_1"));
        assert_eq!(find("run_2", &ids).unwrap_err(), "no run begins with run_2");
        assert!(find("run_xyz", &ids).is_err());
        assert!(find("", &ids).is_err());
    }
}
