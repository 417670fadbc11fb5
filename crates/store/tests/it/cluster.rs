//! A PostgreSQL cluster of the test process: it listens on a socket in a temporary folder, and ends with the process.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Starts a cluster, prints its folder, and removes it when its input ends: with the test process, however that ends.
const SCRIPT: &str = r#"
set -e
# An interrupted test run signals the whole group: the script goes on, and cleans up when its input ends.
trap '' INT TERM HUP
folder=$(mktemp -d "$base/mainspring-postgres-XXXXXX")
trap 'rm -rf "$folder"' EXIT
new_data "$1" "$folder/data"
"$1/pg_ctl" -D "$folder/data" -l "$folder/log" -w -o "-k $folder -c listen_addresses= -c fsync=off -c full_page_writes=off \
  -c shared_buffers=16MB -c max_connections=200 -c autovacuum=off -c max_wal_senders=0 -c wal_level=minimal" start >/dev/null
echo "$folder"
read -r _ || true
"$1/pg_ctl" -D "$folder/data" -m immediate stop >/dev/null
"#;

/// A running cluster.
struct Cluster {
    bin: PathBuf,
    socket: String,
    /// The input of its script: the cluster ends when the input is closed.
    _script: std::process::Child,
}

static CLUSTER: LazyLock<Cluster> = LazyLock::new(start);
static DATABASES: AtomicUsize = AtomicUsize::new(0);

/// The newest installed version.
pub(crate) fn bin() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut bins: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    bins.sort();
    bins.pop().expect("PostgreSQL is not installed: on Debian and Ubuntu `apt-get install postgresql`")
}

fn start() -> Cluster {
    let bin = bin();
    let (socket, script) = run_script(SCRIPT, bin.as_ref());
    Cluster { bin, socket, _script: script }
}

/// Defines `base`, a folder in memory if there is one, since clusters create thousands of files, and `new_data BIN FOLDER`,
/// which makes the folder of a new cluster: a copy of a template, which takes less time than `initdb`. Tests of one user
/// and version share the template.
const NEW_DATA: &str = r#"
base=/tmp
[ -d /dev/shm ] && [ -w /dev/shm ] && base=/dev/shm
new_data() {
  template="/tmp/mainspring-postgres-template-$(id -u)-$("$1/initdb" --version | tr -cd 0-9.)"
  mkdir -p -m 700 "$template"
  [ -O "$template" ] || { echo "$template belongs to another user" >&2; exit 1; }
  (
    flock 9
    [ -d "$template/data" ] && exit
    rm -rf "$template/new"
    "$1/initdb" -D "$template/new" -U postgres --auth=trust --no-sync --encoding=UTF8 --locale=C
    mv "$template/new" "$template/data"
  ) 9>"$template/lock" >"$template/log" 2>&1
  cp -a "$template/data" "$2"
}
"#;

/// Starts a script, which may use the definitions of [`NEW_DATA`]. The script prints its folder once it is ready, and
/// ends when its input ends.
pub(crate) fn run_script(script: &str, argument: &std::ffi::OsStr) -> (String, std::process::Child) {
    // Neither program runs as root.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    let mut command = Command::new(if is_root { "setpriv" } else { "sh" });
    if is_root {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        // A closed root folder, as a chroot may have, lets other users run nothing.
        let is_closed = std::fs::metadata("/").is_ok_and(|root| root.permissions().mode() & 1 == 0);
        if is_closed {
            command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]);
            // access(2), with which PostgreSQL looks for its programs, would not use the capability otherwise.
            command.arg("--securebits=+no_setuid_fixup");
        }
        command.arg("sh");
    }
    let mut script = command
        .args(["-c", &format!("{NEW_DATA}{script}"), "script"])
        .arg(argument)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut folder = String::new();
    BufReader::new(script.stdout.take().unwrap()).read_line(&mut folder).unwrap();
    assert!(!folder.is_empty(), "PostgreSQL or its pooler did not start");
    (folder.trim().into(), script)
}

/// Makes an empty database and returns its URL.
pub(crate) fn database() -> String {
    let cluster = &*CLUSTER;
    let name = format!("test{}", DATABASES.fetch_add(1, Ordering::Relaxed));
    let made = Command::new(cluster.bin.join("createdb"))
        .args(["-h", &cluster.socket, "-U", "postgres", &name])
        .status()
        .unwrap();
    assert!(made.success());
    format!("postgres://postgres@/{name}?host={}", cluster.socket)
}

/// Starts a transaction pooler in front of a cluster, as [`SCRIPT`] starts the cluster.
const POOLER: &str = r#"
set -e
# An interrupted test run signals the whole group: the script goes on, and cleans up when its input ends.
trap '' INT TERM HUP
folder=$(mktemp -d /tmp/mainspring-pooler-XXXXXX)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/ini" <<END
[databases]
* = host=$1 user=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = $folder
auth_type = any
pool_mode = transaction
default_pool_size = 4
logfile = $folder/log
pidfile = $folder/pid
END
PATH="$PATH:/usr/sbin" pgbouncer -q -d "$folder/ini"
until [ -S "$folder/.s.PGSQL.6432" ]; do :; done
echo "$folder"
read -r _ || true
kill "$(cat "$folder/pid")"
"#;

static POOLER_SCRIPT: LazyLock<(String, std::process::Child)> =
    LazyLock::new(|| run_script(POOLER, CLUSTER.socket.as_ref()));

/// The URL of a database through a transaction pooler.
#[allow(dead_code, reason = "the tests of the kernel only open stores")]
pub(crate) fn pooled(url: &str) -> String {
    let (address, _) = url.split_once('?').unwrap();
    format!("{address}?host={}&port=6432", POOLER_SCRIPT.0)
}

/// Runs a statement in a database and returns its output.
#[allow(dead_code, reason = "the tests of the kernel only open stores")]
pub(crate) fn psql(url: &str, sql: &str) -> String {
    let output = Command::new(bin().join("psql")).args(["-XAtqc", sql, url]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A connection that stays open.
#[allow(dead_code, reason = "the tests of the kernel only open stores")]
pub(crate) struct Psql {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
}

#[allow(dead_code, reason = "the tests of the kernel only open stores")]
pub(crate) fn psql_open(url: &str) -> Psql {
    let mut child = Command::new(CLUSTER.bin.join("psql"))
        .args(["-XAtq", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    Psql { child, output }
}

#[allow(dead_code, reason = "the tests of the kernel only open stores")]
impl Psql {
    /// Runs statements and waits until they are done.
    pub(crate) fn run(&mut self, sql: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        std::io::Write::write_all(input, format!("{sql}\n\\echo done\n").as_bytes()).unwrap();
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "psql ended");
        }
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
