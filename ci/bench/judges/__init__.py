"""Cases of `python ci/bench/judges.py`: campaigns that try to refute the compiler, or to break what reads its files.

Each case is a module (`ci/bench/front.py` says what it has); the other modules are parts of some of them.
"""

from typing import Final

from ci.bench.front import Case

CASES: Final = {
    "soundness": Case("the prover's verdicts on random kernels, against enumeration"),
    "rank_soundness": Case("the compiler's verdicts on random kernels in which ranks meet, against enumeration"),
    "mutations": Case("every mutant of every shipped kernel"),
    "library_mutations": Case("every mutant of every kernel of the library"),
    "audit": Case("`tilec audit` on the bundles of every model, on an idle and on a busy machine"),
    "schedule_mutants": Case("mistakes in warp-specialized schedules"),
    "programs": Case("random tile programs on three machines"),
    "fed_products": Case("random products in tensor memory, and by warps, that a producer feeds"),
    "edge_programs": Case("masked boxes at the edges of dtypes", "random_cases", {"family": "edge_programs"}),
    "product_loops": Case("products in loops under every schedule", "random_cases", {"family": "product_loops"}),
    "waits": Case("reads that the assembler moved before the grid dependency wait"),
    "emulator_gpu": Case("the emulator against a GPU, artifact by artifact"),
    "emulator_products": Case("every artifact with a product, of sm_100a and sm_120a, in three orders of threads"),
    "ptx_semantics_gpu": Case("the emulator against a GPU, instruction by instruction"),
    "function_errors": Case("errors of the accurate functions, in units in the last place"),
    "emulator_faults": Case("mistakes in PTX that the emulator finds"),
    "source_mutants": Case("mistakes in tilec's own source that tests find"),
    "kill_matrix": Case("which tests of core notice which mistakes in tilec's own source"),
    "hostile": Case("hostile bundles, artifacts, models, stores, builds and kernels"),
    "faults": Case("cache and bundles under kills, damage, full disks"),
    "tampering": Case("tampering with signed bundles, signatures and policies"),
    "registry_tampering": Case("tampering with a registry's responses"),
    "remote_attacks": Case("attacks on data from other machines"),
    "remote_cache": Case("a team's remote cache"),
    "farm": Case("a farm of four workers"),
    "farm_model": Case("costs of a team and of a large farm, simulated from measurements"),
    "build_speed": Case("seconds of `tilec build`"),
    "time_model": Case("the model of time against every measured product and attention"),
    "mender": Case("broken kernels that a program fixes from their JSON"),
    "chat_template": Case("chat prompts against transformers"),
}
