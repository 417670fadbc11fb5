//! The edges of a host beside the rest of mainspring.

mod codes;
