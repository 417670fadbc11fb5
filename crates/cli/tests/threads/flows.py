"""Drives flows of the current package that check.py does not: goals of every type, tools of every form, readers that are
behind, agents with all their fields, the client of the environment."""

import os
import subprocess
import sys

from roboto.ai.agent import Agent
from roboto.ai.agent.record import TemplateVariable, TemplateVariableType
from roboto.ai.agent_thread import (
    ClientTool, FeedbackCategory, FeedbackSentiment, ThreadVisibility,
)
from roboto.ai.agent_thread.event import (
    AgentStartTextEvent, AgentTextDeltaEvent, AgentTextEndEvent, AgentToolResultEvent, AgentToolUseEvent,
)
from roboto.ai.agent_thread.record import StartAgentThreadRequest
from roboto.ai.core import AnalysisScope, ClientViewingContext
from roboto.ai.core.record import AgentMessage, AgentRole, AgentThreadStatus
from roboto.ai.goals import CreateEventsGoal, DatasetSummaryAgentGoal, DatasetTriageGoal
from roboto.exceptions import (
    RobotoConflictException, RobotoInvalidRequestException, RobotoNotFoundException, RobotoUnauthorizedException,
)

from package import (
    ADA, ADA_KEY, BOB, BOB_KEY, EVE, URL, again, client_remember, raises, result_of, spec, start, text, texts,
)
from server import http, run_all, until


def test_goals_of_every_type_have_typed_results():
    decisions = ('{"label_decisions":[{"label":"good","applies":true,"justification":"it is","confidence":0.9},'
                 '{"label":"bad","applies":false,"justification":"it is not","confidence":1}]}')
    events = ('{"events":[{"name":"stop","start_time":1700000000000000001,"end_time":1700000000000000002,'
              '"tags":["hard"],"target_id":"ds_1"}]}')
    goals = [DatasetTriageGoal(dataset_id="ds_1", label_vocabulary={"good": "fine", "bad": "not"}),
             CreateEventsGoal(dataset_id="ds_1", event_vocabulary={"stop": "a stop"}, tag_vocabulary={"hard": "hard"}),
             DatasetSummaryAgentGoal(dataset_id="ds_1", summary_format_spec_prompt="One line.")]
    thread = start(f"tool achieve_dataset_triage {decisions} | achieve_create_events {events} | "
                   'achieve_dataset_summary {"summary":"fine"}; say done', goals=goals).run()
    triage, created, summary = thread.goals
    assert [goal.status.value for goal in thread.goals] == ["achieved"] * 3, thread.goals
    assert triage.result.applied_labels == ["good"] and triage.result.label_decisions[1].confidence == 1.0
    assert created.result.events[0].start_time == 1700000000000000001, created.result
    assert summary.result.summary == "fine" and summary.result.achieve_tool_result.status == "success"
    assert [goal.to_agent_goal() for goal in thread.goals] == goals
    assert again(thread).goals[0].result.applied_labels == ["good"]


def test_a_wrong_value_is_refused_and_the_goal_names_the_last_attempt():
    twice = ('{"label_decisions":[{"label":"good","applies":true,"justification":"x","confidence":0.9},'
             '{"label":"good","applies":false,"justification":"x","confidence":1}]}')
    thread = start(f"tool achieve_dataset_triage {twice}; say no",
                   goals=[DatasetTriageGoal(dataset_id="ds_1", label_vocabulary={"good": "fine"})])
    raises(RuntimeError, thread.run)
    goal = thread.goals[0]
    assert goal.status.value == "failed" and goal.concluded_at and goal.achieve_tool_result.status == "error", goal


def test_goals_are_declared_with_a_message_and_without_one():
    thread = start("say hello").run()
    assert thread.goals == []
    achieve = 'tool achieve_dataset_summary {"summary":"one"}; say done'
    thread.send_text(achieve, goals=[DatasetSummaryAgentGoal(dataset_id="ds_1")]).run()
    thread.send(goals=[DatasetSummaryAgentGoal(dataset_id="ds_2")])
    raises(RuntimeError, thread.run)
    assert [(goal.status.value, goal.message_sequence_num) for goal in thread.goals] == [("achieved", 2), ("failed", 6)]
    assert thread.messages[6].role == AgentRole.USER and text(thread.messages[6]), thread.messages[6]
    assert texts(thread) == texts(again(thread))


