"""The wheel of `make dist`, installed where there is no torch, no fairseq and no compiler, and served from."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
import zipfile
from pathlib import Path
from typing import Dict, Optional

import pytest

from tests.conftest import REPO
from tests.documented import documented

FIXTURES = REPO / "tests" / "fixtures" / "fairseq-0.12.3"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def python_of(version: str) -> Optional[str]:
    """A Python of a version, from the PATH or pyenv, that runs."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in [shutil.which(f"python{version}"), *map(str, installed)]:
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def wheel() -> Path:
    found = sorted((REPO / "dist").glob("*.whl"))
    assert len(found) == 1, "one wheel in dist/: run make dist"
    return found[0]


def test_one_wheel_is_for_all_pythons() -> None:
    assert re.fullmatch(r"fairseq_tg-[\d.]+-py3-none-manylinux[\w.]*_x86_64\.whl", wheel().name)
    names = zipfile.ZipFile(wheel()).namelist()
    for name in ("compiled/_native.so", "compiled/_native_avx2.so", "serve/page.html", "py.typed"):
        assert f"fairseq_tg/{name}" in names
    assert any(name.startswith("fairseq_tg.libs/libgomp") for name in names)
    assert len(list((REPO / "dist").glob("*.tar.gz"))) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_serves_in_a_fresh_environment(version: str, tmp_path: Path) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    subprocess.run([python, "-m", "venv", tmp_path / "env"], check=True)
    programs = tmp_path / "env" / "bin"
    # no compiler can be found, and nothing of this checkout
    env: Dict[str, str] = {"PATH": str(programs), "HOME": str(Path.home()), "CC": "/nonexistent", "CXX": "/nonexistent"}
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CERT", "https_proxy", "http_proxy", "SSL_CERT_FILE"):
        env.update({name: os.environ[name]} if name in os.environ else {})

    def run(*command: str) -> str:
        done = subprocess.run([str(programs / command[0]), *command[1:]], capture_output=True, text=True, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    own = {"fairseq_tg[serve]": f"{wheel()}[serve]"}
    run("python", "-m", *documented("docs/serving.md", "pip install", own), "-q", "--disable-pip-version-check")
    installed = run("python", "-m", "pip", "freeze").lower()
    assert "torch" not in installed and "fairseq==" not in installed and "fairseq-fixed" not in installed
    assert re.search("native engine: (generic|avx)", run("fairseq-tg", "--version"))
    model = tmp_path / "model.tg"
    shutil.copy(FIXTURES / "transformer.tg", model)
    explained = json.loads(run("fairseq-tg", "explain", str(model), "w1 w2", "--json"))
    command = [*documented("docs/serving.md", "fairseq-tg serve", {"served.tg": model}), "--port", "0"]
    command[0] = str(programs / command[0])
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path) as server:
        assert server.stderr is not None
        url = server.stderr.readline().split()[-1]
        data = json.dumps({"q": "w1 w2", "source": "auto", "target": "yy"}).encode()
        request = urllib.request.Request(f"{url}/translate", data, {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=20))
        name = "tg" if "tg" in explained["translations"] else "greedy"
        assert answer["translatedText"] == explained["translations"][name]["text"]
        assert b"<h1>" in urllib.request.urlopen(f"{url}/", timeout=20).read()
        server.terminate()
        assert server.wait(20) == 0
    command = [str(programs / "fairseq-tg"), "corpus", "status", "."]
    refused = subprocess.run(command, capture_output=True, text=True, env=env)
    assert refused.stderr == "fairseq_tg: error: this command needs fairseq: pip install 'fairseq_tg[train]'\n"
