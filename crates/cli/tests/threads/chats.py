"""Drives the threads API under its old name, with a package that calls a thread a session."""

from roboto import RobotoClient, RobotoConfig
from roboto.ai import AgentSession, client_tool
from roboto.ai.agent_session import FeedbackSentiment

from server import URL, Server, http, key, run_all

SERVER = Server()
ADA_KEY = key("older", "oldies")
ADA = RobotoClient.from_config(RobotoConfig(api_key=ADA_KEY, endpoint=URL))


def texts(session):
    return ["".join(block.text for block in message.content if hasattr(block, "text")).strip() for message in session.messages]


def test_a_session_is_a_thread():
    session = AgentSession.start("say hello", roboto_client=ADA)
    session.run()
    session.send_text("say again")
    session.run()
    assert texts(session) == ["say hello", "hello", "say again", "again"], texts(session)
    record = http("GET", f"/v1/ai/chats/{session.session_id}", token=ADA_KEY)[1]["data"]
    assert record["session_id"] == session.session_id and "thread_id" not in record


@client_tool
def client_double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


def test_fork_feedback_and_tools():
    session = AgentSession.start('tool client_double {"number":4}; say done', client_tools=[client_double], roboto_client=ADA)
    session.run()
    assert [message.role.value for message in session.messages] == ["user", "assistant", "roboto", "assistant"]
    feedback = session.submit_feedback(3, FeedbackSentiment.POSITIVE)
    assert feedback.session_id == session.session_id
    fork = session.fork(3)
    assert fork.session_id != session.session_id and len(fork.messages) == 4
    fork.send_text("say forked").run()
    again = AgentSession.from_id(fork.session_id, roboto_client=ADA)
    assert len(again.messages) == 6 and texts(again) == texts(fork)
    record = http("GET", f"/v1/ai/chats/{fork.session_id}", token=ADA_KEY)[1]["data"]
    assert record["forked_from_session_id"] == session.session_id


run_all(globals())
