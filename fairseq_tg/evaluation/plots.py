"""Figures, as PNG images. Without matplotlib there are none."""

from __future__ import annotations

import logging
import os
from io import BytesIO
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

from fairseq_tg.evaluation.measure import Spread
from fairseq_tg.evaluation.norms import NAMES, NormsAt

#: What searches in a kind of system, and its colour
ENGINES = {"fairseq": "fairseq", "fast": "native", "compiled": "native", "ctranslate2": "CTranslate2"}
COLORS = {"fairseq": "tab:gray", "native": "tab:green", "CTranslate2": "tab:orange"}


class Point(NamedTuple):
    """A system in the plane of quality and speed."""

    name: str
    kind: str
    speed: Spread
    score: float


def load_pyplot() -> Optional[Any]:
    """matplotlib, drawing to files; None if it is not installed, or a file of its settings cannot be read."""
    os.environ["MPLBACKEND"] = "Agg"  # in a notebook it names a module which only the notebook has
    try:
        import matplotlib
    except (ImportError, ValueError):
        return None
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of every font it looks at
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def quality_and_speed(points: Sequence[Point], metric: str) -> Optional[bytes]:
    """Every system's score against its tokens a second: numbered, because names would cover each other.

    A colour for each engine; tg models are squares, and what searches with a beam is hollow.
    """

    def draw(axes: Any) -> None:
        from matplotlib.ticker import LogLocator

        for number, (name, kind, speed, score) in enumerate(points, start=1):
            around = [[speed.median - speed.low], [speed.high - speed.median]]
            shape, engine = "s" if "tg" in name else "o", ENGINES[kind]
            told = engine.lower() in name.lower() or kind in name.lower()
            label = f"{number}  {name}" if told else f"{number}  {name} ({engine})"
            fill = "none" if "beam" in name else COLORS[engine]
            axes.errorbar(
                speed.median, score, xerr=around, fmt=shape, color=COLORS[engine], markerfacecolor=fill, label=label
            )
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

    return _picture(draw, (10, 5)) if points else None


def norms_over_training(norms: Sequence[NormsAt]) -> Optional[bytes]:
    """The paper's figure: the norms of action, context and state on the validation set."""

    def draw(axes: Any) -> None:
        for name in NAMES:
            axes.plot([at.updates for at in norms], [getattr(at, name) for at in norms], "o-", label=name)
        axes.set_xlabel("updates")
        axes.set_ylabel("mean L2 norm, validation set")
        axes.set_ylim(bottom=0)

    return _picture(draw) if norms else None


def dots(values: Sequence[Tuple[str, float]], baseline: float, label: str, title: str) -> Optional[bytes]:
    """A dot for each setting (bars would need an axis from zero, which hides differences); the baseline as a line."""

    def draw(axes: Any) -> None:
        axes.plot(range(len(values)), [value for _, value in values], "o", color="tab:green")
        axes.set_xticks(range(len(values)), [name for name, _ in values], rotation=20, ha="right")
        for at in enumerate(value for _, value in values):
            axes.annotate(f"{at[1]:.2f}", at, textcoords="offset points", xytext=(0, 5), ha="center", fontsize=8)
        axes.axhline(baseline, color="tab:gray", linestyle="--", label="greedy")
        axes.margins(x=0.1, y=0.2)
        axes.set_ylabel(label)
        axes.set_title(title)

    return _picture(draw) if values else None


def _picture(draw: Callable[[Any], None], size: Tuple[int, int] = (8, 4)) -> Optional[bytes]:
    pyplot = load_pyplot()
    if pyplot is None:
        return None
    with pyplot.rc_context():
        pyplot.rcdefaults()  # a file of settings in the current directory may ask for anything: for LaTeX, say
        pyplot.rcParams["text.parse_math"] = False  # a name with dollars is no formula
        figure, axes = pyplot.subplots(figsize=size)
        draw(axes)
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)  # where it covers nothing
        figure.tight_layout()
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
        pyplot.close(figure)
    return buffer.getvalue()
