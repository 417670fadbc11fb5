//! A PostgreSQL database in a temporary folder. It is stopped and removed when this process ends.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::error::CliError;

/// Starts a database, prints its folder, and removes it when the script's input is closed: when this process ends, even
/// if it is killed.
const SCRIPT: &str = r#"
set -e
trap '' INT TERM HUP
folder=$(mktemp -d /tmp/mainspring-demo-XXXXXX)
trap 'rm -rf "$folder"' EXIT
"$1/initdb" -D "$folder/data" -U postgres --auth=trust --encoding=UTF8 --locale=C >"$folder/log" 2>&1
"$1/pg_ctl" -D "$folder/data" -l "$folder/log" -w -o "-k $folder -c listen_addresses=" start >/dev/null
echo "$folder"
read -r _ || true
"$1/pg_ctl" -D "$folder/data" -m fast stop >/dev/null
"#;

/// The folder in which Debian and Ubuntu install the versions of PostgreSQL.
const VERSIONS: &str = "/usr/lib/postgresql";

pub(super) struct Postgres {
    version: String,
    folder: String,
    script: Child,
}

impl Postgres {
    /// Starts the newest installed PostgreSQL, never as root.
    pub(super) async fn start() -> Result<Self, CliError> {
        let bin = find().ok_or_else(|| {
            CliError::not_found(
                "PostgreSQL is not installed: on Debian and Ubuntu run `apt-get install postgresql`, \
                 elsewhere put `initdb` and `pg_ctl` into PATH",
            )
        })?;
        let printed = Command::new(bin.join("postgres")).arg("--version").output().await?.stdout;
        let version = String::from_utf8_lossy(&printed).split_whitespace().nth(2).unwrap_or("?").to_owned();
        let mut script = shell()
            .args(["-c", SCRIPT, "demo"])
            .arg(&bin)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut folder = String::new();
        if let Some(out) = script.stdout.take() {
            BufReader::new(out).read_line(&mut folder).await?;
        }
        if folder.is_empty() {
            let output = script.wait_with_output().await?;
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(CliError::unusable(format!("PostgreSQL did not start: {reason}")));
        }
        Ok(Self { version, folder: folder.trim().to_owned(), script })
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://postgres@/postgres?host={}", self.folder)
    }

    /// Ends the database and removes its folder.
    pub(super) async fn stop(mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait().await;
    }
}

/// Finds the folder of the newest version's programs.
fn find() -> Option<PathBuf> {
    let has_programs = |bin: &Path| bin.join("initdb").is_file() && bin.join("pg_ctl").is_file();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten().map(|entry| entry.path());
    let newest = versions.filter(|path| has_programs(&path.join("bin"))).max_by_key(|path| number(path));
    let in_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).find(|folder| has_programs(folder))
    };
    newest.map(|version| version.join("bin")).or_else(in_path)
}

/// Builds the command of a shell that does not run as root, because PostgreSQL refuses to run as root.
fn shell() -> Command {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is_root {
        return Command::new("sh");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    // If the root folder is closed to other users, as in some chroots, they can run a program only with this
    // capability.
    if std::fs::metadata("/").is_ok_and(|root| root.permissions().mode() & 1 == 0) {
        command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]);
        command.arg("--securebits=+no_setuid_fixup");
    }
    command.arg("sh");
    command
}
