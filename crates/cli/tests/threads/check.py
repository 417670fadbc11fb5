"""Drives the threads API with the current package."""

import os
import subprocess
import sys

from roboto.ai.agent import Agent
from roboto.ai.agent.record import TemplateVariable
from roboto.ai.agent_thread import (
    AgentThread, ClientToolResult, ClientToolResultStatus, FeedbackCategory, FeedbackSentiment, ThreadVisibility,
    client_tool,
)
from roboto.ai.agent_thread.event import AgentErrorEvent, AgentTextDeltaEvent, AgentToolResultEvent, AgentToolUseEvent
from roboto.ai.agent_thread.record import StartAgentThreadRequest
from roboto.ai.core.record import AgentMessage, AgentRole, AgentThreadStatus
from roboto.ai.goals import DatasetSummaryAgentGoal
from roboto.exceptions import (
    RobotoConflictException, RobotoInvalidRequestException, RobotoNotFoundException, RobotoUnauthorizedException,
)

from package import (
    ADA, ADA_KEY, BOB, BOB_KEY, EVE, SERVER, again, client_of, client_remember, raises, result_of, spec, start, text,
    texts, waiting,
)
from server import URL, delta, http, run_all, until


@client_tool
def client_breaks() -> str:
    """Always fails."""
    raise ValueError("broken")


def test_start_and_stream():
    thread = start("stream 6 every 20ms tick; say done")
    assert thread.status == AgentThreadStatus.ROBOTO_TURN, thread.status
    parts = [event.text for event in thread.events() if isinstance(event, AgentTextDeltaEvent)]
    assert len(parts) > 1 and "".join(parts).count("tick") == 6, parts
    assert thread.status == AgentThreadStatus.USER_TURN
    assert [message.role for message in thread.messages] == [AgentRole.USER, AgentRole.ASSISTANT]
    assert thread.latest_message.is_complete()
    assert texts(again(thread)) == texts(thread)


def test_own_message_is_not_doubled_and_seen_once_by_others():
    thread = start("say one").run()
    other = again(thread)
    thread.send_text("say two").run()
    other.refresh()
    until(lambda: other.refresh().status == AgentThreadStatus.USER_TURN, "the other reader catches up")
    assert texts(thread) == ["say one", "one", "say two", "two"], texts(thread)
    assert texts(other) == texts(thread) == texts(again(thread))


def test_tokens_replay():
    thread = start("say hello").run()
    record = http("GET", f"/v1/ai/threads/{thread.thread_id}", token=ADA_KEY)[1]["data"]
    current = record["continuation_token"]
    for _ in range(2):
        status, answer = delta(thread.thread_id, current, ADA_KEY)
        assert status == 200 and answer["data"]["messages_by_idx"] == {}, answer
        assert answer["data"]["continuation_token"] == current
    empty = again(thread, load_messages=False)
    assert empty.messages == []
    assert texts(empty.refresh()) == ["say hello", "hello"]
    for bad in ["x", "AAAA", current[:-2], current.swapcase()]:
        status, answer = delta(thread.thread_id, bad, ADA_KEY)
        assert status == 400 and answer["error"]["error_code"] == "RobotoInvalidRequestException", answer
    other = start("say other").run()
    assert delta(other.thread_id, current, ADA_KEY)[0] == 400


def test_client_tools():
    events = []
    thread = start('tool client_remember {"fact":"blue"}; say done', client_tools=[client_remember])
    thread.run(on_event=events.append)
    uses = [event for event in events if isinstance(event, AgentToolUseEvent)]
    assert [use.name for use in uses] == ["client_remember"], events
    result = next(block for message in thread.messages for block in message.content if hasattr(block, "runtime_ms"))
    assert result.status == "success" and result.resolve_payload() == {"result": "kept blue"}, result
    assert [message.role.value for message in thread.messages] == ["user", "assistant", "roboto", "assistant"]
    assert texts(again(thread)) == texts(thread)
    # The tool is there in later turns too.
    thread.send_text('tool client_remember {"fact":"red"}; say again').run()
    assert texts(thread)[-1] == "again", texts(thread)


def test_a_client_tool_that_raises():
    thread = start("tool client_breaks {}; say over", client_tools=[client_breaks]).run()
    result = next(block for message in thread.messages for block in message.content if hasattr(block, "runtime_ms"))
    assert result.status == "error" and "ValueError: broken" in str(result.resolve_payload()), result
    assert texts(thread)[-1] == "over"


