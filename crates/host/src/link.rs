//! The link to where the sessions are: a client, and another one when its server has left.
//!
//! The edge is a client of whoever owns the state directory, which may be this very process. Who owns it can change while
//! the host asks; the host does not notice. Whoever holds the [`Keeper`] finds the sessions again.

use mainspring_client::{Client, Error};
use tokio::sync::{mpsc, watch};

/// Where the sessions are now. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    now: watch::Receiver<Place>,
    lost: mpsc::UnboundedSender<u64>,
}

/// The other end of a [`Link`]: hears that the server has left, and says where the sessions are now.
pub struct Keeper {
    now: watch::Sender<Place>,
    lost: mpsc::UnboundedReceiver<u64>,
}

#[derive(Clone)]
struct Place {
    client: Client,
    /// Grows with each server.
    no: u64,
    /// Whether there will be another when this one has left.
    renews: bool,
}

impl Link {
    /// A link to the server of `client`. If it `renews`, its keeper finds the next one when it has left.
    pub fn new(client: Client, renews: bool) -> (Self, Keeper) {
        let (sender, now) = watch::channel(Place { client, no: 0, renews });
        let (lost, heard) = mpsc::unbounded_channel();
        (Self { now, lost }, Keeper { now: sender, lost: heard })
    }

    /// The client for `owner`, and the number of its server. Without an owner it acts for whom its key is.
    pub(crate) fn client(&self, owner: &str) -> (Client, u64) {
        let place = self.now.borrow();
        let client = place.client.clone();
        (if owner.is_empty() { client } else { client.for_owner(owner) }, place.no)
    }

    /// Asks; if the server has left, asks the next one. What changes something must be nameable, so that asking twice
    /// does it once.
    pub(crate) async fn ask<T, F>(&self, owner: &str, ask: impl Fn(Client) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            let (client, no) = self.client(owner);
            match ask(client).await {
                Err(error) if error.is_gone() => match self.renewed(no).await {
                    true => {}
                    false => return Err(error),
                },
                answer => return answer,
            }
        }
    }

    /// True once another server is there than number `no`; false if there will be none.
    pub(crate) async fn renewed(&self, no: u64) -> bool {
        let mut now = self.now.clone();
        if now.borrow().no == no && (!now.borrow().renews || self.lost.send(no).is_err()) {
            return false;
        }
        now.wait_for(|place| place.no > no || !place.renews).await.is_ok_and(|place| place.no > no)
    }
}

impl Keeper {
    /// Resolves once the server has left.
    pub async fn lost(&mut self) {
        loop {
            match self.lost.recv().await {
                // Those who notice it late speak of one that was followed by another already.
                Some(no) if no < self.now.borrow().no => {}
                Some(_) => return,
                None => std::future::pending::<()>().await,
            }
        }
    }

    /// The sessions are there now.
    pub fn found(&self, client: Client, renews: bool) {
        self.now.send_modify(|place| *place = Place { client, no: place.no + 1, renews });
    }

    /// There is no other server, and there will be none.
    pub fn give_up(&self) {
        self.now.send_modify(|place| place.renews = false);
    }
}
