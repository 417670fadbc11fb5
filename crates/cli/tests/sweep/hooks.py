"""Gives schemathesis the ids of existing sessions, runs and keys, and prompts that the script agent can execute.

Of every four requests that are meant to be valid, three get existing ids; all others stay as generated.
The choice depends on the request alone, so that the same seed gives the same requests.
"""

import hashlib
import json
import os
import re
import time
import zlib

import requests
import schemathesis
from hypothesis.internal import lambda_sources
from schemathesis.generation import GenerationMode

URL = os.environ["SERVER_URL"]
HEADERS = {"Authorization": "Bearer " + os.environ["SERVER_TOKEN"]}

# Hypothesis parses its own lambdas to print them. For unconstrained values it does so deep in a recursion, and some
# Python versions then fail ("AST constructor recursion depth mismatch"). The sweep does not need that output.
lambda_sources.lambda_description = lambda function: "lambda"

SCRIPTS = [
    "say hello",
    "stream 5 every 1ms tick; say done",
    'tool add {"a":1,"b":2}; say counted',
    "tool nothing; think hm; progress half; usage 3 4 0.5",
    "ask Tea or coffee?; say fine",
    "approve Shall I?; say done",
    'tool rain {"at":1} | add {"a":1,"b":2}; say dry',
    "fail no luck",
    "fail once no luck; say now",
    "crash",
    "sleep 20ms; say late",
    "hang",
    "say",
]

# Sessions of an agent that keeps native sessions.
BOUND_SESSIONS = [f"bound-{number}" for number in range(3)]


def seed_webhooks():
    """Uses each operation of webhooks once. A name of this machine is refused, so the next event is a dead letter."""
    place = URL + "/v1/webhooks"
    hook = {"url": "http://localhost:9/", "types": ["run.succeeded"]}
    made = requests.post(place, json=hook, headers=HEADERS, timeout=30)
    made.raise_for_status()
    own = f"{place}/{made.json()['webhookId']}"
    requests.post(f"{own}/test", headers=HEADERS, timeout=30).raise_for_status()
    body = {"prompt": "say dead", "session": {"key": "seed-webhooks"}}
    requests.post(URL + "/v1/runs", json=body, headers=HEADERS, timeout=30).raise_for_status()
    dead = []
    for _ in range(200):
        dead = requests.get(f"{own}/dead", headers=HEADERS, timeout=30).json()["items"]
        if dead:
            break
        time.sleep(0.05)
    requests.post(f"{own}/dead/{dead[0]['cursor']}/retry", headers=HEADERS, timeout=30).raise_for_status()
    requests.delete(own, headers=HEADERS, timeout=30).raise_for_status()


def seed_goal_types():
    """Creates a goal type and reads it."""
    place = URL + "/v1/goal-types"
    goal_type = {"name": "seed_count", "schema": {"type": "object"}}
    requests.post(place, json=goal_type, headers=HEADERS, timeout=30).raise_for_status()
    requests.get(place + "/seed_count", headers=HEADERS, timeout=30).raise_for_status()


def seed_feedback(run):
    """Gives feedback on the answer of a run and lists it, and pins its session for a while."""
    place = f"{URL}/v1/sessions/{run['sessionId']}"
    path = f"{place}/messages/{run['finalMessageId']}/feedback"
    requests.put(path, json={"sentiment": "positive"}, headers=HEADERS, timeout=30).raise_for_status()
    requests.get(place + "/feedback", headers=HEADERS, timeout=30).raise_for_status()
    for method in ["PUT", "DELETE"]:
        requests.request(method, place + "/pin", headers=HEADERS, timeout=30).raise_for_status()


