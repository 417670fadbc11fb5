//! Text files that an agent reads and writes through its client: bounded, and inside the session's folder.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};

use agent_client_protocol::{Error, ErrorCode};
use mainspring_kernel::folders::Folders;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::client::invalid_params;

/// The most bytes that one request reads or writes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// The files that an agent may reach through its client.
pub(super) struct Workspace {
    /// The session's folder, with its links resolved. If the folder is replaced by a link, no file in it can be opened.
    pub(super) folder: PathBuf,
    pub(super) folders: Folders,
}

impl Workspace {
    /// Resolves every symbolic link in `path`, which need not exist. Fails if the result is outside of the folder or in the
    /// state directory.
    pub(super) fn locate(&self, path: &Path) -> Result<PathBuf, Error> {
        if !path.is_absolute() {
            return Err(invalid_params(format!("{} is not absolute", path.display())));
        }
        let mut existing = path.to_owned();
        let mut missing: Vec<OsString> = vec![];
        let real = loop {
            match existing.canonicalize() {
                Ok(real) => break real,
                // A dangling link is not a missing file: writing would follow it.
                Err(error) if error.kind() == ErrorKind::NotFound && existing.symlink_metadata().is_err() => {
                    let Some(Component::Normal(name)) = existing.components().next_back() else {
                        return Err(invalid_params(format!("{} cannot be resolved", path.display())));
                    };
                    missing.push(name.to_owned());
                    existing.pop();
                }
                Err(error) => return Err(io_error(path, &error)),
            }
        };
        let real = missing.into_iter().rev().fold(real, |path, name| path.join(name));
        let outside = |place: String| Err(invalid_params(format!("{} is {place}", path.display())));
        match real.starts_with(&self.folder) {
            false => outside(format!("outside of the session's folder {}", self.folder.display())),
            true if self.folders.is_in_state_dir(&real) => {
                outside("in the state directory of mainspring".into())
            }
            true => Ok(real),
        }
    }

    /// Opens a path returned by [`Workspace::locate`]. Follows no link, because a link may have been created in the
    /// meantime.
    fn open(&self, path: &Path, flags: OFlags) -> Result<File, Error> {
        let not_a_file = || invalid_params(format!("{} is not a regular file", path.display()));
        let relative = path.strip_prefix(&self.folder).map_err(|_| not_a_file())?;
        let (parents, name) = relative.parent().zip(relative.file_name()).ok_or_else(not_a_file)?;
        let to_error = |errno: Errno| io_error(path, &errno.into());
        let folder_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut parent = rustix::fs::open("/", folder_flags, Mode::empty()).map_err(to_error)?;
        let above = self.folder.strip_prefix("/").unwrap_or(&self.folder);
        let steps = above.iter().map(|part| (part, false)).chain(parents.iter().map(|part| (part, true)));
        for (part, may_create) in steps {
            let enter = || rustix::fs::openat(&parent, part, folder_flags | OFlags::NOFOLLOW, Mode::empty());
            parent = match enter() {
                Err(Errno::NOENT) if may_create && flags.contains(OFlags::CREATE) => {
                    match rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => enter(),
                        Err(error) => Err(error),
                    }
                }
                opened => opened,
            }
            .map_err(to_error)?;
        }
        // NONBLOCK: opening a pipe must not wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => File::from(file),
            Err(Errno::ISDIR | Errno::NXIO) => return Err(not_a_file()),
            Err(error) => return Err(to_error(error)),
        };
        match file.metadata().map_err(|error| io_error(path, &error))?.is_file() {
            true => Ok(file),
            false => Err(not_a_file()),
        }
    }

    /// Reads the text of a file, or `limit` lines starting at line `line`, counted from 1.
    pub(super) fn read(&self, path: &Path, line: Option<u32>, limit: Option<u32>) -> Result<String, Error> {
        let file = self.open(path, OFlags::RDONLY)?;
        let mut text = vec![];
        let mut lines = BufReader::new(file);
        for _ in 1..line.unwrap_or(1) {
            let skipped = lines.skip_until(b'\n').map_err(|error| io_error(path, &error))?;
            if skipped == 0 {
                break;
            }
        }
        match limit {
            None => {
                lines
                    .take(MAX_FILE_BYTES + 1)
                    .read_to_end(&mut text)
                    .map_err(|error| io_error(path, &error))?;
            }
            Some(limit) => {
                for _ in 0..limit {
                    let room = (MAX_FILE_BYTES + 1).saturating_sub(text.len() as u64);
                    let read = (&mut lines).take(room).read_until(b'\n', &mut text);
                    if read.map_err(|error| io_error(path, &error))? == 0 {
                        break;
                    }
                }
            }
        }
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(invalid_params(format!(
                "{} has more than {MAX_FILE_BYTES} bytes: ask for fewer lines, by line and limit",
                path.display()
            )));
        }
        String::from_utf8(text).map_err(|_| invalid_params(format!("{} is not UTF-8 text", path.display())))
    }

    /// Replaces the content of a file. Creates the file and its folders if they do not exist.
    pub(super) fn write(&self, path: &Path, content: &str) -> Result<(), Error> {
        if content.len() as u64 > MAX_FILE_BYTES {
            return Err(invalid_params(format!("at most {MAX_FILE_BYTES} bytes are written at once")));
        }
        let mut file = self.open(path, OFlags::WRONLY | OFlags::CREATE)?;
        let written = file.set_len(0).and_then(|()| file.write_all(content.as_bytes()));
        written.map_err(|error| io_error(path, &error))
    }
}

