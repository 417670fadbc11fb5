//! Files that an agent is handed: text, bounded, in its session's folder.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use agent_client_protocol::{Error, ErrorCode};

use super::client::invalid;

/// Bytes of a file that are handed over or taken at once.
const BYTES: u64 = 8 << 20;

/// Where `path` really is, through every link; refused if that is not in `folder`. What does not exist yet is where it
/// would be.
pub(super) fn locate(folder: &Path, path: &Path) -> Result<PathBuf, Error> {
    if !path.is_absolute() {
        return Err(invalid(format!("{} is not absolute", path.display())));
    }
    let folder = folder.canonicalize().map_err(|error| failed(folder, &error))?;
    let mut there = path.to_owned();
    let mut missing: Vec<OsString> = vec![];
    let real = loop {
        match there.canonicalize() {
            Ok(real) => break real,
            // A link to what does not exist would be followed by who writes there.
            Err(error) if error.kind() == ErrorKind::NotFound && there.symlink_metadata().is_err() => {
                let Some(Component::Normal(name)) = there.components().next_back() else {
                    return Err(invalid(format!("{} leads nowhere", path.display())));
                };
                missing.push(name.to_owned());
                there.pop();
            }
            Err(error) => return Err(failed(path, &error)),
        }
    };
    if !real.starts_with(&folder) {
        let message = format!("{} is outside of the session's folder {}", path.display(), folder.display());
        return Err(invalid(message));
    }
    Ok(missing.into_iter().rev().fold(real, |there, name| there.join(name)))
}

/// The text of a file, or `limit` lines of it from line `line` on, counted from 1.
pub(super) fn read(path: &Path, line: Option<u32>, limit: Option<u32>) -> Result<String, Error> {
    let file = File::open(path).map_err(|error| failed(path, &error))?;
    let about = file.metadata().map_err(|error| failed(path, &error))?;
    if !about.is_file() {
        return Err(invalid(format!("{} is no file", path.display())));
    }
    let too_large = || {
        let message =
            format!("{} has more than {BYTES} bytes: ask for fewer lines, by line and limit", path.display());
        Err(invalid(message))
    };
    let mut text = vec![];
    let mut lines = BufReader::new(file);
    for _ in 1..line.unwrap_or(1) {
        let skipped = lines.skip_until(b'\n').map_err(|error| failed(path, &error))?;
        if skipped == 0 {
            break;
        }
    }
    match limit {
        None => {
            lines.take(BYTES + 1).read_to_end(&mut text).map_err(|error| failed(path, &error))?;
        }
        Some(limit) => {
            for _ in 0..limit {
                let room = (BYTES + 1).saturating_sub(text.len() as u64);
                let read = (&mut lines).take(room).read_until(b'\n', &mut text);
                if read.map_err(|error| failed(path, &error))? == 0 {
                    break;
                }
            }
        }
    }
    if text.len() as u64 > BYTES {
        return too_large();
    }
    String::from_utf8(text).map_err(|_| invalid(format!("{} is no text", path.display())))
}

/// Makes `content` the whole of a file, and the folders it is in.
pub(super) fn write(path: &Path, content: &str) -> Result<(), Error> {
    if content.len() as u64 > BYTES {
        return Err(invalid(format!("at most {BYTES} bytes are written at once")));
    }
    if path.metadata().is_ok_and(|about| !about.is_file()) {
        return Err(invalid(format!("{} is no file", path.display())));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    std::fs::write(path, content).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::NotFound => ErrorCode::RESOURCE_NOT_FOUND,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    Error::new(code, format!("{}: {error}", path.display()))
}
