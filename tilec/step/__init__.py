"""A model's step, declared once: takes the text of a model family, returns a StepGraph for one model's numbers.

A family of models is one file (`engine/models/qwen3/qwen3.step`) that reads like the model's paper: the weights, the buffers,
and the kernel launches of decode and prefill in order. The build enumerates the artifacts that a model can need from it
(`requests`), a bundle carries it, and the engine creates its graphs from the bundle's copy (`Step.graph`). No second list of
operations exists that could diverge.

The text uses Python's syntax; it is parsed and never run (`reader`). Its statements:

    group = num_attention_heads // num_key_value_heads      a number, from the model's numbers and earlier ones
    weights = {"model.norm.weight": [hidden_size], ...}     shapes by name; a table of names concatenates their rows
    tied = {"lm_head.weight": "model.embed_tokens.weight"}  with `tie_word_embeddings` the first is the second
    formats = {"fp8": scaled(f8e4m3, [128, 128]), ...}      how weights declared as `linear(...)` may be stored, next to 16 bits
    caches = {"fp8": coded(f8e4m3)}                         how caches of the model's dtype may be stored, next to 16 bits
    shards = {"lm_head.weight": rows(vocab_size), ...}      how ranks, GPUs of one machine, share weights
    sums = {"matmul": {...}, ...}                           the launches that ranks have where one sums over such columns
    variants = {"few": at_most(tokens, few_tokens), ...}    what conditions may ask for: up to a number, other launches
    layer_kinds = {"dense": dense_layers}                   what conditions may ask of a layer: a model lists those of a kind
    buffers = {"ids": input(i32, [tokens], low=0, high=vocab_size), ...}
    def decode(): ...                                       and `def prefill()`: launches, `if`, and `for layer in layers`;
                                                            `def batch()` if several sequences can be served at once
    chunk = prefill                                         modes whose caches are in pages: a chunk of a prompt, and `serve`,
    serve = prefill                                         a token of each of several rows; with the statements of another

A launch is `name = kernel(parameter=value, ...)`. A parameter in capitals is a constant that the kernel's specialisation must
have; the name of a buffer or weight is a tensor, with another shape in `q[1, heads, head_dim]`; the others are scalars. In the
loop, a `*` in a name stands for the layer; the prefix up to it (`layers.*.`, `model.layers.*.`) and a final `.*` or `.weight`
are omitted, and `previous.` selects the previous layer. All layers are alike except for `first_layer` and `last_layer`, which
only conditions may use, and for their kinds: `dense` and `previous.dense` (`layers`). A weight that some layers lack is
declared as `only(dense, [hidden_size])` or `only(not dense, ...)`. Only conditions may use a variant: it is true in a prefill
of at most so many `tokens`, or in a decode step if no cache has more than so many `filled` slots (`at_most(filled,
short_slots)`). In the loop, `for expert in experts` repeats launches for each item below a number of the step. A name with a
second `*`, such as `model.layers.*.mlp.experts.*.up_proj.weight`, has one tensor for each item; only these loops use it, as
`mlp.experts.up_proj`. A stacked weight is one tensor of all items, for a launch that chooses items by number. Under a name
with one `*`, `each(experts, {"model.layers.*.mlp.experts.*.up_proj.weight": [inner, outer]})` declares (experts, inner,
outer): the table's rows of the first item, then those of the second. With `linear(each(...))` each item may be stored in the
formats. A launch takes a linear weight as it is stored, `w=mlp.down_proj`, and is then one of the format's kernel; or in 16
bits, `w=dequantised(mlp.down_proj)` (`formats`), and so it takes a cache, `k_cache=k_cache` or `k_cache=dequantised(k_cache)`
(`caches`). `chunk_tokens`, if it was measured, is the most tokens of a prefill. A format such as `activations(fp8, f8e4m3, [1,
128], above=w8a8_tokens)` has the weights of another, and in longer prompts its products take what the text calls
`quantised(normed)` in eight bits (`activations`). Values of a step are `tokens`, `past`, `max_seq_len`, `dtype` and `head`
(the output mode), and `pages`, of which caches in pages have so many: `pool(dtype, [pages, page_tokens, heads, head_dim])`.
Launches and conditions may also ask for the `mode`, whether caches are `coded`, which they are in a format other than 16 bits,
and whether there is a `coded_head`, as in `headed(int4, lm_head.weight, fp8)`: the weights of `int4`, and one more in `fp8`.
Any other name is a measured number of `[[tuning]]` in build.toml. Constants that a launch omits are tuned too: see `tuning`.
`ranks` documents `shards` and `sums`.
"""
