"""The fairseq-tg command."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import io
import logging
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Type

from fairseq_tg import __version__
from fairseq_tg.arguments import Parser, add_options, at_least, read_options
from fairseq_tg.compiled.library import EngineError
from fairseq_tg.compiled.options import Compilation, ExplainOptions, SearchOptions, Translation
from fairseq_tg.errors import INTERRUPTED, UserError, printable, report_in_one_line
from fairseq_tg.evaluation.options import BenchOptions, ReportOptions
from fairseq_tg.files import check_no_input, replacing
from fairseq_tg.recipe.options import Ablation, Recipe
from fairseq_tg.serve.options import ServeOptions

# What a command needs is imported when it runs: fairseq takes seconds, and a compiled model needs none of it.


def _say(text: str) -> None:
    """Print what is partly from a file."""
    print(printable(text))


def _export(args: argparse.Namespace) -> None:
    from fairseq_tg.models.actor_files import export_actor

    metadata = export_actor(args.checkpoint, args.actor_file)
    size = os.path.getsize(args.actor_file)
    _say(f"{args.actor_file}: {metadata.actor} actors for base {metadata.base_fingerprint[:16]}, {size:,} bytes")


def _import(args: argparse.Namespace) -> None:
    from fairseq_tg.models.actor_files import import_actor

    metadata = import_actor(args.base, args.actor_file, args.checkpoint)
    _say(f"{args.checkpoint}: {metadata.arch}, {metadata.actor} actors on base {metadata.base_fingerprint[:16]}")


def _average(args: argparse.Namespace) -> None:
    from fairseq_tg.models.actor_files import average_actors

    metadata = average_actors(args.actors, args.out)
    base = metadata.base_fingerprint[:16]
    _say(f"{args.out}: the mean of {len(args.actors)} {metadata.actor} actors for base {base}")


def _status(args: argparse.Namespace) -> None:
    from fairseq_tg.corpus.status import status

    print(status(args.directory))


def _merge(args: argparse.Namespace) -> None:
    from fairseq_tg.corpus.assemble import merge
    from fairseq_tg.corpus.build import describe

    out = args.out or args.directories[0]
    print(describe(Path(out), merge(args.directories, out, args.data)))


def _build(args: argparse.Namespace) -> None:
    from fairseq_tg.corpus.build import describe
    from fairseq_tg.corpus.run import SHARD_FLAGS
    from fairseq_tg.launch.shards import build_locally, build_on_slurm

    directory = _value_of("--kbest-dir", args.flags)
    for flag in args.flags:
        if flag.partition("=")[0] in SHARD_FLAGS:
            raise UserError(f"{flag.partition('=')[0]} is set for each of the --shards: leave it out")
    if not args.slurm:
        manifest = build_locally(args.flags, directory, args.shards, args.threads)
    else:
        manifest = build_on_slurm(args.flags, directory, args.shards, args.threads or 8, _slurm_options(args))
    print(describe(Path(directory), manifest))


def _train(args: argparse.Namespace) -> None:
    from fairseq_tg.launch.ranks import train_locally, train_on_slurm

    if find_spec("fairseq") is None:  # for the ranks: to wait for them, seconds and memory for it would be wasted
        raise _missing("fairseq")
    directory = _value_of("--save-dir", args.flags)
    if args.slurm:
        train_on_slurm(args.flags, args.ranks, args.threads, f"{directory}.logs", _slurm_options(args))
    else:
        train_locally(args.flags, args.ranks, args.threads)


def _slurm_options(args: argparse.Namespace) -> Dict[str, str]:
    for item in args.slurm_option:
        if not item.partition("=")[2]:
            raise UserError(f"--slurm-option {item}: give NAME=VALUE, as in partition=long")
    pairs = [item.partition("=") for item in args.slurm_option]
    return {name.replace("_", "-"): value for name, _, value in pairs}


def _value_of(flag: str, flags: List[str]) -> str:
    for word, following in zip(flags, [*flags[1:], ""]):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else following
    raise UserError(f"no {flag}: give it with the other flags, behind --")


def _compile(options: Compilation) -> None:
    from fairseq_tg.compiled.compile import compile_model
    from fairseq_tg.compiled.model_file import summary
    from fairseq_tg.corpus.shortlist import make_shortlist
    from fairseq_tg.tasks.loading import load_model

    read = (options.checkpoint, options.actor_weights, options.sentencepiece_model, options.bpe_codes)
    check_no_input(options.out, *read, options.shortlist)
    model, task = load_model(options.checkpoint, options.data, options.actor_weights)
    shortlist = functools.partial(make_shortlist, task, options) if options.shortlist else None
    words, parameters = summary(compile_model(model, task, options, shortlist))
    print(f"{options.out}: {words}, {parameters:,} parameters, {os.path.getsize(options.out):,} bytes")


def _translate(options: Translation) -> None:
    from fairseq_tg.compiled.actor_file import named_files
    from fairseq_tg.compiled.filter import Filter
    from fairseq_tg.compiled.translator import Translator

    actors = named_files(options.actor)
    try:
        search = {name: getattr(options, name) for name in SearchOptions.__dataclass_fields__}
        translator = Translator.load(options.model, **search, actors=actors)
        stream = Filter(translator, options.batch_size, options.nbest, options.scores)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None
    if sys.stdin is None or sys.stdout is None:
        raise UserError("standard input or output is closed: give lines, and somewhere for their translations to go")
    try:
        failed = stream.run(sys.stdin.buffer, sys.stdout.buffer)
    except KeyboardInterrupt:
        os._exit(1)  # who waited for our output has gone
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{error}; the translations so far are written") from None
    if failed:
        raise UserError(f"{failed} line{' was' if failed == 1 else 's were'} not translated: see above")


def _explain(options: ExplainOptions) -> None:
    import json

    from fairseq_tg.compiled.explain import explain
    from fairseq_tg.compiled.pictures import as_svg, as_terminal
    from fairseq_tg.compiled.translator import Translator

    if options.svg:
        check_no_input(options.svg, options.model)
    elif sys.stdout is None:
        raise UserError("standard output is closed: give --svg, or somewhere to print to")
    text = os.fsencode(options.text).decode("utf-8", "replace")  # it may be no text in the language of the terminal
    if not text.strip():
        raise UserError("there is nothing to translate: give a text")
    try:
        pair = {"source_lang": options.source_lang, "target_lang": options.target_lang}
        translator = Translator.load(options.model, **pair, alone=True)
        explanation = explain(translator, text)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None
    if options.svg:
        with replacing(options.svg) as temporary:
            Path(temporary).write_text(as_svg(explanation), encoding="utf-8")
    if options.json:
        print(json.dumps(explanation.to_json()))  # in ASCII: a terminal's language may have no other letters
    elif not options.svg:
        print(as_terminal(explanation, sys.stdout.isatty()))


def _serve(options: ServeOptions) -> None:
    try:
        from fairseq_tg.serve.server import serve
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'fairseq_tg[serve]'") from None
    serve(options)


def _bench(options: BenchOptions) -> None:
    from fairseq_tg.evaluation.bench import run, sections
    from fairseq_tg.evaluation.tables import as_text

    print(as_text(sections(run(options))), end="")
    print(f"written to {options.out}: {', '.join(sorted(path.name for path in Path(options.out).glob('bench.*')))}")


def _report(options: ReportOptions) -> None:
    from fairseq_tg.evaluation.report import make_report, sections
    from fairseq_tg.evaluation.tables import as_text

    print(as_text(sections(make_report(options))), end="")
    print(f"{options.out}/report.html")


def _run(recipe: Recipe) -> None:
    from fairseq_tg.recipe.run import run

    for report in run(recipe):
        print((report / "report.txt").read_text(encoding="utf-8"), end="")
        print(report / "report.html")


def _ablate(recipe: Ablation) -> None:
    from fairseq_tg.recipe.ablation import ablate

    _, table = ablate(recipe)
    print(table, end="")
    figure = Path(recipe.out) / f"ablation-{recipe.kind}.png"
    if figure.is_file():  # without matplotlib there is none
        print(figure)


#: What runs a compiled model
WITHOUT_FAIRSEQ = (_translate, _serve, _explain)


def _add_command(
    commands: Any, name: str, options: Type[Any], run: Callable[[Any], None], help: str, description: str = ""
) -> None:
    """A command whose options are the fields of a dataclass, and whose function takes that."""
    parser = commands.add_parser(name, help=help, description=description or None)
    add_options(parser, options)
    parser.set_defaults(run=lambda args: run(read_options(options, args)), needs_fairseq=run not in WITHOUT_FAIRSEQ)


def _add_actor_commands(actor: argparse.ArgumentParser) -> None:
    commands = actor.add_subparsers(title="commands", metavar="COMMAND", required=True)
    export = commands.add_parser("export", help="write the actors of a tg checkpoint to a file of their own")
    export.add_argument("checkpoint", help="a checkpoint trained with --arch tg_*")
    export.add_argument(
        "actor_file", help="the safetensors file to write; use it with --path BASE --actor-weights FILE"
    )
    export.set_defaults(run=_export)

    import_ = commands.add_parser("import", help="make a tg checkpoint of a base and an actor file")
    import_.add_argument("base", help="the base checkpoint that the actors were trained on")
    import_.add_argument("actor_file", help="a file that `fairseq-tg actor export` made")
    import_.add_argument("checkpoint", help="the tg checkpoint to write")
    import_.set_defaults(run=_import)

    average = commands.add_parser("average", help="the mean of several actors of one base")
    average.add_argument("actors", nargs="+", metavar="ACTORS", help="tg checkpoints, or actor files")
    average.add_argument("out", help="what to write: an actor file (.safetensors) or a tg checkpoint (.pt)")
    average.set_defaults(run=_average)


def _add_corpus_commands(corpus: argparse.ArgumentParser) -> None:
    commands = corpus.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = commands.add_parser("status", help="how far a build is, and what it gave so far")
    show.add_argument("directory", help="the --kbest-dir of a build")
    show.set_defaults(run=_status)

    join = commands.add_parser("merge", help="make one corpus of the shards of a build")
    join.add_argument("directories", nargs="+", metavar="DIR", help="directories with the shards of one build")
    join.add_argument("--out", help="where the corpus goes (default: the first DIR)")
    join.add_argument("--data", help="the data directory, if it is not where the build found it")
    join.set_defaults(run=_merge)

    build = commands.add_parser(
        "build",
        help="build a corpus in several processes, here or on a Slurm cluster",
        usage="fairseq-tg corpus build --shards N [--slurm ...] -- DATA --path BASE --kbest-dir OUT ...",
        description="Runs fairseq-generate for every shard, waits, and merges. Started again, it goes on where it was.",
    )
    build.add_argument("--shards", type=at_least(1), required=True, help="number of processes or jobs")
    build.add_argument("--threads", type=at_least(1), help="of a process (default: its share of the cores; 8 on Slurm)")
    _add_slurm_options(build)
    build.add_argument("flags", nargs="+", metavar="FLAGS", help="of fairseq-generate, behind --")
    build.set_defaults(run=_build)


def _add_slurm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slurm", action="store_true", help="submit to a Slurm cluster instead of running here")
    parser.add_argument(
        "--slurm-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="passed on to sbatch, as in partition=long or time=1440; may be given several times",
    )


def _add_train_command(commands: argparse._SubParsersAction) -> None:
    train = commands.add_parser(
        "train",
        help="fairseq-train on several CPU ranks, here or on a Slurm cluster",
        usage="fairseq-tg train --ranks N [--slurm ...] -- DATA --arch tg_transformer --save-dir OUT ...",
        description="Starts fairseq-train for every rank and fails if one does. Started again, it goes on from the "
        "last checkpoint. N ranks take N batches for an update: as one rank with --update-freq N. (With GPUs, "
        "fairseq-train starts its own ranks.)",
    )
    train.add_argument("--ranks", type=at_least(1), required=True, help="number of processes")
    train.add_argument("--threads", type=at_least(1), default=1, help="of a process (default: 1)")
    _add_slurm_options(train)
    train.add_argument("flags", nargs="+", metavar="FLAGS", help="of fairseq-train, behind --")
    train.set_defaults(run=_train, needs_fairseq=False)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fairseq_tg.compiled.library import described

        print(f"fairseq_tg {__version__}, {described()}")
        parser.exit()


def get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fairseq-tg", description="Trainable greedy decoding for fairseq.")
    parser.add_argument("--version", action=_Version, nargs=0, help="this version, and the native engine that it has")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_actor_commands(commands.add_parser("actor", help="take actors out of a tg checkpoint, or put them on a base"))
    _add_corpus_commands(commands.add_parser("corpus", help="build oracle k-best corpora, look at them, merge them"))
    _add_train_command(commands)
    again = "Started again, it goes on where it was; stages that are done and whole are not done again."
    signals = "SIGTERM ends it when what is under way is answered; SIGHUP makes it read its model files again."
    for name, options, run, help, *description in (
        ("compile", Compilation, _compile, "write a checkpoint to one file that translates without fairseq"),
        ("translate", Translation, _translate, "translate lines, from standard input to standard output"),
        ("explain", ExplainOptions, _explain, "what the actors of a compiled model do with a text"),
        ("serve", ServeOptions, _serve, "translate over HTTP, with LibreTranslate's API and a page", signals),
        ("bench", BenchOptions, _bench, "tokens a second, latency, memory and BLEU of every way to decode a model"),
        ("report", ReportOptions, _report, "the paper's tables and figures for your model: quality, speed, examples"),
        ("run", Recipe, _run, "the whole recipe for a base: oracle corpus, actor, report", again),
        ("ablate", Ablation, _ablate, "the paper's ablations for a base, one at a time", again),
    ):
        _add_command(commands, name, options, run, help, *description)
    return parser


def _missing(package: Optional[str]) -> UserError:
    return UserError(f"this command needs {package}: pip install 'fairseq_tg[train]'")


def main(argv: Optional[List[str]] = None) -> None:
    report_in_one_line()
    try:
        _main(argv)
    except KeyboardInterrupt:
        raise UserError(INTERRUPTED) from None


def _main(argv: Optional[List[str]]) -> None:
    args = get_parser().parse_args(argv)
    if getattr(args, "needs_fairseq", True):
        try:  # it brings the plugin: now, and not in the middle of a module that the plugin needs
            import fairseq  # noqa: F401
        except ModuleNotFoundError as error:
            raise _missing(error.name) from None
        beside = str(Path(__file__).parents[1])
        if beside not in sys.path:  # as --user-dir adds it: an objective that fairseq finds is found here too
            sys.path.append(beside)
    logging.disable(logging.INFO)  # fairseq tells of every dictionary, and torch warns of fairseq
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # in whatever encoding, something is said
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args.run(args)
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)  # who read our output has gone
    except EngineError as error:
        raise UserError(str(error)) from None
    except MemoryError:
        raise UserError(
            "there is not enough memory: take a smaller model, batch or beam, or a machine with more"
        ) from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename is not None:
            raise UserError(
                f"'{os.fsdecode(error.filename)}': {error.strerror}; give a place where you may read and write"
            ) from None
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        _drop_output()
        raise UserError(f"cannot write: {error.strerror}; what was written so far is there") from None
    finally:
        logging.disable(logging.NOTSET)


def _drop_output() -> None:
    """Let what is still to be printed go nowhere: at the end of the process it would fail once more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
