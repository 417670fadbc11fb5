"""Numbers of alternating rounds, and the cost of a sync of the disk."""

import os
import statistics
import time

PROBE_WRITES = 200


def percentile(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


class Rounds:
    """The times of one peer in all rounds of a measure."""

    def __init__(self):
        self.rounds = []

    def add(self, nanoseconds):
        if nanoseconds:
            self.rounds.append(sorted(nanoseconds))

    def summary(self):
        """Returns milliseconds: the median of the rounds' medians with the lowest and the highest, and the p99 of all times.

        With fewer than 100 times the p99 is the longest one.
        """
        if not self.rounds:
            return None
        medians = [percentile(times, 0.5) / 1e6 for times in self.rounds]
        every = sorted(time for times in self.rounds for time in times)
        return {
            "p50": statistics.median(medians), "low": min(medians), "high": max(medians),
            "p99": percentile(every, 0.99) / 1e6, "n": len(every),
        }


def rate_summary(rates):
    """Returns the median of the rounds' rates with the lowest and the highest."""
    return {"rate": statistics.median(rates), "low": min(rates), "high": max(rates)}


def sync_cost(folder):
    """Returns the milliseconds of an append of 4 KiB and an fdatasync in the folder: p50 and p99."""
    path = os.path.join(folder, "sync-probe")
    times = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(PROBE_WRITES):
            start = time.perf_counter_ns()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter_ns() - start)
    os.remove(path)
    times.sort()
    return percentile(times, 0.5) / 1e6, percentile(times, 0.99) / 1e6


def rotated(items, by):
    """Returns the items in an order that starts with another one in each round."""
    by %= len(items) or 1
    return items[by:] + items[:by]
