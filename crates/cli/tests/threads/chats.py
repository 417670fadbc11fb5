"""Drives the threads API under its old name, with a package that calls a thread a session."""

from roboto import RobotoClient, RobotoConfig
from roboto.ai import AgentSession

from server import URL, Server, http, key, run_all

SERVER = Server()
ADA_KEY = key("older", "oldies")
ADA = RobotoClient.from_config(RobotoConfig(api_key=ADA_KEY, endpoint=URL))


def test_a_session_is_a_thread():
    session = AgentSession.start("say hello", roboto_client=ADA)
    session.run()
    session.send_text("say again")
    session.run()
    texts = ["".join(block.text for block in message.content if hasattr(block, "text")).strip() for message in session.messages]
    assert texts == ["say hello", "hello", "say again", "again"], texts
    record = http("GET", f"/v1/ai/chats/{session.session_id}", token=ADA_KEY)[1]["data"]
    assert record["session_id"] == session.session_id and "thread_id" not in record


run_all(globals())
