"""Figures, as PNG images. Without matplotlib there are none."""

from __future__ import annotations

import logging
from io import BytesIO
from typing import Any, NamedTuple, Optional, Sequence

from fairseq_tg.evaluation.measure import Spread


class Point(NamedTuple):
    """A system in the plane of quality and speed."""

    name: str
    speed: Spread
    score: float
    color: str


def load_pyplot() -> Optional[Any]:
    """matplotlib, drawing to files; None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of every font it looks at
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def quality_and_speed(points: Sequence[Point], metric: str) -> Optional[bytes]:
    """Every system's score against its tokens a second: numbered, because names would cover each other."""
    pyplot = load_pyplot()
    if pyplot is None or not points:
        return None
    from matplotlib.ticker import LogLocator

    figure, axes = pyplot.subplots(figsize=(10, 5))
    for number, (name, speed, score, color) in enumerate(points, start=1):
        around = [[speed.median - speed.low], [speed.high - speed.median]]
        axes.errorbar(speed.median, score, xerr=around, fmt="o", color=color, label=f"{number}  {name}")
        above = 5 if number % 2 else -12  # neighbours keep apart
        axes.annotate(str(number), (speed.median, score), textcoords="offset points", xytext=(4, above), fontsize=8)
    axes.set_xscale("log")
    wide = max(point.speed.high for point in points) > 5 * min(point.speed.low for point in points)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else range(1, 10)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.1, y=0.1)
    axes.set_xlabel("tokens a second, sentence by sentence")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    legend_beside(axes)
    return to_png(pyplot, figure)


def legend_beside(axes: Any) -> None:
    """Outside, where it covers nothing."""
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)


def to_png(pyplot: Any, figure: Any) -> bytes:
    figure.tight_layout()
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    pyplot.close(figure)
    return buffer.getvalue()
