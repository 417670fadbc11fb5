//! Open connections: their number is limited, and the ones that do nothing make room for new ones.
//!
//! ```text
//! accepted ─▶ idle ──request──▶ busy ──response──▶ answering ──sent──▶ idle
//! ```
//!
//! At the limit, a new connection takes the place of the connection that has been idle longest. An idle connection has
//! sent no request yet, or is between two requests. If no connection is idle, the new one takes the place of the
//! connection whose response has made no progress for longest, because its client does not read. At the limit of its
//! address, a new connection takes only the place of an idle connection of that address. A request that is handled is
//! never interrupted. A client whose connection was dropped connects again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use mainspring_api::AuditOrigin;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::HttpLimits;

/// The open connections of all sockets of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: HttpLimits,
    dropped: AtomicU64,
    /// The moment of the last new connection. Outside the table: every frame of a stream reads it, without the lock.
    last_opened: AtomicU64,
    table: Mutex<Table>,
}

impl From<HttpLimits> for Connections {
    fn from(limits: HttpLimits) -> Self {
        Self(Arc::new(Shared {
            limits,
            dropped: AtomicU64::new(0),
            last_opened: AtomicU64::new(0),
            table: Mutex::default(),
        }))
    }
}

/// The address of a peer.
pub trait Peer {
    /// The address whose connections are counted together; none if it stands for many clients or for this machine.
    fn counted(&self) -> Option<IpAddr>;
}

impl Peer for SocketAddr {
    fn counted(&self) -> Option<IpAddr> {
        let ip = self.ip().to_canonical();
        match ip {
            // The peer is a proxy on this machine, or a user of this machine.
            _ if ip.is_loopback() => None,
            IpAddr::V4(_) => Some(ip),
            // One client usually has a whole /64 network of addresses.
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Some(IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
            }
        }
    }
}

impl Peer for AuditOrigin {
    fn counted(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp { address } => address.counted(),
            Self::Unix { .. } | Self::Inside {} => None,
        }
    }
}

/// The open connections, ordered by when they last did something. Moments are numbers that count up.
#[derive(Debug, Default)]
struct Table {
    last_moment: u64,
    open: HashMap<u64, Open>,
    idle: BTreeMap<u64, u64>,
    /// Connections with an unfinished response, by the last known moment of its progress.
    answering: BTreeSet<(u64, u64)>,
    addresses: HashMap<IpAddr, AddressConnections>,
}

#[derive(Debug)]
struct Open {
    state: State,
    address: Option<IpAddr>,
    closing: CancellationToken,
    progress: Arc<AtomicU64>,
}

/// The activity of a connection, and the moment at which it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle(u64),
    Busy,
    Answering(u64),
}

#[derive(Debug, Default)]
struct AddressConnections {
    open: usize,
    idle: BTreeSet<u64>,
}

/// One open connection. Dropping it removes it from the table.
#[derive(Debug)]
pub(super) struct Connection {
    connections: Connections,
    id: u64,
    /// Cancelled when the connection has to make room.
    pub(super) closing: CancellationToken,
    /// The moment of the last progress of its response.
    progress: Arc<AtomicU64>,
}

impl Connections {
    /// Adds a connection of `address`. Returns `None` if there is no room, and no connection can make room.
    pub(super) fn open(&self, address: Option<IpAddr>) -> Option<Connection> {
        let mut table = self.0.table.lock();
        let HttpLimits { connections, connections_per_address, .. } = self.0.limits;
        let of_address = address.and_then(|address| table.addresses.get(&address));
        let is_address_full = of_address.is_some_and(|known| known.open >= connections_per_address);
        if is_address_full || table.open.len() >= connections {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            let of_address = of_address.and_then(|known| table.idle.get(known.idle.first()?)).copied();
            let oldest = match is_address_full {
                true => of_address,
                false => table.idle.first_key_value().map(|(_, id)| *id).or_else(|| table.oldest_response()),
            };
            let dropped = oldest.and_then(|oldest| table.remove(oldest))?;
            dropped.closing.cancel();
        }
        let open = table.insert(address);
        self.0.last_opened.store(table.last_moment, Ordering::Relaxed);
        let (id, closing, progress) = open;
        Some(Connection { connections: self.clone(), id, closing, progress })
    }

    pub(super) fn limits(&self) -> &HttpLimits {
        &self.0.limits
    }

    /// The number of open connections.
    pub(super) fn count(&self) -> usize {
        self.0.table.lock().open.len()
    }

    /// The number of connections that made room for others, or found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Notes that a request is being handled.
    pub(super) fn busy(&self) {
        self.connections.0.table.lock().set(self.id, |_| State::Busy);
    }

    /// Notes that a response begins.
    fn answering(&self) {
        self.connections.0.table.lock().set(self.id, State::Answering);
    }

