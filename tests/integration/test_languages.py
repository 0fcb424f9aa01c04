"""Models of many languages: their symbols are where they belong, in every task that has them."""

from __future__ import annotations

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

from fairseq_tg.loading.checkpoints import load_checkpoint, split_tensors
from tests.conftest import IN_PROCESS, REPO, USER_DIR, hypotheses, run, run_forked, stir
from tests.multilingual import _BART, KINDS, MULTI, batch_of

PAIR = "aa-en"
OF_MANY = [kind for kind in KINDS if KINDS[kind][0] == MULTI]


def symbols(task, kind):
    """Of the source language, of the target language."""
    style = "[{}]" if KINDS[kind][2] is _BART else "__{}__"
    return [task.target_dictionary.index(style.format(lang)) for lang in PAIR.split("-")]


@pytest.mark.parametrize("kind", KINDS)
def test_symbols_are_where_the_model_wants_them(world, kind):
    task = world.task(kind)
    batch = batch_of(task)
    aa, en = symbols(task, kind)
    bos, eos, pad = (getattr(task.target_dictionary, name)() for name in ("bos", "eos", "pad"))
    source = [[token for token in row if token != pad] for row in batch["net_input"]["src_tokens"].tolist()]
    target = [[token for token in row if token != pad] for row in batch["target"].tolist()]
    given = batch["net_input"]["prev_output_tokens"].tolist()
    before, after, starts, ends, first = {
        "m2m": ([aa], [eos], [en], [eos], [eos, en]),
        "tagged": ([en], [eos], [], [eos], [eos]),
        "replaced": ([], [aa], [], [eos], [en]),
        "mbart50": ([aa], [eos], [en], [eos], [eos, en]),
        "mbart25": ([], [eos, aa], [], [eos, en], [en]),
        "bos": ([bos], [eos, aa], [bos], [eos, en], [en, bos]),
    }[kind]
    words = {task.source_dictionary.index(f"a{i}{end}") for i in range(8) for end in ("", "x")}
    for row in source:
        assert row[: len(before)] == before and row[-len(after) :] == after
        assert set(row[len(before) : len(row) - len(after)]) <= words
    for row, shifted in zip(target, given):
        assert row[: len(starts)] == starts and row[-len(ends) :] == ends
        assert shifted[: len(first)] == first
        inner = row[len(starts) : len(row) - len(ends)]
        assert task.strip(row) == inner
        assert task.strip([*starts, *inner[:1], en, *inner[1:], aa, *ends]) == inner  # as a search may put them
    known = Dictionary.load(f"{world.data}/dict.en.txt")
    assert {task.target_dictionary[i] for i in range(len(known), len(task.target_dictionary))} == {
        task.target_dictionary[mark] for mark in task.marks - {bos}
    }
    assert task.empty_sizes == (len(before) + len(after), len(starts) + len(ends))


@pytest.mark.parametrize("kind", OF_MANY)
def test_translations_are_those_of_fairseqs_own_task(world, kind):
    base = world.base(kind)
    for pair in ("aa-en", "en-bb"):
        found = hypotheses(world.generate(kind, pair, base, "--beam", "3"))
        own = world.generate(kind, pair, base, "--beam", "3", "--required-batch-size-multiple", "1", tg=False)
        assert found == hypotheses(own) and len(found) == 12
        languages = {word[0] for text in found.values() for word in text.split()}
        assert languages <= {"E" if pair.endswith("en") else pair[-1]} or kind != "m2m"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_actor_changes_nothing(world, kind, tmp_path):
    tg, base = world.train(kind, tmp_path, "--lr", "0"), world.base(kind)
    for beam in ("1", "3"):
        outputs = [hypotheses(world.generate(kind, PAIR, path, "--beam", beam)) for path in (base, tg)]
        assert outputs[0] == outputs[1] and len(outputs[0]) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forced_is_incremental_is_native(world, kind):
    task = world.task(kind)
    arch = "tg_bart" if KINDS[kind][2] is _BART else "tg_transformer"
    config = OmegaConf.create({"_name": arch, "base_checkpoint": world.base(kind), "actor": "ff"})
    model = stir(task.build_model(config), 0.3).eval()
    generation = OmegaConf.structured(GenerationConfig(beam=1, max_len_b=15))
    model.prepare_for_inference_(OmegaConf.create({"generation": generation}))
    batch = batch_of(task)
    fast = task.build_generator([model], generation)
    slow = task.build_generator([model], generation, seq_gen_cls=SequenceGenerator)
    found, expected = (task.inference_step(generator, [model], batch) for generator in (fast, slow))
    assert fast._engine is not None
    eos = batch["net_input"]["prev_output_tokens"][0, 0].item()
    for row, ((a,), (b,)) in enumerate(zip(found, expected)):
        assert a["tokens"].tolist() == b["tokens"].tolist()
        assert torch.allclose(a["positional_scores"], b["positional_scores"], atol=1e-4)
        given = torch.tensor([[eos, *a["tokens"][:-1].tolist()]])
        inputs = {name: batch["net_input"][name][row : row + 1] for name in ("src_tokens", "src_lengths")}
        with torch.no_grad():
            forced = model.get_normalized_probs(model(**inputs, prev_output_tokens=given), log_probs=True)[0]
        assert torch.allclose(forced.gather(1, a["tokens"][:, None])[:, 0], a["positional_scores"], atol=1e-4)


