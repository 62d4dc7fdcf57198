"""Vectors over the units of one network, where `lanes` are over runs: the same type, at any place of a flat array.

Rows of weights are padded to whole vectors with zeros, so no loop has a remainder.
"""

from typing import Any

import llvmlite.ir as ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from cbp_ray.kernels.compilation import inlined
from cbp_ray.kernels.lanes import Lanes

VECTOR = 16
"""Numbers per vector: one AVX-512 register of float32, two of float64."""


def padded(count: int) -> int:
    """`count` rounded up to whole vectors."""
    return -(-count // VECTOR) * VECTOR


def _pointer(context: Any, builder: Any, array_type: types.Array, array: Any, position: Any, position_type: Any) -> Any:
    position = context.cast(builder, position, position_type, types.intp)
    data = context.make_array(array_type)(context, builder, array).data
    address = builder.gep(data, [position], inbounds=True)
    vector = ir.VectorType(address.type.pointee, VECTOR)
    return builder.bitcast(address, vector.as_pointer())


@intrinsic
def load_at(typingctx: Any, array: Any, position: Any) -> Any:
    """The `VECTOR` numbers from `position` on of a flat array."""
    lanes = Lanes(array.dtype, VECTOR)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], sig.args[1])
        return builder.load(pointer, align=lanes.dtype.bitwidth // 8)

    return lanes(array, position), codegen


@intrinsic
def store_at(typingctx: Any, array: Any, position: Any, value: Any) -> Any:
    """Writes a vector to a flat array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1], sig.args[1])
        builder.store(args[2], pointer, align=value.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, position, value), codegen


@intrinsic
def prefetch(typingctx: Any, array: Any, position: Any) -> Any:
    """Asks for the cache line at `position` to come to the second-level cache."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        position = context.cast(builder, args[1], sig.args[1], types.intp)
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        byte_pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        address = builder.bitcast(builder.gep(data, [position]), byte_pointer)
        builder.call(function, [address, *(ir.Constant(number, k) for k in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(array, position), codegen


def _shuffle(builder: Any, a: Any, b: Any, indices: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(indices)), indices))


def _halves(builder: Any, a: Any) -> list[Any]:
    """The two halves of a vector."""
    count, undefined = a.type.count // 2, ir.Constant(a.type, ir.Undefined)
    return [_shuffle(builder, a, undefined, list(range(first, first + count))) for first in (0, count)]


@intrinsic
def largest_of(typingctx: Any, a: Any) -> Any:
    """The largest number of a vector without not-a-numbers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        best = args[0]
        while best.type.count > 1:
            low, high = _halves(builder, best)
            best = builder.select(builder.fcmp_ordered(">", low, high), low, high)
        return builder.extract_element(best, ir.Constant(ir.IntType(32), 0))

    return a.dtype(a), codegen


@intrinsic
def four_sums(typingctx: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The sums of four vectors: a third of the work of four separate ones."""
    result: Any = types.UniTuple(a.dtype, 4)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Pairs of neighbours, within each group of four lanes: [a01, b01, a23, b23] and so for c and d.
        pairs = []
        for x, y in ((args[0], args[1]), (args[2], args[3])):
            even = [g + k for g in range(0, VECTOR, 4) for k in (0, VECTOR, 2, VECTOR + 2)]
            pairs.append(builder.fadd(_shuffle(builder, x, y, even), _shuffle(builder, x, y, [k + 1 for k in even])))
        # Then [a0123, b0123, c0123, d0123] in each group.
        low = [g + k for g in range(0, VECTOR, 4) for k in (0, 1, VECTOR, VECTOR + 1)]
        first, second = pairs
        sums = builder.fadd(_shuffle(builder, first, second, low), _shuffle(builder, first, second, [k + 2 for k in low]))
        sums = builder.fadd(*_halves(builder, builder.fadd(*_halves(builder, sums))))
        parts = [builder.extract_element(sums, ir.Constant(ir.IntType(32), k)) for k in range(4)]
        return context.make_tuple(builder, result, parts)

    return result(a, b, c, d), codegen


@inlined
def total(a: Any) -> Any:
    """The sum of a vector."""
    return four_sums(a, a, a, a)[0]
