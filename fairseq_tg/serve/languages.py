"""Names of languages, and which one a text is in."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

_NAMES = """af Afrikaans, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, bs Bosnian, ca Catalan,
cs Czech, cy Welsh, da Danish, de German, el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu Basque,
fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati, he Hebrew, hi Hindi, hr Croatian, hu Hungarian,
hy Armenian, id Indonesian, is Icelandic, it Italian, ja Japanese, ka Georgian, kk Kazakh, km Khmer, kn Kannada,
ko Korean, ky Kyrgyz, lt Lithuanian, lv Latvian, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay,
mt Maltese, my Burmese, ne Nepali, nl Dutch, no Norwegian, pa Punjabi, pl Polish, ps Pashto,
pt Portuguese, ro Romanian, ru Russian, si Sinhala, sk Slovak, sl Slovenian, so Somali, sq Albanian, sr Serbian,
sv Swedish, sw Swahili, ta Tamil, te Telugu, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, uz Uzbek,
vi Vietnamese, xh Xhosa, yo Yoruba, zh Chinese, zu Zulu"""
NAMES: Dict[str, str] = dict(entry.split() for entry in _NAMES.split(","))
#: Of three letters, as NLLB has them, and other codes of the same languages
_SAME = """afr af, arb ar, azj az, bel be, bul bg, ben bn, bos bs, cat ca, ces cs, cym cy, dan da, deu de, ell el,
eng en, epo eo, spa es, est et, eus eu, pes fa, fin fi, fra fr, gle ga, glg gl, guj gu, heb he, hin hi, hrv hr,
hun hu, hye hy, ind id, isl is, ita it, jpn ja, kat ka, kaz kk, khm km, kan kn, kor ko, kir ky, lit lt, lvs lv,
mkd mk, mal ml, khk mn, mar mr, zsm ms, mlt mt, mya my, npi ne, nld nl, nob no, nno no, nb no, nn no, pan pa, pol pl,
pbt ps, por pt, ron ro, rus ru, sin si, slk sk, slv sl, som so, als sq, srp sr, swe sv, swh sw, tam ta, tel te,
tha th, tgl tl, tur tr, ukr uk, urd ur, uzn uz, vie vi, xho xh, yor yo, zho zh, zul zu"""
SAME: Dict[str, str] = dict(entry.split() for entry in _SAME.split(","))


def plain_code(code: str) -> str:
    """Without country or script, of two letters if there is one: de for de_DE and for deu_Latn."""
    language = code.replace("-", "_").split("_")[0].lower()
    return SAME.get(language, language)


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
    sure: Dict[str, float] = {}
    for item in found:  # of Chinese there are two
        sure[plain_code(item.lang)] = sure.get(plain_code(item.lang), 0.0) + item.prob
    likeliest = sorted(sure, key=lambda code: -sure[code])
    return [{"confidence": round(100 * sure[code], 1), "language": code} for code in likeliest]