def test_declined_partial_and_wrong_results():
    thread, uses = waiting("tool client_a {} | client_b {}; say fine", "client_a", "client_b")
    thread.submit_client_tool_results([result_of(uses["client_a"], ClientToolResultStatus.DECLINED)])
    thread.refresh()
    assert thread.status == AgentThreadStatus.CLIENT_TOOL_TURN, thread.status
    raises(RobotoInvalidRequestException, thread.send_text, "too early")
    raises(RobotoConflictException, thread.submit_client_tool_results, [result_of(uses["client_a"], output={"x": 1})])
    unknown = uses["client_b"].model_copy(update={"tool_use_id": "nobody"})
    raises(RobotoInvalidRequestException, thread.submit_client_tool_results, [result_of(unknown)])
    twice = [result_of(uses["client_b"]), result_of(uses["client_b"])]
    raises(RobotoInvalidRequestException, thread.submit_client_tool_results, twice)
    thread.submit_client_tool_results([])
    thread.submit_client_tool_results([result_of(uses["client_b"], output={"n": 1})])
    thread.run()
    results = {block.tool_name: block for block in thread.messages[2].content}
    assert results["client_a"].status == "declined" and results["client_a"].runtime_ms == 7, results
    assert results["client_b"].resolve_payload() == {"n": 1} == results["client_b"].raw_response
    assert len(thread.messages[2].content) == 2 and texts(thread)[-1] == "fine"
    raises(RobotoInvalidRequestException, thread.submit_client_tool_results, [result_of(uses["client_b"])])


def test_server_and_client_tools_of_one_turn():
    plan = '{"tasks":[{"title":"look","status":"in_progress"},{"title":"tell","status":"pending"}]}'
    events = []
    thread = start(f'tool client_remember {{"fact":"a"}} | plan_update {plan}; say both', client_tools=[client_remember])
    thread.run(on_event=events.append)
    results = [event for event in events if isinstance(event, AgentToolResultEvent)]
    assert [result.name for result in results] == ["plan_update", "client_remember"], results
    assert all(result.success for result in results)
    assert [message.role.value for message in thread.messages] == ["user", "assistant", "roboto", "assistant"]
    assert [task.title for task in thread.tasks] == ["look", "tell"], thread.tasks
    assert thread.tasks[0].start.message_sequence_num == 1
    assert [task.title for task in again(thread).tasks] == ["look", "tell"]


def test_goals_achieved():
    script = 'tool achieve_dataset_summary {"summary":"all is well"}; say done'
    thread = start(script, goals=[DatasetSummaryAgentGoal(dataset_id="ds_1")]).run()
    goal = thread.goals[0]
    assert goal.status.value == "achieved" and goal.concluded_at is not None, goal
    assert goal.result.summary == "all is well", goal.result
    assert goal.message_sequence_num == 0
    thread.send_text("say no goal this time").run()
    assert len(thread.goals) == 1


def test_goals_failed():
    thread = start("say I will not", goals=[DatasetSummaryAgentGoal(dataset_id="ds_1")])
    error = raises(Exception, thread.run)
    assert type(error).__name__ == "RobotoAgentGoalsFailedException", error
    assert thread.status == AgentThreadStatus.GOALS_FAILED and thread.goals[0].status.value == "failed"
    assert again(thread).status == AgentThreadStatus.GOALS_FAILED
    thread.send_text("say on we go").run()
    assert thread.status == AgentThreadStatus.USER_TURN


def test_a_start_with_goals_alone():
    thread = start(goals=[DatasetSummaryAgentGoal(dataset_id="ds_1")])
    raises(Exception, thread.run)
    assert thread.messages[0].role == AgentRole.USER and text(thread.messages[0])
    goals = [{"goal_type": "dataset_summary", "dataset_id": "d"}] * 6
    assert http("POST", "/v1/ai/threads", {"goals": goals}, ADA_KEY)[0] == 400


def test_a_failed_turn():
    events = []
    thread = start("say before; fail the model is gone")
    thread.run(on_event=events.append)
    errors = [event for event in events if isinstance(event, AgentErrorEvent)]
    assert len(errors) == 1 and thread.latest_message.is_unsuccessful(), thread.messages
    thread.send_text("say after").run()
    assert texts(thread)[-1] == "after"


