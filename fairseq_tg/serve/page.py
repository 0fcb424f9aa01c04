"""The page at /: one file, whose script and style are all that a browser may run and load."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Dict, Tuple


def read_page() -> Tuple[bytes, Dict[str, str]]:
    """The page and its headers: nothing from elsewhere, no script but its own, in nobody's frame."""
    page = files("fairseq_tg.serve").joinpath("page.html").read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(page, "script"),
        "style-src": _hashes(page, "style"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
    return page.encode(), headers


def _hashes(page: str, element: str) -> str:
    """What a policy says of the page's own elements of a kind: their hashes."""
    contents = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests)
