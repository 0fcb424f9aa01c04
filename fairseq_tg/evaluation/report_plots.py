"""The report's figures."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from fairseq_tg.evaluation.norms import NAMES, NormsAt
from fairseq_tg.evaluation.plots import legend_beside, load_pyplot, to_png


def norms_over_training(norms: List[NormsAt]) -> Optional[bytes]:
    """The paper's figure: the norms of action, context and state on the validation set."""
    pyplot = load_pyplot()
    if pyplot is None or not norms:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for name in NAMES:
        axes.plot([at.updates for at in norms], [getattr(at, name) for at in norms], "o-", label=name)
    axes.set_xlabel("updates")
    axes.set_ylabel("mean L2 norm, validation set")
    axes.set_ylim(bottom=0)
    legend_beside(axes)
    axes.grid(alpha=0.3)
    return to_png(pyplot, figure)


def dots(values: Sequence[Tuple[str, float]], baseline: float, label: str, title: str) -> Optional[bytes]:
    """A dot for each setting (bars would need an axis from zero, which hides differences); the baseline as a line."""
    pyplot = load_pyplot()
    if pyplot is None or not values:
        return None
    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.plot(range(len(values)), [value for _, value in values], "o", color="tab:green")
    axes.set_xticks(range(len(values)), [name for name, _ in values], rotation=20, ha="right")
    for i, (_, value) in enumerate(values):
        axes.annotate(f"{value:.2f}", (i, value), textcoords="offset points", xytext=(0, 5), ha="center", fontsize=8)
    axes.axhline(baseline, color="tab:gray", linestyle="--", label="greedy")
    legend_beside(axes)
    axes.margins(x=0.1, y=0.2)
    axes.grid(axis="y", alpha=0.3)
    axes.set_ylabel(label)
    axes.set_title(title)
    return to_png(pyplot, figure)
