"""The graph that `langgraph dev` serves: one node that answers with the text of the prompt."""

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


def answer(state):
    return {"messages": [AIMessage(state["messages"][-1].content.removeprefix("say "))]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
