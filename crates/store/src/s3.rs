//! The bytes of artifacts in an object store: S3, or a server with its API.
//!
//! An object is named `PREFIX/ab/abcdef…`, as the files of a state directory are, so that a tool which copies folders moves
//! artifacts in and out. Bytes arrive through a file: their hash is known before the first request, and neither side of an
//! upload holds more than a few parts in memory.
//!
//! Invariant: an object is complete or does not exist. S3 shows the parts of an upload only when it is completed.

use std::io;
use std::path::Path as FilePath;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::{BlobBytes, BlobError, BlobStore};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig,
    WriteMultipart,
};
use tokio::io::AsyncReadExt;
use tokio_util::io::StreamReader;

pub use self::credentials::{CredentialsError, S3Credentials};

mod credentials;

/// The size of a part of an upload. A file that is not larger is sent in one request.
const PART_BYTES: u64 = 8 << 20;
/// The maximum number of parts that are used. S3 allows 10,000.
const MAX_PARTS: u64 = 9_000;
/// The number of parts that are sent at the same time.
const PARTS_AT_ONCE: usize = 2;
/// The number of bytes that are read at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// The longest text of an error of the object store.
const MAX_REASON_CHARS: usize = 500;

/// The location of objects, and how the object store is reached.
#[derive(Debug, Clone, Default)]
pub struct S3Options {
    /// The bucket.
    pub bucket: String,
    /// The beginning of the names of objects, without slashes at its ends; may be empty.
    pub prefix: String,
    /// The address of a server with the API of S3; that of AWS if not given.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The credentials; those of the environment if not given.
    pub credentials: Option<S3Credentials>,
    /// Allows an endpoint without TLS.
    pub allow_http: bool,
    /// Milliseconds for which an unreferenced object stays after it was uploaded.
    pub removal_delay_ms: u64,
}

/// Blobs in an object store.
pub struct S3Blobs {
    client: AmazonS3,
    /// `s3://BUCKET/PREFIX`, with the endpoint if it is not that of AWS.
    name: String,
    bucket: String,
    prefix: String,
    removal_delay_ms: u64,
    clock: Clock,
}

impl S3Blobs {
    /// Prepares the access to a bucket. Sends no request. Fails if the options or the environment are not usable.
    ///
    /// Values that the options lack come from the environment variables of AWS, then from the machine's role.
    pub fn new(options: S3Options, clock: Clock) -> Result<Self, String> {
        let S3Options { bucket, prefix, endpoint, region, credentials, allow_http, removal_delay_ms } =
            options;
        let slash = if prefix.is_empty() { "" } else { "/" };
        let at = endpoint.as_ref().map(|endpoint| format!(" at {endpoint}")).unwrap_or_default();
        let name = format!("s3://{bucket}{slash}{prefix}{at}");
        // The whole request has no time limit, since a reader may be slow. Each read has one.
        let client = ClientOptions::new()
            .with_allow_http(allow_http)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout_disabled()
            .with_read_timeout(Duration::from_secs(30));
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: Duration::from_secs(1), ..BackoffConfig::default() },
            max_retries: 3,
            retry_timeout: Duration::from_secs(10),
        };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&bucket)
            .with_client_options(client)
            .with_retry(retry);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        if let Some(credentials) = credentials {
            builder = builder
                .with_access_key_id(credentials.access_key_id)
                .with_secret_access_key(credentials.secret_access_key);
            if let Some(token) = credentials.session_token {
                builder = builder.with_token(token);
            }
        }
        let client = builder.build().map_err(|error| format!("{name}: {}", reason(&error)))?;
        Ok(Self { client, name, bucket, prefix, removal_delay_ms, clock })
    }

    /// Returns the name of the store, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fails if the bucket cannot be listed.
    pub async fn probe(&self) -> Result<(), BlobError> {
        let prefix = (!self.prefix.is_empty()).then(|| Path::from(self.prefix.as_str()));
        let mut listed = self.client.list(prefix.as_ref());
        listed.try_next().await.map(drop).map_err(|error| self.error(&error))
    }

    fn key(&self, hash: &str) -> Path {
        let folder = hash.get(..2).unwrap_or("__");
        match self.prefix.as_str() {
            "" => Path::from(format!("{folder}/{hash}")),
            prefix => Path::from(format!("{prefix}/{folder}/{hash}")),
        }
    }

    fn error(&self, error: &object_store::Error) -> BlobError {
        blob_error(&self.name, error)
    }

    /// Sends a file in one request.
    async fn put_small(&self, hash: &str, mut file: tokio::fs::File) -> Result<(), BlobError> {
        let mut bytes = vec![];
        file.read_to_end(&mut bytes).await.map_err(|error| staging_error(&error))?;
        if blake3::hash(&bytes).to_hex().as_str() != hash {
            return Err(staging_changed());
        }
        let put = self.client.put(&self.key(hash), bytes.into()).await;
        put.map(drop).map_err(|error| self.error(&error))
    }

    /// Sends a file in parts, which become an object when all of them have arrived.
    async fn put_parts(&self, hash: &str, size: u64, file: tokio::fs::File) -> Result<(), BlobError> {
        let part_bytes = PART_BYTES.max(size.div_ceil(MAX_PARTS));
        let upload = self.client.put_multipart(&self.key(hash)).await.map_err(|error| self.error(&error))?;
        let chunk = usize::try_from(part_bytes).unwrap_or(usize::MAX);
        let mut parts = WriteMultipart::new_with_chunk_size(upload, chunk);
        let sent = self.send_parts(hash, &mut parts, file).await;
        match sent {
            Ok(()) => parts.finish().await.map(drop).map_err(|error| self.error(&error)),
            Err(error) => {
                if let Err(left) = parts.abort().await {
                    tracing::warn!(bucket = self.bucket, error = %reason(&left), "parts of an upload are left in the bucket");
                }
                Err(error)
            }
        }
    }

    async fn send_parts(
        &self,
        hash: &str,
        parts: &mut WriteMultipart,
        mut file: tokio::fs::File,
    ) -> Result<(), BlobError> {
        let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; BUFFER_BYTES]);
        loop {
            let read = file.read(&mut buffer).await.map_err(|error| staging_error(&error))?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            parts.wait_for_capacity(PARTS_AT_ONCE).await.map_err(|error| self.error(&error))?;
            parts.write(&buffer[..read]);
        }
        // Checked before the upload is completed: a changed file must not become an object.
        match hasher.finalize().to_hex().as_str() == hash {
            true => Ok(()),
            false => Err(staging_changed()),
        }
    }
}

