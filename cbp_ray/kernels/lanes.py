"""A Numba type for "one number per run": explicit SIMD vectors, so that no speed depends on the auto-vectoriser's mood.

A kernel that works on `Lanes` reads like the scalar algorithm. Every operation acts on each lane alone, in the order written,
so a run's numbers can't depend on the runs beside it nor on `WIDTH`. LLVM splits a vector into whatever registers the CPU has.

Arrays that hold lanes are C-contiguous, `[rows, WIDTH]`; `load` and `store` move one row.

float32 divides and takes roots through the CPU's estimate instructions and one Newton step (about 1e-7 relative);
float64 is exact IEEE arithmetic.
"""

import functools
import operator
import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from cbp_ray.kernels import WIDTH as WIDTH

ALIGNMENT = 64
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


class Lanes(types.Type):
    """`width` numbers of a floating-point `dtype`."""

    def __init__(self, dtype: types.Float, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """Lanes are an LLVM vector."""

    def __init__(self, manager: Any, fe_type: Lanes) -> None:
        super().__init__(manager, fe_type, vector_of(fe_type.dtype, fe_type.width))


def _element(dtype: types.Float) -> ir.Type:
    return ir.FloatType() if dtype == types.float32 else ir.DoubleType()


def vector_of(dtype: types.Float, width: int) -> ir.VectorType:
    """The LLVM type of lanes."""
    return ir.VectorType(_element(dtype), width)


def aligned_flat(size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """A flat array of zeros on a cache-line boundary: an unaligned 64-byte access costs two."""
    length = size * np.dtype(dtype).itemsize
    raw = np.zeros(length + ALIGNMENT, dtype=np.uint8)
    offset = -raw.ctypes.data % ALIGNMENT
    return np.asarray(raw[offset : offset + length].view(dtype))


def aligned_zeros(rows: int, dtype: Any) -> np.ndarray[Any, Any]:
    """A `[rows, WIDTH]` array of zeros on a cache-line boundary."""
    return aligned_flat(rows * WIDTH, dtype).reshape(rows, WIDTH)


def splat(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    """Emits a vector with the same scalar everywhere."""
    index = ir.Constant(ir.IntType(32), 0)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, index)
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)


def _as_lanes(context: Any, builder: Any, value: Any, source: types.Type, target: Lanes) -> Any:
    if source == target:
        return value
    return splat(builder, context.cast(builder, value, source, target.dtype), vector_of(target.dtype, target.width))


# ── arithmetic: + - * / and unary minus; a scalar operand is rounded to the lanes' dtype ──────────────────────────────


@functools.cache
def has_feature(name: str) -> bool:
    """Whether this is an x86 processor with the feature: `avx512f`, `avx512vnni`."""
    return IS_X86 and bool(llvmlite.binding.get_host_cpu_features().get(name, False))


def by_sixteen(builder: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """Emits a function of sixteen lanes for each sixteen lanes of a vector."""
    undefined, parts = ir.Constant(value.type, ir.Undefined), []
    for first in range(0, value.type.count, 16):
        mask = ir.Constant(ir.VectorType(ir.IntType(32), 16), list(range(first, first + 16)))
        parts.append(function(builder.shuffle_vector(value, undefined, mask)))
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        mask = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
        parts = [builder.shuffle_vector(parts[i], parts[i + 1], mask) for i in range(0, len(parts), 2)]
    return parts[0]


def _estimate(builder: Any, name: str, value: Any) -> Any:
    """`llvm.x86.avx512.<name>.ps.512` on each sixteen lanes of a float32 vector."""
    part = ir.VectorType(ir.FloatType(), 16)
    function_type = ir.FunctionType(part, [part, part, ir.IntType(16)])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.avx512.{name}.ps.512")
    rest = [ir.Constant(part, None), ir.Constant(ir.IntType(16), -1)]
    return by_sixteen(builder, value, lambda piece: builder.call(function, [piece, *rest]))


def _constant(vector: ir.VectorType, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _estimated(vector: ir.VectorType) -> bool:
    """Whether AVX-512's estimates are used, which are good to 14 bits and the same bits in every CPU."""
    return isinstance(vector.element, ir.FloatType) and vector.count % 16 == 0 and has_feature("avx512f")


def _emit_division(builder: Any, a: Any, b: Any) -> Any:
    if not _estimated(a.type):
        return builder.fdiv(a, b)
    fma = _llvm_function(builder, "fma", a.type, 3)
    guess = _estimate(builder, "rcp14", b)
    error = builder.call(fma, [builder.fneg(b), guess, _constant(a.type, 1.0)])
    return builder.fmul(a, builder.call(fma, [guess, error, guess]))


_BINARY: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.add: lambda builder, a, b: builder.fadd(a, b),
    operator.sub: lambda builder, a, b: builder.fsub(a, b),
    operator.mul: lambda builder, a, b: builder.fmul(a, b),
    operator.truediv: _emit_division,
}


def _define_binary(function: Callable[..., Any], emit: Callable[..., Any]) -> None:
    class LanesBinary(AbstractTemplate):  # type: ignore[misc]
        """Lanes ∘ Lanes, Lanes ∘ number, number ∘ Lanes."""

        def generic(self, args: Any, kws: Any) -> Any:
            found = [a for a in args if isinstance(a, Lanes)]
            if not found or any(a != found[0] for a in found):
                return None
            if not all(isinstance(a, Lanes | types.Number | types.IntegerLiteral) for a in args):
                return None
            return signature(found[0], *args)

    infer_global(function)(LanesBinary)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b = (_as_lanes(context, builder, v, t, sig.return_type) for v, t in zip(args, sig.args, strict=True))
        return emit(builder, a, b)

    for left, right in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(function, left, right)(lower)


for _function, _emit in _BINARY.items():
    _define_binary(_function, _emit)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _row_pointer(context: Any, builder: Any, array_type: types.Array, array: Any, row: Any, row_type: Any) -> Any:
    row = context.cast(builder, row, row_type, types.intp)
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.mul(row, ir.Constant(row.type, WIDTH))
    return builder.gep(data, [start], inbounds=True)


@intrinsic
def load(typingctx: Any, array: Any, row: Any) -> Any:
    """Row `row` of a `[rows, WIDTH]` array, as lanes."""
    lanes = Lanes(array.dtype, WIDTH)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _row_pointer(context, builder, sig.args[0], args[0], args[1], sig.args[1])
        vector = vector_of(lanes.dtype, WIDTH)
        return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=lanes.dtype.bitwidth // 8)

    return lanes(array, row), codegen


@intrinsic
def store(typingctx: Any, array: Any, row: Any, value: Any) -> Any:
    """Writes lanes to row `row` of a `[rows, WIDTH]` array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _row_pointer(context, builder, sig.args[0], args[0], args[1], sig.args[1])
        vector = vector_of(value.dtype, WIDTH)
        builder.store(args[2], builder.bitcast(pointer, vector.as_pointer()), align=value.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, row, value), codegen


@intrinsic
def load_bit(typingctx: Any, words: Any, row: Any, shift: Any, like: Any) -> Any:
    """Bit `shift` of row `row` of a uint32 `[rows, WIDTH]` array, as 0.0 or 1.0 in lanes of the type of `like`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _row_pointer(context, builder, sig.args[0], args[0], args[1], sig.args[1])
        integers = ir.VectorType(ir.IntType(32), WIDTH)
        word = builder.load(builder.bitcast(pointer, integers.as_pointer()), align=4)
        amount = context.cast(builder, args[2], sig.args[2], types.uint32)
        one = ir.Constant(integers, [1] * WIDTH)
        bit = builder.and_(builder.lshr(word, splat(builder, amount, integers)), one)
        return builder.sitofp(bit, vector_of(like.dtype, WIDTH))

    return like(words, row, shift, like), codegen


# ── functions of lanes ────────────────────────────────────────────────────────────────────────────────────────────────


def _llvm_function(builder: Any, name: str, vector: ir.VectorType, arity: int) -> Any:
    element = "f32" if isinstance(vector.element, ir.FloatType) else "f64"
    function_type = ir.FunctionType(vector, [vector] * arity)
    return cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{vector.count}{element}")


def _unary(name: str) -> Any:
    def function(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.call(_llvm_function(builder, name, args[0].type, 1), args)

        return value(value), codegen

    function.__name__ = f"lanes_{name}"
    return intrinsic(function)


absolute = _unary("fabs")
floor = _unary("floor")
round_to_integer = _unary("rint")


@intrinsic
def square_root(typingctx: Any, value: Any) -> Any:
    """√value. In float32 a value below 1e-37 counts as 1e-37, because the estimate of 1/√0 is infinite."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = args[0].type
        if not _estimated(vector):
            return builder.call(_llvm_function(builder, "sqrt", vector, 1), args)
        tiny = _constant(vector, 2.0**-123)
        x = builder.select(builder.fcmp_ordered("<", args[0], tiny), tiny, args[0])
        fma = _llvm_function(builder, "fma", vector, 3)
        guess = _estimate(builder, "rsqrt14", x)
        root = builder.fmul(x, guess)
        error = builder.call(fma, [builder.fneg(root), root, x])
        return builder.call(fma, [error, builder.fmul(guess, _constant(vector, 0.5)), root])

    return value(value), codegen


@intrinsic
def spread(typingctx: Any, scalar: Any, like: Any) -> Any:
    """A number in every lane, in the type of `like`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _as_lanes(context, builder, args[0], sig.args[0], like)

    return like(scalar, like), codegen


@intrinsic
def is_single(typingctx: Any, value: Any) -> Any:
    """Whether the lanes are float32: a constant for the compiler."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(1), int(value.dtype == types.float32))

    return types.boolean(value), codegen


@intrinsic
def multiply_add(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, fused where the CPU can. Scalars are spread over the lanes."""
    lanes = next(t for t in (a, b, c) if isinstance(t, Lanes))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [_as_lanes(context, builder, v, t, lanes) for v, t in zip(args, sig.args, strict=True)]
        return builder.call(_llvm_function(builder, "fmuladd", values[0].type, 3), values)

    return lanes(a, b, c), codegen


@intrinsic
def where_greater(typingctx: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """In each lane `yes` if a > b, else `no` (also where a or b is not a number). Scalars are spread over the lanes."""
    lanes = next(t for t in (a, b, yes, no) if isinstance(t, Lanes))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = [_as_lanes(context, builder, v, t, lanes) for v, t in zip(args, sig.args, strict=True)]
        return builder.select(builder.fcmp_ordered(">", values[0], values[1]), values[2], values[3])

    return lanes(a, b, yes, no), codegen


@intrinsic
def any_positive(typingctx: Any, value: Any) -> Any:
    """Whether some lane is above zero."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        mask = builder.fcmp_ordered(">", args[0], ir.Constant(args[0].type, [0.0] * WIDTH))
        bits = builder.bitcast(mask, ir.IntType(WIDTH))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(value), codegen


@intrinsic
def none_greater(typingctx: Any, value: Any, bound: Any) -> Any:
    """Whether every lane is at most the bound, and none is not-a-number."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        greater = builder.fcmp_unordered(">", args[0], _as_lanes(context, builder, args[1], sig.args[1], value))
        bits = builder.bitcast(greater, ir.IntType(value.width))
        return builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0))

    return types.boolean(value, bound), codegen


@intrinsic
def widen(typingctx: Any, value: Any) -> Any:
    """The same numbers as float64 lanes."""
    lanes = Lanes(types.float64, value.width)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[0] if value == lanes else builder.fpext(args[0], vector_of(types.float64, value.width))

    return lanes(value), codegen


def _layout(value: Lanes) -> tuple[int, int, int]:
    """Of the lanes' numbers: bits, bits behind the exponent, and the exponent's bias."""
    return (32, 23, 127) if value.dtype == types.float32 else (64, 52, 1023)


@intrinsic
def times_power_of_two(typingctx: Any, value: Any, exponent: Any) -> Any:
    """value · 2**exponent for lanes `exponent` that hold integers within the normal range of the dtype."""
    bits, mantissa, bias = _layout(value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integers = ir.VectorType(ir.IntType(bits), value.width)
        number = builder.fptosi(args[1], integers)
        biased = builder.add(number, ir.Constant(integers, [bias] * value.width))
        scale = builder.shl(biased, ir.Constant(integers, [mantissa] * value.width))
        return builder.fmul(args[0], builder.bitcast(scale, args[0].type))

    return value(value, exponent), codegen


@intrinsic
def split_power(typingctx: Any, value: Any) -> Any:
    """Lanes x as (r, k): x = r + k with |r| ≤ 1/2, where `shift_exponent` takes k. |x| stays below 126."""
    result: Any = types.UniTuple(value, 2)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Added to this number, x is rounded to a whole one, which stands in the lowest bits of the sum.
        magic = _constant(args[0].type, 1.5 * 2.0 ** _layout(value)[1])
        shifted = builder.fadd(args[0], magic)
        return context.make_tuple(builder, result, [builder.fsub(args[0], builder.fsub(shifted, magic)), shifted])

    return result(value), codegen


@intrinsic
def shift_exponent(typingctx: Any, value: Any, shifted: Any) -> Any:
    """value · 2ᵏ for the k of `split_power`, by adding k to the exponents."""
    bits, mantissa, _ = _layout(value)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        integers = ir.VectorType(ir.IntType(bits), value.width)
        whole = builder.shl(builder.bitcast(args[1], integers), ir.Constant(integers, [mantissa] * value.width))
        return builder.bitcast(builder.add(builder.bitcast(args[0], integers), whole), args[0].type)

    return value(value, shifted), codegen


# ── the processor ─────────────────────────────────────────────────────────────────────────────────────────────────────

FLUSH_BITS = 0x8040  # MXCSR: flush-to-zero and denormals-are-zero


@intrinsic
def use_wide_vectors(typingctx: Any) -> Any:
    """Compile the calling function for the CPU's full vector width."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # llvmlite knows no string attributes, but prints what the set holds.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def flush_denormals(typingctx: Any) -> Any:
    """Switches denormals off on this thread (x86; elsewhere does nothing). Returns what `restore_denormals` wants."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not IS_X86:
            return ir.Constant(ir.IntType(32), 0)
        slot = cgutils.alloca_once(builder, ir.IntType(32))
        _control_word(builder, "stmxcsr", slot)
        before = builder.load(slot)
        builder.store(builder.or_(before, ir.Constant(before.type, FLUSH_BITS)), slot)
        _control_word(builder, "ldmxcsr", slot)
        return before

    return types.uint32(), codegen


@intrinsic
def restore_denormals(typingctx: Any, before: Any) -> Any:
    """Undoes `flush_denormals`."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if IS_X86:
            slot = cgutils.alloca_once_value(builder, args[0])
            _control_word(builder, "ldmxcsr", slot)
        return context.get_dummy_value()

    return types.void(before), codegen


def _control_word(builder: Any, instruction: str, slot: Any) -> None:
    byte_pointer = ir.IntType(8).as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [byte_pointer])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.x86.sse.{instruction}")
    builder.call(function, [builder.bitcast(slot, byte_pointer)])
