"""Google ADK: its session services on SQLite.

The option `service` selects one: `sqlite` is `SqliteSessionService`, which `adk` uses for `sqlite://` addresses, and
`database` is `DatabaseSessionService` (SQLAlchemy) on `sqlite+aiosqlite://`.
"""

import shutil
import sqlite3
import tempfile
from importlib.metadata import version
from pathlib import Path

from conversations import Conversations, serve, sqlite_durability, used_bytes
from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai.types import Content, Part

MEMORY = Path("/dev/shm")
PLACE = {"app_name": "bench", "user_id": "bench"}


class GoogleAdk(Conversations):
    async def open(self):
        self.path = Path(self.folder) / "sessions.sqlite3"
        self.service = self.service_at(self.path)
        self.sessions = {}

    def service_at(self, path):
        if self.options["service"] == "database":
            return DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
        return SqliteSessionService(str(path))

    async def close(self):
        await self.service.close()

    async def facts(self):
        await self.session("facts")
        # Neither service changes a setting of SQLite that concerns durability, so a plain connection has the same ones.
        connection = sqlite3.connect(self.path)
        durability = sqlite_durability(connection)
        connection.close()
        held = "on a session object that is held; ADK's `Runner` loads the session at each turn"
        return {"version": version("google-adk"), "durability": durability, "turn": f"`append_event` twice {held}"}

    async def session(self, name):
        if name not in self.sessions:
            self.sessions[name] = await self.service.create_session(**PLACE, session_id=name)
        return self.sessions[name]

    async def seed(self, session, messages):
        # Appended through the service, in memory so that it does not take minutes, and then copied to the disk.
        await self.service.close()
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            path = Path(folder) / "sessions.sqlite3"
            service = self.service_at(path)
            created = await service.create_session(**PLACE, session_id=session)
            for role, text in messages:
                await service.append_event(created, event(role, text))
            await service.close()
            shutil.copy(path, self.path)
        self.service = self.service_at(self.path)
        self.sessions[session] = await self.load(session)

    async def turn(self, session, user, answer):
        session = await self.session(session)
        await self.service.append_event(session, event("user", user))
        await self.service.append_event(session, event("assistant", answer))

    async def load(self, session):
        return await self.service.get_session(**PLACE, session_id=session)

    async def tail(self, session, count):
        config = GetSessionConfig(num_recent_events=count)
        return await self.service.get_session(**PLACE, session_id=session, config=config)

    def texts(self, loaded):
        return [event.content.parts[0].text for event in loaded.events]

    async def size(self):
        return used_bytes(self.path)


def event(role, text):
    content = Content(role="user" if role == "user" else "model", parts=[Part(text=text)])
    return Event(author="user" if role == "user" else "agent", invocation_id="bench", content=content)


if __name__ == "__main__":
    serve(GoogleAdk)
