//! Limits the audit records of refusals and of sign-ins.
//!
//! A stranger, a client without a credential, must not fill the disk with refusals, nor push older records out of the
//! log: each place gets a few records, all strangers together get a few per minute, and the rest is counted.

use std::collections::HashMap;
use std::net::IpAddr;

use mainspring_api::{AuditActor, AuditOrigin};
use mainspring_core::{AttemptId, KeyId};

use crate::clock::Moment;
use crate::kernel::Caller;

/// Recorded refusals of strangers from one place.
const PLACE: Rate = Rate { burst: 10, interval_ms: 30_000 };
/// Recorded refusals of all strangers together.
const STRANGERS: Rate = Rate { burst: 60, interval_ms: 6_000 };
/// Recorded refusals of one credential.
const CREDENTIAL: Rate = Rate { burst: 60, interval_ms: 2_000 };
/// Maximum entries of each map of the limiter.
const MAX_PARTIES: usize = 4_096;
/// Minimum time between two recorded sign-ins of one credential from one place.
const SIGN_IN_INTERVAL_MS: u64 = 15 * 60 * 1_000;

/// Allows `burst` records at once, then one more per `interval_ms`.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u64,
    interval_ms: u64,
}

/// Counts against a [`Rate`]: the moment from which a whole burst is allowed again.
#[derive(Debug, Clone, Copy)]
struct Meter(Moment);

impl Meter {
    fn admit(&mut self, rate: Rate, now: Moment) -> bool {
        let next = self.0.max(now).plus(rate.interval_ms);
        let is_admitted = next.since(now) <= rate.burst * rate.interval_ms;
        if is_admitted {
            self.0 = next;
        }
        is_admitted
    }
}

/// The place a request comes from: an address or a local user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Address(IpAddr),
    User(u32),
    Inside,
}

impl From<Option<AuditOrigin>> for Place {
    fn from(from: Option<AuditOrigin>) -> Self {
        match from {
            Some(AuditOrigin::Tcp { address }) => Self::Address(network(address.ip())),
            Some(AuditOrigin::Unix { uid, .. }) => Self::User(uid),
            Some(AuditOrigin::Inside {}) | None => Self::Inside,
        }
    }
}

/// Returns the address, or the network of an IPv6 address: one machine has all addresses of a /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Credential {
    Key(KeyId),
    Attempt(AttemptId),
    Person(String),
}

impl Credential {
    fn of_caller(caller: &Caller) -> Self {
        match (caller.agent, caller.key) {
            (Some(agent), _) => Self::Attempt(agent.attempt),
            (None, Some(key)) => Self::Key(key),
            (None, None) => Self::Person(caller.owner.clone()),
        }
    }

    fn of_actor(by: &AuditActor) -> Option<Self> {
        match by {
            AuditActor::Key { key_id, .. } => Some(Self::Key(*key_id)),
            AuditActor::Agent { attempt_id, .. } => Some(Self::Attempt(*attempt_id)),
            AuditActor::Person { owner_id } => Some(Self::Person(owner_id.clone())),
            AuditActor::Rule { .. }
            | AuditActor::Policy { .. }
            | AuditActor::Anonymous {}
            | AuditActor::Server {} => None,
        }
    }
}

/// Refusals of one credential.
#[derive(Debug)]
struct Refused {
    meter: Meter,
    by: AuditActor,
    suppressed: u64,
}

/// Decides which refusals and sign-ins are recorded.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    places: HashMap<Place, Meter>,
    strangers: Option<Meter>,
    strangers_suppressed: u64,
    credentials: HashMap<Credential, Refused>,
    sign_ins: HashMap<(Credential, Place), Moment>,
}

impl Limiter {
    /// Returns how many refusals of this party were suppressed before this one; `None` if this one is suppressed too.
    pub(super) fn admit(&mut self, by: &AuditActor, from: Option<AuditOrigin>, now: Moment) -> Option<u64> {
        let Some(credential) = Credential::of_actor(by) else { return self.admit_stranger(from, now) };
        bound(&mut self.credentials, |refused| refused.meter.0 > now || refused.suppressed > 0);
        let new = || Refused { meter: Meter(now), by: by.clone(), suppressed: 0 };
        let refused = self.credentials.entry(credential).or_insert_with(new);
        match refused.meter.admit(CREDENTIAL, now) {
            true => Some(std::mem::take(&mut refused.suppressed)),
            false => {
                refused.suppressed += 1;
                None
            }
        }
    }

    fn admit_stranger(&mut self, from: Option<AuditOrigin>, now: Moment) -> Option<u64> {
        bound(&mut self.places, |meter| meter.0 > now);
        let place = self.places.entry(from.into()).or_insert(Meter(now));
        let strangers = self.strangers.get_or_insert(Meter(now));
        if place.admit(PLACE, now) && strangers.admit(STRANGERS, now) {
            return Some(std::mem::take(&mut self.strangers_suppressed));
        }
        self.strangers_suppressed += 1;
        None
    }

    /// Returns true, and remembers the sign-in, if no sign-in with the same credential from this place was
    /// recorded within [`SIGN_IN_INTERVAL_MS`].
    pub(super) fn is_new_sign_in(&mut self, caller: &Caller, from: Option<AuditOrigin>, now: Moment) -> bool {
        let by = (Credential::of_caller(caller), from.into());
        match self.sign_ins.get(&by) {
            Some(at) if now.since(*at) < SIGN_IN_INTERVAL_MS => false,
            _ => {
                bound(&mut self.sign_ins, |at| now.since(*at) < SIGN_IN_INTERVAL_MS);
                self.sign_ins.insert(by, now);
                true
            }
        }
    }

    /// Returns the numbers of suppressed refusals, by party, and resets them.
    pub(super) fn take_suppressed(&mut self) -> Vec<(AuditActor, u64)> {
        let strangers = (AuditActor::Anonymous {}, std::mem::take(&mut self.strangers_suppressed));
        let by_credential = self
            .credentials
            .values_mut()
            .map(|refused| (refused.by.clone(), std::mem::take(&mut refused.suppressed)));
        by_credential.chain([strangers]).filter(|(_, count)| *count > 0).collect()
    }
}

/// Makes room for one more entry: removes all that are not `needed`, and if that is not enough, an arbitrary one.
fn bound<K: Clone + Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, needed: impl Fn(&V) -> bool) {
    if map.len() < MAX_PARTIES {
        return;
    }
    map.retain(|_, value| needed(value));
    if map.len() >= MAX_PARTIES
        && let Some(any) = map.keys().next().cloned()
    {
        map.remove(&any);
    }
}
