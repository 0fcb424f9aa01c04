"""Write a small seeded corpus of three languages: "en" and its translations into "xx" and "yy".

English is the source of the toy language (../toy/make_data.py), whose words do not agree, and xx its target. yy says
the same in words of its own and gives every noun the other gender: what agrees in one language does not in the other.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "toy"))
from make_data import sentence

LANGUAGES = ("xx", "yy")
OTHER = {"m": "f", "f": "m", "le": "la", "la": "le"}


def as_yy(text: str) -> str:
    """A sentence of xx in yy."""
    words = []
    for word in text.split():
        word = OTHER.get(word, word)
        words.append(re.sub(r"-([mf])$", lambda gender: f"-{OTHER[gender[1]]}", word) + "_y")
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where to write train, valid and test of en-xx and en-yy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--train", type=int, default=2500, help="number of training sentences of each pair")
    args = parser.parse_args()
    generator = random.Random(args.seed)
    args.directory.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        for split, count in (("train", args.train), ("valid", 200), ("test", 400)):
            pairs = [sentence(generator) for _ in range(count)]
            english = [source for source, _ in pairs]
            others = [target if language == "xx" else as_yy(target) for _, target in pairs]
            for side, lines in (("en", english), (language, others)):
                (args.directory / f"{split}.en-{language}.{side}").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
