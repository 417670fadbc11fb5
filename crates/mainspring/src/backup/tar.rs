//! The part of the tar format that backups need: regular files with short names, as `tar` writes and reads them.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Take, Write};
use std::path::Path;

use super::file_make;

const BLOCK_BYTES: usize = 512;
/// The largest size that fits into the octal digits of a header.
const MAX_OCTAL: u64 = 0o77_777_777_777;

/// Writes a tar file.
pub(super) struct TarWriter(BufWriter<File>);

impl TarWriter {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(BufWriter::new(file_make(path)?)))
    }

    /// Adds all of `file` under `name`.
    pub(super) fn add(&mut self, name: &str, file: &mut File) -> io::Result<()> {
        let size = file.metadata()?.len();
        self.0.write_all(&header(name, size)?)?;
        let copied = io::copy(&mut file.take(size), &mut self.0)?;
        if copied != size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        self.0.write_all(&[0; BLOCK_BYTES][..padding(size)])
    }

    /// Ends the archive and makes it durable.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.0.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.0.into_inner()?.sync_all()
    }
}

/// Returns the number of bytes that fill the last block.
fn padding(size: u64) -> usize {
    let rest = usize::try_from(size % BLOCK_BYTES as u64).unwrap_or_default();
    (BLOCK_BYTES - rest) % BLOCK_BYTES
}

fn header(name: &str, size: u64) -> io::Result<[u8; BLOCK_BYTES]> {
    let mut header = [0; BLOCK_BYTES];
    if name.len() >= 100 || size > MAX_OCTAL {
        let text = format!("{name} does not fit into a tar file: make the backup as a folder");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // The checksum is computed with spaces in its own place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum = checksum(&header);
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

fn checksum(header: &[u8; BLOCK_BYTES]) -> u32 {
    let byte = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) };
    header.iter().enumerate().map(byte).sum()
}

/// Reads the files of a tar file, one after the other.
pub(super) struct TarReader(BufReader<File>);

/// A file in a tar file. Content that is left unread is skipped.
pub(super) struct TarFile<'a> {
    pub(super) name: String,
    pub(super) content: Take<&'a mut BufReader<File>>,
}

impl TarReader {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(BufReader::new(File::open(path)?)))
    }

    /// Passes each regular file to `read`, which may leave some of it unread.
    pub(super) fn each<E: From<io::Error>>(
        &mut self,
        mut read: impl FnMut(&mut TarFile<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let mut header = [0; BLOCK_BYTES];
            self.0.read_exact(&mut header)?;
            if header == [0; BLOCK_BYTES] {
                return Ok(());
            }
            let size = size_of(&header)?;
            let mut file = TarFile { name: name_of(&header)?, content: (&mut self.0).take(size) };
            // Only regular files: folders have no content, and backups contain nothing else.
            if matches!(header[156], b'0' | 0) {
                read(&mut file)?;
            }
            let unread = file.content.limit();
            let skip = i64::try_from(unread + padding(size) as u64).map_err(io::Error::other)?;
            self.0.seek_relative(skip)?;
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a tar file of a backup: {what}"))
}

fn size_of(header: &[u8; BLOCK_BYTES]) -> io::Result<u64> {
    let wanted = octal(&header[148..156]).ok_or_else(|| invalid("no checksum"))?;
    if u64::from(checksum(header)) != wanted {
        return Err(invalid("a header is damaged"));
    }
    octal(&header[124..136]).ok_or_else(|| invalid("a size is damaged"))
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

fn name_of(header: &[u8; BLOCK_BYTES]) -> io::Result<String> {
    let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| invalid("a name is not UTF-8"))?;
    // `tar` in a folder writes `./manifest.json`.
    Ok(name.strip_prefix("./").unwrap_or(name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let contents = [("a", vec![]), ("b/c", vec![7; 512]), ("d", vec![9; 70_001])];
        let path = folder.path().join("test.tar");
        let mut writer = TarWriter::create(&path).unwrap();
        for (name, content) in &contents {
            let file = folder.path().join("content");
            std::fs::write(&file, content).unwrap();
            writer.add(name, &mut File::open(&file).unwrap()).unwrap();
        }
        writer.finish().unwrap();
        let mut read = vec![];
        let mut tar = TarReader::open(&path).unwrap();
        tar.each::<io::Error>(|file| {
            let mut content = vec![];
            file.content.read_to_end(&mut content)?;
            read.push((file.name.clone(), content));
            Ok(())
        })
        .unwrap();
        let written: Vec<_> = contents.map(|(name, content)| (name.to_owned(), content)).into();
        assert!(read == written);
    }
}
