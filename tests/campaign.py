"""Which cases of a campaign the default run includes, one of each kind; `pytest -m campaign`, which the gate runs too, runs the
others.

A campaign enumerates everything of some sort: every size of every kernel, every mutant, a thousand random programs. The default
run must include each kind of case, so that an error in a kind is found there first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

SPREAD: Final = {
    "assemble/test_reads_behind_the_wait.py::test_machine_code_reads_no_more_before_the_wait_than_its_text": 3,
    "audit/test_attacks.py::test_an_edited_manifest_is_not_confirmed": 3,
    "audit/test_launches.py::test_launches_are_within_the_contract": 4,
    "audit/test_proofs.py::test_mutations_are_never_confirmed": 3,
    "audit/test_proofs.py::test_shipped_kernels_are_confirmed": 3,
    "cli/test_json_interface.py::test_every_refusal_fits_the_schema_and_certain_fixes_end_it": 3,
    "cli/test_watch.py::test_the_command_watches_until_a_signal_ends_it": 2,
    "docs/test_pages.py::test_page": 2,
    "emulator/test_barriers.py::test_a_barrier_without_which_threads_race_is_missed": 2,
    "emulator/test_every_kernel.py::test_a_shipped_kernel_emulates_without_fault_and_agrees_with_its_reference": 2,
    "emulator/test_floats.py::test_rounds_once": 2,
    "emulator/test_foreign.py::test_triton_kernels_emulate_without_fault_and_agree_with_numpy": 3,
    "emulator/test_half.py::test_narrow_arithmetic_rounds_once": 2,
    "emulator/test_planted_faults.py::test_a_planted_mistake_is_found": 3,
    "emulator/test_readers.py::test_no_race_of_single_lanes_is_missed": 2,
    "emulator/test_readers.py::test_whole_warps_are_judged_exactly": 2,
    "engine/test_bench_result.py::test_a_plot_from_json_needs_no_gpu": 2,
    "engine/test_cli_inputs.py::test_a_refusal_of_the_driver": 3,
    "engine/test_cli_inputs.py::test_a_template_that_fails": 3,
    "engine/test_closed_world.py::test_a_bundle_holds_what_its_step_asks_for_and_no_more": 3,
    "engine/test_engine_cli.py::test_bad_input_is_one_line_and_a_status": 2,
    "engine/test_entry.py::test_the_current_folder_runs_nothing": 2,
    "engine/test_few_tokens.py::test_both_forms_hold_together": 3,
    "engine/test_few_tokens.py::test_what_is_built_is_what_lengths_ask_for": 3,
    "engine/test_interpreter_backend.py::test_block_sizes_are_within_every_kernels_contract": 3,
    "engine/test_interpreter_backend.py::test_logits_of_a_prompt": 3,
    "engine/test_short_form.py::test_both_forms_hold_together_and_the_short_one_has_no_merge": 3,
    "engine/test_template_limits.py::test_a_template_that_does_not_end": 3,
    "engine/test_template_limits.py::test_a_template_that_takes_all_memory": 3,
    "engine/test_verify.py::test_every_view_and_parameter_is_held_to_its_kernel": 3,
    "engine/test_verify.py::test_real_steps_hold_together": 3,
    "engine/test_verify_batch.py::test_real_batches_hold_together": 3,
    "examples/test_examples.py::test_results_are_those_of_the_reference": 2,
    "frontend/test_fuzz.py::test_mutated_tokens": 3,
    "frontend/test_fuzz.py::test_mutated_trees": 3,
    "fuzz/test_hostile_kernels.py::test_it_ends_in_an_answer": 3,
    "fuzz/test_slow_kernels.py::test_it_ends_with_its_answer": 3,
    "fuzz/test_stores.py::test_the_watch_sees": 3,
    "ir/test_text_form.py::test_equal_texts_give_equal_code": 3,
    "ir/test_text_form.py::test_every_point_of_the_pipeline_comes_back": 3,
    "lowering/test_prologue_copies.py::test_the_emulator_finds_nothing_and_agrees": 4,
    "lowering/test_positions.py::test_copies_into_shared_memory": 3,
    "lowering/test_random_accesses.py::test_no_program_races": 3,
    "lowering/test_shipped_results.py::test_lowered_code_computes_the_reference": 3,
    "lowering/test_tensor_attention.py::test_the_emulator_finds_nothing_and_agrees": 2,
    "lowering/test_tensor_copies.py::test_products_run_beside_each_other": 3,
    "lowering/test_tensor_copies.py::test_the_emulator_finds_nothing_and_agrees": 5,
    "lowering/test_tensor_core.py::test_matrix_loads_give_the_fragments": 3,
    "lowering/test_tensor_stores.py::test_the_emulator_finds_nothing_and_agrees": 5,
    "lowering/test_tensor_stores.py::test_what_orders_copies_and_threads_is_missed_where_it_is_not_there": 5,
    "lowering/test_total.py::test_noalias_is_what_the_contract_enforces": 3,
    "lowering/test_whole_pieces.py::test_edges_are_as_the_interpreter_has_them": 3,
    "lowering/test_wrapping.py::test_machines_agree": 3,
    "mutation/test_mutants.py::test_no_mutant_is_accepted_that_the_interpreter_refutes": 5,
    "passes/test_author_kernels.py::test_accepted_and_nothing_goes_wrong": 3,
    "passes/test_author_kernels.py::test_refused_with_a_launch_that_goes_wrong": 3,
    "passes/test_layouts.py::test_each_place_is_held_as_often_as_the_layout_says": 3,
    "passes/test_layouts.py::test_offsets_are_bijective_and_eight_rows_touch_all_banks": 3,
    "passes/test_schedule_mutants.py::test_what_changes_an_order_is_refused": 3,
    "passes/test_store_mutants.py::test_what_changes_the_order_of_stores_is_refused": 2,
    "programs/test_programs.py::test_all_machines_agree": 4,
    "programs/test_regressions.py::test_machines_agree": 3,
    "project/test_endings.py::test_processes_die_together": 2,
    "registry/test_lies.py::test_a_tampered_response_is_refused": 2,
    "soundness/test_enumeration.py::test_every_schedule_is_proven": 3,
    "soundness/test_enumeration.py::test_every_schedule_is_right": 3,
    "soundness/test_random_kernels.py::test_no_refuted_kernel_is_accepted": 3,
    "ui/test_shipped_mutations.py::test_off_by_one": 3,
    "ui/test_ui.py::test_kernel": 2,
    "workers/test_paths.py::test_how_a_program_forgets_the_folder": 3,
    "workers/test_paths.py::test_no_command_runs_what_lies_in_the_folder": 3,
}
"""Slow families, by file and function: the default run includes one case in this many of those that are not in a campaign
already."""


def parameters(case: Any, here: bool) -> ParameterSet:
    """A case, a tuple of several values or one, as pytest parameters; `here`: in the default run."""
    values = tuple(case) if isinstance(case, tuple | list) else (case,)
    return pytest.param(*values, marks=() if here else pytest.mark.campaign)


def chosen(cases: Iterable[Any], here: Callable[[Any], bool]) -> list[ParameterSet]:
    """All cases, in order; `here` selects those of the default run."""
    return [parameters(case, here(case)) for case in cases]


def one_of_each(cases: Iterable[Any], *kinds: Callable[[Any], Hashable]) -> list[ParameterSet]:
    """All cases, in order; the default run includes each case that is the first with its value of one of `kinds`."""
    met: set[tuple[int, Hashable]] = set()
    found: list[ParameterSet] = []
    for case in cases:
        mine = {(number, kind(case)) for number, kind in enumerate(kinds)}
        found.append(parameters(case, not mine <= met))
        met |= mine
    return found


def first(count: int, cases: Sequence[Any]) -> list[ParameterSet]:
    """All cases, in order; the default run includes the first `count`."""
    return [parameters(case, place < count) for place, case in enumerate(cases)]


def in_turn(rows: Iterable[Any], columns: Iterable[Any], every: int = 3) -> list[ParameterSet]:
    """All pairs of a row and a column; the default run includes one pair in `every`, which together contain every row and
    column."""
    columns = list(columns)
    return [parameters((row, column), (i + j) % every == 0) for i, row in enumerate(rows) for j, column in enumerate(columns)]


def spread(items: Iterable[pytest.Item], tests: Path) -> None:
    """Marks the cases of `SPREAD` that the default run leaves to the campaigns. `tests`: their folder."""
    seen: dict[str, int] = {}
    for item in items:
        if tests not in item.path.parents:
            continue
        name = f"{item.path.relative_to(tests).as_posix()}::{getattr(item, 'originalname', '')}"
        if name in SPREAD and item.get_closest_marker("campaign") is None:
            place = seen[name] = seen.get(name, -1) + 1
            if place % SPREAD[name]:
                item.add_marker(pytest.mark.campaign)
