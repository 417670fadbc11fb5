"""Members that are measured side by side."""

import asyncio

from http11 import ResponseError
from measure import rotated
from processes import StartError


class PeerError(Exception):
    """A peer that failed; the message says why."""


class Contest:
    """The members of a measurement. One that fails is reported and skipped from then on; the others go on."""

    def __init__(self, members, what, skip):
        self.members = list(members)
        self.what = what
        self.skip = skip

    def each(self, step, first=0):
        """Does a step with each member, starting with another one for each `first`."""
        for member in rotated(self.members, first):
            try:
                step(member)
            except (PeerError, StartError, ResponseError, OSError, asyncio.TimeoutError) as error:
                self.members.remove(member)
                self.skip(member.title, f"{self.what}: {str(error) or type(error).__name__}")
                member.stop()

    def stop(self):
        for member in self.members:
            member.stop()
