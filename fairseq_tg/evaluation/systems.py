"""What is compared: every system is a function from source sentences to translations, in token ids.

Both are without language symbols, which a system puts where its model wants them.

A system is described by plain values, so that a process of its own can build it, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

from fairseq_tg.languages import LanguageOptions

#: The dictionaries, kept beside a model that was converted to CTranslate2.
SYMBOLS = "symbols.json"

Tokens = List[int]
Translate = Callable[[Sequence[Tokens]], List[Tokens]]
Search = Callable[[Sequence[Tokens]], List[List[Tokens]]]
#: Gives the model of a checkpoint, and a task, for a data directory. Who builds several systems of one model gives
#: `functools.cache` of `load_model`: the checkpoint is read once, and there is one model.
Load = Callable[[str, str], Tuple[Any, Any]]


@dataclass(frozen=True)
class System:
    """One way to decode one model."""

    name: str
    kind: str  # fairseq, fast, npad, compiled or ctranslate2
    path: str  # the checkpoint, compiled file or converted model
    data: str
    beam: int = 1
    max_len_b: int = 200
    threads: int = 1
    noise: float = 0.3  # of npad, whose chains are as many as the beam is wide
    seed: int = 1
    languages: LanguageOptions = field(default_factory=LanguageOptions)


def build(system: System, load: Optional[Load] = None) -> Translate:
    """Load a system. Only what its kind needs is imported."""
    if system.kind == "compiled":
        return _compiled(system)
    if system.kind == "ctranslate2":
        return _ctranslate2(system)
    search = build_search(system, load)
    return lambda sources: [hypotheses[0] for hypotheses in search(sources)]


def build_search(system: System, load: Optional[Load] = None) -> Search:
    """fairseq's own search, or the engine's, as fairseq-generate sets them up: every hypothesis, best first."""
    import torch
    from fairseq.dataclass.configs import GenerationConfig
    from fairseq.sequence_generator import SequenceGenerator
    from omegaconf import OmegaConf

    from fairseq_tg.tasks.loading import load_model

    torch.set_num_threads(system.threads)
    model, task = (load or partial(load_model, languages=system.languages))(system.path, system.data)
    kinds = {"fast": None, "fairseq": SequenceGenerator}
    beam = system.beam
    if system.kind == "npad":
        from fairseq_tg.decoding.npad import NPADGenerator

        kinds["npad"] = partial(NPADGenerator, chains=beam, noise=system.noise, seed=system.seed)
        beam = 1
    # With all of fairseq's own options: what is not there is None to older versions of omegaconf, and not a default.
    # Without BeamableMM, which is made for one beam size: a model is shared by searches of several.
    options = GenerationConfig(beam=beam, max_len_b=system.max_len_b, no_beamable_mm=True)
    generation = OmegaConf.structured(options)
    model.prepare_for_inference_(OmegaConf.create({"generation": generation}))
    generator = task.build_generator([model], generation, seq_gen_cls=kinds[system.kind])
    eos = task.target_dictionary.eos()

    def search(sources: Sequence[Tokens]) -> List[List[Tokens]]:
        sentences = [torch.tensor(source) for source in sources]
        dataset = task.build_dataset_for_inference(sentences, [len(source) for source in sources])
        sample = dataset.collater([dataset[i] for i in range(len(sources))])
        found = zip(sample["id"].tolist(), task.inference_step(generator, [model], sample))
        in_order = [hypotheses for _, hypotheses in sorted(found, key=lambda x: x[0])]
        return [[[*task.strip(item["tokens"].tolist()), eos] for item in hypotheses] for hypotheses in in_order]

    return search


def _compiled(system: System) -> Translate:
    from fairseq_tg.compiled.translator import Translator

    translator = Translator.load(system.path, threads=system.threads, max_len_b=system.max_len_b, beam=system.beam)
    hidden, eos = translator.marks.hidden, translator.layout.eos

    def translate(sources: Sequence[Tokens]) -> List[Tokens]:
        found = translator.translate_tokens([translator.marked(source[:-1]) for source in sources])
        return [[*(token for token in tokens if token not in hidden and token != eos), eos] for tokens in found]

    return translate if hidden else translator.translate_tokens


def _ctranslate2(system: System) -> Translate:
    import ctranslate2

    directory = Path(system.path)
    precision = "int8" if directory.name.endswith("int8") else "float32"
    engine = ctranslate2.Translator(system.path, inter_threads=1, intra_threads=system.threads, compute_type=precision)
    symbols = json.loads((directory / SYMBOLS).read_text())
    source, indices = symbols["source"], {symbol: index for index, symbol in enumerate(symbols["target"])}

    def translate(sources: Sequence[Tokens]) -> List[Tokens]:
        words = [[source[token] for token in tokens[:-1]] for tokens in sources]  # it adds the eos itself
        found = engine.translate_batch(words, beam_size=system.beam, max_decoding_length=system.max_len_b)
        return [[indices[symbol] for symbol in item.hypotheses[0]] for item in found]

    return translate
