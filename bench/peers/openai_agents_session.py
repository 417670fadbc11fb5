"""openai-agents: `SQLiteSession`, the session store that its `Runner` writes to."""

from importlib.metadata import version
from pathlib import Path

from agents import SQLiteSession
from conversations import Conversations, serve, sqlite_durability, used_bytes


class OpenAiAgents(Conversations):
    async def open(self):
        self.path = Path(self.folder) / "sessions.sqlite3"
        self.sessions = {}

    async def close(self):
        for session in self.sessions.values():
            session.close()

    async def facts(self):
        # The setting of a connection as the library makes it.
        with self.session("facts")._locked_connection() as connection:
            durability = sqlite_durability(connection)
        return {
            "version": version("openai-agents"),
            "durability": durability,
            "turn": "`add_items` twice, as `Runner` does: the prompt, then the answer",
        }

    def session(self, name):
        if name not in self.sessions:
            self.sessions[name] = SQLiteSession(name, self.path)
        return self.sessions[name]

    async def seed(self, session, messages):
        await self.session(session).add_items([item(role, text) for role, text in messages])

    async def turn(self, session, user, answer):
        session = self.session(session)
        await session.add_items([item("user", user)])
        await session.add_items([item("assistant", answer)])

    async def load(self, session):
        return await self.session(session).get_items()

    async def tail(self, session, count):
        return await self.session(session).get_items(limit=count)

    def texts(self, loaded):
        return [entry["content"] for entry in loaded]

    async def size(self):
        return used_bytes(self.path)


def item(role, text):
    return {"role": role, "content": text}


if __name__ == "__main__":
    serve(OpenAiAgents)
