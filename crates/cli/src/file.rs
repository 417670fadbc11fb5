//! Session export and import files, written atomically.

use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::pin;

use futures_util::StreamExt;

use super::connection::Connection;
use super::error::{CliError, Exit};

/// Writes a session to `file`, or to standard output.
pub(super) async fn export_session(
    connection: &mut Connection<'_>,
    session: &str,
    file: Option<&Path>,
) -> Result<(), CliError> {
    let stream = connection.request(async |client| client.session_export(session).await).await?;
    let mut pieces = pin!(stream);
    let Some(file) = file else {
        while let Some(piece) = pieces.next().await {
            io::stdout().write_all(&piece?)?;
        }
        return Ok(());
    };
    // Writes to a temporary file and renames it, so that `file` is never incomplete.
    let directory =
        file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::NamedTempFile::new_in(directory).map_err(|error| file_error(file, &error))?;
    while let Some(piece) = pieces.next().await {
        part.write_all(&piece?)?;
    }
    part.as_file().sync_all()?;
    part.persist(file).map_err(|error| file_error(file, &error.error))?;
    Ok(())
}

/// Reads a file, or standard input for `-`.
pub(super) fn read_file(file: &Path) -> Result<Vec<u8>, CliError> {
    if file.as_os_str() == "-" {
        let mut bytes = vec![];
        io::stdin().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(|error| file_error(file, &error))
}

/// Error for a file that cannot be read or written.
pub(super) fn file_error(file: &Path, error: &io::Error) -> CliError {
    let message = format!("{} cannot be used: {error}", file.display());
    CliError { exit: Exit::BadRequest, code: "file_unusable".into(), message, retryable: false }
}
