"""Names of languages, and which one a text is in."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

_NAMES = """af Afrikaans, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, bs Bosnian, ca Catalan,
cs Czech, cy Welsh, da Danish, de German, el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu Basque,
fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati, he Hebrew, hi Hindi, hr Croatian, hu Hungarian,
hy Armenian, id Indonesian, is Icelandic, it Italian, ja Japanese, ka Georgian, kk Kazakh, km Khmer, kn Kannada,
ko Korean, ky Kyrgyz, lt Lithuanian, lv Latvian, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay,
mt Maltese, my Burmese, nb Norwegian, ne Nepali, nl Dutch, no Norwegian, pa Punjabi, pl Polish, ps Pashto,
pt Portuguese, ro Romanian, ru Russian, si Sinhala, sk Slovak, sl Slovenian, so Somali, sq Albanian, sr Serbian,
sv Swedish, sw Swahili, ta Tamil, te Telugu, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, uz Uzbek,
vi Vietnamese, xh Xhosa, yo Yoruba, zh Chinese, zu Zulu"""
NAMES: Dict[str, str] = dict(entry.split() for entry in _NAMES.split(","))


def plain_code(code: str) -> str:
    """Without country or script: de for de_DE."""
    return code.replace("-", "_").split("_")[0].lower()


def language_name(code: str) -> str:
    """In English; the code itself if it is none of the well-known."""
    return NAMES.get(plain_code(code), code)


def find_detector() -> Optional[Any]:
    try:
        import langdetect
    except ImportError:
        return None
    langdetect.DetectorFactory.seed = 0  # else it answers by chance
    return langdetect


def detect(detector: Any, text: str) -> List[Dict[str, Any]]:
    """The languages that a text may be in, likeliest first; none if it has no letters."""
    try:
        found = detector.detect_langs(text)
    except detector.LangDetectException:
        return []
    return [{"confidence": round(100 * item.prob, 1), "language": plain_code(item.lang)} for item in found]
