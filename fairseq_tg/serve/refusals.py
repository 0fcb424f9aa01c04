"""What a client is told when it gets no translation: LibreTranslate's {"error": ...}, and a status."""

from __future__ import annotations

from typing import Dict, Optional


class Refusal(Exception):
    """One sentence for the client. It never holds a path or another exception's text."""

    def __init__(self, status: int, message: str, headers: Optional[Dict[str, str]] = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def invalid(message: str) -> Refusal:
    return Refusal(400, f"Invalid request: {message}")


def missing(name: str) -> Refusal:
    return invalid(f"missing {name} parameter")
