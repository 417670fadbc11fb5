"""Readers that apply deltas hold what the thread holds: with branches, cancels, kills of the server, compaction and
several readers at once. The seed is printed."""

import logging
import os
import random
import threading
from http.client import HTTPException

from roboto import RobotoClient, RobotoConfig
from roboto.ai.agent_thread import AgentThread, client_tool
from roboto.ai.core.record import AgentThreadStatus

from server import URL, Server, http, key, run_all, until

# The package logs every connection that a kill of the server breaks.
logging.disable(logging.CRITICAL)
SERVER = Server()
KEY = key("reader", "readers")
CLIENT = RobotoClient.from_config(RobotoConfig(api_key=KEY, endpoint=URL))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


def joined(thread):
    """The messages without the borders between pieces of text."""
    messages = []
    for message in thread.messages:
        content = []
        for block in message.content:
            block = block.model_dump(mode="json")
            if "text" in block and content and "text" in content[-1]:
                content[-1]["text"] += block["text"]
            else:
                content.append(block)
        messages.append((message.role.value, message.status.value, content))
    return messages


@client_tool
def client_note(text: str) -> str:
    """Notes a text."""
    return text


class Reader(threading.Thread):
    """Polls a thread until it is stopped. Requests that fail while the server is down are sent again."""

    def __init__(self, thread_id):
        super().__init__(daemon=True)
        self.thread = AgentThread.from_id(thread_id, load_messages=False, roboto_client=CLIENT)
        self.stopping, self.error = threading.Event(), None
        self.start()

    def run(self):
        while not self.stopping.is_set():
            try:
                self.thread.refresh()
            except (OSError, HTTPException):
                # The server is down.
                SERVER.back.wait()
            except Exception as error:
                self.error = error
                return

    def stop(self):
        self.stopping.set()
        self.join()
        assert self.error is None, (SEED, self.error)
        self.thread.refresh()
        return self.thread


def at_rest(thread_id):
    record = http("GET", f"/v1/ai/threads/{thread_id}", token=KEY)[1]["data"]
    return record["status"] not in ("roboto_turn", "client_tool_turn")


def act(numbers, writer):
    """Does one thing to the thread, and waits until it rests."""
    session = writer.thread_id
    kind = numbers.choice(["say", "stream", "tools", "cancel", "kill", "regenerate", "compact", "fail"])
    if kind in ("say", "fail"):
        writer.send_text(f"say {numbers.randrange(1000)}" if kind == "say" else "say so far; fail broken")
    elif kind == "stream":
        writer.send_text(f"stream {numbers.randrange(3, 9)} every 5ms word; say end")
    elif kind == "tools":
        writer.send_text('tool client_note {"text":"x"} | plan_update {"tasks":[]}; say noted', client_tools=[client_note])
        writer.run()
    elif kind in ("cancel", "kill"):
        writer.send_text("stream 4 every 5ms part; hang")
        until(lambda: "part" in str(joined(writer.refresh())[-1]), "text arrives")
        if kind == "kill":
            SERVER.kill()
            SERVER.start()
        http("POST", f"/v1/ai/threads/{session}/cancel", {}, KEY)
    elif kind == "regenerate":
        path = http("GET", f"/v1/sessions/{session}/messages?limit=100", token=KEY)[1]["items"]
        prompts = [message for message in path if message["role"] == "user" and message["content"][0]["type"] == "text"
                   and message["content"][0]["text"].startswith("say ")]
        place = {"kind": "regenerate", "messageId": numbers.choice(prompts)["messageId"]}
        http("POST", f"/v1/sessions/{session}/runs", {"place": place}, KEY)
    else:
        position = http("GET", f"/v1/sessions/{session}/snapshot", token=KEY)[1]["position"]
        http("POST", f"/v1/sessions/{session}/compact", {"before": position}, KEY)
    until(lambda: at_rest(session), f"the thread rests after {kind}")
    writer.refresh()
    return kind


def test_readers_hold_what_the_thread_holds():
    numbers = random.Random(SEED)
    print(f"seed {SEED}", flush=True)
    for _ in range(3):
        writer = AgentThread.start("say begin", roboto_client=CLIENT).run()
        readers = [Reader(writer.thread_id) for _ in range(3)]
        done = [act(numbers, writer) for _ in range(8)]
        whole = AgentThread.from_id(writer.thread_id, roboto_client=CLIENT)
        assert whole.status in (AgentThreadStatus.USER_TURN, AgentThreadStatus.GOALS_FAILED)
        for thread in [writer, *(reader.stop() for reader in readers)]:
            assert joined(thread) == joined(whole), (SEED, done, joined(thread), joined(whole))
        print("property", " ".join(done), len(whole.messages), "messages", flush=True)


run_all(globals())