def test_cancel():
    thread = start("say working; hang")
    until(lambda: "working" in texts(thread.refresh())[-1], "the text arrives")
    status, answer = http("POST", f"/v1/ai/threads/{thread.thread_id}/cancel", {}, ADA_KEY)
    assert status == 200, answer
    thread.run()
    assert thread.latest_message.status.value == "cancelled", thread.latest_message
    assert any(hasattr(block, "error_message") for block in thread.latest_message.content)


def test_send_during_the_servers_turn_is_refused():
    thread = start("hang")
    raises(RobotoInvalidRequestException, thread.send_text, "hello?")
    raises(RobotoInvalidRequestException, thread.submit_client_tool_results,
           [ClientToolResult(tool_use_id="t", tool_name="client_a", runtime_ms=0, status="success")])
    http("POST", f"/v1/ai/threads/{thread.thread_id}/cancel", {}, ADA_KEY)
    thread.run()


def test_fork_is_inclusive_private_and_isolated():
    thread = start("say one").run()
    thread.send_text("say two").run()
    fork = thread.fork(1)
    assert texts(fork) == ["say one", "one"], texts(fork)
    record = http("GET", f"/v1/ai/threads/{fork.thread_id}", token=ADA_KEY)[1]["data"]
    assert record["forked_from_thread_id"] == thread.thread_id and record["forked_from_message_sequence_num"] == 1
    assert record["visibility"] == "private" and record["org_id"] == "acme"
    fork.send_text("say other").run()
    assert texts(again(thread)) == ["say one", "one", "say two", "two"]
    for number in [-1, 4]:
        raises(RobotoInvalidRequestException, thread.fork, number)


def test_visibility_with_two_people():
    thread = start("say secret").run()
    raises(RobotoNotFoundException, again, thread, client=BOB)
    thread.set_visibility(ThreadVisibility.ORG)
    seen = again(thread, client=BOB)
    assert texts(seen) == texts(thread) and seen.visibility == ThreadVisibility.ORG
    raises(RobotoUnauthorizedException, seen.send_text, "may I?")
    raises(RobotoUnauthorizedException, seen.set_visibility, ThreadVisibility.PRIVATE)
    raises(RobotoNotFoundException, again, thread, client=EVE)
    fork = seen.fork(1)
    found = http("POST", "/v1/ai/threads/search", {}, BOB_KEY)[1]["data"]["items"]
    assert {thread.thread_id, fork.thread_id} <= {item["thread_id"] for item in found}
    thread.set_visibility(ThreadVisibility.PRIVATE)
    raises(RobotoNotFoundException, seen.refresh)
    # The fork is Bob's own, and stays.
    fork.send_text("say mine").run()
    assert texts(fork) == ["say secret", "secret", "say mine", "mine"], texts(fork)
    raises(RobotoNotFoundException, again, fork)


def test_pin():
    thread = start("say pin me").run()
    thread.set_pinned(True)
    pinned = lambda: {item["thread_id"]: item["pinned_at"] for item in http("GET", "/v1/ai/threads", token=ADA_KEY)[1]["data"]["items"]}
    assert pinned()[thread.thread_id] is not None
    # A pin is the reader's own.
    thread.set_visibility(ThreadVisibility.ORG)
    again(thread, client=BOB).set_pinned(True)
    thread.set_pinned(False)
    assert pinned()[thread.thread_id] is None
    of_bob = http("GET", "/v1/ai/threads?pinned=true", token=BOB_KEY)[1]["data"]["items"]
    assert [item["thread_id"] for item in of_bob] == [thread.thread_id] and of_bob[0]["pinned_at"]


def test_feedback():
    thread = start("say rate me").run()
    first = thread.submit_feedback(1, FeedbackSentiment.NEGATIVE, [FeedbackCategory.SLOW, FeedbackCategory.INCORRECT, FeedbackCategory.SLOW])
    assert [category.value for category in first.categories] == ["incorrect", "slow"] and first.notes is None
    second = thread.submit_feedback(1, FeedbackSentiment.POSITIVE, notes="  ")
    assert second.feedback_id == first.feedback_id and second.created == first.created and second.notes is None
    raises(RobotoNotFoundException, thread.submit_feedback, 9, FeedbackSentiment.POSITIVE)
    path = f"/v1/ai/threads/{thread.thread_id}/messages/1/feedback"
    for bad in [{"sentiment": "positive", "categories": ["slow"]}, {"sentiment": "negative", "categories": ["other"]}]:
        status, answer = http("POST", path, bad, ADA_KEY)
        assert status == 400 and set(answer["error"]) == {"error_code", "message"}, answer


