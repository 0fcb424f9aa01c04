"""An explanation as a picture: in a terminal, and as SVG."""

from __future__ import annotations

import re
import shutil
from html import escape
from typing import List, Sequence, Tuple

from fairseq_tg.compiled.explain import Actions, Explanation, Likely, Step
from fairseq_tg.errors import printable

SHADES = " ░▒▓█"
END = "end"
#: What no XML may have, not even escaped: control characters, and halves of characters
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def shown(token: str) -> str:
    """A subword as a reader sees it."""
    return END if token == "</s>" else token.replace("\u2581", "").removesuffix("@@") or "\u2423"


def strongest(actions: Actions) -> float:
    """The largest action, which is drawn as the darkest."""
    return max((value for step in actions.steps for value in step.actions), default=0.0)


def changed(step: Step) -> bool:
    """Whether the base would have gone on with another token."""
    return bool(step.base) and step.base[0][0] != step.token


def attended_words(actions: Actions, step: Step, layer: int, count: int = 3) -> List[Tuple[str, float]]:
    """The source words that a layer looked at most, and the weight of each."""
    weights = dict(step.attention[layer]) if layer < len(step.attention) else {}
    words = [("".join(map(shown, tokens)), sum(weights.get(i, 0.0) for i in ids)) for tokens, ids in _words(actions)]
    return sorted(words, key=lambda word: -word[1])[:count]


def _words(actions: Actions) -> List[Tuple[List[str], List[int]]]:
    """The source's words: their subwords, and these subwords' numbers."""
    pieces = any(token.startswith("\u2581") for token in actions.source)
    words: List[Tuple[List[str], List[int]]] = []
    for index, token in enumerate(actions.source):
        joins = not token.startswith("\u2581") if pieces else index > 0 and actions.source[index - 1].endswith("@@")
        if not words or not joins or token == "</s>":
            words.append(([], []))
        words[-1][0].append(token)
        words[-1][1].append(index)
    return words


# In a terminal


def as_terminal(explanation: Explanation, colours: bool) -> str:
    """The translations, the strip, and each token that the base would not have chosen."""
    bold, plain = "\1", "\2"  # until all else is known to be printable
    lines = [explanation.text, ""]
    width = max(map(len, explanation.translations))
    for name, found in explanation.translations.items():
        words = " ".join(f"{bold}{word}{plain}" if differs else word for word, differs in found.words)
        lines += [f"{name:<{width}}  {words}", f"{'':<{width}}  {found.milliseconds:.1f} ms, score {found.score:.3f}"]
    actions = explanation.actions
    if not actions.steps:
        return _coloured(lines, colours)  # no words were to be translated
    if not actions.places:
        return _coloured([*lines, "", "This model has no actors."], colours)
    most = strongest(actions)
    lines += ["", f"Where the actor acted: |action| / |state|, darkest is {most:.1%}", ""]
    lines += _strip(actions, most)
    lines += ["", "Where the base would have gone on otherwise:"]
    differing = [(index, step) for index, step in enumerate(actions.steps) if changed(step)]
    lines += [] if differing else ["  nowhere"]
    for index, step in differing:
        place = max(range(len(step.actions)), key=step.actions.__getitem__)
        looked = attended_words(actions, step, actions.place_layers[place])
        lines += [
            f"  {index + 1}. {shown(step.token)}: {step.actions[place]:.1%} at {actions.places[place]}"
            + (f", which looked at {_list(looked)}" if step.attention else ""),
            f"     base  {_list(step.base)}",
            f"     tg    {_list(step.tg)}",
        ]
    return _coloured(lines, colours)


def _coloured(lines: List[str], colours: bool) -> str:
    """Lines for a terminal, which their words have no control over."""
    text = printable("\n".join(lines))
    for mark, code in zip(("\\x01", "\\x02"), ("\033[1;33m", "\033[0m") if colours else ("*", "*")):
        text = text.replace(mark, code)
    return text


def _strip(actions: Actions, most: float) -> List[str]:
    """A line of tokens and a line for each place under it, as often as the terminal's width needs."""
    label = max(map(len, actions.places))
    room = max(20, shutil.get_terminal_size().columns - label - 2)
    lines: List[str] = []
    block: List[Step] = []
    for step in [*actions.steps, None]:
        wide = sum(len(shown(item.token)) + 1 for item in block)
        if step is None or wide + len(shown(step.token)) > room:
            lines += [""] if lines else []
            lines.append(" " * (label + 2) + " ".join(shown(item.token) for item in block))
            for place, name in enumerate(actions.places):
                cells = " ".join(_shade(item.actions[place], most) * len(shown(item.token)) for item in block)
                lines.append(f"{name:<{label}}  {cells}".rstrip())
            block = []
        if step is not None:
            block.append(step)
    return lines


