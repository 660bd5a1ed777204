"""Products in int8 and in fp32 against torch in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bart.cpu.kernels import Kernels, PackedCodes, PackedWeight
from tests.bart.cpu.common import U, gelu_error, needs, threads

ROWS_INPUTS_OUTPUTS = [
    *((1, 1, 1), (3, 7, 33), (8, 64, 32), (9, 50, 31), (23, 768, 100), (48, 768, 768)),
    *((400, 3072, 64), (130, 4099, 40)),  # more rows than are multiplied at once
]


@pytest.mark.parametrize("rows, inputs, outputs", ROWS_INPUTS_OUTPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_multiply(compiled: Kernels, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    needs(compiled, "multiplies")
    # Codes of all sizes, the greatest sums among them.
    states = (torch.randn(rows, inputs) * torch.logspace(-5, 5, rows)[:, None]).to(dtype)
    states[0] = 3
    greatest = compiled.greatest_code
    codes = torch.randint(-greatest - (greatest == 127), greatest + 1, (outputs, inputs), dtype=torch.int8)
    codes[0] = greatest
    scale, bias = torch.rand(outputs) / inputs, torch.randn(outputs)
    row_codes, peak = compiled.quantize_rows(states)
    # Sums are exact; then there are three roundings.
    product = (row_codes.double() - 128) @ codes.double().T * scale.double() * peak.double()
    weight = PackedCodes(codes, scale, bias, compiled.panel)
    result = compiled.multiply(states, weight)
    assert ((result.double() - product - bias.double()).abs() <= 4 * U * (product.abs() + bias.abs())).all()
    assert torch.equal(compiled.multiply(states, weight, dtype=torch.bfloat16), result.bfloat16())
    active = compiled.multiply(states, weight, True)
    assert ((active.double() - F.gelu(result.double())).abs() <= gelu_error(result.double())).all()
    for row in {0, rows // 2, rows - 1}:
        one = slice(row, row + 1)
        assert torch.equal(compiled.multiply(states[one], weight), result[one])


@pytest.mark.parametrize("rows, inputs, outputs", ROWS_INPUTS_OUTPUTS)
def test_multiply_fp32(compiled: Kernels, rows: int, inputs: int, outputs: int) -> None:
    needs(compiled, "multiplies_fp32")
    states, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    packed = PackedWeight(weight, bias, compiled.panel)
    result = compiled.multiply_fp32(states, packed)
    size = states.abs().double() @ weight.abs().double().T + bias.abs()
    expected = F.linear(states.double(), weight.double(), bias.double())
    assert ((result.double() - expected).abs() <= (inputs + 1) * U * size).all()
    active = compiled.multiply_fp32(states, packed, "gelu")
    assert ((active.double() - F.gelu(result.double())).abs() <= gelu_error(result.double())).all()
    assert torch.equal(compiled.multiply_fp32(states, packed, "relu"), result.relu())
    assert compiled.multiply_fp32(states[:0], packed).shape == (0, outputs)
    for row in {0, rows // 2, rows - 1}:
        one = slice(row, row + 1)
        assert torch.equal(compiled.multiply_fp32(states[one], packed), result[one])


@pytest.mark.parametrize("in_fp32", [False, True])
def test_multiply_by_nan_and_by_many_threads(compiled: Kernels, in_fp32: bool) -> None:
    needs(compiled, "multiplies_fp32" if in_fp32 else "multiplies")
    states = torch.randn(50, 600)
    states[7, 5] = torch.nan
    codes, multiply = torch.randint(-64, 65, (700, 600), dtype=torch.int8), compiled.multiply
    weight = PackedCodes(codes, torch.rand(700), torch.zeros(700), compiled.panel)
    if in_fp32:
        weight, multiply = PackedWeight(codes.float(), torch.zeros(700), compiled.panel), compiled.multiply_fp32
    result = multiply(states, weight)
    assert result.isnan().all(dim=1).nonzero().flatten().tolist() == [7]
    with threads(3):
        assert torch.equal(multiply(states, weight).nan_to_num(), result.nan_to_num())