def test_agents_and_launch():
    template = StartAgentThreadRequest(messages=[AgentMessage.text("say {{ dataset.id }} and {{word}}")])
    variables = [TemplateVariable(name="dataset.id", type="dataset_id"),
                 TemplateVariable(name="word", required=False, default="hello")]
    agent = Agent.create("triage & co", template, variables=variables, description="Tries.", roboto_client=ADA)
    assert Agent.from_id(agent.agent_id, roboto_client=BOB).name == "triage & co"
    assert Agent.from_name("triage & co", roboto_client=ADA).agent_id == agent.agent_id
    raises(RobotoConflictException, Agent.create, "triage & co", template, variables=variables, description="Another.", roboto_client=ADA)
    thread = agent.launch({"dataset.id": "ds_7"}).run()
    assert texts(thread) == ["say ds_7 and hello", "ds_7 and hello"], texts(thread)
    record = http("GET", f"/v1/ai/threads/{thread.thread_id}", token=BOB_KEY)[1]["data"]
    assert record["created_from_agent_id"] == agent.agent_id and record["visibility"] == "org"
    fork = http("POST", f"/v1/ai/threads/{thread.thread_id}/fork", {"message_sequence_num": 1}, ADA_KEY)[1]["data"]
    assert fork["created_from_agent_id"] is None
    raises(RobotoInvalidRequestException, agent.launch, {})
    raises(RobotoInvalidRequestException, agent.launch, {"dataset.id": "d", "more": "x"})
    agent.update(name="renamed", description=None)
    changed = Agent.from_id(agent.agent_id, roboto_client=ADA)
    assert changed.name == "renamed" and changed.description is None
    assert agent.agent_id in [known.agent_id for known in Agent.for_org("acme", roboto_client=ADA)] if hasattr(Agent, "for_org") else True
    page = http("GET", "/v1/ai/agents", token=ADA_KEY)[1]["data"]
    assert page["next_token"] is None and page["items"][0]["agent_id"] == agent.agent_id
    for bad in [{"messages": [{"role": "user", "content": [{"text": "{{nobody}}"}]}]},
                {"messages": [], "client_context": {"{{word}}": 1}, "system_prompt": "{{word}}{{dataset.id}}"}]:
        body = {"name": "bad", "request_template": bad, "variables": [{"name": "word"}, {"name": "dataset.id"}]}
        assert http("POST", "/v1/ai/agents", body, ADA_KEY)[0] == 400
    agent.delete()
    raises(RobotoNotFoundException, Agent.from_id, agent.agent_id, roboto_client=ADA)


def test_exceptions_have_their_classes():
    raises(RobotoUnauthorizedException, start, "hi", client=client_of("msk_wrong"))
    raises(RobotoNotFoundException, AgentThread.from_id, "ses_00000000000000000000000000000000", roboto_client=ADA)
    raises(RobotoNotFoundException, AgentThread.from_id, "at_unknown", roboto_client=ADA)
    raises(RobotoUnauthorizedException, start, "hi", org_id="other")
    start("say fine", org_id="acme").run()
    for body in [{}, {"messages": []}, {"messages": [{"role": "roboto", "content": [{"text": "x"}]}]},
                 {"messages": [{"role": "user", "content": []}]},
                 {"messages": [{"role": "user", "content": [{"text": "x"}]}], "invoke_skills": [{"skill_id": "s"}]},
                 {"messages": [{"role": "user", "content": [{"text": "x"}]}], "model_profile": "nobody"},
                 {"messages": [{"role": "user", "content": [{"text": "x"}]}],
                  "client_tools": [{"name": "bad", "description": "", "input_schema": {}}]}]:
        status, answer = http("POST", "/v1/ai/threads", body, ADA_KEY)
        assert status == 400 and set(answer) == {"error"} and set(answer["error"]) == {"error_code", "message"}, (body, answer)


def test_a_slash_at_the_end_of_the_endpoint():
    thread = start("say slash", client=client_of(ADA_KEY, URL + "/")).run()
    assert texts(thread)[-1] == "slash"


def test_seeded_messages():
    seeded = [AgentMessage.text("first"), AgentMessage.text("earlier answer", role=AgentRole.ASSISTANT),
              AgentMessage.text("say now")]
    thread = start(seeded, system_prompt="Be brief.", model_profile="advanced").run()
    assert texts(thread) == ["first", "earlier answer", "say now", "now"], texts(thread)
    record = http("GET", f"/v1/ai/threads/{thread.thread_id}", token=ADA_KEY)[1]["data"]
    assert record["model_profile"] == "advanced" and record["origin"] == "api"
    assert record["created_by_principal"] == "user:ada"