def test_results_of_every_form():
    values = {"nothing": None, "object": {"a": [1, {"b": None}]}, "list": [1, "two"], "number": 3.5, "truth": True,
              "text": "kö\u00a0\n\"x\"", "long": "y" * 20_000}
    tools = [ClientTool.from_function(lambda value=value: value, name=f"client_{name}", description="Gives it.",
                                      input_schema={"type": "object", "properties": {}})
             for name, value in values.items()]
    calls = " | ".join(f"client_{name} {{}}" for name in values)
    thread = start(f"tool {calls}; say done", client_tools=tools).run()
    results = {block.tool_name[len("client_"):]: block for block in thread.messages[2].content}
    for name, value in values.items():
        expected = {} if value is None else value if isinstance(value, dict) else {"result": value}
        assert results[name].resolve_payload() == expected == results[name].raw_response, name
    assert texts(thread)[-1] == "done" and texts(thread) == texts(again(thread))


def test_tools_are_replaced_added_and_unregistered():
    remember = lambda words: ClientTool.from_function(lambda fact: f"{words} {fact}", name="client_remember",
                                                      description="Remembers.", input_schema={"type": "object"})
    thread = start("say hello", client_tools=[client_remember]).run()
    thread.send_text('tool client_remember {"fact":"a"}; say one', client_tools=[remember("replaced")]).run()
    payloads = lambda: [block.resolve_payload() for message in thread.messages for block in message.content
                        if hasattr(block, "runtime_ms")]
    assert payloads() == [{"result": "replaced a"}], payloads()
    assert thread.unregister_client_tool("client_remember") and thread.client_tool_names == []
    thread.send_text('tool client_remember {"fact":"b"}; say two').run()
    assert "No callback registered" in str(payloads()[-1])
    # A tool that comes with results is there in the next turn.
    thread.send_text("tool client_first {}; say three", client_tools=[spec("client_first")])
    until(lambda: thread.refresh().status == AgentThreadStatus.CLIENT_TOOL_TURN, "the thread waits")
    use = thread.latest_message.content[-1]
    second = ClientTool.from_function(lambda: "late", name="client_second", description="Late.", input_schema={"type": "object"})
    thread.submit_client_tool_results([result_of(use, output={})], client_tools=[second])
    thread.run()
    thread.send_text("tool client_second {}; say four").run()
    assert payloads()[-1] == {"result": "late"} and texts(thread)[-1] == "four", thread.transcript
    assert texts(thread) == texts(again(thread))


def test_a_tool_that_was_not_declared_is_answered_by_the_server():
    thread = start('tool client_remember {"fact":"a"} | client_nobody {} | no_such_tool {}; say over', client_tools=[client_remember]).run()
    results = {block.tool_name: block.status for block in thread.messages[2].content}
    assert results == {"client_remember": "success", "client_nobody": "error", "no_such_tool": "error"}, results
    assert texts(thread)[-1] == "over" and texts(thread) == texts(again(thread))


def test_events_of_text_and_tools_come_in_order():
    events = []
    thread = start('say before; tool client_remember {"fact":"x"}; say after', client_tools=[client_remember])
    thread.run(on_event=events.append)
    kinds = []
    for event in events:
        kind = {AgentStartTextEvent: "start", AgentTextDeltaEvent: "text", AgentTextEndEvent: "end",
                AgentToolUseEvent: "use", AgentToolResultEvent: "result"}[type(event)]
        if kinds[-1:] != [kind]:
            kinds.append(kind)
    assert kinds == ["start", "text", "end", "use", "result", "start", "text", "end"], kinds
    assert list(thread.events()) == [], "a turn that has ended has no further events"


def test_a_message_sent_before_the_last_answer_was_read():
    thread = start("say one")
    reader = again(thread)
    until(lambda: reader.refresh().status == AgentThreadStatus.USER_TURN, "the first turn ends")
    # This client has not read the answer yet.
    thread.send_text("say two").run()
    assert texts(thread) == ["say one", "one", "say two", "two"], texts(thread)
    until(lambda: texts(reader.refresh()) == texts(thread), "the other reader holds the same")
    assert texts(again(thread)) == texts(thread)


def test_a_run_that_takes_too_long():
    thread = start("hang")
    raises(TimeoutError, thread.run, timeout=0.5)
    assert again(thread).status == AgentThreadStatus.ROBOTO_TURN
    http("POST", f"/v1/ai/threads/{thread.thread_id}/cancel", {}, ADA_KEY)
    thread.run()
    assert thread.latest_message.is_unsuccessful()


