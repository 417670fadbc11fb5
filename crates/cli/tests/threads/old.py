"""Drives the threads API with a package that does not know how to drop messages."""

from roboto import RobotoClient, RobotoConfig
from roboto.ai.agent import Agent
from roboto.ai.agent.record import TemplateVariable
from roboto.ai.agent_thread import AgentThread, FeedbackSentiment, client_tool
from roboto.ai.agent_thread.record import StartAgentThreadRequest
from roboto.ai.core.record import AgentMessage, AgentThreadStatus
from roboto.ai.goals import DatasetSummaryAgentGoal
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


def test_goals_without_a_message():
    thread = AgentThread.start("say hello", roboto_client=ADA).run()
    thread.send(goals=[DatasetSummaryAgentGoal(dataset_id="ds_1")])
    try:
        thread.run()
    except RuntimeError as error:
        assert type(error).__name__ == "RobotoAgentGoalsFailedException", error
    assert thread.status == AgentThreadStatus.GOALS_FAILED
    # The server has written the message, so the client gets its text.
    assert texts(thread)[2] and texts(thread) == texts(AgentThread.from_id(thread.thread_id, roboto_client=ADA))


def test_fork_feedback_and_agents():
    thread = AgentThread.start("say one", roboto_client=ADA).run()
    assert thread.submit_feedback(1, FeedbackSentiment.POSITIVE).thread_id == thread.thread_id
    fork = thread.fork(1)
    fork.send_text("say two").run()
    assert texts(fork) == ["say one", "one", "say two", "two"]
    template = StartAgentThreadRequest(messages=[AgentMessage.text("say {{word}}")])
    agent = Agent.create("old", template, variables=[TemplateVariable(name="word")], roboto_client=ADA)
    assert [known.agent_id for known in Agent.for_org(roboto_client=ADA)] == [agent.agent_id]
    assert texts(Agent.from_name("old", roboto_client=ADA).launch({"word": "up"}).run()) == ["say up", "up"]
    agent.update(name="older")
    agent.delete()


run_all(globals())
