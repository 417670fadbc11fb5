"""A keep-alive HTTP/1.1 client over asyncio, and the load generator.

The same client drives every server. It is written by hand because the usual ones take about a millisecond of processor
time per request, more than some of the servers under test; `null_server.py` measures the cost of this one.
"""

import asyncio
import json
import time


class ResponseError(Exception):
    """An answer that is not the expected one."""


def encode(method, path, host, headers=None, body=None):
    """Returns a whole request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    payload = b""
    if body is not None:
        payload = json.dumps(body, separators=(",", ":")).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self):
        self.transport = None
        self.waiting = None
        self.lost = False

    @classmethod
    async def open(cls, host, port):
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        self.lost = True
        if self.waiting and not self.waiting.done():
            self.waiting.set_exception(ResponseError(f"the server closed the connection: {exc}"))

    def close(self):
        self.transport.close()

    async def send(self, request, on_body=None):
        """Sends a request and returns the status and the body. `on_body` is called with the body so far as it grows."""
        if self.lost:
            raise ResponseError("the server closed the connection")
        self.received = bytearray()
        self.body = bytearray()
        self.status = None
        self.missing = None
        self.on_body = on_body
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.waiting

    def data_received(self, data):
        self.received += data
        if self.waiting is None or self.waiting.done():
            return
        try:
            if self.status is None and not self.read_head():
                return
            complete = self.read_chunks() if self.missing is None else self.read_length()
        except Exception as error:
            self.waiting.set_exception(ResponseError(f"cannot read the answer: {error!r}"))
            return
        if self.on_body and self.body:
            self.on_body(self.body)
        if complete:
            self.waiting.set_result((self.status, bytes(self.body)))

    def read_head(self):
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self.received[:end]).lower()
        del self.received[: end + 4]
        self.status = int(head[9:12])
        if b"\r\ntransfer-encoding: chunked" not in head:
            at = head.find(b"\r\ncontent-length:")
            self.missing = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        return True

    def read_length(self):
        self.missing -= len(self.received)
        self.body += self.received
        self.received.clear()
        return self.missing <= 0

    def read_chunks(self):
        while True:
            line = self.received.find(b"\r\n")
            if line < 0:
                return False
            length = int(bytes(self.received[:line]).split(b";", 1)[0], 16)
            if len(self.received) < line + 2 + length + 2:
                return False
            self.body += self.received[line + 2 : line + 2 + length]
            del self.received[: line + 2 + length + 2]
            if length == 0:
                return True


class Client:
    """A connection with an address, which is opened again if the server closed it while it was idle."""

    def __init__(self, port, headers):
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.headers = headers

    @classmethod
    async def open(cls, port, headers=None):
        client = cls(port, headers or {})
        client.connection = await Connection.open("127.0.0.1", port)
        return client

    async def call(self, method, path, body=None, headers=None):
        """Returns the decoded JSON of a successful answer."""
        if self.connection.lost:
            self.connection = await Connection.open("127.0.0.1", self.port)
        request = encode(method, path, self.host, {**self.headers, **(headers or {})}, body)
        status, answer = await self.connection.send(request)
        if status >= 300:
            raise ResponseError(f"{method} {path} answered {status}: {answer[:300].decode(errors='replace')}")
        return json.loads(answer) if answer else None

    def close(self):
        self.connection.close()


async def load(port, clients, seconds, request, check, limit=None):
    """Runs closed-loop clients: each sends its next request when its last one was answered.

    `request(client, number)` returns the bytes to send. `check(status, body)` raises if the answer is not the expected
    one. Ends after `seconds` or, if given, after `limit` requests. Returns the times in nanoseconds, the seconds taken and
    the processor seconds of this process.
    """
    connections = await asyncio.gather(*(Connection.open("127.0.0.1", port) for _ in range(clients)))
    times = []
    began = time.perf_counter()
    cpu = time.process_time()

    async def run(client, connection):
        number = 0
        while time.perf_counter() - began < seconds and (limit is None or len(times) < limit):
            sent = request(client, number)
            start = time.perf_counter_ns()
            status, body = await connection.send(sent)
            times.append(time.perf_counter_ns() - start)
            check(status, body)
            number += 1

    try:
        await asyncio.gather(*(run(client, connection) for client, connection in enumerate(connections)))
    finally:
        for connection in connections:
            connection.close()
    return times, time.perf_counter() - began, time.process_time() - cpu
