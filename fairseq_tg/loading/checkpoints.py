"""Safe reading of fairseq checkpoints, and fingerprints of what is in them.

A checkpoint is data: it is unpickled with torch's ``weights_only`` and the allow-list below (before torch 2.6, with
an unpickler that knows nothing else), and a file that asks for anything else is refused by name.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import re
import zipfile
from argparse import Namespace
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from fairseq import checkpoint_utils
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from fairseq_tg.actor_format import is_of_actor
from fairseq_tg.errors import UserError
from fairseq_tg.files import parse_json
from fairseq_tg.loading.arrays import ARRAYS
from fairseq_tg.loading.data_only import allow, is_archive, load_data
from fairseq_tg.loading.one_copy import one_copy, tensors_are_taken
from fairseq_tg.memory import MappedFiles
from fairseq_tg.names import TG

#: What fairseq's checkpoints hold beside tensors and plain containers: the flags and, after `--eval-bleu`, numpy.
ALLOWED_GLOBALS: List[Any] = [Namespace, *ARRAYS]

#: Options that fairseq hands to `eval`, wherever they are in a configuration: of models, tasks, criteria, optimizers.
EVALUATED_OPTIONS = {
    *("encoder_layers", "decoder_layers", "encoder_attention", "decoder_attention", "self_attention", "pretrained"),
    *("project_input", "gated_attention", "downsample", "adaptive_softmax_cutoff", "adaptive_input_cutoff"),
    *("left_pad_source", "left_pad_target", "character_filters", "conv_feature_layers", "conv_aggregator_layers"),
    *("feature_encoder_spec", "feature_enc_layers", "wer_args", "decoder_zero_init", "model_overrides"),
    *("xformers_att_config", "encoder_xformers_att_config", "decoder_xformers_att_config"),
    *("vggblock_enc_config", "transformer_enc_config", "transformer_dec_config", "conv_dec_config"),
    *("transformer_context", "transformer_sampling"),
    *("adam_betas", "adamax_betas", "adafactor_eps", "lamb_betas"),
    # by the parsers of flags, which a base's options are made into for `cont.`
    *("encoder_glu", "decoder_glu", "encoder_kernel_size_list", "decoder_kernel_size_list", "weight_softmax"),
    *("extra_data", "extra_lang_pairs", "langtoks", "sampling_weights"),
    *(f"pipeline_{side}{what}" for side in ("", "encoder_", "decoder_") for what in ("balance", "devices")),
}
#: In a checkpoint's options: those of its task, as they were, that a command or the hub gives others in the place of
REPLACED = "replaced_options"
#: Tensors that only models of fairseq 0.12.2 have: see `changes`
COPIES = tuple(f"{part}_{kind}" for part in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias"))
_EXTRA = re.compile(rf"encoder\.layers\.\d+\.({'|'.join(COPIES)})|(en|de)coder\.embed_positions\._float_tensor")
_ARITHMETIC = (
    *(ast.Expression, ast.List, ast.Tuple, ast.Dict, ast.Constant, ast.BinOp, ast.UnaryOp),
    *(ast.Add, ast.Mult, ast.USub, ast.Load),
)


def load_checkpoint(
    path: str, arg_overrides: Optional[Mapping[str, Any]] = None, load_on_all_ranks: bool = False
) -> Dict[str, Any]:
    """fairseq's ``load_checkpoint_to_cpu``, which refuses in one line what is no checkpoint or asks for code."""
    if not os.path.isfile(path):
        raise UserError(f"no checkpoint at '{path}': give the path of a fairseq checkpoint (.pt)")
    try:
        _check_records(path)
        state = _fairseq_load_checkpoint_to_cpu(path, arg_overrides, load_on_all_ranks)
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:GLOBAL|function|class) ([\w.]+)", str(error))
        if asked is None:
            raise _not_a_checkpoint(path, error) from None
        raise UserError(
            f"'{path}' is refused: its pickle asks for {asked.group(1)}, which no translation checkpoint needs; "
            "do not load this file unless you made it, and then save it again with plain values only"
        ) from None
    except UserError:
        raise
    except Exception as error:  # whatever a reader of pickles makes of what is no pickle
        raise _not_a_checkpoint(path, error) from None
    if not isinstance(state.get("model"), dict) or not state.get("cfg"):
        raise _not_a_checkpoint(path, KeyError("it has no model weights or no configuration"))
    _check_tensors(state["model"], path)
    try:
        refuse_code(state["cfg"], path)
    except OmegaConfBaseException as error:  # a value that names another which is not there
        raise _not_a_checkpoint(path, error) from None
    _keep_replaced(state, arg_overrides or {})
    _override_base(state["cfg"]["model"], arg_overrides or {})
    _take_up_task(state, arg_overrides or {})
    state["model"] = without_extras(state["model"])
    if tensors_are_taken():
        state["model"] = one_copy(state["model"])
    return state


