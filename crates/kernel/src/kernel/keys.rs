//! Verbs on API keys.
//!
//! A key says for whom its holder acts, in which org and as what. Its secret is shown once, when it is made, and only
//! its hash is kept. Admins manage keys: one of an org those of its org, one without an org all.

use std::fmt;

use mainspring_core::limits::check_text;
use mainspring_core::{AccessRole, ApiKey, KeyId, Time};
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::{KeyPage, KeyRef, Request, StoreError, Unique};

/// What a new key is like.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NewKey {
    /// What it is for, for people.
    pub name: String,
    /// For whom its holder acts; the one who makes it if not given.
    pub owner: Option<String>,
    /// The org of its holder; that of the one who makes it if not given.
    pub org: Option<String>,
    /// What its holder may do.
    pub role: AccessRole,
    /// From when on it opens nothing.
    pub expires_at: Option<Time>,
}

/// Which keys to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyQuery {
    /// Only those before this one.
    pub before: Option<(Time, KeyId)>,
    /// How many; 50 if not given.
    pub limit: Option<usize>,
}

/// What opens the door: shown once, kept nowhere, and not shown by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// What every secret begins with, so that it is known as one wherever it turns up.
    pub const PREFIX: &'static str = "msk_";

    /// The text, to be shown to the one who asked for it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("msk_…")
    }
}

