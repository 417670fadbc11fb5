//! Writes and reads digests.

use mainspring_core::{Digest, LineId, Point, SessionId};
use mainspring_kernel::store::StoreError;
use rusqlite::{Connection, params};

use super::checksum;
use super::columns::{Columns, Id, blob, int};
use super::read::{digest_columns, query_one};
use super::write::WriteResult;

pub(super) fn digest_write(connection: &Connection, session: SessionId, digest: &Digest) -> WriteResult {
    let mut write = connection.prepare_cached(concat!(
        "INSERT OR REPLACE INTO digests (",
        digest_columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    ))?;
    let columns = params![
        digest.at.line.0,
        digest.at.pos,
        session.bytes(),
        digest.message.bytes(),
        blob(digest.prompt),
        digest.summary,
        digest.left_out,
        int(digest.below_tokens),
        digest.made_at.0,
    ];
    checksum::execute(&mut write, &[(&checksum::DIGEST, columns)], &[])?;
    Ok(())
}

/// Finds the nearest digest above the tip, searching line by line towards the root.
pub(super) fn digest(
    connection: &Connection,
    session: SessionId,
    tip: Point,
) -> Result<Option<Digest>, StoreError> {
    let mut next = Some(tip);
    while let Some(point) = next {
        let sql =
            "SELECT parent_line, parent_pos, coalesce(opened_by, session_id) FROM lines WHERE line = ?1";
        let line = query_one(connection, sql, [point.line.0], |columns| {
            Ok((columns.point()?, columns.get::<[u8; 16]>()?))
        })?;
        let (parent, opened_by) =
            line.ok_or_else(|| StoreError::Corrupt(format!("line {} is missing", point.line.0)))?;
        let found = query_one(
            connection,
            concat!(
                "SELECT ",
                digest_columns!(),
                " FROM digests WHERE line = ?1 AND pos <= ?2 AND pos < ?5 AND session_id IN (?3, ?4)
                 ORDER BY pos DESC, session_id = ?3 DESC LIMIT 1"
            ),
            params![point.line.0, point.pos, session.bytes(), opened_by, tip.pos],
            digest_read,
        )?;
        if found.is_some() {
            return Ok(found);
        }
        next = parent;
    }
    Ok(None)
}

pub(super) fn digest_read(columns: &mut Columns<'_>) -> rusqlite::Result<Digest> {
    columns.check(&checksum::DIGEST)?;
    let at = Point { line: LineId(columns.get()?), pos: columns.get()? };
    // Skips the session that made the digest.
    columns.skip(1);
    Ok(Digest {
        at,
        message: columns.id()?,
        prompt: columns.maybe_id()?,
        summary: columns.get()?,
        left_out: columns.get()?,
        below_tokens: columns.number()?,
        made_at: columns.time()?,
    })
}
