//! Copies of the files of an audit log, for backups.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{files, writer};

/// A file of the log that can be copied while the log is written.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    /// The content, if it was read already.
    content: Option<Vec<u8>>,
}

impl AuditFile {
    /// Opens the file, without an incomplete record at its end. `None` if the file was removed.
    pub fn open(self) -> io::Result<Option<Box<dyn Read>>> {
        if let Some(content) = self.content {
            return Ok(Some(Box::new(io::Cursor::new(content))));
        }
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let end = writer::last_record(&self.path)?.map_or(0, |(_, end)| end);
        file.seek(SeekFrom::Start(0))?;
        Ok(Some(Box::new(file.take(end))))
    }
}

/// Lists the files of the log in `folder` by name. The head comes first, and is read now.
pub fn copies(folder: &Path) -> io::Result<Vec<(String, AuditFile)>> {
    let path = folder.join(files::HEAD);
    let head = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        content => Some((files::HEAD.to_owned(), AuditFile { path, content: Some(content?) })),
    };
    let logs = files::list(folder)?.into_iter().map(|file| {
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, AuditFile { path: file.path, content: None })
    });
    Ok(head.into_iter().chain(logs).collect())
}
