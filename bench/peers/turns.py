"""Appending a turn, loading a conversation, and bytes on disk: the peers that store conversations, each in its process."""

import json
import os
import select
import subprocess
from pathlib import Path

from contest import Contest, PeerError
from measure import Rounds
from processes import SyncCount

HERE = Path(__file__).parent
ANSWER_SECONDS = 900
FRESH_TURNS = 10
SYNC_TURNS = 10
WARM_TURNS = 5


class ConversationPeer:
    """The process of one peer. `python` is the interpreter of its environment, `program` its file here."""

    def __init__(self, title, python, program, options):
        self.title = title
        self.command = [str(python), str(HERE / program)]
        self.options = options
        self.process = None

    def start(self, folder):
        os.makedirs(folder)
        self.log = os.path.join(folder, "peer.log")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.command, folder, json.dumps(self.options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, bufsize=1, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        self.ask("open")

    def ask(self, what, **arguments):
        try:
            self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        except OSError:
            raise PeerError(f"the process ended: {self.tail()}") from None
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        if not ready:
            raise PeerError(f"no answer to `{what}` after {ANSWER_SECONDS} s")
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"the process ended: {self.tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"`{what}` failed: {answer['error']}")
        return answer

    def tail(self):
        with open(self.log, errors="replace") as log:
            return " / ".join(log.read().strip().splitlines()[-3:])[-400:]

    def stop(self):
        if self.process is None:
            return
        try:
            if self.process.poll() is None:
                self.ask("close")
        except PeerError:
            pass
        finally:
            # The end of its input ends the process.
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Turns:
    """One number of prior messages: every peer side by side in fresh folders."""

    def __init__(self, peers, prior, counts, folder, skip):
        self.contest = Contest(peers, f"{prior:,} prior messages", skip)
        self.prior = prior
        self.counts = counts
        self.folder = folder
        self.append = {peer.title: Rounds() for peer in peers}
        self.loads = {peer.title: Rounds() for peer in peers}
        self.tails = {peer.title: Rounds() for peer in peers}
        self.turns = {peer.title: 0 for peer in peers}
        self.sizes = {}
        self.syncs = {}
        self.facts = {}

    def measure(self):
        try:
            self.contest.each(self.prepare)
            for number in range(self.counts.rounds):
                self.contest.each(lambda peer: self.round(peer, number), number)
            if self.prior:
                for number in range(self.counts.rounds):
                    self.contest.each(self.load, number)
            self.contest.each(self.finish)
        finally:
            self.contest.stop()
        return self.results()

    def prepare(self, peer):
        peer.start(os.path.join(self.folder, f"{self.prior}-{peer.title.replace(' ', '-')}"))
        peer.ask("seed", session="long", prior=self.prior)
        self.facts[peer.title] = peer.ask("facts")
        self.grow(peer, "warm", WARM_TURNS)
        self.turns[peer.title] = 0
        self.sizes[peer.title] = peer.ask("size")["bytes"]

    def grow(self, peer, name, turns):
        """Appends turns to the long session, or to new sessions if the measure is about sessions without prior messages."""
        session, fresh = ("long", 0) if self.prior else (name, FRESH_TURNS)
        times = peer.ask("append", session=session, turns=turns, seconds=self.counts.seconds, fresh=fresh)["ns"]
        self.turns[peer.title] += len(times)
        return times

    def round(self, peer, number):
        self.grow(peer, f"warm-{number}", WARM_TURNS)
        self.append[peer.title].add(self.grow(peer, f"round-{number}", self.counts.turns))

    def load(self, peer):
        self.loads[peer.title].add(peer.ask("load", session="long", times=self.counts.loads, seconds=self.counts.seconds)["ns"])
        self.tails[peer.title].add(peer.ask("tail", session="long", times=self.counts.loads, seconds=self.counts.seconds)["ns"])

    def finish(self, peer):
        grown = peer.ask("size")["bytes"] - self.sizes[peer.title]
        self.sizes[peer.title] = grown / self.turns[peer.title]
        with SyncCount(peer.ask("processes")["pids"], self.folder) as syncs:
            times = self.grow(peer, "sync", SYNC_TURNS)
        self.syncs[peer.title] = None if syncs.count is None else syncs.count / len(times)

    def results(self):
        return {
            peer.title: {
                "facts": self.facts[peer.title],
                "append": self.append[peer.title].summary(), "load": self.loads[peer.title].summary(),
                "tail": self.tails[peer.title].summary(), "bytes": self.sizes[peer.title], "syncs": self.syncs[peer.title],
            }
            for peer in self.contest.members
        }
