"""The noise of `cbp_ray.algorithm.weights.noise` for compiled code: the same numbers, a vector at a time.

Numbers are whole, with standard deviation `cbp_ray.randomness.BYTES_DEVIATION`; kernels multiply them by what they need.
"""

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

from cbp_ray.kernels.compilation import inlined, separate
from cbp_ray.kernels.lanes import WIDTH, by_sixteen, has_feature, splat, vector_of
from cbp_ray.kernels.vectors import VECTOR
from cbp_ray.randomness import BYTES_DEVIATION, BYTES_MEAN, HASH_FACTORS, HASH_STEP, MASK32

SCALE = 1 / BYTES_DEVIATION
"""Makes noise of standard deviation 1."""
GROUP = 4
"""Weights that share a hash."""


@register_jitable(forceinline=True)
def groups_of(count: int) -> int:
    """Number of hashes for so many weights of a row."""
    return (count + GROUP - 1) // GROUP


def _same(vector: ir.VectorType, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _fold(builder: Any, x: Any, shift: int) -> Any:
    return builder.xor(x, builder.lshr(x, _same(x.type, shift)))


def _mix(builder: Any, x: Any, second_key: Any = None) -> Any:
    """`cbp_ray.randomness.mix` on a vector; `second_key` is added before the second product."""
    x = builder.mul(_fold(builder, x, 16), _same(x.type, HASH_FACTORS[0]))
    x = _fold(builder, x, 15)
    x = x if second_key is None else builder.add(x, second_key)
    return _fold(builder, builder.mul(x, _same(x.type, HASH_FACTORS[1])), 16)


SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
"""Rows of a Hadamard matrix: the signs of the four bytes of a word, the lowest first, in each of its four numbers."""


def _four(builder: Any, x: Any, dtype: Any) -> list[Any]:
    """Four whole numbers from the four bytes of every word: their sum, less its mean, and three differences."""
    whole = _byte_products(builder, x) if has_feature("avx512vnni") and x.type.count % 16 == 0 else _byte_sums(builder, x)
    return [builder.sitofp(each, vector_of(dtype, x.type.count)) for each in whole]


def _byte_products(builder: Any, x: Any) -> list[Any]:
    """The four numbers by the instruction that adds products of bytes to a word, one for each."""
    part = ir.VectorType(ir.IntType(32), 16)
    function_type = ir.FunctionType(part, [part, part, part])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.avx512.vpdpbusd.512")

    def products(start: Any, factors: Any) -> Any:
        return by_sixteen(builder, x, lambda piece: builder.call(function, [start, piece, factors]))

    rows = [int.from_bytes(np.array(signs, dtype=np.int8).tobytes(), "little") for signs in SIGNS]
    return [products(_same(part, 0 if row else -BYTES_MEAN), _same(part, factors)) for row, factors in enumerate(rows)]


def _byte_sums(builder: Any, x: Any) -> list[Any]:
    """The same four numbers on any processor."""
    low = _same(x.type, 255)
    first, second, third = (builder.and_(builder.lshr(x, _same(x.type, 8 * k)), low) for k in range(3))
    fourth = builder.lshr(x, _same(x.type, 24))
    sums, differences = builder.add(first, second), builder.sub(first, second)
    other_sums, other_differences = builder.add(third, fourth), builder.sub(third, fourth)
    return [
        builder.sub(builder.add(sums, other_sums), _same(x.type, BYTES_MEAN)),
        builder.add(differences, other_differences),
        builder.sub(sums, other_sums),
        builder.sub(differences, other_differences),
    ]


def _uniform(builder: Any, x: Any, dtype: Any) -> Any:
    """The words as numbers in [-1, 1)."""
    # As signed words around their middle, so that no conversion of unsigned ones is needed.
    middle = builder.xor(x, _same(x.type, 1 << 31))
    number = builder.sitofp(middle, vector_of(dtype, x.type.count))
    return builder.fmul(number, ir.Constant(number.type, [2.0**-31] * x.type.count))


def _row(context: Any, builder: Any, array_type: Any, array: Any, row: int) -> Any:
    words = ir.VectorType(ir.IntType(32), WIDTH)
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.gep(data, [ir.Constant(ir.IntType(64), row * WIDTH)], inbounds=True)
    return builder.bitcast(start, words.as_pointer())


@intrinsic
def make_keys(typingctx: Any, seeds: Any, step: Any, keys: Any) -> Any:
    """Writes the two keys of a step's noise, one pair per run, from the two words of each run's seed; uint32 [2, WIDTH]."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        words = ir.VectorType(ir.IntType(32), WIDTH)
        number = splat(builder, context.cast(builder, args[1], sig.args[1], types.uint32), words)
        for row, combine in enumerate((builder.add, builder.xor)):
            own = builder.load(_row(context, builder, sig.args[0], args[0], row), align=4)
            builder.store(_mix(builder, combine(number, own)), _row(context, builder, sig.args[2], args[2], row), align=4)
        return context.get_dummy_value()

    return types.void(seeds, step, keys), codegen


def _hashes(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """A hash of the number for every run, given keys [2, WIDTH]."""
    words = ir.VectorType(ir.IntType(32), WIDTH)
    count = context.cast(builder, args[1], sig.args[1], types.uint32)
    place = splat(builder, builder.mul(count, ir.Constant(count.type, HASH_STEP)), words)
    first, second = (builder.load(_row(context, builder, sig.args[0], args[0], row), align=4) for row in (0, 1))
    return _mix(builder, builder.add(place, first), second)


@intrinsic
def four_noises(typingctx: Any, keys: Any, number: Any, like: Any) -> Any:
    """Noise for the four weights of one group in every run: four lanes of the type of `like`."""
    result: Any = types.UniTuple(like, 4)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = _four(builder, _hashes(context, builder, sig, args), like.dtype)
        return context.make_tuple(builder, result, parts)

    return result(keys, number, like), codegen


@intrinsic
def draw(typingctx: Any, keys: Any, number: Any, like: Any) -> Any:
    """A uniform number in [-1, 1) in every run."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _uniform(builder, _hashes(context, builder, sig, args), like.dtype)

    return like(keys, number, like), codegen


def _hashes_at(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Hashes of the numbers `first`, `first + stride`, … for the units of a vector, given the two keys of the run's step."""
    words = ir.VectorType(ir.IntType(32), VECTOR)
    data = context.make_array(sig.args[0])(context, builder, args[0]).data
    keys = [builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), k)], inbounds=True)) for k in (0, 1)]
    first, stride = (context.cast(builder, args[k], sig.args[k], types.uint32) for k in (1, 2))
    step = ir.Constant(ir.IntType(32), HASH_STEP)
    start = builder.add(builder.mul(first, step), keys[0])
    places = builder.mul(splat(builder, builder.mul(stride, step), words), ir.Constant(words, list(range(VECTOR))))
    return _mix(builder, builder.add(splat(builder, start, words), places), splat(builder, keys[1], words))


