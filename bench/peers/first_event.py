"""From sending a prompt to the first event of its stream, and to the first text of the answer; one client."""

import asyncio
import os
import random
import time

from contest import Contest
from conversations import turn_texts
from http11 import Connection, ResponseError
from measure import Rounds

FRESH_RUNS = 10
WARM_RUNS = 2
RUN_TIMEOUT = 60


class FirstEvent:
    def __init__(self, servers, counts, folder, skip):
        self.contest = Contest(servers, "first event", skip)
        self.counts = counts
        self.folder = folder
        self.rng = random.Random(17)
        self.events = {server.title: Rounds() for server in servers}
        self.texts = {server.title: Rounds() for server in servers}
        self.facts = {}

    def measure(self):
        try:
            self.contest.each(self.prepare)
            for number in range(self.counts.rounds):
                self.contest.each(self.round, number)
        finally:
            self.contest.stop()
        return {
            server.title: {
                "facts": self.facts[server.title], "event": self.events[server.title].summary(), "text": self.texts[server.title].summary(),
            }
            for server in self.contest.members
        }

    def prepare(self, server):
        folder = os.path.join(self.folder, "events-" + server.title.replace(" ", "-"))
        os.makedirs(folder)
        server.start(folder)
        self.facts[server.title] = server.facts()
        asyncio.run(self.runs(server, WARM_RUNS))

    def round(self, server):
        asyncio.run(self.runs(server, WARM_RUNS))
        events, texts = asyncio.run(self.runs(server, self.counts.streams))
        self.events[server.title].add(events)
        self.texts[server.title].add(texts)

    async def runs(self, server, count):
        connection = await Connection.open("127.0.0.1", server.port)
        events, texts = [], []
        began = time.perf_counter()
        for number in range(count):
            if number % FRESH_RUNS == 0:
                session = server.session()
            prompt, answer = turn_texts(self.rng)
            event, text = await asyncio.wait_for(self.run(server, connection, session, prompt, answer), RUN_TIMEOUT)
            events.append(event)
            texts.append(text)
            if time.perf_counter() - began > 2 * self.counts.seconds:
                break
        connection.close()
        return events, texts

    async def run(self, server, connection, session, prompt, answer):
        """Returns the nanoseconds until the first complete event and until the first text."""
        marks = {}

        def on_body(body):
            now = time.perf_counter_ns()
            if "event" not in marks and (b"\n\n" in body or b"\r\n\r\n" in body):
                marks["event"] = now
            if "text" not in marks and any(sign in body for sign in server.first_text):
                marks["text"] = now

        request = server.request(session, prompt)
        start = time.perf_counter_ns()
        status, body = await connection.send(request, on_body)
        if status != 200 or answer.encode() not in body or len(marks) != 2:
            raise ResponseError(f"{server.title} answered {status}: {body[:300]!r}")
        return marks["event"] - start, marks["text"] - start