def _shade(value: float, most: float) -> str:
    return SHADES[min(len(SHADES) - 1, int(value / most * len(SHADES)))] if most else SHADES[0]


def _list(items: Likely) -> str:
    return ", ".join(f"{shown(token)} {value:.0%}" for token, value in items)


# As SVG

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
STYLE = f"""
text {{ font: 14px {FONT}; fill: #1d1f21; }} .soft {{ fill: #5a5e63; font-size: 12px; }} .mark {{ fill: #ffe3a3; }}
.paper {{ fill: #fff; }} .cell {{ fill: #c2410c; }} .empty {{ fill: #f1efea; }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #ecebe8; }} .soft {{ fill: #a5a9ae; }} .mark {{ fill: #4d3a0c; }} .paper {{ fill: #1c1e21; }}
.cell {{ fill: #ff8a4c; }} .empty {{ fill: #26292d; }} }}"""
CELL, GAP, LINE, MARGIN, WIDTH = 18, 2, 24, 16, 960


def as_svg(explanation: Explanation) -> str:
    """The translations and the strip, whose boxes have the details as their titles."""
    actions, most = explanation.actions, strongest(explanation.actions)
    body: List[str] = []
    y = _svg_text(body, MARGIN, MARGIN + 14, [(word, False) for word in explanation.text.split()]) + LINE
    for name, found in explanation.translations.items():
        body.append(f'<text class="soft" x="{MARGIN}" y="{y}">{escape(name)}, score {found.score:.3f}</text>')
        y = _svg_text(body, MARGIN + 170, y, found.words) + LINE
    if actions.places:
        note = f"|action| / |state| at {actions.places[0]} (top) to {actions.places[-1]}; the darkest is {most:.1%}"
        body.append(f'<text class="soft" x="{MARGIN}" y="{y + 8}">{escape(note)}</text>')
        y = _svg_strip(body, actions, most, y + 20)
    height = y + MARGIN
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><title>{escape(explanation.text)}</title><style>{STYLE}</style>'
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>{"".join(body)}</svg>\n'
    )
    return NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), svg)


def _advance(text: str) -> int:
    """About how wide a text is: no font is measured."""
    return round(7.6 * len(text)) + 1


def _svg_text(body: List[str], x: int, y: int, words: Sequence[Tuple[str, bool]]) -> int:
    """Words in lines, those that differ on a ground of their own; returns where the last line is."""
    left = x
    for word, differs in words:
        width = _advance(word)
        if x > left and x + width > WIDTH - MARGIN:
            x, y = left, y + LINE - 4
        if differs:
            body.append(f'<rect class="mark" x="{x - 2}" y="{y - 14}" width="{width + 4}" height="19" rx="3"/>')
        body.append(f'<text x="{x}" y="{y}" textLength="{width}" lengthAdjust="spacingAndGlyphs">{escape(word)}</text>')
        x += width + 6
    return y


def _svg_strip(body: List[str], actions: Actions, most: float, y: int) -> int:
    x = MARGIN
    height = LINE + len(actions.places) * (CELL + GAP) + 12
    for step in actions.steps:
        width = max(_advance(shown(step.token)) + 8, 28)
        if x + width > WIDTH - MARGIN:
            x, y = MARGIN, y + height
        if changed(step):
            body.append(f'<rect class="mark" x="{x}" y="{y + 2}" width="{width}" height="19" rx="3"/>')
        body.append(f'<text x="{x + width / 2:g}" y="{y + 16}" text-anchor="middle">{escape(shown(step.token))}</text>')
        for place, value in enumerate(step.actions):
            top = y + LINE + place * (CELL + GAP)
            box = f'x="{x}" y="{top}" width="{width}" height="{CELL}" rx="3"'
            title = escape(_details(actions, step, place))
            opacity = value / most if most else 0.0
            body.append(
                f'<g><title>{title}</title><rect class="empty" {box}/>'
                f'<rect class="cell" {box} fill-opacity="{opacity:.3f}"/></g>'
            )
        x += width + GAP
    return y + height


def _details(actions: Actions, step: Step, place: int) -> str:
    looked = attended_words(actions, step, actions.place_layers[place])
    return (
        f"{shown(step.token)}, {actions.places[place]}: {step.actions[place]:.1%}\n"
        f"attended to: {_list(looked)}\nbase: {_list(step.base)}\ntg: {_list(step.tg)}"
    )
