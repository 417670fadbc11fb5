//! Session export and import files, written atomically.

use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::pin;

use futures_util::StreamExt;

use super::fail::{Exit, Fail};
use super::home::Home;

/// Writes a session to `file`, or to standard output.
pub(super) async fn export(home: &mut Home<'_>, session: &str, file: Option<&Path>) -> Result<(), Fail> {
    let stream = home.ask(async |client| client.session_export(session).await).await?;
    let mut pieces = pin!(stream);
    let Some(file) = file else {
        while let Some(piece) = pieces.next().await {
            io::stdout().write_all(&piece?)?;
        }
        return Ok(());
    };
    // Writes to a temporary file and renames it, so that `file` is never incomplete.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::NamedTempFile::new_in(folder).map_err(|error| unusable(file, &error))?;
    while let Some(piece) = pieces.next().await {
        part.write_all(&piece?)?;
    }
    part.as_file().sync_all()?;
    part.persist(file).map_err(|error| unusable(file, &error.error))?;
    Ok(())
}

/// Reads a file, or standard input for `-`.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, Fail> {
    if file.as_os_str() == "-" {
        let mut bytes = vec![];
        io::stdin().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(|error| unusable(file, &error))
}

/// Error for a file that cannot be read or written.
pub(super) fn unusable(file: &Path, error: &io::Error) -> Fail {
    let message = format!("{} cannot be used: {error}", file.display());
    Fail { exit: Exit::BadRequest, code: "file_unusable".into(), message, retryable: false }
}
