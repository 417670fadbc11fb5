//! Placement: which server of a cluster becomes the home of a new session.
//!
//! ```text
//! has the adapter, reaches the folder ──▶ the server that received the request, unless it has far more sessions
//!                                     └─▶ else the one with the fewest sessions, ties by name
//! ```
//!
//! Invariant: the same servers and the same wish give the same home, whichever server decides.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// How many times as many sessions as the least busy server the receiving server may have and still keep a new one.
const KEEP_FACTOR: u64 = 2;
/// Below this number of sessions, the receiving server keeps a new one whatever the others have.
const KEEP_BELOW: u64 = 8;

/// The adapters and folders of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offer {
    /// The names of its adapters.
    pub adapters: Vec<String>,
    /// The folders beneath which its agents can work; none for every folder.
    #[serde(default)]
    pub folders: Vec<String>,
}

impl Offer {
    /// True if the server has the adapter and reaches the folder.
    pub fn covers(&self, wish: Wish<'_>) -> bool {
        let reaches = |folder: &str| {
            self.folders.is_empty() || self.folders.iter().any(|root| Path::new(folder).starts_with(root))
        };
        self.adapters.iter().any(|known| known == wish.adapter) && wish.folder.is_none_or(reaches)
    }
}

/// The requirements of a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish<'a> {
    /// The adapter of its runs.
    pub adapter: &'a str,
    /// The folder in which its agent works.
    pub folder: Option<&'a str>,
}

/// A server that may become the home of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The id of the process.
    pub node: NodeId,
    /// The name of the server.
    pub name: String,
    /// The adapters and folders of the server.
    pub offer: Offer,
    /// The sessions that it has in memory.
    pub sessions: u64,
}

/// Chooses the home of a new session among `servers`, for a request that the server `here` has received. None if no server
/// can execute it.
pub fn place(wish: Wish<'_>, here: NodeId, servers: &[Candidate]) -> Option<NodeId> {
    let able = || servers.iter().filter(|server| server.offer.covers(wish));
    let least = able().min_by(|a, b| (a.sessions, &a.name).cmp(&(b.sessions, &b.name)))?;
    let most = least.sessions.saturating_mul(KEEP_FACTOR).max(KEEP_BELOW);
    let kept = able().find(|server| server.node == here && server.sessions <= most);
    Some(kept.unwrap_or(least).node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_random([n; 16])
    }

    fn server(n: u8, sessions: u64, adapters: &[&str], folders: &[&str]) -> Candidate {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let offer = Offer { adapters: owned(adapters), folders: owned(folders) };
        Candidate { node: node(n), name: format!("server {n}"), offer, sessions }
    }

    fn wish<'a>(adapter: &'a str, folder: Option<&'a str>) -> Wish<'a> {
        Wish { adapter, folder }
    }

    #[test]
    fn a_session_goes_to_a_server_that_has_its_adapter_and_its_folder() {
        let servers = [
            server(1, 0, &["script"], &[]),
            server(2, 0, &["script", "coder"], &["/srv/a"]),
            server(3, 0, &["coder"], &["/srv/b", "/home"]),
        ];
        let placed = |wanted| place(wanted, node(1), &servers);
        assert_eq!(placed(wish("coder", Some("/srv/a/project"))), Some(node(2)));
        assert_eq!(placed(wish("coder", Some("/srv/b"))), Some(node(3)));
        assert_eq!(placed(wish("coder", Some("/srv/ab"))), None, "a folder is not a prefix of its name");
        assert_eq!(placed(wish("coder", None)), Some(node(2)));
        assert_eq!(placed(wish("script", Some("/anywhere"))), Some(node(1)), "no folders mean all of them");
        assert_eq!(placed(wish("unknown", None)), None);
        assert_eq!(place(wish("script", None), node(1), &[]), None);
    }

    #[test]
    fn the_server_that_received_the_request_keeps_it_unless_it_has_far_more_to_do() {
        let at = |here: u64, others: u64| {
            let servers = [server(1, here, &["script"], &[]), server(2, others, &["script"], &[])];
            place(wish("script", None), node(1), &servers)
        };
        assert_eq!(at(0, 0), Some(node(1)));
        assert_eq!(at(8, 0), Some(node(1)), "few sessions are kept together with their server");
        assert_eq!(at(9, 0), Some(node(2)));
        assert_eq!(at(200, 100), Some(node(1)));
        assert_eq!(at(201, 100), Some(node(2)));
    }

    #[test]
    fn ties_are_decided_by_name_and_not_by_the_order_of_the_list() {
        let mut servers = [server(3, 5, &["a"], &[]), server(2, 5, &["a"], &[]), server(4, 6, &["a"], &[])];
        assert_eq!(place(wish("a", None), node(9), &servers), Some(node(2)));
        servers.reverse();
        assert_eq!(place(wish("a", None), node(9), &servers), Some(node(2)));
    }
}
