//! Placement: which server of a cluster becomes the home of a new session.
//!
//! ```text
//! has the labels, has the adapter, reaches the folder ──▶ the server that received the request, unless it has far more
//!                                                     │   sessions
//!                                                     └─▶ else the one with the fewest sessions, ties by name
//! ```
//!
//! A session that has lost its home is placed again by its labels: no server without them ever executes it. Its adapter
//! and folder only decide among the servers that have the labels. A server that drains gets a session only if no other
//! server can take it, and its own sessions move to servers that can execute all of their runs.
//!
//! While servers are upgraded one after the other, an existing session moves only to servers of the latest version: a
//! server of an earlier version may not understand the records that a later version has written.
//!
//! Invariant: the home depends only on the servers, the wish and the server that received the request, not on
//! the order in which the servers are listed.

use std::cmp::Ordering;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{NodeId, Session};

/// The receiving server keeps a new session while it has at most this many times the sessions of the least busy server.
const KEEP_FACTOR: u64 = 2;
/// With at most this many sessions, the receiving server keeps a new session however few the other servers have.
const KEEP_UP_TO: u64 = 8;
/// The maximum number of labels of a session or a server.
const MAX_LABELS: usize = 16;
/// The maximum length of a label in bytes.
const MAX_LABEL_BYTES: usize = 64;

/// The adapters, folders and labels of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offer {
    /// The names of its adapters.
    pub adapters: Vec<String>,
    /// The folders beneath which its agents can work. If empty, they can work in every folder.
    #[serde(default)]
    pub folders: Vec<String>,
    /// The labels that sessions may demand.
    #[serde(default)]
    pub labels: Vec<String>,
}

impl Offer {
    /// True if the server has all of `labels`.
    pub fn has_labels(&self, labels: &[String]) -> bool {
        labels.iter().all(|label| self.labels.contains(label))
    }

    /// True if the server has the labels and the adapter, and reaches the folder.
    pub fn covers(&self, wish: Wish<'_>) -> bool {
        let reaches = |folder: &str| {
            self.folders.is_empty() || self.folders.iter().any(|root| Path::new(folder).starts_with(root))
        };
        self.has_labels(wish.labels)
            && self.adapters.iter().any(|known| known == wish.adapter)
            && wish.folder.is_none_or(reaches)
    }
}

/// The requirements of a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish<'a> {
    /// The adapter of its runs.
    pub adapter: &'a str,
    /// The folder in which its agent works.
    pub folder: Option<&'a str>,
    /// The labels that its server must have.
    pub labels: &'a [String],
}

impl<'a> Wish<'a> {
    /// Returns the requirements of `session`.
    pub fn of(session: &'a Session) -> Self {
        Self { adapter: &session.adapter, folder: session.cwd.as_deref(), labels: &session.labels }
    }
}

/// A server that may become the home of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The id of the process.
    pub node: NodeId,
    /// The name of the server.
    pub name: String,
    /// The adapters, folders and labels of the server.
    pub offer: Offer,
    /// The sessions that it has in memory.
    pub sessions: u64,
    /// True if it hands its sessions over because it is going to stop.
    pub is_draining: bool,
    /// The version of the tables and records that it writes; 0 for a server that does not announce it.
    pub schema_version: u64,
}

/// Lists the servers of the latest version among `servers`.
pub fn of_latest_version(servers: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    let latest = servers.iter().map(|server| server.schema_version).max().unwrap_or(0);
    servers.iter().filter(move |server| server.schema_version == latest)
}

/// True if `servers` has a server of a later version than the server `node`.
pub fn is_of_earlier_version(node: NodeId, servers: &[Candidate]) -> bool {
    let own = servers.iter().find(|server| server.node == node);
    own.is_some_and(|own| servers.iter().any(|server| server.schema_version > own.schema_version))
}

/// Chooses the home of a new session among `servers`, for a request that the server `here` has received. None if no
/// server can execute its runs.
pub fn place(wish: Wish<'_>, here: NodeId, servers: &[Candidate]) -> Option<NodeId> {
    let able = |server: &&Candidate| server.offer.covers(wish);
    let stays = |server: &&Candidate| able(server) && !server.is_draining;
    let Some(least) = servers.iter().filter(stays).min_by(|a, b| by_load(a, b)) else {
        let draining = || servers.iter().filter(able);
        let kept = draining().find(|server| server.node == here);
        return kept.or_else(|| draining().min_by(|a, b| by_load(a, b))).map(|server| server.node);
    };
    let most = least.sessions.saturating_mul(KEEP_FACTOR).max(KEEP_UP_TO);
    let kept = servers.iter().filter(stays).find(|server| server.node == here && server.sessions <= most);
    Some(kept.unwrap_or(least).node)
}

