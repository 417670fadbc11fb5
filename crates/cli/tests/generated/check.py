"""A program on the client that openapi-python-client generates from the document, against a real server."""

import os

from mainspring_client import AuthenticatedClient
from mainspring_client.api.runs import run_create, run_events, run_get
from mainspring_client.api.sessions import session_messages
from mainspring_client.models import AcceptedRun, Event, Message, Problem, Prompt, Run, RunStatus, SessionTarget

client = AuthenticatedClient(base_url=os.environ["SERVER_URL"], token=os.environ["SERVER_TOKEN"])
prompt = Prompt(prompt="say hello", session=SessionTarget(key="python"))
accepted = run_create.sync(client=client, body=prompt, prefer="wait=20")
assert isinstance(accepted, AcceptedRun), accepted
assert accepted.status == RunStatus.SUCCEEDED and accepted.final_text == "hello\n", accepted

run = run_get.sync(accepted.run_id, client=client)
assert isinstance(run, Run) and run.run_id == accepted.run_id, run
messages = session_messages.sync("python", client=client).items
assert all(isinstance(message, Message) for message in messages), messages
assert [message.content[0].text for message in messages] == ["say hello", "hello\n"], messages
events = run_events.sync(accepted.run_id, client=client).items
assert all(isinstance(event, Event) for event in events), events
assert events[-1].type_ == "run.succeeded", events[-1]
problem = run_get.sync("run_" + "0" * 32, client=client)
assert isinstance(problem, Problem) and problem.code == "not_found", problem
