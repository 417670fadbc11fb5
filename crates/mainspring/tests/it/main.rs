//! mainspring from outside: its binary, its files, its death.

mod cli;
mod docs;
mod http;
mod kill;
