"""mainspring: prompts to its script agent over HTTP, on a keep-alive connection."""

import json
import os

from conversations import Conversations, serve, used_bytes
from http11 import Client
from mainspring_server import MainspringServer

PAGE = 500


class Mainspring(Conversations):
    async def open(self):
        self.server = MainspringServer(self.options["binary"], self.folder)
        self.client = None
        await self.connect()

    async def connect(self):
        self.server.start()
        self.client = await Client.open(self.server.port, self.server.headers)

    async def close(self):
        if self.client:
            self.client.close()
        self.server.stop()

    async def facts(self):
        return {
            "version": self.server.version(),
            "durability": f"durability {self.server.settings()['durability']}: SQLite with a WAL, each commit synced",
            "turn": "`POST /v1/runs` with `Prefer: wait`, which streams, records and indexes the answer of the script agent",
        }

    async def seed(self, session, messages):
        for (_, user), (_, answer) in zip(messages[::2], messages[1::2]):
            await self.turn(session, user, answer)

    async def turn(self, session, user, answer):
        body = {"prompt": user, "adapter": "script", "session": {"key": session}}
        run = await self.client.call("POST", "/v1/runs", body, {"Prefer": "wait=60"})
        if run["status"] != "succeeded":
            raise ValueError(f"the run is {run['status']}: {json.dumps(run)[:300]}")

    async def load(self, session):
        pages = []
        before = ""
        while True:
            page = await self.client.call("GET", f"/v1/sessions/{session}/messages?limit={PAGE}{before}")
            pages.append(page["items"])
            if not page.get("next"):
                return [message for items in reversed(pages) for message in items]
            before = f"&before={page['next']}"

    async def tail(self, session, count):
        return (await self.client.call("GET", f"/v1/sessions/{session}/messages?limit={count}"))["items"]

    def texts(self, loaded):
        return ["".join(block.get("text", "") for block in message["content"]) for message in loaded]

    async def size(self):
        # A stopped server has moved its write-ahead log into the file.
        await self.close()
        used = used_bytes(self.server.state / "mainspring.sqlite3", immutable=True)
        await self.connect()
        return used

    def processes(self):
        return [os.getpid(), self.server.process.pid]


if __name__ == "__main__":
    serve(Mainspring)
