//! Operations on API keys.
//!
//! A key determines the owner, org and role of its holder. Its secret is returned once, when the key is made; only the
//! hash is stored. An admin of an org manages the keys of that org, an admin without an org manages all keys.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use mainspring_core::limits::check_text;
use mainspring_core::{AccessRole, ApiKey, Cost, KeyId, KeyLists, Time};
use secrecy::zeroize::Zeroizing;
use serde::Serialize;
use subtle::ConstantTimeEq;

use super::runs::{PATH_MAX_BYTES, check_size};
use super::{Caller, Kernel};
use crate::error::Error;
use crate::folders::are_within;
use crate::names::check_new_name;
use crate::store::{KeyPage, KeyRef, Request, StoreError, Unique};

/// Maximum number of names on a list of a key.
const MAX_LISTED: usize = 256;
/// Maximum number of folders of a key.
const MAX_FOLDERS: usize = 64;
/// Pause before a key whose state could not be read is checked again.
const RECHECK_MS: u64 = 1_000;

/// Settings of a new key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NewKey {
    /// Name that describes the key's purpose.
    pub name: String,
    /// Owner that the key's holder acts for; the caller's if not given.
    pub owner: Option<String>,
    /// Org of the key's holder; the caller's if not given.
    pub org: Option<String>,
    /// Role of the key's holder.
    pub role: AccessRole,
    /// When the key expires; not later than the key that makes it. If not given, the key expires with that key, or never.
    pub expires_at: Option<Time>,
    /// Folders in which agents of the key's holder may work. If not given: any folder for the owner of this process, and
    /// for other owners only the folders that are configured for an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folders: Option<Vec<String>>,
    /// Adapters that the key's holder may use; those of the caller if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Vec<String>>,
    /// Models and model profiles that the key's holder may use; those of the caller if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Tools that agents of the key's holder may call; those of the caller if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Cost that the key's runs may have in a day of UTC; any if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend_per_day: Option<Cost>,
}

/// Selects keys to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyQuery {
    /// Only keys before this one.
    pub before: Option<(Time, KeyId)>,
    /// Page size; 50 if not given.
    pub limit: Option<usize>,
}

