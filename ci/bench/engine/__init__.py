"""Cases of `python ci/bench/engine.py`: checks and times of the engine on the GPU of this machine, with random weights.

Each case is a module (`ci/bench/front.py` says what it has); `weights` and `transformers_model` are parts of some of them. What
users run to time their own machine is `python -m engine.bench`.
"""

from typing import Final

from ci.bench.front import Case

CASES: Final = {
    "engine_check": Case("logits and speed compared with transformers"),
    "fp8_check": Case(
        "FP8 weights compared with transformers and with weights of 16 bits", "low_bit_check", {"weights": "fp8"}
    ),
    "int4_check": Case("INT4 weights, likewise", "low_bit_check", {"weights": "int4"}),
    "w8a8_check": Case("prompts with FP8 weights and activations compared with transformers and other formats"),
    "cache_check": Case("a cache of FP8 codes compared with one of 16 bits"),
    "ranks_check": Case("models that two GPUs share, compared with one GPU, and the all-reduce with NCCL's"),
    "engine_large": Case("speed of the large models", "engine_check", {"models": "qwen3-14b,qwen3-32b", "skip_check": True}),
    "lengths": Case("the time of a prompt over its length, and of the first prompt of each length"),
    "experts_check": Case("mixtures of experts compared with transformers, and their speed"),
    "engine_llama": Case("a Llama 3 model compared with transformers", "engine_check", {"models": "llama3.1-8b"}),
    "batch_check": Case("batches compared with single sequences"),
    "serving_check": Case("rows over pages: the same bits alone and among others, and speed"),
    "experts_rows": Case(
        "rows over pages of a mixture in each format of its weights, likewise",
        "serving_check",
        {"models": "qwen3-30b-a3b", "weights": "16bit,fp8,int4", "rows": "8,32,128"},
    ),
    "engine_soak": Case("long generations, full caches, many loads: no leak, no drift"),
    "serving_host": Case("the host's work for an iteration of the serving loop, without a model"),
    "serving_soak": Case("a server under requests of all kinds, on the interpreter: no leak, no hang, nothing wrong"),
    "serving_load": Case("requests that arrive at random: throughput, first tokens, time per token, starts of the server"),
    "speculation": Case("guesses of next tokens: the same tokens as without, and how fast"),
    "load_simulation": Case("the same by simulation, with other numbers of tokens between two steps"),
    "vllm_load": Case("the same requests on vLLM, in an environment that has it"),
    "cold_start": Case("seconds from process start to the first token"),
    "model_folder": Case("a model folder that has nothing but its config, for what needs no weights"),
    "container_size": Case("files of a container that serves one model, and whether the server runs in them"),
    "clients": Case("programs of others against the server, and what each of them used"),
    "shipped_engine": Case("a signed, pushed, pulled and installed bundle in an environment without a compiler"),
}
