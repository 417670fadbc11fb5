//! Errors of requests, by what the caller does next.

use std::time::Duration;

use crate::Problem;

/// Codes of the server that change the client's behaviour.
mod code {
    pub(super) const CORRUPT: &str = "corrupt";
    pub(super) const CURSOR_EXPIRED: &str = "cursor_expired";
    pub(super) const NOT_FOUND: &str = "not_found";
    pub(super) const SHUTTING_DOWN: &str = "shutting_down";
}

/// Why a request failed, or may have failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused the request: nothing changed. A problem with a status of 500 or more may also be a
    /// failure after which the outcome of the request is unknown.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    /// No server answers at the address. Nothing changed.
    #[error("nobody answers at {address}: start one with `mainspring serve`, or check the address")]
    Unreachable {
        /// The address.
        address: String,
        /// The error of the operating system or the HTTP library.
        #[source]
        source: reqwest::Error,
    },
    /// The connection broke before the response arrived: the request may or may not have been carried out. A request
    /// with an idempotency key can be sent again.
    #[error("the connection to {address} broke before the answer was there")]
    Broken {
        /// The address.
        address: String,
        /// The error of the operating system or the HTTP library.
        #[source]
        source: reqwest::Error,
    },
    /// No response began in time: the request may or may not have been carried out. A request with an idempotency key can be
    /// sent again.
    #[error(
        "{address} has not answered within {waited:?}: continue its process if it is stopped, or end it, and send the \
         request again"
    )]
    NoResponse {
        /// The address.
        address: String,
        /// The time that the server had.
        waited: Duration,
    },
    /// The response is not one of mainspring's.
    #[error("{address} does not answer as mainspring does: {problem}")]
    Protocol {
        /// The address.
        address: String,
        /// The problem with the response.
        problem: String,
    },
    /// An argument cannot be used, such as the address, the key, the owner or a value.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Returns the stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(problem) => &problem.code,
            Self::Unreachable { .. } => "unreachable",
            Self::Broken { .. } => "connection_broken",
            Self::NoResponse { .. } => "not_responding",
            Self::Protocol { .. } => "protocol",
            Self::Invalid(_) => "invalid_request",
        }
    }

    /// True when the server is unreachable or shutting down.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Broken { .. })
            || self.is_refused_with(code::SHUTTING_DOWN)
    }

    /// True when the server did not answer in time.
    pub fn is_not_responding(&self) -> bool {
        matches!(self, Self::NoResponse { .. })
    }

    /// True when the requested thing does not exist, or the caller may not see it.
    pub fn is_not_found(&self) -> bool {
        self.is_refused_with(code::NOT_FOUND)
    }

    /// True when the request needs stored data that is damaged.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.is_refused_with(code::CORRUPT)
    }

    /// True when the requested events were pruned.
    pub fn is_cursor_expired(&self) -> bool {
        self.is_refused_with(code::CURSOR_EXPIRED)
    }

    fn is_refused_with(&self, code: &str) -> bool {
        matches!(self, Self::Refused(problem) if problem.code == code)
    }

    /// True when the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.is_gone()
            || self.is_not_responding()
            || matches!(self, Self::Refused(problem) if problem.retryable)
    }
}
