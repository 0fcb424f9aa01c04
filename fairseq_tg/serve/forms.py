"""A request's fields, from JSON or a form, checked one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import parse_qs

from fairseq_tg.serve.options import Limits
from fairseq_tg.serve.refusals import Refusal, invalid, missing

Fields = Mapping[str, Any]
TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class TranslationRequest:
    texts: List[str]
    is_list: bool
    source: str
    target: str
    html: bool
    alternatives: int
    beam: int
    actor: bool
    named_actor: Optional[str]  # of several
    scores: bool
    tokens: bool
    actions: bool


def most_fields(limits: Limits) -> int:
    """Of a form: as many texts as there may be, and whatever else."""
    return limits.max_texts + 100


def parse_fields(body: bytes, content_type: str, limits: Limits) -> Fields:
    """The fields of a body that is not a multipart form."""
    kind = content_type.split(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            raise Refusal(400, "Invalid JSON format") from None
        if not isinstance(fields, dict):
            raise Refusal(400, "Invalid JSON format")
        return fields
    return parse_form(body, limits, "the body is neither JSON nor a form in UTF-8")


def parse_form(form: bytes, limits: Limits, otherwise: str) -> Fields:
    """The fields of a form as browsers write it, in a body or an address."""
    try:
        parsed = parse_qs(form.decode(), keep_blank_values=True, max_num_fields=most_fields(limits), errors="strict")
    except UnicodeDecodeError:
        raise invalid(otherwise) from None
    except ValueError:
        raise Refusal(413, f"Invalid request: a form of more than {most_fields(limits)} fields") from None
    return form_fields(parsed)


def form_fields(values: Mapping[str, Sequence[Any]]) -> Dict[str, Any]:
    """Of a form, in which `q` may come several times; of any other field the first counts.

    Forms end lines with CR LF, which would be counted as two characters.
    """
    fields = {name: given[0] for name, given in values.items()}
    texts = [text.replace("\r\n", "\n") if isinstance(text, str) else text for text in values.get("q", ())]
    return {**fields, "q": texts if len(texts) > 1 else texts[0]} if texts else fields


def read_text(fields: Fields, limits: Limits) -> Union[str, List[str]]:
    """`q`: a text, or a list of them, within the limits."""
    q = fields.get("q")
    if q is None or q == []:
        raise missing("q")
    for text in q if isinstance(q, list) else [q]:
        if not isinstance(text, str):
            raise invalid("q parameter is neither a text nor a list of texts")
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
            raise invalid("q parameter is not UTF-8") from None
    if isinstance(q, list) and len(q) > limits.max_texts:
        raise _too_much(len(q), limits.max_texts)
    characters = sum(map(len, q)) if isinstance(q, list) else len(q)
    if characters > limits.max_characters:
        raise _too_much(characters, limits.max_characters)
    return q


def read_translation(fields: Fields, limits: Limits, default_beam: int) -> TranslationRequest:
    q = read_text(fields, limits)
    languages = []
    for name in ("source", "target"):
        code = fields.get(name)
        if code is None or code == "":
            raise missing(name)
        if not isinstance(code, str):
            raise invalid(f"{name} parameter is not a language code")
        languages.append(code)
    text_format = fields.get("format") or "text"
    if text_format not in ("text", "html"):
        raise Refusal(400, f"{str(text_format)[:20]} format is not supported")
    actor = fields.get("actor")
    named = actor if isinstance(actor, str) and actor.lower() not in (*TRUE, *FALSE) else None
    alternatives = _number(fields, "alternatives", 0, 0, limits.max_beam - 1)
    return TranslationRequest(
        texts=q if isinstance(q, list) else [q],
        is_list=isinstance(q, list),
        source=languages[0],
        target=languages[1],
        html=text_format == "html",
        alternatives=alternatives,
        beam=max(_number(fields, "beam", default_beam, 1, limits.max_beam), alternatives + 1),
        actor=named is not None or _flag(fields, "actor", True),
        named_actor=named,
        scores=_flag(fields, "scores", False),
        tokens=_flag(fields, "tokens", False),
        actions=_flag(fields, "actions", False),
    )


def too_many_sentences(count: int, limits: Limits) -> None:
    if count > limits.max_sentences:
        raise Refusal(413, f"Invalid request: request ({count} sentences) exceeds limit ({limits.max_sentences})")


def _too_much(size: int, limit: int) -> Refusal:
    return Refusal(413, f"Invalid request: request ({size}) exceeds text limit ({limit})")


def _number(fields: Fields, name: str, default: int, least: int, most: int) -> int:
    value = fields.get(name)
    if value is None or value == "":
        return default
    try:
        if isinstance(value, bool) or not (isinstance(value, (int, str)) or value == int(value)):  # 3.0 is JSON's 3
            raise ValueError
        number = int(value)
    except (ValueError, TypeError, OverflowError):
        raise invalid(f"{name} parameter is not a number") from None
    if number < least:
        raise invalid(f"{name} parameter must be >= {least}")
    if number > most:
        raise invalid(f"{name} parameter must be <= {most}")
    return number


def _flag(fields: Fields, name: str, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1.0 is JSON's 1
    word = str(value).lower() if isinstance(value, (int, str)) else None
    if word in TRUE or word in FALSE:
        return word in TRUE
    raise invalid(f"{name} parameter is neither true nor false")
