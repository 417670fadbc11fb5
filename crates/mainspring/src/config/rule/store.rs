//! The rules of settings that hold the URL of a PostgreSQL database or the name of a server.

use super::{Input, Rule, Value};

/// A rule that accepts the URL of a PostgreSQL database, or an empty text for none.
pub(in super::super) struct StoreUrl {
    /// The meaning of an empty text.
    empty: &'static str,
}

/// Allows the URL of a PostgreSQL database or nothing.
pub(in super::super) const fn store_url() -> StoreUrl {
    StoreUrl { empty: "SQLite" }
}

/// Allows another URL of the database of `store` or nothing.
pub(in super::super) const fn listen_url() -> StoreUrl {
    StoreUrl { empty: "that of `store`" }
}

impl Rule<Option<String>> for StoreUrl {
    fn read(&self, input: &Input<'_>) -> Result<Option<String>, String> {
        match input.text().ok_or_else(|| self.allowed())? {
            "" => Ok(None),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Some(url.to_owned()))
            }
            _ => Err(self.allowed()),
        }
    }

    fn show(&self, value: &Option<String>) -> Value {
        Value::Text(value.as_deref().map(without_password).unwrap_or_default())
    }

    fn allowed(&self) -> String {
        format!("an address such as postgres://user@host/database, or empty for {}", self.empty)
    }
}

/// A rule that accepts the name of a server, or an empty text for none.
pub(in super::super) struct ServerName;

/// Allows the name of a server or nothing.
pub(in super::super) const fn server_name() -> ServerName {
    ServerName
}

impl Rule<Option<String>> for ServerName {
    fn read(&self, input: &Input<'_>) -> Result<Option<String>, String> {
        let is_usable = |text: &str| text.len() <= 128 && !text.chars().any(char::is_control);
        match input.text().ok_or_else(|| self.allowed())? {
            "" => Ok(None),
            text if is_usable(text) => Ok(Some(text.to_owned())),
            _ => Err(self.allowed()),
        }
    }

    fn show(&self, value: &Option<String>) -> Value {
        Value::Text(value.clone().unwrap_or_default())
    }

    fn allowed(&self) -> String {
        "a name of at most 128 bytes without control characters, or empty for none".to_owned()
    }
}

/// Replaces the passwords in the URL of a database by `***`, and all of it if it is not clear where a password ends.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "***".to_owned() };
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if tail.contains('@') {
        // The database's client interprets everything before the first `@` as the user and the password.
        return format!("{scheme}://***");
    }
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => authority.to_owned(),
    };
    let tail = match tail.split_once('?') {
        Some((path, query)) => {
            let hide = |param: &str| match param.starts_with("password=") {
                true => "password=***".to_owned(),
                false => param.to_owned(),
            };
            format!("{path}?{}", query.split('&').map(hide).collect::<Vec<_>>().join("&"))
        }
        None => tail.to_owned(),
    };
    format!("{scheme}://{authority}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_address_has_no_password() {
        for (url, shown) in [
            (
                "postgres://ada:se:cr@et@db:5432/main?sslmode=require",
                "postgres://ada:***@db:5432/main?sslmode=require",
            ),
            ("postgres://ada@db/main", "postgres://ada@db/main"),
            ("postgresql:///main?host=/run&password=secret", "postgresql:///main?host=/run&password=***"),
            ("postgres://db", "postgres://db"),
            ("postgres://ada:se/cr?et@db/main", "postgres://***"),
            ("postgres:///main?password=se@cret&user=b", "postgres://***"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
