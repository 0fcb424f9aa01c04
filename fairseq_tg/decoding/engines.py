"""Other engines than fairseq's for the oracle's beam search."""

from __future__ import annotations

import tempfile
from typing import Any, Callable, Dict, List

from fairseq_tg.corpus.blocks import Hypothesis
from fairseq_tg.errors import UserError
from fairseq_tg.registry import Registry

#: A function from a corpus run to a search; None stands for fairseq's own.
ENGINES: Registry[Any] = Registry("engine", flag="--kbest-engine")
ENGINES.register("fairseq")(None)


@ENGINES.register("ctranslate2")
def ctranslate2_search(run: Any) -> Callable[[List[Any], Dict[str, Any]], List[List[Hypothesis]]]:
    """Beam search of an unmodified Transformer base with CTranslate2, float32, on torch's number of threads."""
    try:
        import ctranslate2
        from ctranslate2.converters import FairseqConverter
    except ImportError:
        raise UserError("--kbest-engine ctranslate2 needs it: pip install 'fairseq_tg[fast]'") from None
    import torch

    path, generation = run.root.common_eval.path, run.root.generation
    unsupported = {"match_source_len": False, "unnormalized": False, "temperature": 1.0, "sampling": False}
    unsupported.update(prefix_size=0, diverse_beam_groups=-1, diversity_rate=-1.0, unkpen=0, max_len_a=0)
    for name, default in unsupported.items():
        if generation.get(name) != default:
            raise UserError(
                f"--kbest-engine ctranslate2 does not know --{name.replace('_', '-')}: use the engine fairseq"
            )
    if ":" in path:
        raise UserError("--kbest-engine ctranslate2 does not know ensembles: use the engine fairseq")
    with tempfile.TemporaryDirectory() as directory:
        try:
            converter = FairseqConverter(path, run.cfg.data, run.cfg.source_lang, run.cfg.target_lang)
            converter.convert(directory, force=True)
        except Exception as error:
            raise UserError(f"CTranslate2 cannot convert '{path}': {error}; use the engine fairseq") from None
        translator = ctranslate2.Translator(directory, device="cpu", intra_threads=torch.get_num_threads())
    source, target = run.task.source_dictionary, run.task.target_dictionary

    def search(models: List[Any], sample: Dict[str, Any]) -> List[List[Hypothesis]]:
        rows = sample["net_input"]["src_tokens"].tolist()
        special = {source.pad(), source.eos()}
        results = translator.translate_batch(
            [[source[token] for token in row if token not in special] for row in rows],
            beam_size=generation.beam,
            num_hypotheses=generation.beam,
            length_penalty=generation.lenpen,
            max_decoding_length=generation.max_len_b,
            min_decoding_length=generation.min_len,
            no_repeat_ngram_size=generation.no_repeat_ngram_size,
            return_scores=True,
            max_batch_size=0,
        )
        return [[hypothesis(*pair) for pair in zip(result.hypotheses, result.scores)] for result in results]

    def hypothesis(symbols: List[str], score: float) -> Hypothesis:
        tokens = [target.index(symbol) for symbol in symbols]
        # the score is the mean over the tokens and the end of sentence, to the power of the length penalty
        return Hypothesis(tokens, run.to_text(tokens), score, score * (len(tokens) + 1) ** generation.lenpen)

    return search
