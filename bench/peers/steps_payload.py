"""The work of the durable steps, the same for every server: two tool calls that return a text each, and a result."""

import os

STEP_BYTES = 200


def step_texts():
    """Returns the texts of the two steps of a run, different for each run."""
    return os.urandom(STEP_BYTES // 2).hex(), os.urandom(STEP_BYTES // 2).hex()
