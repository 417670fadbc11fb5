//! Access: the visibility of sessions, the roles of callers, and API keys.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{Cost, KeyId, KeyLists, Time};

/// The readers of a session besides its owner. Only the owner may change a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Only the owner can read the session.
    #[default]
    Private,
    /// Every member of the session's org can read the session.
    Org,
}
names!(Visibility { Private => "private", Org => "org" });

/// The permissions of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccessRole {
    /// Everything a member may do, and managing API keys: the keys of the admin's org, or all keys if the admin has
    /// no org.
    Admin,
    /// Read, and change the owner's own data.
    #[default]
    Member,
    /// Read only.
    Viewer,
}
names!(AccessRole { Admin => "admin", Member => "member", Viewer => "viewer" });

/// An API key. The secret itself is not stored, only its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// The key's id.
    #[serde(rename = "keyId")]
    pub id: KeyId,
    /// A name for people that says what the key is for.
    pub name: String,
    /// The owner on whose behalf the key's holder acts.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The org of the key's holder and of the sessions created with the key.
    #[serde(rename = "orgId", skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// The permissions of the key's holder.
    pub role: AccessRole,
    /// The BLAKE3 hash of the secret.
    #[serde(skip)]
    pub hash: [u8; 32],
    /// When the key was created.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// When the key expires. An expired key is refused.
    #[serde(rename = "expiresAtMs", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When the key was revoked. A revoked key is refused.
    #[serde(rename = "revokedAtMs", skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    /// The folders in which agents of the key's holder may work. Absent: any for the server's own owner; for others only
    /// those that are configured for an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folders: Option<Vec<String>>,
    /// The adapters that the key's holder may use. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapters: Option<Vec<String>>,
    /// The models and model profiles that the key's holder may use. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// The tools that agents of the key's holder may call. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The cost in US dollars that the key's runs may have in a day of UTC. Absent: any.
    #[serde(default, rename = "spendPerDayUsd", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<f64>, minimum = 0.0))]
    pub spend_per_day: Option<Cost>,
}

impl ApiKey {
    /// The lists of the key; none if nothing is limited.
    pub fn lists(&self) -> Option<KeyLists> {
        let lists = KeyLists {
            key_id: self.id,
            adapters: self.adapters.clone(),
            models: self.models.clone(),
            tools: self.tools.clone(),
            spend_per_day: self.spend_per_day,
        };
        (!lists.is_empty()).then_some(lists)
    }

    /// True when the key is accepted at `now`: neither revoked nor expired.
    pub fn is_valid(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_valid_until_it_expires_or_is_revoked_and_its_hash_is_not_serialized() {
        let key = ApiKey {
            id: KeyId::from_random([1; 16]),
            name: "ci".into(),
            owner: "ann".into(),
            org: Some("acme".into()),
            role: AccessRole::Viewer,
            hash: [7; 32],
            created_at: Time(1),
            expires_at: Some(Time(9)),
            revoked_at: None,
            folders: None,
            adapters: None,
            models: None,
            tools: None,
            spend_per_day: None,
        };
        assert_eq!([8, 9, 10].map(|now| key.is_valid(Time(now))), [true, false, false]);
        insta::assert_snapshot!(serde_json::to_string(&key).unwrap(), @r#"{"keyId":"key_01010101010141018101010101010101","name":"ci","ownerId":"ann","orgId":"acme","role":"viewer","createdAtMs":1,"expiresAtMs":9}"#);
        let revoked = ApiKey { revoked_at: Some(Time(5)), expires_at: None, ..key };
        assert!(!revoked.is_valid(Time(2)));
    }
}
