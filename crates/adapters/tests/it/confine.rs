//! Confined processes: an agent's attacks on files, on the state directory and on the processes around it.
//!
//! Root has more rights than most people, so the agents of these tests run as another user if the tests run as root.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use mainspring_adapters::process::{Launch, Log, Process};
use mainspring_adapters::sandbox::{ProcessSandbox, SandboxOptions, landlock_abi};
use mainspring_core::SandboxProfile::{self, Off, ReadOnly, Workspace};
use mainspring_core::Supervision;
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_kernel::tasks::Tasks;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::world::{guard, with_timeout};

/// The user under which agents run if the tests run as root.
const NOBODY: u32 = 65_534;

/// Folders of a user: a home, a working folder, and a state directory with a token.
struct Place {
    /// Not in the system's temporary folder, which a workspace may write.
    root: TempDir,
    drops_root: bool,
    options: SandboxOptions,
}

impl Place {
    fn new() -> Self {
        // In a chroot whose root folder only root may enter, no other user can start a program.
        let others_enter = fs::metadata("/").unwrap().permissions().mode() & 0o001 != 0;
        Self::of_user(rustix::process::getuid().is_root() && others_enter)
    }

    fn of_user(drops_root: bool) -> Self {
        let root = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for folder in ["home/.cache", "work", "state/keys", "other"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for (file, text) in [
            ("home/.profile", "old\n"),
            ("work/file", "old\n"),
            ("other/file", "old\n"),
            ("state/token", "SECRET\n"),
            ("state/keys/provider", "SECRET\n"),
        ] {
            fs::write(root.path().join(file), text).unwrap();
        }
        let options = SandboxOptions {
            hidden: vec![root.path().join("state")],
            landlock: landlock_abi(),
            ..SandboxOptions::default()
        };
        assert!(options.landlock.is_some(), "these tests need a kernel with Landlock");
        // Copied by another process: a program that this one has open for writing cannot be started.
        let copied = Command::new("cp").args(guard()).arg(root.path().join("guard")).status().unwrap();
        assert!(copied.success());
        let script = format!(
            "if [ \"$(id -u)\" = 0 ] && [ {drops_root} = true ]; then chown {NOBODY} ${{TMPDIR:-}}; exec setpriv --reuid={NOBODY} --regid={NOBODY} \
             --clear-groups -- {program} \"$@\"; fi; exec {program} \"$@\"",
            program = root.path().join("guard").display()
        );
        fs::write(root.path().join("start"), script).unwrap();
        Self { root, drops_root, options }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs a script in the folder `work` as an agent would, and returns its output.
    async fn run(&self, profile: SandboxProfile, script: &str) -> String {
        self.run_in(profile, &self.path("work"), script).await
    }

    async fn run_in(&self, profile: SandboxProfile, folder: &Path, script: &str) -> String {
        self.run_agent("agent", profile, folder, script).await
    }

    /// Runs a script as the agent that the command `agent` starts.
    async fn run_agent(&self, agent: &str, profile: SandboxProfile, folder: &Path, script: &str) -> String {
        if self.drops_root {
            give_to_nobody(self.root.path());
        }
        let env = vec![
            ("HOME".to_owned(), self.path("home").display().to_string()),
            ("ROOT".to_owned(), self.root.path().display().to_string()),
            ("TESTS".to_owned(), std::process::id().to_string()),
        ];
        let launch = Launch {
            guard: vec!["sh".into(), OsString::from(self.path("start"))],
            command: vec!["sh".into(), "-c".into(), script.into()],
            env: env.clone(),
            pass_env: vec![],
            cwd: folder.to_owned(),
            grace: Duration::from_secs(60),
            scope: self.root.path().display().to_string(),
            name: Ids::system().node().to_string(),
            log: Log::default(),
            sandbox: Some(ProcessSandbox {
                options: Arc::new(self.options.clone()),
                profile,
                folder: folder.to_owned(),
                command: vec![agent.into()],
                env,
                pass_env: vec![],
            }),
            supervision: Supervision::Tree,
            endpoint: None,
        };
        let tasks = Tasks::default();
        let (process, mut pipes) = Process::start(&launch, &tasks, &Clock::system()).unwrap();
        let mut output = String::new();
        with_timeout(pipes.stdout.read_to_string(&mut output)).await.unwrap();
        let code = with_timeout(process.ended()).await;
        assert_eq!(code, Some(0), "{}", process.log().text());
        tasks.stop();
        with_timeout(tasks.wait()).await;
        output
    }
}

fn give_to_nobody(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        fs::read_dir(path).unwrap().for_each(|entry| give_to_nobody(&entry.unwrap().path()));
    }
}

/// Builds a script that prints the name of each step that succeeds.
fn steps(steps: &[(&str, &str)]) -> String {
    let step = |(name, command): &(&str, &str)| {
        format!("( {command} ) >/dev/null 2>&1 </dev/null && echo '{name}'\n")
    };
    steps.iter().map(step).collect::<String>() + "true"
}

/// Ways to read the state directory.
const READS: [(&str, &str); 10] = [
    ("cat", "cat $ROOT/state/token"),
    ("key", "cat $ROOT/state/keys/provider"),
    ("list", "ls $ROOT/state"),
    ("copy", "cp $ROOT/state/token ."),
    ("move", "mv $ROOT/state ./moved"),
    ("hard link", "ln $ROOT/state/token linked"),
    ("through a link", "ln -s $ROOT/state link && cat link/token"),
    ("through the root of a process", "cat /proc/self/root$ROOT/state/token"),
    ("through a parent", "cat $ROOT/other/../state/token"),
    ("through a mount", "unshare -rm sh -c 'mount --bind $ROOT/state . && cat $PWD/token'"),
];

/// Ways to change files outside the working folder.
const WRITES: [(&str, &str); 9] = [
    ("append", "echo new >> $ROOT/other/file"),
    ("truncate", "truncate -s 0 $ROOT/other/file"),
    ("create", "echo new > $ROOT/other/created"),
    ("remove", "rm $ROOT/other/file"),
    ("rename", "mv $ROOT/other/file $ROOT/other/renamed"),
    ("make a folder", "mkdir $ROOT/other/folder"),
    ("profile", "echo new >> $HOME/.profile"),
    ("write the state", "echo new > $ROOT/state/token"),
    ("plant in the state", "echo new > $ROOT/state/planted"),
];

/// Ways to reach the guard and mainspring, which is the process of the tests.
const PROCESSES: [(&str, &str); 7] = [
    ("signal the guard", "kill -0 $PPID"),
    ("kill the guard", "kill -9 $PPID"),
    ("signal mainspring", "kill -0 $TESTS"),
    ("environment of the guard", "cat /proc/$PPID/environ | grep -q ."),
    ("environment of mainspring", "cat /proc/$TESTS/environ | grep -q ."),
    ("memory of the guard", "head -c 1 /proc/$PPID/mem | grep -q ."),
    ("files of mainspring", "readlink /proc/$TESTS/fd/0"),
];

#[tokio::test]
async fn no_attack_of_a_confined_agent_reaches_the_state_directory_or_another_process() {
    for profile in [ReadOnly, Workspace] {
        let place = Place::new();
        let done = place.run(profile, &steps(&READS)).await;
        assert_eq!(done, "", "{profile}");
        assert_eq!(place.run(profile, &steps(&PROCESSES)).await, "", "{profile}");
        assert_eq!(place.run(profile, &steps(&WRITES)).await, "", "{profile}");
        let kept = ["state/token", "other/file", "home/.profile"].map(|file| place.read(file));
        assert_eq!(kept, ["SECRET\n", "old\n", "old\n"], "{profile}");
    }
}

#[tokio::test]
async fn the_same_attacks_succeed_without_a_sandbox() {
    let place = Place::new();
    let attacks: Vec<_> = [&READS[..5], &WRITES[..3], &PROCESSES[..1]].concat();
    let expected: String = attacks.iter().map(|(name, _)| format!("{name}\n")).collect();
    // Leaves out the attack that moves the state directory.
    let done = place.run(Off, &steps(&attacks[..4])).await;
    assert_eq!(done, expected.lines().take(4).map(|line| format!("{line}\n")).collect::<String>());
    let done = place.run(Off, &steps(&attacks[5..])).await;
    assert_eq!(done, expected.lines().skip(5).map(|line| format!("{line}\n")).collect::<String>());
}

#[tokio::test]
async fn a_confined_root_has_no_capabilities() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let place = Place::of_user(false);
    let capabilities = place.run(Workspace, "grep CapEff /proc/self/status; id -u").await;
    assert_eq!(capabilities, "CapEff:\t0000000000000000\n0\n");
    for attacks in [&READS[..], &WRITES[..], &PROCESSES[..]] {
        assert_eq!(place.run(Workspace, &steps(attacks)).await, "");
    }
}

