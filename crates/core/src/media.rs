//! Media types of contents.
//!
//! A declared media type is believed unless the content shows that it is false. Only a few types are checked: images and
//! documents that are sent to models with their declared type, and whose first bytes are unmistakable.

/// Number of bytes at the beginning of a content that [`media_type`] needs.
pub const HEAD_BYTES: usize = 512;

/// The media type of contents of unknown type.
pub const ANY: &str = "application/octet-stream";

/// Types that the first bytes prove or rule out: contents of such a type always begin with the same bytes, and no other
/// content begins with them.
const CERTAIN: &[&str] = &["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"];

/// Media types, each with the bytes that identify it and their offset. Checked in order.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"\0asm", "application/wasm"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
];

/// Decides the media type of a content that begins with `head`: the declared one, unless there is none or it is false.
pub fn media_type(declared: Option<&str>, head: &[u8]) -> String {
    let found = detect(head);
    let essence = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match declared {
        Some(declared) if essence(declared) != ANY => {
            let essence = essence(declared);
            let is_certain = |kind: &str| CERTAIN.contains(&kind);
            let is_false =
                found != Some(essence.as_str()) && (is_certain(&essence) || found.is_some_and(is_certain));
            if is_false { found.unwrap_or(ANY).into() } else { declared.into() }
        }
        _ => found.unwrap_or(ANY).into(),
    }
}

/// Detects the type of a content by its first bytes; `None` if it is not known.
fn detect(head: &[u8]) -> Option<&'static str> {
    let begins = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let riff = |kind: &[u8]| begins(0, b"RIFF") && begins(8, kind);
    match () {
        () if riff(b"WEBP") => return Some("image/webp"),
        () if riff(b"WAVE") => return Some("audio/wav"),
        () => {}
    }
    let signature = SIGNATURES.iter().find(|(at, bytes, _)| begins(*at, bytes));
    signature.map(|(_, _, kind)| *kind).or_else(|| is_text(head).then_some("text/plain"))
}

/// True if the content begins with text in UTF-8. Its last character may be cut.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_plain = |char: char| !char.is_control() || matches!(char, '\t' | '\n' | '\r' | '\u{c}' | '\u{1b}');
    !text.is_empty() && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

    #[test]
    fn content_without_a_declared_type_gets_the_type_of_its_first_bytes() {
        for (head, kind) in [
            (PNG, "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
            (b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav"),
            (b"\0\0\0\x18ftypavif", "image/avif"),
            (b"\0\0\0\x18ftypisom", "video/mp4"),
            (b"%PDF-1.7", "application/pdf"),
            (b"PK\x03\x04", "application/zip"),
            ("hello wörl".as_bytes(), "text/plain"),
            // The last character is cut.
            (&"hello wö".as_bytes()[..8], "text/plain"),
            (b"\0\x01\x02", ANY),
            (b"\xff\xfe\x00", ANY),
            (b"RIFF", "text/plain"),
            (b"", ANY),
        ] {
            for declared in [None, Some(ANY), Some("application/octet-stream; x=1")] {
                assert_eq!(media_type(declared, head), kind, "{head:?} {declared:?}");
            }
        }
    }

    #[test]
    fn a_declared_type_is_replaced_only_if_it_is_certainly_false() {
        for (declared, head, kind) in [
            ("image/jpeg", PNG, "image/png"),
            ("text/plain", PNG, "image/png"),
            ("image/png", b"<html>".as_slice(), "text/plain"),
            ("application/pdf", b"\0\x01", ANY),
            ("IMAGE/PNG", PNG, "IMAGE/PNG"),
            ("text/html; charset=utf-8", b"<html>", "text/html; charset=utf-8"),
            ("text/markdown", b"# hi", "text/markdown"),
            (
                "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
                b"PK\x03\x04",
                "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            ),
            ("audio/ogg", b"\0\x01", "audio/ogg"),
            ("text/plain; charset=latin1", b"gr\xfc\xdfe", "text/plain; charset=latin1"),
        ] {
            assert_eq!(media_type(Some(declared), head), kind, "{declared}");
        }
    }
}
