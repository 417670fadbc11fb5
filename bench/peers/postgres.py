"""A PostgreSQL of its own with default settings: a temporary cluster on a Unix socket."""

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

from processes import Process, StartError


class PostgresServer:
    """A server with one database. `address` has the form of a libpq URL without its scheme."""

    def __init__(self, folder, database):
        self.programs = postgres_programs()
        # PostgreSQL refuses to run as root.
        user = other_user() if os.geteuid() == 0 else None
        self.cluster = folder / "cluster"
        self.cluster.mkdir()
        if user:
            os.chown(self.cluster, user.pw_uid, user.pw_gid)
            let_pass(folder, user)
        data = self.cluster / "data"
        command = [self.programs / "initdb", "-D", data, "-U", "bench", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        made = Process(command, folder / "initdb.log", cwd=str(self.cluster), user=user)
        if made.process.wait(120) != 0:
            raise StartError(f"initdb failed: {made.tail()}")
        command = [self.programs / "postgres", "-D", data, "-k", self.cluster, "-c", "listen_addresses="]
        self.process = Process(command, folder / "postgres.log", cwd=str(self.cluster), user=user)
        try:
            self.process.wait_until(lambda: self.sql("select 1"))
            self.sql(f"create database {database}")
        except StartError:
            self.stop()
            raise
        settings = self.sql("select string_agg(name || ' ' || setting, ', ' order by name) from pg_settings"
                            " where name in ('fsync', 'synchronous_commit', 'wal_sync_method', 'commit_delay')")
        self.durability = f"PostgreSQL {self.sql('show server_version').split()[0]} with default settings: {settings}"
        self.address = f"bench@/{database}?host={self.cluster}"

    def sql(self, query):
        """Returns the answer to a query as text, or nothing if it failed."""
        command = [self.programs / "psql", "-h", self.cluster, "-U", "bench", "-d", "postgres", "-XAtc", query]
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()

    @property
    def pid(self):
        return self.process.pid

    def stop(self, _=None):
        # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for connections.
        self.process.stop(signal.SIGINT)


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
