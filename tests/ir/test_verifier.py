"""Each rule of the verifier has a text that breaks it and nothing else."""

from __future__ import annotations

import pytest

from tests.ir.broken_texts import check_refused
from tilec.ir.core import OPS
from tilec.ir.ops import loop_claims, overlapping_ops, pair_ops, printing, private_ops, rank_ops, signal_ops, tmem_chain_ops
from tilec.ir.ops.launch_ops import LaunchedBlocks
from tilec.ir.ops.staging_ops import Part, Relayout
from tilec.ir.text.parser import parse_function
from tilec.ir.verifier import verify

GOOD = """kernel @k(%x: in tensor<f32, [N, M], strides [S, 1], align 16>,
  %out: out tensor<f32, [N, M], align 16>, %z: out tensor<bf16, [N, M], align 16>, %n: i32, %e: f32) {
  constants {}
  dims [N, M, S]
  strides [S]
  grid [(N + 15) // 16, M]
  warps 2
  requires M % 8 == 0
  values %x 0 .. N
  unsafe "reason"
  %0 = block_id {axis = 0} : i32
  %1 = num_blocks {axis = 1} : i32
  %2 = dim {symbol = "N"} : i32
  %3 = constant {value = 1} : i32
  wait_prior
  %4 = load %x, %0, %1 {pad = 0x0.0p+0, unsafe = 0, vector = 16} : f32[16, 16] <8@1*1 | 2@1*8 16@0*1 | 2>
  %5 = constant {value = 0x0.0p+0} : f32[16, 16] <8@1*1 | 2@1*8 16@0*1 | 2>
  %7 = for %3, %2, %3, %5 {variable = "i"} : f32[16, 16] {
  ^(%8: i32, %9: f32[16, 16])
    %10 = binary %9, %4 {kind = "add"} : f32[16, 16]
    yield %10
  }
  %11 = iota : i32[16]
  %12 = compare %3, %0 {kind = "lt"} : bool
  %13 = if %12 : i32 {
    yield %0
  } {
    yield %3
  }
  %14 = cast %4 : bf16[16, 16]
  %bits = bitcast %14 : i16[16, 16]
  %15 = reshape %5 : f32[256]
  %16 = permute %5 {axes = [1, 0]} : f32[16, 16]
  %17 = reduce %5 {axis = 1, kind = "sum"} : f32[16]
  %104 = butterfly %5 {axis = 1, mask = 8} : f32[16, 16]
  %106, %107 = sort %5, %bits {axis = 1, descending = true} : f32[16, 16], i16[16, 16]
  %108 = broadcast %3 : i32[16, 16]
  %109 = take %5, %108 {axis = 1} : f32[16, 16]
  %18 = broadcast %e : f32[16, 16]
  %19 = mma %14, %14, %5 : f32[16, 16]
  %20 = unary %19 {kind = "exp"} : f32[16, 16]
  %102 = exp2_in_parts %19 {kind = "fast_exp2", polynomial = 4} : f32[16, 16]
  %103 = kept_maximum %20, %5 {threshold = 0x1.0000000000000p+3} : f32[16, 16]
  %21 = compare %20, %5 {kind = "gt"} : bool[16, 16]
  %22 = select %21, %20, %18 : f32[16, 16]
  %23 = gather %x, %11, %11 {pad = none, unsafe = none, vector = 0, whole = false} : f32[16]
  scatter %out, %23, %11, %11 {mask = true, unsafe = none, vector = 0, whole = false}
  atomic %out, %22, %13, %0 {kind = "add", mask = true, unsafe = none, vector = 0, whole = false}
  %old = atomic_scatter %out, %23, %11, %11 {kind = "exch", mask = true, unsafe = none, vector = 0, whole = false} : f32[16]
  %32 = ring : ring<3>
  %24 = shared_alloc %32 {offset = 128} : shared<f32, [16, 16], stages 3>
  acquire %32
  async_copy %x, %24, %3, %0, %1 {vector = 16, pad = true, unsafe = none}
  tensor_copy %x, %24, %3, %0, %1 {row_axis = -2, sub_tiles = 1, unsafe = none}
  commit %32
  wait %32 {pending = 1}
  proxy_fence
  warp_barrier
  barrier {scope = "block"}
  warp_barrier
  %25 = shared_load %24, %3 {row = 0, column = 0, transposed = false} : f32[16, 16]
  release %32 {unreleased = 0}
  drain %32
  %26 = shared_alloc %32 {offset = 2048, alignment = 1024} : shared<bf16, [64, 64], stages 3>
  %27 = constant {value = 0x0.0p+0} : f32[64, 64]
  %28 = group_mma %26, %3, %26, %0, %27 {family = "wgmma"} : f32[64, 64]
  %29 = wait_mma %28 {family = "wgmma", pending = 0} : f32[64, 64]
  %38 = pack_pairs %27 {family = "wgmma", dtype = "bf16"} : i32[64, 32]
  %199 = load_ahead %x, %0, %1 {pad = 0x0.0p+0, unsafe = none, vector = 0, whole = false} : f32[16, 16]
  %39 = register_group_mma %38, %26, %3, %27 {family = "wgmma"} : f32[64, 64]
  %30 = binary_in_range %11, %11 {kind = "shr"} : i32[16]
  %31 = dim {symbol = "S"} : i64
  %33 = shared_alloc {offset = 65536} : scratch<1088>
  scratch_store %33, %5 {steps = [17, 1]}
  scratch_store_owned %33, %5 {steps = [17, 1]}
  %34 = scratch_load %33 {steps = [17, 1]} : f32[16, 16]
  reduce_store %33, %5 {kind = "sum", axis = 0}
  %35 = reduce_combine %33, %5 {kind = "sum", axis = 0} : f32[16]
  butterfly_store %33, %5
  %105 = butterfly_load %33 {axis = 0, mask = 15} : f32[16, 16]
  scratch_store %33, %5 {steps = [16, 1]}
  %110 = take_load %33, %108 {axis = 1, source = [16, 16]} : f32[16, 16]
  shared_free %33, %24
  %40 = ring {sync = "mbarriers", offset = 70000, readers = 4, consumer_roles = 2} : ring<3>
  order_wait %40, %3 {consumer = 0}
  order_arrive %40 {consumer = 0}
  roles {names = ["producer", "consumer"], warps = [1, 1], registers = [0, 0], alone = [false, false]} {
    barrier {scope = "role"}
  } {
    %36 = cast %e : bf16
  }
  %41 = shared_alloc {offset = 71680, alignment = 1024} : scratch<1024>
  scratch_store_rows %41, %14 {column = 0, columns = 16}
  tensor_store %z, %41, %0, %1 {rows = 16, columns = 16, column = 0}
  wait_stores %41 {pending = 0, complete = true}
  %42 = ring {sync = "mbarriers", offset = 72800, readers = 1, consumer_roles = 1} : ring<2>
  %43 = tmem_reserve {offset = 72900} : tmem_space<128>
  %44 = tmem_alloc %43, %42 {column = 0} : tmem<f32, [64, 64], stages 2>
  tmem_mma %26, %3, %26, %0, %44, %3, %12 {family = "tcgen05"}
  commit_mma %42, %3
  release_mma %40, %3
  %45 = tmem_load %44, %3 : f32[64, 64]
  tmem_free %43
  %37 = grid_extent {axis = 1} : i32
  store %out, %25, %0, %1 {mask = true, unsafe = none, vector = 4}
}
"""
LAYOUT = "%4 = load %x, %0, %1 {pad = 0x0.0p+0, unsafe = 0, vector = 16} : f32[16, 16] <8@1*1 | 2@1*8 16@0*1 | 2>"

