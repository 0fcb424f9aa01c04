"""Our commands and fairseq's as forks of the tests' own process: what they import takes five seconds of a core else.

A fork is a process like any other, with a number, files, an environment, signals and an end of its own. What is left
out is the start of its interpreter; tests that go through `run_process` have that, too.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from typing import Any, List, Mapping, Optional

import torch
from fairseq import checkpoint_utils
from fairseq_cli import train

from fairseq_tg.launch.processes import python

#: What is run in a fork, by the words that `python` makes of it
_FORKED = re.compile(r"import (?:fairseq_cli\.\w+|fairseq_tg\.cli|fairseq_tg\.evaluation\.measure) as m; m\.\w+\(\)$")


def words_of(command: str, *flags: Any) -> List[str]:
    """An installed command, as one that `Forked` runs in a fork."""
    name = command.replace("-", "_")
    ours = command == "fairseq-tg"
    module, function = ("fairseq_tg.cli", "main") if ours else (name.replace("_", "_cli.", 1), "cli_main")
    return [*python(module, function, command), *map(str, flags)]


def forget_other_commands() -> None:
    """What fairseq keeps from one command for the next, as if there were one in a process."""
    for function in (checkpoint_utils.save_checkpoint, train.should_stop_early):
        vars(function).pop("best", None)


class Forked(subprocess.Popen):
    """A process of the standard library's; a fork of this one, if the command is one of `_FORKED`."""

    def _execute_child(self, args: Any, *others: Any) -> None:  # type: ignore[override]
        if not isinstance(args, list) or args[:2] != [sys.executable, "-c"] or not _FORKED.search(args[2]):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        _, prepare, _, _, cwd, environment = others[:6]
        pipes = others[9:15]
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                _take_place(pipes[0], pipes[3], pipes[5], cwd, environment)
                if prepare is not None:
                    prepare()
                if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
                    signal.signal(signal.SIGINT, signal.default_int_handler)  # as the interpreter does at its start
                status = _run(args[2], ["-c", *args[3:]])
            finally:
                os._exit(status)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _take_place(stdin: int, stdout: int, stderr: int, cwd: Any, environment: Optional[Mapping[str, str]]) -> None:
    """Become a new process: what was opened or set for the tests is gone."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, source in enumerate((stdin, stdout, stderr)):
        if source != -1:
            os.dup2(source, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != nothing and os.path.exists(f"/proc/self/fd/{name}"):
            os.dup2(nothing, int(name))  # and not closed: whoever has it would close another file of that number
    # (which a fork of a fork lets go of: the files stay open then)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if cwd is not None:
        os.chdir(cwd)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    gc.freeze()
    atexit._clear()
    logging.disable(logging.NOTSET)  # as `fairseq-tg` has it
    logging.root.handlers.clear()
    forget_other_commands()
    for name in [name for name in sys.modules if name.startswith("fairseq_cli")]:
        del sys.modules[name]  # they say where to log when they are imported
    torch.set_num_threads(1)  # a fork has none of the threads that OpenMP would wait for


def _run(code: str, words: List[str]) -> int:
    """Run a program to its end, and give the status that the interpreter would end with."""
    sys.argv = words
    status: Any = None
    try:
        exec(code, {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)