def test_scope_context_and_long_text():
    words = "wörter 🦀 " * 2000
    context = ClientViewingContext(dataset_ids=["ds_1"], misc_context={"page": 1})
    thread = start(f"say {words}", analysis_scope=AnalysisScope(start_time=1, end_time=1_700_000_000_000_000_000),
                   client_context=context, system_prompt="Be brief.").run()
    assert texts(thread)[-1].split() == words.split() and texts(again(thread)) == texts(thread)
    thread.send_text("say more", analysis_scope=AnalysisScope(start_time=2), client_context=context).run()
    assert texts(thread)[-1] == "more" and "=== " + thread.thread_id in thread.transcript


def test_forks_of_every_message_and_of_one_that_is_written():
    thread = start('tool client_remember {"fact":"x"}; say done', client_tools=[client_remember]).run()
    for number in range(4):
        assert texts(thread.fork(number)) == texts(thread)[:number + 1]
    fork = thread.fork(3)
    fork.send_text('tool client_remember {"fact":"y"}; say forked', client_tools=[client_remember]).run()
    assert texts(fork)[-1] == "forked"
    writing = start("say complete").run()
    writing.send_text("stream 3 every 5ms part; hang")
    until(lambda: len(writing.refresh().messages) == 4, "text arrives")
    raises(RobotoInvalidRequestException, writing.fork, 3)
    raises(RobotoInvalidRequestException, writing.submit_feedback, 3, FeedbackSentiment.POSITIVE)
    assert texts(writing.fork(1)) == ["say complete", "complete"]
    http("POST", f"/v1/ai/threads/{writing.thread_id}/cancel", {}, ADA_KEY)


def test_readers_pin_rate_and_fork_what_is_shared():
    thread = start("say shared").run()
    # Setting what is already set is accepted.
    thread.set_visibility(ThreadVisibility.ORG).set_visibility(ThreadVisibility.ORG)
    seen = again(thread, client=BOB)
    mine = thread.submit_feedback(1, FeedbackSentiment.POSITIVE, [FeedbackCategory.HELPFUL])
    his = seen.submit_feedback(1, FeedbackSentiment.NEGATIVE, [FeedbackCategory.OTHER], notes="so so")
    assert mine.feedback_id != his.feedback_id and his.created_by == "bob" and his.org_id == "acme"
    seen.set_pinned(True).set_pinned(True)
    raises(RobotoUnauthorizedException, seen.submit_client_tool_results, [])
    assert http("POST", f"/v1/ai/threads/{thread.thread_id}/cancel", {}, BOB_KEY)[0] == 403
    assert http("DELETE", f"/v1/ai/threads/{thread.thread_id}", token=BOB_KEY)[0] == 403


def test_agents_with_all_their_fields():
    template = StartAgentThreadRequest(
        messages=[AgentMessage.text("say {{ word }}")], system_prompt="About {{device}}.", client_tools=[spec("client_a")],
        analysis_scope=AnalysisScope(start_time=1, end_time=2), goals=[DatasetSummaryAgentGoal(dataset_id="{{dataset}}")])
    variables = [TemplateVariable(name="word"), TemplateVariable(name="device", type=TemplateVariableType.DEVICE_ID, required=False, default="dv_1"),
                 TemplateVariable(name="dataset", type=TemplateVariableType.DATASET_ID, description="What to sum up.")]
    agent = Agent.create("full / ü?", template, variables=variables, roboto_client=ADA)
    # The package sets the time of a message when it reads the message.
    as_json = lambda template: template.model_dump(mode="json", exclude={"messages": {"__all__": {"created"}}})
    assert as_json(agent.request_template) == as_json(template)
    assert agent.variables == variables and agent.org_id == "acme"
    assert agent.created_by == agent.modified_by == "ada" and agent.to_dict()["name"] == "full / ü?"
    found = Agent.from_name("full / ü?", owner_org_id="acme", roboto_client=BOB)
    assert found.agent_id == agent.agent_id and found.modified == agent.modified
    raises(RobotoNotFoundException, Agent.from_name, "nobody", roboto_client=ADA)
    raises(RobotoUnauthorizedException, Agent.from_name, "full / ü?", owner_org_id="other", roboto_client=ADA)
    raises(RobotoNotFoundException, Agent.from_id, agent.agent_id, roboto_client=EVE)
    values = {"word": "tool achieve_dataset_summary {}; say {{device}}", "dataset": "ds_9"}
    thread = agent.launch(values, visibility=ThreadVisibility.PRIVATE, analysis_scope=AnalysisScope(end_time=9))
    raises(RobotoNotFoundException, again, thread, client=BOB)
    assert thread.goals[0].goal_data["dataset_id"] == "ds_9"
    # A value is not searched for placeholders.
    assert text(thread.messages[0]).endswith("say {{device}}"), thread.messages[0]
    http("POST", f"/v1/ai/threads/{thread.thread_id}/cancel", {}, ADA_KEY)
    raises(RobotoInvalidRequestException, found.update, variables=variables[:1])
    found.update(request_template=StartAgentThreadRequest(messages=[AgentMessage.text("say {{word}}")]), variables=variables[:1])
    assert found.modified_by == "bob" and [variable.name for variable in found.variables] == ["word"]
    other = Agent.create("other", StartAgentThreadRequest(messages=[AgentMessage.text("say x")]), roboto_client=ADA)
    raises(RobotoConflictException, other.update, name="full / ü?")
    assert texts(other.launch().run()) == ["say x", "x"]
    agent.delete()
    raises(RobotoNotFoundException, found.launch, {"word": "x"})
    raises(RobotoNotFoundException, found.delete)
    # The name is free again.
    Agent.create("full / ü?", template, variables=variables, roboto_client=ADA).delete()
    other.delete()


