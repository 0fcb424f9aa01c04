"""Who is let in: keys, requests a minute, and what the page may load."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fairseq_tg.errors import UserError
from fairseq_tg.serve.keys import Keys
from fairseq_tg.serve.page import read_page
from fairseq_tg.serve.rates import MOST_ADDRESSES, Rates
from fairseq_tg.serve.refusals import Refusal


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n{hashlib.sha256(b'right').hexdigest()}  -\n")
    keys = Keys(str(path))
    keys.check("right")
    for key, message in ((None, "contact"), ("", "contact"), ("wrong", "Invalid API key"), (["right"], "Invalid")):
        with pytest.raises(Refusal, match=message) as refusal:
            keys.check(key)
        assert refusal.value.status == 403
    assert "right" not in repr(vars(keys))
    Keys(None).check(None)


@pytest.mark.parametrize(
    "content, message", [("secret\n", "line 1 of .* SHA-256"), ("# none\n", "there are no API keys")]
)
def test_bad_keys_end_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        Keys(str(tmp_path / "keys"))
    assert "secret" not in str(error.value)
    with pytest.raises(UserError, match="cannot read the API keys"):
        Keys(str(tmp_path / "none"))


def test_rates() -> None:
    now = [0.0]
    rates = Rates(2, lambda: now[0])
    for _ in range(2):
        rates.check("1.2.3.4")
    with pytest.raises(Refusal) as refusal:
        rates.check("1.2.3.4")
    assert refusal.value.status == 429 and refusal.value.headers == {"Retry-After": "30"}
    rates.check("1.2.3.5")
    now[0] = 30.0
    rates.check("1.2.3.4")
    for last in "12":
        rates.check(f"2001:db8::{last}")
    with pytest.raises(Refusal):
        rates.check("2001:db8::3")  # of the same customer
    for number in range(MOST_ADDRESSES + 10):
        rates.check(f"host{number}")
    assert len(rates._buckets) == MOST_ADDRESSES
    Rates(0).check("1.2.3.4")


def test_the_page_has_nothing_from_elsewhere() -> None:
    page, headers = read_page()
    text = page.decode()
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert text.count("<script>") == text.count("<style>") == 1 and "innerHTML" not in text
    assert "forced-colors: active" in text  # in which all boxes would have one ground
    for source in ("http:", "https:", "//cdn", "@import", "url("):
        assert source not in text.replace("http://www.w3.org/2000/svg", "")
