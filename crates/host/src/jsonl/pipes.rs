//! The two ends of the pipe to the host, each a thread of its own, since a pipe that is full or empty blocks.
//!
//! Invariants: a line goes out whole and in one piece, whoever says it; what waits to go out is bounded by [`ROOM`], so a
//! host that does not read makes those who speak wait and costs no memory.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// How many bytes wait to be written at most; a line that is longer waits alone.
const ROOM: u32 = 1 << 20;
/// How much is written at a time at most, unless one line is longer.
const STRETCH: usize = 64 << 10;
/// How many lines that were read wait to be understood.
const AHEAD: usize = 16;

/// Where lines go out. Cheap to clone.
#[derive(Clone)]
pub(super) struct Out {
    lines: mpsc::UnboundedSender<(Vec<u8>, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
    gone: CancellationToken,
}

impl Out {
    /// Writes to `to` from now on.
    pub(super) fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, waiting) = mpsc::unbounded_channel();
        let gone = CancellationToken::new();
        let out = Self { lines, room: Arc::new(Semaphore::new(ROOM as usize)), gone: gone.clone() };
        std::thread::Builder::new().name("jsonl-out".into()).spawn(move || write(to, waiting, &gone))?;
        Ok(out)
    }

    /// Says a whole line, once there is room for it. To a host that has gone nothing is said.
    pub(super) async fn line(&self, line: Vec<u8>) {
        let room = u32::try_from(line.len()).unwrap_or(ROOM).min(ROOM);
        if let Ok(permit) = self.room.clone().acquire_many_owned(room).await {
            // The thread lives as long as anybody who could say something.
            let _ = self.lines.send((line, permit));
        }
    }

    /// Resolves once everything that was said is written, or nobody is there to read it.
    pub(super) async fn flushed(&self) {
        let _ = self.room.acquire_many(ROOM).await;
    }

    /// Resolves once the host does not read any more.
    pub(super) async fn gone(&self) {
        self.gone.cancelled().await;
    }
}

fn write(
    mut to: impl Write,
    mut waiting: mpsc::UnboundedReceiver<(Vec<u8>, OwnedSemaphorePermit)>,
    gone: &CancellationToken,
) {
    while let Some((mut lines, mut room)) = waiting.blocking_recv() {
        while lines.len() < STRETCH
            && let Ok((line, more)) = waiting.try_recv()
        {
            lines.extend_from_slice(&line);
            room.merge(more);
        }
        if !gone.is_cancelled()
            && let Err(error) = to.write_all(&lines).and_then(|()| to.flush())
        {
            tracing::info!(%error, "the host does not read any more");
            gone.cancel();
        }
    }
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// A line, without its end.
    Line(Vec<u8>),
    /// A line that is longer than allowed, and is lost.
    TooLong,
}

/// Reads lines of at most `limit` bytes from now on; the channel ends with them.
pub(super) fn lines(from: impl Read + Send + 'static, limit: usize) -> io::Result<mpsc::Receiver<Got>> {
    let (lines, read) = mpsc::channel(AHEAD);
    std::thread::Builder::new().name("jsonl-in".into()).spawn(move || {
        let mut from = BufReader::with_capacity(STRETCH, from);
        while let Some(line) = next(&mut from, limit) {
            if lines.blocking_send(line).is_err() {
                break;
            }
        }
    })?;
    Ok(read)
}

/// The next line that says something; none at the end.
fn next(from: &mut impl BufRead, limit: usize) -> Option<Got> {
    let (mut line, mut too_long) = (vec![], false);
    loop {
        let read = match from.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!(%error, "the host cannot be read any more");
                return None;
            }
        };
        let over = read.is_empty();
        let end = read.iter().position(|byte| *byte == b'\n');
        let piece = end.map_or(read, |end| &read[..end]);
        too_long |= line.len() + piece.len() > limit;
        if !too_long {
            line.extend_from_slice(piece);
        }
        let used = end.map_or(read.len(), |end| end + 1);
        from.consume(used);
        if end.is_none() && !over {
            continue;
        }
        let blank = line.iter().all(u8::is_ascii_whitespace);
        match (too_long, blank, over) {
            (true, ..) => return Some(Got::TooLong),
            (false, false, _) => return Some(Got::Line(line)),
            (false, true, true) => return None,
            (false, true, false) => line.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, limit: usize) -> Vec<Got> {
        let mut from = BufReader::with_capacity(3, text.as_bytes());
        std::iter::from_fn(|| next(&mut from, limit)).collect()
    }

    #[test]
    fn lines_end_where_they_end() {
        let line = |text: &str| Got::Line(text.into());
        assert_eq!(read("{a}\r\n\n  \n{bcdef}\n{g}", 10), [line("{a}\r"), line("{bcdef}"), line("{g}")]);
        assert_eq!(read("12345678901\nx\n1234567890", 10), [Got::TooLong, line("x"), line("1234567890")]);
        assert_eq!(read("", 10), []);
    }

    #[tokio::test]
    async fn what_is_said_waits_for_a_host_that_does_not_read_and_ends_with_it() {
        let (read, write) = io::pipe().unwrap();
        let out = Out::start(write).unwrap();
        let line = vec![b'x'; 600 << 10];
        out.line(line.clone()).await;
        let second = out.line(line.clone());
        tokio::pin!(second);
        // The pipe holds 64 KB: the first line waits, and there is no room for a second.
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(read);
        second.await;
        out.gone().await;
        out.flushed().await;
    }
}
