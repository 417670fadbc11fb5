//! Attachments of a prompt: stored as artifacts of its session, then referenced by the prompt.

use std::path::{Path, PathBuf};

use mainspring_client::{ArtifactQuery, Prompt, PromptContent, SessionTarget};
use mainspring_core::Block;

use super::connection::Connection;
use super::error::CliError;
use super::file;

/// Media types by file extension.
const MEDIA_TYPES: &[(&str, &str)] = &[
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("pdf", "application/pdf"),
    ("txt", "text/plain"),
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("toml", "application/toml"),
];

/// A file to attach to a prompt.
pub(super) struct Attachment {
    name: String,
    mime_type: String,
    bytes: Vec<u8>,
}

/// Reads the files to attach to a prompt.
pub(super) fn read_files(paths: &[PathBuf]) -> Result<Vec<Attachment>, CliError> {
    let read = |path: &PathBuf| {
        let bytes = file::read_file(path)?;
        let name = match path.file_name() {
            Some(name) if path.as_os_str() != "-" => name.to_string_lossy().into_owned(),
            _ => "standard input".to_owned(),
        };
        Ok(Attachment { mime_type: media_type(path, &bytes).to_owned(), name, bytes })
    };
    paths.iter().map(read).collect()
}

/// Stores `files` as artifacts of the prompt's session (created if new) and references them in the prompt. Their
/// idempotency keys derive from the prompt's, so that the prompt can be sent again.
pub(super) async fn attach_files(
    connection: &mut Connection<'_>,
    mut prompt: Prompt,
    files: &[Attachment],
) -> Result<Prompt, CliError> {
    if files.is_empty() {
        return Ok(prompt);
    }
    let name = match (&prompt.idempotency_key, &prompt.client_id, &prompt.request_id) {
        (Some(key), ..) => key.clone(),
        (None, Some(client), Some(request)) => format!("{client}.{request}"),
        _ => return Err(CliError::bad_request("a prompt with files needs a name")),
    };
    let session = match prompt.session.session_id {
        Some(id) => id,
        None => {
            let (target, name) = (prompt.session.clone(), format!("{name}.session"));
            connection
                .request(async |client| client.session_resolve(&target, Some(&name)).await)
                .await?
                .session
                .id
        }
    };
    let id = session.to_string();
    let mut blocks = prompt.prompt.take().map(PromptContent::into_blocks).unwrap_or_default();
    for (no, file) in files.iter().enumerate() {
        let key = format!("{name}.file.{no}");
        let artifact = ArtifactQuery { name: Some(file.name.clone()), ..ArtifactQuery::default() };
        let upload = async |client: &mainspring_client::Client| {
            client.artifact_put(&id, &artifact, Some(&file.mime_type), file.bytes.clone(), &key).await
        };
        let artifact = connection.request(upload).await?;
        blocks.push(Block::Attachment {
            artifact: artifact.id,
            mime_type: file.mime_type.clone(),
            name: Some(file.name.clone()),
        });
    }
    prompt.prompt = PromptContent::from_blocks(blocks);
    prompt.session = SessionTarget { session_id: Some(session), ..SessionTarget::default() };
    Ok(prompt)
}

/// Guesses the media type by file extension, else by whether the bytes are text.
fn media_type(path: &Path, bytes: &[u8]) -> &'static str {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default();
    match MEDIA_TYPES.iter().find(|(known, _)| *known == extension) {
        Some((_, kind)) => kind,
        None if !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok() => "text/plain",
        None => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_is_guessed_from_the_extension_or_the_bytes() {
        let kind = |name: &str, bytes: &[u8]| media_type(Path::new(name), bytes);
        assert_eq!(kind("a.PNG", b"x"), "image/png");
        assert_eq!(kind("main.rs", "fn ä() {}".as_bytes()), "text/plain");
        assert_eq!(kind("core", &[0, 1, 2]), "application/octet-stream");
        assert_eq!(kind("-", &[0xFF]), "application/octet-stream");
    }
}