def test_every_page_of_agents():
    template = StartAgentThreadRequest(messages=[AgentMessage.text("say x")])
    made = [Agent.create(f"agent {number}", template, roboto_client=EVE).agent_id for number in range(53)]
    listed = [agent.agent_id for agent in Agent.for_org(roboto_client=EVE)]
    assert listed == made[::-1], listed
    thread = Agent.from_id(made[0], roboto_client=EVE).launch().run()
    assert thread.visibility == ThreadVisibility.PRIVATE, "there is no org to share with"
    raises(RobotoUnauthorizedException, list, Agent.for_org("acme", roboto_client=EVE))


def test_a_refused_start_leaves_no_thread():
    listed = lambda: [item["thread_id"] for item in http("GET", "/v1/ai/threads", token=ADA_KEY)[1]["data"]["items"]]
    before = listed()
    say = [{"role": "user", "content": [{"text": "say x"}]}]
    tool = {"name": "client_a", "description": "A tool.", "input_schema": {"type": "object"}}
    for bad in [{"client_tools": [{**tool, "input_schema": {"type": "nonsense"}}]},
                {"client_tools": [{**tool, "name": f"client_a{number}"} for number in range(100)]},
                {"client_tools": [tool], "goals": [{"goal_type": "no_such_goal"}]}]:
        status, answer = http("POST", "/v1/ai/threads", {"messages": say, **bad}, ADA_KEY)
        assert status == 400 and set(answer["error"]) == {"error_code", "message"}, answer
    assert listed() == before


def test_skills_are_refused():
    thread = start("say hello").run()
    raises(RobotoInvalidRequestException, thread.invoke_skill, "sk_1", 2)
    assert texts(again(thread)) == ["say hello", "hello"]


def test_the_client_of_the_environment():
    program = ("from roboto.ai import AgentThread\n"
               "thread = AgentThread.start('say from the environment').run()\n"
               "print(thread.transcript)\n")
    environment = {**os.environ, "ROBOTO_API_KEY": ADA_KEY, "ROBOTO_SERVICE_ENDPOINT": URL + "/"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert "from the environment" in done.stdout, done


def test_the_command_line_chat_shows_tools_failures_and_an_org():
    environment = {**os.environ, "ROBOTO_API_KEY": ADA_KEY, "ROBOTO_SERVICE_ENDPOINT": URL, "TERM": "dumb"}
    program = [os.path.join(os.path.dirname(sys.executable), "roboto"), "--suppress-upgrade-check", "chat", "start"]
    talk = ('say first; tool plan_update {"tasks":[]} | no_such_tool {}; say second\n\n'
            "say third; fail broken\nsay fourth\nquit\n")
    done = subprocess.run([*program, "--org", "acme"], input=talk, env=environment, capture_output=True, text=True, timeout=60)
    assert all(word in done.stdout for word in ["first", "second", "third", "fourth", "Goodbye"]), done
    assert "Traceback" not in done.stderr, done.stderr
    refused = subprocess.run([*program, "--org", "other"], input="say no\n", env=environment, capture_output=True, text=True, timeout=60)
    assert "other" in refused.stdout + refused.stderr, refused


run_all(globals())
