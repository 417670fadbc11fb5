//! The caller, and tickets with which a browser signs in.

use mainspring_api::{Listener, Me, OidcAnswer, OidcToken, PageSecret, SignInWays, Ticket, TicketRedemption};
use reqwest::Method;

use super::Client;
use crate::Error;

impl Client {
    /// Returns the caller: its owner, org, role and key.
    pub async fn me(&self) -> Result<Me, Error> {
        self.get(&["v1", "me"], &()).await
    }

    /// Returns a TCP address of the server. If there is none, opens one that only this machine can reach.
    pub async fn listener_open(&self) -> Result<Listener, Error> {
        self.read(self.send(self.request(Method::POST, &["v1", "listeners"])).await?).await
    }

    /// Creates a one-time ticket with which a browser signs in as the caller.
    pub async fn ticket_create(&self) -> Result<Ticket, Error> {
        self.read(self.send(self.request(Method::POST, &["v1", "tickets"])).await?).await
    }

    /// Redeems a ticket. Browsers do this: the answer is useless without the cookie that comes with it.
    pub async fn ticket_redeem(&self, redemption: &TicketRedemption) -> Result<PageSecret, Error> {
        self.post(&["v1", "tickets", "redeem"], redemption).await
    }

    /// Returns the ways in which a browser signs in besides keys and tickets.
    pub async fn sign_in_ways(&self) -> Result<SignInWays, Error> {
        self.get(&["v1", "sign-in"], &()).await
    }

    /// Exchanges the answer of an identity provider for a token. Browsers do this.
    pub async fn sign_in_exchange(&self, answer: &OidcAnswer) -> Result<OidcToken, Error> {
        self.post(&["v1", "sign-in", "oidc"], answer).await
    }
}
