//! Usage of an owner's runs in a span of time, in groups.

use std::collections::BTreeMap;

use mainspring_api::{UsageGroup, UsageQuery, UsageReport};
use mainspring_core::{Cost, Run, RunId, RunStatus, SessionId, Time, Usage, UsageReports, UsageSum};

use super::{Caller, Kernel};
use crate::error::Error;
use crate::store::RunPage;

/// Runs that are read at once.
const PAGE: usize = 1_000;
/// Runs that one report may sum.
const MAX_RUNS: usize = 200_000;
/// Groups that one report may have.
const MAX_GROUPS: usize = 20_000;
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// The span of a report that names none.
const DEFAULT_DAYS: i64 = 30;
/// The largest offset from UTC that a query may give.
const MAX_OFFSET_MINUTES: i64 = 24 * 60;

/// The properties by which runs are grouped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Dimensions {
    day: bool,
    agent: bool,
    model: bool,
    session: bool,
    utc_offset_minutes: i64,
}

type Group = (Option<String>, Option<String>, Option<String>, Option<SessionId>);

impl Kernel {
    /// Sums the usage of the caller's runs by the time of their acceptance. Reads all runs of that time.
    pub async fn usage_report(&self, caller: &Caller, query: &UsageQuery) -> Result<UsageReport, Error> {
        let dimensions = Dimensions::parse(query)?;
        let to = query.to.unwrap_or_else(|| self.shared.clock.now());
        let from = query.from.unwrap_or(Time(to.0.saturating_sub(DEFAULT_DAYS * DAY_MS)));
        if from >= to {
            return Err(Error::Invalid("`from` must be before `to`".into()));
        }
        let mut report =
            UsageReport { from, to, total: UsageSum::default(), groups: vec![], damaged_runs: 0 };
        let mut groups: BTreeMap<Group, UsageSum> = BTreeMap::new();
        let mut page = RunPage {
            owner: caller.owner.clone(),
            session: None,
            status: None,
            // No run has a smaller id.
            before: Some((to, RunId::from_random([0; 16]))),
            limit: PAGE,
        };
        let mut read = 0;
        loop {
            let rows = self.shared.store.run_page(&page).await?;
            let in_span = rows.iter().take_while(|run| run.created_at >= from).count();
            let damaged = rows.damaged.iter().filter(|damage| damage.index <= in_span).count();
            report.damaged_runs += damaged as u64;
            let is_new = |run: &Run| run.state.status() == RunStatus::Queued && run.attempts == 0;
            for run in rows.iter().take(in_span).filter(|run| !is_new(run)) {
                let usage = self.usage_of(run);
                report.total.add(usage);
                if dimensions.has_any() {
                    groups.entry(dimensions.group_of(run)).or_default().add(usage);
                }
            }
            read += rows.len();
            if read > MAX_RUNS || groups.len() > MAX_GROUPS {
                return Err(Error::Invalid(format!(
                    "there are more than {MAX_RUNS} runs or {MAX_GROUPS} groups between these times: ask for a shorter time"
                )));
            }
            match rows.last() {
                Some(last) if in_span == rows.len() && rows.len() >= PAGE => {
                    page.before = Some((last.created_at, last.id));
                }
                _ => break,
            }
        }
        report.groups = groups.into_iter().map(group).collect();
        Ok(report)
    }

    /// The usage of a run. The cost is unknown while the run works, unless its agent reports usage meanwhile.
    pub(super) fn usage_of(&self, run: &Run) -> Usage {
        let status = run.state.status();
        let adapter = self.shared.adapters.get(&run.adapter);
        let is_live = adapter.is_some_and(|known| known.capabilities().usage_reports == UsageReports::Live);
        match status.is_ended() || status == RunStatus::Queued || is_live {
            true => run.usage,
            false => Usage { cost: Cost::UNKNOWN, ..run.usage },
        }
    }
}

impl Dimensions {
    fn parse(query: &UsageQuery) -> Result<Self, Error> {
        let utc_offset_minutes = query.utc_offset_minutes.unwrap_or(0);
        if utc_offset_minutes.abs() > MAX_OFFSET_MINUTES {
            return Err(Error::Invalid(format!(
                "`utcOffsetMinutes` may be from -{MAX_OFFSET_MINUTES} to {MAX_OFFSET_MINUTES}"
            )));
        }
        let mut parsed = Self { utc_offset_minutes, ..Self::default() };
        for name in query.by.iter().flat_map(|by| by.split(',')) {
            match name {
                "day" => parsed.day = true,
                "agent" => parsed.agent = true,
                "model" => parsed.model = true,
                "session" => parsed.session = true,
                other => {
                    let other: String = other.chars().take(64).collect();
                    return Err(Error::Invalid(format!(
                        "usage cannot be grouped by {other:?}: use day, agent, model, session, or several with commas"
                    )));
                }
            }
        }
        Ok(parsed)
    }

    const fn has_any(self) -> bool {
        self.day || self.agent || self.model || self.session
    }

    fn group_of(self, run: &Run) -> Group {
        let model = || run.options.model.clone().or_else(|| run.options.model_profile.clone());
        (
            self.day.then(|| run.created_at.date(self.utc_offset_minutes)),
            self.agent.then(|| run.adapter.clone()),
            self.model.then(model).flatten(),
            self.session.then_some(run.session),
        )
    }
}

fn group(((day, agent, model, session_id), usage): (Group, UsageSum)) -> UsageGroup {
    UsageGroup { day, agent, model, session_id, usage }
}
