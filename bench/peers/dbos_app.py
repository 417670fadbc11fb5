"""DBOS: a workflow of two steps behind a bare ASGI application. Arguments: the address of the database, the port."""

import json
import sys

import uvicorn
from dbos import DBOS


@DBOS.step()
async def tool(text):
    return {"text": text}


@DBOS.workflow()
async def run(first, second):
    results = [await tool(first), await tool(second)]
    if [result["text"] for result in results] != [first, second]:
        raise ValueError("other texts")
    return "done"


async def application(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = json.dumps(await run(**json.loads(body))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    DBOS(config={"name": "bench", "system_database_url": sys.argv[1], "log_level": "WARNING"})
    DBOS.launch()
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", lifespan="off", loop="uvloop", http="httptools")
