"""The operators on a real GPU of this machine: results, streams, threads, graphs, several GPUs.
What needs no card is in test_gpu_runtime.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from reference import (
    GuardedBuffer,
    activations,
    assert_bits_equal,
    assert_gemm_close,
    bits,
    from_bits,
    realistic_weights,
    special_weights,
)
from torch import Tensor

import nf12
from nf12 import _C, bench, machine, tune, tuned  # type: ignore[attr-defined]

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import bench_decode

ops = torch.ops.nf12
Packed = tuple[Tensor, Tensor, Tensor, int, int, int]

GPUS = [
    torch.device("cuda", i) for i in range(torch.cuda.device_count()) if _C.gpu_problem(i) is None
]
pytestmark = pytest.mark.skipif(not GPUS, reason="no GPU here that libnf12.so has kernels for")
several_gpus = pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs with kernels")
DEVICE = GPUS[0] if GPUS else torch.device("cpu")


@pytest.fixture(autouse=True)
def sums_in_fp32() -> Iterator[None]:
    """Of torch's own matmul, which may add partial sums in BF16 otherwise."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_bf16_reduced_precision_reduction = before


def pack(weight: Tensor, device: torch.device = DEVICE) -> Packed:
    """By the CPU, then moved."""
    payload, index, escapes, meta = ops.pack(weight)
    _, n, k, base = meta.tolist()
    return payload.to(device), index.to(device), escapes.to(device), n, k, base


def with_gaps(x: Tensor) -> Tensor:
    """The same values on the GPU, rows at odd addresses and further apart."""
    storage = torch.full((1 + x.shape[0] * (x.shape[1] + 3),), 7.0, dtype=x.dtype, device=DEVICE)
    view = storage[1:].view(x.shape[0], x.shape[1] + 3)[:, : x.shape[1]]
    return view.copy_(x)