def _task_options(state: Mapping[str, Any]) -> Dict[str, Any]:
    options = state.get("args") or state.get("cfg")
    task = options.get("task") if isinstance(options, Mapping) else options
    return dict(vars(task) if isinstance(task, Namespace) else task) if isinstance(task, (Namespace, Mapping)) else {}


def _keep_replaced(state: Dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Have the record of a checkpoint's task say what it was trained with: fairseq writes `overrides` over that."""
    simple = (str, int, float, list, tuple, dict, type(None))
    options = state.pop(REPLACED, {})
    replaced = {name: options[name] for name in overrides if isinstance(options.get(name, ...), simple)}
    if not replaced:
        return
    with open_dict(state["cfg"]):
        state["cfg"][REPLACED] = replaced
    if isinstance(state["cfg"]["model"], Namespace):
        setattr(state["cfg"]["model"], REPLACED, replaced)


def _take_up_task(state: Dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Have a base's task, as it is recorded, be ours if an actor file is given for it.

    The hub and fairseq-validate take the task from the checkpoint, with what they are given in the place of options
    that it has: fairseq's own task would have no place for the file.
    """
    if not overrides.get("actor_weights"):
        return
    recorded = state["cfg"]["task"]
    recorded = vars(recorded) if isinstance(recorded, Namespace) else recorded
    name = str(recorded.get("_name") or recorded.get("task"))
    if not name.startswith(TG):
        task = TASK_REGISTRY.get(TG + name)
        if task is None:
            raise UserError(f"--actor-weights is for translation models, and this is one of --task {name}")
        options = task.of_record(recorded)
        with open_dict(state["cfg"]):
            state["cfg"]["task"] = OmegaConf.create({**options, "actor_weights": overrides["actor_weights"]})
        state["args"] = None  # which fairseq would make the same of once more


def _override_base(model: Any, overrides: Mapping[str, Any]) -> None:
    """Let --model-overrides change what a tg checkpoint records of its base's options, which fairseq does not see."""
    if not overrides or "base_record" not in (model or {}) or not model.base_record:
        return
    try:
        record = parse_json(model.base_record)
        options = record["options"]
        options.update({name: value for name, value in overrides.items() if name in options})
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # a damaged record is said to be one where it is read
    model.base_record = json.dumps(record, sort_keys=True)


def _check_records(path: str) -> None:
    """Compare every record of a checkpoint with its checksum, which torch leaves unread.

    Records are as large as they are in the file: what torch.save does not write, and what would grow when it is read,
    is refused. (Checkpoints of before torch 1.6 are no archives, and have no checksums.)
    """
    if not is_archive(path):
        return
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        packed = [record.filename for record in records if record.compress_type != zipfile.ZIP_STORED]
        if packed or sum(record.file_size for record in records) > os.path.getsize(path):
            raise ValueError(f"its record {packed[0] if packed else records[0].filename} is larger than the file")
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"its record {damaged} has not the checksum it was written with")


def _check_tensors(tensors: Mapping[Any, Any], path: str) -> None:
    """Refuse weights that are none, or that a file of this size cannot hold: a view repeats a number without end."""
    for name, tensor in tensors.items():
        plain = isinstance(tensor, Tensor) and tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not isinstance(name, str) or not plain or tensor.is_quantized:
            raise _not_a_checkpoint(path, ValueError(f"its weight {name} is no plain tensor"))
        if tensor.numel() * tensor.element_size() > os.path.getsize(path):
            raise _not_a_checkpoint(path, ValueError(f"its weight {name} is larger than the file"))


def read_state(file: Any, **options: Any) -> Any:
    """torch.load of a checkpoint, before fairseq makes a configuration of what is in it."""
    state = load_data(file, **options)
    if isinstance(state, dict):
        refuse_lookups({name: state.get(name) for name in ("args", "cfg")}, getattr(file, "name", "a checkpoint"))
        state[REPLACED] = _task_options(state)
    return state


def refuse_lookups(options: Any, path: str) -> None:
    """Refuse options that have omegaconf look something up where they are read, as ${oc.env:NAME} a variable."""
    if isinstance(options, (Mapping, Namespace)):
        options = list((vars(options) if isinstance(options, Namespace) else options).values())
    if isinstance(options, (list, tuple, set)):
        for value in options:
            refuse_lookups(value, path)
    elif isinstance(options, str) and "${" in options and ":" in options:
        raise UserError(
            f"'{path}' is refused: its option {options!r:.80} asks for something of this machine; do not load this file"
        )


def refuse_code(options: Any, path: str, within: str = "") -> None:
    """Refuse options that fairseq would `eval` and that are more than arithmetic on lists and tuples.

    within: the option that is evaluated whose value `options` is, or a part of it: of that there may be words, too, for
        fairseq records what it has evaluated already. (As text again, that is words with commas between.)
    """
    if isinstance(options, (list, tuple, set, frozenset, ListConfig)):
        options = dict(enumerate(options))
    for name, value in (vars(options) if isinstance(options, Namespace) else options or {}).items():
        evaluated = within or (name if name in EVALUATED_OPTIONS else "")
        if isinstance(value, (dict, list, tuple, set, frozenset, DictConfig, ListConfig, Namespace)):
            refuse_code(value, path, evaluated)
        elif evaluated and not _is_arithmetic(value) and not (within and _is_word(value)):
            raise UserError(
                f"'{path}' is refused: its option {evaluated} holds code, not sizes: {value!r:.80}; do not load this "
                "file"
            )


def _is_word(value: Any) -> bool:
    return type(value) is str and re.fullmatch(r"[\w-]*", value) is not None


def _is_arithmetic(expression: Any) -> bool:
    # Not by isinstance: `eval` also takes bytes, and whatever has some inside, as numpy's arrays and numbers
    if type(expression) is not str:
        return type(expression) in (int, float, bool, type(None))
    try:
        return not expression or all(
            isinstance(node, _ARITHMETIC) for node in ast.walk(ast.parse(expression, mode="eval"))
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _not_a_checkpoint(path: str, error: BaseException) -> UserError:
    if os.path.splitext(path)[1] in (".tg", ".safetensors"):
        return UserError(f"'{path}' is a compiled model or an actor file: give a checkpoint saved by fairseq-train")
    reason = (str(error).splitlines() or [""])[0].partition(". In PyTorch")[0][:160] or type(error).__name__
    return UserError(
        f"'{path}' is no fairseq checkpoint, or a damaged one ({reason}): give a checkpoint saved by fairseq-train"
    )


def without_extras(tensors: Mapping[str, Any]) -> Dict[str, Any]:
    """A model's tensors without those that only fairseq 0.12.2 has."""
    return {name: tensor for name, tensor in tensors.items() if not _EXTRA.fullmatch(name)}


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    tensors, files = without_extras(tensors), MappedFiles()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        files.page_out(tensor.data_ptr(), tensor.nbytes)
    return digest.hexdigest()


def split_tensors(tensors: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Dict[str, Tensor]]:
    """Divide a tg model's tensors into the base's and the actors'.

    A name is only a first sight: who uses the division compares the base's fingerprint.
    """
    base = {name: tensor for name, tensor in tensors.items() if not is_of_actor(name)}
    return base, {name: tensor for name, tensor in tensors.items() if name not in base}


allow(ALLOWED_GLOBALS)
_fairseq_load_checkpoint_to_cpu = checkpoint_utils.load_checkpoint_to_cpu
