//! The command line: `mainspring NOUN VERB`, human by default, JSON with `--json`.
//!
//! Exit codes: 0 done; 1 the run failed, timed out or was orphaned; 2 the request makes no sense; 3 there is no such
//! thing; 4 refused in this state; 5 not possible now, try later; 6 the state directory belongs to another process;
//! 7 the run waits for an answer; 130 cancelled.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use mainspring::config::{Config, Resolved, Sources};

mod adapter;
mod adopt;
mod agent;
mod attach;
mod binding;
mod chat;
mod config;
mod demo;
mod doctor;
mod fail;
mod feed;
mod file;
mod guard;
mod home;
mod import;
mod key;
mod mcp;
mod model;
mod model_server;
mod output;
mod picture;
mod prompt;
mod run;
mod serve;
mod session;
mod stdio;
mod tree;
mod watch;

use fail::{Exit, Fail};
use home::{Home, Purpose};
use output::Output;

/// Durable sessions for AI agents: accepts work exactly once, streams it, survives kill -9.
#[derive(Parser)]
#[command(name = "mainspring", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 the run failed, 2 bad request, 3 not found, 4 refused in this state, \
5 not possible now, 6 the state directory belongs to another process, 7 the run waits for an answer, 130 cancelled.";

#[derive(Args)]
struct Global {
    /// The folder everything is kept in
    #[arg(long, global = true, value_name = "DIR", help_heading = "Settings")]
    state_dir: Option<String>,
    /// The configuration file [default: ./mainspring.toml, then the user's]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Settings")]
    config: Option<PathBuf>,
    /// Whose sessions these are
    #[arg(long, global = true, value_name = "NAME", help_heading = "Settings")]
    owner: Option<String>,
    /// How many runs are executed at once
    #[arg(long, global = true, value_name = "N", help_heading = "Settings")]
    max_workers: Option<String>,
    /// What survives a loss of power: full or normal
    #[arg(long, global = true, value_name = "LEVEL", help_heading = "Settings")]
    durability: Option<String>,
    /// What is logged to standard error, for example debug
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Settings")]
    log: Option<String>,
    /// The server to talk to, instead of the state directory's
    #[arg(long, global = true, value_name = "URL", help_heading = "Settings")]
    url: Option<String>,
    /// The key to show to the server; better given as MAINSPRING_KEY, which other users cannot see
    #[arg(long = "key", global = true, value_name = "KEY", help_heading = "Settings")]
    secret: Option<String>,
    /// Machine-readable output: JSON, one object per line where there are many
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Show what mainspring does, in a temporary folder, without any configuration
    Demo(demo::Demo),
    /// Talk to an agent: streaming, tools, questions, branches
    Chat(Box<chat::Chat>),
    /// Send a prompt and stream the answer
    Prompt(Box<prompt::Prompt>),
    /// List, show and change sessions
    #[command(subcommand)]
    Session(session::Session),
    /// List, show, cancel, retry and answer runs
    #[command(subcommand)]
    Run(run::Run),
    /// List agent runtimes, and log in to them
    #[command(subcommand)]
    Adapter(adapter::Adapter),
    /// List the agents' own sessions that a session is tied to, or have one not used again
    #[command(subcommand)]
    Binding(binding::BindingCommand),
    /// List, show, check, make and delete agent definitions
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// List models
    #[command(subcommand)]
    Model(model::Model),
    /// Follow what all sessions do, until Ctrl-C
    Feed(feed::Feed),
    /// Serve the HTTP API, on an address (this machine's own by default) and a Unix socket
    Serve(serve::Serve),
    /// Serve a host over standard input and output: JSON lines, of the protocol's versions 2 and 1
    Stdio(stdio::Stdio),
    /// Serve the control tools over MCP, on standard input and output: for agents, and for any MCP client
    Mcp(mcp::Mcp),
    /// Serve a scripted model, in the protocols of the providers, to try things out without a key
    ModelServer(model_server::ModelServer),
    /// Make, list and revoke API keys
    #[command(subcommand)]
    Key(key::Key),
    /// Take in what another program has kept
    #[command(subcommand)]
    Import(import::Import),
    /// Show the configuration
    #[command(subcommand)]
    Config(config::Config),
    /// Check the state directory, the database, versions and limits
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Guard(guard::Guard),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command that the process was started with.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    if let Command::Guard(guard) = &cli.command {
        // A guard reads no configuration.
        return guard.execute();
    }
    let output = Output::new(cli.global.json);
    let outcome = match start(cli, &output) {
        Ok(exit) => exit,
        Err(fail) => {
            output.fail(&fail);
            fail.exit
        }
    };
    ExitCode::from(outcome as u8)
}