impl Kernel {
    /// Makes a key, and its secret: none if the same request made the key before, since a secret is shown once.
    pub async fn key_create(
        &self,
        caller: &Caller,
        new: NewKey,
        idempotency_key: Option<&str>,
    ) -> Result<(ApiKey, Option<Secret>), Error> {
        caller.check_admin()?;
        let request =
            idempotency_key.map(|key| self.request_of(caller, "key_create", key, &new)).transpose()?;
        if let Some(made) = self.key_replayed(caller, request.as_ref()).await? {
            return Ok((made, None));
        }
        let (key, secret) = self.key_new(caller, new).await?;
        let request = request.map(|request| Request { answer: key.id.to_string(), ..request });
        match self.key_keep(&key, request.as_ref()).await {
            Ok(()) => Ok((key, Some(secret))),
            // The same request came twice at once, and the other one was faster.
            Err(StoreError::Conflict(Unique::RequestKey)) => {
                let made = self.key_replayed(caller, request.as_ref()).await?;
                made.map(|made| (made, None)).ok_or(Error::Unavailable("try again".into()))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn key_replayed(
        &self,
        caller: &Caller,
        request: Option<&Request>,
    ) -> Result<Option<ApiKey>, Error> {
        let Some(request) = request else { return Ok(None) };
        let Some(answer) = self.request_known(request).await? else {
            return Ok(None);
        };
        let key = answer.parse::<KeyId>().map_err(|bad| Error::Corrupt(bad.to_string()))?;
        self.key_managed(caller, key).await.map(Some)
    }

    /// A key that is not kept yet, if `caller` may make it.
    async fn key_new(&self, caller: &Caller, new: NewKey) -> Result<(ApiKey, Secret), Error> {
        let now = self.shared.clock.now();
        let NewKey { name, owner, org, role, expires_at } = new;
        let (owner, org) =
            (owner.unwrap_or_else(|| caller.owner.clone()), org.or_else(|| caller.org.clone()));
        check_text("a key's name", &name)?;
        check_text("an owner", &owner)?;
        org.as_deref().map_or(Ok(()), |org| check_text("an org", org))?;
        if expires_at.is_some_and(|end| end <= now) {
            return Err(Error::Invalid("a key must expire in the future, or not at all".into()));
        }
        self.check_hands_out(caller, &owner, org.as_deref()).await?;
        let secret = Secret(format!("{}{}", Secret::PREFIX, self.shared.ids.secret()));
        let id = self.shared.ids.key();
        let hash = hash(secret.reveal());
        Ok((
            ApiKey { id, name, owner, org, role, hash, created_at: now, expires_at, revoked_at: None },
            secret,
        ))
    }

    /// Refuses an org's admin who would speak for another org, or for an owner who is not the org's alone: the key
    /// would open everything of that owner, also what lies outside the org.
    async fn check_hands_out(&self, caller: &Caller, owner: &str, org: Option<&str>) -> Result<(), Error> {
        let Some(own) = caller.org.as_deref() else {
            return Ok(());
        };
        if org != Some(own) {
            return Err(Error::Forbidden(format!("an admin of the org {own:?} makes keys of that org only")));
        }
        let host = self.shared.options.owner.as_deref() == Some(owner);
        if owner == caller.owner || !(host || self.shared.store.owner_outside_org(owner, own).await?) {
            return Ok(());
        }
        let remedy = "choose another owner, or let an admin without an org make the key";
        Err(Error::Forbidden(format!(
            "the owner {owner:?} does not belong to the org {own:?} alone: {remedy}"
        )))
    }

    /// Keys, the newest first; also those that are expired or revoked.
    pub async fn key_list(&self, caller: &Caller, query: KeyQuery) -> Result<Vec<ApiKey>, Error> {
        caller.check_admin()?;
        let KeyQuery { before, limit } = query;
        let page = KeyPage { org: caller.org.clone(), before, limit: self.page(limit)? };
        Ok(self.shared.store.key_page(&page).await?)
    }

    /// Revokes a key: from now on it opens nothing. One that is revoked stays as it is.
    pub async fn key_revoke(&self, caller: &Caller, key: KeyId) -> Result<ApiKey, Error> {
        caller.check_admin()?;
        let known = self.key_managed(caller, key).await?;
        if known.revoked_at.is_some() {
            return Ok(known);
        }
        let revoked = ApiKey { revoked_at: Some(self.shared.clock.now()), ..known };
        self.key_keep(&revoked, None).await?;
        self.shared.keys_revoked.send_replace(());
        Ok(revoked)
    }

    /// Who shows `secret`; none if there is no such key, or it has expired or was revoked.
    pub async fn caller_by_secret(&self, secret: &str) -> Result<Option<Caller>, Error> {
        let hash = hash(secret);
        let found = self.shared.store.key_find(&KeyRef::Hash(hash)).await?;
        // Found by its hash, so that the time taken says nothing about secrets; and compared as the token is.
        let valid =
            found.filter(|key| bool::from(key.hash.ct_eq(&hash)) && key.is_valid(self.shared.clock.now()));
        Ok(valid.map(|ApiKey { id, owner, org, role, .. }| Caller { owner, org, role, key: Some(id) }))
    }

    /// Returns once the key that `caller` showed opens nothing any more; never if it showed none.
    pub async fn key_ended(&self, caller: &Caller) {
        let Some(key) = caller.key else {
            return std::future::pending().await;
        };
        let mut revoked = self.shared.keys_revoked.subscribe();
        let clock = &self.shared.clock;
        loop {
            let end = match self.shared.store.key_find(&KeyRef::Id(key)).await {
                Ok(Some(key)) if key.is_valid(clock.now()) => key.expires_at.unwrap_or(Time(i64::MAX)),
                Ok(_) => return,
                // Looked at again soon: what cannot be known is not assumed.
                Err(_) => clock.now().plus(1_000),
            };
            tokio::select! {
                changed = revoked.changed() => if changed.is_err() { return },
                () = clock.sleep_until(end) => {}
            }
        }
    }

    /// A key that `caller` manages.
    async fn key_managed(&self, caller: &Caller, key: KeyId) -> Result<ApiKey, Error> {
        let found = self.shared.store.key_find(&KeyRef::Id(key)).await?;
        let managed = found.filter(|found| caller.org.is_none() || found.org == caller.org);
        managed.ok_or_else(|| Error::not_found("key", key))
    }

    /// Makes a key durable. Where the outcome is not known, it is looked up before anybody is told.
    async fn key_keep(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError> {
        let why = match self.shared.store.key_write(key, request).await {
            Err(StoreError::Unavailable(why)) => why,
            outcome => return outcome,
        };
        let (clock, mut pause) = (&self.shared.clock, 50);
        loop {
            match self.shared.store.key_find(&KeyRef::Id(key.id)).await {
                Ok(found) if found.as_ref() == Some(key) => return Ok(()),
                Err(StoreError::Unavailable(_)) => {
                    clock.sleep_until(clock.now().plus(pause)).await;
                    pause = (pause * 2).min(5_000);
                }
                Ok(_) => return Err(StoreError::Unavailable(why)),
                Err(error) => return Err(error),
            }
        }
    }
}

fn hash(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}
