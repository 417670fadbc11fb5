//! The pipes from and to the host, each with its own thread because pipe I/O blocks.
//!
//! Invariants: lines are written atomically; the output queue is limited to [`QUEUE_MAX_BYTES`] bytes, so a host that
//! does not read blocks the senders instead of using memory.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Maximum bytes in the output queue; a longer line is queued alone.
const QUEUE_MAX_BYTES: u32 = 1 << 20;
/// Size up to which lines are joined for one write.
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of lines read ahead.
const READ_AHEAD_LINES: usize = 16;

/// The output to the host. Cheap to clone.
#[derive(Clone)]
pub(super) struct Output {
    lines: mpsc::UnboundedSender<(Vec<u8>, OwnedSemaphorePermit)>,
    capacity: Arc<Semaphore>,
    disconnected: CancellationToken,
}

impl Output {
    /// Starts the thread that writes to `to`.
    pub(super) fn start(to: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, waiting) = mpsc::unbounded_channel();
        let disconnected = CancellationToken::new();
        let output = Self {
            lines,
            capacity: Arc::new(Semaphore::new(QUEUE_MAX_BYTES as usize)),
            disconnected: disconnected.clone(),
        };
        std::thread::Builder::new()
            .name("jsonl-out".into())
            .spawn(move || write_lines(to, waiting, &disconnected))?;
        Ok(output)
    }

    /// Queues a line, waiting for room. Lines to a disconnected host are dropped.
    pub(super) async fn line(&self, line: Vec<u8>) {
        let bytes = u32::try_from(line.len()).unwrap_or(QUEUE_MAX_BYTES).min(QUEUE_MAX_BYTES);
        if let Ok(permit) = self.capacity.clone().acquire_many_owned(bytes).await {
            // The thread lives as long as any `Output`.
            let _ = self.lines.send((line, permit));
        }
    }

    /// Resolves once all queued lines are written or dropped.
    pub(super) async fn flushed(&self) {
        let _ = self.capacity.acquire_many(QUEUE_MAX_BYTES).await;
    }

    /// Resolves once the host no longer reads.
    pub(super) async fn disconnected(&self) {
        self.disconnected.cancelled().await;
    }
}

fn write_lines(
    mut to: impl Write,
    mut waiting: mpsc::UnboundedReceiver<(Vec<u8>, OwnedSemaphorePermit)>,
    disconnected: &CancellationToken,
) {
    while let Some((mut lines, mut permit)) = waiting.blocking_recv() {
        while lines.len() < CHUNK_BYTES
            && let Ok((line, more)) = waiting.try_recv()
        {
            lines.extend_from_slice(&line);
            permit.merge(more);
        }
        if !disconnected.is_cancelled()
            && let Err(error) = to.write_all(&lines).and_then(|()| to.flush())
        {
            tracing::info!(%error, "the host no longer reads its output");
            disconnected.cancel();
        }
    }
}

/// One line of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A line without its newline.
    Line(Vec<u8>),
    /// A line over the limit, which was discarded.
    TooLong,
}

/// Starts the thread that reads lines of at most `limit` bytes. The channel closes at the end of the input.
pub(super) fn lines(from: impl Read + Send + 'static, limit: usize) -> io::Result<mpsc::Receiver<Input>> {
    let (lines, read) = mpsc::channel(READ_AHEAD_LINES);
    std::thread::Builder::new().name("jsonl-in".into()).spawn(move || {
        let mut from = BufReader::with_capacity(CHUNK_BYTES, from);
        while let Some(line) = next_line(&mut from, limit) {
            if lines.blocking_send(line).is_err() {
                break;
            }
        }
    })?;
    Ok(read)
}

/// Reads the next line that is not blank; `None` at the end of the input.
fn next_line(from: &mut impl BufRead, limit: usize) -> Option<Input> {
    let (mut line, mut too_long) = (vec![], false);
    loop {
        let read = match from.fill_buf() {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!(%error, "reading from the host failed");
                return None;
            }
        };
        let at_end = read.is_empty();
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(read, |end| &read[..end]);
        too_long |= line.len() + part.len() > limit;
        if !too_long {
            line.extend_from_slice(part);
        }
        let consumed = end.map_or(read.len(), |end| end + 1);
        from.consume(consumed);
        if end.is_none() && !at_end {
            continue;
        }
        let blank = line.iter().all(u8::is_ascii_whitespace);
        match (too_long, blank, at_end) {
            (true, ..) => return Some(Input::TooLong),
            (false, false, _) => return Some(Input::Line(line)),
            (false, true, true) => return None,
            (false, true, false) => line.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, limit: usize) -> Vec<Input> {
        let mut from = BufReader::with_capacity(3, text.as_bytes());
        std::iter::from_fn(|| next_line(&mut from, limit)).collect()
    }

    #[test]
    fn lines_are_split_and_limited() {
        let line = |text: &str| Input::Line(text.into());
        assert_eq!(read("{a}\r\n\n  \n{bcdef}\n{g}", 10), [line("{a}\r"), line("{bcdef}"), line("{g}")]);
        assert_eq!(read("12345678901\nx\n1234567890", 10), [Input::TooLong, line("x"), line("1234567890")]);
        assert_eq!(read("", 10), []);
    }

    #[tokio::test]
    async fn output_waits_for_a_slow_host_and_ends_when_it_disconnects() {
        let (read, write) = io::pipe().unwrap();
        let output = Output::start(write).unwrap();
        let line = vec![b'x'; 600 << 10];
        output.line(line.clone()).await;
        let second = output.line(line.clone());
        tokio::pin!(second);
        // The pipe holds 64 KB: the first line waits, and there is no room for a second.
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(read);
        second.await;
        output.disconnected().await;
        output.flushed().await;
    }
}
