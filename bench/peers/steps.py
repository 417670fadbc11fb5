"""Accepting a run, two durable tool steps and its result, on every server with the same load generator."""

import asyncio
import os
import time

from contest import Contest
from http11 import load
from measure import Rounds, rate_summary
from processes import SyncCount, cpu_seconds

CLIENTS = (1, 32)
SYNC_RUNS = 20
IDLE_SECONDS = 2
BATCH_TIMEOUT = 120


class Steps:
    def __init__(self, servers, counts, folder, skip):
        self.contest = Contest(servers, "durable steps", skip)
        self.counts = counts
        self.folder = folder
        self.times = {(server.title, clients): Rounds() for server in servers for clients in CLIENTS}
        self.rates = {key: [] for key in self.times}
        self.cpu = {key: [] for key in self.times}
        self.generator = {key: [] for key in self.times}
        self.facts, self.syncs, self.idle = {}, {}, {}

    def measure(self):
        try:
            self.contest.each(self.prepare)
            self.measure_idle()
            for number in range(self.counts.rounds):
                for clients in CLIENTS:
                    self.contest.each(lambda server: self.round(server, clients), number)
            self.contest.each(self.count_syncs)
        finally:
            self.contest.stop()
        return {server.title: self.result(server.title) for server in self.contest.members}

    def prepare(self, server):
        folder = os.path.join(self.folder, "steps-" + server.title.replace(" ", "-"))
        os.makedirs(folder)
        server.start(folder)
        self.facts[server.title] = server.facts()
        for clients in CLIENTS:
            self.load(server, clients, 5 * clients)

    def measure_idle(self):
        """Measures what the servers take from each other while they are idle."""
        before = {server.title: cpu_seconds(server.roots()) for server in self.contest.members}
        time.sleep(IDLE_SECONDS)
        for server in self.contest.members:
            self.idle[server.title] = (cpu_seconds(server.roots()) - before[server.title]) / IDLE_SECONDS

    def load(self, server, clients, limit=None):
        return asyncio.run(asyncio.wait_for(
            load(server.port, clients, self.counts.seconds, server.request, server.check, limit), BATCH_TIMEOUT))

    def round(self, server, clients):
        self.load(server, clients, 2 * clients)
        used = cpu_seconds(server.roots())
        times, seconds, generator = self.load(server, clients)
        key = (server.title, clients)
        self.times[key].add(times)
        self.rates[key].append(len(times) / seconds)
        self.cpu[key].append((cpu_seconds(server.roots()) - used) / len(times) * 1000)
        self.generator[key].append(generator / seconds)

    def count_syncs(self, server):
        with SyncCount(server.roots(), self.folder) as syncs:
            times, _, _ = self.load(server, 1, SYNC_RUNS)
        self.syncs[server.title] = None if syncs.count is None else syncs.count / len(times)

    def result(self, title):
        return {
            "facts": self.facts[title], "syncs": self.syncs[title], "idle": self.idle[title],
            "clients": {
                clients: {
                    "time": self.times[title, clients].summary(),
                    "rate": rate_summary(self.rates[title, clients]),
                    "cpu": rate_summary(self.cpu[title, clients])["rate"],
                    "generator": max(self.generator[title, clients]),
                }
                for clients in CLIENTS
            },
        }