    /// Notes that the response has made progress.
    fn progress(&self) {
        self.progress.store(self.connections.0.last_opened.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Notes that the connection waits for its next request.
    fn idle(&self) {
        self.connections.0.table.lock().set(self.id, State::Idle);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.0.table.lock().remove(self.id);
    }
}

impl Table {
    fn insert(&mut self, address: Option<IpAddr>) -> (u64, CancellationToken, Arc<AtomicU64>) {
        self.last_moment += 1;
        let (id, closing, progress) =
            (self.last_moment, CancellationToken::new(), Arc::<AtomicU64>::default());
        if let Some(address) = address {
            self.addresses.entry(address).or_default().open += 1;
        }
        let (state, close) = (State::Busy, closing.clone());
        self.open.insert(id, Open { state, address, closing: close, progress: progress.clone() });
        self.set(id, State::Idle);
        (id, closing, progress)
    }

    /// The connection whose response has made no progress for longest.
    fn oldest_response(&mut self) -> Option<u64> {
        loop {
            let (last_progress, id) = *self.answering.first()?;
            let open = self.open.get_mut(&id)?;
            let progress = open.progress.load(Ordering::Relaxed);
            if progress <= last_progress {
                return Some(id);
            }
            open.state = State::Answering(progress);
            self.answering.remove(&(last_progress, id));
            self.answering.insert((progress, id));
        }
    }

    /// Changes the state of a connection as of now. Does nothing if the connection has been dropped.
    fn set(&mut self, id: u64, state: impl FnOnce(u64) -> State) {
        self.last_moment += 1;
        let moment = self.last_moment;
        let Some(open) = self.open.get_mut(&id) else { return };
        let (before, now) = (open.state, state(moment));
        open.state = now;
        let address = open.address;
        self.unindex(id, before, address);
        match now {
            State::Idle(moment) => {
                self.idle.insert(moment, id);
                if let Some(known) = address.and_then(|address| self.addresses.get_mut(&address)) {
                    known.idle.insert(moment);
                }
            }
            State::Answering(moment) => drop(self.answering.insert((moment, id))),
            State::Busy => {}
        }
    }

    /// Removes a connection from the collections of connections in `state`.
    fn unindex(&mut self, id: u64, state: State, address: Option<IpAddr>) {
        match state {
            State::Idle(moment) => {
                self.idle.remove(&moment);
                if let Some(known) = address.and_then(|address| self.addresses.get_mut(&address)) {
                    known.idle.remove(&moment);
                }
            }
            State::Answering(moment) => drop(self.answering.remove(&(moment, id))),
            State::Busy => {}
        }
    }

    fn remove(&mut self, id: u64) -> Option<Open> {
        let open = self.open.remove(&id)?;
        self.unindex(id, open.state, open.address);
        if let Some(address) = open.address
            && let Some(known) = self.addresses.get_mut(&address)
        {
            known.open -= 1;
            if known.open == 0 {
                self.addresses.remove(&address);
            }
        }
        Some(open)
    }
}

/// The body of a response, which reports its progress to the connection.
pub(super) struct AnswerBody {
    body: Body,
    connection: Arc<Connection>,
}

impl AnswerBody {
    pub(super) fn new(body: Body, connection: Arc<Connection>) -> Self {
        connection.answering();
        Self { body, connection }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.connection.idle();
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(Some(_))) {
            self.connection.progress();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(connections: usize, connections_per_address: usize) -> Connections {
        HttpLimits { connections, connections_per_address, ..HttpLimits::default() }.into()
    }

    #[test]
    fn the_oldest_idle_connection_makes_room_and_a_busy_one_never_does() {
        let connections = table(3, 9);
        let [a, b, c] = [(); 3].map(|()| connections.open(None).unwrap());
        a.busy();
        b.busy();
        b.idle();
        let d = connections.open(None).unwrap();
        assert_eq!([&a, &b, &c, &d].map(|one| one.closing.is_cancelled()), [false, false, true, false]);
        b.answering();
        d.answering();
        a.answering();
        let other = connections.open(None);
        assert!(other.is_some() && b.closing.is_cancelled(), "without progress the oldest one makes room");
        drop(other);
        let b = connections.open(None).unwrap();
        b.answering();
        // The response of d is older than that of a, but its client reads it.
        d.progress();
        let e = connections.open(None).unwrap();
        assert!(
            a.closing.is_cancelled() && !d.closing.is_cancelled(),
            "without an idle connection, a response that nobody reads makes room"
        );
        [&b, &d, &e].into_iter().for_each(Connection::busy);
        assert!(connections.open(None).is_none());
        assert_eq!((connections.count(), connections.dropped()), (3, 4));
        drop((a, b, c, d, e));
        assert_eq!(connections.count(), 0);
        let table = connections.0.table.lock();
        assert!(table.idle.is_empty() && table.answering.is_empty() && table.addresses.is_empty());
    }

    #[test]
    fn an_address_has_a_limit_of_its_own() {
        let connections = table(9, 2);
        let address = |text: &str| text.parse::<SocketAddr>().unwrap().counted();
        let one = connections.open(address("10.0.0.1:1")).unwrap();
        let two = connections.open(address("10.0.0.1:2")).unwrap();
        let other = connections.open(address("10.0.0.2:1")).unwrap();
        let three = connections.open(address("[::ffff:10.0.0.1]:3")).unwrap();
        assert_eq!(
            [&one, &two, &other, &three].map(|one| one.closing.is_cancelled()),
            [true, false, false, false]
        );
        [&two, &three].into_iter().for_each(Connection::busy);
        assert!(connections.open(address("10.0.0.1:4")).is_none());
        assert_eq!(address("[2001:db8::1]:1"), address("[2001:db8::2:3]:1"));
        assert_eq!((address("127.0.0.1:1"), address("[::1]:1")), (None, None));
    }
}
