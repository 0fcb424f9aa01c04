"""How the words of a text are counted where translations are scored: by which of sacreBLEU's tokenizers.

BLEU's usual one, 13a, divides at spaces and signs. Some languages are written without spaces: to 13a a sentence is one
word, and any two translations that differ are equally wrong. Chinese is counted by sacreBLEU's `zh` (characters, and
the words of other scripts), the others by `char`: both need nothing but sacreBLEU, and are the same everywhere, as
`ja-mecab` (a package) and `flores200` (a download) are not. Text that is divided into words already is counted by them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Callable, List, Optional, Sequence

from fairseq_tg.errors import UserError

FLAG = "--sacrebleu-tokenizer"
#: What it is called wherever it is an option
HELP = (
    "how BLEU and its kin count words, as sacreBLEU calls it: 13a, zh, char, intl, ja-mecab, flores200 ... (default: "
    "13a; for a language that is written without spaces, zh or char)"
)
USUAL, CHINESE, CHARACTERS = "13a", "zh", "char"
#: For text that is divided
NONE = "none"
#: Those whose words are characters: too many for an edit rate with shifts, which takes a second for a sentence of them
OF_CHARACTERS = (CHINESE, CHARACTERS)

#: Languages without spaces between words, as fairseq's releases and ISO 639 name them, before any region or script
_CODES = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "gan", "hak", "hsn", "lzh"), CHINESE),
    **dict.fromkeys(("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur", "shn"), CHARACTERS),
    **dict.fromkeys(("bo", "bod", "tib", "dz", "dzo"), CHARACTERS),
}
_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
#: Thai and Lao; Tibetan; Burmese; Khmer; Tai Le to Tai Tham; Balinese; kana and bopomofo; Yi; Javanese to Tai Viet
_OTHERS = (
    "\u0e01-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u1aaf\u1b00-\u1b7f\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\ua000-\ua4cf\ua980-\uaadf\uff66-\uff9f"
)
_LETTER = re.compile(f"[{_HAN}{_OTHERS}]")
_HAN_LETTER = re.compile(f"[{_HAN}]")
#: A place between two such letters, with what space is there
_BETWEEN = re.compile(rf"(?<=[{_HAN}{_OTHERS}])(\s*)(?=[{_HAN}{_OTHERS}])")
#: Of such places, spaces are at most so many where words are not divided. They are 0 (Chinese, Japanese) to 0.07
#: (Burmese, between phrases) of them in text as it is written, and 0.20 (Khmer) to 0.57 where it was divided into words
_MOST_SPACES = 1 / 8
#: The share of all letters and signs that makes a text one of such a script, whatever its language is called
_LEAST_SHARE = 1 / 4
#: Of the letters, the share of Chinese characters in Chinese: it is a third in Japanese
_CHINESE_SHARE = 0.9
#: Sentences that are looked at, from all over a text
_SENTENCES = 2000


def find_tokenizer(language: Optional[str], text: Callable[[int], str], sentences: int) -> str:
    """The tokenizer for a target: by its language where that says something, and by what is written.

    Args:
        language: its code, which may be any name.
        text: the text of a sentence by its number.
        sentences: how many there are; with none, the language alone decides.
    """
    of_language = _CODES.get(re.split(r"[_@.-]", language or "")[0].lower())
    if not sentences:
        return of_language or USUAL
    return _of_text([text(i) for i in _some(sentences)], of_language)


def all_usual(text: Callable[[int], str], sentences: int) -> bool:
    """Whether 13a is for every text, each by itself: where they are of several languages, and it is not said which."""
    return all(_of_text([text(i)], None) == USUAL for i in _some(sentences))


def divide_any(text: str) -> str:
    """A text of any of such languages with spaces between its words."""
    return load_tokenizer(_of_text([text], None))(text)


def _some(sentences: int) -> range:
    return range(0, sentences, max(1, sentences // _SENTENCES))


def _of_text(texts: Sequence[str], of_language: Optional[str]) -> str:
    between = [space for text in texts for space in _BETWEEN.findall(text)]
    spaces = sum(map(bool, between))
    if not between or spaces > _MOST_SPACES * len(between):
        return USUAL
    if of_language is not None:
        return of_language
    letters, chinese = (sum(len(kind.findall(text)) for text in texts) for kind in (_LETTER, _HAN_LETTER))
    if letters < _LEAST_SHARE * sum(len("".join(text.split())) for text in texts):
        return USUAL
    return CHINESE if chinese > _CHINESE_SHARE * letters else CHARACTERS


@lru_cache
def load_tokenizer(name: str) -> Callable[[str], str]:
    """sacreBLEU's tokenizer of that name: a function from a text to its words with spaces between them."""
    from sacrebleu.metrics import BLEU

    if name not in BLEU.TOKENIZERS:
        raise UserError(f"{FLAG} {name}: sacreBLEU has {', '.join(BLEU.TOKENIZERS)}")
    try:
        return BLEU(tokenize=name).tokenizer
    except Exception as error:  # a package or a file that is not there, said in many ways
        raise UserError(f"{FLAG} {name} cannot be used: {error}") from None


def word_splitter(name: str) -> Callable[[str], List[str]]:
    """A function from a text to its words."""
    tokenizer = load_tokenizer(name)
    if name != USUAL:
        return lambda text: tokenizer(text).split()

    # 13a looks at nothing beyond a space: so every word is looked at once
    @lru_cache(maxsize=1 << 18)
    def parts(word: str) -> List[str]:
        return tokenizer(word).split()

    def split(text: str) -> List[str]:
        if "\n" in text:  # it joins what a hyphen divides there
            return tokenizer(text).split()
        return [part for word in text.split() for part in parts(word)]

    return split
