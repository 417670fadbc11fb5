//! The tasks of a server that works beside others: they react when another server joins, ends or writes.

use std::sync::Arc;
use std::time::Duration;

use mainspring_http::Servers;
use mainspring_kernel::Kernel;
use mainspring_kernel::tasks::Tasks;
use mainspring_store::{HomeServer, Homes};

use super::Member;

/// Time between two reads of the changes of other servers, if no notice arrives.
const POLL: Duration = Duration::from_secs(1);
/// Minimum time between two reads that notices cause.
const NOTICE_PAUSE: Duration = Duration::from_millis(10);

/// Publishes the servers at work to the HTTP edge, until the kernel stops.
pub(super) async fn publish(member: Arc<Member>, tasks: Tasks) {
    let mut homes = member.standby.homes();
    loop {
        let now = servers(&homes.borrow_and_update());
        member.servers.send_if_modified(|known| {
            let is_new = *known != now;
            *known = now;
            is_new
        });
        tokio::select! {
            changed = homes.changed() => if changed.is_err() { return },
            () = tasks.stopping() => return,
        }
    }
}

fn servers(homes: &Homes) -> Servers {
    let address = |server: &HomeServer| (server.candidate.node, server.address.clone());
    Servers { addresses: homes.servers.iter().map(address).collect(), leader: homes.leader }
}

/// Reads the changes of other servers at each notice and at least every second, until the kernel stops.
pub(super) async fn poll_changes(member: Arc<Member>, kernel: Kernel) {
    let (mut notices, tasks) = (member.standby.notices(), kernel.tasks().clone());
    loop {
        tokio::select! {
            changed = notices.changed() => if changed.is_err() { return },
            () = kernel.sleep(POLL) => {}
            () = tasks.stopping() => return,
        }
        if let Err(error) = kernel.homes_poll().await {
            tracing::warn!(%error, "what other servers have written cannot be read");
        }
        kernel.sleep(NOTICE_PAUSE).await;
    }
}

/// Recovers sessions that have lost their home. Returns how many of them wait for a server that may execute them;
/// `None` if the recovery must be tried again.
async fn recover(kernel: &Kernel) -> Option<usize> {
    match kernel.homes_recover().await {
        Ok(0) => Some(0),
        Ok(waiting) => {
            tracing::warn!(
                sessions = waiting,
                "sessions wait for a server with the labels that they need, or of a later version"
            );
            Some(waiting)
        }
        Err(error) => {
            tracing::warn!(%error, "sessions without a home were not recovered; trying again");
            None
        }
    }
}

/// Recovers sessions that have lost their home, forgets cached keys that another server has changed, and as the leader
/// reads the sessions of other servers. Runs until the kernel stops.
pub(super) async fn follow(member: Arc<Member>, kernel: Kernel) {
    let (mut homes, tasks) = (member.standby.homes(), kernel.tasks().clone());
    let (mut recovered, mut keys_version) = (0, homes.borrow().keys_version);
    // The number of sessions that wait for a server that may execute them, and the offers of the servers when they were
    // counted.
    let (mut waiting, mut counted_offers) = (0, vec![]);
    loop {
        let Homes { leader, lost_homes, keys_version: keys_now, servers } = homes.borrow_and_update().clone();
        let offer = |server: HomeServer| (server.candidate.offer, server.candidate.schema_version);
        let offers: Vec<_> = servers.into_iter().map(offer).collect();
        if keys_now != keys_version {
            kernel.keys_forget();
            keys_version = keys_now;
        }
        let is_due = lost_homes != recovered || (waiting > 0 && offers != counted_offers);
        if is_due && let Some(now) = recover(&kernel).await {
            (recovered, waiting, counted_offers) = (lost_homes, now, offers);
        }
        if leader == Some(kernel.node())
            && let Err(error) = kernel.homes_show().await
        {
            tracing::warn!(%error, "the sessions of other servers cannot be read");
        }
        tokio::select! {
            changed = homes.changed() => if changed.is_err() { return },
            () = kernel.sleep(POLL) => {}
            () = tasks.stopping() => return,
        }
    }
}
