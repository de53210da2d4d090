"""Packed products equal torch's, as far as their format says, and each row depends on itself alone."""

import pytest
import torch
from gguf import GGMLQuantizationType as GgufType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import gelu, linear, silu

from headrace.gpu_engine.native.declarations import Format, Into
from headrace.gpu_engine.native.linear import multiply, pack_linear
from headrace.gpu_engine.native.pool import Pool
from tests.support.native import compiled, pool_of

pytestmark = compiled

ERRORS = {Format.FLOAT32: 1e-6, Format.BF16: 1e-6, Format.INT16: 1e-3, Format.INT8: 2e-2, Format.INT4: 1e-1}
"""Largest relative error (of norms) in each format, for weights that bf16 holds exactly."""

SHAPES = st.tuples(st.integers(1, 90), st.integers(1, 200))


@pytest.fixture(scope="module")
def pool() -> Pool:
    return pool_of(2)


def weights_of(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(outputs, inputs, generator=generator) / 8).bfloat16().float()


def error_of(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-6))


@given(shape=SHAPES, rows=st.integers(1, 40), form=st.sampled_from(Format), has_bias=st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_product_equals_torchs_within_its_format(
    pool: Pool, shape: tuple[int, int], rows: int, form: Format, has_bias: bool
) -> None:
    weight = weights_of(*shape)
    bias = torch.randn(shape[0]) if has_bias else None
    x = torch.randn(rows, shape[1])
    actual = multiply(pool, pack_linear(pool, weight, bias, form), x)
    scale = (x.norm() * weight.norm()).item() / (rows * shape[0]) ** 0.5
    distance = (actual - linear(x, weight, bias)).norm() / (rows * shape[0]) ** 0.5
    assert distance <= ERRORS[form] * scale + 1e-5


@pytest.mark.parametrize("form", Format)
def test_a_row_is_the_same_bit_for_bit_alone_and_among_any_others(pool: Pool, form: Format) -> None:
    layer = pack_linear(pool, weights_of(70, 150), None, form)
    x = torch.randn(131, 150)
    alone = torch.cat([multiply(pool, layer, row[None]) for row in x])
    for rows in (2, 5, 7, 13, 96, 131):
        assert torch.equal(multiply(pool, layer, x[:rows]), alone[:rows]), rows


@pytest.mark.parametrize("form", Format)
def test_a_norm_before_and_a_gate_or_residual_behind_are_part_of_the_product(
    pool: Pool, form: Format
) -> None:
    weight, x, norm = weights_of(72, 96), torch.randn(9, 96), torch.rand(96)
    normalised = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * norm
    product, residual = linear(normalised, weight), torch.randn(9, 72)
    gate, up = product.chunk(2, dim=-1)
    plain, gated = pack_linear(pool, weight, None, form), pack_linear(pool, weight, None, form, gated=True)
    added = multiply(pool, plain, x, norm=norm, eps=1e-5, into=Into.ADD, out=residual.clone())
    assert error_of(added, residual + product) < ERRORS[form]
    for into, expected in (
        (Into.GATED_SILU, silu(gate) * up),
        (Into.GATED_GELU, gelu(gate, approximate="tanh") * up),
    ):
        assert error_of(multiply(pool, gated, x, norm=norm, eps=1e-5, into=into), expected) < 2 * ERRORS[form]


def test_biases_of_gates_lie_where_their_gates_lie(pool: Pool) -> None:
    weight, bias, x = weights_of(2 * 13, 24), torch.randn(26), torch.randn(3, 24)
    layer = pack_linear(pool, weight, bias, Format.FLOAT32, gated=True)
    gate, up = linear(x, weight, bias).chunk(2, dim=-1)
    assert error_of(multiply(pool, layer, x, into=Into.GATED_SILU), silu(gate) * up) < 1e-6


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("form", Format)
def test_a_row_that_is_not_finite_stays_so_and_spoils_no_other(pool: Pool, form: Format, bad: float) -> None:
    layer = pack_linear(pool, weights_of(40, 130), None, form)
    x = torch.randn(7, 130)
    clean = multiply(pool, layer, x)
    x[3, 77] = bad
    spoilt = multiply(pool, layer, x)
    assert not spoilt[3].isfinite().any()
    others = [0, 1, 2, 4, 5, 6]
    assert torch.equal(spoilt[others], clean[others])


def test_sixteen_bits_never_overflow_whatever_the_numbers(pool: Pool) -> None:
    """All weights and inputs at their largest, of one sign: the sums of a chunk are then the largest."""
    weight, x = torch.full((16, 128), 3.0), torch.full((2, 128), -5.0)
    for form in (Format.INT16, Format.INT8):
        actual = multiply(pool, pack_linear(pool, weight, None, form), x)
        assert error_of(actual, linear(x, weight)) < 1e-5


@pytest.mark.parametrize(
    ("theirs", "ours", "bound"),
    [
        (GgufType.Q8_0, Format.INT8, 5e-3),
        (GgufType.Q4_1, Format.INT4, 3e-4),
        (GgufType.Q4_0, Format.INT4, 3e-4),
    ],
)
def test_what_a_gguf_file_has_rounded_is_hardly_rounded_again(
    pool: Pool, theirs: GgufType, ours: Format, bound: float
) -> None:
    drawn = weights_of(64, 256).numpy()
    weight = torch.from_numpy(dequantize(quantize(drawn, theirs), theirs))
    x = torch.randn(20, 256, generator=torch.Generator().manual_seed(1))
    assert error_of(multiply(pool, pack_linear(pool, weight, None, ours), x), linear(x, weight)) < bound


def test_a_group_that_uses_a_part_of_its_grid_is_kept_exactly(pool: Pool) -> None:
    """One input of 1 asks for one weight; its group is 32 of them."""
    steps = torch.randint(3, 12, (16, 32), generator=torch.Generator().manual_seed(2))
    weight = 0.125 * steps - 0.75
    packed = pack_linear(pool, weight, None, Format.INT4)
    torch.testing.assert_close(multiply(pool, packed, torch.eye(32)), weight.t(), rtol=0, atol=1e-6)


def test_four_bits_and_their_scales_take_five_bits_a_weight(pool: Pool) -> None:
    packed = pack_linear(pool, weights_of(256, 512), None, Format.INT4)
    assert packed.num_bytes * 8 == 5 * 256 * 512


def test_rows_and_weights_of_zeros_give_zeros(pool: Pool) -> None:
    for form in Format:
        layer = pack_linear(pool, torch.zeros(20, 70), None, form)
        assert not multiply(pool, layer, torch.randn(3, 70)).any()
        assert not multiply(pool, pack_linear(pool, weights_of(20, 70), None, form), torch.zeros(3, 70)).any()
