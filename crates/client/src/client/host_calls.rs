//! Tools that a host runs for the agents of its runs.

use mainspring_api::{HostCall, HostCallAnswered, HostCallQuery, HostCallResult};

use super::Client;
use crate::Error;

impl Client {
    /// Lists the calls that the host has to answer; if there are none, waits for one as long as the query says.
    pub async fn host_call_list(&self, query: &HostCallQuery) -> Result<Vec<HostCall>, Error> {
        self.get(&["v1", "host-calls"], query).await
    }

    /// Answers a call. Returns whether the agent got the result.
    pub async fn host_call_answer(&self, result: &HostCallResult) -> Result<bool, Error> {
        let answered: HostCallAnswered = self.post(&["v1", "host-calls"], result).await?;
        Ok(answered.delivered)
    }
}