#[tokio::test]
async fn a_read_only_agent_reads_everything_else_and_writes_its_own_folders() {
    let mut place = Place::new();
    place.options.writable = vec![place.path("other")];
    let work = steps(&[
        ("read the folder", "cat file && ls ."),
        ("read the system", "cat /etc/passwd && ls /usr"),
        ("write null", "echo x > /dev/null"),
        ("write the folder", "echo new > file"),
        ("create in the folder", "echo new > created"),
        ("temporary folder", "test -n \"$TMPDIR\" && echo x > $TMPDIR/x && cat $TMPDIR/x"),
        ("temporary folder of the system", "echo x > /tmp/$$.confined"),
        ("cache", "echo x > $HOME/.cache/x"),
        ("configured", "echo new > file2 || echo new > $ROOT/other/file"),
    ]);
    let done = place.run(ReadOnly, &work).await;
    let expected =
        ["read the folder", "read the system", "write null", "temporary folder", "cache", "configured"];
    assert_eq!(done.lines().collect::<Vec<_>>(), expected);
    assert_eq!((place.read("work/file"), place.read("other/file")), ("old\n".into(), "new\n".into()));
}

#[tokio::test]
async fn a_workspace_is_writable_with_its_git_directory() {
    let place = Place::new();
    for folder in ["main/.git/objects", "main/.git/refs", "main/.git/worktrees/work"] {
        fs::create_dir_all(place.path(folder)).unwrap();
    }
    fs::write(place.path("main/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
    let own = place.path("main/.git/worktrees/work");
    fs::write(own.join("gitdir"), place.path("work/.git").display().to_string()).unwrap();
    fs::write(place.path("work/.git"), format!("gitdir: {}\n", own.display())).unwrap();
    let work = steps(&[
        ("write", "echo new > file && mkdir folder && mv file folder/file"),
        ("commit", "echo new > $ROOT/main/.git/objects/new"),
        ("main worktree", "echo new > $ROOT/main/created"),
        ("temporary folder of the system", "echo x > /tmp/$$.confined && rm /tmp/$$.confined"),
        ("shared memory", "echo x > /dev/shm/$$.confined && rm /dev/shm/$$.confined"),
    ]);
    let done = place.run(Workspace, &work).await;
    let expected = ["write", "commit", "temporary folder of the system", "shared memory"];
    assert_eq!(done.lines().collect::<Vec<_>>(), expected);
    assert_eq!(place.read("work/folder/file"), "new\n");
}

#[tokio::test]
async fn a_folder_that_contains_the_state_directory_is_granted_without_it() {
    let place = Place::new();
    // A link that an earlier agent left.
    symlink(place.path("state"), place.path("link")).unwrap();
    let work = steps(&[
        ("list", "ls . && ls $ROOT/other"),
        ("edit", "echo new > other/file && echo new > other/created"),
        ("new entry", "echo new > created"),
        ("move away", "mv other away"),
        ("read the state", "cat state/token || cat link/token"),
        ("write the state", "echo new > state/token || echo new > link/token"),
    ]);
    let done = place.run_in(Workspace, place.root.path(), &work).await;
    assert_eq!(done.lines().collect::<Vec<_>>(), ["list", "edit"]);
    assert_eq!((place.read("state/token"), place.read("other/created")), ("SECRET\n".into(), "new\n".into()));
}

#[tokio::test]
async fn a_protected_folder_is_readable_and_cannot_be_written_or_made() {
    let mut place = Place::new();
    fs::create_dir_all(place.path("home/.config/mainspring")).unwrap();
    fs::write(place.path("home/.config/mainspring/mainspring.toml"), "old\n").unwrap();
    place.options.protected =
        vec![place.path("home/.config/mainspring"), place.path("home/.local/missing/mainspring")];
    fs::create_dir_all(place.path("home/.local/missing")).unwrap();
    let work = steps(&[
        ("read", "cat .config/mainspring/mainspring.toml"),
        ("write", "echo new > .config/mainspring/mainspring.toml"),
        ("replace", "mv .config/mainspring .config/away"),
        ("make", "mkdir .local/missing/mainspring"),
        ("other file", "echo new > .profile"),
    ]);
    let done = place.run_in(Workspace, &place.path("home"), &work).await;
    assert_eq!(done.lines().collect::<Vec<_>>(), ["read", "other file"]);
}

#[tokio::test]
async fn a_configuration_file_in_the_working_folder_is_neither_written_nor_replaced() {
    let mut place = Place::new();
    fs::create_dir(place.path("work/src")).unwrap();
    fs::write(place.path("work/config.toml"), "old\n").unwrap();
    fs::write(place.path("work/src/real.toml"), "old\n").unwrap();
    symlink("src/real.toml", place.path("work/link.toml")).unwrap();
    place.options.protected = vec![place.path("work/config.toml"), place.path("work/link.toml")];
    let work = steps(&[
        ("read", "cat config.toml link.toml"),
        ("write", "echo new > config.toml"),
        ("replace", "mv file config.toml"),
        ("delete", "rm -f config.toml"),
        ("through the link", "echo new > link.toml"),
        ("replace the link", "ln -sf file link.toml"),
        ("replace the target", "mv src/real.toml src/away.toml"),
        ("replace its folder", "mv src away"),
        ("other file", "echo new > file"),
    ]);
    let done = place.run_in(Workspace, &place.path("work"), &work).await;
    assert_eq!(done.lines().collect::<Vec<_>>(), ["read", "other file"]);
    assert_eq!(
        (place.read("work/config.toml"), place.read("work/link.toml")),
        ("old\n".into(), "old\n".into())
    );
}

#[tokio::test]
async fn only_configured_ports_are_reached() {
    let allowed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = |listener: &tokio::net::TcpListener| listener.local_addr().unwrap().port();
    let connect = |port: u16| format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    let (first, second) = (connect(port(&allowed)), connect(port(&other)));
    let script = steps(&[("allowed", first.as_str()), ("other", second.as_str())]);
    let mut place = Place::new();
    assert_eq!(place.run(Workspace, &script).await, "allowed\nother\n", "without ports all are reached");
    place.options.ports = Some(vec![port(&allowed)]);
    assert_eq!(place.run(Workspace, &script).await, "allowed\n");
}

#[tokio::test]
async fn a_temporary_folder_ends_with_its_process() {
    let place = Place::new();
    let folder = place.run(ReadOnly, "mkdir -p $TMPDIR/a/b && echo x > $TMPDIR/a/b/c && echo $TMPDIR").await;
    assert!(folder.contains("/mainspring-"), "{folder}");
    assert!(!Path::new(folder.trim()).exists(), "{folder}");
}

#[tokio::test]
async fn an_agent_that_cannot_be_confined_is_not_started() {
    let place = Place::new();
    for confinement in ["{}", "nonsense"] {
        let mut command = Command::new(place.path("guard"));
        let output = command.args(["--confine", confinement, "--", "echo", "started"]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(126), &b""[..]));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("echo could not be confined"), "{message}");
    }
}

