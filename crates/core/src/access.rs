//! Access: who may read and change what, and the keys that say who somebody is.

use serde::{Deserialize, Serialize};

use crate::message::names;
use crate::{KeyId, Time};

/// Who may read a session besides its owner. Nobody else may ever change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Nobody.
    #[default]
    Private,
    /// Everybody of the session's org.
    Org,
}
names!(Visibility { Private => "private", Org => "org" });

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccessRole {
    /// All that a member may, and manage keys: those of its org, or all if it has none.
    Admin,
    /// Read, and change what is its owner's.
    #[default]
    Member,
    /// Read.
    Viewer,
}
names!(AccessRole { Admin => "admin", Member => "member", Viewer => "viewer" });

/// An API key. Its secret is kept nowhere: it is known by its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Its id.
    #[serde(rename = "keyId")]
    pub id: KeyId,
    /// What it is for, for people.
    pub name: String,
    /// For whom its holder acts.
    #[serde(rename = "ownerId")]
    pub owner: String,
    /// The org its holder belongs to, and the sessions made with it.
    #[serde(rename = "orgId", skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    /// What its holder may do.
    pub role: AccessRole,
    /// The BLAKE3 hash of its secret.
    #[serde(skip)]
    pub hash: [u8; 32],
    /// When it was made.
    #[serde(rename = "createdAtMs")]
    pub created_at: Time,
    /// From when on it opens nothing.
    #[serde(rename = "expiresAtMs", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When it was revoked: it opens nothing since.
    #[serde(rename = "revokedAtMs", skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
}

impl ApiKey {
    /// Whether it opens anything at `now`.
    pub fn is_valid(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_valid_until_it_expires_or_is_revoked_and_never_shows_its_hash() {
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
        };
        assert_eq!([8, 9, 10].map(|now| key.is_valid(Time(now))), [true, false, false]);
        insta::assert_snapshot!(serde_json::to_string(&key).unwrap(), @r#"{"keyId":"key_01010101010141018101010101010101","name":"ci","ownerId":"ann","orgId":"acme","role":"viewer","createdAtMs":1,"expiresAtMs":9}"#);
        let revoked = ApiKey { revoked_at: Some(Time(5)), expires_at: None, ..key };
        assert!(!revoked.is_valid(Time(2)));
    }
}
