//! Reads runs, attempts, steps and requests.

use mainspring_core::{Attempt, AttemptId, Rows, Run, RunId, SessionId, Step, Time};
use mainspring_kernel::store::{Request, RunPage, StoreError};

use super::super::values::{get, get_id, get_json, get_maybe_json, list, sql_limit};
use super::{Conditions, RUN, Reader, attempt, run};

pub(in super::super) async fn run_get(reader: &Reader, id: RunId) -> Result<Option<Run>, StoreError> {
    let sql = format!(
        "SELECT {RUN} FROM runs AS r JOIN sessions AS s USING (session_id) WHERE run_id = $1 AND s.status <> 'deleted'"
    );
    reader.row(&sql, &[&id.as_bytes().as_slice()]).await?.map(|row| run(&row, 0)).transpose()
}

pub(in super::super) async fn run_by_request(
    reader: &Reader,
    owner: &str,
    client: &str,
    request: &str,
) -> Result<Option<Run>, StoreError> {
    let sql =
        format!("SELECT {RUN} FROM runs AS r WHERE owner_id = $1 AND client_id = $2 AND request_id = $3");
    reader.row(&sql, &[&owner, &client, &request]).await?.map(|row| run(&row, 0)).transpose()
}

pub(in super::super) async fn run_page(reader: &Reader, page: &RunPage) -> Result<Rows<Run>, StoreError> {
    let mut conditions = Conditions::default();
    conditions.add("s.status <> 'deleted' AND r.owner_id = ?", vec![Box::new(page.owner.clone())]);
    if let Some(session) = page.session {
        conditions.add("r.session_id = ?", vec![Box::new(session.as_bytes().to_vec())]);
    }
    if let Some(status) = page.status {
        conditions.add("r.status = ?", vec![Box::new(status.name().to_owned())]);
    }
    if let Some((at, id)) = page.before {
        let before = "(r.created_at, r.run_id) < (?, ?)";
        conditions.add(before, vec![Box::new(at.0), Box::new(id.as_bytes().to_vec())]);
    }
    let sql = format!(
        "SELECT {RUN} FROM runs AS r JOIN sessions AS s USING (session_id) {}
         ORDER BY r.created_at DESC, r.run_id DESC",
        conditions.sql
    );
    reader.page("run", &sql, &conditions.params(), page.limit, |row| run(row, 0)).await
}

pub(in super::super) async fn runs_live(
    reader: &Reader,
    owner: &str,
    org: Option<&str>,
) -> Result<Rows<Run>, StoreError> {
    let sql = format!(
        "SELECT {RUN} FROM runs AS r JOIN sessions AS s USING (session_id)
         WHERE NOT r.ended AND s.status <> 'deleted'
           AND (s.owner_id = $1 OR (s.visibility = 'org' AND s.org_id = $2))
         ORDER BY r.created_at, r.run_id"
    );
    list("run", &reader.rows(&sql, &[&owner, &org]).await?, |row| run(row, 0))
}

pub(in super::super) async fn attempts(reader: &Reader, run: RunId) -> Result<Rows<Attempt>, StoreError> {
    let sql = "SELECT body FROM attempts WHERE run_id = $1 ORDER BY attempt_no";
    list("attempt", &reader.rows(sql, &[&run.as_bytes().as_slice()]).await?, attempt)
}

pub(in super::super) async fn attempt_get(
    reader: &Reader,
    id: AttemptId,
) -> Result<Option<Attempt>, StoreError> {
    let sql = "SELECT body FROM attempts WHERE attempt_id = $1 LIMIT 1";
    reader.row(sql, &[&id.as_bytes().as_slice()]).await?.map(|row| attempt(&row)).transpose()
}

pub(in super::super) async fn steps(reader: &Reader, run: RunId) -> Result<Rows<Step>, StoreError> {
    let sql = "SELECT body, private FROM steps WHERE run_id = $1 ORDER BY step_no, completed_at, step_id";
    list("step", &reader.rows(sql, &[&run.as_bytes().as_slice()]).await?, |row| {
        let step: Step = get_json(row, 0)?;
        Ok(Step { private: get_maybe_json(row, 1)?, ..step })
    })
}

pub(in super::super) async fn runs_planned(
    reader: &Reader,
    session: SessionId,
    limit: usize,
) -> Result<Rows<Run>, StoreError> {
    let sql = format!(
        "SELECT {RUN} FROM runs AS r WHERE session_id = $1 AND planned ORDER BY run_no DESC LIMIT $2"
    );
    let mut rows = reader.rows(&sql, &[&session.as_bytes().as_slice(), &sql_limit(limit)]).await?;
    rows.reverse();
    list("run", &rows, |row| run(row, 0))
}

pub(in super::super) async fn step_input(
    reader: &Reader,
    session: SessionId,
    hash: &str,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT input FROM step_inputs WHERE session_id = $1 AND hash = $2";
    let row = reader.row(sql, &[&session.as_bytes().as_slice(), &hash]).await?;
    row.map(|row| get(&row, 0)).transpose()
}

pub(in super::super) async fn request_get(
    reader: &Reader,
    owner: &str,
    operation: &str,
    key: &str,
) -> Result<Option<Request>, StoreError> {
    let sql = "SELECT fingerprint, answer, created_at FROM requests
               WHERE owner_id = $1 AND operation = $2 AND key = $3";
    let Some(row) = reader.row(sql, &[&owner, &operation, &key]).await? else { return Ok(None) };
    Ok(Some(Request {
        owner: owner.into(),
        operation: operation.into(),
        key: key.into(),
        fingerprint: get_id(&row, 0)?,
        answer: get(&row, 1)?,
        at: Time(get(&row, 2)?),
    }))
}
