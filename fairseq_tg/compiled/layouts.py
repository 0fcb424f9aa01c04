"""The layouts of all families, and a layout from what a file says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Type

from fairseq_tg.compiled.fconv_layout import FConvLayout
from fairseq_tg.compiled.layout import Layout
from fairseq_tg.compiled.lstm_layout import LSTMLayout
from fairseq_tg.compiled.transformer_layout import TransformerLayout

LAYOUTS: Dict[str, Type[Layout]] = {layout.family: layout for layout in (TransformerLayout, LSTMLayout, FConvLayout)}
#: Which files do not name: those of the first version were all of it
FIRST_FAMILY = "transformer"


def layout_from_json(raw: Dict[str, Any]) -> Layout:
    """The layout that `layout_to_json` wrote; ValueError or TypeError if it makes no sense."""
    values = dict(raw)
    family = values.pop("family", FIRST_FAMILY)
    if family not in LAYOUTS:
        raise ValueError(f"a model of the family {family!r}")
    return LAYOUTS[family](**values)


def layout_to_json(layout: Layout) -> Dict[str, Any]:
    named = {} if layout.family == FIRST_FAMILY else {"family": layout.family}
    return {**asdict(layout), **named}
