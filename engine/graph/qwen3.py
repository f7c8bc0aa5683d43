"""One step of a dense Qwen3 model as a StepGraph: a decode step of one token, or a chunk of a prompt at prefill.

The computation is that of `Qwen3ForCausalLM` in transformers. At decode, linear layers are bound by the bytes of their
weights, and what follows them is part of them: the residual is added and gate and up are combined where the product is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from engine.graph.step import Constant, Kind, StepGraph, View

PARTS: Final = 32
"""Parts that decode attention splits a cache into; `decode_merge` is specialised for it. On an H200, 32 give 409 tokens a
second of a 4B model where 64 give 396."""

HEAD_PARTS: Final = 660
"""Blocks of the fused LM head and argmax: five for each of 132 multiprocessors."""

SLOTS: Final = 64
"""A cache holds a multiple of so many slots, which attention reads whole."""

TOP_K_LIMIT: Final = 64
"""Tokens that sampling draws from at most: what each block of `topk_blocks` leaves, and `sample_token` is specialised for."""

TOP_K_BLOCK: Final = 1024
"""Logits of a block of `topk_blocks`."""


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """A specialisation of `matmul`: rows and columns of a block's tile, how many blocks a device runs at once, and the time
    that these take for each of the products' inputs, in nanoseconds, measured on an H200 with the layers of a 4B model."""

    rows: int
    columns: int
    blocks: int
    time: float


MATMUL_TILES: Final = (
    MatmulTile(64, 64, 264, 5.0),
    MatmulTile(64, 256, 132, 8.7),
    MatmulTile(128, 192, 132, 11.7),
    MatmulTile(128, 256, 132, 15.8),
)


