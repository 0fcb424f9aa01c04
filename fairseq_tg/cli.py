"""The fairseq-tg command."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import List, Optional

from fairseq_tg import __version__
from fairseq_tg.actor_files import export_actor, import_actor
from fairseq_tg.corpus.assemble import merge
from fairseq_tg.corpus.build import describe
from fairseq_tg.corpus.launch import build_locally, build_on_slurm
from fairseq_tg.corpus.status import status
from fairseq_tg.decoding.corpus_run import SHARD_FLAGS
from fairseq_tg.errors import UserError


def _export(args: argparse.Namespace) -> None:
    metadata = export_actor(args.checkpoint, args.actor_file)
    size = os.path.getsize(args.actor_file)
    print(f"{args.actor_file}: {metadata.actor} actors for base {metadata.base_fingerprint[:16]}, {size:,} bytes")


def _import(args: argparse.Namespace) -> None:
    metadata = import_actor(args.base, args.actor_file, args.checkpoint)
    print(f"{args.checkpoint}: {metadata.arch}, {metadata.actor} actors on base {metadata.base_fingerprint[:16]}")


def _status(args: argparse.Namespace) -> None:
    print(status(args.directory))


def _merge(args: argparse.Namespace) -> None:
    out = args.out or args.directories[0]
    print(describe(Path(out), merge(args.directories, out, args.data)))


def _build(args: argparse.Namespace) -> None:
    directory = _value_of("--kbest-dir", args.flags)
    if args.shards < 1:
        raise UserError(f"--shards {args.shards}: give the number of processes")
    for flag in args.flags:
        if flag.partition("=")[0] in SHARD_FLAGS:
            raise UserError(f"{flag.partition('=')[0]} is set for each of the --shards: leave it out")
    if not args.slurm:
        manifest = build_locally(args.flags, directory, args.shards)
    else:
        parameters = dict(item.partition("=")[::2] for item in args.slurm_option)
        parameters = {f"slurm_{name}": int(value) if value.isdigit() else value for name, value in parameters.items()}
        manifest = build_on_slurm(args.flags, directory, args.shards, args.threads, parameters)
    print(describe(Path(directory), manifest))


def _value_of(flag: str, flags: List[str]) -> str:
    for word, following in zip(flags, [*flags[1:], ""]):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else following
    raise UserError(f"no {flag}: give it with the other flags of fairseq-generate")


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
    build.add_argument("--shards", type=int, required=True, help="number of processes or jobs")
    build.add_argument("--slurm", action="store_true", help="submit jobs instead of running processes here")
    build.add_argument("--threads", type=int, default=8, help="CPUs of a job (with --slurm)")
    build.add_argument(
        "--slurm-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="passed on to submitit, as in partition=long or time=1440; may be given several times",
    )
    build.add_argument("flags", nargs="+", metavar="FLAGS", help="of fairseq-generate, behind --")
    build.set_defaults(run=_build)


def get_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fairseq-tg", description="Trainable greedy decoding for fairseq.")
    parser.add_argument("--version", action="version", version=f"fairseq_tg {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    actor = commands.add_parser("actor", help="take actors out of a tg checkpoint, or put them on a base")
    actor_commands = actor.add_subparsers(title="commands", metavar="COMMAND", required=True)

    export = actor_commands.add_parser("export", help="write the actors of a tg checkpoint to a file of their own")
    export.add_argument("checkpoint", help="a checkpoint trained with --arch tg_*")
    export.add_argument(
        "actor_file", help="the safetensors file to write; use it with --path BASE --actor-weights FILE"
    )
    export.set_defaults(run=_export)

    import_ = actor_commands.add_parser("import", help="make a tg checkpoint of a base and an actor file")
    import_.add_argument("base", help="the base checkpoint that the actors were trained on")
    import_.add_argument("actor_file", help="a file that `fairseq-tg actor export` made")
    import_.add_argument("checkpoint", help="the tg checkpoint to write")
    import_.set_defaults(run=_import)
    _add_corpus_commands(commands.add_parser("corpus", help="build oracle k-best corpora, look at them, merge them"))
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    args = get_parser().parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