def seed():
    """Creates sessions with runs in every state and returns their ids."""
    runs, waits = [], []
    for number, script in enumerate(SCRIPTS):
        body = {"prompt": script, "session": {"key": f"seed-{number}", "title": script}}
        if "rain" in script:
            body["options"] = {"tools": [{"name": "rain", "inputSchema": {"type": "object"}}]}
        wait = {"Prefer": "wait=1" if script == "hang" else "wait=10"}
        answer = requests.post(URL + "/v1/runs", json=body, headers=HEADERS | wait, timeout=30)
        answer.raise_for_status()
        runs.append(answer.json())
        if "wait" in runs[-1]:
            waits.append((runs[-1]["runId"], runs[-1]["wait"]))
    sessions = [run["sessionId"] for run in runs] + [f"seed-{number}" for number in range(len(SCRIPTS))]
    messages = []
    for key in ["seed-0", "seed-2"]:
        page = requests.get(f"{URL}/v1/sessions/{key}/messages", headers=HEADERS, timeout=30).json()
        messages += [message["messageId"] for message in page["items"]]
    seed_feedback(runs[0])
    keys = []
    for number in range(3):
        answer = requests.post(URL + "/v1/keys", json={"name": f"seed-{number}"}, headers=HEADERS, timeout=30)
        answer.raise_for_status()
        keys.append(answer.json()["keyId"])
    for number in range(3):
        agent = {"id": f"seed-{number}", "system": "You are {{ session.owner }}'s."}
        requests.post(URL + "/v1/agents", json=agent, headers=HEADERS, timeout=30).raise_for_status()
    # Tested here once for certain: the sweep may delete the agents in any order.
    requests.delete(URL + "/v1/agents/seed-2@1", headers=HEADERS, timeout=30).raise_for_status()
    artifacts = []
    for number in range(3):
        put = f"{URL}/v1/sessions/seed-{number}/artifacts?name=seed-{number}.txt"
        answer = requests.post(put, data=b"some bytes" * 9, headers=HEADERS | {"Content-Type": "text/plain"}, timeout=30)
        answer.raise_for_status()
        artifacts.append(answer.json()["artifactId"])
    for place in ["sessions/seed-0", f"runs/{runs[4]['runId']}", ""]:
        state = f"{URL}/v1/{place}/state".replace("//state", "/state")
        requests.put(f"{state}/seed", json={"a": 1}, headers=HEADERS, timeout=30).raise_for_status()
        # Tested here once for certain: the sweep may delete the session before it reads or deletes its state.
        requests.get(f"{state}/seed", headers=HEADERS, timeout=30).raise_for_status()
        requests.get(f"{state}/seed/history", headers=HEADERS, timeout=30).raise_for_status()
        requests.delete(f"{state}/other", headers=HEADERS, timeout=30).raise_for_status()
    # Tested here once for certain: results must be complete, and generated ones are not.
    requests.post(URL + "/v1/sessions", json={"key": "seed-append"}, headers=HEADERS, timeout=30).raise_for_status()
    appended = f"{URL}/v1/sessions/seed-append"
    body = {"id": "m1", "content": "hello"}
    requests.post(f"{appended}/messages", json=body, headers=HEADERS, timeout=30).raise_for_status()
    body = {"id": "t1", "beneath": "m1", "messages": [{"role": "assistant", "content": "hi"}]}
    requests.post(f"{appended}/results", json=body, headers=HEADERS, timeout=30).raise_for_status()
    first = f"{URL}/v1/sessions/seed-0"
    requests.get(f"{first}/messages/{messages[1]}", headers=HEADERS, timeout=30).raise_for_status()
    for verb in ["navigate", "fork"]:
        body = {"messageId": messages[1]}
        requests.post(f"{first}/{verb}", json=body, headers=HEADERS, timeout=30).raise_for_status()
    for key in BOUND_SESSIONS:
        body = {"prompt": "hello", "adapter": "agent", "session": {"key": key}}
        answer = requests.post(URL + "/v1/runs", json=body, headers=HEADERS | {"Prefer": "wait=30"}, timeout=60)
        answer.raise_for_status()
        assert answer.json()["status"] == "succeeded", answer.text
    # Only the last run of a session can be retried, and the sweep soon adds later runs.
    failed = runs[SCRIPTS.index("fail no luck")]["runId"]
    requests.post(f"{URL}/v1/runs/{failed}/retry", headers=HEADERS, timeout=30).raise_for_status()
    # Most runs of the sweep have ended before it cancels them.
    body = {"prompt": "hang", "session": {"key": "seed-cancel"}}
    hanging = requests.post(URL + "/v1/runs", json=body, headers=HEADERS, timeout=30).json()["runId"]
    requests.post(f"{URL}/v1/runs/{hanging}/cancel", headers=HEADERS, timeout=30).raise_for_status()
    adopted = {"adapter": "agent", "adapterNativeSessionId": "seed"}
    requests.post(f"{URL}/v1/sessions/seed-1/bindings", json=adopted, headers=HEADERS, timeout=30).raise_for_status()
    adopted |= {"session": {"externalRef": {"kind": "task", "id": "seed"}}, "adapterNativeSessionId": "task"}
    requests.post(f"{URL}/v1/adopt", json=adopted, headers=HEADERS, timeout=30).raise_for_status()
    # An invalidated binding stays invalid, so the sweep itself may see only refusals.
    invalid = f"{URL}/v1/sessions/{BOUND_SESSIONS[0]}/bindings/agent"
    requests.delete(invalid, headers=HEADERS, timeout=30).raise_for_status()
    delegations = []
    for number in range(2):
        body = {"mode": "spawn", "objective": ["say hi", "ask Tea?"][number]}
        place = f"{URL}/v1/runs/{runs[4]['runId']}/delegations"
        answer = requests.post(place, json=body, headers=HEADERS | {"Prefer": "wait=10"}, timeout=30)
        answer.raise_for_status()
        delegations.append(answer.json()["delegation"]["delegationId"])
    # An export is aborted when its session changes, as it does during the sweep, so it is read once here.
    answer = requests.get(f"{URL}/v1/sessions/seed-2/export", headers=HEADERS, timeout=30)
    answer.raise_for_status()
    # The sweep leaves streams out, and the feed is only a stream: check here that it begins.
    with requests.get(URL + "/v1/feed", headers=HEADERS, stream=True, timeout=30) as feed:
        feed.raise_for_status()
    # The calls of a host are waited for longer than a request of the sweep may take.
    host = HEADERS | {"Mainspring-Host": "seed"}
    requests.get(URL + "/v1/host-calls?waitMs=1", headers=host, timeout=30).raise_for_status()
    too_long = requests.get(URL + "/v1/host-calls?waitMs=30001", headers=host, timeout=30)
    assert too_long.status_code == 400, too_long.text
    # An approval for the session is a grant, which the sweep would not find by itself.
    body = {"prompt": "ask remove it", "adapter": "agent", "session": {"key": "seed-grants"}}
    asking = requests.post(URL + "/v1/runs", json=body, headers=HEADERS | {"Prefer": "wait=30"}, timeout=60).json()
    allowed = {"kind": "approval", "decision": "allowed", "scope": "session"}
    body = {"waitId": asking["wait"]["waitId"], "answer": allowed}
    decided = requests.post(f"{URL}/v1/runs/{asking['runId']}/answer", json=body, headers=HEADERS, timeout=30)
    decided.raise_for_status()
    grants = requests.get(URL + "/v1/grants", headers=HEADERS, timeout=30).json()["items"]
    revoke = f"{URL}/v1/grants/{grants[0]['grantId']}/revoke"
    requests.post(revoke, headers=HEADERS, timeout=30).raise_for_status()
    # Only the native agent records steps. The sweep may delete or close the session before it changes its agent.
    body = {"prompt": "say hi", "adapter": "native", "options": {"model": "scripted/x"}, "session": {"key": "seed-steps"}}
    native = requests.post(URL + "/v1/runs", json=body, headers=HEADERS | {"Prefer": "wait=30"}, timeout=60).json()
    requests.get(f"{URL}/v1/runs/{native['runId']}/steps/1", headers=HEADERS, timeout=30).raise_for_status()
    agent = f"{URL}/v1/sessions/seed-steps"
    rain = {"inputSchema": {"type": "object"}}
    requests.put(f"{agent}/tools/rain", json=rain, headers=HEADERS, timeout=30).raise_for_status()
    requests.delete(f"{agent}/tools/rain", headers=HEADERS, timeout=30).raise_for_status()
    requests.patch(f"{agent}/agent", json={"messages": []}, headers=HEADERS, timeout=30).raise_for_status()
    seed_webhooks()
    seed_goal_types()
    attempts = [run["lastAttemptId"] for run in runs if "lastAttemptId" in run]
    # Tested here once for certain: the sweep may soon delete the session of a run, an attempt or an artifact.
    for place in [f"runs/{runs[0]['runId']}", f"attempts/{attempts[0]}", f"artifacts/{artifacts[0]}",
                  f"artifacts/{artifacts[0]}/content", f"delegations/{delegations[0]}"]:
        requests.get(f"{URL}/v1/{place}", headers=HEADERS, timeout=30).raise_for_status()
    return sessions, [run["runId"] for run in runs], attempts, waits, messages, keys, artifacts, delegations, answer.text


