"""API keys. Only their hashes are kept, in the file and in memory."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import List, Optional

from fairseq_tg.errors import UserError
from fairseq_tg.serve.refusals import Refusal


class Keys:
    """The keys that are accepted; without a file, every request is.

    A line of the file begins with the SHA-256 of a key, as `printf %s "$KEY" | sha256sum` prints it; what follows it,
    and lines that begin with #, are the operator's notes.
    """

    def __init__(self, path: Optional[str]) -> None:
        self.required = path is not None
        self._hashes: List[bytes] = []
        if path is None:
            return
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise UserError(f"cannot read the API keys '{path}': {reason}") from None
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if not re.fullmatch("[0-9a-fA-F]{64}", words[0]):
                raise UserError(
                    f"line {number} of '{path}' does not begin with a SHA-256: give the key's hash and not the key, "
                    "as printf %s KEY | sha256sum prints it"
                )
            self._hashes.append(bytes.fromhex(words[0]))
        if not self._hashes:
            raise UserError(f"there are no API keys in '{path}': nobody could use the service")

    def check(self, key: object) -> None:
        """Refuse a request without a valid key."""
        if not self.required:
            return
        if key is None or key == "":
            raise Refusal(403, "Please contact the server operator to get an API key")
        digest = hashlib.sha256(str(key).encode(errors="replace")).digest()
        # every one is compared, and each in constant time: the time tells nothing of how near a guess was
        if not sum([hmac.compare_digest(digest, known) for known in self._hashes]):
            raise Refusal(403, "Invalid API key")
