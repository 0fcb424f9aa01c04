"""How far a build is, from its directory alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import List

from fairseq_tg.corpus.blocks import Tally
from fairseq_tg.corpus.build import describe
from fairseq_tg.corpus.directory import MANIFEST, CorpusDirectory, building
from fairseq_tg.errors import UserError, printable


def status(path: str) -> str:
    """A description of a corpus: complete, with its files checked; or under way, with what is done, rate and scores."""
    directory = CorpusDirectory(path)
    manifest = directory.manifest
    if manifest is None:
        raise UserError(f"'{path}' is no k-best corpus: it has no {MANIFEST}")
    if manifest["status"] == "complete":
        directory.check_files()
        try:
            return describe(Path(path), manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"'{path}/{MANIFEST}' is damaged ({error!r}): build the corpus anew") from None
    recipe, tally, times = building(path, manifest), Tally(), []
    numbers = directory.blocks.numbers()
    for number in numbers:
        tally.add_tally(directory.blocks.summary(number)["tally"])
        times.append(os.path.getmtime(directory.blocks.directory / f"{number:06d}.json"))
    size, total = recipe["block_size"], recipe["sentences"]
    done = sum(min(size, total - number * size) for number in numbers)
    means = tally.means()
    lines = [
        f"{path}: building, {done:,} of {total:,} source sentences done ({done / max(total, 1):.1%})",
        _rate(times, done, total),
        "skipped: " + (", ".join(f"{count} {reason}" for reason, count in sorted(tally.skipped.items())) or "none"),
        f"mean {recipe['objective']}: {means['rank 1']:.2f} at rank 1, {means['chosen']:.2f} chosen; "
        f"another than rank 1 in {means['oracle not rank 1']:.1%}",
        f"begun with: {manifest.get('command', 'a command that is not recorded')}",
    ]
    return printable("\n".join(lines))


def _rate(times: List[float], done: int, total: int) -> str:
    """Sentences a second over the blocks since the first, and when the rest will be done at that rate."""
    elapsed = max(times) - min(times) if len(times) > 1 else 0.0
    if not elapsed:
        return "rate not known yet"
    rate = done * (len(times) - 1) / len(times) / elapsed
    left = time.strftime("%H:%M:%S", time.gmtime((total - done) / rate % 86400))
    days = int((total - done) / rate // 86400)
    idle = max(0.0, time.time() - max(times))  # of another machine's clock
    return f"{rate:.1f} sentences/s, {f'{days} days ' if days else ''}{left} left, last block {idle:.0f} s ago"
