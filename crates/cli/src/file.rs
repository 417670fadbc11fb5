//! Files that commands read and write.

use std::io::{self, Read, Write};
use std::path::Path;
use std::pin::pin;

use futures_util::{Stream, StreamExt};

use super::error::{CliError, Exit};
use super::output::Output;

/// Writes a stream to `file`, or to standard output. A file is written completely or not at all.
pub(super) async fn write_stream(
    output: &Output,
    file: Option<&Path>,
    stream: impl Stream<Item = Result<Vec<u8>, mainspring_client::Error>>,
) -> Result<(), CliError> {
    let mut pieces = pin!(stream);
    let Some(file) = file else {
        while let Some(piece) = pieces.next().await {
            output.print_bytes(&piece?)?;
        }
        return Ok(());
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut part = tempfile::NamedTempFile::new_in(folder).map_err(|error| file_error(file, &error))?;
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
