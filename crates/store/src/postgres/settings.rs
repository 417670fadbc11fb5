//! Settings that have to be the same on all servers of a cluster: each server announces its own, and compares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Error, Row};

use super::PostgresError;
use super::error::describe;
use super::lease::LocalServer;
use super::values::typed;

/// The settings of a server that have to be the same on all servers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AnnouncedSettings {
    /// Settings that every server must have with the same value: a server whose value differs is refused.
    #[serde(default)]
    pub fixed: BTreeMap<String, String>,
    /// Digests of groups of settings, by the name of the group.
    #[serde(default)]
    pub digests: BTreeMap<String, String>,
}

impl AnnouncedSettings {
    /// Reads settings as another server has announced them; none if that server has an earlier version.
    pub(super) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Lists the groups that differ from those of `other`, by name. A group that one of them does not announce is not
    /// compared.
    fn differences(&self, other: &Self) -> Vec<String> {
        let differs = |(name, digest): (&String, &String)| {
            other.digests.get(name).is_some_and(|theirs| theirs != digest).then(|| name.clone())
        };
        self.digests.iter().filter_map(differs).collect()
    }

    /// Finds a fixed setting whose value differs from that of `other`. Returns its name, and both values.
    fn conflict<'a>(&'a self, other: &'a Self) -> Option<(&'a str, &'a str, &'a str)> {
        let differs = |(name, value): (&'a String, &'a String)| {
            let theirs = other.fixed.get(name).filter(|theirs| *theirs != value)?;
            Some((name.as_str(), value.as_str(), theirs.as_str()))
        };
        self.fixed.iter().find_map(differs)
    }
}

/// A server with its settings.
pub(super) struct Announced {
    pub(super) is_active: bool,
    pub(super) version: String,
    pub(super) settings: AnnouncedSettings,
}

impl Announced {
    /// Reads whether a server is active, its version and its settings from these columns.
    pub(super) fn read(row: &Row, [is_active, version, settings]: [usize; 3]) -> Result<Self, Error> {
        let settings = AnnouncedSettings::read(row.try_get(settings)?);
        Ok(Self { is_active: row.try_get(is_active)?, version: row.try_get(version)?, settings })
    }
}

/// Lists for each server the groups of settings in which it differs from the active one, or from the first one while none is
/// active. Servers of another version are not compared, since they announce other digests.
pub(super) fn differences(servers: &[Announced]) -> Vec<Vec<String>> {
    let reference = servers.iter().find(|server| server.is_active).or(servers.first());
    let differences = |server: &Announced| match reference {
        Some(reference) if reference.version == server.version => {
            server.settings.differences(&reference.settings)
        }
        _ => vec![],
    };
    servers.iter().map(differences).collect()
}

/// Fails if a server that was started earlier has another value of a fixed setting, and then also removes the
/// announcement of this server. Of two servers that start at the same time, the later one fails.
pub(super) async fn check(client: &Client, local: &LocalServer) -> Result<(), PostgresError> {
    let fail = |error: Error| PostgresError::Database(describe(&error));
    let Some(reason) = conflict(client, local).await.map_err(fail)? else { return Ok(()) };
    let sql = "DELETE FROM nodes WHERE node_id = $1";
    client.execute_typed(sql, &typed(&[&local.node.as_bytes().as_slice()])).await.map_err(fail)?;
    Err(PostgresError::Settings(reason))
}

async fn conflict(client: &Client, local: &LocalServer) -> Result<Option<String>, Error> {
    let sql = "SELECT n.name, n.address, n.settings FROM nodes AS n, nodes AS own
               WHERE own.node_id = $1 AND (n.started_at, n.node_id) < (own.started_at, own.node_id)
                 AND (n.seen_at > clock_timestamp() - interval '15 seconds'
                   OR EXISTS (SELECT 1 FROM node_leases AS w
                              WHERE w.node_id = n.node_id AND clock_timestamp() < w.expires_at)
                   OR EXISTS (SELECT 1 FROM server_lease AS l
                              WHERE l.node_id = n.node_id AND clock_timestamp() < l.expires_at))
               ORDER BY n.started_at";
    let node = local.node.as_bytes().as_slice();
    for row in client.query_typed(sql, &typed(&[&node])).await? {
        let (name, address): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
        let theirs = AnnouncedSettings::read(row.try_get(2)?);
        if let Some((setting, value, other)) = local.settings.conflict(&theirs) {
            return Ok(Some(format!(
                "`{setting}` has to be the same on all servers of the cluster, and it is {other} on {name} at {address}, \
                 and {value} on {} at {}: make them equal; to change it, stop all servers first",
                local.name, local.address
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(fixed: &[(&str, &str)], digests: &[(&str, &str)]) -> AnnouncedSettings {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        AnnouncedSettings { fixed: map(fixed), digests: map(digests) }
    }

    #[test]
    fn groups_that_both_servers_announce_are_compared() {
        let one = announced(&[("x", "1")], &[("limits", "a"), ("models", "b"), ("new", "c")]);
        let two = announced(&[("x", "2"), ("y", "1")], &[("limits", "a"), ("models", "d")]);
        assert_eq!(two.differences(&one), ["models"]);
        assert_eq!(two.conflict(&one), Some(("x", "2", "1")));
        assert_eq!(one.conflict(&one), None);
        assert_eq!(AnnouncedSettings::read("{}").differences(&one), Vec::<String>::new());
        let server = |is_active, version: &str, settings: &AnnouncedSettings| Announced {
            is_active,
            version: version.into(),
            settings: settings.clone(),
        };
        let servers = [server(false, "1", &two), server(true, "1", &one), server(false, "2", &two)];
        assert_eq!(differences(&servers), [vec!["models".to_owned()], vec![], vec![]]);
    }
}
