"""mainspring: a prompt whose script calls two tools. Each client has a session of its own."""

import json
import os
from pathlib import Path

from http11 import ResponseError, encode
from mainspring_server import MainspringServer
from postgres import PostgresServer
from steps_payload import step_texts


class MainspringSteps:
    title = "mainspring"

    def __init__(self, binary):
        self.binary = binary
        self.server = None

    def start(self, folder):
        self.server = MainspringServer(self.binary, folder)
        self.server.start()
        self.port = self.server.port
        self.batch = os.urandom(4).hex()

    def stop(self):
        if self.server:
            self.server.stop()

    def roots(self):
        return [self.server.process.pid]

    def facts(self):
        settings = self.server.settings()
        return {
            "version": self.server.version(),
            "durability": f"durability {settings['durability']}: SQLite with a WAL, each commit synced",
            "batched": "commits of different sessions that wait for the disk at the same time share one transaction",
            "run": f"script agent, a session per client, at most {settings['max_runs']} runs at once (the default)",
        }

    def request(self, client, number):
        return request(self.port, self.server.headers, f"{self.batch}-{client}")

    def check(self, status, body):
        if status != 200 or b'"status":"succeeded"' not in body or b'"finalText":"done' not in body:
            raise ResponseError(f"mainspring answered {status}: {body[:300]!r}")


class MainspringPostgresSteps(MainspringSteps):
    """The same on a PostgreSQL of its own."""

    title = "mainspring on PostgreSQL"

    def __init__(self, binary):
        super().__init__(binary)
        self.postgres = None

    def start(self, folder):
        self.postgres = PostgresServer(Path(folder), "mainspring")
        self.server = MainspringServer(self.binary, folder, f"postgres://{self.postgres.address}")
        self.server.start()
        self.port = self.server.port
        self.batch = os.urandom(4).hex()

    def stop(self):
        super().stop()
        if self.postgres:
            self.postgres.stop()
            self.postgres = None

    def roots(self):
        return [*super().roots(), self.postgres.pid]

    def facts(self):
        batched = "commits of different sessions that wait for the database at the same time share one transaction"
        return {**super().facts(), "durability": self.postgres.durability, "batched": batched}


def request(port, headers, session):
    """Returns a prompt that calls two tools."""
    first, second = step_texts()
    script = f"tool echo {json.dumps({'text': first})}; tool echo {json.dumps({'text': second})}; say done"
    body = {"prompt": script, "adapter": "script", "session": {"key": session}}
    return encode("POST", "/v1/runs", f"127.0.0.1:{port}", {**headers, "Prefer": "wait=60"}, body)
