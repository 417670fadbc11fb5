"""The results as Markdown. A cell of a peer says whether it is ahead of mainspring."""

OURS = "mainspring"
EVEN = 0.05
# Fewer samples have no 99th percentile: the cell shows the longest time and says so.
P99_SAMPLES = 100


def number(value):
    """Returns three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def verdict(theirs, ours, more_is_better=False):
    """Says how a peer stands beside mainspring: ahead, even, or by how much it is behind."""
    ratio = ours / theirs if more_is_better else theirs / ours
    if ratio > 1 + EVEN:
        return f"{number(ratio)} times ours" if not more_is_better else f"ours is {number(ratio)} times that"
    if ratio >= 1 - EVEN:
        return "even"
    return f"**ahead**: {number(ratio)} of ours" if not more_is_better else f"**ahead**: {number(1 / ratio)} times ours"


def time_cell(entry, ours, is_ours):
    if entry is None:
        return "–"
    cell = f"{number(entry['p50'])} / {number(entry['p99'])} ms"
    if entry["n"] < P99_SAMPLES:
        cell += f" (longest of {entry['n']})"
    return cell if is_ours or ours is None else f"{cell}<br>{verdict(entry['p50'], ours['p50'])}"


def bytes_cell(value, ours, is_ours):
    cell = f"{value:,.0f} B"
    return cell if is_ours else f"{cell}<br>{verdict(value, ours)}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def name_cell(title, facts):
    return f"**{title}** {facts['version']}"


def settings_cell(facts, syncs, unit):
    parts = [facts["durability"]]
    if syncs is not None:
        parts.append(f"{number(syncs)} syncs per {unit} (strace)")
    parts.append(f"batched: {facts['batched']}" if "batched" in facts else "nothing batched")
    return "; ".join(parts)


def turns_section(turns):
    """`turns` maps a number of prior messages to the results of each peer."""
    longest = max(turns)
    header = ["peer", "durability", "a turn is", *(f"{prior:,} prior, p50 / p99" for prior in turns),
              *(f"bytes per turn, {prior:,} prior" for prior in turns),
              f"load all of {longest:,}, p50 / p99", "load the last 50, p50 / p99"]
    titles = list(dict.fromkeys(title for results in turns.values() for title in results))
    rows = []
    for title in titles:
        is_ours = title == OURS
        own = {prior: results[title] for prior, results in turns.items() if title in results}
        newest = own[max(own)]
        row = [name_cell(title, newest["facts"]), settings_cell(newest["facts"], newest["syncs"], "turn"), newest["facts"]["turn"]]
        for prior, results in turns.items():
            row.append(time_cell(own[prior]["append"], results[OURS]["append"], is_ours) if prior in own else "–")
        for prior, results in turns.items():
            row.append(bytes_cell(own[prior]["bytes"], results[OURS]["bytes"], is_ours) if prior in own else "–")
        for what in ("load", "tail"):
            row.append(time_cell(own[longest][what], turns[longest][OURS][what], is_ours) if longest in own else "–")
        rows.append(row)
    return table(header, rows)


def steps_section(steps):
    header = ["server", "durability", "a run is", "1 client, p50 / p99", "32 clients, runs per second", "32 clients, p50 / p99",
              "processor per run, 1 / 32 clients", "load generator, 32 clients"]
    rows = []
    for title, result in steps.items():
        is_ours = title == OURS
        one, many = result["clients"][1], result["clients"][32]
        ours_one, ours_many = steps[OURS]["clients"][1], steps[OURS]["clients"][32]
        rate = f"{number(many['rate']['rate'])} /s"
        if not is_ours:
            rate += f"<br>{verdict(many['rate']['rate'], ours_many['rate']['rate'], more_is_better=True)}"
        rows.append([
            name_cell(title, result["facts"]), settings_cell(result["facts"], result["syncs"], "run"), result["facts"]["run"],
            time_cell(one["time"], ours_one["time"], is_ours), rate, time_cell(many["time"], ours_many["time"], is_ours),
            f"{number(one['cpu'])} / {number(many['cpu'])} ms", f"{many['generator']:.0%} of a core",
        ])
    return table(header, rows)


def events_section(events):
    header = ["server", "durability", "a run is", "first event, p50 / p99", "first text, p50 / p99"]
    rows = []
    for title, result in events.items():
        is_ours = title == OURS
        rows.append([
            name_cell(title, result["facts"]), settings_cell(result["facts"], None, "run"), result["facts"]["run"],
            time_cell(result["event"], events[OURS]["event"], is_ours), time_cell(result["text"], events[OURS]["text"], is_ours),
        ])
    return table(header, rows)


def spread_section(results):
    """The lowest and the highest median of the rounds, by which a reader can judge the noise."""
    rows = []
    for prior, peers in results["turns"].items():
        for title, result in peers.items():
            rows.append([f"turn, {prior:,} prior", title, *spread(result["append"])])
    for title, result in results["steps"].items():
        for clients, entry in result["clients"].items():
            rows.append([f"two steps, {clients} clients" if clients > 1 else "two steps, 1 client", title, *spread(entry["time"])])
    for title, result in results["events"].items():
        rows.append(["first event", title, *spread(result["event"])])
    return table(["measure", "peer", "medians of the rounds", "samples"], rows)


def spread(entry):
    return f"{number(entry['low'])} to {number(entry['high'])} ms", f"{entry['n']:,}"


def markdown(results):
    about = results["about"]
    parts = [
        f"{about['date']}. {about['machine']}. {about['rounds']} alternating rounds, all on one disk: an append of 4 KiB and an fdatasync "
        f"take {about['sync_before']} ms (p50 / p99) before and {about['sync_after']} ms after the run. p50 is the median of the rounds' "
        "medians, p99 that of all samples. Written by `bench/peers/run`; its README says what is measured.",
    ]
    if about["quick"]:
        parts.append("**A quick run: too few samples to publish.**")
    if results["turns"]:
        parts += ["### Append a turn, load a conversation",
                  "mainspring is a server that is asked over HTTP; the others are libraries in the process that calls them.",
                  turns_section(results["turns"])]
    if results["steps"]:
        parts += ["### Accept, two durable tool steps, result", steps_section(results["steps"]),
                  "All servers are up during the run. Idle they take " + ", ".join(
                      f"{title} {result['idle']:.0%}" for title, result in results["steps"].items()) + " of a core."]
    if results["events"]:
        parts += ["### Accept to first event, 1 client", events_section(results["events"])]
    generator = about["generator"]
    parts += [
        f"The load generator is one Python process, the same for all servers. A server that does nothing answers it "
        f"{generator['rate']:,.0f} requests per second with 32 clients, in {number(generator['p50'])} ms with one; a request costs it "
        f"{generator['cpu']:,.0f} µs of processor time, which it takes from the cores that the servers use.",
        "<details><summary>Spread</summary>\n\n" + spread_section(results) + "\n</details>",
    ]
    parts += [f"Skipped: {title} ({reason})." for title, reason in results["skipped"]]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