#[async_trait]
impl BlobStore for S3Blobs {
    fn place(&self, hash: &str) -> String {
        format!("s3://{}/{}", self.bucket, self.key(hash))
    }

    async fn put(&self, hash: &str, size: u64, part: &FilePath) -> Result<(), BlobError> {
        let file = tokio::fs::File::open(part).await.map_err(|error| staging_error(&error))?;
        match size <= PART_BYTES {
            true => self.put_small(hash, file).await?,
            false => self.put_parts(hash, size, file).await?,
        }
        match self.size(hash).await? {
            stored if stored == size => Ok(()),
            stored => Err(BlobError::Unavailable(format!(
                "{}: {} has {stored} bytes after {size} were sent",
                self.name,
                self.key(hash)
            ))),
        }
    }

    async fn open(&self, hash: &str, range: Option<(u64, u64)>) -> Result<BlobBytes, BlobError> {
        // S3 refuses an empty range.
        if range.is_some_and(|(_, length)| length == 0) {
            return Ok(Box::new(tokio::io::empty()));
        }
        let range = range.map(|(from, length)| GetRange::Bounded(from..from.saturating_add(length)));
        let options = GetOptions { range, ..GetOptions::default() };
        let found =
            self.client.get_opts(&self.key(hash), options).await.map_err(|error| self.error(&error))?;
        let name = self.name.clone();
        let stream = found.into_stream().map_err(move |error| io::Error::from(blob_error(&name, &error)));
        Ok(Box::new(StreamReader::new(stream)))
    }

    async fn size(&self, hash: &str) -> Result<u64, BlobError> {
        let found = self.client.head(&self.key(hash)).await;
        found.map(|found| found.size).map_err(|error| self.error(&error))
    }

    fn removal_delay_ms(&self) -> u64 {
        self.removal_delay_ms
    }

    async fn remove(&self, hash: &str) -> Result<bool, BlobError> {
        let key = self.key(hash);
        if self.removal_delay_ms > 0 {
            let found = match self.client.head(&key).await.map_err(|error| self.error(&error)) {
                Err(BlobError::Missing(_)) => return Ok(true),
                found => found?,
            };
            let age_ms = self.clock.now().0.saturating_sub(found.last_modified.timestamp_millis());
            if age_ms < i64::try_from(self.removal_delay_ms).unwrap_or(i64::MAX) {
                return Ok(false);
            }
        }
        match self.client.delete(&key).await.map_err(|error| self.error(&error)) {
            Err(BlobError::Missing(_)) | Ok(()) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for S3Blobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Blobs").field("name", &self.name).finish_non_exhaustive()
    }
}

fn blob_error(name: &str, error: &object_store::Error) -> BlobError {
    let reason = full_reason(error);
    let text = format!("the object store {name}: {}", shorten(&reason));
    match error {
        // A missing bucket is not a missing object.
        object_store::Error::NotFound { .. } if !reason.contains("NoSuchBucket") => BlobError::Missing(text),
        _ => BlobError::Unavailable(text),
    }
}

fn reason(error: &object_store::Error) -> String {
    shorten(&full_reason(error))
}

/// The text of an error with its causes, on one line.
fn full_reason(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_REASON_CHARS).collect()
}

fn staging_error(error: &io::Error) -> BlobError {
    BlobError::Unavailable(format!("the folder in which artifacts are prepared: {error}"))
}

fn staging_changed() -> BlobError {
    BlobError::Unavailable("the artifact has changed on the disk while it was prepared; try again".into())
}
