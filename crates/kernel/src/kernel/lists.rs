//! The lists of API keys, applied: which adapters, models and tools runs may use, and what they may cost in a day.

use mainspring_core::{KeyLists, RunOptions, UsageReports, day_of};

use super::Shared;
use crate::error::Error;

impl Shared {
    /// Refuses a run with these complete options that the lists do not allow, or whose adapter cannot keep to them.
    pub(crate) fn check_lists(
        &self,
        lists: Option<&KeyLists>,
        adapter: &str,
        options: &RunOptions,
    ) -> Result<(), Error> {
        let Some(lists) = lists else { return Ok(()) };
        lists.check_run(adapter, options)?;
        let capabilities = self.adapter(adapter)?.capabilities();
        let what = if lists.tools.is_some() && capabilities.supports_tools && !capabilities.limits_tools {
            "keep to the list `tools` of the key: its agents choose their tools themselves"
        } else if lists.spend_per_day.is_some() && capabilities.usage_reports == UsageReports::Never {
            "keep to the spend per day of the key: it does not report what its runs cost"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported { adapter: adapter.to_owned(), what })
    }

    /// Refuses the defaults of a session's runs that the lists do not allow.
    pub(crate) fn check_listed_defaults(
        lists: Option<&KeyLists>,
        adapter: Option<&str>,
        defaults: &RunOptions,
    ) -> Result<(), Error> {
        let Some(lists) = lists else { return Ok(()) };
        adapter.map_or(Ok(()), |adapter| lists.check_adapter(adapter))?;
        Ok(lists.check_model(defaults)?)
    }

    /// Refuses a key whose runs have cost as much today as they may.
    pub(crate) async fn check_spend(&self, lists: Option<&KeyLists>) -> Result<(), Error> {
        let Some((lists, limit)) = lists.and_then(|lists| Some((lists, lists.spend_per_day?))) else {
            return Ok(());
        };
        let spend = self.store.key_spend(lists.key_id, day_of(self.clock.now())).await?;
        match spend.cost < limit {
            true => Ok(()),
            false => Err(Error::SpendLimit { spend, limit }),
        }
    }
}
