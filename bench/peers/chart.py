"""The results as an SVG chart: one panel per measure, one bar per peer. Legible on light and on dark pages."""

from html import escape

from report import OURS, number

WIDTH = 860
NAME_WIDTH = 250
VALUE_WIDTH = 150
ROW = 24
BAR = 14
PANEL_HEAD = 46
PADDING = 20

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de }
  text { font: 13px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 14px; font-weight: 600 }
  .note { font-size: 12px; fill: #59636e }
  .peer { fill: #8c959f }
  .ours { fill: #0969da }
  .strong { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #151b23; stroke: #3d444d }
    text { fill: #f0f6fc }
    .note { fill: #9198a1 }
    .peer { fill: #656c76 }
    .ours { fill: #4493f8 }
  }
"""


def panels(results):
    """Returns (title, note, [(peer, value, label)]) of each panel."""
    found = []
    for prior, peers in results["turns"].items():
        bars = [(title, result["append"]["p50"], f"{number(result['append']['p50'])} ms") for title, result in peers.items()]
        found.append((f"Append a turn to {prior:,} messages", "median, less is better; mainspring over HTTP, the others in process", bars))
    if results["turns"]:
        longest = max(results["turns"])
        bars = [(title, result["bytes"], f"{result['bytes']:,.0f} B") for title, result in results["turns"][longest].items()]
        found.append((f"Bytes on disk per turn, {longest:,} prior messages", "1,000 bytes of text; less is better", bars))
    if results["steps"]:
        steps = results["steps"].items()
        one = [(title, r["clients"][1]["time"]["p50"], f"{number(r['clients'][1]['time']['p50'])} ms") for title, r in steps]
        many = [(title, r["clients"][32]["rate"]["rate"], f"{number(r['clients'][32]['rate']['rate'])} /s") for title, r in steps]
        found.append(("Accept, two durable tool steps, result: 1 client", "median, less is better", one))
        found.append(("Accept, two durable tool steps, result: 32 clients", "runs per second, more is better", many))
    if results["events"]:
        bars = [(title, r["event"]["p50"], f"{number(r['event']['p50'])} ms") for title, r in results["events"].items()]
        found.append(("Accept to first event, 1 client", "median, less is better", bars))
    return found


def svg(results):
    body, y = [], PADDING
    for title, note, bars in panels(results):
        body.append(f'<text class="title" x="{PADDING}" y="{y + 16}">{escape(title)}</text>')
        body.append(f'<text class="note" x="{PADDING}" y="{y + 33}">{escape(note)}</text>')
        y += PANEL_HEAD
        longest = max(value for _, value, _ in bars)
        for name, value, label in bars:
            body.append(bar(name, value / longest, label, y))
            y += ROW
        y += PADDING
    about = results["about"]
    note = " · ".join([about["date"], about["machine"], *(["a quick run: not to publish"] if about["quick"] else [])])
    body.append(f'<text class="note" x="{PADDING}" y="{y + 4}">{escape(note)}</text>')
    height = y + PADDING
    label = "mainspring beside its peers: " + "; ".join(title for title, _, _ in panels(results))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">\n<style>{STYLE}</style>\n'
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def bar(name, share, label, y):
    ours = name == OURS
    width = max(2, share * (WIDTH - 2 * PADDING - NAME_WIDTH - VALUE_WIDTH))
    left = PADDING + NAME_WIDTH
    weight = ' class="strong"' if ours else ""
    return (
        f'<text{weight} x="{left - 10}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{"ours" if ours else "peer"}" x="{left}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>'
        f'<text{weight} x="{left + width + 8:.1f}" y="{y + 12}">{escape(label)}</text>'
    )
