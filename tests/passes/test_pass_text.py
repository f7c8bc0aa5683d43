"""Single passes as text: the tile IR before and after one of them. Also the order of passes."""

from __future__ import annotations

from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import PASSES
from tilec.passes.schedule.passes import LAYOUT, Settings, before, pass_named, run, through
from tilec.target.schedule import Role, Schedule
from tilec.target.targets import SM_90A

SCHEDULE = Schedule((Role("all", 1),))
HEAD = """kernel @k(%x: in tensor<f32, [64], align 256>, %n: i32, %out: out tensor<f32, [64], align 256>) {
  constants {}
  dims []
  strides []
  grid [1]
"""
LOAD, STORE = "unsafe = none, vector = 0, whole = false", "mask = false, unsafe = none, vector = 0, whole = false"


def after(name: str, body: str, schedule: Schedule = SCHEDULE, head: str = HEAD) -> str:
    """The body's text after the pass of that name alone, as the schedule runs it."""
    function, start = parse_function(head + body + "}\n"), f"{head}  warps 1\n"
    text = print_function(run(function, Settings(schedule, SM_90A), [pass_named(name)]))
    assert text.startswith(start) and text.endswith("}\n")
    return text.removeprefix(start).removesuffix("}\n")


def test_canonicalize_folds_constants_and_drops_what_nothing_uses() -> None:
    body = f"""  %0 = constant {{value = 3}} : i32
  %1 = constant {{value = 5}} : i32
  %2 = binary %0, %1 {{kind = "add"}} : i32
  %3 = binary %n, %0 {{kind = "mul"}} : i32
  %4 = load %x, %2 {{pad = none, {LOAD}}} : f32[32]
  store %out, %4, %2 {{{STORE}, streamed = false}}
"""
    assert (
        after("canonicalize", body)
        == f"""  %0 = constant {{value = 8}} : i32
  %1 = load %x, %0 {{pad = none, {LOAD}}} : f32[32]
  store %out, %1, %0 {{{STORE}, streamed = false}}
"""
    )


def test_a_network_replaces_a_sort() -> None:
    """Of two elements: the lower position keeps the minimum."""
    body = f"""  %0 = iota : i32[2]
  %1 = sort %0 {{axis = 0, descending = true}} : i32[2]
  %2 = gather %x, %1 {{pad = none, {LOAD}}} : f32[2]
  store %out, %2, %n {{{STORE}, streamed = false}}
"""
    assert (
        after("networks", body)
        == f"""  %0 = iota : i32[2]
  %1 = unary %0 {{kind = "not"}} : i32[2]
  %2 = butterfly %1 {{axis = 0, mask = 1}} : i32[2]
  %3 = constant {{value = 1}} : i32[2]
  %4 = constant {{value = 0}} : i32[2]
  %5 = iota : i32[2]
  %6 = binary %5, %3 {{kind = "and"}} : i32[2]
  %7 = compare %6, %4 {{kind = "eq"}} : bool[2]
  %8 = binary %1, %2 {{kind = "min"}} : i32[2]
  %9 = binary %1, %2 {{kind = "max"}} : i32[2]
  %10 = select %7, %8, %9 : i32[2]
  %11 = unary %10 {{kind = "not"}} : i32[2]
  %12 = gather %x, %11 {{pad = none, {LOAD}}} : f32[2]
  store %out, %12, %n {{{STORE}, streamed = false}}
"""
    )


BODY = f"""  %0 = load %x, %n {{pad = none, {LOAD}}} : f32[32]
  %1 = block_id {{axis = 0}} : i32
  store %out, %0, %1 {{{STORE}, streamed = false}}
"""


def test_the_dependency_wait_follows_scalars_and_precedes_memory() -> None:
    assert (
        after("dependency-wait", BODY)
        == f"""  %0 = block_id {{axis = 0}} : i32
  wait_prior {{before = false}}
  %1 = load %x, %n {{pad = none, {LOAD}}} : f32[32]
  store %out, %1, %0 {{{STORE}, streamed = false}}
"""
    )


def test_layout_gives_each_tile_threads_and_each_access_a_width() -> None:
    """The width of a load at an unknown index is that of an element."""
    layout = "<8@0*1 | 4@0*8 8 | 1>"
    assert (
        after("layout", BODY)
        == f"""  %0 = load %x, %n {{pad = none, unsafe = none, vector = 4, whole = true}} : f32[32] {layout}
  %1 = block_id {{axis = 0}} : i32
  store %out, %0, %1 {{mask = false, unsafe = none, vector = 16, whole = true, streamed = false}}
"""
    )


