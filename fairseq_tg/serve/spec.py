"""The OpenAPI description at /spec."""

from __future__ import annotations

from typing import Any, Dict

from fairseq_tg import __version__
from fairseq_tg.serve.forms import FALSE, TRUE
from fairseq_tg.serve.models import Models
from fairseq_tg.serve.options import ServeOptions

Schema = Dict[str, Any]

TEXT: Schema = {"type": "string"}
ERRORS = {
    400: "Invalid request",
    403: "No API key, or not a valid one",
    413: "Too large: in bytes, characters, texts or sentences",
    429: "Too many requests from this address",
    503: "Too much to do: come back when Retry-After says",
}


def _one_or_list(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "array", "items": item}]}


def _answer(description: str, schema: Schema) -> Dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(*codes: int) -> Dict[str, Any]:
    return {str(code): _answer(ERRORS[code], {"$ref": "#/components/schemas/Error"}) for code in codes}


def _body(name: str) -> Dict[str, Any]:
    schema = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"required": True, "content": {kind: schema for kind in kinds}}


def make_spec(options: ServeOptions, models: Models) -> Dict[str, Any]:
    """Of this server, with its limits and languages."""
    codes = [item["code"] for item in models.languages()]
    sources = [*codes, "auto"] if models.detects() else codes
    switch: Schema = {"enum": [True, False, 1, 0, *TRUE, *FALSE]}
    actor = {"anyOf": [switch, {**TEXT, "enum": models.actors()}]} if models.actors() else switch
    limits = options.limits
    key = {"api_key": {**TEXT, "description": "one of the operator's" if options.api_keys else "not looked at here"}}
    number = {"type": "integer"}
    flag = {"enum": [True, False, 1, 0, *TRUE, *FALSE], "default": False}
    detection = {"type": "object", "properties": {"confidence": {"type": "number"}, "language": TEXT}}
    pair = {"type": "array", "minItems": 2, "maxItems": 2}
    step = {
        "type": "object",
        "required": ["token", "actions", "attention", "base", "tg"],
        "properties": {
            "token": TEXT,
            "actions": {
                "type": "array",
                "items": {"type": "number"},
                "description": "|action| / |state| at each place",
            },
            "attention": {
                "type": "array",
                "items": {"type": "array", "items": pair},
                "description": "of each layer, the source tokens that it attended to most, by index, and their weights",
            },
            "base": {"type": "array", "items": pair, "description": "the base's likeliest tokens, and how likely"},
            "tg": {"type": "array", "items": pair, "description": "the same with actors"},
        },
    }
    q = {
        "anyOf": [
            {**TEXT, "maxLength": limits.max_characters},
            {"type": "array", "items": TEXT, "minItems": 1, "maxItems": limits.max_texts},
        ],
        "description": f"a text, or several with {limits.max_characters} characters in all",
    }
    required = ["api_key"] if options.api_keys else []
    translation_request = {
        "type": "object",
        "required": ["q", "source", "target", *required],
        "properties": {
            "q": q,
            "source": {**TEXT, "enum": sources, "description": "the language's code, or auto"},
            "target": {**TEXT, "enum": codes, "description": "the language's code"},
            "format": {**TEXT, "enum": ["text", "html"], "default": "text"},
            "alternatives": {**number, "minimum": 0, "maximum": limits.max_beam - 1, "default": 0},
            **key,
            "beam": {**number, "minimum": 1, "maximum": limits.max_beam, "default": options.beam},
            "actor": {**actor, "default": True, "description": "false: the base alone; or the name of an actor"},
            "scores": {**flag, "description": "a token's mean log-probability, by sentence"},
            "tokens": {**flag, "description": "the subwords, by sentence"},
            "actions": {**flag, "description": "what the actors did, by sentence and token"},
        },
    }
    by_sentence: Schema = {"type": "array", "description": "by sentence; of several texts, by text and sentence"}
    translation = {
        "type": "object",
        "required": ["translatedText"],
        "properties": {
            "translatedText": _one_or_list(TEXT),
            "alternatives": {"type": "array", "items": _one_or_list(TEXT)},
            "detectedLanguage": _one_or_list(detection),
            "scores": by_sentence,
            "tokens": by_sentence,
            "actions": {
                **by_sentence,
                "items": {"anyOf": [{"type": "array"}, {"$ref": "#/components/schemas/Actions"}]},
            },
        },
    }
    actions = {
        "type": "object",
        "required": ["source", "places", "place_layers", "steps"],
        "properties": {
            "source": {"type": "array", "items": TEXT},
            "places": {"type": "array", "items": TEXT},
            "place_layers": {
                "type": "array",
                "items": number,
                "description": "of each place, which of a step's attentions is its own, or its layer's",
            },
            "steps": {"type": "array", "items": step},
        },
    }
    language = {
        "type": "object",
        "required": ["code", "name", "targets"],
        "properties": {"code": TEXT, "name": TEXT, "targets": {"type": "array", "items": TEXT}},
    }
    status = {"type": "object", "required": ["status"], "properties": {"status": TEXT}}
    paths: Dict[str, Any] = {
        "/translate": {
            "post": {
                "summary": "Translate a text, or several",
                "requestBody": _body("TranslationRequest"),
                "responses": {
                    "200": _answer("The translation", {"$ref": "#/components/schemas/Translation"}),
                    **_errors(*ERRORS),
                },
            }
        },
        "/detect": {
            "post": {
                "summary": "The language of a text",
                "requestBody": _body("DetectionRequest"),
                "responses": {
                    "200": _answer("Likeliest first", {"type": "array", "items": detection}),
                    **_errors(*ERRORS),
                },
            }
        },
        "/languages": {
            "get": {
                "summary": "The languages, each with what it is translated into",
                "responses": {"200": _answer("All", {"type": "array", "items": language})},
            }
        },
        "/health": {"get": {"summary": "Whether it works", "responses": {"200": _answer("It does", status)}}},
        "/spec": {"get": {"summary": "This description", "responses": {"200": _answer("OpenAPI", {"type": "object"})}}},
    }
    if not options.no_page:
        paths["/frontend/settings"] = {
            "get": {
                "summary": "What a page has to know",
                "responses": {"200": _answer("Limits, models and the first languages", {"type": "object"})},
            }
        }
    if not options.no_metrics:
        paths["/metrics"] = {
            "get": {
                "summary": "For Prometheus",
                "responses": {"200": {"description": "Its text format", "content": {"text/plain": {"schema": TEXT}}}},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fairseq_tg",
            "version": __version__,
            "description": "Trainable greedy decoding behind LibreTranslate's API",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "TranslationRequest": translation_request,
                "Translation": translation,
                "Actions": actions,
                "DetectionRequest": {
                    "type": "object",
                    "required": ["q", *required],
                    "properties": {"q": q, **key},
                },
                "Error": {"type": "object", "required": ["error"], "properties": {"error": TEXT}},
            }
        },
    }
