"""Tiny data and bases, made through fairseq's own commands once in a test run."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Type

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run in several processes, each on one core
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # where there are more threads, they do not spin beside them

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.dataclass import utils as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import generate, hydra_train, interactive, preprocess, train, validate
from filelock import FileLock, Timeout
from omegaconf import OmegaConf

import fairseq_tg
from fairseq_tg import cli
from fairseq_tg.errors import user_error_in
from fairseq_tg.evaluation import measure
from fairseq_tg.launch import processes
from fairseq_tg.models.base import ActorModel
from tests.forks import Forked, forget_other_commands, words_of
from tests.quick_options import compose_quickly

USER_DIR = str(Path(fairseq_tg.__file__).parent)
REPO = Path(USER_DIR).parent
COMMANDS: Dict[str, Callable[[], None]] = {
    "fairseq-preprocess": preprocess.cli_main,
    "fairseq-train": train.cli_main,
    "fairseq-generate": generate.cli_main,
    "fairseq-interactive": interactive.cli_main,
    "fairseq-validate": validate.cli_main,
    "fairseq-hydra-train": hydra_train.cli_main,
}
FORK = multiprocessing.get_context("fork")
fairseq_options.compose = compose_quickly

TRANSFORMER = """--arch transformer --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --encoder-layers 2
    --decoder-layers 2 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0.2"""
#: Every shape of base that the parity tests run over: the family comes first in the name; with fairseq's own flags.
BASES: Dict[str, str] = {
    "transformer": f"{TRANSFORMER} --encoder-embed-dim 12 --decoder-embed-dim 8",
    "transformer_prenorm": f"""{TRANSFORMER} --encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-normalize-before
        --decoder-normalize-before --share-all-embeddings --encoder-learned-pos --decoder-learned-pos""",
    "transformer_layerdrop": f"""{TRANSFORMER} --encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-layerdrop 0.5
        --decoder-layerdrop 0.5""",
    "lstm": """--arch lstm --encoder-embed-dim 14 --encoder-hidden-size 10 --encoder-layers 2 --encoder-bidirectional
        --decoder-embed-dim 14 --decoder-hidden-size 16 --decoder-layers 2 --decoder-out-embed-dim 14 --dropout 0.1
        --lr 0.005""",  # at 0.02 its states are all near 1 and -1, and nothing within moves them
    "fconv": """--arch fconv --encoder-embed-dim 10 --decoder-embed-dim 10 --decoder-out-embed-dim 8 --dropout 0.2
        --encoder-layers '[(8,3)]*2' --decoder-layers '[(8,3)]*3' --decoder-attention '[True,False,True]'""",
}
TRAIN_BASE = "--optimizer adam --lr 0.02 --max-tokens 200 --max-epoch 12 --no-epoch-checkpoints --log-format none"
#: Of those 12 epochs: nobody looks at a base before
AT_THE_END = "--validate-interval 12 --save-interval 12"
#: Without a process to load data, which takes fairseq seconds to end
IN_PROCESS = ("--cpu", "--num-workers", "0")
FAMILIES = ("transformer", "lstm", "fconv")


def pytest_collection_finish() -> None:
    """What is imported stays: the collector of garbage need not look through it again and again, here and in forks."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """What a test printed goes from process to process, which takes no half characters."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="try every fault of tests/faults, not a few of each kind, and examples that take minutes",
    )


def family(base: str) -> str:
    return base.split("_")[0]


def run(command: str, *flags: Any) -> str:
    """Run a fairseq command in this process, by its entry point, and give back what it printed."""
    output = io.StringIO()
    argv, sys.argv = sys.argv, [command, *map(str, flags)]
    random_state = torch.get_rng_state()
    forget_other_commands()
    try:
        with contextlib.redirect_stdout(output):
            COMMANDS[command]()
    except Exception as error:
        raise (user_error_in(error) or error) from None  # as the command itself would end: see `report_in_one_line`
    finally:
        sys.argv = argv
        torch.set_rng_state(random_state)
    return output.getvalue()


