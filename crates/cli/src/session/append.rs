//! `mainspring session append`: a message of a person, without a run.

use mainspring_client::MessageAppend;
use mainspring_kernel::ids::Ids;

use crate::Context;
use crate::connection::Connection;
use crate::error::CliError;

/// Appends `text` to the session as a message. The message's id is generated if `id` is `None`.
pub(super) async fn append(
    context: &Context<'_>,
    connection: &mut Connection<'_>,
    session: &str,
    text: &str,
    id: Option<String>,
) -> Result<(), CliError> {
    let id = id.unwrap_or_else(|| Ids::system().message().to_string());
    let message = MessageAppend::text(id, text);
    let appended = connection.request(async |client| client.message_append(session, &message).await).await?;
    match context.output.json {
        true => Ok(context.output.print_json(&appended)?),
        false => Ok(context.output.print_line(appended.id)?),
    }
}
