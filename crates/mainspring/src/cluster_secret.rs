//! The secret of a cluster, and the token and the keys that its servers derive from the secret.

use std::path::Path;

use mainspring_http::PeerKey;
use mainspring_kernel::files::read_small;
use secrecy::zeroize::Zeroizing;

use crate::node::NodeError;

/// The minimum length of a secret, in bytes.
const MIN_SECRET_BYTES: usize = 16;
/// Separates the token from other values that are derived from the secret.
#[cfg(feature = "postgres")]
const TOKEN_CONTEXT: &str = "mainspring 2026-11-18 token of the servers of a cluster";
/// Separates the key of requests between servers from other values that are derived from the secret.
const PEER_CONTEXT: &str = "mainspring 2026-11-18 requests between the servers of a cluster";
/// Separates the key of the digests of settings from other values that are derived from the secret.
#[cfg(feature = "postgres")]
const SETTINGS_CONTEXT: &str = "mainspring 2026-11-18 digests of the settings of the servers of a cluster";

/// Derives the token of all servers of a cluster from their secret, so that a client may use any of them.
#[cfg(feature = "postgres")]
pub(crate) fn shared_token(file: &Path) -> Result<Zeroizing<String>, NodeError> {
    let key = derived(file, TOKEN_CONTEXT)?;
    Ok(Zeroizing::new(blake3::Hash::from_bytes(*key).to_hex().to_string()))
}

/// Derives the key with which a server proves that its requests come from a server of the cluster. No client has the
/// key.
pub(crate) fn peer_key(file: &Path) -> Result<PeerKey, NodeError> {
    Ok(PeerKey::new(*derived(file, PEER_CONTEXT)?))
}

/// Derives the key of the digests of settings.
#[cfg(feature = "postgres")]
pub(crate) fn settings_key(file: &Path) -> Result<Zeroizing<[u8; 32]>, NodeError> {
    derived(file, SETTINGS_CONTEXT)
}

fn derived(file: &Path, context: &str) -> Result<Zeroizing<[u8; 32]>, NodeError> {
    let refuse =
        |reason: String| NodeError::Cluster(format!("cluster.secret_file: {} {reason}", file.display()));
    let text = read_small(file).map_err(|error| refuse(format!("cannot be read: {error}")))?;
    let secret = Zeroizing::new(text);
    let secret = secret.trim_ascii();
    if secret.len() < MIN_SECRET_BYTES {
        return Err(refuse(format!(
            "holds less than {MIN_SECRET_BYTES} bytes: write a random secret into it, such as that of `openssl rand -hex 32`"
        )));
    }
    Ok(Zeroizing::new(blake3::derive_key(context, secret)))
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn servers_with_the_same_secret_have_the_same_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let token = shared_token(&file).unwrap();
        assert_eq!(token.len(), 64);
        std::fs::write(&file, "0123456789abcdef").unwrap();
        assert_eq!(shared_token(&file).unwrap(), token, "the end of the line does not count");
        std::fs::write(&file, "0123456789abcdeg").unwrap();
        assert_ne!(shared_token(&file).unwrap(), token);
        std::fs::write(&file, "short").unwrap();
        assert!(shared_token(&file).unwrap_err().to_string().contains("16 bytes"));
        assert!(peer_key(&file).unwrap_err().to_string().contains("16 bytes"));
    }
}
