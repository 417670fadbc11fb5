//! A PostgreSQL server that can be restarted as after a crash.

use std::io::Write;
use std::process::{Child, Command};

use crate::postgres_cluster::{Psql, bin, psql_open, run_script};

/// Starts a PostgreSQL server with two databases and prints its folder. Restarts the server for each line of the
/// script's input, and removes it when the input is closed: when the test process ends, even if it is killed.
const SCRIPT: &str = r#"
set -e
trap '' INT TERM HUP
folder=$(mktemp -d "$base/mainspring-chaos-XXXXXX")
trap 'rm -rf "$folder"' EXIT
new_data "$1" "$folder/data"
start() {
  "$1/pg_ctl" -D "$folder/data" -l "$folder/log" -w -o "-k $folder -c listen_addresses= -c fsync=off \
    -c shared_buffers=16MB -c max_connections=200 -c autovacuum=off" start >/dev/null
}
start "$1"
"$1/createdb" -h "$folder" -U postgres chaos
"$1/createdb" -h "$folder" -U postgres other
echo "$folder"
while read -r _; do
  "$1/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null
  start "$1"
done
"$1/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null
"#;

pub(super) struct Database {
    folder: String,
    script: Child,
    holder: Option<Psql>,
}

impl Database {
    pub(super) fn start() -> Self {
        let (folder, script) = run_script(SCRIPT, bin().as_ref());
        Self { folder, script, holder: None }
    }

    /// Returns the path of the server's socket.
    pub(super) fn socket(&self) -> String {
        format!("{}/.s.PGSQL.5432", self.folder)
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@/{database}?host={}", self.folder)
    }

    /// Runs a statement and returns its output; waits while the database does not answer.
    pub(super) fn query(&self, sql: &str) -> String {
        loop {
            let output =
                Command::new(bin().join("psql")).args(["-XAtqc", sql, &self.url("chaos")]).output().unwrap();
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap().trim().to_owned();
            }
        }
    }

    /// Ends the connection with this number, modulo the number of connections of the servers.
    pub(super) fn terminate_one(&self, number: u64) {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
               WHERE datname = 'chaos' AND pid <> pg_backend_pid() ORDER BY pid
               OFFSET {number} % (SELECT greatest(count(*), 1) FROM pg_stat_activity
                                  WHERE datname = 'chaos' AND pid <> pg_backend_pid()) LIMIT 1) AS one"
        );
        self.query(&sql);
    }

    /// Opens a transaction with a write in another database, which holds back the feed.
    pub(super) fn hold_feed(&mut self) {
        let mut holder = psql_open(&self.url("other"));
        holder.run("CREATE TABLE IF NOT EXISTS held (n int); BEGIN; INSERT INTO held VALUES (1);");
        self.holder = Some(holder);
    }

    pub(super) fn release_feed(&mut self) {
        if let Some(mut holder) = self.holder.take() {
            holder.run("COMMIT;");
        }
    }

    /// Restarts the server as after a crash, and waits until the new process answers.
    pub(super) fn restart(&mut self) {
        let started = "SELECT pg_postmaster_start_time()";
        let before = self.query(started);
        self.script.stdin.as_mut().unwrap().write_all(b"restart\n").unwrap();
        while self.query(started) == before {}
    }
}