SESSIONS, RUNS, ATTEMPTS, WAITS, MESSAGES, KEYS, ARTIFACTS, DELEGATIONS, EXPORT = seed()


def replace_ids(text, choice):
    """Replaces the ids in a session's export with new ones."""

    def new_id(found):
        digits = hashlib.md5(f"{choice}{found[1]}".encode()).hexdigest()
        return "_" + digits[:12] + "4" + digits[13:16] + "8" + digits[17:]

    return re.sub("_([0-9a-f]{32})", new_id, re.sub(r'"key":"[^"]*",?', "", text))


@schemathesis.serializer("application/jsonl")
def encode_export(context, value):
    """Encodes an export file as UTF-8; generated bytes are sent unchanged."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@schemathesis.hook
def before_call(context, case, kwargs):
    # Ask for JSON: a stream does not end by itself, and streams have their own tests.
    case.headers["Accept"] = "application/json"
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    operation = case.operation.definition.raw.get("operationId")
    choice = zlib.crc32(f"{operation} {case.path_parameters} {case.query} {case.body}".encode("utf-8", "replace"))
    known = choice % 4 != 0
    choice //= 4
    if "Prefer" in case.headers:
        case.headers["Prefer"] = f"wait={choice % 2}"
    if not known:
        return
    # The existing sessions and runs belong to the configured owner.
    case.headers.pop("Mainspring-Owner", None)
    parameters = case.path_parameters or {}
    if "session" in parameters:
        parameters["session"] = SESSIONS[choice % len(SESSIONS)]
    if "run" in parameters:
        parameters["run"] = RUNS[choice % len(RUNS)]
    if "attempt" in parameters:
        parameters["attempt"] = ATTEMPTS[choice % len(ATTEMPTS)]
    if "key" in parameters:
        parameters["key"] = KEYS[choice % len(KEYS)]
    if "_state_" in operation and not operation.endswith("_list"):
        parameters["key"] = "other" if operation.endswith("_delete") else "seed"
    if operation.startswith("run_state"):
        parameters["run"] = RUNS[4]
    if "agent" in parameters:
        parameters["agent"] = ["mainspring.generalist", "seed-0", "seed-1@1"][choice % 3]
    if "artifact" in parameters:
        parameters["artifact"] = ARTIFACTS[choice % len(ARTIFACTS)]
    if "delegation" in parameters:
        parameters["delegation"] = DELEGATIONS[choice % len(DELEGATIONS)]
    if operation == "run_delegate":
        case.body = {"mode": ["call", "spawn"][choice % 2], "objective": SCRIPTS[choice % len(SCRIPTS)]}
    if operation.startswith("binding_"):
        parameters["session"] = BOUND_SESSIONS[choice % len(BOUND_SESSIONS)]
    if "adapter" in parameters:
        parameters["adapter"] = "agent"
    if operation == "login_create":
        case.body = {"methodId": "token"}
    if operation == "binding_adopt":
        parameters["session"] = SESSIONS[choice % len(SESSIONS)]
        case.body = {"adapter": "agent", "adapterNativeSessionId": f"old-{choice}"}
    if operation == "session_adopt":
        task = {"externalRef": {"kind": "task", "id": f"sweep-{choice}"}}
        case.body = {"session": task, "adapter": "agent", "adapterNativeSessionId": f"task-{choice}"}
    if "message" in parameters or operation in ("session_navigate", "session_fork"):
        parameters["session"] = "seed-0"
    if "message" in parameters:
        parameters["message"] = MESSAGES[choice % 2]
    if operation in ("session_navigate", "session_fork"):
        case.body = {"messageId": MESSAGES[choice % 2]}
    if operation == "session_import":
        case.body = replace_ids(EXPORT, choice)
    if operation == "session_compact":
        case.body = {"before": f"{choice % 40}.0"}
    if operation in ("host_call_list", "host_call_answer"):
        case.headers["Mainspring-Host"] = "sweep"
        case.query = {}
    if operation == "ticket_redeem":
        made = requests.post(URL + "/v1/tickets", headers=HEADERS, timeout=30).json()
        case.body = {"ticket": made["ticket"]}
        case.headers["Origin"] = URL
    if operation == "run_answer":
        set_answer(case, *WAITS[choice % len(WAITS)])
    if operation in ("run_create", "run_create_in"):
        set_prompt(case, choice, operation)


def set_answer(case, run, wait):
    case.path_parameters["run"] = run
    results = [{"toolUseId": call["toolUseId"], "content": {"mm": 0}} for call in wait.get("calls", [])]
    kinds = {
        "input": {"kind": "input", "input": "tea"},
        "approval": {"kind": "approval", "decision": "allowed"},
        "tools": {"kind": "tools", "results": results},
    }
    case.body = {"waitId": wait["waitId"], "answer": kinds[wait["request"]]}


def set_prompt(case, choice, operation):
    body = case.body if isinstance(case.body, dict) else {}
    body["prompt"] = SCRIPTS[choice % len(SCRIPTS)]
    # The script agent uses no model.
    body["ignoreUnusedOptions"] = True
    body.pop("adapter", None)
    body.pop("requestId", None)
    body["session"] = {}
    if operation == "run_create":
        body["session"] = {"key": f"seed-{choice % len(SCRIPTS)}"}
    place = body.get("place") or {}
    if "messageId" in place:
        place["messageId"] = MESSAGES[choice % len(MESSAGES)]
        case.path_parameters = case.path_parameters and {"session": "seed-0"}
        body["session"] = {"key": "seed-0"} if operation == "run_create" else {}
    if place.get("kind") == "regenerate":
        body.pop("prompt")
    case.body = json.loads(json.dumps(body))


@schemathesis.hook
def after_call(context, case, response):
    # Later requests also use the runs created during the sweep.
    if response.status_code in (201, 202) and len(RUNS) < 400:
        body = response.json()
        if "runId" in body:
            RUNS.append(body["runId"])
