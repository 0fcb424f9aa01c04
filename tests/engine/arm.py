"""Build the native engine for ARM and run this folder's tests there, under an emulator: `make test-arm`.

Debian's cross compiler builds two libraries: with NEON, which is tested, and without, in plain C++, which is what the
tests compare it with. A Python of Debian's for ARM, with this Python's packages for it, calls them under qemu. It finds
what fairseq found on this machine, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import List
from zipfile import ZipFile

from tests.engine.sanitizers import HERE, ROOT, write_cases

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
VERSION = ".".join(map(str, sys.version_info[:2]))
PYTHON = f"python{VERSION}"
#: What that Python needs of Debian
DEBIAN = [f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib", "libc6", "libgcc-s1", "libstdc++6"]
DEBIAN += ["libgomp1", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5"]
#: and of the locked packages
PACKAGES = ["numpy", "safetensors", "sentencepiece", "tqdm", "filelock"]
PACKAGES += ["pytest", "hypothesis", "iniconfig", "packaging", "pluggy", "pygments", "sortedcontainers"]
WHEELS = [f"--platform=manylinux{version}_aarch64" for version in ("2014", "_2_27", "_2_28")]
FLAGS = ["-std=c++17", "-O2", "-fopenmp", "-Wno-psabi", "-fPIC", "-shared"]


def fetch_python(directory: Path) -> None:
    """A root directory of ARM's, made of Debian's packages without installing any, and site-packages beside it."""
    state = directory / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    settings = [f"Dir::State={state}/state", f"Dir::Cache={state}/cache", f"Dir::State::status={state}/status"]
    settings += ["APT::Architecture=arm64", "APT::Architectures=arm64"]
    apt = ["apt-get", "-q", *(f"-o{setting}" for setting in settings)]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *DEBIAN], check=True, cwd=state)
    for package in state.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(directory / "root")], check=True)
    locked = "".join(path.read_text() for path in (ROOT / "requirements").glob(f"py{VERSION}*.txt"))
    wanted = [re.search(rf"^{name}==\S+", locked, re.MULTILINE | re.IGNORECASE) for name in PACKAGES]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", *WHEELS]
    pip += ["--only-binary=:all:", "--no-deps", "--python-version", VERSION, "-d", str(directory / "wheels")]
    subprocess.run([*pip, *(found.group() for found in wanted if found)], check=True)
    for wheel in (directory / "wheels").iterdir():
        ZipFile(wheel).extractall(directory / "site")


def build(out: Path, *flags: str) -> None:
    source = ROOT / "fairseq_tg" / "compiled" / "native" / "native.cpp"
    subprocess.run([COMPILER, *FLAGS, *flags, str(source), "-o", str(out)], check=True)


def copy_of_package(directory: Path) -> None:
    """The package and these tests, with a generic library of ARM's in the place of this machine's."""
    shutil.copytree(ROOT / "fairseq_tg", directory / "fairseq_tg", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(HERE, directory / "tests" / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "tests" / "__init__.py").touch()
    build(directory / "fairseq_tg" / "compiled" / "_native.so", "-U__ARM_NEON")


def main() -> None:
    missing = [name for name in (COMPILER, EMULATOR, "apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        sys.exit(f"there is no {missing[0]}: Debian's g++-aarch64-linux-gnu and qemu-user-static have what is needed")
    python = Path(sys.argv[1]).resolve()
    if not (python / "complete").exists():
        shutil.rmtree(python, ignore_errors=True)
        fetch_python(python)
        (python / "complete").touch()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        cases, neon, package = directory / "cases", directory / "neon", directory / "package"
        write_cases(cases)
        neon.mkdir()
        copy_of_package(package)
        build(neon / "_native.so")
        begun = time.monotonic()
        emulated: List[str] = [EMULATOR, "-L", str(python / "root"), str(python / "root/usr/bin" / PYTHON)]
        tests = ["-m", "pytest", "tests/engine", "--confcutdir", "tests/engine", "-p", "no:cacheprovider"]
        tests += ["--libraries", str(neon), "--cases", str(cases), *sys.argv[2:]]
        environment = {**os.environ, "PYTHONPATH": f"{package}:{python / 'site'}", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([*emulated, *tests], env=environment, cwd=package)
    print(f"ARM: {time.monotonic() - begun:.0f} s")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
