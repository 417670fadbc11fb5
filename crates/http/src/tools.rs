//! `/v1/tools`: the manifest of the control tools.

use mainspring_api::control::ControlTool;

use crate::access::Authenticated;
use crate::body::Json;

/// Lists the control tools with their purpose, their schemas and the access that they need
#[utoipa::path(
    get, path = "/v1/tools",
    responses((status = 200, description = "All control tools", body = Vec<ControlTool>)),
)]
pub(super) async fn tool_list(Authenticated(_): Authenticated) -> Json<Vec<ControlTool>> {
    Json(mainspring_control::tools().to_vec())
}