/// The secret of an API key. It is returned once and never stored, its `Debug` form hides it, and its memory is erased when
/// it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Prefix of every secret, so that leaked secrets can be recognised.
    pub const PREFIX: &'static str = "msk_";

    /// The secret's text.
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
    /// Makes a key. Its secret is returned once: a repeated request gets the key without it.
    pub async fn key_create(
        &self,
        caller: &Caller,
        new: NewKey,
        idempotency_key: Option<&str>,
    ) -> Result<(ApiKey, Option<Secret>), Error> {
        caller.check_admin()?;
        let request =
            idempotency_key.map(|key| self.request_new(caller, "key_create", key, &new)).transpose()?;
        if let Some(made) = self.key_replayed(caller, request.as_ref()).await? {
            return Ok((made, None));
        }
        let (key, secret) = self.key_new(caller, new).await?;
        let request = request.map(|request| Request { answer: key.id.to_string(), ..request });
        match self.key_store(&key, request.as_ref()).await {
            Ok(()) => Ok((key, Some(secret))),
            // A concurrent request with the same idempotency key has committed first.
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
        let Some(answer) = self.request_replayed(request).await? else {
            return Ok(None);
        };
        let key = answer.parse::<KeyId>().map_err(|bad| Error::Corrupt(bad.to_string()))?;
        self.key_managed(caller, key).await.map(Some)
    }

    /// Makes a key that is not stored yet, if `caller` may make it.
    async fn key_new(&self, caller: &Caller, new: NewKey) -> Result<(ApiKey, Secret), Error> {
        let now = self.shared.clock.now();
        let NewKey { name, owner, org, role, expires_at, folders, .. } = new;
        let (owner, org) =
            (owner.unwrap_or_else(|| caller.owner.clone()), org.or_else(|| caller.org.clone()));
        check_text("a key's name", &name)?;
        self.check_owner_name(&owner).await?;
        self.check_org_name(org.as_deref()).await?;
        if expires_at.is_some_and(|end| end <= now) {
            return Err(Error::Invalid("a key must expire in the future, or not at all".into()));
        }
        let expires_at = self.key_expiry(caller, expires_at).await?;
        // A key is limited like the key that makes it.
        let folders = folders.or_else(|| caller.folders.clone());
        check_folders(caller, folders.as_deref())?;
        let id = self.shared.ids.key();
        let KeyLists { adapters, models, tools, spend_per_day, .. } = lists_of(
            caller,
            KeyLists {
                key_id: id,
                adapters: new.adapters,
                models: new.models,
                tools: new.tools,
                spend_per_day: new.spend_per_day,
            },
        )?;
        self.claim_key_owner(caller, &owner, org.as_deref()).await?;
        let random = Zeroizing::new(self.shared.ids.secret());
        let secret = Secret(Zeroizing::new(format!("{}{}", Secret::PREFIX, *random)));
        let hash = hash(secret.reveal());
        let key = ApiKey {
            id,
            name,
            owner,
            org,
            role,
            hash,
            created_at: now,
            expires_at,
            revoked_at: None,
            folders,
            adapters,
            models,
            tools,
            spend_per_day,
        };
        Ok((key, secret))
    }

    /// Returns when a key that `caller` makes expires: not after the key that makes it. A token of an identity provider
    /// lives shorter than a key and is renewed, so keys that its holder creates do not end with it.
    async fn key_expiry(&self, caller: &Caller, wanted: Option<Time>) -> Result<Option<Time>, Error> {
        let Some(maker) = caller.key else { return Ok(wanted) };
        let maker = self.shared.store.key_find(&KeyRef::Id(maker)).await?;
        let Some(end) = maker.and_then(|maker| maker.expires_at) else { return Ok(wanted) };
        match wanted {
            Some(wanted) if wanted > end => Err(Error::Forbidden(format!(
                "a key does not outlive the key that makes it, which expires at {end} ({} ms): give an earlier time, or use \
                 the key of another admin",
                end.0
            ))),
            Some(wanted) => Ok(Some(wanted)),
            None => Ok(Some(end)),
        }
    }

    /// Returns the org of a key for the owner that `caller` acts for: the caller's, else the one that the owner belongs
    /// to. Without the org, its admins could no longer manage the owner. The owner of this process has no org.
    pub async fn org_of(&self, caller: &Caller) -> Result<Option<String>, Error> {
        if caller.org.is_some() || self.is_own_owner(&caller.owner) {
            return Ok(caller.org.clone());
        }
        Ok(self.shared.store.owner_org(&caller.owner).await?)
    }

    /// Claims the owner of a new key for the key's org, unless the owner already belongs to an org.
    ///
    /// Refuses an org's admin that makes a key for another org, for an owner that belongs to another org, or for an owner
    /// that also has sessions or keys outside the org: the key would give access to those too.
    async fn claim_key_owner(&self, caller: &Caller, owner: &str, org: Option<&str>) -> Result<(), Error> {
        let (store, now) = (&self.shared.store, self.shared.clock.now());
        let Some(own) = caller.org.as_deref() else {
            store.owner_claim(owner, org, now).await?;
            return Ok(());
        };
        if org != Some(own) {
            return Err(Error::Forbidden(format!("an admin of the org {own:?} makes keys of that org only")));
        }
        if owner == caller.owner {
            return Ok(());
        }
        if !self.is_own_owner(owner)
            && !store.owner_outside_org(owner, own).await?
            && store.owner_claim(owner, Some(own), now).await?
        {
            return Ok(());
        }
        let remedy = "choose another owner, or let an admin without an org make the key";
        Err(Error::Forbidden(format!(
            "the owner {owner:?} does not belong to the org {own:?} alone: {remedy}"
        )))
    }

    /// Lists keys, newest first, including expired and revoked ones.
    pub async fn key_list(&self, caller: &Caller, query: KeyQuery) -> Result<Vec<ApiKey>, Error> {
        caller.check_admin()?;
        let KeyQuery { before, limit } = query;
        let page = KeyPage { org: caller.org.clone(), before, limit: self.page(limit)? };
        Ok(self.shared.store.key_page(&page).await?)
    }

    /// Revokes a key, effective immediately. Revoking it again changes nothing.
    pub async fn key_revoke(&self, caller: &Caller, key: KeyId) -> Result<ApiKey, Error> {
        caller.check_admin()?;
        let known = self.key_managed(caller, key).await?;
        if known.revoked_at.is_some() {
            return Ok(known);
        }
        let revoked = ApiKey { revoked_at: Some(self.shared.clock.now()), ..known };
        let stored = self.key_store(&revoked, None).await;
        // Also after a failure, since the outcome may be unknown.
        self.shared.known_keys.forget();
        stored?;
        self.shared.keys_revoked.send_replace(());
        Ok(revoked)
    }

    /// The caller that `secret` identifies; none if there is no such key, or it is expired or revoked.
    pub async fn caller_by_secret(&self, secret: &str) -> Result<Option<Caller>, Error> {
        let hash = hash(secret);
        let found = self.key_by_hash(&hash).await?;
        // Looked up by hash and compared in constant time, so that timing reveals nothing about secrets.
        let valid =
            found.filter(|key| bool::from(key.hash.ct_eq(&hash)) && key.is_valid(self.shared.clock.now()));
        Ok(valid.map(|key| {
            let lists = key.lists().map(Box::new);
            let ApiKey { id, owner, org, role, folders, .. } = Arc::unwrap_or_clone(key);
            let folders = folders.or_else(|| (!self.is_own_owner(&owner)).then(Vec::new));
            Caller { owner, org, role, key: Some(id), agent: None, folders, lists, token_ends: None }
        }))
    }

    /// Finds a key by the hash of its secret, in memory if it was used before.
    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Arc<ApiKey>>, StoreError> {
        let read_at = match self.shared.known_keys.find(hash) {
            Ok(key) => return Ok(Some(key)),
            Err(read_at) => read_at,
        };
        let found = self.shared.store.key_find(&KeyRef::Hash(*hash)).await?.map(Arc::new);
        found.iter().for_each(|key| self.shared.known_keys.keep(key, read_at));
        Ok(found)
    }

    /// Makes `owner` belong to `org`, or to none, unless it belongs to one already; refused if that is another one.
    pub async fn owner_claim(&self, owner: &str, org: Option<&str>) -> Result<(), Error> {
        if self.shared.store.owner_claim(owner, org, self.shared.clock.now()).await? {
            return Ok(());
        }
        let place = org.map_or("no org".to_owned(), |org| format!("the org {org:?}"));
        Err(Error::Forbidden(format!(
            "the owner {owner:?} does not belong to {place}: it was first used elsewhere"
        )))
    }

    /// Refuses the name of an owner that could be taken for another one, unless the owner exists already.
    pub async fn check_owner_name(&self, owner: &str) -> Result<(), Error> {
        check_text("an owner", owner)?;
        match check_new_name("an owner", owner) {
            Err(_) if self.shared.store.owner_known(owner).await? => Ok(()),
            checked => checked,
        }
    }

    /// Refuses the name of an org that could be taken for another one, unless the org exists already.
    pub async fn check_org_name(&self, org: Option<&str>) -> Result<(), Error> {
        let Some(org) = org else { return Ok(()) };
        check_text("an org", org)?;
        match check_new_name("an org", org) {
            Err(_) if self.shared.store.org_known(org).await? => Ok(()),
            checked => checked,
        }
    }

    /// True for the owner of this process itself.
    pub fn is_own_owner(&self, owner: &str) -> bool {
        self.shared.options.owner.as_deref() == Some(owner)
    }

    /// Waits until the caller's key or token is expired or revoked; forever if the caller used none.
    pub async fn key_ended(&self, caller: &Caller) {
        let Some(key) = caller.key else {
            return match caller.token_ends {
                Some(end) => self.shared.clock.sleep_until(end).await,
                None => std::future::pending().await,
            };
        };
        let mut revoked = self.shared.keys_revoked.subscribe();
        let clock = &self.shared.clock;
        loop {
            let end = match self.shared.store.key_find(&KeyRef::Id(key)).await {
                Ok(Some(key)) if key.is_valid(clock.now()) => key.expires_at.unwrap_or(Time(i64::MAX)),
                Ok(_) => return,
                // The key's state is unknown: retry soon.
                Err(_) => clock.now().plus(RECHECK_MS),
            };
            tokio::select! {
                changed = revoked.changed() => if changed.is_err() { return },
                () = clock.sleep_until(end) => {}
            }
        }
    }

    /// Returns when the credential of `caller` ends: far in the future if it does not, `None` if it has ended.
    pub async fn key_end(&self, caller: &Caller) -> Result<Option<Time>, Error> {
        let never = Time(i64::MAX);
        let Some(key) = caller.key else { return Ok(Some(caller.token_ends.unwrap_or(never))) };
        let key = self.shared.store.key_find(&KeyRef::Id(key)).await?;
        let valid = key.filter(|key| key.is_valid(self.shared.clock.now()));
        Ok(valid.map(|key| key.expires_at.unwrap_or(never)))
    }

    /// Gets a key that `caller` manages.
    async fn key_managed(&self, caller: &Caller, key: KeyId) -> Result<ApiKey, Error> {
        let found = self.shared.store.key_find(&KeyRef::Id(key)).await?;
        let managed = found.filter(|found| caller.org.is_none() || found.org == caller.org);
        managed.ok_or_else(|| Error::not_found("key", key))
    }

    /// Makes a key durable. If the outcome is unknown, looks it up until it is known.
    async fn key_store(&self, key: &ApiKey, request: Option<&Request>) -> Result<(), StoreError> {
        let unknown = match self.shared.store.key_write(key, request).await {
            Err(error) if error.is_outcome_unknown() => error,
            outcome => return outcome,
        };
        let (clock, mut pause_ms) = (&self.shared.clock, 50);
        loop {
            match self.shared.store.key_find(&KeyRef::Id(key.id)).await {
                Ok(found) if found.as_ref() == Some(key) => return Ok(()),
                Err(StoreError::Unavailable(_)) => {
                    clock.sleep_for(pause_ms).await;
                    pause_ms = (pause_ms * 2).min(5_000);
                }
                Ok(_) => return Err(unknown),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Refuses folders of a new key that are not absolute, are too many, or are more than the caller itself may use.
fn check_folders(caller: &Caller, folders: Option<&[String]>) -> Result<(), Error> {
    let folders = folders.unwrap_or_default();
    if folders.len() > MAX_FOLDERS {
        return Err(Error::Invalid(format!("a key has at most {MAX_FOLDERS} folders")));
    }
    let is_valid = |folder: &String| Path::new(folder).is_absolute() && !folder.contains('\0');
    if let Some(folder) = folders.iter().find(|folder| !is_valid(folder)) {
        return Err(Error::Invalid(format!("the folder {folder:?} of a key must be an absolute path")));
    }
    for folder in folders {
        check_size("a folder", folder.len(), PATH_MAX_BYTES)?;
    }
    match &caller.folders {
        Some(own) if !are_within(folders, own) => {
            Err(Error::Forbidden("a key gets no folders that your own key does not have".into()))
        }
        _ => Ok(()),
    }
}

/// The lists of a new key: those that are given, else those of the caller. Refuses lists with more than the caller has.
fn lists_of(caller: &Caller, given: KeyLists) -> Result<KeyLists, Error> {
    for list in [&given.adapters, &given.models, &given.tools].into_iter().flatten() {
        if list.len() > MAX_LISTED {
            return Err(Error::Invalid(format!("a list of a key has at most {MAX_LISTED} names")));
        }
        list.iter().try_for_each(|name| check_text("a name on a list of a key", name))?;
    }
    let Some(own) = &caller.lists else { return Ok(given) };
    if own.spend_per_day.is_some() {
        // Spend is counted per key, so a second key would double the allowance.
        return Err(Error::Forbidden(
            "a key with a spend per day makes no keys: use an admin's key without one".into(),
        ));
    }
    own.check_within(&given)?;
    Ok(KeyLists {
        adapters: given.adapters.or_else(|| own.adapters.clone()),
        models: given.models.or_else(|| own.models.clone()),
        tools: given.tools.or_else(|| own.tools.clone()),
        ..given
    })
}

pub(super) fn hash(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}
