"""A model's step, declared once: the text of a family goes in, a StepGraph for a model's numbers comes out.

A family of models is one file (`engine/models/qwen3.step`) that reads like the model's paper: the weights, the buffers, and for
decode and prefill the launches of kernels in order. The build enumerates from it which artifacts a model can ask for
(`requests`), a bundle carries it, and the engine makes the graphs that it runs from the bundle's own copy (`Step.graph`); so no
second list of operations can drift from the first.

The text is Python's syntax, parsed and never run (`reader`). What it may say:

    group = num_attention_heads // num_key_value_heads      a number, of the model's numbers and those before
    weights = {"model.norm.weight": [hidden_size], ...}     shapes by name; a table of names is rows one after the other
    tied = {"lm_head.weight": "model.embed_tokens.weight"}  with `tie_word_embeddings` the first is the second
    buffers = {"ids": input(i32, [tokens], low=0, high=vocab_size), ...}
    def decode(): ...                                       and `def prefill()`: launches, `if`, and `for layer in layers`;
                                                            `def batch()` where several sequences can be served at once

A launch is `name = kernel(parameter=value, ...)`. A parameter in capitals is a constant that the kernel's specialisation must
have; what names a buffer or weight is a tensor, seen in another shape as `q[1, heads, head_dim]`; the rest are scalars. In the
loop a `*` in a name stands for the layer, what is before it (`layers.*.`, `model.layers.*.`) and a last `.*` or `.weight` are
left out, and `previous.` is the layer before. All layers are alike but for `first_layer` and `last_layer`, on which only
conditions may depend, as on `short`: whether no cache has more than `short_slots` slots filled, so that a step may have a form
for short caches; and on `few`: whether a prefill takes in `few_tokens` tokens at most. Values of a step are `tokens`, `past`,
`max_seq_len`, `dtype` and `head`; a name that is none of these is a measured one of `[[tuning]]` in build.toml. Constants that
a launch leaves out are tuning too: see `tuning`.
"""
