"""The most memory that commands take, as a share of the weights: benchmarks/memory.py in small.

There, fairseq and torch themselves are a fifth of the weights of 400 million parameters; here a command runs in a fork
of this process, and only what it takes beyond that counts.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, NamedTuple, Tuple

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf, open_dict

from fairseq_tg.compiled.translator import Translator
from fairseq_tg.memory import give_back
from tests.conftest import FORK, IN_PROCESS, USER_DIR, Workspace, run, run_tg, stir

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="this system does not count the peak anew"
)

SHAPE = """--arch transformer --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim {0}
    --decoder-ffn-embed-dim {0} --encoder-layers 4 --decoder-layers 4 --share-all-embeddings"""
#: Of 1.5 times the weights what fairseq and torch leave
MOST = 1.5 - 0.21
#: A matrix is an eighteenth of this model, and there are three of it while it is joined with its actor
JOINED = 2 / 18


class Model:
    """A base with random weights, actors beside all of its maps, and their files."""

    def __init__(self, directory: Path, data: str, size: int) -> None:
        directory.mkdir()
        self.data, self.directory = data, directory
        names = ("base.pt", "half.pt", "tg.pt", "model.tg")
        self.base, self.half, self.tg, self.compiled = (str(directory / name) for name in names)
        flags = [data, "--user-dir", USER_DIR, "--task", "tg_translation", *SHAPE.format(size).split()]
        config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
        task = tasks.setup_task(config.task)
        base = task.build_model(config.model)
        _save(base, config, self.base)
        _save(base.half(), config, self.half)
        actors = {"_name": "tg_transformer", "base_checkpoint": self.base, "actor_rank": 16}
        actors.update(actor_sites="maps", actor_site_rank=16, actor="gate", actor_hidden=0, actor_layers=None)
        model = stir(task.build_model(OmegaConf.create(actors)), 0.02)
        with open_dict(config):
            config.model = OmegaConf.create({**actors, "base_record": model.base.to_json()})
        _save(model, config, self.tg)
        self.weights = Path(self.base).stat().st_size

    def generate(self, path: str, *flags: Any) -> None:
        tg = ("--user-dir", USER_DIR, "--task", "tg_translation", "--gen-subset", "valid", "--max-len-b", "3")
        run("fairseq-generate", self.data, *tg, "--path", path, *IN_PROCESS, *flags)

    def validate(self) -> None:
        tg = ("--user-dir", USER_DIR, "--task", "tg_translation", "--valid-subset", "valid", "--max-tokens", "64")
        run("fairseq-validate", self.data, *tg, "--path", self.tg, "--cpu", "--num-workers", "0")

    def average(self) -> None:
        out = self.directory / f"mean-{os.getpid()}.pt"
        run_tg("actor", "average", *[self.tg] * 6, out)
        out.unlink()

    def compile(self, *flags: str) -> None:
        run_tg("compile", self.tg, self.compiled, "--data", self.data, *flags)

    def translate(self) -> None:
        assert len(Translator.load(self.compiled, max_len_b=3).translate(["w1 w2", "w3"])) == 2

    def explain(self) -> None:
        assert run_tg("explain", self.compiled, "w1 w2", "--json")

    def translate_with_an_actor_file(self) -> None:
        base, actor = (str(self.directory / name) for name in ("base.tg", "actor.safetensors"))
        if not Path(actor).exists():
            run_tg("compile", self.base, base, "--data", self.data)
            run_tg("actor", "export", self.tg, actor)
        assert len(Translator.load(base, actors={"a": actor}, max_len_b=3).translate(["w1 w2", "w3"], actor="a")) == 2


def _save(model: Any, config: Any, path: str) -> None:
    history = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    state = {"args": None, "cfg": OmegaConf.to_container(config), "model": model.state_dict(), "extra_state": {}}
    state.update(optimizer_history=[history], last_optimizer_state=None, task_state={})
    checkpoint_utils.torch_persistent_save(state, path)


class Models(NamedTuple):
    small: Model
    large: Model  # of 38 million parameters


@pytest.fixture(scope="module")
def models(workspace: Workspace) -> Iterator[Models]:
    with tempfile.TemporaryDirectory() as name:  # nothing of that size stays behind
        yield Models(*(Model(Path(name) / str(size), workspace.data, size) for size in (8, 8192)))


def resident(kind: str) -> int:
    """Of this process, in bytes: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def peak(body: Callable[[Model], None], models: Models) -> float:
    """What a function takes at most of memory, in a fork of this process, as a share of the large model's weights."""
    receive, send = FORK.Pipe(duplex=False)

    def measured() -> None:
        torch.set_num_threads(1)  # a fork has none of the threads that OpenMP would wait for
        for size in (8, 16, 31):  # MB, from where on glibc keeps what is freed: as in a process that has done much
            torch.ones(size << 18)
        body(models.small)  # now all libraries that it takes are in memory
        give_back()
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        start = resident("VmRSS")
        body(models.large)
        send.send((resident("VmHWM") - start) / models.large.weights)

    process = FORK.Process(target=measured)
    process.start()
    send.close()
    try:
        return receive.recv()
    finally:
        process.join()


#: By name, what is measured and the most that it may take of the weights
COMMANDS: Dict[str, Tuple[Callable[[Model], None], float]] = {
    "generate with actors": (lambda model: model.generate(model.tg, "--beam", "1"), MOST + JOINED),
    # Of the float32 that they are computed in
    "generate of half precision": (lambda model: model.generate(model.half, "--beam", "1"), MOST),
    "k-best of half precision": (
        lambda model: model.generate(model.half, "--beam", "5", "--kbest-dir", model.directory / "kh"),
        MOST,
    ),
    "k-best": (lambda model: model.generate(model.base, "--beam", "5", "--kbest-dir", model.directory / "k"), MOST),
    # The base, which is written as it is, and the actors, a seventh of it, once
    "actor average": (Model.average, MOST),
    # What was joined is not in memory in parts as well: a layer's, at most
    "validate": (Model.validate, MOST + JOINED),
    "compile": (lambda model: model.compile(), 0.75),  # a tensor at a time
    "compile --int8": (lambda model: model.compile("--int8"), 0.75),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_take_little_more_than_the_weights(models: Models, name: str) -> None:
    body, most = COMMANDS[name]
    assert peak(body, models) < most


@pytest.mark.parametrize(
    "body, most",
    [(Model.translate, MOST), (Model.explain, MOST), (Model.translate_with_an_actor_file, MOST + JOINED)],
)
def test_of_a_compiled_file_only_what_is_used_is_in_memory(
    models: Models, body: Callable[[Model], None], most: float
) -> None:
    """It has the base's matrices and those with actors."""
    for model in models:
        model.compile()
        model.translate_with_an_actor_file()
    assert Path(models.large.compiled).stat().st_size > 1.9 * models.large.weights
    assert 1.0 < peak(body, models) < most