ATOMIC = HEAD.replace("%out: out tensor<f32, [64], align 256>", "%out: atomic tensor<f32, [4], align 256>")
LAID_OUT = "<8@0*1 | 4@0*8 8 | 1>"


def test_a_loop_updates_a_part_that_is_filled_before_and_flushed_after_it() -> None:
    """Two iterations of 32 updates of 4 elements are four times as many."""
    body = f"""  %0 = constant {{value = 0}} : i32
  %1 = constant {{value = 2}} : i32
  %2 = constant {{value = 1}} : i32
  for %0, %1, %2 {{variable = "i"}} {{
  ^(%3: i32)
    %4 = iota : i32[32] {LAID_OUT}
    %5 = constant {{value = 0x1.0000000000000p+0}} : f32[32] {LAID_OUT}
    atomic_scatter %out, %5, %4 {{kind = "add", mask = true, {LOAD}}}
    yield
  }}
"""
    found = after("private-parts", body, head=ATOMIC)
    assert (
        found
        == f"""  %0 = constant {{value = 0}} : i32
  %1 = constant {{value = 2}} : i32
  %2 = constant {{value = 1}} : i32
  %3 = shared_alloc {{offset = 0, alignment = 128}} : scratch<144>
  private_fill %3, %out {{kind = "add", shape = [4]}}
  for %0, %1, %2 {{variable = "i"}} {{
  ^(%4: i32)
    %5 = iota : i32[32] {LAID_OUT}
    %6 = constant {{value = 0x1.0000000000000p+0}} : f32[32] {LAID_OUT}
    private_update %3, %out, %6, %5 {{kind = "add", shape = [4], mask = true}}
    yield
  }}
  private_flush %out, %3 {{kind = "add", shape = [4]}}
  shared_free %3
"""
    )
    assert after("private-parts", body, Schedule((Role("all", 1),), persistent=True), ATOMIC) == body


def test_positions_that_count_up_are_a_vector() -> None:
    body = f"""  %0 = iota : i32[32] {LAID_OUT}
  %1 = gather %x, %0 {{pad = none, {LOAD}}} : f32[32] {LAID_OUT}
  %2 = binary %0, %0 {{kind = "add"}} : i32[32] {LAID_OUT}
  %3 = gather %x, %2 {{pad = none, {LOAD}}} : f32[32] {LAID_OUT}
"""
    wide = body.replace("vector = 0, whole = false", "vector = 16, whole = true", 1)
    assert after("vector-positions", body) == wide


def test_a_load_of_one_box_leaves_its_loop() -> None:
    loop = f"""  for %0, %n, %1 {{{{variable = "i"}}}} {{{{
  ^(%{{0}}: i32)
{{1}}    %{{2}} = load %x, %{{0}} {{{{pad = 0x0.0p+0, {LOAD}}}}} : f32[32]
    yield
  }}}}
"""
    head = "  %0 = constant {value = 0} : i32\n  %1 = constant {value = 1} : i32\n"
    load = f"%{{}} = load %x, %0 {{{{pad = none, {LOAD}}}}} : f32[32]\n"
    inside = head + loop.format(2, f"    {load.format(3)}", 4)
    assert after("invariant-loads", inside) == head + f"  {load.format(2)}" + loop.format(3, "", 4)


def test_a_box_that_a_loop_updates_is_carried() -> None:
    """No iteration is known: the update is in a branch."""
    head = "  %0 = constant {value = 0} : i32\n  %1 = constant {value = 1} : i32\n"
    tile, update = "constant {value = 0x1.0000000000000p+0} : f32[4]", f'{{kind = "add", mask = false, {LOAD}}}'
    body = f"""  for %0, %n, %1 {{variable = "i"}} {{
  ^(%2: i32)
    %3 = {tile}
    atomic %out, %3, %0 {update}
    yield
  }}
"""
    assert (
        after("loop-sums", head + body, head=ATOMIC)
        == head
        + f"""  %2 = constant {{value = -0x0.0p+0}} : f32[4]
  %7 = for %0, %n, %1, %2 {{variable = "i"}} : f32[4] {{
  ^(%3: i32, %4: f32[4])
    %5 = {tile}
    %6 = binary %4, %5 {{kind = "add"}} : f32[4]
    yield %6
  }}
  %8 = compare %0, %n {{kind = "lt"}} : bool
  if %8 {{
    atomic %out, %7, %0 {update}
    yield
  }} {{
    yield
  }}
"""
    )


