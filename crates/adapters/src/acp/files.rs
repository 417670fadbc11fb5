//! Files that an agent is handed: text, bounded, in its session's folder.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};

use agent_client_protocol::{Error, ErrorCode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

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

/// Opens what `path` was located as in `folder`, through no link at all: since then, one may have been put in the way.
fn open(folder: &Path, path: &Path, how: OFlags) -> Result<File, Error> {
    let folder = folder.canonicalize().map_err(|error| failed(folder, &error))?;
    let odd = || invalid(format!("{} is no file", path.display()));
    let within = path.strip_prefix(&folder).map_err(|_| odd())?;
    let (above, name) = within.parent().zip(within.file_name()).ok_or_else(odd)?;
    let fail = |errno: Errno| failed(path, &errno.into());
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut there = rustix::fs::open(&folder, step, Mode::empty()).map_err(fail)?;
    for part in above {
        let into = || rustix::fs::openat(&there, part, step | OFlags::NOFOLLOW, Mode::empty());
        there = match into() {
            Err(Errno::NOENT) if how.contains(OFlags::CREATE) => {
                match rustix::fs::mkdirat(&there, part, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => into(),
                    Err(error) => Err(error),
                }
            }
            opened => opened,
        }
        .map_err(fail)?;
    }
    // Of what is no file, nothing is waited for.
    let how = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&there, name, how, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(Errno::ISDIR | Errno::NXIO) => return Err(odd()),
        Err(error) => return Err(fail(error)),
    };
    match file.metadata().map_err(|error| failed(path, &error))?.is_file() {
        true => Ok(file),
        false => Err(odd()),
    }
}

/// The text of a file, or `limit` lines of it from line `line` on, counted from 1.
pub(super) fn read(
    folder: &Path,
    path: &Path,
    line: Option<u32>,
    limit: Option<u32>,
) -> Result<String, Error> {
    let file = open(folder, path, OFlags::RDONLY)?;
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
pub(super) fn write(folder: &Path, path: &Path, content: &str) -> Result<(), Error> {
    if content.len() as u64 > BYTES {
        return Err(invalid(format!("at most {BYTES} bytes are written at once")));
    }
    let mut file = open(folder, path, OFlags::WRONLY | OFlags::CREATE)?;
    let written = file.set_len(0).and_then(|()| file.write_all(content.as_bytes()));
    written.map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::NotFound => ErrorCode::RESOURCE_NOT_FOUND,
        _ => ErrorCode::INTERNAL_ERROR,
    };
    Error::new(code, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder that is gone with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("mainspring-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder.canonicalize().unwrap())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_link_that_is_put_in_the_way_after_the_decision_leads_nowhere() {
        let (inside, outside) = (Folder::new("inside"), Folder::new("outside"));
        let folder = inside.0.clone();
        let secret = outside.0.join("notes.txt");
        std::fs::write(&secret, "secret").unwrap();
        std::fs::create_dir(folder.join("deep")).unwrap();
        std::fs::write(folder.join("deep/notes.txt"), "mine").unwrap();
        let decided = locate(&folder, &folder.join("deep/notes.txt")).unwrap();
        assert_eq!(read(&folder, &decided, None, None).unwrap(), "mine");
        // First the file, then the folder that it is in.
        std::fs::remove_file(folder.join("deep/notes.txt")).unwrap();
        symlink(&secret, folder.join("deep/notes.txt")).unwrap();
        for _ in 0..2 {
            assert!(read(&folder, &decided, None, None).is_err());
            assert!(write(&folder, &decided, "changed").is_err());
            assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
            std::fs::remove_dir_all(folder.join("deep"))
                .or_else(|_| std::fs::remove_file(folder.join("deep")))
                .unwrap();
            symlink(&outside.0, folder.join("deep")).unwrap();
        }
    }

    #[test]
    fn folders_are_made_and_what_is_no_file_is_not_waited_for() {
        let inside = Folder::new("made");
        let folder = inside.0.clone();
        let path = locate(&folder, &folder.join("a/b/c.txt")).unwrap();
        for content in ["a longer text", "short"] {
            write(&folder, &path, content).unwrap();
            assert_eq!(read(&folder, &path, None, None).unwrap(), content);
        }
        let pipe = folder.join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for odd in [pipe, folder.join("a"), folder.clone()] {
            let error = read(&folder, &odd, None, None).unwrap_err();
            assert!(error.message.contains("is no file"), "{odd:?}: {error:?}");
            assert!(write(&folder, &odd, "x").is_err());
        }
    }
}
