"""Every change that is made to fairseq itself, each with its reason. All of them are made when this is imported.

| what | why |
|---|---|
| ``checkpoint_utils.load_checkpoint_to_cpu`` | checkpoints are data, for every command: see `checkpoints` |
| ``checkpoint_utils.load_model_ensemble_and_task`` | a ``--path`` that is missing or does not fit ends in one line |
| ``checkpoint_utils.torch_persistent_save`` | checkpoints are written whole or not at all; a full disk is one line |
| the same, ``checkpoint_utils.load_checkpoint`` | --patience goes on where it was: see `_remember_patience` |
| ``PathManager.copy`` | so are its copies under other names |
| ``utils.move_to_cpu`` | a half-precision base is saved as it is |
| ``torch.load`` in ``checkpoint_utils`` | so that they are read as data, whoever reads them there |
| ``torch.load`` in the modules of `_READERS` | files that a checkpoint names are data too |
| ``tarfile`` in ``file_utils`` | archives that the hub unpacks stay in their directory |
| ``LanguagePairDataset`` | two sides of different length end in one line |
| ``FastaDataset._build_index`` | names of data files are no shell commands |
| ``BARTModel.set_beam_size`` | it would have attention leave out sources, in trainings and other searches, too |
| the registry of ``--bpe`` | `characters` and `bytes` have no config there, which every command needs of a name |
| fairseq-interactive's ``buffered_read`` | status 1 if lines were left out: see `tell_at_the_end`, which tasks call |
| ``SampledMultiEpochDataset`` | a training goes on in the pass over the data in which it stopped: see `_in_its_pass` |
| encoder layers of fairseq 0.12.2 | both generations have the same models: see `_remove_fast_path` |
"""

from __future__ import annotations

import functools
import importlib
import os
import shlex
import shutil
import sys
import tarfile
from types import SimpleNamespace
from typing import Any, Callable, Iterator, List

import torch
from fairseq import checkpoint_utils, file_utils, utils
from fairseq.data import LanguagePairDataset
from fairseq.data.encoders import BPE_REGISTRY
from fairseq.data.fasta_dataset import FastaDataset
from fairseq.data.multilingual.sampled_multi_epoch_dataset import SampledMultiEpochDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.file_io import PathManager
from fairseq.models.bart import BARTModel
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from fairseq.registry import REGISTRIES
from hydra.core.config_store import ConfigStore
from torch import Tensor, nn

from fairseq_tg.errors import UserError
from fairseq_tg.files import replacing
from fairseq_tg.loading.checkpoints import COPIES, load_checkpoint, read_state
from fairseq_tg.loading.data_only import read_data_only_in
from fairseq_tg.loading.one_copy import make_float_when_run, taking_tensors

#: Modules of fairseq's that load files named in a checkpoint, beside `checkpoint_utils`
_READERS = (
    *("models.speech_to_text.xm_transformer", "models.text_to_speech.vocoder", "data.codedataset"),
    "modules.quantization.pq.em",
)

#: The numbers of those sentences that fairseq-interactive has read, and that a task left out
LEFT_OUT: List[int] = []

#: What --patience has counted, in the extra state of a checkpoint
PATIENCE = "patience"


def _explain(load_ensemble: Callable[..., Any]) -> Callable[..., Any]:
    """Let a `--path` that is missing or does not fit the data end in one line."""

    @functools.wraps(load_ensemble)
    def load(filenames: List[str], *args: Any, **kwargs: Any) -> Any:
        for filename in filenames:
            # A sharded model has its parts in files of other names, which fairseq looks for itself.
            if not os.path.exists(filename) and not kwargs.get("suffix") and kwargs.get("num_shards", 1) == 1:
                raise UserError(f"no checkpoint at '{filename}': give --path the path of a fairseq checkpoint (.pt)")
        try:
            with taking_tensors():
                models, *rest = load_ensemble(filenames, *args, **kwargs)
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            reason = str(error).splitlines()[1].strip()[:160]
            raise UserError(
                f"'{':'.join(filenames)}' does not fit the data or the options ({reason}): give the data directory "
                "that it was trained with, and no --model-overrides of its shape"
            ) from None
        for model in models:
            make_float_when_run(model)
        return (models, *rest)

    return load


