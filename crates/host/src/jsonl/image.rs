//! Images of queries, stored as artifacts of the session.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use mainspring_client::{ArtifactQuery, Client};
use mainspring_core::{Block, SessionId};

use super::live::Query;
use super::query::Refused;
use super::{Shared, code_and_message};

/// Decodes a base64 image.
pub(super) fn decode(image: &str) -> Result<Vec<u8>, Refused> {
    // Hosts may send a data URL: `data:image/png;base64,…`.
    let encoded = image.split_once("base64,").map_or(image, |(_, encoded)| encoded);
    let invalid = |error| ("invalid_request".to_owned(), format!("imageBase64: {error}"));
    BASE64_STANDARD.decode(encoded.trim()).map_err(invalid)
}

/// Stores an image as an artifact, once per client and request id.
pub(super) async fn store(
    shared: &Shared,
    query: &Query,
    session: SessionId,
    bytes: Vec<u8>,
    client: &str,
) -> Result<Block, Refused> {
    let mime_type = media_type(&bytes);
    let image = ArtifactQuery { kind: Some("image".into()), ..ArtifactQuery::default() };
    let name = blake3::hash(format!("{client}\0{}", query.request).as_bytes()).to_hex().to_string();
    let stored = shared.link.ask(&query.owner, |client: Client| {
        let (image, name, bytes) = (&image, &name, bytes.clone());
        async move { client.artifact_put(&session.to_string(), image, Some(mime_type), bytes, name).await }
    });
    let artifact = stored.await.map_err(|error| code_and_message(&error))?.id;
    Ok(Block::Attachment { artifact, mime_type: mime_type.into(), name: None })
}

/// Detects the image's media type from its first bytes.
fn media_type(bytes: &[u8]) -> &'static str {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => "application/octet-stream",
    }
}
