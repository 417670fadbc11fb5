//! `/v1/listeners`: a TCP address for browsers.
//!
//! A server may listen only on the Unix socket of its state directory, but a browser needs a TCP address. The serving
//! program opens the address: this crate only passes the request on.

use axum::extract::State;
use mainspring_api::Listener;
use mainspring_kernel::Error;
use tokio::sync::{mpsc, oneshot};

use crate::access::Authenticated;
use crate::body::Json;
use crate::{Http, Problem};

/// A request for a TCP address. The reply is the URL of the address, or why there is none.
pub type ListenerRequest = oneshot::Sender<Result<String, String>>;

/// Passes requests for a TCP address to the process that serves.
pub type ListenerRequests = mpsc::Sender<ListenerRequest>;

/// Returns a TCP address of the server; opens one that only this machine reaches if there is none
#[utoipa::path(
    post, path = "/v1/listeners",
    responses((status = 200, description = "The address", body = Listener)),
    extensions(("x-problems" = json!(["forbidden"]))),
)]
pub(super) async fn listener_open(
    State(http): State<Http>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Listener>, Problem> {
    caller.check_server_admin()?;
    if caller.agent.is_some() {
        return Err(Error::Forbidden("an agent opens no address: only people do".into()).into());
    }
    let (reply, url) = oneshot::channel();
    let unavailable = |why: &str| Error::Unavailable(format!("no TCP address can be opened: {why}"));
    let requests = http.listeners.as_ref().ok_or_else(|| unavailable("this server opens none"))?;
    requests.send(reply).await.map_err(|_| unavailable("the server is stopping"))?;
    let url = url.await.map_err(|_| unavailable("the server is stopping"))?;
    Ok(Json(Listener { url: url.map_err(|why| unavailable(&why))? }))
}
