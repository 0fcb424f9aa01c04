"""The tests' own way to compose options gives what Hydra gives."""

from __future__ import annotations

import pytest
from fairseq import options
from fairseq.dataclass import utils

from tests.conftest import USER_DIR, Workspace
from tests.quick_options import compose, compose_quickly

PLUGIN = ["--user-dir", USER_DIR, "--task", "tg_translation"]
ACTORS = [*PLUGIN, "--arch", "tg_transformer", "--base-checkpoint", "{transformer}", "--criterion"]
COMMANDS = {
    "generation": [
        [*PLUGIN, "--path", "a.pt"],
        [*PLUGIN, "--path", "b c.pt:d", "--beam", "7", "--kbest-dir", "x=y, z", "--objective", "sbleu+2"],
        [*PLUGIN, "--path", "a.pt", "--lenpen", "0.5", "--max-len-b", "33", "--model-overrides", "{'a': [1, 2]}"],
        ["--path", "a.pt", "--task", "translation", "--eval-bleu-args", '{"beam": 1}', "--quiet"],
    ],
    "training": [
        [*ACTORS, "actor_risk", "--optimizer", "adam", "--lr", "0.1", "--max-tokens", "100"],
        [*ACTORS, "actor_risk", "--optimizer", "adam", "--lr", "0.1,0.2", "--adam-betas", "(0.9, 0.99)"],
        [*ACTORS, "actor_risk", "--optimizer", "adam", "--candidates", "3", "--save-dir", "\u00e4 {b}"],
        [*ACTORS, "actor_cross_entropy", "--optimizer", "sgd", "--update-freq", "1,2", "--fp16"],
        ["--arch", "fconv", "--optimizer", "nag", "--decoder-layers", "[(8, 3)] * 2"],
        ["--arch", "transformer", "--optimizer", "nag", "--no-epoch-checkpoints"],
    ],
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_what_comes_out_is_the_same(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for words in COMMANDS[kind]:
        parser = getattr(options, f"get_{kind}_parser")()
        flags = [workspace.bases["transformer"] if word == "{transformer}" else word for word in words]
        args = options.parse_args_and_arch(parser, [workspace.data, *flags])
        made = []
        for function in (compose, compose_quickly):
            monkeypatch.setattr(utils, "compose", function)
            made.append(repr(utils.convert_namespace_to_omegaconf(args)))
        assert made[0] == made[1], words
