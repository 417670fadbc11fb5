//! The command line: `mainspring NOUN VERB`, text by default, JSON with `--json`.
//!
//! Exit codes: 0 done; 1 the run failed, timed out or was orphaned; 2 bad request; 3 not found; 4 refused in this state;
//! 5 temporarily unavailable; 6 the state directory is in use by another process; 7 the run waits for an answer;
//! 130 cancelled.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use mainspring::config::{Config, Resolved, Sources};
use mainspring_kernel::clock::Clock;
use mainspring_kernel::ids::Ids;
use mainspring_store::StateDir;

mod adapter;
mod agent;
mod approval;
mod artifact;
mod attach;
mod audit;
mod auth;
mod backup;
mod binding;
mod chat;
mod cluster;
mod config;
mod connection;
mod default_model;
mod demo;
mod doctor;
mod drawing;
mod error;
mod event_line;
mod feed;
mod feedback;
mod file;
mod follow;
mod goal_type;
mod grant;
mod guard;
mod ids;
mod import;
mod key;
mod limits;
mod mcp;
mod model;
mod model_server;
mod network;
mod open;
mod original;
mod output;
mod prompt;
mod repair;
mod restore;
mod run;
mod safe_text;
mod serve;
mod session;
mod signals;
mod state;
mod stdio;
mod store;
mod takeover;
mod tree;
mod trust;
mod usage;
mod vacuum;
mod verify;
mod wait;
mod webhook;

use connection::{Connection, Purpose};
use error::{CliError, Exit};
use output::Output;

/// Durable control plane for AI agents: accepts each request once, streams its run, survives kill -9.
#[derive(Parser)]
#[command(name = "mainspring", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the run failed, 2 bad request, 3 not found, 4 refused in this state, \
5 temporarily unavailable, 6 the state directory is in use by another process, 7 the run waits for an answer, 130 cancelled.";