#[tokio::test]
async fn links_that_an_agent_made_grant_nothing_at_its_next_start() {
    let mut place = Place::new();
    for folder in ["other/.git/objects", "other/.git/refs"] {
        fs::create_dir_all(place.path(folder)).unwrap();
    }
    fs::write(place.path("other/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
    place.options.writable = vec![place.path("work/configured")];
    let make_links = steps(&[
        ("cache", "ln -s $ROOT/other $HOME/.cache/opencode"),
        ("git", "ln -s $ROOT/other/.git .git"),
        ("configured", "ln -s $ROOT/other configured"),
    ]);
    let work = place.path("work");
    assert_eq!(place.run_agent("agent", Workspace, &work, &make_links).await, "cache\ngit\nconfigured\n");
    // An agent that worked in the home folder.
    symlink(place.path("other"), place.path("home/.codex")).unwrap();
    let write = steps(&[
        ("folder", "echo new > $ROOT/other/file"),
        ("git directory", "echo new > $ROOT/other/.git/config"),
    ]);
    for agent in ["opencode", "codex"] {
        for profile in [ReadOnly, Workspace] {
            assert_eq!(place.run_agent(agent, profile, &work, &write).await, "", "{agent} {profile}");
        }
    }
}

#[test]
fn a_folder_that_is_replaced_by_a_link_before_the_confinement_is_not_granted() {
    let place = Place::of_user(false);
    symlink(place.path("other"), place.path("link")).unwrap();
    symlink(place.root.path(), place.path("parent")).unwrap();
    let write = |folder: &str| {
        let confinement = serde_json::json!({
            "readable": [], "writable": [place.path(folder)], "hidden": [], "protected": [], "ports": null,
        });
        let script = format!("echo new > {}/file", place.path("other").display());
        let mut command = Command::new(place.path("guard"));
        command.args(["--confine", &confinement.to_string(), "--", "sh", "-c", &script]);
        command.output().unwrap().status.success()
    };
    assert!(write("other"));
    for link in ["link", "parent/other", "work/../other"] {
        assert!(!write(link), "{link}");
    }
}
