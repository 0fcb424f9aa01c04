"""What a report says in words: what the user got, how sure that is, and what to try if it is little."""

from __future__ import annotations

from typing import List

from fairseq_tg.evaluation.shares import DOUBTFUL, Difference, Share

#: A share below this is little
LITTLE = 0.8
#: Lengths to the references that cost BLEU: by its brevity penalty, and by words that match nothing
SHORT, LONG = 0.97, 1.03


def verdict(name: str, share: Share) -> str:
    """Whether a system is as good as the beam, as far as the interval says so."""
    if share.value is None or share.low is None or share.high is None or share.doubtful > DOUBTFUL:
        return f"how {name} compares with beam search cannot be said"
    if share.low > 1:
        return f"{name} is better than beam 4: the whole interval is above 1"
    if share.high < 0:
        return f"{name} is worse than greedy search: the whole interval is below 0"
    if share.high < 1:
        return f"{name} is not as good as beam 4: the whole interval is below 1"
    if share.low <= 0:
        return f"these sentences are too few to tell {name} from greedy search, or from beam 4"
    return f"{name} and beam 4 cannot be told apart on these sentences: the interval has 1 in it"


def compare(name: str, other: str, difference: Difference) -> str:
    """Whether a system is as good as another one."""
    said = f"{name} against {other}: {difference} BLEU"
    if difference.low is None or difference.high is None:
        return f"{said}, of too few sentences"
    if difference.low > 0:
        return f"{said}: it is better, as the whole interval is above 0"
    if difference.high < 0:
        return f"{said}: it is worse, as the whole interval is below 0"
    return f"{said}: they cannot be told apart on these sentences"


def advise(share: Share, length: float) -> List[str]:
    """What to try where little was recovered; nothing where it was not.

    length: of the system's translations, to the references.
    """
    if share.value is None or share.value >= LITTLE:
        return []
    tries = []
    if length < SHORT:
        tries.append(f"translations are short ({length:.3f} of the references): --objective sbleu+2, if it was another")
    elif length > LONG:
        tries.append(f"translations are long ({length:.3f} of the references): --objective sbleu, if it was another")
    tries.append("--rounds 3: lists of the model with its actors once more, and training on from there")
    tries.append("more text of the kind to be translated, without references: --selection mbr (docs/corpus.md)")
    return ["to try: " + "; ".join(tries)]
