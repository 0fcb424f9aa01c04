"""Draw quality against speed of greedy search and beam 4, with actors and without, all on the native engine in
fairseq's commands.

It draws what `fairseq-tg bench` measured, so that every system is on the same engine, in the same process, in turns:

    fairseq-tg bench --data data-bin --base base.pt --actor tg.pt --subset valid --out bench
    python benchmarks/quality_and_speed.py bench/bench.json quality_and_speed.svg

The picture is an SVG for light and dark pages: its background and all that stands on it change together.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Callable, Dict, List

STYLE = """
    .card { fill: #ffffff; stroke: #d0d7de } .grid { stroke: #d8dee4 } .axis { stroke: #57606a }
    .point, .range { stroke: #0969da; stroke-width: 2 } .base { fill: #ffffff } .tg { fill: #0969da }
    .step { stroke: #8c959f; stroke-width: 1.5; stroke-dasharray: 4 3 }
    text { fill: #1f2328; font-size: 14px } .small { font-size: 12px; fill: #57606a } .name { font-weight: bold }
    .halo { stroke: #ffffff; stroke-width: 5; stroke-linejoin: round }
    @media (prefers-color-scheme: dark) {
      .card { fill: #161b22; stroke: #3d444d } .grid { stroke: #2f353d } .axis { stroke: #9198a1 }
      .point, .range { stroke: #4493f8 } .base { fill: #161b22 } .tg { fill: #4493f8 } .step { stroke: #7d8590 }
      text { fill: #e6edf3 } .small { fill: #9198a1 } .halo { stroke: #161b22 }
    }"""
ENGINE, BASE = "fast ", " base"
MODES = {"single": "sentence by sentence", "batched": "in batches of {batch_size}"}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 410, 330, 56, 40, 56


def called(name: str) -> str:
    """A system's name in the picture: `fast greedy tg:gate` is tg:gate, `fast beam 4 base` is beam 4."""
    search, _, actor = name[len(ENGINE) :].removesuffix(BASE).partition(" tg")
    return search if not _ else f"tg{actor}" + ("" if search == "greedy" else f" + {search}")


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def panel(bench: Dict[str, Any], mode: str, left: float) -> List[str]:
    """One way to measure: a point for every system of the engine, with the range of its turns."""
    systems = {name: row for name, row in bench["systems"].items() if name.startswith(ENGINE)}
    speeds = {name: row[f"{mode}_tokens_per_second"] for name, row in systems.items()}
    scores = [row["bleu"] for row in systems.values()]
    most = 1.15 * max(speed["high"] for speed in speeds.values())
    step = next(s for power in range(1, 9) for s in (10**power, 2 * 10**power, 5 * 10**power) if most / s <= 8)
    x = scale(0, most, left + LEFT, left + WIDTH - 10)
    y = scale(min(scores) - 0.3, max(scores) + 0.3, HEIGHT - BOTTOM, TOP)
    drawn = [f'<text x="{left + LEFT}" y="26">{MODES[mode].format(**bench["settings"])}</text>']
    for tick in range(0, int(most) + 1, step):
        drawn.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        drawn.append(f'<text class="small" text-anchor="middle" x="{x(tick):.1f}" y="{HEIGHT - 38}">{tick:,}</text>')
    for half in range(int(2 * min(scores)) - 1, int(2 * max(scores)) + 2):
        if TOP <= y(half / 2) <= HEIGHT - BOTTOM:
            drawn.append(
                f'<line class="grid" x1="{x(0)}" x2="{x(most)}" y1="{y(half / 2):.1f}" y2="{y(half / 2):.1f}"/>'
            )
            drawn.append(
                f'<text class="small" text-anchor="end" x="{x(0) - 6}" y="{y(half / 2) + 4:.1f}">{half / 2}</text>'
            )
    drawn.append(f'<line class="axis" x1="{x(0)}" x2="{x(most)}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    drawn.append(f'<text class="small" text-anchor="middle" x="{x(most / 2)}" y="{HEIGHT - 16}">tokens a second</text>')
    drawn.append(f'<text class="small" text-anchor="end" x="{x(0) - 6}" y="26">BLEU</text>')
    places = {name: (x(speed["median"]), y(systems[name]["bleu"])) for name, speed in speeds.items()}
    for name, (px, py) in places.items():  # what the actor adds
        base = places.get(name.partition(" tg")[0] + BASE)
        if base and base != (px, py):
            drawn.append(f'<line class="step" x1="{base[0]:.1f}" y1="{base[1]:.1f}" x2="{px:.1f}" y2="{py:.1f}"/>')
    for name, (px, py) in places.items():
        low, high = x(speeds[name]["low"]), x(speeds[name]["high"])
        kind = "tg" if " tg" in name else "base"
        drawn.append(f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{py:.1f}" y2="{py:.1f}"/>')
        drawn.append(f'<circle class="point {kind}" cx="{px:.1f}" cy="{py:.1f}" r="5"/>')
        side, at = ("start", high + 12) if kind == "tg" and "beam" not in name else ("end", low - 12)
        for look in ("name halo", "name"):  # a line behind it does not cross it
            place = f'text-anchor="{side}" x="{at:.1f}" y="{py + 5:.1f}"'
            drawn.append(f'<text class="{look}" {place}>{called(name)}</text>')
    return drawn


def draw(bench: Dict[str, Any]) -> str:
    body = "\n".join(line for i, mode in enumerate(MODES) for line in panel(bench, mode, i * WIDTH))
    size = f'viewBox="0 0 {2 * WIDTH} {HEIGHT}" width="{2 * WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif" role="img">\n'
        f"<title>BLEU against tokens a second, all on the native engine</title>\n<style>{STYLE}\n</style>\n"
        f'<rect class="card" x="0.5" y="0.5" width="{2 * WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path, help="the bench.json of fairseq-tg bench, on a split with references")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    args = parser.parse_args()
    args.picture.write_text(draw(json.loads(args.bench.read_text())))


if __name__ == "__main__":
    main()
