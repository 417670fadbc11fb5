//! The `mainspring` binary: everything is in the library.

fn main() -> std::process::ExitCode {
    mainspring::cli::main()
}