#[derive(Args)]
struct Global {
    /// State directory
    #[arg(long, global = true, value_name = "DIR", help_heading = "Settings")]
    state_dir: Option<String>,
    /// Configuration file [default: ./mainspring.toml if it is trusted, else the user's]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Settings")]
    config: Option<PathBuf>,
    /// Owner of the sessions
    #[arg(long, global = true, value_name = "NAME", help_heading = "Settings")]
    owner: Option<String>,
    /// URL of a PostgreSQL that holds the data instead of SQLite
    #[arg(long, global = true, value_name = "URL", help_heading = "Settings")]
    store: Option<String>,
    /// Maximum number of agent processes that work at once
    #[arg(long, global = true, value_name = "N", help_heading = "Settings")]
    max_workers: Option<String>,
    /// Durability of commits on power loss: full or normal
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Settings")]
    durability: Option<String>,
    /// Log filter for standard error, for example debug
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Settings")]
    log: Option<String>,
    /// URL of the server to use instead of the state directory
    #[arg(long, global = true, value_name = "URL", help_heading = "Settings")]
    url: Option<String>,
    /// API key for the server; MAINSPRING_KEY is safer
    #[arg(long = "key", global = true, value_name = "KEY", help_heading = "Settings")]
    secret: Option<String>,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Show the main features in a temporary directory, without any configuration
    Demo(demo::Demo),
    /// Chat with an agent
    Chat(Box<chat::Chat>),
    /// Send a prompt and stream the answer
    Prompt(Box<prompt::Prompt>),
    /// List, show and change sessions
    #[command(subcommand)]
    Session(session::Session),
    /// List, show, cancel, retry, answer and delegate runs
    #[command(subcommand)]
    Run(run::Run),
    /// Get, set, delete and list state: versioned JSON values by key, of a session, a run or the owner
    #[command(subcommand)]
    State(state::State),
    /// List, get and put artifacts: files that runs use and produce
    #[command(subcommand)]
    Artifact(artifact::Artifact),
    /// List adapters and log in to their agents
    #[command(subcommand)]
    Adapter(adapter::Adapter),
    /// List and invalidate the bindings of a session to agents' own sessions
    #[command(subcommand)]
    Binding(binding::BindingCommand),
    /// List, show, check, create and delete agent definitions
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Draw networks of agents
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// List models and providers
    #[command(subcommand)]
    Model(model::Model),
    /// Add, list and remove keys of model providers
    #[command(subcommand)]
    Auth(auth::Auth),
    /// Print status changes of all sessions, until Ctrl-C
    Feed(feed::Feed),
    /// Serve the HTTP API on a TCP address and a Unix socket
    Serve(serve::Serve),
    /// Open the page in a browser, signed in; starts a server if none runs
    Open(open::Open),
    /// Serve a host program over standard input and output (JSON Lines)
    Stdio(stdio::Stdio),
    /// Serve the control tools over MCP on standard input and output
    Mcp(mcp::Mcp),
    /// Serve a scripted model in the providers' protocols; needs no key
    ModelServer(model_server::ModelServer),
    /// List questions and requests for approval of all sessions that wait for a person
    #[command(subcommand)]
    Wait(wait::Wait),
    /// List, show and answer the approvals that agents wait for
    #[command(subcommand)]
    Approval(approval::Approval),
    /// List and revoke grants: recorded decisions to allow or deny
    #[command(subcommand)]
    Grant(grant::Grant),
    /// List, show and set goal types: the outcomes that runs may declare
    #[command(subcommand)]
    GoalType(goal_type::GoalType),
    /// List and give feedback on messages
    #[command(subcommand)]
    Feedback(feedback::Feedback),
    /// Add, list, test and remove webhooks: addresses that receive your events
    #[command(subcommand)]
    Webhook(webhook::Webhook),
    /// Show tokens and cost of your runs by day, agent, model or session; unknown costs are counted apart
    Usage(usage::Usage),
    /// Show the servers that share the database
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Show the audit log: who did what, from where and with what outcome
    Audit(audit::Audit),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Key(key::Key),
    /// Import the data of another program
    #[command(subcommand)]
    Import(import::Import),
    /// Show the configuration
    #[command(subcommand)]
    Config(config::Config),
    /// Use the `mainspring.toml` of a folder, after showing what it would run
    Trust(trust::Trust),
    /// Check the state directory, the database, the configuration, agents and keys
    Doctor(doctor::Doctor),
    /// Back up the state directory, also while it is served
    Backup(backup::Backup),
    /// Restore a backup into an empty state directory, or into the empty PostgreSQL of `--store`
    Restore(restore::Restore),
    /// Recompute all stored data that can be derived from other data, and name each finding
    Verify(verify::Verify),
    /// Rebuild all stored data that can be derived from other data, and list the damage that remains
    Repair(repair::Repair),
    /// Return unused space of the database to the file system
    Vacuum(vacuum::Vacuum),
    /// Move data between SQLite and PostgreSQL
    #[command(subcommand)]
    Store(store::StoreCommand),
    #[command(hide = true)]
    Guard(guard::Guard),
    /// Print a completion script for a shell
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command that the process was started with.
fn main() -> ExitCode {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = guard::execute_at_once(&arguments) {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
    };
    if let Command::Guard(guard) = &cli.command {
        // A guard reads no configuration.
        return guard.execute();
    }
    hide_memory();
    let output = Output::new(cli.global.json);
    let serves_host = matches!(cli.command, Command::Stdio(_));
    let outcome = match run_cli(cli, &output) {
        Ok(exit) => exit,
        Err(error) => {
            if serves_host {
                stdio::print_end(&error);
            }
            output.print_error(&error);
            error.exit
        }
    };
    ExitCode::from(outcome as u8)
}

/// Hides the memory and the variables of this process from other processes of the same user, and from core dumps: it
/// may hold the token and keys of providers. A program that this process starts is not hidden. Guards and the processes
/// below them stay visible: mainspring recognises them by a variable.
fn hide_memory() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if std::env::var_os(mainspring_adapters::process::MARK_VARIABLE).is_none() {
            // An error is ignored: the process works without this protection too.
            let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        }
    }
}

