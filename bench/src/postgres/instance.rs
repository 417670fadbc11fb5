//! A PostgreSQL of the benchmark's own, with the durability that it has by default.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Starts PostgreSQL below `$2`, prints its folder, and removes it when its input ends.
const SCRIPT: &str = r#"
set -e
trap '' INT TERM HUP
folder=$(mktemp -d "$2/mainspring-bench-postgres-XXXXXX")
trap 'rm -rf "$folder"' EXIT
"$1/initdb" -D "$folder/data" -U postgres --auth=trust --encoding=UTF8 --locale=C >"$folder/log" 2>&1
"$1/pg_ctl" -D "$folder/data" -l "$folder/log" -w -o "-k $folder -c listen_addresses= -c max_connections=200" start >/dev/null
echo "$folder"
read -r _ || true
"$1/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null
"#;

pub(super) struct Instance {
    bin: PathBuf,
    folder: String,
    script: Child,
}

impl Instance {
    pub(super) fn start() -> Self {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let bin = versions.map(|version| version.path().join("bin")).max();
        let bin =
            bin.expect("PostgreSQL is not installed: on Debian and Ubuntu `apt-get install postgresql`");
        let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        let mut command = Command::new(if is_root { "setpriv" } else { "sh" });
        if is_root {
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
            if std::fs::metadata("/").unwrap().permissions().mode() & 1 == 0 {
                command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]);
                command.arg("--securebits=+no_setuid_fixup");
            }
            command.arg("sh");
        }
        let mut script = command
            .args(["-c", SCRIPT, "script"])
            .arg(&bin)
            .arg(std::env::temp_dir())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut folder = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut folder).unwrap();
        assert!(!folder.is_empty(), "PostgreSQL did not start");
        Self { bin, folder: folder.trim().to_owned(), script }
    }

    /// Makes a database and returns its URL.
    pub(super) fn database(&self, name: &str) -> String {
        let made = Command::new(self.bin.join("createdb"))
            .args(["-h", &self.folder, "-U", "postgres", name])
            .status();
        assert!(made.unwrap().success());
        format!("postgres://postgres@/{name}?host={}", self.folder)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
