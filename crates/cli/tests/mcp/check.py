"""Drives the control tools with the official Python SDK, in both revisions of the protocol that it speaks."""

import asyncio
import json
import os
import urllib.request

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

URL = os.environ["SERVER_URL"]
TOKEN = os.environ["SERVER_TOKEN"]
READERS = ["list_agent_sessions", "get_agent_run", "inspect_agent_artifacts"]


def api(method, path, body=None, wait=20):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Prefer": f"wait={wait}"}
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, content, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


async def check(client, revision, session):
    assert client.protocol_version == revision, client.protocol_version
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert len(tools) == 6, tools
    for name, tool in tools.items():
        assert tool.annotations.read_only_hint == (name in READERS), tool
        assert tool.title and tool.output_schema["properties"]["ok"]["const"] is True, tool
    # The SDK itself checks structured content against the output schema.
    sent = await client.call_tool("send_agent_message", {"sessionId": session, "prompt": "say again"})
    assert not sent.is_error and sent.structured_content["text"] == "again\n", sent
    assert json.loads(sent.content[0].text) == sent.structured_content
    run = sent.structured_content["run"]["runId"]
    attempt = sent.structured_content["attempt"]["attemptId"]
    for name, arguments in [
        ("list_agent_sessions", {"limit": 1}),
        ("get_agent_run", {"runId": run}),
        ("inspect_agent_artifacts", {"attemptId": attempt}),
    ]:
        answer = await client.call_tool(name, arguments)
        assert not answer.is_error and answer.structured_content["ok"] is True, answer
    hanging = api("POST", "/v1/runs", {"prompt": "hang", "session": {}}, wait=0)
    work = {"mode": "call", "objective": "say done", "parentRunId": hanging["runId"]}
    delegated = await client.call_tool("delegate_agent", work)
    assert delegated.structured_content["result"]["summary"] == "done\n", delegated
    cancelled = await client.call_tool("cancel_agent_run", {"runId": hanging["runId"]})
    assert cancelled.structured_content["cancellation"]["accepted"] is True, cancelled
    refused = await client.call_tool("get_agent_run", {"runId": "run_" + "0" * 32})
    assert refused.is_error and json.loads(refused.content[0].text)["error"]["code"] == "not_found", refused
    try:
        await client.call_tool("no_such_tool", {})
        raise AssertionError("an unknown tool is an error of the protocol")
    except MCPError as error:
        assert "no_such_tool" in str(error), error


async def over_http(revision, mode, token, session):
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
        async with Client(streamable_http_client(f"{URL}/mcp", http_client=http), mode=mode) as client:
            await check(client, revision, session)


async def over_stdio(revision, mode, session):
    variables = {name: value for name, value in os.environ.items() if name.startswith("MAINSPRING_")}
    server = StdioServerParameters(command=os.environ["MAINSPRING"], args=["mcp"], env=variables)
    async with Client(server, mode=mode) as client:
        await check(client, revision, session)


async def main():
    session = api("POST", "/v1/runs", {"prompt": "say hello", "session": {"key": "python"}})["sessionId"]
    await over_http("2026-07-28", "auto", TOKEN, session)
    await over_http("2025-11-25", "legacy", TOKEN, session)
    await over_stdio("2026-07-28", "auto", session)
    await over_stdio("2025-11-25", "legacy", session)
    key = api("POST", "/v1/keys", {"name": "mcp"})
    await over_http("2026-07-28", "auto", key["secret"], session)
    try:
        await over_http("2026-07-28", "auto", "wrong", session)
    except Exception as error:  # The SDK reports a refused request as a group of exceptions.
        assert "Server returned an error response" in repr(error), repr(error)
        return
    raise AssertionError("a wrong token was accepted")


asyncio.run(main())
