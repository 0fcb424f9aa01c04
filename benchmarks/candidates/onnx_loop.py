"""ONNX Runtime with the whole greedy search in one graph: the encoder, then a Loop of cached decoder steps.

The graph is written node by node, with ONNX Runtime's own fused operators (domain com.microsoft) where they help. It
translates one sentence, so that states are positions x size and no padding exists; a decoder step has one position.

Two identities of attention leave one bias out of three in each: a bias of the keys moves all scores of a query alike,
so that softmax drops it; one of the values comes out as it went in (weights sum to 1) and joins the output's bias.

Needs: pip install onnx onnxruntime (a session needs onnxruntime and numpy only).
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

MICROSOFT = "com.microsoft"
OPSET = 21
IR_VERSION = 10
GATHER_BLOCK = 128  # sizes of an int8 embedding that share a scale


class Graph:
    """Nodes in the order of their running, and the constants they use.

    The loop's body has its own constants: what it takes from the graph around it is handed over at every step.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: List[Any] = []
        self.constants: Dict[Tuple[str, Tuple[int, ...], bytes], Any] = {}  # by content: equal ones are stored once

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        array = np.array(value.detach().float() if hasattr(value, "detach") else value, order="C")
        key = str(array.dtype), array.shape, sha256(array.tobytes()).digest()
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"{self.name}_constant{len(self.constants)}")
        return self.constants[key].name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def many(self, outputs: int, kind: str, *inputs: str, **attributes: Any) -> List[str]:
        """Add a node and give the names of its outputs."""
        from onnx import helper

        names = [f"{self.name}_{kind}{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.many(1, kind, *inputs, **attributes)[0]

    def fused(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.node(kind, *inputs, domain=MICROSOFT, **attributes)


def check(model: Any) -> None:
    """Raise ValueError for a model that the graph would not be the same function as."""
    from fairseq.models.transformer import TransformerModelBase
    from fairseq.modules import SinusoidalPositionalEmbedding

    def demand(fact: bool, what: str) -> None:
        if not fact:
            raise ValueError(f"onnx_loop takes post-norm ReLU Transformers with full gate actors or none: {what}")

    demand(isinstance(model, TransformerModelBase), f"this is a {type(model).__name__}")
    for side in (model.encoder, model.decoder):
        demand(isinstance(side.embed_positions, SinusoidalPositionalEmbedding), "positions are not sinusoidal")
        for part in ("layernorm_embedding", "layer_norm", "project_in_dim", "project_out_dim", "adaptive_softmax"):
            demand(getattr(side, part, None) is None, f"it has a {part}")
        for layer in side.layers:
            demand(not layer.normalize_before, "it is pre-norm")
            demand(layer.activation_fn.__name__ == "relu", "its activation is another")
            for part in ("attn_ln", "ffn_layernorm", "w_resid", "c_attn"):
                demand(getattr(layer, part, None) is None, f"it has a {part}")
    demand(not model.decoder.cross_self_attention, "encoder and self attention are one")
    for layer in model.decoder.layers:
        demand(layer.encoder_attn is not None, "a decoder layer has no encoder attention")
        if hasattr(layer, "actor"):
            net = layer.actor.net
            demand(type(net).__name__ == "Gate" and not net.rank, f"actor {type(net).__name__}, rank {net.rank}")


class Builder:
    """Writes the graph of one model."""

    def __init__(self, model: Any, int8: bool) -> None:
        import torch

        self.torch = torch
        self.encoder, self.decoder = model.encoder, model.decoder
        self.int8 = int8
        self.pad, self.eos = model.decoder.dictionary.pad(), model.decoder.dictionary.eos()

    def linear(self, g: Graph, x: str, weight: Any, bias: Any = None) -> str:
        """x: n x in, weight: out x in -> n x out."""
        biases = [] if bias is None else [g.constant(bias)]
        if not self.int8:
            return g.node("Gemm", x, g.constant(weight.t()), *biases)
        # A scale for each output. 7 bits: without VNNI, the kernel adds pairs of products in 16 bits, and would clip.
        scale = weight.abs().amax(1).clamp(min=1e-8) / 63
        values = (weight / scale[:, None]).round().t().numpy().astype(np.int8)
        return g.fused("DynamicQuantizeMatMul", x, g.constant(values), g.constant(scale), "", *biases)

    def norm(self, g: Graph, x: str, residual: str, module: Any, bias: Any = None) -> str:
        """LayerNorm(x + bias + residual)."""
        biases = [] if bias is None else [g.constant(bias)]
        parameters = g.constant(module.weight), g.constant(module.bias)
        return g.fused("SkipLayerNormalization", x, residual, *parameters, *biases, epsilon=module.eps)

    def feed_forward(self, g: Graph, x: str, layer: Any) -> str:
        hidden = g.node("Relu", self.linear(g, x, layer.fc1.weight, layer.fc1.bias))
        return self.norm(g, self.linear(g, hidden, layer.fc2.weight), x, layer.final_layer_norm, layer.fc2.bias)

    def queries_keys_values(self, g: Graph, x: str, attention: Any) -> str:
        """-> 1 x n x 3 * size, in one product."""
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        bias = self.torch.cat([attention.q_proj.bias, *(self.torch.zeros_like(part.bias) for part in parts[1:])])
        weight = self.torch.cat([part.weight for part in parts])
        return g.node("Reshape", self.linear(g, x, weight, bias), g.ints(1, -1, len(weight)))

    def output_bias(self, attention: Any) -> Any:
        return attention.out_proj.bias + attention.out_proj.weight @ attention.v_proj.bias

    def table(self, g: Graph, side: Any) -> Tuple[str, ...]:
        """The embeddings, scaled: a matrix, or bytes (128 stands for 0) and the scales of their blocks."""
        weight = side.embed_tokens.weight * side.embed_scale
        if not self.int8:
            return (g.constant(weight),)
        blocks = -(-weight.shape[1] // GATHER_BLOCK)
        padded = self.torch.nn.functional.pad(weight, (0, blocks * GATHER_BLOCK - weight.shape[1]))
        padded = padded.view(len(weight), blocks, GATHER_BLOCK)
        scale = padded.abs().amax(2).clamp(min=1e-8) / 127
        values = ((padded / scale[..., None]).round() + 128).flatten(1)[:, : weight.shape[1]]
        return g.constant(values.numpy().astype(np.uint8)), g.constant(scale)

    def embed(self, g: Graph, table: Sequence[str], tokens: str) -> str:
        if len(table) == 1:
            return g.node("Gather", *table, tokens)
        options = {"bits": 8, "block_size": GATHER_BLOCK, "gather_axis": 0, "quantize_axis": 1}
        return g.fused("GatherBlockQuantized", table[0], tokens, table[1], **options)

    def positions(self, g: Graph, side: Any) -> str:
        first = self.pad + 1  # fairseq's first position
        count = first + side.max_positions()
        return g.constant(side.embed_positions.get_embedding(count, side.embed_positions.embedding_dim)[first:])

    def encode(self, g: Graph, table: Sequence[str]) -> str:
        """tokens: L -> states, L x size."""
        positions = self.positions(g, self.encoder)
        positions = g.node("Slice", positions, g.ints(0), g.node("Shape", "tokens"), g.ints(0))
        x = g.node("Add", self.embed(g, table, "tokens"), positions)
        for layer in self.encoder.layers:
            attention = layer.self_attn
            qkv = g.many(3, "Split", self.queries_keys_values(g, x, attention), axis=2, num_outputs=3)
            context = g.fused("MultiHeadAttention", *qkv, num_heads=attention.num_heads)
            context = g.node("Squeeze", context, g.ints(0))
            attended = self.linear(g, context, attention.out_proj.weight)
            x = self.norm(g, attended, x, layer.self_attn_layer_norm, self.output_bias(attention))
            x = self.feed_forward(g, x, layer)
        return x

    def memory(self, g: Graph, encoded: str, attention: Any) -> List[str]:
        """The keys and values of a sentence, once for all steps: each 1 x heads x L x size of a head."""
        weight = self.torch.cat([attention.k_proj.weight, attention.v_proj.weight])
        shape = g.ints(1, -1, 2 * attention.num_heads, attention.head_dim)
        both = g.node("Reshape", self.linear(g, encoded, weight), shape)
        return g.many(2, "Split", g.node("Transpose", both, perm=[0, 2, 1, 3]), axis=1, num_outputs=2)

    def layer(self, g: Graph, x: str, layer: Any, memory: Sequence[str], cache: Sequence[str]) -> Tuple[str, List[str]]:
        """One step of a decoder layer: 1 x size -> 1 x size, and the cache one position longer."""
        attention = layer.self_attn
        row = g.ints(1, attention.embed_dim)
        context, *cache = g.many(
            3, "GroupQueryAttention", self.queries_keys_values(g, x, attention), "", "", *cache, "past", "total",
            domain=MICROSOFT, num_heads=attention.num_heads, kv_num_heads=attention.num_heads,
        )  # fmt: skip
        attended = self.linear(g, g.node("Reshape", context, row), attention.out_proj.weight)
        h = self.norm(g, attended, x, layer.self_attn_layer_norm, self.output_bias(attention))

        attention = layer.encoder_attn
        query = self.linear(g, h, attention.q_proj.weight, attention.q_proj.bias)
        query = g.node("Reshape", query, g.ints(1, 1, attention.embed_dim))
        context = g.fused("MultiHeadAttention", query, *memory, num_heads=attention.num_heads)
        context = g.node("Reshape", context, row)
        e = self.linear(g, context, attention.out_proj.weight, self.output_bias(attention))
        x = self.norm(g, e, h, layer.encoder_attn_layer_norm)
        if hasattr(layer, "actor"):
            maps = self.linear(g, g.node("Concat", h, e, axis=1), layer.actor.net.gate_and_action.full.weight)
            gate, action = g.many(2, "Split", maps, axis=1, num_outputs=2)
            x = g.node("Add", x, g.node("Mul", g.node("Sigmoid", gate), g.node("Tanh", action)))
        return self.feed_forward(g, x, layer), cache

    def model(self) -> Any:
        from onnx import TensorProto, helper

        def value(name: str, kind: int, *shape: Optional[int]) -> Any:
            return helper.make_tensor_value_info(name, kind, shape)

        int32, int64, boolean = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
        main, step = Graph("main"), Graph("step")
        source = self.table(main, self.encoder)
        shared = self.decoder.embed_tokens.weight is self.encoder.embed_tokens.weight
        target = source if shared else self.table(main, self.decoder)
        encoded = self.encode(main, source)
        step.nodes.append(helper.make_node("Reshape", ["index", step.ints(1)], ["position"]))
        step.nodes.append(helper.make_node("Cast", ["position"], ["past"], to=int32))
        step.nodes.append(helper.make_node("Add", ["past", step.constant(np.array([1], dtype=np.int32))], ["total"]))
        place = step.node("Gather", self.positions(main, self.decoder), "position")
        x = step.node("Add", self.embed(step, target, "token"), place)
        ins = [value("index", int64), value("go", boolean, 1), value("token", int64, 1)]
        outs, starts = [], [main.constant(np.array([True])), main.ints(self.eos)]
        for number, layer in enumerate(self.decoder.layers):
            cache = [f"keys{number}", f"values{number}"]
            memory = self.memory(main, encoded, layer.encoder_attn)
            x, grown = self.layer(step, x, layer, memory, cache)
            heads, size = layer.self_attn.num_heads, layer.self_attn.head_dim
            ins += [value(name, TensorProto.FLOAT, 1, heads, None, size) for name in cache]
            outs += [value(name, TensorProto.FLOAT, 1, heads, None, size) for name in grown]
            starts += [main.constant(np.zeros((1, heads, 0, size), dtype=np.float32))] * 2

        projection = self.decoder.output_projection
        never_pad = np.zeros(len(projection.weight), dtype=np.float32)
        never_pad[self.pad] = -1e9
        if len(target) == 1 and projection.weight is self.decoder.embed_tokens.weight:
            # One table for both uses: that its embeddings are scaled does not change which score is the largest.
            scores = step.node("Gemm", x, *target, step.constant(never_pad), transB=1)
        else:
            scores = self.linear(step, x, projection.weight, never_pad)
        token = step.node("ArgMax", scores, axis=1, keepdims=0)
        go = step.node("Not", step.node("Equal", token, step.ints(self.eos)))
        outs = [value(go, boolean, 1), value(token, int64, 1), *outs]
        outs.append(value(step.node("Identity", token), int64, 1))  # collected over the steps
        body = helper.make_graph(step.nodes, step.name, ins, outs, list(step.constants.values()))
        *_, tokens = main.many(len(outs) - 1, "Loop", "max_len", *starts, body=body)
        ins, outs = [value("tokens", int64, None), value("max_len", int64, 1)], [value(tokens, int64, None, 1)]
        graph = helper.make_graph(main.nodes, main.name, ins, outs, list(main.constants.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def build(model: Any, directory: Any, int8: bool) -> None:
    """Write DIRECTORY/model.onnx for a fairseq Transformer, with actors or without."""
    import onnx
    import torch

    check(model)
    with torch.no_grad():
        onnx.save(Builder(model, int8).model(), str(Path(directory) / "model.onnx"))


class Engine:
    """Greedy translation, one sentence at a time."""

    def __init__(self, directory: Any, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3  # no warnings of constants that its own rewriting leaves unused
        path = str(Path(directory) / "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def translate(self, tokens: List[int], max_len: int) -> List[int]:
        """Source ids ending with eos -> target ids ending with eos, at most max_len before it."""
        inputs = {"tokens": np.array(tokens, dtype=np.int64), "max_len": np.array([max_len], dtype=np.int64)}
        target = self.session.run(None, inputs)[0][:, 0].tolist()
        return target if target and target[-1] == tokens[-1] else [*target, tokens[-1]]
