"""--eval-bleu in the words of corpora and reports, without language symbols, and for tasks that have no such option."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
import json
from argparse import Namespace
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import encoders
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu.metrics import BLEU
from torch import Tensor

from fairseq_tg.errors import UserError
from fairseq_tg.loading.splits import indexable
from fairseq_tg.tokenizers import FLAG, NONE, USUAL, all_usual, divide_any, load_tokenizer

#: What fairseq's validations write for an unknown word of a translation and of a reference, and all else
UNKNOWN = {"UNKNOWNTOKENINHYP": "<unk>", "UNKNOWNTOKENINREF": "<<unk>>"}
#: Those of fairseq's options of the task `translation` that say how validations score
ScoringOptions = make_dataclass(
    "ScoringOptions",
    [
        (item.name, item.type, field(default=item.default, metadata=dict(item.metadata)))
        for item in fields(TranslationConfig)
        if item.name.startswith("eval_") and item.default is not MISSING
    ],
    bases=(FairseqDataclass,),
)


class WordsAlone:
    """A generator whose hypotheses are without marks. In every sentence they would be words that are right."""

    def __init__(self, generator: Any, task: Any) -> None:
        self.generator, self.task = generator, task

    def generate(self, *args: Any, **kwargs: Any) -> List[List[Dict[str, Any]]]:
        found = self.generator.generate(*args, **kwargs)
        return [[{**item, "tokens": self._words(item["tokens"])} for item in hypotheses] for hypotheses in found]

    def _words(self, tokens: Tensor) -> Tensor:
        return tokens.new_tensor([*self.task.strip(tokens.tolist()), self.task.target_dictionary.eos()])


def words_alone(task: Any, generator: Any, sample: Dict[str, Any]) -> Tuple[WordsAlone, Dict[str, Any]]:
    """A generator and a batch, both without marks where they are compared."""
    target = sample["target"]
    marks = torch.isin(target, target.new_tensor(sorted(task.marks)))
    return WordsAlone(generator, task), {**sample, "target": target.masked_fill(marks, task.target_dictionary.pad())}


class Decoder:
    """What fairseq's validations take for a tokenizer: from a sentence's symbols to the words that are counted.

    Args:
        decoders: fairseq's, of subwords and of a tokenizer, in their order.
        divide: puts spaces between words.
    """

    def __init__(self, decoders: Sequence[Any], divide: Callable[[str], str]) -> None:
        self.decoders, self.divide = decoders, divide

    def decode(self, symbols: str) -> str:
        return self.divide(self.text(symbols).rstrip())

    def text(self, symbols: str) -> str:
        for here, elsewhere in UNKNOWN.items():
            symbols = symbols.replace(here, elsewhere)
        for decoder in self.decoders:
            symbols = decoder.decode(symbols)
        return symbols


class Scoring(TranslationTask):
    """fairseq's scores of validations, in the words of corpora and reports, for a task that does the searches.

    Also for one that is none of fairseq's `translation`.
    """

    cfg: Any

    def __init__(self, task: Any) -> None:
        super().__init__(task.cfg, task.source_dictionary, task.target_dictionary)
        self.task = task
        self.tokenizer: Any = None

    def prepare(self, model: Any) -> None:
        """Make what TranslationTask.build_model does to search with the model that it has built."""
        self.sequence_generator = self.task.build_generator([model], Namespace(**json.loads(self.cfg.eval_bleu_args)))

    def check(self) -> None:
        """Refuse what cannot be had before a training."""
        if self.cfg.sacrebleu_tokenizer and self.cfg.eval_tokenized_bleu:
            raise UserError(f"--eval-tokenized-bleu counts what spaces divide: give it or {FLAG}, not both")
        load_tokenizer(self.cfg.sacrebleu_tokenizer or USUAL)

    def score(self, generator: Any, sample: Dict[str, Any], model: Any) -> Any:
        """sacreBLEU's counts of a batch."""
        return self._inference_with_bleu(generator, sample, model)

    def _inference_with_bleu(self, generator: Any, sample: Dict[str, Any], model: Any) -> Any:
        if self.tokenizer is None:
            self._choose_words()
        return super()._inference_with_bleu(*words_alone(self.task, generator, sample), model)

    def inference_step(self, generator: Any, models: List[Any], sample: Dict[str, Any], *_: Any, **__: Any) -> Any:
        return self.task.validation_step(generator, models, sample)

    def _choose_words(self) -> None:
        """Find out how text is made of symbols and how its words are counted, now that there is validation data."""
        made = Namespace(tokenizer=self.cfg.eval_bleu_detok, **json.loads(self.cfg.eval_bleu_detok_args))
        command = self.cfg._get_root()
        bpe = encoders.build_bpe(command.bpe) if command.get("bpe") and not self.cfg.eval_bleu_remove_bpe else None
        self.tokenizer = encoders.build_tokenizer(made)
        decoders = [decoder for decoder in (bpe, self.tokenizer) if decoder]
        split = command.dataset.valid_subset.split(",")[0]
        tokenizer = NONE if self.cfg.eval_tokenized_bleu else self._tokenizer(split, Decoder(decoders, str).text)
        if bpe is None and (tokenizer == USUAL or self.cfg.eval_tokenized_bleu):
            self.tokenizer = Decoder(decoders, str)  # else as fairseq itself does it
            return
        self.tokenizer = Decoder(decoders, load_tokenizer(tokenizer) if tokenizer else divide_any)
        options = {option.name: self.cfg[option.name] for option in fields(ScoringOptions)}
        self.cfg = Namespace(**{**options, "eval_tokenized_bleu": True})  # words are divided then

    def _tokenizer(self, split: str, to_text: Callable[[str], str]) -> Optional[str]:
        """What words of a split's targets are counted by; None if these are of several languages."""
        languages = {target for _, target in self.task.pairs}
        dataset = indexable(self.task.datasets[split])

        def text(index: int) -> str:
            item = dataset[index]
            item = item[-1] if isinstance(item, tuple) else item  # with the number of its pair
            tokens = torch.tensor(self.task.strip(item["target"].tolist()), dtype=torch.long)
            return to_text(self.tgt_dict.string(tokens, self.cfg.eval_bleu_remove_bpe))

        if len(languages) > 1 and not self.cfg.sacrebleu_tokenizer:
            return USUAL if all_usual(text, len(dataset)) else None
        return self.task.count_words_by(min(languages), text, len(dataset))


def log_bleu(logging_outputs: List[Dict[str, Any]]) -> None:
    """Log a validation's BLEU, if it has one. fairseq does not where no word was found, and ends for want of it."""
    if any("_bleu_sys_len" in output for output in logging_outputs):
        metrics.log_derived("bleu", _bleu)


def _bleu(meters: Dict[str, Any]) -> float:
    if "_bleu_counts" not in meters:
        return 0.0
    counts, totals = (list(map(int, meters[f"_bleu_{name}"].sum)) for name in ("counts", "totals"))
    given, wanted = (int(meters[f"_bleu_{name}_len"].sum) for name in ("sys", "ref"))
    return round(BLEU.compute_bleu(counts, totals, given, wanted, smooth_method="exp").score, 2)