@pytest.mark.parametrize("kind", ["m2m", "mbart25", "mbart50"])
def test_a_search_leaves_nothing_behind_in_a_model(world, kind):
    """fairseq's BART remembers the beam of the last generator that was made for it, and then misses sources."""
    task = world.task(kind)
    arch = "tg_bart" if KINDS[kind][2] is _BART else "tg_transformer"
    config = OmegaConf.create({"_name": arch, "base_checkpoint": world.base(kind)})
    (base,), _ = checkpoint_utils.load_model_ensemble([world.base(kind)], task=task)
    for model in (base.eval(), task.build_model(config).eval()):
        batch = batch_of(task)
        before = model(**batch["net_input"])[0].detach()
        for beam in (4, 3):
            generation = OmegaConf.structured(GenerationConfig(beam=beam, max_len_b=5))
            generator = task.build_generator([model], generation, seq_gen_cls=SequenceGenerator)
            found = task.inference_step(generator, [model], batch)
            assert {len(hypotheses) for hypotheses in found} == {beam}
            assert torch.equal(model(**batch["net_input"])[0], before)


def test_interactive_translates_what_generate_does(world, tmp_path):
    for kind in ("m2m", "mbart25"):
        base = world.base(kind)
        expected = hypotheses(world.generate(kind, PAIR, base, "--beam", "2"))
        printed = run(
            *("fairseq-interactive", world.data, *world.flags(kind), "-s", "aa", "-t", "en", "--path", base),
            *("--input", world.directory / "valid.aa-en.aa", "--beam", "2", "--max-len-b", "20", *IN_PROCESS),
        )
        assert hypotheses(printed) == expected


def test_training_goes_on_exactly(world, tmp_path):
    whole = world.train("m2m", tmp_path / "whole", "--max-epoch", "2")
    world.train("m2m", tmp_path / "parts", "--max-epoch", "1")
    parts = world.train("m2m", tmp_path / "parts", "--max-epoch", "2")
    (a, b) = (split_tensors(load_checkpoint(path)["model"])[1] for path in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a) and a


def test_training_goes_on_exactly_in_a_pass_of_several_epochs(world, tmp_path):
    """Of 480 sentences, 100 an epoch: the second of five is the first of a training that goes on."""
    epochs = ["--virtual-epoch-size", "100", "--sampling-method", "temperature", "--sampling-temperature", "2"]
    whole = world.train("m2m", tmp_path / "whole", *epochs, "--max-epoch", "3")
    world.train("m2m", tmp_path / "parts", *epochs, "--max-epoch", "1")
    parts = world.train("m2m", tmp_path / "parts", *epochs, "--max-epoch", "3")
    (a, b) = (split_tensors(load_checkpoint(path)["model"])[1] for path in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a) and a


HYDRA = {
    "m2m": ("tg_transformer", ["lang_pairs='aa-en,en-bb'", "encoder_langtok=src", "decoder_langtok=true"]),
    "mbart25": ("tg_bart", ["source_lang=aa", "target_lang=en"]),
}


@pytest.mark.parametrize("kind", HYDRA)
def test_hydra_trains_a_model_of_many_languages(world, kind, tmp_path):
    arch, options = HYDRA[kind]
    done = run_forked(
        *("fairseq-hydra-train", "--config-dir", REPO / "user_dir_configs", "--config-name", "tg"),
        *(f"+model._name={arch}", f"model.base_checkpoint={world.base(kind)}", "optimization.max_update=2"),
        *(f"task._name=tg_{KINDS[kind][0]}", f"task.data={world.data}", "+task.langs='aa,bb,en'"),
        *(f"+task.{option}" for option in options),
        *(f"common.user_dir={USER_DIR}", "dataset.num_workers=0", "common.cpu=true"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = world.generate(kind, PAIR, f"{tmp_path}/checkpoints/checkpoint_last.pt", "--beam", "1")
    assert len(hypotheses(found)) == 12
