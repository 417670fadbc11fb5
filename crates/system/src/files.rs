//! Reading small files that a configuration names: regular files of a bounded size, so that a device, a pipe or a huge
//! file neither fills the memory nor blocks the start.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The largest configuration, certificate, key or definition, in bytes.
pub const SMALL_FILE_MAX_BYTES: u64 = 1 << 20;

/// Reads a regular file of at most [`SMALL_FILE_MAX_BYTES`]. The null device counts as an empty file, so that a setting
/// can name it in place of a file.
pub fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    if path == Path::new("/dev/null") {
        return Ok(vec![]);
    }
    // Checked before the file is opened: opening a pipe waits for its writer.
    check_regular(fs::metadata(path)?.is_file())?;
    let file = File::open(path)?;
    check_regular(file.metadata()?.is_file())?;
    let mut bytes = vec![];
    file.take(SMALL_FILE_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > SMALL_FILE_MAX_BYTES {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {SMALL_FILE_MAX_BYTES} bytes"),
        )),
        false => Ok(bytes),
    }
}

/// Reads a regular file of UTF-8 text, like [`read_small`].
pub fn read_small_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_small(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn check_regular(is_file: bool) -> io::Result<()> {
    match is_file {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_refused_and_the_null_device_is_empty() {
        assert!(read_small(Path::new("/dev/null")).unwrap().is_empty());
        let error = read_small(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
    }
}
