"""DBOS: an application on a PostgreSQL of its own (a temporary cluster on a Unix socket), or on SQLite."""

import signal
import sqlite3
import subprocess
from pathlib import Path

from conversations import sqlite_durability
from http11 import ResponseError, encode
from postgres import PostgresServer
from processes import Process, free_port, listens
from steps_payload import step_texts

HERE = Path(__file__).parent


class DbosSteps:
    def __init__(self, python, database):
        self.python = python
        self.database = database
        self.title = "DBOS on PostgreSQL" if database == "postgres" else "DBOS on SQLite"
        self.started = []

    def start(self, folder):
        folder = Path(folder)
        self.file = folder / "dbos.sqlite3"
        address = self.start_postgres(folder) if self.database == "postgres" else f"sqlite:///{self.file}"
        self.port = free_port()
        command = [self.python, HERE / "dbos_app.py", address, self.port]
        application = Process(command, folder / "application.log", cwd=folder, env={"PYTHONDONTWRITEBYTECODE": "1"})
        self.started.append(application)
        application.wait_until(lambda: listens(self.port))

    def start_postgres(self, folder):
        server = PostgresServer(folder, "dbos")
        self.started.append(server)
        self.durability = server.durability
        return f"postgresql+psycopg://{server.address}"

    def stop(self):
        while self.started:
            process = self.started.pop()
            process.stop(signal.SIGINT)

    def roots(self):
        return [process.pid for process in self.started]

    def facts(self):
        code = "from importlib.metadata import version as v; print(v('dbos'), v('uvicorn'))"
        dbos, uvicorn = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        durability = self.durability if self.database == "postgres" else self.sqlite_settings()
        batched = "commits that wait for the disk at the same time (group commit)" if self.database == "postgres" else "nothing"
        return {
            "version": f"{dbos}, uvicorn {uvicorn}",
            "durability": durability,
            "batched": batched,
            "run": "a workflow of two steps behind a bare ASGI application, one process",
        }

    def sqlite_settings(self):
        # DBOS changes neither setting, so a plain connection has the same ones.
        connection = sqlite3.connect(self.file)
        try:
            return sqlite_durability(connection)
        finally:
            connection.close()

    def request(self, client, number):
        first, second = step_texts()
        return encode("POST", "/run", f"127.0.0.1:{self.port}", None, {"first": first, "second": second})

    def check(self, status, body):
        if status != 200 or body != b'"done"':
            raise ResponseError(f"{self.title} answered {status}: {body[:300]!r}")
