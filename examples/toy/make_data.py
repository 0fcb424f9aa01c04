"""Write a small seeded parallel corpus: a toy language with reordering, agreement and ambiguous words.

Source sentences are subject-object-verb, target sentences subject-verb-object. A target noun has a gender that its
article and adjective agree with, so an article chosen too early can be wrong; an ambiguous source noun is told by the
verb, which the source has last and the target before the object. Verbs and plain nouns can be said in several ways: the
likeliest first word is that of five phrases, each of which is less likely than the one way that starts otherwise.
That is where greedy search goes wrong and beam search does not.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import List, Tuple

#: How often a word that can be said in several ways is said in the fixed one, and the endings of the others
FIXED, ENDINGS = 0.4, "abcde"

#: source noun -> target noun and its gender
NOUNS = {f"no{i}": (f"nam{i}", "m" if i % 2 else "f") for i in range(14)}
#: ambiguous source noun -> its two readings; verbs with an even number take the first
AMBIGUOUS = {f"am{i}": ((f"first{i}", "m"), (f"second{i}", "f")) for i in range(8)}
ADJECTIVES = {f"ad{i}": f"tall{i}" for i in range(10)}
VERBS = {f"ve{i}": f"does{i}" for i in range(12)}
ADVERBS = {f"av{i}": f"often{i}" for i in range(6)}


def said(generator: random.Random, word: str, start: str) -> List[str]:
    """A target word as two words: the fixed way, or `start` and one of several endings."""
    if generator.random() < FIXED:
        return [word, "so"]
    return [start, word + generator.choice(ENDINGS)]


def noun_phrase(generator: random.Random, noun: Tuple[str, Tuple[str, str]]) -> Tuple[List[str], List[str]]:
    """A noun with an article and up to two adjectives, in both languages."""
    word, (translation, gender) = noun
    adjectives = generator.sample(sorted(ADJECTIVES), generator.choice([0, 0, 1, 1, 2]))
    source = ["da", *adjectives, word]
    # the target's adjectives follow in the other order, and agree
    agreeing = [f"{ADJECTIVES[adjective]}-{gender}" for adjective in reversed(adjectives)]
    noun_words = said(generator, translation, f"sort-{gender}") if word in NOUNS else [translation]
    return source, ["le" if gender == "m" else "la", *agreeing, *noun_words]


def sentence(generator: random.Random) -> Tuple[str, str]:
    """One sentence in both languages."""
    verb = generator.choice(sorted(VERBS))
    reading = int(verb[2:]) % 2
    nouns = []
    for _ in range(2):
        word = generator.choice(sorted(NOUNS) + sorted(AMBIGUOUS))
        nouns.append((word, NOUNS[word] if word in NOUNS else AMBIGUOUS[word][reading]))
    subject, subject_t = noun_phrase(generator, nouns[0])
    obj, obj_t = noun_phrase(generator, nouns[1])
    adverb = generator.choice([None, *sorted(ADVERBS)])
    source = [*subject, *([adverb] if adverb else []), *obj, verb]
    target = [*subject_t, *said(generator, VERBS[verb], "keeps"), *obj_t, *([ADVERBS[adverb]] if adverb else [])]
    return " ".join(source), " ".join(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where to write train, valid and test in .src and .tgt")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=4000, help="number of training sentences")
    args = parser.parse_args()
    generator = random.Random(args.seed)
    args.directory.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", args.train), ("valid", 200), ("test", 400)):
        pairs = [sentence(generator) for _ in range(count)]
        for side, lines in zip(("src", "tgt"), zip(*pairs)):
            (args.directory / f"{split}.{side}").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
