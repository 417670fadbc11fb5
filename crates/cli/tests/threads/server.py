"""The server under test, two people of one org and a stranger, and requests beside the package."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ["SERVER_URL"]
TOKEN = os.environ["SERVER_TOKEN"]


class Server:
    """A server that can be killed and started again."""

    def __init__(self):
        self.process = None
        # Set while the server can be reached.
        self.back = threading.Event()
        atexit.register(self.kill)
        self.start()

    def start(self):
        log = open(os.path.join(os.environ["SERVER_DIR"], "stderr.log"), "ab")
        command = [os.environ["MAINSPRING"], "serve", "--listen", f"127.0.0.1:{os.environ['SERVER_PORT']}"]
        self.process = subprocess.Popen(command, stderr=log, stdout=log)
        until(self.is_ready, "the server starts")
        self.back.set()

    def is_ready(self):
        assert self.process.poll() is None, "the server has ended"
        try:
            return urllib.request.urlopen(URL + "/ready").status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def kill(self):
        self.back.clear()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def until(condition, what, seconds=60):
    """Polls a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


def http(method, path, body=None, token=TOKEN, headers=None):
    """Sends a request. Returns the status and the JSON of the answer."""
    all_headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, content, all_headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def delta(thread, token, key, headers=None):
    query = urllib.parse.urlencode({"next_token": token})
    return http("GET", f"/v1/ai/threads/{thread}/delta?{query}", token=key, headers=headers)


def key(owner, org=None):
    body = {"name": owner, "ownerId": owner, "orgId": org, "role": "member"}
    status, made = http("POST", "/v1/keys", {name: value for name, value in body.items() if value})
    assert status == 201, made
    return made["secret"]


def run_all(module):
    """Runs every function of a module whose name begins with `test_`, in order."""
    failed = []
    for name, test in list(module.items()):
        if not name.startswith("test_"):
            continue
        started = time.monotonic()
        try:
            test()
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f"{name} {time.monotonic() - started:.2f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