def test_list_search_delete_and_profiles():
    thread = start("say xylophone").run()
    items = http("GET", "/v1/ai/threads?limit=1", token=ADA_KEY)[1]["data"]
    assert items["items"][0]["thread_id"] == thread.thread_id and items["next_token"]
    more = http("GET", f"/v1/ai/threads?limit=1&page_token={items['next_token']}", token=ADA_KEY)[1]["data"]
    assert more["items"][0]["thread_id"] != thread.thread_id
    search = lambda: http("POST", "/v1/ai/threads/search", {"query": "xylophone"}, ADA_KEY)[1]["data"]["items"]
    until(lambda: [item["thread_id"] for item in search()] == [thread.thread_id], "the search index catches up")
    profiles = http("GET", "/v1/ai/model-profiles", token=ADA_KEY)[1]["data"]
    assert {"id": "main_reasoner", "label": "Standard", "description": "For most questions.", "is_default": True} in profiles
    assert http("DELETE", f"/v1/ai/threads/{thread.thread_id}", token=ADA_KEY)[0] == 200
    raises(RobotoNotFoundException, again, thread)


def test_repeated_requests_are_carried_out_once():
    body = {"messages": [{"role": "user", "content": [{"text": "say repeat 1"}]}]}
    first = http("POST", "/v1/ai/threads", body, ADA_KEY)[1]["data"]["thread_id"]
    assert http("POST", "/v1/ai/threads", body, ADA_KEY)[1]["data"]["thread_id"] == first
    thread = AgentThread.from_id(first, roboto_client=ADA).run()
    # A call about the thread lies between: this is a new thread.
    assert http("POST", "/v1/ai/threads", body, ADA_KEY)[1]["data"]["thread_id"] != first
    path, message = f"/v1/ai/threads/{first}/messages", {"message": {"role": "user", "content": [{"text": "say more"}]}}
    for _ in range(3):
        assert http("POST", path, message, ADA_KEY)[0] == 200
    thread.run()
    assert texts(again(thread)) == ["say repeat 1", "repeat 1", "say more", "more"]
    # An intended repetition, after the answer was read.
    assert http("POST", path, message, ADA_KEY)[0] == 200
    thread.run()
    assert texts(again(thread)).count("more") == 2


def test_another_branch_replaces_what_differs():
    thread = start("vary one | two").run()
    path = f"/v1/sessions/{thread.thread_id}"
    first = http("GET", f"{path}/messages", token=ADA_KEY)[1]["items"][0]["messageId"]
    place = {"place": {"kind": "regenerate", "messageId": first}}
    assert http("POST", f"{path}/runs", place, ADA_KEY)[0] in (200, 202)
    until(lambda: texts(thread.refresh()) == ["vary one | two", "two"], "the reader follows the branch")


def test_a_restart_in_the_middle_of_a_turn():
    thread = start('tool client_a {}; say survived', client_tools=[spec("client_a")])
    until(lambda: thread.refresh().status == AgentThreadStatus.CLIENT_TOOL_TURN, "the thread waits for tools")
    use = next(block for message in thread.messages for block in message.content if hasattr(block, "input"))
    body = {"messages": [{"role": "user", "content": [{"text": "say over the restart"}]}]}
    made = http("POST", "/v1/ai/threads", body, ADA_KEY)[1]["data"]["thread_id"]
    SERVER.kill()
    SERVER.start()
    assert http("POST", "/v1/ai/threads", body, ADA_KEY)[1]["data"]["thread_id"] == made
    thread.submit_client_tool_results([result_of(use)])
    thread.run()
    assert texts(thread)[-1] == "survived" and texts(again(thread)) == texts(thread)


def test_the_command_line_chat():
    environment = {**os.environ, "ROBOTO_API_KEY": ADA_KEY, "ROBOTO_SERVICE_ENDPOINT": URL, "TERM": "dumb"}
    command = [os.path.join(os.path.dirname(sys.executable), "roboto"), "--suppress-upgrade-check", "chat", "start"]
    talk = 'say chatted\ntool plan_update {"tasks":[{"title":"a","status":"pending"}]}; say planned\nexit\n'
    done = subprocess.run(command, input=talk, env=environment, capture_output=True, text=True, timeout=60)
    assert "chatted" in done.stdout and "planned" in done.stdout and "Traceback" not in done.stderr, done


run_all(globals())
