"""Drives the threads API with the current package through faults: answers 503 before and after a request is carried out,
and kills of the server while the package streams."""

import logging
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from roboto.ai.agent import Agent
from roboto.ai.agent.record import TemplateVariable
from roboto.ai.agent_thread import AgentThread, FeedbackSentiment, ThreadVisibility
from roboto.ai.agent_thread.event import AgentTextDeltaEvent
from roboto.ai.agent_thread.record import StartAgentThreadRequest
from roboto.ai.core.record import AgentMessage, AgentThreadStatus

from package import ADA_KEY, SERVER, again, client_of, client_remember, result_of, spec, start, text, texts
from server import URL, http, run_all, until

# The package logs every answer 503 and every connection that a kill breaks.
logging.disable(logging.CRITICAL)


class Faulty(BaseHTTPRequestHandler):
    """Answers each change 503 twice: first without carrying it out, then after it was carried out."""

    arrivals = {}

    def carry(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        arrival = 2
        if self.command != "GET":
            arrival = self.arrivals.get((self.command, self.path, body), 0)
            self.arrivals[self.command, self.path, body] = arrival + 1
        status, text = self.forward(body) if arrival > 0 else (503, b"")
        if arrival == 1:
            assert status == 200, (self.command, self.path, status, text)
            status, text = 503, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def forward(self, body):
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        request = urllib.request.Request(URL + self.path, body or None, headers, method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    do_GET = do_POST = do_PUT = do_DELETE = carry

    def log_message(self, *_):
        pass


def test_503_before_and_after_every_change_is_carried_out():
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Faulty)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    client = client_of(ADA_KEY, f"http://127.0.0.1:{proxy.server_port}")
    # The newest come first, so that new threads are on the first page.
    listed = lambda: {item["thread_id"] for item in http("GET", "/v1/ai/threads", token=ADA_KEY)[1]["data"]["items"]}
    before = listed()
    new = lambda: len(listed() - before)
    # Start, results, message.
    thread = start('tool client_remember {"fact":"lost"}; say found', client=client, client_tools=[client_remember])
    thread.run()
    thread.send_text("say once").run()
    expected = ['tool client_remember {"fact":"lost"}; say found', "", "", "found", "say once", "once"]
    assert texts(thread) == texts(again(thread)) == expected, texts(again(thread))
    assert new() == 1
    # Fork, feedback, visibility, pin.
    fork = thread.fork(3)
    fork.send_text("say forked").run()
    assert texts(fork)[-1] == "forked" and len(again(fork).messages) == 6
    first = thread.submit_feedback(3, FeedbackSentiment.POSITIVE)
    second = http("POST", f"/v1/ai/threads/{thread.thread_id}/messages/3/feedback", {"sentiment": "positive"}, ADA_KEY)
    assert second[1]["data"]["feedback_id"] == first.feedback_id
    thread.set_visibility(ThreadVisibility.ORG)
    assert again(thread).visibility == ThreadVisibility.ORG
    thread.set_pinned(True)
    assert new() == 2
    # Agents.
    template = StartAgentThreadRequest(messages=[AgentMessage.text("say {{x}}")])
    agent = Agent.create("lossy", template, variables=[TemplateVariable(name="x")], roboto_client=client)
    agent.update(description="Loses answers.")
    launched = agent.launch({"x": "up"}).run()
    assert texts(launched) == ["say up", "up"] and new() == 3
    agent.delete()
    assert http("GET", f"/v1/ai/agents/{agent.agent_id}", token=ADA_KEY)[0] == 404
    proxy.shutdown()
    # Every one was sent three times.
    assert len(Faulty.arrivals) == 12 and set(Faulty.arrivals.values()) == {3}, Faulty.arrivals


def test_a_restart_while_the_package_streams():
    thread = start("stream 400 every 20ms tick; say done")
    parts, failed = [], []

    def read():
        try:
            for event in thread.events():
                if isinstance(event, AgentTextDeltaEvent):
                    parts.append(event.text)
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    until(lambda: parts, "text arrives")
    SERVER.kill()
    SERVER.start()
    # The package asks again by itself, and sees how the turn went on.
    reader.join(60)
    assert not reader.is_alive() and not failed, failed
    assert thread.status == AgentThreadStatus.USER_TURN, thread.status
    whole = again(thread)
    assert [text(message) for message in thread.messages] == texts(whole)
    assert [message.status for message in thread.messages] == [message.status for message in whole.messages]
    thread.send_text("say after the restart").run()
    assert texts(thread)[-1] == "after the restart" and texts(thread) == texts(again(thread))


def test_a_restart_between_the_results_of_a_turn():
    thread = start("tool client_a {} | client_b {}; say both", client_tools=[spec("client_a"), spec("client_b")])
    until(lambda: thread.refresh().status == AgentThreadStatus.CLIENT_TOOL_TURN, "the thread waits for tools")
    uses = [block for message in thread.messages for block in message.content if hasattr(block, "input")]
    thread.submit_client_tool_results([result_of(uses[1])])
    SERVER.kill()
    SERVER.start()
    thread.refresh()
    assert thread.status == AgentThreadStatus.CLIENT_TOOL_TURN, thread.status
    thread.submit_client_tool_results([result_of(uses[0])])
    thread.run()
    assert texts(thread)[-1] == "both" and texts(thread) == texts(again(thread))
    assert [block.tool_name for block in thread.messages[2].content] == ["client_a", "client_b"]


run_all(globals())
