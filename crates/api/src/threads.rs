//! The threads API under `/v1/ai`: the records that the `roboto` Python package reads and writes.
//!
//! The words of that API (thread, message sequence number, continuation token) are used here, in its edge
//! (`mainspring-http`) and in its client only. Field names and values are those of the package; unknown fields of newer
//! versions are ignored when a record is read.

mod agent;
mod feedback;
mod goal;
mod message;
mod query;
mod record;
mod request;
mod task;
mod timestamp;

pub use agent::{
    AgentRecord, AgentVariable, AgentVariableType, CreateAgentRequest, DeletedAgent, LaunchAgentRequest,
    UpdateAgentRequest,
};
pub use feedback::{SubmitFeedbackRequest, ThreadFeedbackRecord};
pub use goal::{AgentGoal, AgentGoalStatus, AgentThreadGoalRecord};
pub use message::{
    AgentContent, AgentErrorContent, AgentMessage, AgentMessageStatus, AgentRole, AgentTextContent,
    AgentToolResultContent, AgentToolUseContent, ContentType,
};
pub use query::{ThreadAgentListQuery, ThreadDeltaQuery, ThreadGetQuery, ThreadListQuery};
pub use record::{
    AgentThreadDelta, AgentThreadRecord, AgentThreadStatus, ChangedThread, Data, ErrorEnvelope,
    ModelProfileResponse, ThreadError, ThreadOrigin, ThreadPage, ThreadVisibility,
};
pub use request::{
    AnalysisScope, CLIENT_TOOL_NAME_PREFIX, ClientToolResult, ClientToolResultStatus, ClientToolSpec,
    ForkAgentThreadRequest, PinThreadRequest, SearchThreadsRequest, SendMessageRequest,
    StartAgentThreadRequest, SubmitToolResultsRequest, UpdateThreadVisibilityRequest, is_client_tool_name,
};
pub use task::{AgentSubtask, AgentSubtaskStatus, AgentTask, AgentTaskBoundary, AgentTaskStatus};
pub use timestamp::Timestamp;

/// The package's name for the kind of a block.
pub type AgentContentType = ContentType;
/// The old name of a message of a thread.
pub type ChatMessage = AgentMessage;
/// The old name of the role of a message.
pub type ChatRole = AgentRole;
/// The old name of the status of a message.
pub type ChatMessageStatus = AgentMessageStatus;
/// The old name of the status of a thread.
pub type ChatStatus = AgentThreadStatus;
/// The old name of a thread.
pub type ChatRecord = AgentThreadRecord;
/// The old name of a delta of a thread.
pub type ChatRecordDelta = AgentThreadDelta;
/// The name of a thread in versions of the package between the names `Chat…` and `AgentThread…`.
pub type AgentSessionRecord = AgentThreadRecord;
/// The name of a delta in the same versions.
pub type AgentSessionDelta = AgentThreadDelta;
/// The name of the status of a thread in the same versions.
pub type AgentSessionStatus = AgentThreadStatus;

#[cfg(test)]
mod tests;
