"""The current package against the server: its people, their threads and their tools. For check.py, flows.py and faults.py."""

from roboto import RobotoClient, RobotoConfig
from roboto.ai.agent_thread import AgentThread, ClientToolResult, ClientToolResultStatus, client_tool
from roboto.ai.core.record import AgentThreadStatus, ClientToolSpec

from server import URL, Server, key, until

SERVER = Server()
ADA_KEY, BOB_KEY, EVE_KEY = key("ada", "acme"), key("bob", "acme"), key("eve")


def client_of(secret, url=URL):
    return RobotoClient.from_config(RobotoConfig(api_key=secret, endpoint=url))


ADA, BOB, EVE = client_of(ADA_KEY), client_of(BOB_KEY), client_of(EVE_KEY)


def start(*args, client=ADA, **kwargs):
    return AgentThread.start(*args, roboto_client=client, **kwargs)


def again(thread, client=ADA, **kwargs):
    return AgentThread.from_id(thread.thread_id, roboto_client=client, **kwargs)


def text(message):
    return "".join(content.text for content in message.content if hasattr(content, "text")).strip()


def texts(thread):
    return [text(message) for message in thread.messages]


def raises(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


@client_tool
def client_remember(fact: str) -> str:
    """Remembers a fact."""
    return f"kept {fact}"


def spec(name):
    return ClientToolSpec(name=name, description="A tool.", input_schema={"type": "object", "properties": {}})


def waiting(script, *names):
    thread = start(script, client_tools=[spec(name) for name in names])
    until(lambda: thread.refresh().status == AgentThreadStatus.CLIENT_TOOL_TURN, "the thread waits for tools")
    uses = {block.tool_name: block for message in thread.messages for block in message.content
            if hasattr(block, "input")}
    return thread, uses


def result_of(use, status=ClientToolResultStatus.SUCCESS, output=None):
    return ClientToolResult(tool_use_id=use.tool_use_id, tool_name=use.tool_name, runtime_ms=7, status=status,
                            output=output)