def _save_whole(state: Any, filename: str, async_write: bool = False) -> None:
    """fairseq's ``torch_persistent_save``, which ends in one line when there is no room, and leaves nothing behind."""
    if async_write or PathManager.path_requires_pathmanager(filename):
        _fairseq_save(state, filename, async_write)
        return
    _remember_patience(state)
    try:
        with replacing(filename) as temporary:
            torch.save(state, temporary)
    except RuntimeError as error:  # what torch makes of a write that fails
        reason = (str(error).splitlines() or [""])[0][:160]
        raise UserError(f"cannot write '{filename}' ({reason}): make room, and run the same command again") from None


def _stopping() -> Any:
    """fairseq's function that ends a training by --patience; None where nothing is trained.

    It has the best score and the validations since as attributes. (Its module sets logging up: it is not imported.)
    """
    return getattr(sys.modules.get("fairseq_cli.train"), "should_stop_early", None)


def _remember_patience(state: Any) -> None:
    """Let a checkpoint of a training have what --patience has counted, which fairseq forgets with the process."""
    counted = vars(_stopping() or SimpleNamespace())
    if counted and isinstance(state, dict) and isinstance(state.get("extra_state"), dict):
        state["extra_state"][PATIENCE] = dict(counted)


def _with_patience(load: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's ``load_checkpoint``, with which a training goes on; after it, --patience does, too."""

    @functools.wraps(load)
    def load_all(*args: Any, **kwargs: Any) -> Any:
        extra_state, *rest = load(*args, **kwargs)
        counted = (extra_state or {}).get(PATIENCE)
        # fairseq takes the best score so far only where nothing of the training is begun anew
        goes_on = getattr(checkpoint_utils.save_checkpoint, "best", None) == (extra_state or {}).get("best")
        if isinstance(counted, dict) and goes_on and _stopping() is not None:
            vars(_stopping()).update(best=counted.get("best"), num_runs=counted.get("num_runs"))
        return (extra_state, *rest)

    return load_all


def _in_its_pass(begin: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """fairseq's ``_next_virtual_epoch``, also for a training that goes on within a pass (--virtual-epoch-size).

    A pass has an order, drawn with its first epoch. Begun in a later one, fairseq would draw another with that: some
    sentences would be trained on twice, and others not at all.
    """

    @functools.wraps(begin)
    def begin_epoch(self: Any, epoch: int) -> None:
        if self._random_global_indices is None and self._get_epoch_start_index(epoch):
            begin(self, epoch - (epoch - 1) % self.num_virtual_epochs)
        begin(self, epoch)

    return begin_epoch


def tell_at_the_end() -> None:
    """Have fairseq-interactive end with status 1 if sentences were left out.

    Its reader of lines is asked for more when all before are translated and printed. (Its module sets logging up, too.)
    """
    interactive: Any = sys.modules.get("fairseq_cli.interactive")
    if interactive is None or hasattr(interactive.buffered_read, "__wrapped__"):
        return
    read = interactive.buffered_read

    @functools.wraps(read)
    def read_all(*args: Any, **kwargs: Any) -> Iterator[Any]:
        LEFT_OUT.clear()
        yield from read(*args, **kwargs)
        if LEFT_OUT:
            raise UserError(f"{len(LEFT_OUT)} of the sentences were too long and not translated: see above")

    interactive.buffered_read = read_all


def _copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """fairseq's copy of a checkpoint to its other names, whole or not at all, whenever the process is killed."""
    if PathManager.path_requires_pathmanager(target):
        return _fairseq_copy(source, target, overwrite)
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
    return True


def _move_to_cpu(sample: Any) -> Any:
    """fairseq's, which makes float32 of half precision, also where there is nothing to move: of a frozen base, say."""

    def move(tensor: Tensor) -> Tensor:
        return tensor if tensor.device.type == "cpu" else _fairseq_move_to_cpu(tensor)

    return utils.apply_to_sample(move, sample)


def _check_sides(build: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(build)
    def init(
        self: Any,
        src: Any,
        src_sizes: Any,
        src_dict: Any,
        tgt: Any = None,
        tgt_sizes: Any = None,
        *args: Any,
        **kw: Any,
    ) -> None:
        if tgt_sizes is not None and len(src_sizes) != len(tgt_sizes):
            raise UserError(
                f"a split has {len(src_sizes)} sentences on the source side and {len(tgt_sizes)} on the target side: "
                "binarize it again, from two files with as many lines"
            )
        build(self, src, src_sizes, src_dict, tgt, tgt_sizes, *args, **kw)

    return init


class _Archive(tarfile.TarFile):
    """An archive of files and directories, none of which leaves the directory that it is unpacked in."""

    def extractall(self, path: Any = ".", *args: Any, **kwargs: Any) -> None:
        for member in self:
            # Of names from the root fairseq would afterwards move what has that name to where the archive was.
            outside = os.path.isabs(member.name) or ".." in member.name.split("/")
            if outside or not (member.isfile() or member.isdir()):
                raise UserError(
                    f"'{self.name!s}' is refused: its '{member.name}' is a link or leads elsewhere; do not unpack it"
                )
        # fairseq moves what the beginnings of all names have in common
        if ".." in os.path.commonprefix(self.getnames()).split("/"):  # noqa: RUF071 (as it does)
            raise UserError(f"'{self.name!s}' is refused: its names lead elsewhere; do not unpack it")
        super().extractall(path, *args, **kwargs)


def _remove_fast_path() -> None:
    """Take away what fairseq 0.12.2's Transformer encoder layers have and its successors' have not.

    They keep copies of their weights for a fast path of torch 1.12, which fails on padding with torch 2: as parameters,
    so that they are in its checkpoints and in its models' state.
    """
    layer_class: Any = TransformerEncoderLayerBase
    build = layer_class.__init__

    def build_without(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        for name in COPIES:
            delattr(self, name)
        self.can_use_fastpath = False

    layer_class.__init__ = build_without
    layer_class._load_from_state_dict = nn.Module._load_from_state_dict


def _give_configs() -> None:
    """Give those of --bpe a config that have no options: without, fairseq's commands know the name and end with it."""
    configs = REGISTRIES["bpe"]["dataclass_registry"]
    for name in BPE_REGISTRY.keys() - configs.keys():
        configs[name] = FairseqDataclass
        node = FairseqDataclass(_name=name)
        ConfigStore.instance().store(name=name, group="bpe", node=node, provider="fairseq")


_fairseq_save, _fairseq_copy = checkpoint_utils.torch_persistent_save, PathManager.copy
checkpoint_utils.torch_persistent_save = _save_whole
PathManager.copy = staticmethod(_copy_whole)
_fairseq_move_to_cpu, utils.move_to_cpu = utils.move_to_cpu, _move_to_cpu
checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint
checkpoint_utils.load_checkpoint = _with_patience(checkpoint_utils.load_checkpoint)
checkpoint_utils.load_model_ensemble_and_task = _explain(checkpoint_utils.load_model_ensemble_and_task)
file_utils.tarfile = SimpleNamespace(open=_Archive.open)
LanguagePairDataset.__init__ = _check_sides(LanguagePairDataset.__init__)
_build_index = FastaDataset._build_index
FastaDataset._build_index = lambda self, path: _build_index(self, shlex.quote(path))
BARTModel.set_beam_size = lambda self, beam: None  # what a generator of fairseq's asks for; it only saves time
SampledMultiEpochDataset._next_virtual_epoch = _in_its_pass(SampledMultiEpochDataset._next_virtual_epoch)
_give_configs()
read_data_only_in(checkpoint_utils, read_state)
for _name in _READERS:
    read_data_only_in(importlib.import_module(f"fairseq.{_name}"))
if "_load_from_state_dict" in vars(TransformerEncoderLayerBase):
    _remove_fast_path()
