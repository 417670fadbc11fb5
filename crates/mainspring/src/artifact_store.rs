//! The place of artifact bytes: the state directory, or the object store of the configuration.

use std::sync::Arc;

use mainspring_kernel::clock::Clock;
use mainspring_kernel::{BlobStore, Blobs};

use crate::config::Config;
use crate::node::NodeError;

/// Opens the place of artifact bytes that the configuration names. Sends no request to an object store.
pub fn blobs(config: &Config) -> Result<Blobs, NodeError> {
    let folder = config.artifacts_dir();
    Ok(match blob_store(config, &Clock::system())? {
        Some(store) => Blobs::with_store(&folder, store),
        None => Blobs::new(&folder),
    })
}

/// Returns the object store of the configuration, if it names one.
#[cfg(feature = "s3")]
pub(crate) fn blob_store(config: &Config, clock: &Clock) -> Result<Option<Arc<dyn BlobStore>>, NodeError> {
    Ok(s3::open(config, clock)?.map(|store| Arc::new(store) as Arc<dyn BlobStore>))
}

#[cfg(not(feature = "s3"))]
pub(crate) fn blob_store(config: &Config, _clock: &Clock) -> Result<Option<Arc<dyn BlobStore>>, NodeError> {
    match config.artifact_store.url {
        Some(_) => Err(NodeError::ArtifactStore(
            "artifact_store.url: this program was built without the feature `s3`".to_owned(),
        )),
        None => Ok(None),
    }
}

/// Asks the object store of the configuration whether its bucket can be read. Returns its name; `None` without one.
#[cfg(feature = "s3")]
pub async fn probe(config: &Config) -> Result<Option<String>, String> {
    match s3::open(config, &Clock::system()).map_err(|error| error.to_string())? {
        Some(store) => match store.probe().await {
            Ok(()) => Ok(Some(store.name().to_owned())),
            Err(error) => Err(error.to_string()),
        },
        None => Ok(None),
    }
}

/// Fails if the configuration names an object store, which this build cannot use.
#[cfg(not(feature = "s3"))]
pub async fn probe(config: &Config) -> Result<Option<String>, String> {
    blob_store(config, &Clock::system()).map(|_| None).map_err(|error| error.to_string())
}

#[cfg(feature = "s3")]
mod s3 {
    use std::net::IpAddr;

    use mainspring_kernel::clock::Clock;
    use mainspring_store::{S3Blobs, S3Credentials, S3Options};

    use crate::config::{ArtifactStore, Config, split_bucket};
    use crate::node::NodeError;

    /// Milliseconds for which an unreferenced object stays after it was uploaded. Another server may have
    /// just written the same content, and may be about to commit its artifact.
    const REMOVAL_DELAY_MS: u64 = 60 * 60 * 1_000;

    pub(super) fn open(config: &Config, clock: &Clock) -> Result<Option<S3Blobs>, NodeError> {
        let ArtifactStore { url, endpoint, region, credentials_file, allow_http } = &config.artifact_store;
        let Some((bucket, prefix)) = url.as_deref().and_then(split_bucket) else { return Ok(None) };
        let endpoint = endpoint.as_deref();
        if endpoint.is_some_and(|endpoint| !is_protected(endpoint)) && !allow_http {
            return Err(NodeError::ArtifactStore(format!(
                "artifact_store.endpoint: {} has no TLS, so that others could read artifacts and credentials: use https, \
                 or set artifact_store.allow_http",
                endpoint.unwrap_or_default()
            )));
        }
        let credentials = credentials_file.as_deref().map(S3Credentials::read).transpose();
        let credentials = credentials
            .map_err(|error| NodeError::ArtifactStore(format!("artifact_store.credentials_file: {error}")))?;
        let options = S3Options {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: endpoint.map(ToOwned::to_owned),
            region: region.clone(),
            credentials,
            allow_http: endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")),
            removal_delay_ms: REMOVAL_DELAY_MS,
        };
        // The client of the object store installs no TLS provider itself.
        crate::install_tls();
        let store = S3Blobs::new(options, clock.clone()).map_err(NodeError::ArtifactStore)?;
        Ok(Some(store))
    }

    /// True for an address with TLS, or one of this machine.
    fn is_protected(endpoint: &str) -> bool {
        let Some(rest) = endpoint.strip_prefix("http://") else { return true };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_this_machine_is_reached_without_tls() {
            for endpoint in
                ["https://s3.example.com", "http://127.0.0.1:9000", "http://localhost", "http://[::1]:9000/"]
            {
                assert!(is_protected(endpoint), "{endpoint}");
            }
            for endpoint in [
                "http://s3.example.com",
                "http://127.0.0.1.example.com",
                "http://localhost@evil",
                "http://10.0.0.1:9000",
            ] {
                assert!(!is_protected(endpoint), "{endpoint}");
            }
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::with_state_dir(folder.path());
            config.artifact_store.url = Some("s3://agents/a".into());
            config.artifact_store.endpoint = Some("http://s3.example.com".into());
            let refused = open(&config, &Clock::system()).unwrap_err();
            assert_eq!(refused.code(), "invalid_config");
            assert!(refused.to_string().contains("allow_http"), "{refused}");
            config.artifact_store.allow_http = true;
            assert!(open(&config, &Clock::system()).unwrap().is_some());
        }
    }
}
