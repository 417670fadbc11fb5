//! The link to the server that owns the sessions, which reconnects when the server changes.
//!
//! The server is the process that owns the state directory, possibly this one. Another process can take over the state
//! directory while a host is connected. The host does not notice: the holder of the [`Keeper`] supplies the next
//! server. A remote server is the same one when it answers again.

use mainspring_client::{Client, Error};
use mainspring_system::clock::Clock;
use tokio::sync::{mpsc, watch};

/// Pause before this process connects to its own server again.
const LOCAL_RETRY_DELAY_MS: u64 = 100;
/// Pause before a remote server is connected to again.
const REMOTE_RETRY_DELAY_MS: u64 = 1_000;
/// The number of broken connections after which a request fails.
const TRIES: u32 = 3;

/// The server that follows when the connection to a server is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Successor {
    /// None.
    None,
    /// Another process, which takes over.
    Other,
    /// The same server, which is this process: only the connection is lost.
    Local,
    /// The same server, at its address. It may be away for a while.
    Remote,
}

impl Successor {
    /// The pause before the same server is connected to again.
    const fn retry_delay_ms(self) -> Option<u64> {
        match self {
            Self::None | Self::Other => None,
            Self::Local => Some(LOCAL_RETRY_DELAY_MS),
            Self::Remote => Some(REMOTE_RETRY_DELAY_MS),
        }
    }
}

/// A connection to the current server. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    now: watch::Receiver<Server>,
    lost: mpsc::UnboundedSender<u64>,
}

/// The other end of a [`Link`]: is notified when the server is lost, and supplies the next one.
pub struct Keeper {
    now: watch::Sender<Server>,
    lost: mpsc::UnboundedReceiver<u64>,
}

#[derive(Clone)]
struct Server {
    client: Client,
    /// Increases with each server.
    no: u64,
    successor: Successor,
}

impl Link {
    /// Creates a link to the server of `client`. The keeper supplies the successor when that server is lost.
    pub fn new(client: Client, successor: Successor) -> (Self, Keeper) {
        let (sender, now) = watch::channel(Server { client, no: 0, successor });
        let (lost, losses) = mpsc::unbounded_channel();
        (Self { now, lost }, Keeper { now: sender, lost: losses })
    }

    /// Returns the client for `owner` and its server's number. An empty owner means the owner of the client's API key.
    pub(crate) fn client(&self, owner: &str) -> (Client, u64) {
        let server = self.now.borrow();
        let client = server.client.clone();
        (if owner.is_empty() { client } else { client.for_owner(owner) }, server.no)
    }

    /// Sends a request. Repeats it on the next server if the server is lost, and on the same one if that does not answer in
    /// time. Unless another process takes over, fails when the connection breaks [`TRIES`] times. A request that changes
    /// something must be idempotent, or its caller must look at the outcome after an error.
    pub(crate) async fn ask<T, F>(&self, owner: &str, ask: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut tries = 0;
        loop {
            let (client, no) = self.client(owner);
            match ask(client).await {
                Err(error) if error.is_gone() => {
                    tries += u32::from(self.successor() != Successor::Other);
                    if tries >= TRIES || !self.renewed(no).await {
                        return Err(error);
                    }
                }
                // The server may be stopped, or the request was lost: then only a repetition is answered.
                Err(error) if error.is_not_responding() => {}
                answer => return answer,
            }
        }
    }

    /// The server that follows when this one is lost.
    pub(crate) fn successor(&self) -> Successor {
        self.now.borrow().successor
    }

    /// Reports that the server with the number `no` is lost, and waits for the next one. Returns false if none will
    /// follow.
    pub(crate) async fn renewed(&self, no: u64) -> bool {
        let mut now = self.now.clone();
        // One borrow for both fields: a second read lock, taken while the first is held, could deadlock with a waiting
        // writer.
        let (current, successor) = {
            let server = now.borrow();
            (server.no, server.successor)
        };
        if current == no && (successor == Successor::None || self.lost.send(no).is_err()) {
            return false;
        }
        let is_decided = |server: &Server| server.no > no || server.successor == Successor::None;
        now.wait_for(is_decided).await.is_ok_and(|server| server.no > no)
    }
}

impl Keeper {
    /// Awaits `future`. Meanwhile, whenever the server is lost, switches the link to the server that `next` returns, with the
    /// successor of that server. If `next` fails, no other server follows.
    pub async fn renew_until<T, E>(
        &mut self,
        clock: &Clock,
        future: impl Future<Output = T>,
        mut next: impl AsyncFnMut() -> Result<(Client, Successor), E>,
    ) -> Result<T, E> {
        tokio::pin!(future);
        loop {
            tokio::select! {
                done = &mut future => return Ok(done),
                () = self.lost() => {}
            }
            let retry_delay_ms = self.now.borrow().successor.retry_delay_ms();
            let found = async {
                if let Some(delay_ms) = retry_delay_ms {
                    clock.sleep_for(delay_ms).await;
                }
                next().await
            };
            // A server that ends may still finish the work that `future` waits for.
            let found = tokio::select! {
                done = &mut future => return Ok(done),
                found = found => found,
            };
            match found {
                Ok((client, successor)) => self.found(client, successor),
                Err(error) => {
                    self.give_up();
                    return Err(error);
                }
            }
        }
    }

    /// Resolves when the server is lost.
    pub async fn lost(&mut self) {
        loop {
            match self.lost.recv().await {
                // Ignores reports about an earlier server.
                Some(no) if no < self.now.borrow().no => {}
                Some(_) => return,
                None => std::future::pending::<()>().await,
            }
        }
    }

    /// Switches the link to the server of `client`.
    pub fn found(&self, client: Client, successor: Successor) {
        self.now.send_modify(|server| *server = Server { client, no: server.no + 1, successor });
    }

    /// Declares that no other server will follow.
    pub fn give_up(&self) {
        self.now.send_modify(|server| server.successor = Successor::None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_request_that_is_not_answered_is_repeated() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client =
            Client::over_tcp(&format!("http://{}", listener.local_addr().unwrap()), "secret").unwrap();
        let (link, _keeper) =
            Link::new(client.with_response_timeout(Duration::from_millis(20)), Successor::None);
        let server = async {
            let _unanswered = listener.accept().await.unwrap();
            loop {
                let (mut repeated, _) = listener.accept().await.unwrap();
                let _ = repeated.read(&mut [0; 4096]).await;
                let _ =
                    repeated.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops").await;
            }
        };
        let answer = tokio::select! {
            answer = link.ask("", |client| async move { client.session_get("key").await }) => answer,
            never = server => never,
        };
        assert_eq!(answer.unwrap_err().code(), "protocol");
    }
}