def test_a_pass_runs_for_the_schedules_that_need_it_alone() -> None:
    assert after("streamed-stores", BODY) == BODY
    streamed = after("streamed-stores", BODY, Schedule((Role("all", 1),), store="streamed"))
    assert streamed == BODY.replace("streamed = false", "streamed = true")
    persistent = after("persistent", BODY, Schedule((Role("all", 1),), persistent=True))
    assert after("persistent", BODY) == BODY and "launched_blocks" in persistent


def test_names_differ_and_every_pass_has_its_reason() -> None:
    assert len({one.name for one in PASSES}) == len(PASSES)
    assert all(one.reason.endswith(".") and pass_named(one.option) is one for one in PASSES)


def test_before_and_through_cut_the_list_at_a_pass() -> None:
    assert (*before(LAYOUT), LAYOUT) == tuple(through(LAYOUT))
    assert through(PASSES[-1]) == PASSES and not before(PASSES[0])


def test_what_an_operand_is_packed_from_is_loaded_an_iteration_ahead() -> None:
    """Not what is added to the result, for which the threads wait in any case; nothing if too few registers are left."""
    lanes, pad = "f32[32] <1 | 32@0*1 | 1>", f"{{pad = 0x0.0p+0, {LOAD}}}"
    setup = """  %0 = constant {value = 0} : i32
  %1 = constant {value = 1} : i32
  %2 = ring {sync = "mbarriers", offset = 0, readers = 1, consumer_roles = 1} : ring<2>
  %3 = shared_alloc %2 {offset = 1024, alignment = 1024} : shared<bf16, [64, 16], stages 2>
  %4 = constant {value = 0x0.0p+0} : f32[2, 64]
"""
    product = '%4 {family = "wgmma", mn_major = false} : f32[2, 64]'
    body = f"""{setup}  for %0, %n, %1 {{variable = "i"}} {{
  ^(%5: i32)
    %6 = binary %5, %1 {{kind = "add"}} : i32
    %7 = load %x, %6 {pad} : {lanes}
    %8 = load %x, %5 {pad} : {lanes}
    %9 = reshape %7 : f32[2, 16]
    %10 = pack_pairs %9 {{family = "wgmma", dtype = "bf16"}} : i32[2, 8]
    %11 = register_group_mma %10, %3, %0, {product}
    %12 = wait_mma %11 {{family = "wgmma", pending = 0}} : f32[2, 64]
    %13 = reduce %12 {{kind = "sum", axis = 0}} : f32[64]
    store %out, %13, %0 {{{STORE}, streamed = false}}
    store %out, %8, %0 {{{STORE}, streamed = false}}
    yield
  }}
"""
    ahead = f"""{setup}  %5 = compare %0, %n {{kind = "lt"}} : bool
  if %5 {{
    %6 = binary %0, %1 {{kind = "add"}} : i32
    %7 = load %x, %6 {pad} : {lanes}
    %21 = for %0, %n, %1, %7 {{variable = "i"}} : {lanes} {{
    ^(%8: i32, %9: {lanes})
      %10 = load %x, %8 {pad} : {lanes}
      %11 = reshape %9 : f32[2, 16]
      %12 = pack_pairs %11 {{family = "wgmma", dtype = "bf16"}} : i32[2, 8]
      %13 = register_group_mma %12, %3, %0, {product}
      %14 = binary %8, %1 {{kind = "add"}} : i32
      %15 = compare %14, %n {{kind = "lt"}} : bool
      %16 = select %15, %14, %8 : i32
      %17 = binary %16, %1 {{kind = "add"}} : i32
      %18 = load_ahead %x, %17 {pad} : {lanes}
      %19 = wait_mma %13 {{family = "wgmma", pending = 0}} : f32[2, 64]
      %20 = reduce %19 {{kind = "sum", axis = 0}} : f32[64]
      store %out, %20, %0 {{{STORE}, streamed = false}}
      store %out, %10, %0 {{{STORE}, streamed = false}}
      yield %18
    }}
    yield
  }} {{
    yield
  }}
"""
    many, few = (tuple(Role(name, 1, count) for name in ("consumer", "producer")) for count in (40, 24))
    assert after("loads-ahead", body, Schedule(many)) == ahead
    assert after("loads-ahead", body, Schedule(few)) == body
