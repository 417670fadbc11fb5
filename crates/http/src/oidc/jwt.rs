//! JSON web tokens and the public keys that verify them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Longest token. Longer ones are refused before anything is decoded.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Maximum number of an issuer's keys that are kept.
const MAX_KEYS: usize = 64;

/// The algorithms that are accepted. `none` and the symmetric ones are not: with them, anybody who knows a public key
/// could sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

/// A token whose signature is not verified yet.
pub(super) struct Token<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    /// Takes a token apart. The error says why it is not a token.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(format!("it is longer than {MAX_TOKEN_BYTES} bytes"));
        }
        let form = || "it is not a JWT".to_owned();
        let (signed, signature) = text.rsplit_once('.').ok_or_else(form)?;
        let (header, payload) =
            signed.split_once('.').filter(|(_, rest)| !rest.contains('.')).ok_or_else(form)?;
        let header: Header =
            decode(header).and_then(|json| serde_json::from_slice(&json).ok()).ok_or_else(form)?;
        if header.crit.is_some() {
            return Err("it demands an extension that is not known here".into());
        }
        let algorithm = Algorithm::from_name(&header.alg)
            .ok_or("its algorithm is not accepted: it must be RS256, ES256 or EdDSA")?;
        let signature = decode(signature).ok_or_else(form)?;
        Ok(Self { algorithm, key_id: header.kid, signed, payload, signature })
    }

    /// True if `key` has signed the token.
    pub(super) fn is_signed_by(&self, key: &PublicKey) -> bool {
        let message = self.signed.as_bytes();
        let verified = match &key.material {
            Material::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, &self.signature)
            }
            Material::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, &self.signature)
            }
            Material::Ed25519(point) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, &self.signature)
            }
        };
        key.algorithm() == self.algorithm && verified.is_ok()
    }

    /// The claims. They can be trusted only if the signature is valid.
    pub(super) fn claims(&self) -> Result<Map<String, Value>, String> {
        let claims = decode(self.payload).and_then(|json| serde_json::from_slice(&json).ok());
        claims.ok_or_else(|| "its claims are not a JSON object".into())
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[derive(Debug)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// The uncompressed point.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A public key of an issuer.
#[derive(Debug)]
pub(super) struct PublicKey {
    id: Option<String>,
    material: Material,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

impl PublicKey {
    /// The algorithm of the key. It follows from the kind of the key alone, never from a token.
    fn algorithm(&self) -> Algorithm {
        match self.material {
            Material::Rsa { .. } => Algorithm::Rs256,
            Material::P256(_) => Algorithm::Es256,
            Material::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// True if the key may have signed `token`. A token that names no key may have been signed by any key of its
    /// algorithm.
    pub(super) fn may_have_signed(&self, token: &Token<'_>) -> bool {
        let names_other = token.key_id.is_some() && token.key_id != self.id;
        self.algorithm() == token.algorithm && !names_other
    }

    /// The keys of a JWK set that verify signatures of the accepted algorithms. Others are left out.
    pub(super) fn all_of(set: &Value) -> Option<Vec<Self>> {
        let keys = set.get("keys")?.as_array()?.iter().take(MAX_KEYS);
        Some(keys.filter_map(|key| Self::from_jwk(serde_json::from_value(key.clone()).ok()?)).collect())
    }

    fn from_jwk(jwk: Jwk) -> Option<Self> {
        if jwk.usage.is_some_and(|usage| usage != "sig") {
            return None;
        }
        let part = |text: Option<String>| decode(&text?);
        let material = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => Material::Rsa { n: part(jwk.n)?, e: part(jwk.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (part(jwk.x)?, part(jwk.y)?);
                Material::P256([&[4], &*x, &*y].concat())
            }
            ("OKP", Some("Ed25519")) => Material::Ed25519(part(jwk.x)?),
            _ => return None,
        };
        let key = Self { id: jwk.kid, material };
        let fits = |name: String| Algorithm::from_name(&name) == Some(key.algorithm());
        jwk.alg.is_none_or(fits).then_some(key)
    }
}