def multiply(x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """From an x with gaps into the middle of a guarded buffer; back on the CPU."""
    y = GuardedBuffer.create(x.shape[0], packed[3])
    storage = from_bits(bits(y.storage)).to(DEVICE)
    view = storage.as_strided(y.view.shape, y.view.stride(), y.view.storage_offset())
    on_gpu = None if bias is None else bias.to(DEVICE)
    ops.gemm.out(with_gaps(x), *packed, on_gpu, out=view)
    y.storage.copy_(storage)
    y.check()
    return y.view.clone()


@pytest.mark.parametrize("m", (1, 2, 7, 8, 15, 16, 17, 33, 64, 65, 128, 130, 255, 256, 1024))
def test_gemm_of_every_token_count(m: int) -> None:
    for n, k in ((48, 200), (4096, 1024), (17, 4160)):
        weight, bias = realistic_weights(n, k, tile_share=0.5), activations(n, seed=2)
        x = activations(m, k)
        assert_gemm_close(multiply(x, pack(weight), bias), x, weight, bias, f"n {n} k {k}")


@pytest.mark.parametrize("k", (1, 63, 64, 65, 4096, 4104, 14336))
def test_gemm_of_every_shape(k: int) -> None:
    for n in (1, 15, 16, 17, 300):
        weight = special_weights(n, k, finite=True)
        packed = pack(weight)
        for m in (1, 5, 18, 70):
            x = activations(m, k)
            assert_gemm_close(multiply(x, packed), x, weight, what=f"n {n} m {m}")


def has_wide() -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(DEVICE) == (9, 0)


def need_wide() -> None:
    if not has_wide():
        pytest.skip("the wide kernels are for sm_90a alone")


def need_nvidia() -> None:
    if torch.version.hip is not None:
        pytest.skip("this version has stream and cluster kernels for NVIDIA alone")


def multiply_between(
    path: str, x: Tensor, packed: Packed, bias: Tensor | None, gaps: tuple[int, int]
) -> Tensor:
    """y by a path, from rows of x within wider ones into rows of y with gaps before and behind
    them, which stay as they are."""
    (m, k), n = x.shape, packed[3]
    wider = torch.full((m, k + 24), 7.0, dtype=x.dtype, device=DEVICE)
    wider[:, 8 : k + 8] = x.to(DEVICE)
    out = torch.full((m, gaps[0] + n + gaps[1]), 7.0, dtype=x.dtype, device=DEVICE)
    y = out[:, gaps[0] : gaps[0] + n]
    with nf12.use_kernel(path):
        ops.gemm.out(
            wider[:, 8 : k + 8], *packed, bias.to(DEVICE) if bias is not None else None, out=y
        )
    rest = (out[:, : gaps[0]] == 7).all() & (out[:, gaps[0] + n :] == 7).all()
    assert bool(rest), f"m {m} between {gaps}"
    return y.cpu()


@pytest.mark.parametrize("m", (1, 8, 9, 16, 32))
def test_stream_shares_out_the_rows(m: int) -> None:
    """As many rows as one round of blocks takes, a round more, rows that blocks share; again and
    again with the same memory, as a graph does."""
    need_nvidia()
    processors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    some, long = 16 * (processors + 1) - 3, 200 * 64
    assert nf12.select(min(m, 16), some, long, DEVICE).splits == 2, "a second row takes long"
    shapes = ((384 * processors, 128), (400 * processors, 128), (some, long), (1000, long))
    for n, k in (*shapes, (5, long)):
        weight, bias = realistic_weights(n, k, tile_share=0.5), activations(n, seed=2)
        packed, x = pack(weight), activations(m, k).to(DEVICE)
        graph = torch.cuda.CUDAGraph()
        with nf12.use_kernel("stream"):
            on_gpu = bias.to(DEVICE)
            first = ops.gemm(x, *packed, on_gpu)
            with torch.cuda.graph(graph):
                results = [ops.gemm(x, *packed, on_gpu) for _ in range(20)]
        assert_gemm_close(first.cpu(), x.cpu(), weight, bias, f"n {n} k {k}")
        for _ in range(20):
            graph.replay()
        for y in results:
            assert_bits_equal(y, first)


@pytest.mark.parametrize("path", _C.gpu_kernels())
def test_gemm_by_every_path(path: str) -> None:
    others = ("fused",) if torch.version.hip is None else ("stream", "cluster", "wide")
    if path in others or (path == "wide" and not has_wide()):
        pytest.skip(f"this version has no {path} kernels for these GPUs")
    for n, k in ((200, 1024), (4096, 4096)):
        weight = realistic_weights(n, k, tile_share=0.5)
        packed = pack(weight)
        for m in (1, 8, 9, 16):
            x = activations(m, k)
            with nf12.use_kernel(path):
                y = ops.gemm(x.to(DEVICE), *packed).cpu()
            assert_gemm_close(y, x, weight, what=f"n {n} k {k} m {m}")


# Where the kernels of clusters change, and their form.
CLUSTER_TOKENS = (1, 17, 32, 33, 48, 64, 65, 80, 81, 96, 97, 127, 128, 129, 192)


@pytest.mark.parametrize("bias", (True, False), ids=("bias", "no bias"))
@pytest.mark.parametrize(("n", "k"), ((264, 640), (77, 1024), (4096, 1024), (2000, 4096)))
def test_clusters_take_any_rows_of_the_result(n: int, k: int, bias: bool) -> None:
    """Strided x and y, rows of y at odd addresses as well; what lies between them stays."""
    need_nvidia()
    weight, added = realistic_weights(n, k, tile_share=0.5), activations(n, seed=2)
    packed = pack(weight)
    for m in CLUSTER_TOKENS:
        x = activations(m, k)
        for gaps in ((8, 8 + -n % 8), (3, 6)):
            y = multiply_between("cluster", x, packed, added if bias else None, gaps)
            assert_gemm_close(y, x, weight, added if bias else None, f"m {m} between {gaps}")


def test_clusters_take_rows_of_x_that_overlap() -> None:
    """Every token the same: no tensor map says so, and the other form takes it."""
    need_nvidia()
    weight = realistic_weights(264, 640, tile_share=0.5)
    x = activations(1, 640)
    for m in (17, 100):
        with nf12.use_kernel("cluster"):
            y = ops.gemm(x.to(DEVICE).expand(m, 640), *pack(weight)).cpu()
        assert_gemm_close(y, x.expand(m, 640), weight, what=f"m {m}")


# Where the wide path changes its tile, and shares tiles out or not.
WIDE_TOKENS = (65, 127, 128, 129, 192, 193, 256, 257, 300, 511, 1024)


@pytest.mark.parametrize("bias", (True, False), ids=("bias", "no bias"))
@pytest.mark.parametrize(("n", "k"), ((264, 640), (4096, 1024), (2000, 4096)))
def test_wide_takes_rows_at_multiples_of_16_bytes(n: int, k: int, bias: bool) -> None:
    """Strided x and y; what lies between the rows of y stays."""
    need_wide()
    weight, added = realistic_weights(n, k, tile_share=0.5), activations(n, seed=2)
    packed = pack(weight)
    for m in WIDE_TOKENS:
        x = activations(m, k)
        y = multiply_between("wide", x, packed, added if bias else None, (8, 8))
        assert_gemm_close(y, x, weight, added if bias else None, f"m {m}")


def test_wide_decodes_once() -> None:
    """A shape for which it does (tests/host_model/select_test.cpp), twice: memory is used again."""
    need_wide()
    weight, bias = realistic_weights(16888, 2048, tile_share=0.5), activations(16888, seed=2)
    packed, x = pack(weight), activations(2048, 2048)
    results = [ops.gemm(x.to(DEVICE), *packed, bias.to(DEVICE)) for _ in range(2)]
    assert_bits_equal(*results)
    assert_gemm_close(results[0].cpu(), x, weight, bias)


def test_wide_on_slices_of_a_weight() -> None:
    """Rows and tile columns of a packed weight, as views of its memory."""
    need_wide()
    weight = realistic_weights(1024, 2048, tile_share=0.5)
    payload, index, escapes, _, _, base = pack(weight)
    part = (payload[2:34, 3:20], index[2:34, 3:20], escapes, 512, 17 * 64, base)
    for m in (70, 300, 2048):
        x = activations(m, 17 * 64)
        with nf12.use_kernel("wide"):
            y = ops.gemm(x.to(DEVICE), *part).cpu()
        assert_gemm_close(y, x, weight[32:544, 192 : 192 + 17 * 64], what=f"m {m}")


def test_wide_says_what_it_does_not_take() -> None:
    need_wide()
    for n, k, why in (
        (64, 104, "in_features a multiple of 64"),
        (37, 128, "multiples of 16 bytes"),
    ):
        x = activations(100, k).to(DEVICE)
        with nf12.use_kernel("wide"), pytest.raises(RuntimeError, match=why):
            ops.gemm(x, *pack(realistic_weights(n, k)))
    out = torch.empty((100, 40), dtype=torch.bfloat16, device=DEVICE)[:, :37]
    x = activations(100, 128).to(DEVICE)
    with nf12.use_kernel("wide"), pytest.raises(RuntimeError, match="out_features a multiple of 8"):
        ops.gemm.out(x, *pack(realistic_weights(37, 128)), out=out)


@pytest.mark.parametrize("m", (4, 100, 300, 2048))
def test_a_chain_of_calls_with_and_without_dependent_launch(m: int) -> None:
    """Each call reads what the one before wrote, with nothing between them, in a graph as well."""
    packed = pack(realistic_weights(1024, 1024, tile_share=0.5))
    results = []
    for allowed in (True, False):
        _C.set_dependent_launch(allowed)
        try:
            x = activations(m, 1024).to(DEVICE)
            graph = torch.cuda.CUDAGraph()
            ops.gemm(x, *packed)
            with torch.cuda.graph(graph):
                y = x
                for i in range(50):  # some after a kernel of torch's
                    y = ops.gemm(-y if i % 5 == 3 else y, *packed)
            for _ in range(3):
                graph.replay()
            results.append(y.cpu())
        finally:
            _C.set_dependent_launch(True)
    assert_bits_equal(*results)
    assert bool(results[0].isfinite().all() & (results[0] != 0).any())


@pytest.mark.parametrize("m", (16, 256, 1024))
def test_buffered_slices_round_once(m: int) -> None:
    """Two slices of 64 MiB; torch rounds the product first when it writes into a wider y."""
    weight, bias = realistic_weights(14336, 4096), activations(14336, seed=2)
    x = activations(m, 4096)
    with nf12.use_kernel("buffered"):
        y = ops.gemm(x.to(DEVICE), *pack(weight), bias.to(DEVICE)).cpu()
    assert_gemm_close(y, x, weight, bias)


def test_equal_calls_give_equal_bits() -> None:
    packed = pack(realistic_weights(64, 8192))
    for m in (1, 16, 64, 100, 300, 2048):
        x = activations(m, 8192).to(DEVICE)
        first = ops.gemm(x, *packed)
        for _ in range(20):
            assert_bits_equal(ops.gemm(x, *packed), first)


@pytest.mark.parametrize(("m", "n", "k"), ((1, 2560, 9728), (128, 4096, 4096), (200, 4096, 4096)))
def test_streams_at_once(m: int, n: int, k: int) -> None:
    """Launches whose blocks wait for each other, side by side on one GPU."""
    weight = realistic_weights(n, k)
    packed, x = pack(weight), activations(m, k)
    on_gpu = x.to(DEVICE)
    wanted = ops.gemm(on_gpu, *packed)
    streams = [torch.cuda.Stream(DEVICE) for _ in range(4)]
    results = []
    torch.cuda.synchronize(DEVICE)
    for _ in range(25):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(ops.gemm(on_gpu, *packed))
    torch.cuda.synchronize(DEVICE)
    for y in results:
        assert_bits_equal(y, wanted)


@pytest.mark.parametrize("lead", ((), (3,)))
@pytest.mark.parametrize("k", (1, 66, 200))
def test_weights_come_back(lead: tuple[int, ...], k: int) -> None:
    weight = special_weights(*lead, 333, k, share=0.05)
    assert_bits_equal(ops.unpack(*pack(weight)).cpu(), weight)
    for got, wanted in zip(ops.pack(weight.to(DEVICE)), ops.pack(weight), strict=True):
        assert torch.equal(got.cpu(), wanted)


def test_gather() -> None:
    weight = special_weights(333, 200)
    ids = torch.tensor([[0, 332, 5], [-1, 333, 1 << 40]])
    rows = ops.gather(ids.to(DEVICE), *pack(weight)).cpu()
    assert_bits_equal(rows[0], weight[ids[0]])
    assert bool((bits(rows[1]) == 0x7FFF).all())


def test_check_says_what_the_cpu_says() -> None:
    payload, index, escapes, *sizes = pack(special_weights(3, 33, 130), torch.device("cpu"))
    ops.check(payload.to(DEVICE), index.to(DEVICE), escapes.to(DEVICE), *sizes, 1)
    index[1, 2, 1] = 65
    texts = []
    for device in (torch.device("cpu"), DEVICE):
        with pytest.raises(RuntimeError) as error:
            ops.check(payload.to(device), index.to(device), escapes.to(device), *sizes, 1)
        texts.append(str(error.value).splitlines()[0])
    assert texts[0] == texts[1]


def test_work_is_ordered_on_torchs_stream() -> None:
    """A weight and an x that the stream has just been told to write, behind a long kernel."""
    weight = realistic_weights(512, 4096)
    payload, index, escapes, *sizes = pack(weight)
    x = activations(4, 4096)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(stream):
        late = torch.zeros_like(payload)
        big = torch.randn(4096, 4096, device=DEVICE)
        for _ in range(20):
            big = big @ big * 1e-3
        late.copy_(payload)
        y = ops.gemm(x.to(DEVICE), late, index, escapes, *sizes)
    stream.synchronize()
    assert_gemm_close(y.cpu(), x, weight)


def test_found_before_torch_has_touched_it() -> None:
    program = "import torch, nf12; from nf12 import _C; exit(_C.gpu_problem(0) or 0)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("device", GPUS[-1:])
def test_a_fresh_thread(device: torch.device) -> None:
    weight = realistic_weights(64, 4096)
    packed, x, results = pack(weight, device), activations(2, 4096), []
    on_gpu = x.to(device)
    thread = threading.Thread(target=lambda: results.append(ops.gemm(on_gpu, *packed)))
    thread.start()
    thread.join()
    assert_gemm_close(results[0].cpu(), x, weight)


@several_gpus
def test_another_gpu_than_the_current_one() -> None:
    weight = realistic_weights(64, 4096)
    x = activations(2, 4096)
    for device in GPUS:
        with torch.cuda.device(GPUS[0]):
            y = ops.gemm(x.to(device), *pack(weight, device))
            assert torch.cuda.current_device() == GPUS[0].index
        assert y.device == device
        assert_gemm_close(y.cpu(), x, weight)


def test_a_captured_first_call() -> None:
    """In a process of its own: modules load while the stream is captured."""
    code = """
import torch, nf12
from reference import activations, assert_gemm_close, realistic_weights
ops, weight = torch.ops.nf12, realistic_weights(64, 4096)
payload, index, escapes, meta = ops.pack(weight)
packed = (payload.cuda(), index.cuda(), escapes.cuda(), *meta[1:].tolist())
x = torch.zeros(2, 4096, dtype=torch.bfloat16, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = ops.gemm(x, *packed)
for seed in range(3):
    values = activations(2, 4096, seed=seed)
    x.copy_(values)
    graph.replay()
    assert_gemm_close(y.cpu(), values, weight)
print("replayed")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["replayed"]


def test_gradients() -> None:
    weight, bias = realistic_weights(48, 200), activations(48)
    packed = pack(weight)
    x = activations(5, 200).to(DEVICE).requires_grad_()
    b = bias.to(DEVICE).requires_grad_()
    dy = activations(5, 48, seed=4)
    ops.gemm(x, *packed, b).backward(dy.to(DEVICE))
    assert x.grad is not None and b.grad is not None
    assert_gemm_close(x.grad.cpu(), dy, weight.t())
    assert torch.allclose(b.grad.cpu().double(), dy.double().sum(0), rtol=2**-7, atol=2**-7)


def test_compiled() -> None:
    weight = realistic_weights(48, 200)
    packed = pack(weight)
    compiled = torch.compile(
        lambda x: torch.relu(ops.gemm(x, *packed)), fullgraph=True, mode="reduce-overhead"
    )
    for seed in range(4):
        x = activations(5, 200, seed=seed)
        y = compiled(x.to(DEVICE)).cpu()
        assert_bits_equal(y, torch.relu(ops.gemm(x.to(DEVICE), *packed)).cpu())


def test_a_benchmarks_row() -> None:
    backend = nf12.resolve_backend("auto", DEVICE)
    weight = bench.make_weight(1024, 512, bench.USUAL_ESCAPES, DEVICE, backend, cold=True)
    for m in (1, 200):
        row = bench.measure(weight, m)
        assert isinstance(row, bench.Row)
        assert row.violations == 0 and row.timed_as == "graph" and row.copies > 1
        assert min(row.dense_us, row.nf12_us) > 0.5, "a launch takes longer"
        assert (row.nf12_us_plain is not None) == (backend is nf12.Backend.CUDA)
    assert machine.describe(DEVICE, backend, cold=True)["read_gb_per_s"] > 50


def test_a_tuned_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF12_CACHE", str(tmp_path))
    try:
        measured = list(
            tune.run(DEVICE, nf12.resolve_backend("auto", DEVICE), [(1024, 512)], [1, 24])
        )
        assert all(at.wrong == () and at.kernel in at.us for at in measured)
        tune.save(DEVICE, measured)
        for at in measured:
            choice = nf12.select(at.m, 512, 1024, DEVICE)
            assert choice.tuned and choice.kernel == at.kernel
        assert not nf12.select(25, 512, 1024, DEVICE).tuned
    finally:
        tuned.forget(DEVICE)
    assert not nf12.select(1, 512, 1024, DEVICE).tuned


def test_a_decode_step() -> None:
    """Small, but all of it: graphs of three stacks, logits, bits."""
    bench_decode.main(
        ["--layers", "2", "--hidden", "512", "--vocab", "1000", "--turns", "3", "--output", "-"]
    )
