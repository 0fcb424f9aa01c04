"""Safe reading of fairseq checkpoints, and fingerprints of what is in them.

A checkpoint is data: it is unpickled with torch's ``weights_only`` and the allow-list below (before torch 2.6, with
an unpickler that knows nothing else), and a file that asks for anything else is refused by name. Importing this module
makes fairseq's own loader do the same, for every command.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import pickle
import re
import shutil
import zipfile
from argparse import Namespace
from typing import Any, Callable, Dict, List, Mapping, Tuple, Union, cast

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from omegaconf import DictConfig
from torch import Tensor

from fairseq_tg.data_only import allow, data_only
from fairseq_tg.errors import UserError
from fairseq_tg.files import replacing
from fairseq_tg.generations import without_extras

#: What fairseq's checkpoints hold beside tensors and plain containers: the flags and, after `--eval-bleu`, numpy.
ALLOWED_GLOBALS: List[Any] = [
    Namespace,
    np.ndarray,
    np.dtype,
    *(type(np.dtype(code)) for code in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")),
    # numpy's constructors of arrays and of scalars, by the names that numpy 1 and numpy 2 give their module
    *(
        (constructor, f"numpy.{core}.multiarray.{constructor.__name__}")
        for constructor in (cast(Any, np.array(0.0)).__reduce__()[0], cast(Any, np.float64(0.0)).__reduce__()[0])
        for core in ("core", "_core")
    ),
]

#: Options of models that fairseq hands to `eval`, wherever they are in a configuration.
EVALUATED_OPTIONS = {
    *("encoder_layers", "decoder_layers", "encoder_attention", "decoder_attention", "self_attention", "pretrained"),
    *("project_input", "gated_attention", "downsample", "adaptive_softmax_cutoff", "adaptive_input_cutoff"),
    *("left_pad_source", "left_pad_target", "character_filters", "conv_feature_layers", "conv_aggregator_layers"),
    *("feature_encoder_spec", "feature_enc_layers"),
    *("xformers_att_config", "encoder_xformers_att_config", "decoder_xformers_att_config"),
}
_ARITHMETIC = (
    *(ast.Expression, ast.List, ast.Tuple, ast.Dict, ast.Constant, ast.BinOp, ast.UnaryOp),
    *(ast.Add, ast.Mult, ast.USub, ast.Load),
)


def load_checkpoint(path: str, *args: Any, **kwargs: Any) -> Dict[str, Any]:
    """fairseq's ``load_checkpoint_to_cpu``, which refuses in one line what is no checkpoint or asks for code."""
    if not os.path.isfile(path):
        raise UserError(f"no checkpoint at '{path}': give the path of a fairseq checkpoint (.pt)")
    try:
        _check_records(path)
        with data_only():
            state = _fairseq_load_checkpoint_to_cpu(path, *args, **kwargs)
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:GLOBAL|function|class) ([\w.]+)", str(error))
        if asked is None:
            raise _not_a_checkpoint(path, error) from None
        raise UserError(
            f"'{path}' is refused: its pickle asks for {asked.group(1)}, which no translation checkpoint needs; "
            "do not load this file unless you made it, and then save it again with plain values only"
        ) from None
    except Exception as error:  # whatever a reader of pickles makes of what is no pickle
        raise _not_a_checkpoint(path, error) from None
    if not isinstance(state.get("model"), dict) or not state.get("cfg"):
        raise _not_a_checkpoint(path, KeyError("it has no model weights or no configuration"))
    refuse_code(state["cfg"].get("model"), path)
    state["model"] = without_extras(state["model"])
    return state


