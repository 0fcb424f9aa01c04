"""An error for the user, wherever it is raised and whoever prints it."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable

import pytest

from fairseq_tg.errors import UserError


@pytest.mark.parametrize(
    "sent",
    [lambda error: error, copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],
    ids=["itself", "copy", "deep copy", "pickle"],
)
def test_an_error_says_once_whose_it_is(sent: Callable[[Any], Any]) -> None:
    """Also from another process, as those of a pool send it."""
    error = sent(sent(UserError("no\nfile at 'a\x1bb'")))
    assert type(error) is UserError and str(error) == r"fairseq_tg: error: no file at 'a\x1bb'"