/// Reports invalid arguments, as JSON with `--json`; also prints clap's help and version.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args().any(|argument| argument == "--json");
    if !error.use_stderr() || !wants_json {
        error.exit();
    }
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    let fail = Fail::bad_request(message);
    Output::new(true).fail(&fail);
    ExitCode::from(fail.exit as u8)
}

fn start(cli: Cli, output: &Output) -> Result<Exit, Fail> {
    if let Command::Completions { shell } = cli.command {
        let mut script = vec![];
        clap_complete::generate(shell, &mut Cli::command(), "mainspring", &mut script);
        output.raw(&script)?;
        return Ok(Exit::Done);
    }
    let resolved = load(&cli.global)?;
    log(&resolved.config);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let key = cli.global.secret.clone().or_else(|| std::env::var("MAINSPRING_KEY").ok());
    let context = Context { resolved, output, key };
    let exit = runtime.block_on(context.execute(cli.command));
    // A blocking read from the terminal must not keep the process alive.
    runtime.shutdown_background();
    exit
}

fn load(global: &Global) -> Result<Resolved, Fail> {
    let flags = [
        ("state_dir", &global.state_dir),
        ("owner", &global.owner),
        ("max_workers", &global.max_workers),
        ("durability", &global.durability),
        ("log", &global.log),
        ("url", &global.url),
    ];
    let flags = flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
    let mut sources = Sources::from_process(flags.collect())?;
    sources.file = global.config.clone();
    Ok(Config::load(&sources)?)
}

fn log(config: &Config) {
    let mut filter = tracing_subscriber::EnvFilter::new(&config.log);
    // Requests to model providers and their answers contain keys and private text: never log them, whatever the filter
    // says.
    for quiet in ["genai=off", "h2=warn", "hyper=warn", "hyper_util=warn", "reqwest=warn"] {
        if let Ok(directive) = quiet.parse() {
            filter = filter.add_directive(directive);
        }
    }
    // Only tests install a second subscriber in one process; the first one stays.
    let fmt = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::stderr().is_terminal());
    let _ = fmt.with_writer(std::io::stderr).try_init();
    // An adapter's panic is recorded as the failure of its attempt; here it is only logged.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("unknown");
        tracing::error!(place, what, "a task panicked");
    }));
}

/// Configuration and output shared by every command.
struct Context<'a> {
    resolved: Resolved,
    output: &'a Output,
    /// API key sent to the server at `url`; never stored or printed.
    key: Option<String>,
}

impl Context<'_> {
    async fn execute(&self, command: Command) -> Result<Exit, Fail> {
        match command {
            Command::Demo(demo) => Box::pin(demo.execute(self)).await,
            Command::Chat(chat) => Box::pin(chat.execute(self)).await,
            Command::Prompt(prompt) => Box::pin(prompt.execute(self)).await,
            Command::Session(session) => Box::pin(session.execute(self)).await,
            Command::Run(run) => Box::pin(run.execute(self)).await,
            Command::Adapter(adapter) => Box::pin(adapter.execute(self)).await,
            Command::Binding(binding) => Box::pin(binding.execute(self)).await,
            Command::Agent(agent) => Box::pin(agent.execute(self)).await,
            Command::Model(model) => Box::pin(model.execute(self)).await,
            Command::Feed(feed) => Box::pin(feed.execute(self)).await,
            Command::Serve(serve) => Box::pin(serve.execute(self)).await,
            Command::Stdio(stdio) => Box::pin(stdio.execute(self)).await,
            Command::Mcp(mcp) => Box::pin(mcp.execute(self)).await,
            Command::ModelServer(server) => server.execute(self).await,
            Command::Key(key) => Box::pin(key.execute(self)).await,
            Command::Import(import) => Box::pin(import.execute(self)).await,
            Command::Config(config) => config.execute(self),
            Command::Doctor(doctor) => doctor.execute(self).await,
            Command::Guard(_) | Command::Completions { .. } => Ok(Exit::Done),
        }
    }

    fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// Connects to the sessions.
    async fn home(&self, purpose: Purpose) -> Result<Home<'_>, Fail> {
        Box::pin(Home::find(self, purpose)).await
    }
}