/// Chooses a new home, among the servers of the latest version, for a session that has lost its home. The server `here`
/// takes every session whose labels it has unless it drains, so that parents and their children stay together. None if
/// none of these servers has the labels.
pub fn place_again(wish: Wish<'_>, here: NodeId, servers: &[Candidate]) -> Option<NodeId> {
    let labelled = || of_latest_version(servers).filter(|server| server.offer.has_labels(wish.labels));
    if labelled().any(|server| server.node == here && !server.is_draining) {
        return Some(here);
    }
    let rank = |server: &&Candidate| {
        let is_other = server.node != here;
        (server.is_draining, is_other, !server.offer.covers(wish), server.sessions, server.name.clone())
    };
    labelled().min_by_key(rank).map(|server| server.node)
}

/// Chooses the server to which the server `here` hands a session over: the least busy server of the latest version that
/// can execute all runs of the session and does not drain. None if the session has to stay.
pub fn place_elsewhere(wishes: &[Wish<'_>], here: NodeId, servers: &[Candidate]) -> Option<NodeId> {
    let able = |server: &&Candidate| {
        let covers_all = || wishes.iter().all(|wish| server.offer.covers(*wish));
        server.node != here && !server.is_draining && covers_all()
    };
    of_latest_version(servers).filter(able).min_by(|a, b| by_load(a, b)).map(|server| server.node)
}

/// Orders servers by their sessions, and servers with equally many by name.
fn by_load(a: &Candidate, b: &Candidate) -> Ordering {
    (a.sessions, &a.name).cmp(&(b.sessions, &b.name))
}

/// Explains that no server has all of `labels`, for the caller.
pub fn no_server(labels: &[String], servers: &[Candidate]) -> String {
    let is_unknown =
        |label: &&String| !of_latest_version(servers).any(|server| server.offer.labels.contains(label));
    let unknown: Vec<&String> = labels.iter().filter(is_unknown).collect();
    let quoted = |labels: &[&String]| {
        let quoted: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        quoted.join(", ")
    };
    let why = match unknown.as_slice() {
        [] => format!("no server has all of the labels {}", quoted(&labels.iter().collect::<Vec<_>>())),
        [label] => format!("no server has the label `{label}`"),
        unknown => format!("no server has the labels {}", quoted(unknown)),
    };
    let has = |server: &Candidate| {
        let labels = match server.offer.labels.is_empty() {
            true => "none".to_owned(),
            false => server.offer.labels.join(", "),
        };
        let but = match is_of_earlier_version(server.node, servers) {
            true => " but an earlier version of mainspring",
            false => "",
        };
        format!("{} has {labels}{but}", server.name)
    };
    let has: Vec<String> = servers.iter().map(has).collect();
    format!("{why} that the session needs: {}", has.join("; "))
}

/// Checks the labels of a session or a server.
pub fn check_labels(labels: &[String]) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("{} labels are too many; at most {MAX_LABELS}", labels.len()));
    }
    let is_usable = |label: &str| {
        let mut chars = label.chars();
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && chars.all(|char| char.is_ascii_alphanumeric() || "_.-".contains(char))
    };
    match labels.iter().find(|label| !is_usable(label)) {
        Some(label) => Err(format!(
            "{label:?} is not a label: 1 to {MAX_LABEL_BYTES} letters, digits, `_`, `.` or `-` of ASCII"
        )),
        None => Ok(()),
    }
}

