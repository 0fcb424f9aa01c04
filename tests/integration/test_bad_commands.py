"""Every command of fairseq-tg given something wrong: one line that names it, a status of failure, nothing written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Dict

import pytest
import torch

from fairseq_tg.errors import UserError
from tests.conftest import Workspace, run_tg

RECIPE = "--data {data} --base {lstm} --out out"
REPORT = "report --data {data} --subset valid --out out"
ASK = "give a whole number of at least"
#: What is typed, and what the line has to say of it. A name in braces is one of `names` below.
CASES = {
    # no command, an unknown one, half of one
    "": "required: COMMAND; see fairseq-tg --help",
    "fly": "invalid choice: 'fly'",
    "actor": "required: COMMAND; see fairseq-tg actor --help",
    "actor export one": "required: actor_file",
    "corpus build": "required: --shards",
    "report": "required: --data, --base, --out",
    f"run {RECIPE} --colour red": "unrecognized arguments: --colour red",
    # numbers
    f"run {RECIPE} --beam 0": f"--beam: '0': {ASK} 1",
    f"run {RECIPE} --beam many": f"--beam: 'many': {ASK} 1",
    f"run {RECIPE} --beam 3.5": f"--beam: '3.5': {ASK} 1",
    f"run {RECIPE} --beam 9999": "--beam 9999 is too large for a dictionary of",
    f"run {RECIPE} --workers 0": f"--workers: '0': {ASK} 1",
    f"run {RECIPE} --batch-size -4": f"--batch-size: '-4': {ASK} 1",
    f"run {RECIPE} --lr nan": "--lr: 'nan': give a number from 0 to 1",
    f"run {RECIPE} --lr 1e9": "--lr: '1e9': give a number from 0 to 1",
    f"run {RECIPE} --lr fast": "--lr: 'fast': give a number from 0 to 1",
    f"run {RECIPE} --label-smoothing 2": "--label-smoothing: '2': give a number from 0 to 1",
    f"run {RECIPE} --max-tokens 0": f"--max-tokens: '0': {ASK} 1",
    f"run {RECIPE} --epochs 0": f"--epochs: '0': {ASK} 1",
    f"run {RECIPE} --patience 0": f"--patience: '0': {ASK} 1",
    f"run {RECIPE} --actor-rank -1": f"--actor-rank: '-1': {ASK} 0",
    f"run {RECIPE} --seed one": "--seed: 'one': give a whole number",
    f"ablate actor {RECIPE} --hidden -8": f"--hidden: '-8': {ASK} 0",
    f"ablate beam {RECIPE} --beams 0": f"--beams: '0': {ASK} 1",
    f"{REPORT} --base {{lstm}} --oracle-beam -1": f"--oracle-beam: '-1': {ASK} 0",
    f"{REPORT} --base {{lstm}} --threads 0": f"--threads: '0': {ASK} 1",
    "bench --data {data} --base {lstm} --turns 0": f"--turns: '0': {ASK} 1",
    "bench --data {data} --base {lstm} --sentences 0": f"--sentences: '0': {ASK} 1",
    "translate m.tg --batch-size 0": f"--batch-size: '0': {ASK} 1",
    "translate m.tg --threads 0": f"--threads: '0': {ASK} 1",
    "translate m.tg --max-len-b -1": f"--max-len-b: '-1': {ASK} 0",
    "translate m.tg --max-len-a inf": "--max-len-a: 'inf': give a number from 0 to 100",
    "translate m.tg --unkpen nan": "--unkpen: 'nan': give a number",
    "corpus build --shards 0 -- x": f"--shards: '0': {ASK} 1",
    "train --ranks 0 -- x": f"--ranks: '0': {ASK} 1",
    "train --ranks 2 --threads 0 -- x": f"--threads: '0': {ASK} 1",
    # names
    f"run {RECIPE} --objective bleu": "unknown objective 'bleu': --objective takes one of",
    f"run {RECIPE} --objective no.such:thing": "no.such",
    f"run {RECIPE} --selection best": "unknown selection 'best': --selection takes one of",
    f"run {RECIPE} --actor gates": "unknown actor 'gates': --actor takes one of",
    f"run {RECIPE} --criterion actor_risk --beam 5": "actor_risk with 8 hypotheses of lists of 5 (--beam): give --hyp",
    f"run {RECIPE} --refine actor_risk --refine-hypotheses 1": "actor_risk with 1 hypotheses of lists of 35",
    f"run {RECIPE} --seed -1": "--seed",
    f"run {RECIPE} --subset test,test": "--subset test,test has a name twice",
    f"run {RECIPE} --subset dev": "there is no split 'dev'",
    f"ablate colour {RECIPE}": "invalid choice: 'colour'",
    f"ablate actor {RECIPE} --only red": "--only red: there are gate",
    f"{REPORT} --base {{lstm}} --subset dev": "there is no split 'dev'",
    "bench --data {data} --base {lstm} --subset dev": "there is no split 'dev'",
    "bench --data {data} --base {lstm} --peer marian": "--peer: invalid choice: 'marian'",
    # files and directories that are not there, or are something else
    "run --data nowhere --base {lstm} --out out": "'nowhere'",
    "run --data {data} --base none.pt --out out": "no checkpoint at 'none.pt'",
    "run --data {data} --base text.pt --out out": "'text.pt' is no fairseq checkpoint",
    "run --data {data} --base {data} --out out": "no checkpoint at",
    "run --data {data} --base {tg} --out out": "has actors",
    "run --data {data} --base {lightconv} --out out": "is a lightconv model: there are actors for",
    "ablate actor --data {data} --base {lightconv} --out out": "is a lightconv model: there are actors for",
    "ablate method --data {data} --base {lightconv} --out out": "is a lightconv model: there are actors for",
    # fairseq-train would take it for two, after hours of searching
    "run --data {data} --base {lstm} --out run-12:30": "--out run-12:30: to fairseq a ':' is between two paths",
    "ablate actor --data {data} --base {lstm} --out 12:30": "--out 12:30: to fairseq a ':' is between two paths",
    "run --data {data}:{data} --base {lstm} --out out": "to fairseq a ':' is between two paths",
    "run --data {data} --base {lstm}:{lstm} --out out": "to fairseq a ':' is between two paths",
    "run --data {data} --base {lstm} --out text.pt": "text.pt",
    "run --data {data} --base {lstm} --out text.pt/out": "text.pt",
    f"{REPORT} --base none.pt": "no checkpoint at 'none.pt'",
    f"{REPORT} --base {{tg}}": "has actors: give the checkpoint they were trained on",
    f"{REPORT} --base {{lstm}} --actor {{lstm}}": "has no actors: give a checkpoint trained with --arch tg_*",
    f"{REPORT} --base {{fconv}} --actor {{tg}}": "was trained on another base",
    f"{REPORT} --base {{lstm}} --actor {{tg}} --actor {{tg}}": "have the same name",
    f"{REPORT} --base {{lstm}}": "--oracle-beam 35: this dictionary allows up to 15, or give 0",
    f"{REPORT} --base {{lstm}} --train-log text.pt --actor a --actor b": "--train-log is of one actor",
    "report --data nowhere --base {lstm} --out out": "'nowhere'",
    "report --data {data} --base {lstm} --subset valid --oracle-beam 0 --out text.pt": "text.pt",
    "bench --data {data} --base none.pt": "no checkpoint at 'none.pt'",
    "actor export none.pt a.safetensors": "no checkpoint at 'none.pt'",
    "actor export {lstm} a.safetensors": "has no actors",
    "actor export {tg} nowhere/a.safetensors": "cannot write 'nowhere/a.safetensors'",
    "actor import {lstm} none.safetensors out.pt": "no actor file at 'none.safetensors'",
    "actor import {lstm} text.pt out.pt": "'text.pt' is no actor file",
    "actor import {fconv} {actor} out.pt": "are for tg_lstm, and the base is a fconv model",
    "corpus status nowhere": "'nowhere' is no k-best corpus",
    "corpus status text.pt": "'text.pt' is no k-best corpus",
    "corpus merge nowhere": "'nowhere' is no k-best corpus",
    "corpus merge {data} --out out": "is no k-best corpus",
    "compile none.pt out.tg": "no checkpoint at 'none.pt'",
    "compile {tg} out.tg --tokenizer spacy": "--tokenizer: invalid choice: 'spacy'",
    "translate none.tg": "no compiled model at 'none.tg'",
    "translate text.pt": "'text.pt' is no compiled model",
    # options that do not go together, or that are somebody else's to set
    "corpus build --shards 2 -- {data} --path x": "no --kbest-dir",
    "corpus build --shards 2 -- {data} --kbest-dir out --kbest-shard 0/2": "--kbest-shard is set for each",
    "train --ranks 2 -- {data}": "no --save-dir",
    "train --ranks 2 -- {data} --save-dir out --distributed-rank 1": "--distributed-rank: leave it out",
    "train --ranks 2 --slurm --slurm-option fast -- {data} --save-dir out": "--slurm-option fast: give NAME=VALUE",
    "train --ranks 3 --slurm --slurm-option nodes=2 -- {data} --save-dir out": "--ranks 3 on 2 nodes",
}


@pytest.fixture(scope="module")
def names(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Any]:
    directory = tmp_path_factory.mktemp("names")
    data = directory / "bin"
    shutil.copytree(workspace.data, data)
    for path in data.glob("valid.*"):
        shutil.copy(path, data / path.name.replace("valid", "test"))
    tg = workspace.train("lstm", directory / "tg", "--max-update", "1")
    run_tg("actor", "export", tg, directory / "actor.safetensors")
    state = torch.load(workspace.bases["transformer"])
    state["cfg"]["model"]._name = state["cfg"]["model"].arch = "lightconv"
    torch.save(state, directory / "lightconv.pt")
    made = {"tg": tg, "actor": directory / "actor.safetensors", "lightconv": directory / "lightconv.pt"}
    return {"data": data, **made, **workspace.bases}


def contents(directory: Path) -> Dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", CASES)
def test_one_line_and_nothing_left(names, tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.pt").write_text("not a checkpoint\n")
    before = contents(tmp_path)
    with pytest.raises(UserError) as end:
        run_tg(*command.format(**names).split())
    line = str(end.value)
    assert line.startswith("fairseq_tg: error: ") and "\n" not in line
    assert CASES[command] in line
    assert "Traceback" not in capfd.readouterr().err
    left = {path for path in contents(tmp_path) if path not in before}
    assert all(".logs" in path for path in left), left  # what a process that failed has said
    assert {path: content for path, content in contents(tmp_path).items() if path in before} == before


def test_a_directory_that_cannot_be_written_to(names, tmp_path):
    """/proc takes no files, not even of root."""
    assert os.path.isdir("/proc")
    for command in ("run --data {data} --base {lstm} --out /proc/out", f"actor export {names['tg']} /proc/a"):
        with pytest.raises(UserError, match="/proc"):
            run_tg(*command.format(**names).split())
