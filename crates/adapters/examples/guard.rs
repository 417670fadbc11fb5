//! The guard as a program: `guard --grace-ms N -- COMMAND…`, and the confiner: `guard --confine JSON -- COMMAND…`. The
//! tests of this crate start their agents under them.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use mainspring_adapters::process::{confine, guard};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [flag, grace, separator, command @ ..] if flag == "--grace-ms" && separator == "--" => {
            let Some(grace) = grace.to_str().and_then(|grace| grace.parse().ok()) else {
                return ExitCode::from(2);
            };
            guard::main(Duration::from_millis(grace), command)
        }
        [flag, confinement, separator, command @ ..] if flag == "--confine" && separator == "--" => {
            confine::main(confinement, command)
        }
        _ => ExitCode::from(2),
    }
}
