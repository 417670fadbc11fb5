//! Prints docs/control-tools.md.

#![expect(clippy::print_stdout, reason = "the program prints a document")]

fn main() {
    print!("{}", mainspring_control::document());
}