BROKEN = [
    # signature
    ("grid [(N + 15) // 16, M]", "grid []", "a grid has 1 to 3 extents, not 0"),
    ("grid [(N + 15) // 16, M]", "grid [1, 1, 1, 1]", "a grid has 1 to 3 extents, not 4"),
    ("grid [(N + 15) // 16, M]", "grid [K, M]", "K uses the unknown symbol K"),
    ("requires M % 8 == 0", "requires K % 8 == 0", "K % 8 == 0 uses the unknown symbol K"),
    ("values %x 0 .. N", "values %x 0 .. K", "K uses the unknown symbol K"),
    ("strides [S, 1]", "strides [K, 1]", "K uses the unknown symbol K"),
    ("dims [N, M, S]", "dims [N, M, S, n]", "two parameters or dims share a name"),
    ("  strides [S]", "  strides [S, K]", "a stride is not among the dims"),
    ("warps 2", "warps -2", "-2 warps"),
    ("values %x 0 .. N", "values %n 0 .. N", "a values fact names n, which is not a tensor"),
    ("values %x 0 .. N", "values %y 0 .. N", "a values fact names y, which is not a tensor"),
    ("%x: in tensor", "%x: tensor", "parameter x is neither a scalar nor a tensor with an access"),
    ("%n: i32", "%n: in i32", "parameter n is neither a scalar nor a tensor with an access"),
    ("%n: i32", "%n: i32[4]", "parameter n is neither a scalar nor a tensor with an access"),
    ("strides [S, 1]", "strides [S, 1, 1]", "x: 3 strides for 2 dims"),
    ("align 16>,\n", "align 2>,\n", "x: f32 cannot be aligned to 2 bytes"),
    ("align 16>,\n", "align 24>,\n", "x: f32 cannot be aligned to 24 bytes"),
    # scope, regions, counts
    ("yield %10\n", "yield %10\n    yield %10\n", "yield ends the block of a region"),
    ("  commit %32", "  yield\n  commit %32", "yield ends the block of a region"),
    ("    yield %10\n", "", "for: the body ends in yield"),
    ("    yield %3\n", "", "if: each region ends in yield"),
    ("  proxy_fence\n", "  proxy_fence {\n  }\n", "only loops, branches and roles have regions"),
    ("%13 = if %12 : i32 {\n", "%13 = if %12 : i32 {\n  ^(%99: i32)\n", "a branch takes no arguments"),
    ("commit %32", "%99 = commit %32 : i32", "commit: 1 results"),
    ("%11 = iota : i32[16]\n", "%11 = iota : i32[16]\n  iota\n", "iota: 0 results"),
    ("%17 = reduce %5", "%17 = reduce %5, %5", "reduce: 2 operands instead of 1"),
    ("select %21, %20, %18", "select %21, %20", "select: 2 operands instead of 3"),
    ("gather %x, %11, %11", "gather", "gather: 0 operands, at least 1 are needed"),
    ("load %x, %0, %1", "load %0, %0, %1", "load: operand 0 is i32"),
    ("async_copy %x, %24", "async_copy %x, %5", "async_copy: operand 1 is f32[16, 16]"),
    ("sub_tiles = 1", "sub_tiles = 2", "sub-tiles lie on an axis before the rows"),
    ("shared_load %24", "shared_load %5", "shared_load: operand 0 is f32[16, 16]"),
    ("cast %4", "cast %x", "cast: operand 0 is tensor"),
    ("store %out, %25", "store %out, %24", "store: operand 1 is shared<f32, [16, 16], stages 3>"),
    ("for %3, %2, %3, %5", "for %3, %2", "for: body arguments differ"),
    # types and layouts of values
    ("%18 = broadcast %e : f32[16, 16]", "%18 = broadcast %e : f32[16, 0]", "f32[16, 0] is not a tile"),
    ("%11 = iota : i32[16]", "%11 = iota : shared<i32, [16, 16], stages 1>", "is not a tile"),
    ("%9: f32[16, 16]", "%9: tensor<f32, [N], align 16>", "is not a tile"),
    ("warps 2\n", "", "a layout before the number of warps is known"),
    ("warps 2\n", "warps 4\n", "the warps are not 4"),
    (LAYOUT, LAYOUT.replace("16@0*1", "8@0*1"), "the lanes are not 32"),
    (LAYOUT, LAYOUT.replace("| 2>", "| 2@0*16>"), "it holds [32, 16]"),
    (LAYOUT, LAYOUT.replace("8@1*1", "4@1*1"), "the digit 2@1*8 does not go on where 4 elements end"),
    (LAYOUT, LAYOUT.replace("8@1*1", "8@1*2"), "the digit 8@1*2 does not go on where 1 elements end"),
    (LAYOUT, LAYOUT.replace("8@1*1", "8@2*1"), "there is no axis 2"),
    (LAYOUT, LAYOUT.replace("8@1*1", "8@1*1 0"), "the digit 0 counts nothing"),
    (LAYOUT, LAYOUT.replace("f32[16, 16]", "f32[16, 32]"), "it holds [16, 16]"),
    # operations that the verifier accepts
    ("%0 = block_id {axis = 0} : i32", "%0 = block_id {axis = 2} : i32", "the grid has no axis 2"),
    ("%1 = num_blocks {axis = 1} : i32", "%1 = num_blocks {axis = -1} : i32", "the grid has no axis -1"),
    ('%2 = dim {symbol = "N"} : i32', '%2 = dim {symbol = "K"} : i32', "K is not a dim"),
    ('%2 = dim {symbol = "N"} : i32', '%2 = dim {symbol = "N"} : i64', "dim: the result is an i32 scalar"),
    ("unsafe = 0", "unsafe = 1", "there is no unsafe block 1"),
    ("vector = 16} : f32", "vector = 6} : f32", "an access moves no 6 bytes at once"),
    ("stages 3", "stages 0", "is not a shared buffer"),
    (": shared<f32, [16, 16], stages 3>", ": f32[16, 16]", "shared_alloc: f32[16, 16] is not a shared buffer"),
    (": shared<f32, [16, 16], stages 3>", ": shared<f32, [16, 18], stages 3>", "are not whole 16-byte chunks"),
    # rules of the operations
    ("%3 = constant {value = 1} : i32", "%3 = constant {value = 0x1.0p+0} : i32", "a i32 constant holds a int"),
    ("%3 = constant {value = 1} : i32", "%3 = constant {value = 2147483648} : i32", "2147483648 does not fit i32"),
    ("iota : i32[16]", "iota : f32[16]", "the result is i32[n]"),
    ('unary %19 {kind = "exp"}', 'unary %19 {kind = "cosh"}', "unknown kind cosh"),
    ('unary %19 {kind = "exp"}', 'unary %17 {kind = "exp"}', "operand and result types differ"),
    ("%11 = iota : i32[16]\n", '%11 = iota : i32[16]\n  %99 = unary %11 {kind = "exp"} : i32[16]\n', "exp takes floats"),
    ('{kind = "fast_exp2", polynomial = 4}', '{kind = "exp", polynomial = 4}', "exp is not computed in parts"),
    ("threshold = 0x1.0000000000000p+3", "threshold = 0x1.0000000000000p+4", "a maximum may grow by 8.0"),
    ("kept_maximum %20, %5", "kept_maximum %20, %17", "operand and result types differ"),
    ("polynomial = 4", "polynomial = 3", "3 of 16 elements are no pairs"),
    ("polynomial = 4", "polynomial = 0", "0 of 16 elements are no pairs"),
    ("polynomial = 4", "polynomial = 18", "18 of 16 elements are no pairs"),
    (
        'exp2_in_parts %19 {kind = "fast_exp2", polynomial = 4} : f32[16, 16]',
        'exp2_in_parts %14 {kind = "fast_exp2", polynomial = 4} : bf16[16, 16]',
        "bf16 is not computed in parts",
    ),
    ('binary %9, %4 {kind = "add"}', 'binary %9, %4 {kind = "plus"}', "unknown kind plus"),
    ('binary_in_range %11, %11 {kind = "shr"}', 'binary_in_range %11, %11 {kind = "add"}', "add has a value for all operands"),
    ('dim {symbol = "S"} : i64', 'dim {symbol = "S"} : i32', "the result is an i64 scalar"),
    ('binary %9, %4 {kind = "add"}', 'binary %9, %8 {kind = "add"}', "operand and result types differ"),
    ('binary %9, %4 {kind = "add"}', 'binary %9, %4 {kind = "mod"}', "mod takes integers"),
    ("%11 = iota : i32[16]\n", '%11 = iota : i32[16]\n  %99 = binary %11, %11 {kind = "div"} : i32[16]\n', "div takes floats"),
    ('compare %3, %0 {kind = "lt"}', 'compare %3, %0 {kind = "less"}', "unknown kind less"),
    ('compare %3, %0 {kind = "lt"}', 'compare %3, %e {kind = "lt"}', "compare: operand types differ"),
    ('{kind = "lt"} : bool', '{kind = "lt"} : i32', "compare: the result is a bool tile"),
    ("select %21, %20, %18", "select %21, %20, %17", "select: operand and result types differ"),
    ("select %21, %20, %18", "select %12, %20, %18", "select: the condition is a bool tile"),
    ("%14 = cast %4 : bf16[16, 16]", "%14 = cast %4 : bf16[256]", "a cast keeps the shape"),
    ("bitcast %14 : i16[16, 16]", "bitcast %14 : i16[256]", "a bitcast keeps the shape"),
    ("bitcast %14 : i16[16, 16]", "bitcast %14 : i32[16, 16]", "a bitcast keeps the width"),
    ("bitcast %14 : i16[16, 16]", "bitcast %12 : bool", "a bool is not bitcast"),
    ("%18 = broadcast %e : f32[16, 16]", "%18 = broadcast %n : f32[16, 16]", "a broadcast keeps the dtype"),
    ("%18 = broadcast %e : f32[16, 16]", "%18 = broadcast %17 : f32[16, 16]", "cannot broadcast f32[16] to f32[16, 16]"),
    ("%15 = reshape %5 : f32[256]", "%15 = reshape %5 : f32[255]", "a reshape keeps dtype and size"),
    ("%15 = reshape %5 : f32[256]", "%15 = reshape %5 : i32[256]", "a reshape keeps dtype and size"),
    ("axes = [1, 0]", "axes = [1, 1]", "axes is a permutation"),
    ("axes = [1, 0]} : f32[16, 16]", "axes = [1, 0]} : f32[16, 8]", "the result shape is permuted"),
    ('axis = 1, kind = "sum"', 'axis = 1, kind = "mean"', "unknown kind mean"),
    ('axis = 1, kind = "sum"', 'axis = 2, kind = "sum"', "axis out of range"),
    ('kind = "sum"} : f32[16]', 'kind = "sum"} : f32[8]', "the result is f32 of shape (16,)"),
    ('kind = "sum"} : f32[16]', 'kind = "argmax"} : f32[16]', "the result is i32 of shape (16,)"),
    ("axis = 1, mask = 8", "axis = 2, mask = 8", "axis out of range"),
    ("axis = 1, mask = 8", "axis = 1, mask = 16", "the mask 16 is not in 1..16"),
    ("axis = 1, mask = 8", "axis = 1, mask = 0", "the mask 0 is not in 1..16"),
    ("mask = 8} : f32[16, 16]", "mask = 8} : f32[256]", "operand and result types differ"),
    (
        "  %104 = butterfly %5",
        "  %99 = iota : i32[24]\n  %98 = butterfly %99 {axis = 0, mask = 1} : i32[24]\n  %104 = butterfly %5",
        "the extent 24 is no power of two",
    ),
    (
        "%106, %107 = sort %5, %bits {axis = 1, descending = true} : f32[16, 16], i16[16, 16]",
        "%106 = sort %5, %bits {axis = 1, descending = true} : f32[16, 16]",
        "sort: operand and result types differ",
    ),
    (": f32[16, 16], i16[16, 16]", ": f32[16, 16], f32[16, 16]", "sort: operand and result types differ"),
    (
        "sort %5, %bits {axis = 1, descending = true} : f32[16, 16], i16[16, 16]",
        "sort %5, %11 {axis = 1, descending = true} : f32[16, 16], i32[16]",
        "the tiles have one shape",
    ),
    (
        "  %106, %107 = sort %5, %bits",
        '  %99 = compare %5, %5 {kind = "lt"} : bool[16, 16]\n  %98 = sort %99 {axis = 0, '
        "descending = false} : bool[16, 16]\n  %106, %107 = sort %5, %bits",
        "keys are numbers",
    ),
    (
        "  %106, %107 = sort %5, %bits",
        "  %99 = iota : i32[24]\n  %98 = sort %99 {axis = 0, descending = false} : i32[24]\n  %106, %107 = sort %5, %bits",
        "the extent 24 is no power of two",
    ),
    ("axis = 1, descending", "axis = 2, descending", "axis out of range"),
    ("take %5, %108", "take %5, %5", "take: indices are i32"),
    ("take %5, %108", "take %5, %11", "take: an element for each index"),
    ("take %5, %108 {axis = 1}", "take %5, %108 {axis = 2}", "take: axis out of range"),
    ("take %5, %108 {axis = 1} : f32[16, 16]", "take %5, %108 {axis = 1} : i32[16, 16]", "take: an element for each index"),
    ("take %5, %108 {axis = 1}", "take %17, %108 {axis = 0}", "take: the shapes differ on the axis alone"),
    (
        "  %109 = take %5, %108 {axis = 1}",
        "  %99 = reshape %5 : f32[32, 8]\n  %109 = take %99, %108 {axis = 1}",
        "take: the shapes differ on the axis alone",
    ),
    ("take_load %33, %108", "take_load %24, %108", "take_load: operand 0 is shared<f32"),
    ("take_load %33, %108", "take_load %33, %5", "take_load: indices are i32"),
    ("take_load %33, %108", "take_load %33, %11", "take_load: an element for each index"),
    ("source = [16, 16]", "source = [8, 16]", "take_load: the shapes differ on the axis alone"),
    ("{axis = 1, source", "{axis = 2, source", "take_load: axis out of range"),
    ("butterfly_store %33, %5", "butterfly_store %24, %5", "butterfly_store: operand 0 is shared<f32"),
    ("butterfly_load %33", "butterfly_load %24", "butterfly_load: operand 0 is shared<f32"),
    ("axis = 0, mask = 15", "axis = 0, mask = 16", "the mask 16 is not in 1..16"),
    ("mma %14, %14, %5", "mma %14, %14, %17", "operands have one rank, 2 or 3"),
    ("mma %14, %14, %5", "mma %14, %5, %5", "there are no products of bf16 and f32"),
    ("mma %14, %14, %5", "mma %14, %14, %14", "accumulator and result are f32"),
    ("load %x, %0, %1", "load %x, %0", "one offset and one extent per tensor axis"),
    ("load %x, %0, %1", "load %x, %0, %e", "offsets are integer scalars"),
    ("store %out, %25", "store %out, %14", "tile and tensor share a dtype"),
    ("gather %x, %11, %11", "gather %x, %11", "one index tile per tensor axis"),
    ("gather %x, %11, %11", "gather %x, %11, %0", "indices have the tile's shape"),
    ("scatter %out, %23, %11, %11", "scatter %out, %11, %11, %11", "tile and tensor share a dtype"),
    ('kind = "add", mask', 'kind = "sub", mask', "unknown kind sub"),
    ("for %3, %2, %3, %5", "for %3, %e, %3, %5", "bounds and step are i32"),
    ("^(%8: i32, ", "^(%8: i64, ", "body arguments differ"),
    ("yield %10", "yield %8", "yield differs from carried values"),
    ("= if %12", "= if %3", "the condition is a bool scalar"),
    ("    yield %3\n  }", "    yield %3\n  } {\n    yield %3\n  }", "there are two regions"),
    ("    yield %3\n", "    yield %e\n", "yield differs from the results"),
    ("shared_alloc %32 {offset = 128}", "shared_alloc %32 {offset = 64}", "the offset is a multiple of 128 bytes"),
    (
        "shared_alloc %32 {offset = 128} : shared<f32",
        "shared_alloc %32 {offset = 128} : shared<i32",
        "tensor and buffer share a dtype",
    ),
    ("async_copy %x, %24, %3", "async_copy %x, %24, %e", "the stage is an i32 scalar"),
    ("async_copy %x, %24, %3, %0, %1", "async_copy %x, %24, %3, %0", "one offset per tensor axis, at least two"),
    ("{vector = 16, pad = true", "{vector = 2, pad = true", "a copy moves 4, 8 or 16 bytes"),
    ("row = 0", "row = 1", "the box lies inside"),
    ("row = 0", "row = -1", "the box lies before its matrix"),
    ("column = 0", "column = -8", "the box lies before its matrix"),
    ("transposed = false} : f32[16, 16]", "transposed = false} : f32[256]", "the result is a matrix of the dtype"),
    ("  wait_prior", "  wait_prior %0", "wait_prior: 1 operands instead of 0"),
    ("wait %32 {pending = 1}", "wait %32 {pending = -1}", "wait: -1 groups cannot be pending"),
    ("release %32 {unreleased = 0}", "release %32 {unreleased = -1}", "release: -1 stages cannot be unreleased"),
    ("acquire %32", "acquire %24", "acquire: operand 0 is shared<f32"),
    ("acquire %32", "acquire", "acquire: 0 operands, at least 1 are needed"),
    ("%32 = ring : ring<3>", "%32 = ring : ring<0>", "ring<0> is not a ring"),
    ("%32 = ring : ring<3>", '%32 = ring {sync = "hope"} : ring<3>', "unknown way to signal, hope"),
    ("%32 = ring : ring<3>", "%32 = ring {offset = 4} : ring<3>", "mbarriers are aligned to 8 bytes"),
    ("%32 = ring : ring<3>", "%32 = ring {offset = -8} : ring<3>", "-8 lies before shared memory"),
    ("%32 = ring : ring<3>", "%32 = ring : ring<4>", "its ring has as many stages"),
    ("shared_alloc %32 {offset = 128}", "shared_alloc {offset = 128}", "a buffer is that of a ring"),
    ("shared_alloc %32 {offset = 128}", "shared_alloc %0 {offset = 128}", "operand 0 is i32"),
    ("shared_alloc %32 {offset = 128}", "shared_alloc %32 {offset = -128}", "-128 lies before shared memory"),
    ("shared_alloc {offset = 65536}", "shared_alloc %32 {offset = 65536}", "scratch has no ring"),
    ("scratch<1088>", "scratch<1080>", "the tile fits the scratch"),
    ("scratch<1088>", "scratch<0>", "scratch<0> is not a shared buffer"),
    ("scratch_store %33, %5 {steps = [17, 1]}", "scratch_store %33, %5 {steps = [17]}", "a step for each axis"),
    ("scratch_store %33, %5 {steps = [17, 1]}", "scratch_store %33, %5 {steps = [17, 0]}", "a step for each axis"),
    ("scratch_store_owned %33, %5", "scratch_store_owned %24, %5", "scratch_store_owned: operand 0 is shared<f32"),
    ('atomic %out, %22, %13, %0 {kind = "add"', 'atomic %out, %22, %13, %0 {kind = "exch"', "atomic: unknown kind exch"),
    ('%11 {kind = "exch"', '%11 {kind = "cas"', "no cas of f32"),
    ('%11 {kind = "exch"', '%11 {kind = "sum"', "no sum of f32"),
    ("atomic_scatter %out, %23, %11, %11", "atomic_scatter %out, %23, %11", "one index tile per tensor axis"),
    (
        '"exch", mask = true, unsafe = none, vector = 0',
        '"exch", mask = true, unsafe = none, vector = 8',
        "of sums of floats, of",
    ),
    ('"add", mask = true, unsafe = none, vector = 0', '"max", mask = true, unsafe = none, vector = 8', "vectors are of sums"),
    ('"add", mask = true, unsafe = none, vector = 0', '"add", mask = true, unsafe = none, vector = 3', "moves no 3 bytes"),
    ("atomic_scatter %out, %23, %11, %11", "atomic_scatter %out, %23, %11, %0", "indices have the tile's shape"),
    (
        "whole = false} : f32[16]\n  %32 = ring",
        "whole = false} : i32[16]\n  %32 = ring",
        "result and compared tile are like the tile",
    ),
    ("scratch_store %33, %5", "scratch_store %24, %5", "scratch_store: operand 0 is shared<f32"),
    ("scratch_load %33 {steps = [17, 1]}", "scratch_load %33 {steps = [99, 1]}", "the tile fits the scratch"),
    ('reduce_store %33, %5 {kind = "sum"', 'reduce_store %33, %5 {kind = "mean"', "unknown kind mean"),
    ('reduce_store %33, %5 {kind = "sum", axis = 0}', 'reduce_store %33, %5 {kind = "sum", axis = 2}', "axis out of range"),
    ('%33, %5 {kind = "sum", axis = 0} : f32[16]', '%33, %5 {kind = "argmax", axis = 0} : f32[16]', "the result is i32"),
    ("shared_free %33, %24", "shared_free", "it frees something"),
    ("shared_free %33, %24", "shared_free %33, %5", "operand 1 is f32[16, 16]"),
    ('scope = "block"', 'scope = "grid"', "unknown scope grid"),
    ("warps = [1, 1]", "warps = [1, 2]", "roles of 3 warps in a block of 2"),
    ("warps = [1, 1]", "warps = [0, 2]", "every role has a warp"),
    ("warps = [1, 1]", "warps = [2]", "one region for each role"),
    ('["producer", "consumer"]', '["producer", "producer"]', "two roles share a name"),
    ("registers = [0, 0]", "registers = [40, 0]", "for whole groups of four warps"),
    ("  } {\n    %36", "  } {\n    ^(%99: i32)\n    %36", "a role takes no arguments"),
    ("%36 = cast %e : bf16", "%36 = cast %5 : bf16[16, 16]", "is used where it is not defined"),
    ("offset = 2048, alignment = 1024", "offset = 1152, alignment = 1024", "the offset is a multiple of 1024 bytes"),
    ("offset = 2048, alignment = 1024", "offset = 2048, alignment = 64", "buffers are aligned to 128 or 1024 bytes"),
    ("group_mma %26, %3, %26", "group_mma %24, %3, %26", "`wgmma` has no products of f32 and bf16"),
    ("group_mma %26, %3, %26", "group_mma %27, %3, %26", "group_mma: operand 0 is f32[64, 64]"),
    ("%26, %3, %26, %0, %27 {", "%26, %3, %26, %0 {", "group_mma: 4 operands instead of 5"),
    ("%26, %3, %26, %0, %27 {", "%26, %e, %26, %0, %27 {", "the stages are i32 scalars"),
    ("%26, %3, %26, %0, %27 {", "%26, %3, %26, %0, %5 {", "the accumulator has the result's type"),
    ('%0, %27 {family = "wgmma"} : f32[64, 64]', '%0, %27 {family = "wgmma"} : f32[64, 32]', "the result is the product's"),
    ("grid_extent {axis = 1}", "grid_extent {axis = 2}", "the grid has no axis 2"),
    ("%37 = grid_extent {axis = 1}", "%37 = launched_blocks", "persistent blocks need a grid of one axis"),
    (
        'pack_pairs %27 {family = "wgmma", dtype = "bf16"}',
        'pack_pairs %27 {family = "wgmma", dtype = "i32"}',
        "elements of 16 bits",
    ),
    (
        'pack_pairs %27 {family = "wgmma", dtype = "bf16"}',
        'pack_pairs %14 {family = "wgmma", dtype = "bf16"}',
        "the operand is a matrix of f32",
    ),
    ('dtype = "bf16"} : i32[64, 32]', 'dtype = "bf16"} : i32[64, 64]', "the result has a column for two"),
    ("register_group_mma %38, %26", "register_group_mma %27, %26", "packed elements, and a matrix of 16 bits"),
    (
        '%27 {family = "wgmma", dtype = "bf16"} : i32[64, 32]',
        '%5 {family = "wgmma", dtype = "bf16"} : i32[16, 8]',
        "matrices of one depth",
    ),
    ("%38, %26, %3, %27 {", "%38, %26, %e, %27 {", "the stage is an i32 scalar"),
    ("%38, %26, %3, %27 {", "%38, %26, %3, %5 {", "the accumulator has the result's type"),
    ('%3, %27 {family = "wgmma"} : f32[64, 64]', '%3, %27 {family = "wgmma"} : f32[64, 32]', "the result is the product's"),
    (
        'wait_mma %28 {family = "wgmma", pending = 0}',
        'wait_mma {family = "wgmma", pending = 0}',
        "0 operands instead of 1 or 2",
    ),
    ("stages 3>\n  %27", "stages 3, swizzle_atoms 3>\n  %27", "have equal widths"),
    (
        'wait_mma %28 {family = "wgmma", pending = 0}',
        'wait_mma %28 {family = "wgmma", pending = -1}',
        "-1 products cannot be pending",
    ),
    (
        'wait_mma %28 {family = "wgmma", pending = 0}',
        'wait_mma %5 {family = "wgmma", pending = 0}',
        "the result has the operand's type",
    ),
    ("scratch_store_rows %41, %14", "scratch_store_rows %24, %14", "scratch_store_rows: operand 0 is shared<f32"),
    ("scratch_store_rows %41, %14", "scratch_store_rows %41, %5", "the tile is a matrix of 16-bit elements"),
    ("scratch_store_rows %41, %14 {column = 0", "scratch_store_rows %41, %14 {column = 1", "the columns are those of the tile"),
    ("{column = 0, columns = 16}", "{column = 0, columns = 8}", "a row has 32, 64 or 128 bytes"),
    ("scratch<1024>", "scratch<496>", "the rows fit the scratch"),
    ("tensor_store %z", "tensor_store %out", "the tensor has 16-bit elements"),
    ("tensor_store %z, %41, %0, %1", "tensor_store %z, %41, %0", "the tensor has two axes, and an offset for each"),
    ("tensor_store %z, %41, %0, %1", "tensor_store %z, %41, %0, %e", "coordinates are i32 scalars"),
    ("tensor_store %z, %41", "tensor_store %z, %24", "tensor_store: operand 1 is shared<f32"),
    ("{rows = 16, columns", "{rows = 257, columns", "a box has 1 to 256 rows"),
    ("wait_stores %41", "wait_stores", "it waits for the readers of some scratch"),
    ("wait_stores %41 {pending = 0", "wait_stores %41 {pending = -1", "-1 stores cannot be pending"),
]


def test_the_text_is_fine_unbroken() -> None:
    """`test_tensor_memory_operations` has a text of signals and of rows in tensor memory, `test_pair_ops` one of pairs,
    `test_loop_claim_rules` one of claims, `test_private_ops` one of parts, `test_overlapping_loads` one of boxes that overlap;
    `test_print_mistakes` has kernels that print, `test_rank_ops` one that meets other ranks."""
    function = parse_function(GOOD)
    verify(function)
    modules = signal_ops, tmem_chain_ops, pair_ops, private_ops, overlapping_ops, loop_claims, printing, rank_ops
    elsewhere = {module.__name__ for module in modules}
    others = {op for op in OPS.values() if op.__module__ in elsewhere}
    assert {type(op) for op in function.body.walk()} == set(OPS.values()) - others - {Relayout, Part, LaunchedBlocks}


@pytest.mark.parametrize(("good", "bad", "rule"), BROKEN, ids=[case[2] for case in BROKEN])
def test_a_broken_rule_is_named(good: str, bad: str, rule: str) -> None:
    check_refused(GOOD, good, bad, rule)
