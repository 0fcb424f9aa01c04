"""The fairseq-tg command."""

from __future__ import annotations

import argparse
import os
from typing import List, Optional

from fairseq_tg import __version__
from fairseq_tg.actor_files import export_actor, import_actor


def _export(args: argparse.Namespace) -> None:
    metadata = export_actor(args.checkpoint, args.actor_file)
    size = os.path.getsize(args.actor_file)
    print(f"{args.actor_file}: {metadata.actor} actors for base {metadata.base_fingerprint[:16]}, {size:,} bytes")


def _import(args: argparse.Namespace) -> None:
    metadata = import_actor(args.base, args.actor_file, args.checkpoint)
    print(f"{args.checkpoint}: {metadata.arch}, {metadata.actor} actors on base {metadata.base_fingerprint[:16]}")


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
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    args = get_parser().parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
