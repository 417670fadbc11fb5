//! Where mainspring keeps what it knows.
