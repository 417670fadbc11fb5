"""A server that answers every request at once, to measure the load generator itself. Prints its port."""

import asyncio

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 702\r\n\r\n" + b'{"filler":"' + b"x" * 689 + b'"}'


class Null(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        # The load generator sends one request at a time, small enough for one segment.
        self.transport.write(ANSWER)


async def main():
    server = await asyncio.get_running_loop().create_server(Null, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
