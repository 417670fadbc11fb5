"""Measures mainspring beside its peers and writes the results. `bench/peers/run` installs the peers and calls this."""

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import chart
import mainspring_steps
import report
from dbos_steps import DbosSteps
from first_event import FirstEvent
from http11 import load
from langgraph_dev import LangGraphDev
from mainspring_events import MainspringEvents
from measure import percentile, sync_cost
from restate_steps import RestateSteps
from steps import Steps
from turns import ConversationPeer, Turns

HERE = Path(__file__).parent
PARTS = ("turns", "steps", "events")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


@dataclass
class Counts:
    rounds: int
    priors: tuple
    turns: int
    loads: int
    streams: int
    seconds: float


FULL = Counts(rounds=5, priors=(0, 1_000, 10_000), turns=200, loads=20, streams=20, seconds=6)
QUICK = Counts(rounds=2, priors=(0, 1_000), turns=20, loads=3, streams=3, seconds=1.5)


class Bench:
    """One run: its options, and the results so far."""

    def __init__(self, options):
        self.binary = options.mainspring
        self.counts = QUICK if options.quick else FULL
        self.counts = replace(self.counts, priors=tuple(options.priors or self.counts.priors), rounds=options.rounds or self.counts.rounds)
        self.results = {"turns": {}, "steps": {}, "events": {}, "skipped": []}

    def skip(self, title, reason):
        self.results["skipped"].append((title, reason))
        print(f"SKIPPED {title}: {reason}", flush=True)

    def installed(self, name):
        """Returns the folder of a peer, or nothing if it cannot be installed, which is reported."""
        print(f"{time.strftime('%H:%M:%S')} packages of {name}", flush=True)
        done = subprocess.run([HERE / "install", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode == 0:
            return Path(done.stdout.strip())
        self.skip(name, done.stderr.strip().splitlines()[-1])
        return None

    def python(self, name):
        """Returns the interpreter of a peer's environment, or nothing if it cannot be installed."""
        folder = self.installed(name)
        return folder and folder / "bin/python"

    def prepare(self, parts):
        """Installs the peers of the parts and returns the parts to run. Before anything is measured."""
        found = {"turns": self.conversations, "steps": self.step_servers, "events": self.event_servers}
        return {part: (getattr(self, f"run_{part}"), found[part]()) for part in PARTS if part in parts}

    def conversations(self):
        peers = [ConversationPeer("mainspring", sys.executable, "mainspring_conversations.py", {"binary": self.binary})]
        if python := self.python("openai-agents"):
            peers.append(ConversationPeer("openai-agents SQLiteSession", python, "openai_agents_session.py", {}))
        if python := self.python("langgraph"):
            peers.append(ConversationPeer("LangGraph SqliteSaver", python, "langgraph_saver.py", {"channel": "messages"}))
            peers.append(ConversationPeer("LangGraph SqliteSaver, delta", python, "langgraph_saver.py", {"channel": "delta"}))
        if python := self.python("google-adk"):
            peers.append(ConversationPeer("ADK SqliteSessionService", python, "google_adk_session.py", {"service": "sqlite"}))
            peers.append(ConversationPeer("ADK DatabaseSessionService", python, "google_adk_session.py", {"service": "database"}))
        return peers

    def step_servers(self):
        servers = [mainspring_steps.MainspringSteps(self.binary), mainspring_steps.MainspringPostgresSteps(self.binary)]
        if packages := self.installed("restate"):
            servers.append(RestateSteps(packages))
        if python := self.python("dbos"):
            servers += [DbosSteps(python, "postgres"), DbosSteps(python, "sqlite")]
        return servers

    def event_servers(self):
        python = self.python("langgraph-dev")
        return [MainspringEvents(self.binary), *([LangGraphDev(python)] if python else [])]

    def run_turns(self, peers, folder):
        for prior in self.counts.priors:
            announce(f"append a turn, {prior:,} prior messages", peers)
            self.results["turns"][prior] = Turns(peers, prior, self.counts, folder, self.skip).measure()

    def run_steps(self, servers, folder):
        announce("accept, two durable tool steps, result", servers)
        self.results["steps"] = Steps(servers, self.counts, folder, self.skip).measure()

    def run_events(self, servers, folder):
        announce("accept to first event", servers)
        self.results["events"] = FirstEvent(servers, self.counts, folder, self.skip).measure()


def main():
    # The peers are stopped when this ends, also by a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    bench = Bench(options)
    parts = bench.prepare(options.parts)
    with tempfile.TemporaryDirectory(prefix="mainspring-peers-", dir=options.dir) as folder:
        warn_of_memory(folder)
        about = bench.results["about"] = {
            "date": time.strftime("%Y-%m-%d"), "machine": machine(), "rounds": bench.counts.rounds, "quick": options.quick,
            "sync_before": cost(folder), "generator": generator_cost(bench.counts),
        }
        for run, members in parts.values():
            run(members, folder)
        about["sync_after"] = cost(folder)
    check_ours(bench.results, options.parts)
    mark_build(bench.results, options.mainspring)
    write(bench.results, options)


def arguments():
    parser = argparse.ArgumentParser(prog="bench/peers/run", description="Measures mainspring beside its peers.")
    parser.add_argument("--mainspring", default=default_program(), help="the program (default: in target/dist, else in target/release)")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that everything works, not numbers to publish")
    parser.add_argument("--only", dest="parts", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--prior", dest="priors", action="append", type=int, help="prior messages of the part turns; may be repeated")
    parser.add_argument("--rounds", type=int, help=f"alternating rounds (default: {FULL.rounds}, quick {QUICK.rounds})")
    parser.add_argument("--dir", help="folder on the disk to measure (default: TMPDIR or /tmp)")
    parser.add_argument("--markdown", help="file for the table (default: standard output)")
    parser.add_argument("--svg", help="file for the chart")
    parser.add_argument("--json", help="file for all numbers")
    options = parser.parse_args()
    options.parts = options.parts or PARTS
    if not os.access(options.mainspring, os.X_OK):
        parser.error(f"no program at {options.mainspring}: build it with `cargo build --profile dist -p mainspring-cli`")
    options.mainspring = os.path.abspath(options.mainspring)
    return options


def default_program():
    target = HERE.parent.parent / "target"
    dist, release = target / "dist/mainspring", target / "release/mainspring"
    return str(release if release.exists() and not dist.exists() else dist)


def announce(what, members):
    print(f"{time.strftime('%H:%M:%S')} {what}: {', '.join(member.title for member in members)}", flush=True)


def generator_cost(counts):
    """Measures the load generator against a server that does nothing."""
    with subprocess.Popen([sys.executable, HERE / "null_server.py"], stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(server.stdout.readline())
            send = lambda client, number: mainspring_steps.request(port, {"Authorization": "Bearer " + "0" * 64}, f"null-{client}")
            run = lambda clients: asyncio.run(load(port, clients, counts.seconds / 2, send, lambda status, body: None))
            run(1)
            one, _, _ = run(1)
            many, seconds, cpu = run(32)
        finally:
            server.kill()
    return {"p50": percentile(sorted(one), 0.5) / 1e6, "rate": len(many) / seconds, "cpu": cpu / len(many) * 1e6}


def cost(folder):
    return " / ".join(map(report.number, sync_cost(folder)))


def warn_of_memory(folder):
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip()
    if kind in MEMORY_FILE_SYSTEMS:
        print(f"warning: {folder} is on {kind}, which does not sync: choose a disk with --dir", file=sys.stderr)


def machine():
    with open("/proc/cpuinfo") as lines:
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores, {model}, Linux {platform.release().split('-')[0]}"


def check_ours(results, parts):
    """Without mainspring there is nothing to compare with."""
    for measured in [*results["turns"].values(), *(results[part] for part in ("steps", "events") if part in parts)]:
        if report.OURS not in measured:
            sys.exit("error: mainspring itself failed, see above")


def mark_build(results, binary):
    """Names the build profile, if the folder of the program tells it."""
    folder = Path(binary).parent.name
    profile = f"profile {folder}" if folder in ("dist", "release", "debug") else "profile unknown"
    for measured in [*results["turns"].values(), results["steps"], results["events"]]:
        if report.OURS in measured:
            measured[report.OURS]["facts"]["version"] += f", {profile}"


def write(results, options):
    text = report.markdown(results)
    if options.markdown:
        Path(options.markdown).write_text(text)
    else:
        print(text)
    if options.svg:
        Path(options.svg).write_text(chart.svg(results))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
