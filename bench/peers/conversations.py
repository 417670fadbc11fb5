"""The interface of a peer that stores conversations, and the loop that measures it.

Each peer runs in a process of its own, in its own Python environment. The coordinator (`turns.py`) writes one command per
line to its standard input, as JSON, and reads one answer per line. The loop that takes the times is here, so it is the
same for every peer.
"""

import asyncio
import gc
import json
import os
import random
import sqlite3
import sys
import time

WORDS = "spring wheel gear pinion barrel click ratchet escape lever balance jewel arbor train fusee chain hand".split()
TEXT_BYTES = 496
TAIL_MESSAGES = 50


class Conversations:
    """A store of conversations. A turn is a message of the user and one of the assistant, durable one after the other."""

    def __init__(self, folder, options):
        self.folder = folder
        self.options = options

    async def open(self):
        """Opens an empty store in the folder."""

    async def close(self):
        """Closes the store."""

    async def facts(self):
        """Returns `version`, `durability` (read from a live connection where possible) and `turn`, the calls of a turn."""
        raise NotImplementedError

    async def seed(self, session, messages):
        """Stores the messages as the beginning of a session. Not measured."""
        raise NotImplementedError

    async def turn(self, session, user, answer):
        """Appends a turn. Returns when both messages are stored."""
        raise NotImplementedError

    async def load(self, session):
        """Loads the whole conversation."""
        raise NotImplementedError

    async def tail(self, session, count):
        """Loads the last `count` messages, or None if the peer can only load everything."""
        raise NotImplementedError

    def texts(self, loaded):
        """Returns the texts of a loaded conversation. Not measured."""
        raise NotImplementedError

    async def size(self):
        """Returns the bytes of the pages in use, after the write-ahead log was moved into the file."""
        raise NotImplementedError

    def processes(self):
        """Returns the ids of the processes that write to the disk."""
        return [os.getpid()]


def text(rng):
    """Returns a text of `TEXT_BYTES` bytes in words, different for each call."""
    words = []
    while sum(map(len, words)) + len(words) < TEXT_BYTES:
        words.append(rng.choice(WORDS))
    return " ".join(words)[: TEXT_BYTES - 1] + "."


def turn_texts(rng):
    """Returns the texts of a turn. The prompt is the script that makes mainspring's script agent give the answer."""
    answer = text(rng)
    return "say " + answer, answer


def used_bytes(path, *, immutable=False):
    """Returns the bytes of the pages in use of an SQLite database."""
    if immutable:
        connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    else:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    try:
        value = lambda name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        return (value("page_count") - value("freelist_count")) * value("page_size")
    finally:
        connection.close()


def sqlite_durability(connection):
    """Describes journal and sync settings of an open connection."""
    journal = connection.execute("PRAGMA journal_mode").fetchone()[0].upper()
    level = connection.execute("PRAGMA synchronous").fetchone()[0]
    return f"SQLite {sqlite3.sqlite_version}, journal {journal}, synchronous {('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"


class Worker:
    """Executes the commands of the coordinator on one peer."""

    def __init__(self, peer):
        self.peer = peer
        self.rng = random.Random(17)
        self.opened = False
        self.lengths = {}
        self.last = {}

    async def execute(self, command):
        kind = command.pop("do")
        return await getattr(self, f"do_{kind}")(**command)

    async def do_open(self):
        self.opened = True
        await self.peer.open()
        return {}

    async def do_facts(self):
        return await self.peer.facts()

    async def do_processes(self):
        return {"pids": self.peer.processes()}

    async def do_size(self):
        return {"bytes": await self.peer.size()}

    async def do_close(self):
        if self.opened:
            self.opened = False
            await self.peer.close()
        return {}

    async def do_seed(self, session, prior):
        messages = []
        while len(messages) < prior:
            user, answer = turn_texts(self.rng)
            messages += [("user", user), ("assistant", answer)]
        if messages:
            await self.peer.seed(session, messages)
            self.last[session] = messages[-1][1]
        self.lengths[session] = len(messages)
        return {}

    async def do_append(self, session, turns, seconds, fresh):
        """Appends up to `turns` turns for up to `seconds`, to a new session every `fresh` turns if that is not 0."""
        times = []
        began = time.perf_counter()
        name = session
        gc.collect()
        for number in range(turns):
            if fresh and number % fresh == 0:
                name = f"{session}-{number}"
                await self.do_seed(name, 0)
            user, answer = turn_texts(self.rng)
            start = time.perf_counter_ns()
            await self.peer.turn(name, user, answer)
            times.append(time.perf_counter_ns() - start)
            self.lengths[name] += 2
            self.last[name] = answer
            if time.perf_counter() - began > seconds:
                break
        await self.check(name)
        return {"ns": times}

    async def check(self, session):
        """Fails if the peer does not hold what was appended."""
        texts = self.peer.texts(await self.peer.load(session))
        if len(texts) != self.lengths[session] or texts[-1].strip() != self.last[session]:
            raise ValueError(f"{session} holds {len(texts)} messages instead of {self.lengths[session]}, or other texts")

    async def do_load(self, session, times, seconds):
        return {"ns": await self.timed(times, seconds, lambda: self.peer.load(session))}

    async def do_tail(self, session, times, seconds):
        loaded = await self.peer.tail(session, TAIL_MESSAGES)
        if loaded is None:
            return {"ns": []}
        texts = self.peer.texts(loaded)
        if len(texts) != TAIL_MESSAGES or texts[-1].strip() != self.last[session]:
            raise ValueError(f"the tail of {session} holds {len(texts)} messages, or other texts")
        return {"ns": await self.timed(times, seconds, lambda: self.peer.tail(session, TAIL_MESSAGES))}

    async def timed(self, times, seconds, call):
        taken = []
        began = time.perf_counter()
        gc.collect()
        for _ in range(times):
            start = time.perf_counter_ns()
            await call()
            taken.append(time.perf_counter_ns() - start)
            if time.perf_counter() - began > seconds:
                break
        return taken


def serve(kind):
    """Runs a peer as a process: `PROGRAM FOLDER OPTIONS`, where the options are a JSON object."""
    # The answers need the real standard output; whatever a library prints goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(kind(sys.argv[1], json.loads(sys.argv[2])))

    async def loop():
        running = asyncio.get_running_loop()
        try:
            while line := await running.run_in_executor(None, sys.stdin.readline):
                try:
                    answer = await worker.execute(json.loads(line))
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                answers.write(json.dumps(answer) + "\n")
        finally:
            # The coordinator may have ended without a word; a server of this peer must not outlive it.
            await worker.do_close()

    asyncio.run(loop())