def _check_records(path: str) -> None:
    """Compare every record of a checkpoint with its checksum, which torch leaves unread.

    Records are as large as they are in the file: what torch.save does not write, and what would grow when it is read,
    is refused. (Checkpoints of before torch 1.6 are no archives, and have no checksums.)
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        packed = [record.filename for record in records if record.compress_type != zipfile.ZIP_STORED]
        if packed or sum(record.file_size for record in records) > os.path.getsize(path):
            raise ValueError(f"its record {packed[0] if packed else records[0].filename} is larger than the file")
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"its record {damaged} has not the checksum it was written with")


def refuse_code(options: Union[Namespace, DictConfig, Dict[str, Any], None], path: str) -> None:
    """Refuse model options that fairseq would `eval` and that are more than arithmetic on lists and tuples."""
    values = vars(options) if isinstance(options, Namespace) else options or {}
    for name, value in values.items():
        if isinstance(value, (dict, DictConfig, Namespace)):
            refuse_code(value, path)
        elif name in EVALUATED_OPTIONS and isinstance(value, str) and value and not _is_arithmetic(value):
            raise UserError(
                f"'{path}' is refused: its option {name} holds code, not sizes: {value[:80]!r}; do not load this file"
            )


def _is_arithmetic(expression: str) -> bool:
    try:
        return all(isinstance(node, _ARITHMETIC) for node in ast.walk(ast.parse(expression, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _not_a_checkpoint(path: str, error: BaseException) -> UserError:
    reason = (str(error).splitlines() or [""])[0][:160] or type(error).__name__
    return UserError(
        f"'{path}' is no fairseq checkpoint, or a damaged one ({reason}): give a checkpoint saved by fairseq-train"
    )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    tensors = without_extras(tensors)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def split_tensors(tensors: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Dict[str, Tensor]]:
    """Divide a tg model's tensors into the base's and those below a child called `actor`.

    A name is only a first sight: who uses the division compares the base's fingerprint.
    """
    base = {name: tensor for name, tensor in tensors.items() if "actor" not in name.split(".")}
    return base, {name: tensor for name, tensor in tensors.items() if name not in base}


def _explain(load_ensemble: Callable[..., Any]) -> Callable[..., Any]:
    """Let a `--path` that is missing or does not fit the data end in one line."""

    @functools.wraps(load_ensemble)
    def load(filenames: List[str], *args: Any, **kwargs: Any) -> Any:
        for filename in filenames:
            # A sharded model has its parts in files of other names, which fairseq looks for itself.
            if not os.path.exists(filename) and not kwargs.get("suffix") and kwargs.get("num_shards", 1) == 1:
                raise UserError(f"no checkpoint at '{filename}': give --path the path of a fairseq checkpoint (.pt)")
        try:
            return load_ensemble(filenames, *args, **kwargs)
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            reason = str(error).splitlines()[1].strip()
            raise UserError(
                f"'{':'.join(filenames)}' does not fit the data ({reason}): give the data directory it was trained with"
            ) from None

    return load


def _save_whole(state: Any, filename: str, async_write: bool = False) -> None:
    """fairseq's ``torch_persistent_save``, which ends in one line when there is no room, and leaves nothing behind."""
    if async_write or PathManager.path_requires_pathmanager(filename):
        _fairseq_save(state, filename, async_write)
        return
    try:
        with replacing(filename) as temporary:
            torch.save(state, temporary)
    except RuntimeError as error:  # what torch makes of a write that fails
        reason = (str(error).splitlines() or [""])[0][:160]
        raise UserError(f"cannot write '{filename}' ({reason}): make room, and run the same command again") from None


def _copy_whole(source: str, target: str, overwrite: bool = False) -> bool:
    """fairseq's copy of a checkpoint to its other names, whole or not at all, whenever the process is killed."""
    if PathManager.path_requires_pathmanager(target):
        return _fairseq_copy(source, target, overwrite)
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
    return True


allow(ALLOWED_GLOBALS)
_fairseq_save, _fairseq_copy = checkpoint_utils.torch_persistent_save, PathManager.copy
checkpoint_utils.torch_persistent_save = _save_whole
PathManager.copy = staticmethod(_copy_whole)
_fairseq_load_checkpoint_to_cpu = checkpoint_utils.load_checkpoint_to_cpu
checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint
checkpoint_utils.load_model_ensemble_and_task = _explain(checkpoint_utils.load_model_ensemble_and_task)