@intrinsic
def four_noises_at(typingctx: Any, keys: Any, first: Any, stride: Any, like: Any) -> Any:
    """Noise for four rows of weights at the units of a vector, whose groups have the numbers `first`, `first + stride`, …"""
    result: Any = types.UniTuple(like, 4)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = _four(builder, _hashes_at(context, builder, sig, args), like.dtype)
        return context.make_tuple(builder, result, parts)

    return result(keys, first, stride, like), codegen


@intrinsic
def draw_at(typingctx: Any, keys: Any, first: Any, stride: Any, like: Any) -> Any:
    """Uniform numbers in [-1, 1) at the units of a vector, from the hashes of `first`, `first + stride`, …"""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _uniform(builder, _hashes_at(context, builder, sig, args), like.dtype)

    return like(keys, first, stride, like), codegen


@inlined
def make_keys_of_run(seed: Any, step: int, keys: Any) -> None:
    """Writes the two keys of a step's noise for one run, given the two words of its seed; uint32 [2]."""
    number = np.uint64(step)
    keys[0] = mix(number + np.uint64(seed[0]) & MASK32)
    keys[1] = mix((number ^ np.uint64(seed[1])) & MASK32)


@separate
def mix(x: Any) -> Any:
    """`cbp_ray.randomness.mix` on one word."""
    x ^= x >> np.uint64(16)
    x = x * np.uint64(HASH_FACTORS[0]) & MASK32
    x ^= x >> np.uint64(15)
    x = x * np.uint64(HASH_FACTORS[1]) & MASK32
    return x ^ x >> np.uint64(16)
