"""The report as one HTML page that needs no other file."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING, Dict, List, Sequence

from fairseq_tg.evaluation.examples import Example, differing_words

if TYPE_CHECKING:
    from fairseq_tg.evaluation.report import Report

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr.tg td { background: #eef7ee; }
.example td { text-align: left; } mark { background: #ffe9a8; } .note { color: #666; font-size: .9em; }
img { max-width: 100%; }
"""


def render(report: Report, figures: Dict[str, bytes]) -> str:
    from fairseq_tg.evaluation.report import likelihood_table, quality_table, share_lines

    body: List[str] = ["<h1>Trainable greedy decoding: report</h1>"]
    body.append(
        f"<p>{escape(report.options.subset)}: {report.sentences:,} sentences; base "
        f"<code>{report.base_fingerprint[:16]}</code></p>"
    )
    body += [f"<p><b>{escape(line)}</b></p>" for line in share_lines(report)]
    body += ["<h2>Quality and speed</h2>", _table(*quality_table(report))]
    body.append(
        '<p class="note">length: of the references\' (below 1, BLEU has a penalty). tok/s: sentence by sentence; '
        'greedy and tg on the fast path, beam search and "fairseq greedy" by fairseq. * and **: BLEU differs from '
        "greedy's, and from beam 4's, at p &lt; 0.05 (paired bootstrap, 1000 "
        "samples).</p>"
    )
    if report.scores is not None:
        signatures = "<br>".join(f"{escape(n)}: <code>{escape(s)}</code>" for n, s in report.scores.signatures.items())
        body.append(f'<p class="note">{signatures}</p>')
    body.append(_figure(figures, "quality_and_speed"))
    if report.likelihoods:
        body += ["<h2>Word-level likelihood</h2>", _table(*likelihood_table(report))]
        body.append('<p class="note">P<sub>w</sub> in percent: the mean probability of a token, averaged by sentence, '
                    "of translations (columns) under models (rows).</p>")  # fmt: skip
    norms = [name for name in figures if name.startswith("norms-")]
    if norms:
        body += ["<h2>Norms over training</h2>", *(_figure(figures, name) for name in norms)]
    for title, examples in (("Where it helped most", report.helped), ("Where it hurt most", report.hurt)):
        if examples:
            body += [f"<h2>{title}</h2>", '<p class="note">By the difference in sentence BLEU to greedy; words that '
                     "differ from greedy's are marked.</p>"]  # fmt: skip
            body += [_example(example) for example in examples]
    body += [f'<p class="note">{escape(note)}</p>' for note in report.notes]
    made = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    body.append(f'<p class="note">{escape(made)}; computed in {report.seconds:.0f} s.</p>')
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Trainable greedy decoding: report</title>\n'
        f"<style>{STYLE}</style>\n" + "\n".join(body) + "\n</html>\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = []
    for row in rows:
        kind = ' class="tg"' if row[0].startswith("tg") else ""
        lines.append(f"<tr{kind}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _figure(figures: Dict[str, bytes], name: str) -> str:
    if name not in figures:
        return ""
    return f'<p><img alt="{escape(name)}" src="data:image/png;base64,{b64encode(figures[name]).decode()}"></p>'


def _example(example: Example) -> str:
    greedy = example.outputs["greedy"]
    rows = [("source", escape(example.source)), ("reference", escape(example.reference))]
    for name, text in example.outputs.items():
        words = (
            f"<mark>{escape(word)}</mark>" if differs and name != "greedy" else escape(word)
            for word, differs in differing_words(text, greedy)
        )
        rows.append((name, " ".join(words)))
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{text}</td></tr>" for name, text in rows)
    return f'<p>Sentence {example.index}, {example.gain:+.1f}</p><table class="example">{cells}</table>'
