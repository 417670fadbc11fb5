//! Decides which failed transactions are logged: the first, the tenth, the hundredth and so on, and then their end. A full
//! disk fails several transactions a second, and would otherwise fill the log as well.

/// Counts the failed transactions since the last successful one.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    failed: u64,
}

/// A line to log. Holds the number of transactions that have failed in a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogLine {
    Failed(u64),
    Recovered(u64),
}

impl FailureLog {
    /// Counts a failed transaction.
    pub(super) fn failed(&mut self) -> Option<LogLine> {
        self.failed += 1;
        let is_power_of_ten = 10_u64.checked_pow(self.failed.ilog10()) == Some(self.failed);
        is_power_of_ten.then_some(LogLine::Failed(self.failed))
    }

    /// Counts a successful transaction.
    pub(super) fn succeeded(&mut self) -> Option<LogLine> {
        match std::mem::take(&mut self.failed) {
            0 => None,
            failed => Some(LogLine::Recovered(failed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_less_and_less_often_and_their_end_once() {
        let mut log = FailureLog::default();
        assert_eq!(log.succeeded(), None);
        let logged: Vec<LogLine> = (0..2_500).filter_map(|_| log.failed()).collect();
        assert_eq!(logged, [1, 10, 100, 1_000].map(LogLine::Failed));
        assert_eq!((log.succeeded(), log.succeeded()), (Some(LogLine::Recovered(2_500)), None));
        assert_eq!(log.failed(), Some(LogLine::Failed(1)), "the next failure is a new one");
    }
}