def matmul_tile(tokens: int, outputs: int) -> MatmulTile:
    """The tile that takes least time: whole turns of all blocks, each as long as the tile takes. For 18, 128, 512 and 1024
    tokens and the four linear layers of a 4B model it is the fastest that was measured."""

    def time(tile: MatmulTile) -> float:
        count = -(-tokens // tile.rows) * -(-outputs // tile.columns)
        return -(-count // tile.blocks) * tile.time

    return min(MATMUL_TILES, key=time)


Head = Literal["argmax", "sample", "logits", "none"]
"""How a step ends: with the most likely token, one drawn by chance, the logits, or nothing but the filled cache."""


class Shape(Protocol):
    """What decides a step; `engine.config.ModelConfig` has these."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def tie_word_embeddings(self) -> bool: ...


def cache_slots(max_seq_len: int) -> int:
    """Slots of a cache that holds so many tokens."""
    return -(-max_seq_len // SLOTS) * SLOTS


def step(
    config: Shape,
    tokens: int,
    max_seq_len: int,
    dtype: str = "bf16",
    *,
    past: int = 0,
    head: Head = "argmax",
    decode: bool | None = None,
) -> StepGraph:
    """The step that takes in `tokens` tokens.

    Inputs: `ids` and `positions` and `slots` (i32, one per token; a token's slot is its position), at decode `lengths` (i32,
    slots filled with this step's token), at prefill `last` (i32, the row of the chunk's last token). Outputs by `head`:
    `token` (i32) or `logits` (1, vocab). A decode step that chooses a token leaves its inputs as the next one needs them.
    To draw, the settings `top_k` (i32), `temperature` and `top_p` (f32), and `uniforms` (f32, one per slot: the token behind
    the one in slot n is drawn with number n), and at prefill the input `draw` (i32, the slot of the chunk's last token).
    `past` is how many tokens the cache holds before a prefill chunk; a decode step reads that from its inputs. `decode`
    chooses the form for one token (None: decode).
    """
    made = _Step(config, tokens, max_seq_len, dtype)
    if decode if decode is not None else tokens == 1:
        made.decode(head)
    else:
        made.prefill(past, head)
    return made.graph


class _Step:
    def __init__(self, config: Shape, tokens: int, max_seq_len: int, dtype: str) -> None:
        self.config, self.tokens, self.dtype = config, tokens, dtype
        self.slots = cache_slots(max_seq_len)
        self.group = config.num_attention_heads // config.num_key_value_heads
        self.query = config.num_attention_heads * config.head_dim
        self.graph = StepGraph("prefill", tokens)
        graph, slots = self.graph, self.slots
        graph.buffer("ids", "i32", (tokens,), Kind.INPUT, low=0, high=config.vocab_size)
        graph.buffer("positions", "i32", (tokens,), Kind.INPUT, low=0, high=slots)
        graph.buffer("slots", "i32", (tokens,), Kind.INPUT, low=0, high=slots, distinct=True)
        graph.buffer("rope_table", "f32", (slots, config.head_dim), Kind.TABLE)
        for layer in range(config.num_hidden_layers):
            for which in ("k", "v"):
                shape = (slots, config.num_key_value_heads, config.head_dim)
                graph.buffer(f"{which}_cache.{layer}", dtype, shape, Kind.CACHE)

    def weight(self, name: str, *shape: int) -> View:
        self.graph.buffer(name, self.dtype, shape, Kind.WEIGHT)
        return self.graph.view(name)

    def made(self, name: str, *shape: int, dtype: str | None = None, kind: Kind = Kind.ACTIVATION) -> View:
        self.graph.buffer(name, dtype or self.dtype, shape, kind)
        return self.graph.view(name)

    def run(
        self,
        name: str,
        kernel: str,
        constants: Mapping[str, Constant],
        scalars: Mapping[str, float] | None = None,
        **tensors: View,
    ) -> None:
        element: dict[str, Constant] = {} if kernel == "argmax_reduce" else {"E": self.dtype}
        self.graph.add(name, kernel, {**element, **constants}, tensors, **(scalars or {}))

    def norm(self, name: str, x: View, weight: str, out: str) -> View:
        hidden = self.config.hidden_size
        normed = self.made(out, x.shape[0], hidden)
        scalars = {"eps": self.config.rms_norm_eps}
        self.run(name, "rms_norm", {"H": hidden}, scalars, x=x, weight=self.weight(weight, hidden), out=normed)
        return normed

    def add_norm(self, name: str, x: View, residual: View, weight: str, out: str) -> View:
        hidden = self.config.hidden_size
        normed = self.made(out, x.shape[0], hidden)
        scalars = {"eps": self.config.rms_norm_eps}
        given = {"x": x, "residual": residual, "weight": self.weight(weight, hidden), "out": normed}
        self.run(name, "add_rms_norm", {"H": hidden}, scalars, **given)
        return normed

    def embed(self) -> View:
        config = self.config
        hidden = self.made("hidden", self.tokens, config.hidden_size)
        table = self.weight("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.run("embed_tokens", "embedding", {"H": config.hidden_size}, ids=self.graph.view("ids"), table=table, out=hidden)
        return hidden

    def rotate(self, layer: int, qkv: View) -> View:
        """Norm and rotate the heads, fill the cache; the queries."""
        config, graph = self.config, self.graph
        prefix = f"model.layers.{layer}.self_attn"
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        q = self.made(f"layers.{layer}.q", self.tokens, config.num_attention_heads, config.head_dim)
        self.run(
            f"layers.{layer}.qk_norm_rope_kv",
            "qk_norm_rope_kv",
            {"D": config.head_dim, "GROUP": 1 if self.tokens == 1 else 8},
            {"eps": config.rms_norm_eps},
            qkv=View(qkv.buffer, (self.tokens, heads, config.head_dim)),
            q_weight=self.weight(f"{prefix}.q_norm.weight", config.head_dim),
            k_weight=self.weight(f"{prefix}.k_norm.weight", config.head_dim),
            table=graph.view("rope_table"),
            positions=graph.view("positions"),
            slots=graph.view("slots"),
            q=q,
            k_cache=graph.view(f"k_cache.{layer}"),
            v_cache=graph.view(f"v_cache.{layer}"),
        )
        return q

    def qkv_weight(self, layer: int) -> View:
        heads = self.config.num_attention_heads + 2 * self.config.num_key_value_heads
        name = f"model.layers.{layer}.self_attn.qkv_proj.weight"
        return self.weight(name, heads * self.config.head_dim, self.config.hidden_size)

    def decode(self, head: Head) -> None:
        config, graph = self.config, self.graph
        hidden_size, inner = config.hidden_size, config.intermediate_size
        kv, d, group = config.num_key_value_heads, config.head_dim, self.group
        graph.name = "decode"
        graph.buffer("lengths", "i32", (1,), Kind.INPUT, low=1, high=self.slots + 1)
        hidden = self.embed()
        for layer in range(config.num_hidden_layers):
            prefix, here = f"model.layers.{layer}", f"layers.{layer}"
            normed = self.norm(f"{here}.input_layernorm", hidden, f"{prefix}.input_layernorm.weight", f"{here}.normed")
            weight = self.qkv_weight(layer)
            qkv = self.made(f"{here}.qkv", 1, weight.shape[0])
            self.run(f"{here}.qkv_proj", "matvec", {"B": 1, "K": hidden_size}, x=normed, w=weight, out=qkv)
            q = self.rotate(layer, qkv)
            partial = self.made(f"{here}.partial", 1, PARTS, kv, group, d, dtype="f32")
            maxima = self.made(f"{here}.maxima", 1, PARTS, kv, group, dtype="f32")
            sums = self.made(f"{here}.sums", 1, PARTS, kv, group, dtype="f32")
            caches = {f"{which}_cache": graph.view(f"{which}_cache.{layer}", 1, self.slots, kv, d) for which in ("k", "v")}
            self.run(
                f"{here}.attention", "decode_attention", {"D": d}, {"scale": d**-0.5}, q=View(q.buffer, (1, kv, group, d)),
                lengths=graph.view("lengths"), partial=partial, maxima=maxima, sums=sums, **caches,
            )  # fmt: skip
            mixed = self.made(f"{here}.mixed", 1, kv, group, d)
            merge = {"D": d, "P": PARTS}
            self.run(f"{here}.merge", "decode_merge", merge, partial=partial, maxima=maxima, sums=sums, out=mixed)
            weight = self.weight(f"{prefix}.self_attn.o_proj.weight", hidden_size, self.query)
            row = View(mixed.buffer, (1, self.query))
            self.run(f"{here}.o_proj", "matvec_add", {"B": 1, "K": self.query}, x=row, w=weight, residual=hidden)
            name = "post_attention_layernorm"
            normed = self.norm(f"{here}.{name}", hidden, f"{prefix}.{name}.weight", f"{here}.normed_again")
            weight = self.weight(f"{prefix}.mlp.gate_up_proj.weight", 2 * inner, hidden_size)
            act = self.made(f"{here}.act", 1, inner)
            self.run(f"{here}.gate_up_proj", "matvec_silu_mul", {"B": 1, "K": hidden_size}, x=normed, w=weight, out=act)
            weight = self.weight(f"{prefix}.mlp.down_proj.weight", hidden_size, inner)
            self.run(f"{here}.down_proj", "matvec_add", {"B": 1, "K": inner}, x=act, w=weight, residual=hidden)
        self.head(self.norm("norm", hidden, "model.norm.weight", "normed"), head)
        if head in ("argmax", "sample"):
            ids, positions, slots, lengths = (graph.view(name) for name in ("ids", "positions", "slots", "lengths"))
            given = {"token": graph.view("token"), "ids": ids, "positions": positions, "slots": slots, "lengths": lengths}
            graph.add("advance", "advance", {}, given, vocab_size=config.vocab_size)

    def linear(self, name: str, x: View, weight: View, out: str) -> View:
        made = self.made(out, self.tokens, weight.shape[0])
        tile = matmul_tile(self.tokens, weight.shape[0])
        constants: dict[str, Constant] = {"BM": tile.rows, "BN": tile.columns}
        self.run(name, "matmul", constants, a=View(x.buffer, (self.tokens, weight.shape[1])), b=weight, out=made)
        return made

    def prefill(self, past: int, head: Head) -> None:
        config, graph = self.config, self.graph
        hidden_size, inner = config.hidden_size, config.intermediate_size
        kv, d, group = config.num_key_value_heads, config.head_dim, self.group
        hidden = self.embed()
        normed = self.norm("layers.0.input_layernorm", hidden, "model.layers.0.input_layernorm.weight", "layers.0.normed")
        for layer in range(config.num_hidden_layers):
            prefix, here = f"model.layers.{layer}", f"layers.{layer}"
            q = self.rotate(layer, self.linear(f"{here}.qkv_proj", normed, self.qkv_weight(layer), f"{here}.qkv"))
            last = layer == config.num_hidden_layers - 1
            if last and head == "none":
                return  # the cache is filled
            mixed = self.made(f"{here}.mixed", self.tokens, kv, group, d)
            caches = {f"{which}_cache": graph.view(f"{which}_cache.{layer}") for which in ("k", "v")}
            self.run(
                f"{here}.attention", "flash_attention", {"D": d, "BM": 64}, {"scale": d**-0.5, "past": past},
                q=View(q.buffer, (self.tokens, kv, group, d)), out=mixed, **caches,
            )  # fmt: skip
            weight = self.weight(f"{prefix}.self_attn.o_proj.weight", hidden_size, self.query)
            x = self.linear(f"{here}.o_proj", mixed, weight, f"{here}.o")
            name = "post_attention_layernorm"
            normed = self.add_norm(f"{here}.{name}", x, hidden, f"{prefix}.{name}.weight", f"{here}.normed_again")
            weight = self.weight(f"{prefix}.mlp.gate_up_proj.weight", 2 * inner, hidden_size)
            both = self.linear(f"{here}.gate_up_proj", normed, weight, f"{here}.gate_up")
            act = self.made(f"{here}.act", self.tokens, inner)
            self.run(f"{here}.act_fn", "silu_mul_rows", {}, x=both, out=act)
            x = self.linear(
                f"{here}.down_proj", act, self.weight(f"{prefix}.mlp.down_proj.weight", hidden_size, inner), f"{here}.down"
            )
            following = "model.norm.weight" if last else f"model.layers.{layer + 1}.input_layernorm.weight"
            made = "norm" if last else f"layers.{layer + 1}.input_layernorm"
            normed = self.add_norm(made, x, hidden, following, f"layers.{layer + 1}.normed")
        if head == "sample":
            graph.buffer("draw", "i32", (1,), Kind.INPUT, low=0, high=self.slots)
        if head != "none":
            graph.buffer("last", "i32", (1,), Kind.INPUT, low=0, high=self.tokens)
            row = self.made("last_row", 1, hidden_size)
            self.run("last_token", "gather_row", {"H": hidden_size}, x=normed, index=graph.view("last"), out=row)
            self.head(row, head)

    def head(self, x: View, head: Head) -> None:
        config = self.config
        name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        weight = self.weight(name, config.vocab_size, config.hidden_size)
        constants: dict[str, Constant] = {"B": 1, "K": config.hidden_size}
        if head in ("logits", "sample"):
            kind = Kind.OUTPUT if head == "logits" else Kind.ACTIVATION
            logits = self.made("logits", 1, config.vocab_size, kind=kind)
            self.run("lm_head", "matvec", constants, x=x, w=weight, out=logits)
            if head == "sample":
                self.sample(logits)
        elif head == "argmax":
            maxima = self.made("head.maxima", 1, HEAD_PARTS, dtype="f32")
            indices = self.made("head.indices", 1, HEAD_PARTS, dtype="i32")
            self.run("lm_head", "matvec_argmax", constants, x=x, w=weight, maxima=maxima, indices=indices)
            token = self.made("token", 1, dtype="i32", kind=Kind.OUTPUT)
            self.run("argmax", "argmax_reduce", {"PARTS": 1024}, maxima=maxima, indices=indices, out=token)

    def sample(self, logits: View) -> None:
        """The greatest logits of each block of the vocabulary, and of these the token."""
        graph, made = self.graph, self.made
        graph.buffer("top_k", "i32", (1,), Kind.SETTING, low=1, high=TOP_K_LIMIT + 1)
        for name in ("temperature", "top_p"):
            graph.buffer(name, "f32", (1,), Kind.SETTING)
        graph.buffer("uniforms", "f32", (1, self.slots), Kind.SETTING)
        parts = -(-self.config.vocab_size // TOP_K_BLOCK)
        best = made("head.best", 1, parts, TOP_K_LIMIT, dtype="f32")
        indices = made("head.indices", 1, parts, TOP_K_LIMIT, dtype="i32")
        top_k = graph.view("top_k")
        constants: dict[str, Constant] = {"BLOCK": TOP_K_BLOCK}
        self.run("top_k", "topk_blocks", constants, logits=logits, top_k=top_k, best=best, indices=indices)
        settings = {name: graph.view(name) for name in ("top_k", "temperature", "top_p", "uniforms")}
        place = graph.view("draw" if "draw" in graph.buffers else "positions")
        token = made("token", 1, dtype="i32", kind=Kind.OUTPUT)
        given = {"best": best, "indices": indices, **settings, "place": place, "token": token}
        graph.add("sample", "sample_token", {"KEEP": TOP_K_LIMIT}, given)
