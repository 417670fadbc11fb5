//! `mainspring open`

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::Args;
use mainspring_client::Client;
use mainspring_kernel::clock::Clock;
use serde_json::json;

use super::Context;
use super::connection::{ANSWER_TIMEOUT_MS, Purpose, is_serving_within, owner_client};
use super::error::{CliError, Exit};

/// Time between two checks for the server.
const RETRY_INTERVAL_MS: u64 = 20;
/// Maximum number of checks for the server that this command started. The server checks its database before it serves.
const MAX_ATTEMPTS: u32 = 1_500;
/// Maximum number of checks for another server after the started server has exited.
const ATTEMPTS_AFTER_EXIT: u32 = 100;
/// Time after which the browser counts as opened if its program has not ended.
const BROWSER_TIMEOUT_MS: u64 = 2_000;
/// Bytes of the log that an error shows.
const LOG_BYTES: usize = 2_000;

/// Open the page in a browser, signed in; starts a server if none runs
#[derive(Args)]
pub(super) struct Open {
    /// Print the address instead of opening a browser; it works once, for 60 seconds
    #[arg(long)]
    print: bool,
}

impl Open {
    pub(super) async fn execute(self, context: &Context<'_>) -> Result<Exit, CliError> {
        let (client, base) = match &context.config().url {
            Some(url) => (context.connect(Purpose::Records).await?.client().clone(), url.clone()),
            None => {
                let client = served_client(context).await?;
                let url = client.listener_open().await?.url;
                (client, url)
            }
        };
        let ticket = client.ticket_create().await?.ticket;
        let base = base.trim_end_matches('/');
        let url = format!("{base}/#ticket={ticket}");
        let is_opened = !self.print && open_browser(&context.config().state_dir, &url).await;
        match (context.output.json, is_opened) {
            (true, _) => context.output.print_json(&json!({"url": url, "opened": is_opened}))?,
            (false, true) => context.output.print_note(format_args!("opened {base}/ in your browser"))?,
            (false, false) => context.output.print_line(&url)?,
        }
        Ok(Exit::Done)
    }
}

/// Returns a client of the process that serves the state directory. Starts a `serve` if there is none.
async fn served_client(context: &Context<'_>) -> Result<Client, CliError> {
    let clock = Clock::system();
    let mut started: Option<Child> = None;
    let (mut attempts, mut attempts_after_exit) = (0, 0);
    loop {
        if let Some(client) = owner_client(context)?
            && is_serving_within(context, &client, ANSWER_TIMEOUT_MS).await?
        {
            return Ok(client);
        }
        let server = match &mut started {
            Some(server) => server,
            None => started.insert(start_server(context)?),
        };
        attempts += 1;
        attempts_after_exit += u32::from(server.try_wait()?.is_some());
        if attempts >= MAX_ATTEMPTS || attempts_after_exit >= ATTEMPTS_AFTER_EXIT {
            return Err(not_started(&log_file(context)));
        }
        clock.sleep_for(RETRY_INTERVAL_MS).await;
    }
}

/// Starts a `serve` that outlives this command, with the same settings. Its messages go to a file.
fn start_server(context: &Context<'_>) -> Result<Child, CliError> {
    let folder = &context.config().state_dir;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let log = private_file(&log_file(context))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve");
    let configured = context.config().listen.parse::<SocketAddr>();
    // Another server may use the configured address. Any other port works: this command passes the port to the browser.
    if configured.is_ok_and(|address| TcpListener::bind(address).is_err()) {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    for (key, value) in &context.sources.flags {
        command.arg(format!("--{}", key.replace('_', "-"))).arg(value);
    }
    if let Some(file) = &context.sources.file {
        command.arg("--config").arg(file);
    }
    // The server gets a process group of its own, so that Ctrl-C in this terminal does not stop it.
    command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command.spawn()?)
}

fn log_file(context: &Context<'_>) -> PathBuf {
    context.config().state_dir.join("serve.log")
}

/// Creates an empty file that only its owner can read.
fn private_file(path: &Path) -> io::Result<std::fs::File> {
    // An existing file would keep its mode, which may allow others to read it.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn not_started(log: &Path) -> CliError {
    let text = std::fs::read(log).unwrap_or_default();
    let end = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_BYTES)..]).trim().to_owned();
    CliError {
        exit: Exit::Unavailable,
        code: "unavailable".into(),
        message: format!("the server does not start; {} ends with: {end}", log.display()),
        retryable: true,
    }
}

/// Opens a browser. Returns false if there is none, or if it fails at once.
///
/// Every user of the machine can see the arguments of a process, and the address holds a ticket. So the browser gets
/// the path of a private file that redirects to the address.
async fn open_browser(state_dir: &Path, url: &str) -> bool {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let program = match cfg!(target_os = "macos") {
        true => "open",
        false if has_display => "xdg-open",
        false => return false,
    };
    let file = state_dir.join("open.html");
    let written = private_file(&file).and_then(|mut html| html.write_all(redirect(url).as_bytes()));
    if let Err(error) = written {
        tracing::warn!(%error, "the file for the browser cannot be written");
        return false;
    }
    let mut command = tokio::process::Command::new(program);
    command.arg(&file).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut browser) = command.spawn() else { return false };
    tokio::select! {
        ended = browser.wait() => ended.is_ok_and(|status| status.success()),
        () = Clock::system().sleep_for(BROWSER_TIMEOUT_MS) => true,
    }
}

/// Returns an HTML document that redirects to `url`.
fn redirect(url: &str) -> String {
    let url = url.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;");
    format!(
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\"><title>mainspring</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\"><a href=\"{url}\">mainspring</a>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_for_a_browser_is_private_and_leads_to_the_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open.html");
        std::fs::write(&path, "open to all").unwrap();
        private_file(&path).unwrap().write_all(redirect("http://h/#ticket=\"<&").as_bytes()).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("content=\"0; url=http://h/#ticket=&quot;&lt;&amp;\""), "{text}");
    }
}