/// Reports invalid arguments, as JSON with `--json`; also prints clap's help and version.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args().any(|argument| argument == "--json");
    if !error.use_stderr() || !wants_json {
        error.exit();
    }
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let error = CliError::bad_request(message);
    Output::new(true).print_error(&error);
    ExitCode::from(error.exit as u8)
}

fn run_cli(cli: Cli, output: &Output) -> Result<Exit, CliError> {
    if let Command::Completions { shell } = cli.command {
        let mut script = vec![];
        clap_complete::generate(shell, &mut Cli::command(), "mainspring", &mut script);
        output.print_bytes(&script)?;
        return Ok(Exit::Done);
    }
    let sources = config_sources(&cli.global)?;
    let resolved = Config::load(&sources)?;
    init_logging(&resolved.config);
    // These commands use no configuration file, or list the ignored files and settings themselves.
    if !matches!(cli.command, Command::Demo(_) | Command::Config(_) | Command::Trust(_) | Command::Doctor(_))
    {
        resolved.ignored.iter().try_for_each(|ignored| output.print_note(ignored))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    {
        let _entered = runtime.enter();
        survive_file_size_limit()?;
    }
    let key = cli.global.secret.clone().or_else(|| std::env::var("MAINSPRING_KEY").ok());
    let context = Context { sources, resolved, output, key };
    let exit = runtime.block_on(context.execute(cli.command));
    // A blocking read from the terminal must not keep the process alive.
    runtime.shutdown_background();
    exit
}

/// Installs a handler for SIGXFSZ, so that a write beyond the file size limit returns an error. The default action
/// would end the process. Agents get the default action again, because handlers do not outlive `exec`.
fn survive_file_size_limit() -> std::io::Result<()> {
    let signal = tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // The handler stays installed without a listener.
    tokio::signal::unix::signal(signal).map(drop)
}

/// Collects the sources of the configuration.
fn config_sources(global: &Global) -> Result<Sources, CliError> {
    let flags = [
        ("state_dir", &global.state_dir),
        ("owner", &global.owner),
        ("store", &global.store),
        ("max_workers", &global.max_workers),
        ("durability", &global.durability),
        ("log", &global.log),
        ("url", &global.url),
    ];
    let flags = flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
    let mut sources = Sources::from_process(flags.collect())?;
    sources.file = global.config.clone();
    Ok(sources)
}

fn init_logging(config: &Config) {
    let mut filter = tracing_subscriber::EnvFilter::new(&config.log);
    // Requests to model providers, messages to agents, calls of tools and their answers contain keys and private text:
    // never log them, even if the filter asks for them. rmcp also reports every client that disconnects as an error.
    for quiet in [
        "genai=off",
        "rmcp=off",
        "agent_client_protocol=warn",
        "h2=warn",
        "hyper=warn",
        "hyper_util=warn",
        "reqwest=warn",
    ] {
        if let Ok(directive) = quiet.parse() {
            filter = filter.add_directive(directive);
        }
    }
    let fmt = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::stderr().is_terminal());
    // A failed write would also be reported on standard error, which panics if standard error is closed. Only tests
    // install a second subscriber in one process; the first subscriber stays.
    let _ = fmt.with_writer(std::io::stderr).log_internal_errors(false).try_init();
    // An adapter's panic is recorded as the failure of its attempt; this hook only logs the panic.
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("unknown");
        tracing::error!(location, message, "a task panicked");
    }));
}

/// Configuration and output shared by every command.
struct Context<'a> {
    sources: Sources,
    resolved: Resolved,
    output: &'a Output,
    /// API key sent to the server at `url`; never stored or printed.
    key: Option<String>,
}