fn io_error(path: &Path, error: &io::Error) -> Error {
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

    fn temporary_folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    fn workspace(folder: &Path) -> Workspace {
        Workspace { folder: folder.to_owned(), folders: Folders::default() }
    }

    fn locate(folder: &Path, path: &Path) -> Result<PathBuf, Error> {
        workspace(folder).locate(path)
    }

    fn read(folder: &Path, path: &Path, line: Option<u32>, limit: Option<u32>) -> Result<String, Error> {
        workspace(folder).read(path, line, limit)
    }

    fn write(folder: &Path, path: &Path, content: &str) -> Result<(), Error> {
        workspace(folder).write(path, content)
    }

    #[test]
    fn the_state_directory_is_never_reached() {
        let (_root, root) = temporary_folder();
        std::fs::create_dir_all(root.join("home/.state/keys")).unwrap();
        std::fs::write(root.join("home/.state/token"), "secret").unwrap();
        let folders = Folders { state_dir: Some(root.join("home/.state")), allowed: None };
        let home = Workspace { folder: root.join("home"), folders };
        symlink(root.join("home/.state"), root.join("home/link")).unwrap();
        for path in [".state/token", "link/token", ".state/new", "x/../.state/token", "link/../.state/token"]
        {
            assert!(home.locate(&root.join("home").join(path)).is_err(), "{path}");
        }
        assert!(home.locate(&root.join("home/.statement")).is_ok());
        // The session's folder is replaced by a link to the state directory after it was checked.
        std::fs::create_dir(root.join("work")).unwrap();
        std::fs::write(root.join("work/token"), "mine").unwrap();
        let work = Workspace { folder: root.join("work"), ..home };
        let decided = work.locate(&root.join("work/token")).unwrap();
        std::fs::rename(root.join("work"), root.join("old")).unwrap();
        symlink(root.join("home/.state"), root.join("work")).unwrap();
        assert!(work.locate(&root.join("work/token")).is_err());
        assert!(work.read(&decided, None, None).is_err());
        assert!(work.write(&decided, "changed").is_err());
        assert_eq!(std::fs::read_to_string(root.join("home/.state/token")).unwrap(), "secret");
    }

    #[test]
    fn a_link_created_after_the_decision_is_not_followed() {
        let ((_inside, folder), (_outside, outside)) = (temporary_folder(), temporary_folder());
        let secret = outside.join("notes.txt");
        std::fs::write(&secret, "secret").unwrap();
        std::fs::create_dir(folder.join("deep")).unwrap();
        std::fs::write(folder.join("deep/notes.txt"), "mine").unwrap();
        let decided = locate(&folder, &folder.join("deep/notes.txt")).unwrap();
        assert_eq!(read(&folder, &decided, None, None).unwrap(), "mine");
        // First the file is replaced by a link, then its folder.
        std::fs::remove_file(folder.join("deep/notes.txt")).unwrap();
        symlink(&secret, folder.join("deep/notes.txt")).unwrap();
        for _ in 0..2 {
            assert!(read(&folder, &decided, None, None).is_err());
            assert!(write(&folder, &decided, "changed").is_err());
            assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
            std::fs::remove_dir_all(folder.join("deep"))
                .or_else(|_| std::fs::remove_file(folder.join("deep")))
                .unwrap();
            symlink(&outside, folder.join("deep")).unwrap();
        }
    }

    #[test]
    fn folders_are_created_and_special_files_are_refused_without_blocking() {
        let (_folder, folder) = temporary_folder();
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
        for path in [pipe, folder.join("a"), folder.clone()] {
            let error = read(&folder, &path, None, None).unwrap_err();
            assert!(error.message.contains("is not a regular file"), "{path:?}: {error:?}");
            assert!(write(&folder, &path, "x").is_err());
        }
    }

    #[test]
    fn the_requested_lines_are_read() {
        let (_folder, folder) = temporary_folder();
        let path = folder.join("lines.txt");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        for (line, limit, expected) in [
            (None, None, "one\ntwo\nthree"),
            (Some(2), None, "two\nthree"),
            (None, Some(2), "one\ntwo\n"),
            (Some(2), Some(1), "two\n"),
            (Some(3), Some(9), "three"),
            (Some(9), None, ""),
            (Some(0), Some(0), ""),
        ] {
            assert_eq!(read(&folder, &path, line, limit).unwrap(), expected, "{line:?} {limit:?}");
        }
    }

    #[test]
    fn large_files_are_refused_but_can_be_read_in_parts() {
        let (_folder, folder) = temporary_folder();
        let path = folder.join("large.txt");
        let line = "x".repeat(1 << 20) + "\n";
        std::fs::write(&path, line.repeat(9)).unwrap();
        let error = read(&folder, &path, None, None).unwrap_err();
        assert!(error.message.contains("more than 8388608 bytes"), "{error:?}");
        assert!(read(&folder, &path, Some(1), Some(8)).is_err(), "eight such lines are too many, too");
        assert_eq!(read(&folder, &path, Some(9), Some(1)).unwrap(), line);
        assert!(write(&folder, &path, &line.repeat(8)).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), line.len() as u64 * 9, "nothing was written");
    }
}
