"""The compiled path: one self-contained file and a native search, without fairseq and without torch.

>>> from fairseq_tg.compiled import Translator
>>> Translator.load("model.tg").translate(["Ein Hund ."])
"""

from fairseq_tg.compiled.translator import InputError, Translator

__all__ = ["InputError", "Translator"]
