"""mainspring: a prompt whose run is streamed as server-sent events."""

import uuid

from http11 import encode
from mainspring_server import MainspringServer


class MainspringEvents:
    title = "mainspring"
    # A stream that is read after the answer was completed has the text in the message instead of deltas.
    first_text = (b"event: message.delta", b'"role":"assistant"')

    def __init__(self, binary):
        self.binary = binary
        self.server = None

    def start(self, folder):
        self.server = MainspringServer(self.binary, folder)
        self.server.start()
        self.port = self.server.port

    def stop(self):
        if self.server:
            self.server.stop()

    def roots(self):
        return [self.server.process.pid]

    def facts(self):
        return {
            "version": self.server.version(),
            "durability": f"durability {self.server.settings()['durability']}: the prompt is synced before the first event",
            "batched": "nothing with one client",
            "run": "`POST /v1/runs` with `Accept: text/event-stream`",
        }

    def session(self):
        return uuid.uuid4().hex

    def request(self, session, prompt):
        body = {"prompt": prompt, "adapter": "script", "session": {"key": session}}
        headers = {**self.server.headers, "Accept": "text/event-stream"}
        return encode("POST", "/v1/runs", f"127.0.0.1:{self.port}", headers, body)
