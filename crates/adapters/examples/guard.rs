//! The guard as a program: `guard --grace-ms N [--group] -- COMMAND…`, and the confiner: `guard --confine JSON -- COMMAND…`. The
//! tests of this crate start their agents under them.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use mainspring_adapters::process::{confine, guard};
use mainspring_core::Supervision;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [flag, grace, rest @ ..] if flag == "--grace-ms" => {
            let (supervision, rest) = match rest {
                [group, rest @ ..] if group == "--group" => (Supervision::Group, rest),
                rest => (Supervision::Tree, rest),
            };
            let (Some(grace), [separator, command @ ..]) =
                (grace.to_str().and_then(|grace| grace.parse().ok()), rest)
            else {
                return ExitCode::from(2);
            };
            assert_eq!(separator, "--");
            guard::main(Duration::from_millis(grace), supervision, None, command)
        }
        [flag, confinement, separator, command @ ..] if flag == "--confine" && separator == "--" => {
            confine::main(confinement, command)
        }
        _ => ExitCode::from(2),
    }
}