/// Adds the labels of `more` that `labels` does not have.
pub fn merged_labels(labels: &[String], more: &[String]) -> Vec<String> {
    let more = more.iter().filter(|label| !labels.contains(label));
    labels.iter().chain(more).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> NodeId {
        NodeId::from_random([n; 16])
    }

    fn server(n: u8, sessions: u64, adapters: &[&str], folders: &[&str]) -> Candidate {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let offer = Offer { adapters: owned(adapters), folders: owned(folders), labels: vec![] };
        let name = format!("server {n}");
        Candidate { node: node(n), name, offer, sessions, is_draining: false, schema_version: 7 }
    }

    fn wish<'a>(adapter: &'a str, folder: Option<&'a str>) -> Wish<'a> {
        Wish { adapter, folder, labels: &[] }
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
        assert_eq!(placed(wish("coder", Some("/srv/ab"))), None, "/srv/ab is not in the folder /srv/a");
        assert_eq!(placed(wish("coder", None)), Some(node(2)));
        assert_eq!(
            placed(wish("script", Some("/anywhere"))),
            Some(node(1)),
            "a server without a list of folders takes every folder"
        );
        assert_eq!(placed(wish("unknown", None)), None);
        assert_eq!(place(wish("script", None), node(1), &[]), None);
    }

    #[test]
    fn the_server_that_received_the_request_keeps_the_session_unless_it_has_far_more_sessions() {
        let at = |here: u64, others: u64| {
            let servers = [server(1, here, &["script"], &[]), server(2, others, &["script"], &[])];
            place(wish("script", None), node(1), &servers)
        };
        assert_eq!(at(0, 0), Some(node(1)));
        assert_eq!(at(8, 0), Some(node(1)), "a server with few sessions keeps a new one");
        assert_eq!(at(9, 0), Some(node(2)));
        assert_eq!(at(200, 100), Some(node(1)));
        assert_eq!(at(201, 100), Some(node(2)));
    }

    /// A server with labels, which are separated by spaces.
    fn labelled(n: u8, sessions: u64, labels: &str) -> Candidate {
        let mut server = server(n, sessions, &["script"], &[]);
        server.offer.labels = labels.split_whitespace().map(str::to_owned).collect();
        server
    }

    #[test]
    fn a_session_with_labels_goes_to_a_server_that_has_all_of_them() {
        let servers =
            [labelled(1, 0, ""), labelled(2, 5, "gpu eu"), labelled(3, 9, "gpu"), labelled(4, 7, "us")];
        let owned = |labels: &str| labels.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let placed = |labels: &str, adapter| {
            let labels = owned(labels);
            let wish = Wish { adapter, folder: None, labels: &labels };
            (place(wish, node(1), &servers), place_again(wish, node(1), &servers))
        };
        let at = |n| Some(node(n));
        assert_eq!(placed("gpu", "script"), (at(2), at(2)));
        assert_eq!(placed("eu gpu", "script"), (at(2), at(2)));
        assert_eq!(placed("us", "script"), (at(4), at(4)));
        assert_eq!(placed("eu us", "script"), (None, None));
        assert_eq!(placed("", "script"), (at(1), at(1)));
        // An existing session is placed even if no server has its adapter, but never at a server without its labels.
        assert_eq!(placed("us", "coder"), (None, at(4)));
        assert_eq!(placed("", "coder"), (None, at(1)), "the leader takes sessions without labels");
        assert_eq!(placed("tpu", "coder"), (None, None));
        let refused = |labels: &str| no_server(&owned(labels), &servers);
        let have = "server 1 has none; server 2 has gpu, eu; server 3 has gpu; server 4 has us";
        assert_eq!(
            refused("gpu tpu"),
            format!("no server has the label `tpu` that the session needs: {have}")
        );
        assert_eq!(
            refused("eu us"),
            format!("no server has all of the labels `eu`, `us` that the session needs: {have}")
        );
        assert_eq!(
            refused("a b eu"),
            format!("no server has the labels `a`, `b` that the session needs: {have}")
        );
    }

    #[test]
    fn a_server_that_drains_gets_no_session_that_another_one_can_take() {
        let draining = |n, sessions, adapters: &[&str]| {
            let server = server(n, sessions, adapters, &[]);
            Candidate { is_draining: true, ..server }
        };
        let servers = [
            draining(1, 0, &["script", "coder"]),
            server(2, 90, &["script"], &[]),
            draining(3, 0, &["coder"]),
        ];
        let at = |n| Some(node(n));
        let placed = |adapter| {
            let wish = wish(adapter, None);
            (place(wish, node(1), &servers), place_again(wish, node(1), &servers))
        };
        assert_eq!(placed("script"), (at(2), at(2)));
        // Only servers that drain have the adapter. An existing session needs only its labels, and goes to the server
        // that does not drain.
        assert_eq!(placed("coder"), (at(1), at(2)));
        assert_eq!(place(wish("coder", None), node(2), &servers), at(1));
        assert_eq!(
            place_again(wish("coder", None), node(1), &servers[..1]),
            at(1),
            "there is no other server"
        );
    }

    #[test]
    fn a_session_moves_to_the_least_busy_server_that_can_execute_all_of_its_runs() {
        let servers = [
            server(1, 0, &["script", "coder"], &[]),
            server(2, 9, &["script", "coder"], &["/srv"]),
            server(3, 8, &["script"], &[]),
            Candidate { is_draining: true, ..server(4, 0, &["script", "coder"], &[]) },
        ];
        let moved = |wishes: &[Wish<'_>]| place_elsewhere(wishes, node(1), &servers);
        assert_eq!(moved(&[wish("script", None)]), Some(node(3)));
        assert_eq!(moved(&[wish("script", None), wish("coder", None)]), Some(node(2)));
        assert_eq!(moved(&[wish("script", Some("/home")), wish("coder", Some("/srv/a"))]), None);
        assert_eq!(place_elsewhere(&[wish("script", None)], node(1), &servers[..1]), None, "it stays");
    }

    #[test]
    fn a_session_that_exists_moves_only_to_servers_of_the_latest_version() {
        let of_version = |schema_version, server: Candidate| Candidate { schema_version, ..server };
        let servers = [
            of_version(7, server(1, 0, &["script"], &[])),
            of_version(8, server(2, 90, &["script"], &[])),
            of_version(0, labelled(3, 0, "gpu")),
            of_version(8, server(4, 91, &["script", "coder"], &[])),
        ];
        let wish = wish("script", None);
        // The session moves to a later version, however busy that server is, and never to an earlier one.
        assert_eq!(place_elsewhere(&[wish], node(1), &servers), Some(node(2)));
        assert_eq!(place_elsewhere(&[wish], node(2), &servers), Some(node(4)));
        assert_eq!(place_elsewhere(&[wish], node(2), &servers[..3]), None, "it stays");
        assert_eq!(
            place_elsewhere(&[wish], node(3), &servers[..1]),
            Some(node(1)),
            "no other server has a later version than node 1"
        );
        // A server of an earlier version takes no session that has lost its home.
        assert_eq!(place_again(wish, node(1), &servers), Some(node(2)));
        assert_eq!(place_again(wish, node(4), &servers), Some(node(4)));
        let draining = Candidate { is_draining: true, ..servers[1].clone() };
        assert_eq!(place_again(wish, node(1), &[servers[0].clone(), draining]), Some(node(2)));
        let gpu = ["gpu".to_owned()];
        assert_eq!(place_again(Wish { labels: &gpu, ..wish }, node(3), &servers), None);
        assert_eq!(
            no_server(&gpu, &servers[1..3]),
            "no server has the label `gpu` that the session needs: server 2 has none; server 3 has gpu but an earlier \
             version of mainspring"
        );
        // A new session goes to the least busy server, whatever its version.
        assert_eq!(place(wish, node(2), &servers), Some(node(1)));
        let earlier = |n| is_of_earlier_version(node(n), &servers);
        assert_eq!([1, 2, 3, 4, 9].map(earlier), [true, false, true, false, false]);
    }

    #[test]
    fn labels_are_short_names() {
        let check =
            |labels: &[&str]| check_labels(&labels.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&["gpu", "eu-west-1", "a_b.c", &"x".repeat(64)]), Ok(()));
        for wrong in ["", "a b", "ä", "a,b", &"x".repeat(65)] {
            assert!(check(&["ok", wrong]).is_err(), "{wrong:?}");
        }
        assert!(check(&["a"; 16]).is_ok() && check(&["a"; 17]).is_err());
        let merged = merged_labels(&["a".into(), "b".into()], &["b".into(), "c".into()]);
        assert_eq!(merged, ["a", "b", "c"]);
    }

    #[test]
    fn ties_are_decided_by_name_and_not_by_the_order_of_the_list() {
        let mut servers = [server(3, 5, &["a"], &[]), server(2, 5, &["a"], &[]), server(4, 6, &["a"], &[])];
        assert_eq!(place(wish("a", None), node(9), &servers), Some(node(2)));
        servers.reverse();
        assert_eq!(place(wish("a", None), node(9), &servers), Some(node(2)));
    }
}
