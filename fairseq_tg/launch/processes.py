"""Command lines as processes of this machine: started together, watched, and ended together."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from subprocess import Popen, TimeoutExpired
from threading import Thread, current_thread, main_thread
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

from fairseq_tg.errors import INTERRUPTED, PREFIX, UserError

#: What Slurm adds to a log when a command is dead already
SLURMS = ("srun: ", "slurmstepd")
#: How lines begin that say nothing of an error; characters of one that may
NO_ERRORS, MOST_WORDS = ("INFO:", "DEBUG:"), 300
#: Bytes without which the last words of a command are not in its log
ROOM = 1 << 16
#: What a launcher around this one says of its own ranks: with several GPUs, fairseq would take one process of ours for
#: one of them, and wait for the others
OUTER_WORLD = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
#: What keeps fairseq from writing the log that a report and a progress bar are made of
QUIET = "LOGLEVEL"
#: Tells a command the process that waits for it
LAUNCHER = "FAIRSEQ_TG_LAUNCHER"
#: On Linux such a command ends with that process, also if that is killed: its locks are free then, and after another
#: start there would be two at work in one directory. (PR_SET_PDEATHSIG is 1, SIGTERM 15.)
_ENDS_WITH_LAUNCHER = (
    f"import os; launcher = os.environ.pop('{LAUNCHER}', ''); "
    "launcher and sys.platform == 'linux' and __import__('ctypes').CDLL(None).prctl(1, 15); "
    "launcher and os.getppid() != int(launcher) and os._exit(1)"
)


@dataclass
class Command:
    """A command line, and what it is called in messages. Without a log, it prints where we print."""

    name: str
    words: List[str]
    log: Optional[Path] = None


def python(module: str, function: str, name: str) -> List[str]:
    """A function of a module as a command. Unlike python's own -m, it imports nothing from the current directory."""
    without = "import sys; sys.path[:] = filter(None, sys.path)"
    run = f"sys.argv[0] = '{name}'; import {module} as m; m.{function}()"
    return [sys.executable, "-c", f"{without}; {_ENDS_WITH_LAUNCHER}; {run}"]


def fairseq(program: str, *words: str) -> List[str]:
    """A command of fairseq with this plugin. Of a flag that is given twice fairseq takes the last."""
    command = python(f"fairseq_cli.{program}", "cli_main", f"fairseq-{program}")
    return [*command, "--user-dir", str(Path(__file__).parents[1]), *words]


def run_all(commands: Sequence[Command], threads: int, show: Callable[[], None] = lambda: None) -> None:
    """Run commands side by side until all have ended well; if one does not, the rest are ended, and it is named.

    Args:
        threads: of each.
        show: called now and then, to show how far they are.
    """
    ended: Queue[Tuple[Command, int]] = Queue()  # in the order in which they do: the first that fails is to blame
    processes: List[Popen] = []
    with _interrupted_by_signals():
        try:
            for command in commands:
                processes.append(_start(command, threads))
                Thread(target=lambda c, p: ended.put((c, p.wait())), args=(command, processes[-1]), daemon=True).start()
            for _ in commands:
                command, status = _wait(ended, show)
                if status:
                    raise failure(command.name, describe_end(status), command.log)
            show()
        except KeyboardInterrupt:
            raise UserError(INTERRUPTED) from None
        finally:
            _end(processes)


def failure(name: str, how: str, log: Optional[Path]) -> UserError:
    """What is said of a command that ended badly, with the last thing that it said itself."""
    words = log.read_text(errors="replace") if log and log.exists() else ""
    full = log is not None and PREFIX not in words and shutil.disk_usage(log.parent).free < ROOM
    said = f": {'there is no room for its log' if full else last_words(words)} (see '{log}');" if log else ":"
    return UserError(f"{name} {how}{said} run the same command to go on")


def _start(command: Command, threads: int) -> Popen:
    environment = {name: value for name, value in os.environ.items() if name not in (*OUTER_WORLD, QUIET)}
    environment.update({"OMP_NUM_THREADS": str(threads), LAUNCHER: str(os.getpid())})
    if command.log:
        command.log.unlink(missing_ok=True)  # it may be a link to somewhere else
    with open(command.log, "w") if command.log else nullcontext() as log:
        return Popen(command.words, env=environment, stdout=log, stderr=log)


def _wait(ended: Queue[Tuple[Command, int]], show: Callable[[], None]) -> Tuple[Command, int]:
    seconds = 0.5 if sys.stderr.isatty() else 10  # a bar in a file is read line by line
    while True:
        try:
            return ended.get(timeout=seconds)
        except Empty:
            show()


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and (but under nohup) SIGHUP be as Ctrl-C: a launcher that is told to end leaves nothing behind."""
    if current_thread() is not main_thread():
        yield  # only the main thread may say what a signal does
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if number == signal.SIGTERM or handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(processes: List[Popen]) -> None:
    """End what still runs: gently, and if that takes too long, or another signal asks for it, at once."""
    for process in processes:
        process.terminate()
    try:
        deadline = time.monotonic() + 10
        for process in processes:
            process.wait(max(0, deadline - time.monotonic()))
    except (TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def describe_end(status: int) -> str:
    """How a command ended, by the status of its process."""
    if status >= 0:
        return f"failed with status {status}"
    names = {int(number): number.name for number in signal.Signals}  # of real-time signals there are two
    return f"was killed by {names.get(-status, f'signal {-status}')}"


def last_words(text: str) -> str:
    """Of all that a command printed: its error, if that is one of ours, else its last line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((*SLURMS, *NO_ERRORS))]
    ours = [line.partition(PREFIX)[2] for line in lines if PREFIX in line]
    return ours[-1] if ours else (lines or ["it said nothing"])[-1][:MOST_WORDS]
