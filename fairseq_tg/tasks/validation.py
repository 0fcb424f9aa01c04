"""--eval-bleu for tasks with language symbols: a score of words alone, and of tasks that have no such option."""

# Without `from __future__ import annotations`: fairseq wants the types of a config's fields, not their names.
import json
from argparse import Namespace
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, Dict, List, Tuple

import torch
from fairseq.data import encoders
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from sacrebleu.metrics import BLEU
from torch import Tensor

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


class Scoring(TranslationTask):
    """fairseq's scores of validations, for a task that is none of its `translation`: searches are that task's."""

    def __init__(self, task: Any) -> None:
        super().__init__(task.cfg, task.source_dictionary, task.target_dictionary)
        self.task = task

    def prepare(self, model: Any) -> None:
        """Do what TranslationTask.build_model does with the model that it has built."""
        made = Namespace(tokenizer=self.cfg.eval_bleu_detok, **json.loads(self.cfg.eval_bleu_detok_args))
        self.tokenizer = encoders.build_tokenizer(made)
        self.sequence_generator = self.task.build_generator([model], Namespace(**json.loads(self.cfg.eval_bleu_args)))

    def _inference_with_bleu(self, generator: Any, sample: Dict[str, Any], model: Any) -> Any:
        return super()._inference_with_bleu(*words_alone(self.task, generator, sample), model)

    def inference_step(self, generator: Any, models: List[Any], sample: Dict[str, Any], *_: Any, **__: Any) -> Any:
        return self.task.validation_step(generator, models, sample)


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
