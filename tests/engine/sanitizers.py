"""Build the native engine with sanitizers and run this folder's tests under each: `make test-sanitizers`.

AddressSanitizer and UndefinedBehaviorSanitizer watch everything, OpenMP's threads included. ThreadSanitizer watches
Python threads that share an engine, and the threads that divide the sentences of a batch. libgomp is not built for it,
so that every product shared by OpenMP's threads would look like a race. What those do in parallel is one loop whose
turns write to places of their own (product.h); that their results are those of one thread is what the tests compare.

What they are compared with is the engine as it is installed, and what fairseq's own search found before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Sanitizer(NamedTuple):
    flags: List[str]
    runtime: str  # which has to be in the process before Python is
    environment: Dict[str, str]
    selection: List[str]  # of tests


SANITIZERS = {
    "address and undefined behaviour": Sanitizer(
        # float-cast-overflow is not among -fsanitize=undefined; the macro checks indices of the standard containers
        ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"],
        "libasan.so",
        # Python's leaks at its end are its own (a test counts the engine's); its allocator would hide what is freed
        {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1", "PYTHONMALLOC": "malloc"},
        [],
    ),
    "threads": Sanitizer(
        ["-fsanitize=thread"],
        "libtsan.so",
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"},
        ["-k", "test_threads"],
    ),
}


def build(directory: Path, flags: List[str], compiler: str) -> None:
    """The libraries that this machine runs, with the flags of setup.py but for the level of optimization."""
    sys.path.insert(0, str(ROOT))
    from fairseq_tg.compiled.library import AVX2, AVX512, GENERIC, library_path, usable_libraries

    command = [compiler, "-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-fopenmp", "-Wno-psabi", "-fPIC"]
    processes = []
    avx2 = ["-mavx2", "-mfma"]
    avx512 = [*avx2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni"))]
    for name, more in ((GENERIC, []), (AVX2, avx2), (AVX512, avx512)):
        if name not in usable_libraries():
            continue
        source = ROOT / "fairseq_tg" / "compiled" / "native" / f"{name.strip('_')}.cpp"
        out = directory / library_path(name).name
        processes.append(subprocess.Popen([*command, *more, *flags, "-shared", str(source), "-o", str(out)]))
    if any([process.wait() for process in processes]):
        sys.exit(f"{compiler} cannot build the engine with {' '.join(flags)}")


def runtime_path(compiler: str, name: str) -> str:
    path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    if not os.path.isabs(path.strip()):
        sys.exit(f"{compiler} has no {name}: give CXX=g++ with the libraries of its sanitizers")
    return path.strip()


def write_cases(path: Path) -> None:
    """Have fairseq search, in a process that has no sanitizer."""
    subprocess.run([sys.executable, "-m", "tests.fairseq_cases", str(path)], cwd=ROOT, check=True)


def passes(name: str, sanitizer: Sanitizer, compiler: str, cases: Path) -> bool:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        runtime = runtime_path(compiler, sanitizer.runtime)
        build(Path(directory), sanitizer.flags, compiler)
        built = time.monotonic()
        # tests/conftest.py imports torch and fairseq; what a sanitizer says when it ends a process has to be seen
        command = [sys.executable, "-m", "pytest", str(HERE), "--confcutdir", str(HERE), "-p", "no:cacheprovider"]
        command += ["-p", "no:xdist", "--capture", "sys", "--libraries", directory, "--cases", str(cases)]
        environment = {**os.environ, **sanitizer.environment, "LD_PRELOAD": runtime, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*command, *sanitizer.selection, *sys.argv[1:]], env=environment, cwd=ROOT)
    print(f"{name}: built in {built - begun:.0f} s, run in {time.monotonic() - built:.0f} s", flush=True)
    return done.returncode == 0


def main() -> None:
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as directory:
        cases = Path(directory) / "cases"
        write_cases(cases)
        failed = [name for name, sanitizer in SANITIZERS.items() if not passes(name, sanitizer, compiler, cases)]
    if failed:
        sys.exit(f"failed under the sanitizers of {' and of '.join(failed)}")


if __name__ == "__main__":
    main()