def run_process(
    command: str, *flags: Any, stdin: str = "", cwd: Any = None, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess:
    """Run an installed command as a user would."""
    program = Path(sys.executable).parent / command
    return _communicate(subprocess.Popen, [str(program), *map(str, flags)], stdin, cwd, env)


def run_forked(
    command: str, *flags: Any, stdin: str = "", cwd: Any = None, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess:
    """The same, but for the start of the interpreter: see `tests.forks`."""
    return _communicate(Forked, words_of(command, *flags), stdin, cwd, env)


def _communicate(
    kind: Type[subprocess.Popen], words: List[str], stdin: str, cwd: Any, env: Mapping[str, str]
) -> subprocess.CompletedProcess:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    with kind(words, cwd=cwd, env=env, text=True, **pipes) as process:
        try:
            output, errors = process.communicate(stdin, timeout=300)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


@pytest.fixture(scope="session", autouse=True)
def _launch_forks() -> Iterator[None]:
    """What our launchers start in this process are forks of it; launchers that are processes start processes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(processes, "Popen", Forked)
        yield


@pytest.fixture
def forked_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that a benchmark starts to see how long that takes are started in forks."""
    monkeypatch.setattr(measure.subprocess, "Popen", Forked)


def heed_interrupts() -> None:
    """For a process that is to be sent signals: what runs these tests may ignore them (a shell's &, nohup)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def run_tg(*flags: Any) -> str:
    """Run fairseq-tg in this process, and give back what it printed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        cli.main([str(flag) for flag in flags])
    return output.getvalue()


def hypotheses(output: str) -> Dict[int, str]:
    """The hypotheses that fairseq-generate printed, by sentence id."""
    lines = [line.split("\t") for line in output.splitlines() if line.startswith("H-")]
    return {int(fields[0][2:]): fields[2] for fields in lines}


class Workspace(NamedTuple):
    """A data directory and a base of every shape on it."""

    data: str
    bases: Dict[str, str]

    def train_flags(self, base: str, *flags: Any) -> List[Any]:
        return [
            *(self.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--arch", f"tg_{family(base)}"),
            *("--base-checkpoint", self.bases[base], "--criterion", "actor_cross_entropy", "--optimizer", "adam"),
            *("--max-epoch", "1", "--lr", "0.01", "--max-tokens", "200", *IN_PROCESS, "--log-format", "none", *flags),
        ]

    def train(self, base: str, save_dir: Any, *flags: Any) -> str:
        """Train actors on a base through fairseq-train; gives the path of the last checkpoint."""
        run("fairseq-train", *self.train_flags(base, "--save-dir", save_dir, *flags))
        return f"{save_dir}/checkpoint_last.pt"

    def generate(self, path: str, *flags: Any) -> str:
        return run(
            *("fairseq-generate", self.data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", path),
            *("--gen-subset", "valid", "--max-len-b", "20", *IN_PROCESS, *flags),
        )

    def task(self) -> Any:
        return tasks.setup_task(task_config(self.data))

    def base_model(self, base: str) -> Any:
        (model,), _ = checkpoint_utils.load_model_ensemble([self.bases[base]], task=self.task())
        return model

    def actor_model(self, base: str, **overrides: Any) -> ActorModel:
        config = {"_name": f"tg_{family(base)}", "base_checkpoint": self.bases[base], **overrides}
        return self.task().build_model(OmegaConf.create(config))


@functools.lru_cache
def task_config(data: str) -> Any:
    flags = [data, "--user-dir", USER_DIR, "--task", "tg_translation", "--path", "unused"]
    args = options.parse_args_and_arch(options.get_generation_parser(), flags)
    return convert_namespace_to_omegaconf(args).task


def write_corpus(directory: Path, sizes: Dict[str, int]) -> None:
    """A toy language: words are translated one by one, and some have two translations."""
    generator = random.Random(7)
    words = [f"w{i}" for i in range(9)]
    for split, size in sizes.items():
        with open(directory / f"{split}.xx", "w") as source, open(directory / f"{split}.yy", "w") as target:
            for _ in range(size):
                sentence = generator.choices(words, k=generator.randint(1, 7))
                print(*sentence, file=source)
                print(
                    *(f"{w.upper()}{generator.choice('ab') if w in words[:3] else ''}" for w in sentence),
                    file=target,
                )


def make_workspace(directory: Path, names: Iterable[str] = BASES) -> Workspace:
    """Data and bases, made through fairseq's own commands: each once, if several processes share a directory."""
    data = directory / "bin"

    def make_data() -> None:
        write_corpus(directory, {"train": 200, "valid": 30})
        prefixes = ["--trainpref", directory / "train", "--validpref", directory / "valid", "--workers", "1"]
        run("fairseq-preprocess", "-s", "xx", "-t", "yy", "--joined-dictionary", "--destdir", data, *prefixes)

    def make_base(name: str) -> None:
        flags = [*shlex.split(f"{TRAIN_BASE} {AT_THE_END} {BASES[name]}"), *IN_PROCESS]
        run("fairseq-train", data, *flags, "--save-dir", directory / name)

    directory.mkdir(exist_ok=True)
    make_once(directory / "bin.made", make_data)
    for wait in (False, True):  # for those that another process is at, when the others are there
        for name in names:
            make_once(directory / f"{name}.made", lambda name=name: make_base(name), wait)
    return Workspace(str(data), {name: f"{directory / name}/checkpoint_last.pt" for name in names})


def make_once(mark: Path, make: Callable[[], None], wait: bool = True) -> None:
    """Make something if no process has; `mark` says that it is made."""
    with contextlib.suppress(Timeout), FileLock(f"{mark}.lock", timeout=-1 if wait else 0):
        if not mark.exists():
            make()
            mark.touch()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of all processes that run these tests."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def workspace(shared: Path) -> Workspace:
    return make_workspace(shared / "workspace")


@pytest.fixture(autouse=True)
def _reproducible() -> Iterator[None]:
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@torch.no_grad()
def stir(model: ActorModel, scale: float = 1.0) -> ActorModel:
    """Give the actors random weights, so that they do something."""
    for site in model.sites():
        for parameter in site.parameters():
            parameter.normal_(std=scale)
    return model


def sample(task: Any, sentences: int = 4) -> Dict[str, Any]:
    """A padded batch of the validation set, sentences of several lengths."""
    if "valid" not in task.datasets:
        task.load_dataset("valid")
    dataset = task.dataset("valid")
    return copy.deepcopy(dataset.collater([dataset[i] for i in range(sentences)]))
