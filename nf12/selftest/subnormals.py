"""Whether a gemm kernel keeps subnormal numbers or takes them for zero.

Matrix and dot instructions for BF16 may do either (docs/format.md). Each case is one token and one
row of a single gemm: its products are the only ones of its output that are not zero.

    weight       a subnormal weight times a large activation
    activation   a large weight times a subnormal activation
    product      two small normal numbers whose product is subnormal, as is the output
    sum          two normal products whose sum is subnormal
    addends      two subnormal products whose sum is normal
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (weight, activation) of the columns that are not zero.
CASES: dict[str, tuple[tuple[float, float], ...]] = {
    "weight": ((2.0**-130, 2.0**20),),
    "activation": ((2.0**20, 2.0**-130),),
    "product": ((2.0**-60, 2.0**-70),),
    "sum": ((1.5, 2.0**-126), (-1.0, 2.0**-126)),
    "addends": ((2.0**-60, 2.0**-67), (2.0**-60, 2.0**-67)),
}
ROWS, COLUMNS = 16, 128  # some kernels take no weight of fewer than two tiles


def probe(gemm: Callable[[Tensor, Tensor], Tensor]) -> dict[str, str]:
    """For each case "kept", "flushed", or what came out instead.

    gemm(x, weight): BF16 x [m, k] and weight [n, k] to y [m, n] on the CPU.
    """
    # Zeros in x and ones in the weight: nothing but the cases' own weights is an escape.
    x, weight = torch.zeros(len(CASES), COLUMNS), torch.ones(ROWS, COLUMNS)
    exact = []
    for i, terms in enumerate(CASES.values()):
        for column, (w, activation) in enumerate(terms):
            weight[i, column], x[i, column] = w, activation
        exact.append(sum(w * activation for w, activation in terms))
    y = gemm(x.bfloat16(), weight.bfloat16()).diagonal().tolist()
    return {
        case: "kept" if got == kept else "flushed" if got == 0 else f"{got} instead of {kept}"
        for case, got, kept in zip(CASES, y, exact, strict=False)
    }
