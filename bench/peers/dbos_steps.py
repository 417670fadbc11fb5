"""DBOS: an application on a PostgreSQL of its own (a temporary cluster on a Unix socket), or on SQLite."""

import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

from conversations import sqlite_durability
from http11 import ResponseError, encode
from processes import Process, StartError, free_port, listens
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
        self.programs = postgres_programs()
        # PostgreSQL refuses to run as root.
        user = other_user() if os.geteuid() == 0 else None
        cluster = folder / "cluster"
        cluster.mkdir()
        if user:
            os.chown(cluster, user.pw_uid, user.pw_gid)
            let_pass(folder, user)
        command = [self.programs / "initdb", "-D", cluster / "data", "-U", "bench", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        made = Process(command, folder / "initdb.log", cwd=str(cluster), user=user)
        if made.process.wait(120) != 0:
            raise StartError(f"initdb failed: {made.tail()}")
        command = [self.programs / "postgres", "-D", cluster / "data", "-k", cluster, "-c", "listen_addresses="]
        server = Process(command, folder / "postgres.log", cwd=str(cluster), user=user)
        self.started.append(server)
        server.wait_until(lambda: self.sql(cluster, "select 1"))
        self.sql(cluster, "create database dbos")
        settings = self.sql(cluster, "select string_agg(name || ' ' || setting, ', ' order by name) from pg_settings"
                            " where name in ('fsync', 'synchronous_commit', 'wal_sync_method', 'commit_delay')")
        self.durability = f"PostgreSQL {self.sql(cluster, 'show server_version').split()[0]} with default settings: {settings}"
        return f"postgresql+psycopg://bench@/dbos?host={cluster}"

    def sql(self, cluster, query):
        """Returns the answer to a query as text, or nothing if it failed."""
        command = [self.programs / "psql", "-h", cluster, "-U", "bench", "-d", "postgres", "-XAtc", query]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()

    def stop(self):
        while self.started:
            process = self.started.pop()
            # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for connections.
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


def postgres_programs():
    """Returns the newest folder that holds all programs of PostgreSQL."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    found = shutil.which("postgres")
    for folder in [*folders, *([Path(found).parent] if found else [])]:
        if all((folder / program).exists() for program in ("initdb", "postgres", "psql")):
            return folder
    raise StartError("no PostgreSQL: install it, on Debian and Ubuntu with `apt-get install postgresql`")


def let_pass(folder, user):
    """Lets a user pass through the folders of this run. Folders above them are left as they are."""
    for own in (folder, folder.parent):
        own.chmod(own.stat().st_mode | 0o001)
    for above in folder.parent.parents:
        if not above.stat().st_mode & 0o001:
            raise StartError(f"the user {user.pw_name} cannot pass through {above}: choose another folder with --dir")


def other_user():
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StartError("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
