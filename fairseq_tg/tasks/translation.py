"""tg_translation: fairseq's translation task, for tg models and for bases with an actor file."""

from dataclasses import dataclass

from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_tg.tasks.layer import TGTask, TGTaskOptions


@dataclass
class TGTranslationConfig(TGTaskOptions, TranslationConfig):
    pass


@register_task("tg_translation", dataclass=TGTranslationConfig)
class TGTranslationTask(TGTask, TranslationTask):
    parent = "translation"
