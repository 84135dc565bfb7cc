"""All seeded faults."""

from __future__ import annotations

from codec import CODEC
from cpu_gemm import GEMM
from gpu_cluster import CLUSTER
from gpu_gemm import FUSED, MATRIX
from gpu_runtime import RUNTIME
from gpu_stream import STREAM
from gpu_warpgroup import WARPGROUP
from gpu_whole_weight import WHOLE_WEIGHT
from gpu_wide import WIDE
from specification import SPECIFICATION

MUTANTS = (
    CODEC
    + GEMM
    + FUSED
    + MATRIX
    + STREAM
    + CLUSTER
    + WARPGROUP
    + WIDE
    + WHOLE_WEIGHT
    + RUNTIME
    + SPECIFICATION
)
