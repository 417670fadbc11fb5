//! Applies the lists of API keys: which adapters, models and tools runs may use, and their cost per day.
//!
//! A key with lists or folders may change only the sessions and runs whose adapter, model and folder it allows. It may
//! read all sessions and runs of its owner. The check is part of `session_for_change` and `run_for_change`, with which
//! every change begins.

use mainspring_core::{KeyLists, Run, RunOptions, Session, UsageReports, day_of};

use super::{Caller, Shared};
use crate::error::Error;

impl Shared {
    /// Refuses a run whose options the lists do not allow, or whose adapter cannot enforce the lists. `options`
    /// includes the defaults of the session.
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

    /// Refuses default options for a session's runs if the lists do not allow their adapter or model.
    pub(crate) fn check_listed_defaults(
        lists: Option<&KeyLists>,
        adapter: Option<&str>,
        defaults: &RunOptions,
    ) -> Result<(), Error> {
        let Some(lists) = lists else { return Ok(()) };
        adapter.map_or(Ok(()), |adapter| lists.check_adapter(adapter))?;
        Ok(lists.check_model(defaults)?)
    }

    /// Refuses a change of a session whose adapter, model or folder the caller's key does not allow. Also refuses it if
    /// the session has an unfinished run that the key does not allow: the settings of a session hold for its runs.
    pub(crate) async fn check_session_allowed(
        &self,
        caller: &Caller,
        session: &Session,
    ) -> Result<(), Error> {
        if !is_limited(caller) {
            return Ok(());
        }
        self.check_settings_allowed(caller, session)?;
        let unfinished = self.store.session_load(session.id).await?.map(|loaded| loaded.runs);
        unfinished.iter().flatten().try_for_each(|(run, _)| self.check_run_allowed(caller, run))
    }

    /// Refuses a session whose adapter, model or folder the key of the caller does not allow.
    pub(crate) fn check_settings_allowed(&self, caller: &Caller, session: &Session) -> Result<(), Error> {
        let (lists, folders) = (caller.lists.as_deref(), caller.folders.as_deref());
        Self::check_listed_defaults(lists, Some(&session.adapter), &session.run_defaults())?;
        match folders {
            Some(_) => self.check_folder(&session.adapter, session.cwd.as_deref(), folders),
            None => Ok(()),
        }
    }

    /// Refuses a change of a run whose adapter, model, tools or folder the caller's key does not allow.
    pub(crate) fn check_run_allowed(&self, caller: &Caller, run: &Run) -> Result<(), Error> {
        if let Some(lists) = &caller.lists {
            lists.check_run(&run.adapter, &run.options)?;
        }
        match caller.folders.as_deref() {
            folders @ Some(_) => self.check_run_folder(&run.adapter, run.options.cwd.as_deref(), folders),
            None => Ok(()),
        }
    }

    /// Refuses a key whose runs have reached its spend per day.
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

/// True for a caller that is limited to some adapters, models, tools or folders.
fn is_limited(caller: &Caller) -> bool {
    caller.lists.is_some() || caller.folders.is_some()
}
