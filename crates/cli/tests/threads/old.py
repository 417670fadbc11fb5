"""Drives the threads API with a package that does not know how to drop messages."""

from roboto import RobotoClient, RobotoConfig
from roboto.ai.agent_thread import AgentThread, client_tool
from roboto.ai.core.record import AgentThreadStatus
from roboto.exceptions import RobotoInvalidRequestException

from server import URL, Server, http, key, run_all, until

SERVER = Server()
ADA_KEY = key("old", "oldies")
ADA = RobotoClient.from_config(RobotoConfig(api_key=ADA_KEY, endpoint=URL))


def texts(thread):
    return ["".join(block.text for block in message.content if hasattr(block, "text")).strip() for message in thread.messages]


@client_tool
def client_double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


def test_own_text_is_not_doubled():
    thread = AgentThread.start("say one", roboto_client=ADA).run()
    thread.send_text("say two").run()
    thread.send_text("say three").run()
    expected = ["say one", "one", "say two", "two", "say three", "three"]
    assert texts(thread) == expected, texts(thread)
    assert texts(AgentThread.from_id(thread.thread_id, roboto_client=ADA)) == expected
    late = AgentThread.from_id(thread.thread_id, load_messages=False, roboto_client=ADA)
    assert texts(late.refresh()) == expected, texts(late)


def test_client_tools():
    thread = AgentThread.start('tool client_double {"number":4}; say done', client_tools=[client_double], roboto_client=ADA)
    thread.run()
    assert texts(thread)[-1] == "done" and thread.status == AgentThreadStatus.USER_TURN
    thread.submit_client_tool_results([]) if thread.status == AgentThreadStatus.CLIENT_TOOL_TURN else None
    assert http("POST", f"/v1/ai/threads/{thread.thread_id}/tool-results", {"tool_results": []}, ADA_KEY)[0] == 200


def test_a_changed_branch_is_loaded_again():
    thread = AgentThread.start("vary one | two", roboto_client=ADA).run()
    session = thread.thread_id
    first = http("GET", f"/v1/sessions/{session}/messages", token=ADA_KEY)[1]["items"][0]["messageId"]
    body = {"place": {"kind": "regenerate", "messageId": first}}
    assert http("POST", f"/v1/sessions/{session}/runs", body, ADA_KEY)[0] in (200, 202)
    until(lambda: http("GET", f"/v1/sessions/{session}", token=ADA_KEY)[1]["liveStatus"] == "idle", "the run ends")
    try:
        thread.refresh()
    except RobotoInvalidRequestException as error:
        assert "load the thread again" in str(error), error
    else:
        raise AssertionError(texts(thread))
    assert texts(AgentThread.from_id(session, roboto_client=ADA)) == ["vary one | two", "two"]


run_all(globals())
