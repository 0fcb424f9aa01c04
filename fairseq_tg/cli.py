"""The fairseq-tg command."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, List, Optional

from fairseq_tg import __version__
from fairseq_tg.arguments import Parser, at_least, number
from fairseq_tg.errors import UserError, report_in_one_line

# What a command needs is imported when it runs: fairseq takes seconds, and a compiled model needs none of it.


def _export(args: argparse.Namespace) -> None:
    from fairseq_tg.models.actor_files import export_actor

    metadata = export_actor(args.checkpoint, args.actor_file)
    size = os.path.getsize(args.actor_file)
    print(f"{args.actor_file}: {metadata.actor} actors for base {metadata.base_fingerprint[:16]}, {size:,} bytes")


def _import(args: argparse.Namespace) -> None:
    from fairseq_tg.models.actor_files import import_actor

    metadata = import_actor(args.base, args.actor_file, args.checkpoint)
    print(f"{args.checkpoint}: {metadata.arch}, {metadata.actor} actors on base {metadata.base_fingerprint[:16]}")


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
        manifest = build_on_slurm(args.flags, directory, args.shards, args.threads or 8, _slurm_parameters(args))
    print(describe(Path(directory), manifest))


def _train(args: argparse.Namespace) -> None:
    from fairseq_tg.launch.ranks import train_locally, train_on_slurm

    directory = _value_of("--save-dir", args.flags)
    if args.slurm:
        train_on_slurm(args.flags, args.ranks, args.threads, f"{directory}.logs", _slurm_parameters(args))
    else:
        train_locally(args.flags, args.ranks, args.threads)


def _slurm_parameters(args: argparse.Namespace) -> Dict[str, Any]:
    for item in args.slurm_option:
        if not item.partition("=")[2]:
            raise UserError(f"--slurm-option {item}: give NAME=VALUE, as in partition=long")
    pairs = [item.partition("=") for item in args.slurm_option]
    return {f"slurm_{name}": int(value) if value.isdigit() else value for name, _, value in pairs}


def _value_of(flag: str, flags: List[str]) -> str:
    for word, following in zip(flags, [*flags[1:], ""]):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else following
    raise UserError(f"no {flag}: give it with the other flags, behind --")


def _compile(args: argparse.Namespace) -> None:
    from fairseq_tg.compiled.compile import compile_model
    from fairseq_tg.compiled.model_file import summary
    from fairseq_tg.tasks.loading import load_model

    model, task = load_model(args.checkpoint, args.data, args.actor_weights)
    options = ["sentencepiece_model", "bpe_codes", "no_subword", "tokenizer", "int8"]
    words, parameters = summary(compile_model(model, task, args.out, **{name: getattr(args, name) for name in options}))
    print(f"{args.out}: {words}, {parameters:,} parameters, {os.path.getsize(args.out):,} bytes")


def _translate(args: argparse.Namespace) -> None:
    from fairseq_tg.compiled.filter import translate_stream
    from fairseq_tg.compiled.translator import Translator

    options = ["threads", "max_len_a", "max_len_b", "min_len", "unk_penalty"]
    try:
        translator = Translator.load(args.model, **{name: getattr(args, name) for name in options})
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None
    try:
        failed = translate_stream(translator, sys.stdin.buffer, sys.stdout.buffer, args.batch_size)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # who read our output, or waited for it, has gone
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{error}; the translations so far are written") from None
    if failed:
        raise UserError(f"{failed} line{' was' if failed == 1 else 's were'} not translated: see above")


def _bench(args: argparse.Namespace) -> None:
    from fairseq_tg.evaluation.bench import Options, run
    from fairseq_tg.evaluation.bench_tables import tables

    names = ["data", "base", "cont", "threads", "subset", "sentences", "batched_sentences", "batch_size", "turns"]
    values = {name: getattr(args, name) for name in [*names, "max_len_b", "out"]}
    print(tables(run(Options(actors=tuple(args.actor), peer=args.peer is not None, **values))), end="")
    print(f"written to {args.out}: {', '.join(sorted(path.name for path in Path(args.out).glob('bench.*')))}")


def _report(args: argparse.Namespace) -> None:
    from fairseq_tg.evaluation.report import Options, make_report, tables

    names = ["data", "base", "out", "subset", "oracle_beam", "threads", "train_log"]
    values = {name: getattr(args, name) for name in names}
    print(tables(make_report(Options(actors=tuple(args.actor), **values))), end="")
    print(f"{args.out}/report.html")


def _recipe(args: argparse.Namespace) -> Any:
    from fairseq_tg.recipe.run import Recipe
    from fairseq_tg.recipe.training import Training

    training = {field.name: getattr(args, field.name) for field in fields(Training) if hasattr(args, field.name)}
    recipe = {field.name: getattr(args, field.name) for field in fields(Recipe) if hasattr(args, field.name)}
    return Recipe(**recipe, training=Training(**training))


def _run(args: argparse.Namespace) -> None:
    from fairseq_tg.recipe.run import run

    report = run(_recipe(args))
    print((report / "report.txt").read_text(), end="")
    print(report / "report.html")


def _ablate(args: argparse.Namespace) -> None:
    from fairseq_tg.recipe.ablation import ablate

    _, table = ablate(args.kind, _recipe(args), tuple(args.hidden), tuple(args.beams), tuple(args.only))
    print(table, end="")
    print(f"{args.out}/ablation-{args.kind}.png")


def _add_recipe_options(parser: argparse.ArgumentParser, subset: str) -> None:
    parser.add_argument("--data", required=True, help="data directory, with splits train and valid and --subset")
    parser.add_argument("--base", required=True, help="the base's checkpoint")
    parser.add_argument("--workers", type=at_least(1), default=os.cpu_count() or 1, help="cores to use (default: all)")
    parser.add_argument("--subset", default=subset, help=f"split to report on (default: {subset})")
    corpus = parser.add_argument_group("the oracle corpus")
    corpus.add_argument("--beam", type=at_least(1), default=35, help="k (default: 35)")
    corpus.add_argument("--objective", default="sbleu", help="what is chosen by (default: sbleu)")
    corpus.add_argument("--selection", default="top1", help="what is chosen (default: top1)")
    corpus.add_argument(
        "--engine", choices=["fairseq", "ctranslate2"], default="fairseq", help="what searches (default: fairseq)"
    )
    corpus.add_argument("--batch-size", type=at_least(1), default=16, help="sentences searched together (default: 16)")
    training = parser.add_argument_group("the training; the defaults were chosen on validation data")
    training.add_argument("--actor", default="gate", help="(default: gate)")
    training.add_argument("--actor-rank", type=at_least(0), default=0, help="0: the paper's full maps (default: 0)")
    training.add_argument("--lr", type=number(0, 1), default=5e-3, help="at its highest (default: 0.005)")
    training.add_argument("--label-smoothing", type=number(0, 1), default=0.1, help="(default: 0.1)")
    training.add_argument("--max-tokens", type=at_least(1), default=2048, help="of a batch (default: 2048)")
    training.add_argument("--epochs", type=at_least(1), default=5, help="(default: 5)")
    training.add_argument("--patience", type=at_least(1), default=3, help="validations without a gain (default: 3)")
    training.add_argument("--base-dropout", action="store_true", help="keep the base's dropout on")
    training.add_argument("--seed", type=int, default=1, help="(default: 1)")


def _add_run_command(commands: argparse._SubParsersAction) -> None:
    again = "Started again, it goes on where it was; stages that are done and whole are not done again."
    run = commands.add_parser(
        "run", help="the whole recipe for a base: oracle corpus, actor, report", description=again
    )
    run.add_argument("--out", required=True, help="directory for pseudo-bin, actor and report")
    _add_recipe_options(run, subset="test")
    run.set_defaults(run=_run)
    ablation = commands.add_parser("ablate", help="the paper's ablations for a base, one at a time", description=again)
    ablation.add_argument("kind", choices=["actor", "beam", "composition", "objective"], help="what is varied")
    ablation.add_argument("--out", required=True, help="directory; the same as for `run` shares its corpus")
    ablation.add_argument("--hidden", type=at_least(0), nargs="*", default=[0], help="sizes (default: the state's)")
    ablation.add_argument("--beams", type=at_least(1), nargs="*", default=[1, 5, 10, 20, 35, 50], help="(the paper's)")
    ablation.add_argument("--only", nargs="*", default=[], metavar="NAME", help="some of its rows, as gate or k=10")
    _add_recipe_options(ablation, subset="valid")
    ablation.set_defaults(run=_ablate)


def _add_report_command(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser(
        "report", help="the paper's tables and figures for your model: quality, speed, examples"
    )
    report.add_argument("--data", required=True, help="data directory")
    report.add_argument("--base", required=True, help="the base's checkpoint")
    report.add_argument(
        "--actor", action="append", default=[], help="a tg checkpoint of it; may be given several times"
    )
    report.add_argument("--out", required=True, help="directory for report.html, report.json, report.txt and figures")
    report.add_argument("--subset", default="test", help="split to translate (default: test)")
    report.add_argument("--oracle-beam", type=at_least(0), default=35, help="beam of the oracle; 0: none (default: 35)")
    report.add_argument("--threads", type=at_least(1), default=1, help="of every system (default: 1)")
    report.add_argument("--train-log", help="the actor's training log, for its norms (default: train.log beside it)")
    report.set_defaults(run=_report)


def _add_bench_command(commands: argparse._SubParsersAction) -> None:
    bench = commands.add_parser(
        "bench", help="tokens a second, latency, memory and BLEU of every way to decode a model"
    )
    bench.add_argument("--data", required=True, help="data directory")
    bench.add_argument("--base", required=True, help="the base's checkpoint")
    bench.add_argument("--actor", action="append", default=[], help="a tg checkpoint of it; may be given several times")
    bench.add_argument("--cont", help="the whole base trained on the pseudo corpus: an ordinary checkpoint")
    bench.add_argument("--peer", choices=["ctranslate2"], help="an engine to compare with")
    bench.add_argument("--threads", type=at_least(1), default=1, help="of every system (default: 1)")
    bench.add_argument("--subset", default="test", help="split to translate (default: test)")
    bench.add_argument("--sentences", type=at_least(1), default=50, help="translated one by one (default: 50)")
    bench.add_argument("--batched-sentences", type=at_least(1), default=1000, help="in batches (default: 1000)")
    bench.add_argument("--batch-size", type=at_least(1), default=32, help="(default: 32)")
    bench.add_argument("--turns", type=at_least(1), default=5, help="times everything is measured (default: 5)")
    bench.add_argument("--max-len-b", type=at_least(0), default=200, help="most tokens of a translation (default: 200)")
    bench.add_argument("--out", default="bench", help="directory for the results (default: bench)")
    bench.set_defaults(run=_bench)


def _add_compiled_commands(commands: argparse._SubParsersAction) -> None:
    make = commands.add_parser("compile", help="write a checkpoint to one file that translates without fairseq")
    make.add_argument("checkpoint", help="a Transformer's checkpoint, with actors (tg.pt) or without")
    make.add_argument("out", help="the file to write, as model.tg")
    make.add_argument("--data", help="data directory with the dictionaries (default: where it was trained)")
    make.add_argument("--actor-weights", help="actor file to put on the checkpoint")
    make.add_argument("--sentencepiece-model", help="the source side's subword model, of sentencepiece")
    make.add_argument("--bpe-codes", help="the source side's subword model, of subword-nmt")
    make.add_argument("--no-subword", action="store_true", help="lines are in the dictionary's symbols already")
    make.add_argument("--tokenizer", choices=["none", "moses"], default="none", help="applied before subwords")
    make.add_argument("--int8", action="store_true", help="weights of 8 bits: a quarter of the size, faster")
    make.set_defaults(run=_compile)

    translate = commands.add_parser("translate", help="translate lines, from standard input to standard output")
    translate.add_argument("model", help="a file that `fairseq-tg compile` made")
    translate.add_argument(
        "--batch-size", type=at_least(1), default=1, help="lines translated together (default: 1, each at once)"
    )
    translate.add_argument("--threads", type=at_least(1), default=1, help="cores to use (default: 1)")
    translate.add_argument(
        "--max-len-a", type=number(0, 100), default=0, help="at most a x + b tokens of a source of x"
    )
    translate.add_argument("--max-len-b", type=at_least(0), default=200, help="(default: 0 and 200, as in fairseq)")
    translate.add_argument("--min-len", type=at_least(0), default=1, help="at least these tokens (default: 1)")
    translate.add_argument("--unkpen", dest="unk_penalty", type=number(-1e6, 1e6), default=0, help="of unknown words")
    translate.set_defaults(run=_translate)


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
        help="passed on to submitit, as in partition=long or time=1440; may be given several times",
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
    train.set_defaults(run=_train)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fairseq_tg.compiled.engine import described

        print(f"fairseq_tg {__version__}, {described()}")
        parser.exit()


def get_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fairseq-tg", description="Trainable greedy decoding for fairseq.")
    parser.add_argument("--version", action=_Version, nargs=0, help="this version, and the native engine that it has")
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
    _add_train_command(commands)
    _add_compiled_commands(commands)
    _add_bench_command(commands)
    _add_report_command(commands)
    _add_run_command(commands)
    return parser


def main(argv: Optional[List[str]] = None) -> None:
    report_in_one_line()
    args = get_parser().parse_args(argv)
    logging.disable(logging.INFO)  # fairseq tells of every dictionary, and torch warns of fairseq
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args.run(args)
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
