"""LangGraph: a graph of one node that answers, with `SqliteSaver` as its checkpointer.

The option `channel` selects how the messages are kept: `messages` is `MessagesState`, the documented default, which
stores the whole list in each checkpoint; `delta` is `DeltaChannel` (beta), which stores the writes and a snapshot now and
then.
"""

import sqlite3
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from conversations import Conversations, serve, sqlite_durability, used_bytes
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from typing_extensions import TypedDict


class DeltaState(TypedDict):
    # LangGraph's own reducer for messages in such a channel; the public `add_messages` would copy the list for each write.
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer)]


class LangGraph(Conversations):
    async def open(self):
        self.path = Path(self.folder) / "checkpoints.sqlite3"
        self.connection = sqlite3.connect(self.path, check_same_thread=False)
        builder = StateGraph(DeltaState if self.options["channel"] == "delta" else MessagesState)
        builder.add_node("answer", lambda state: {"messages": [AIMessage(self.answer)]})
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        self.graph = builder.compile(checkpointer=SqliteSaver(self.connection))

    async def close(self):
        self.connection.close()

    async def facts(self):
        self.graph.get_state(config("facts"))
        kept = "`DeltaChannel` (beta)" if self.options["channel"] == "delta" else "`MessagesState`"
        return {
            "version": f"langgraph {version('langgraph')}, checkpoint-sqlite {version('langgraph-checkpoint-sqlite')}",
            "durability": sqlite_durability(self.connection) + "; the graph's default durability `async`",
            "turn": f"`invoke` of a graph of one node, messages in {kept}",
        }

    async def seed(self, session, messages):
        kinds = {"user": HumanMessage, "assistant": AIMessage}
        self.graph.update_state(config(session), {"messages": [kinds[role](text) for role, text in messages]}, as_node="answer")

    async def turn(self, session, user, answer):
        self.answer = answer
        self.graph.invoke({"messages": [HumanMessage(user)]}, config(session))

    async def load(self, session):
        return self.graph.get_state(config(session)).values["messages"]

    async def tail(self, session, count):
        return None

    def texts(self, loaded):
        return [message.content for message in loaded]

    async def size(self):
        return used_bytes(self.path)


def config(session):
    return {"configurable": {"thread_id": session}}


if __name__ == "__main__":
    serve(LangGraph)