impl Context<'_> {
    async fn execute(&self, command: Command) -> Result<Exit, CliError> {
        match command {
            Command::Demo(demo) => Box::pin(demo.execute(self)).await,
            Command::Chat(chat) => Box::pin(chat.execute(self)).await,
            Command::Prompt(prompt) => Box::pin(prompt.execute(self)).await,
            Command::Session(session) => Box::pin(session.execute(self)).await,
            Command::Run(run) => Box::pin(run.execute(self)).await,
            Command::State(state) => Box::pin(state.execute(self)).await,
            Command::Artifact(artifact) => Box::pin(artifact.execute(self)).await,
            Command::Adapter(adapter) => Box::pin(adapter.execute(self)).await,
            Command::Binding(binding) => Box::pin(binding.execute(self)).await,
            Command::Agent(agent) => Box::pin(agent.execute(self)).await,
            Command::Network(network) => Box::pin(network.execute(self)).await,
            Command::Model(model) => Box::pin(model.execute(self)).await,
            Command::Auth(auth) => auth.execute(self).await,
            Command::Feed(feed) => Box::pin(feed.execute(self)).await,
            Command::Serve(serve) => Box::pin(serve.execute(self)).await,
            Command::Open(open) => Box::pin(open.execute(self)).await,
            Command::Stdio(stdio) => Box::pin(stdio.execute(self)).await,
            Command::Mcp(mcp) => Box::pin(mcp.execute(self)).await,
            Command::ModelServer(server) => server.execute(self).await,
            Command::Wait(wait) => Box::pin(wait.execute(self)).await,
            Command::Approval(approval) => Box::pin(approval.execute(self)).await,
            Command::Grant(grant) => Box::pin(grant.execute(self)).await,
            Command::GoalType(goal_type) => Box::pin(goal_type.execute(self)).await,
            Command::Feedback(feedback) => Box::pin(feedback.execute(self)).await,
            Command::Webhook(webhook) => Box::pin(webhook.execute(self)).await,
            Command::Usage(usage) => Box::pin(usage.execute(self)).await,
            Command::Cluster(cluster) => Box::pin(cluster.execute(self)).await,
            Command::Audit(audit) => Box::pin(audit.execute(self)).await,
            Command::Key(key) => Box::pin(key.execute(self)).await,
            Command::Import(import) => Box::pin(import.execute(self)).await,
            Command::Config(config) => config.execute(self),
            Command::Trust(trust) => trust.execute(self),
            Command::Doctor(doctor) => doctor.execute(self).await,
            Command::Backup(backup) => backup.execute(self).await,
            Command::Restore(restore) => restore.execute(self).await,
            Command::Verify(verify) => verify.execute(self).await,
            Command::Repair(repair) => repair.execute(self).await,
            Command::Vacuum(vacuum) => vacuum.execute(self).await,
            Command::Store(store) => store.execute(self).await,
            Command::Guard(_) | Command::Completions { .. } => Ok(Exit::Done),
        }
    }

    /// Refuses a command that works on the file of the SQLite database if the store is a PostgreSQL.
    fn check_sqlite(&self, command: &str) -> Result<(), CliError> {
        let other = match &self.config().store {
            Some(_) => Some("the setting `store` names a PostgreSQL".to_owned()),
            // The process that serves the directory may have been started with another `--store`.
            None => StateDir::peek(&self.config().state_dir)
                .ok()
                .flatten()
                .and_then(|owner| Some(format!("process {} uses {}", owner.pid, owner.store?))),
        };
        other.map_or(Ok(()), |other| {
            Err(CliError::bad_request(format!(
                "{command} works on SQLite, and {other}: use the tools of PostgreSQL (docs/postgresql.md)"
            )))
        })
    }

    /// Refuses to work on the SQLite of the local state directory while a process uses the directory with a PostgreSQL.
    fn check_store(&self, command: &str) -> Result<(), CliError> {
        self.check_local(command)?;
        let owner = StateDir::peek(&self.config().state_dir).ok().flatten();
        match (&self.config().store, owner.and_then(|owner| Some((owner.pid, owner.store?)))) {
            (None, Some((pid, store))) => Err(CliError::bad_request(format!(
                "process {pid} serves the state directory with the data in {store}: name it with --store"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a command that works on the files of the local state directory if `--url` is set.
    fn check_local(&self, command: &str) -> Result<(), CliError> {
        match &self.config().url {
            None => Ok(()),
            Some(_) => Err(CliError::bad_request(format!(
                "{command} works on the local state directory: remove --url, and run it on the server's machine"
            ))),
        }
    }

    /// Takes the local state directory for a command that changes the files of its database.
    fn own_database(&self, command: &str) -> Result<(StateDir, PathBuf), CliError> {
        self.check_local(command)?;
        self.check_sqlite(command)?;
        let database = self.config().database();
        if !database.exists() {
            return Err(CliError::not_found(format!(
                "{} does not exist: nothing is stored",
                database.display()
            )));
        }
        let (now, node) = (Clock::system().now(), Ids::system().node());
        Ok((StateDir::open(&self.config().state_dir, now, node)?, database))
    }

    fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// True if the configuration names the adapter of prompts.
    fn names_adapter(&self) -> bool {
        self.resolved.origins.contains_key("adapter")
    }

    /// Makes a folder that the caller names absolute, relative to the current folder.
    fn folder(&self, given: Option<&str>) -> Result<Option<String>, CliError> {
        let absolute = |given| {
            let folder = std::path::absolute(given);
            let folder =
                folder.map_err(|error| CliError::bad_request(format!("the folder {given:?}: {error}")))?;
            Ok(folder.to_string_lossy().into_owned())
        };
        given.map(absolute).transpose()
    }

    /// Returns the folder of a new session: the folder that the caller names, else the current folder. Returns `None`
    /// if the caller names no folder and either the adapter has a folder of its own, or the server is at another
    /// address, where the current folder may not exist.
    fn new_session_folder(
        &self,
        given: Option<&str>,
        adapter: Option<&str>,
    ) -> Result<Option<String>, CliError> {
        let config = self.config();
        let adapter = adapter.unwrap_or(&config.adapter);
        let has_own = config.adapters.get(adapter).is_some_and(|adapter| adapter.cwd.is_some());
        match given {
            None if config.url.is_some() || has_own => Ok(None),
            given => self.folder(Some(given.unwrap_or("."))),
        }
    }

    /// Connects to the process that serves the sessions.
    async fn connect(&self, purpose: Purpose) -> Result<Connection<'_>, CliError> {
        Box::pin(Connection::open(self, purpose)).await
    }

    /// Runs `work` on a connection to the process that serves the sessions, and closes the connection in any case.
    async fn with_connection<T>(
        &self,
        purpose: Purpose,
        work: impl AsyncFnOnce(&mut Connection<'_>) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let mut connection = self.connect(purpose).await?;
        let outcome = work(&mut connection).await;
        connection.close().await.and(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap would give both arguments the same value.
    #[test]
    fn no_argument_of_a_command_has_the_name_of_a_global_one() {
        let cli = Cli::command();
        let names = |command: &clap::Command| -> Vec<_> {
            command.get_arguments().map(|argument| argument.get_id().clone()).collect()
        };
        let global = names(&cli);
        assert!(global.iter().any(|name| name == "url"), "{global:?}");
        let mut commands: Vec<_> = cli.get_subcommands().collect();
        while let Some(command) = commands.pop() {
            let taken: Vec<_> = names(command).into_iter().filter(|name| global.contains(name)).collect();
            assert!(taken.is_empty(), "{}: {taken:?}", command.get_name());
            commands.extend(command.get_subcommands());
        }
    }
}
