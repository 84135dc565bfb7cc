"""The operators on GPUs, driver calls and all, against the reference: see gpu_standin.py."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpu_standin import StandIn, library
from reference import (
    GuardedBuffer,
    activations,
    assert_bits_equal,
    assert_gemm_close,
    bits,
    generator,
    offset_rows,
    realistic_weights,
    special_weights,
)
from torch import Tensor

import nf12
from nf12 import _C  # type: ignore[attr-defined]

ops = torch.ops.nf12
Packed = tuple[Tensor, Tensor, Tensor, int, int, int]
R9700 = ("gfx1201", 32)  # 64 compute units, which HIP counts in pairs
SMALL = ("gfx1200", 16)


@pytest.fixture
def gpus() -> Iterator[StandIn]:
    driver = StandIn(R9700, SMALL)
    yield driver
    _C.pretend_gpu("", -1)


@pytest.fixture
def gpu(gpus: StandIn) -> Iterator[StandIn]:
    with gpus.on(0):
        yield gpus


def pack(weight: Tensor, base: int = -1) -> Packed:
    """By the CPU; memory of the pretended GPU all the same."""
    payload, index, escapes, meta = nf12.packing.pack_spec(weight, base)
    _, n, k, base = meta.tolist()
    return payload, index, escapes, n, k, base


def multiply(x: Tensor, packed: Packed, bias: Tensor | None = None) -> Tensor:
    """Into the middle of a guarded buffer, from an x with gaps."""
    y = GuardedBuffer.create(x.shape[0], packed[3])
    ops.gemm.out(offset_rows(x), *packed, bias, out=y.view)
    y.check()
    return y.view.clone()


# ---- gemm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", (1, 2, 3, 7, 8, 11, 12, 15, 16, 17, 32, 33, 64, 65, 128, 130))
def test_gemm_of_every_token_count(gpu: StandIn, m: int) -> None:
    weight, bias = realistic_weights(40, 200, tile_share=0.5), activations(40, seed=2)
    x = activations(m, 200)
    assert_gemm_close(multiply(x, pack(weight), bias), x, weight, bias)


@pytest.mark.parametrize("k", (1, 63, 64, 65, 129, 1100))
@pytest.mark.parametrize("n", (1, 16, 17, 48))
def test_gemm_of_every_shape(gpu: StandIn, n: int, k: int) -> None:
    weight = realistic_weights(n, k, tile_share=0.5)
    packed = pack(weight)
    for m in (1, 5, 18):
        x = activations(m, k)
        assert_gemm_close(multiply(x, packed), x, weight, what=f"m {m}")


@pytest.mark.parametrize("kernel", ("fused", "matrix", "buffered"))
def test_gemm_of_special_weights(gpu: StandIn, kernel: str) -> None:
    weight = special_weights(33, 130, finite=True)
    packed, x = pack(weight), activations(9, 130)
    with nf12.use_kernel(kernel):
        assert_gemm_close(multiply(x, packed), x, weight)


def test_fifteen_tokens_are_fused_and_sixteen_take_the_matrix_unit(gpu: StandIn) -> None:
    packed = pack(realistic_weights(32, 64))
    gpu.calls()
    for m in (1, 15, 16, 17, 64, 65):
        ops.gemm(activations(m, 64), *packed)
    assert gpu.kernels() == [
        "gemm_fused_m1", "gemm_fused_m15",
        "gemm_matrix_t16", "gemm_matrix_t32", "gemm_matrix_t64", "gemm_matrix_t128",
    ]  # fmt: skip


def test_gemm_of_any_layout(gpu: StandIn) -> None:
    weight, bias = realistic_weights(24, 70), activations(24, seed=2)
    packed, x = pack(weight), activations(2, 3, 70)
    assert_gemm_close(ops.gemm(x, *packed, bias), x, weight, bias)
    columns = x.mT.contiguous().mT  # its columns are not contiguous
    assert_gemm_close(ops.gemm(columns, *packed), x, weight)
    repeated = x[:1, :1].expand(2, 3, 70)  # rows that lie on each other
    assert_gemm_close(ops.gemm(repeated, *packed), repeated, weight)
    assert_gemm_close(ops.gemm(x[0, 0], *packed)[None], x[0, :1], weight, what="one row")
    out = torch.empty(24, 6).bfloat16().t()
    ops.gemm.out(x.view(6, 70), *packed, bias.repeat_interleave(2)[::2], out=out)
    assert_gemm_close(out, x.view(6, 70), weight, bias)


def test_gemm_of_no_tokens_asks_nothing_of_the_driver(gpu: StandIn) -> None:
    packed = pack(realistic_weights(24, 70))
    ops.gemm(activations(1, 70), *packed)
    gpu.calls()
    assert ops.gemm(torch.empty(0, 70).bfloat16(), *packed).shape == (0, 24)
    assert ops.gemm(torch.empty(2, 0, 70).bfloat16(), *packed).shape == (2, 0, 24)
    assert gpu.calls() == []


def test_weights_at_odd_addresses(gpu: StandIn) -> None:
    """The kernels load 16 bytes at a time."""
    weight = realistic_weights(32, 130, tile_share=0.9)
    payload, index, escapes, *sizes = pack(weight)
    storage = torch.zeros(payload.numel() + 1, dtype=torch.uint8)
    storage[1:] = payload.flatten()
    table = torch.cat((torch.zeros(1, dtype=torch.int32), escapes))
    odd = (storage[1:].view(payload.shape), index, table[1:], *sizes)
    for m in (3, 20):
        x = activations(m, 130)
        assert_gemm_close(ops.gemm(x, *odd), x, weight)
    assert_bits_equal(ops.unpack(*odd), weight)
    assert_bits_equal(ops.gather(torch.tensor([31, 0]), *odd), weight[[31, 0]])


def test_slices_of_a_weight(gpu: StandIn) -> None:
    weight = realistic_weights(64, 200, tile_share=0.5)
    payload, index, escapes, _, _, base = pack(weight)
    x = activations(4, 136)
    part = (payload[1:3, :3], index[1:3, :3], escapes, 32, 136, base)
    whole_tiles = (payload[1:3, :2], index[1:3, :2], escapes, 32, 128, base)
    assert_bits_equal(ops.unpack(*part), weight[16:48, :136])
    for m in (4, 16):
        x = activations(m, 128)
        assert_gemm_close(ops.gemm(x, *whole_tiles), x, weight[16:48, :128])


@pytest.mark.parametrize(("m", "way_out"), ((16, "gemm_fused_m16"), (17, "unpack_a16")))
def test_rows_of_x_out_of_reach(gpu: StandIn, m: int, way_out: str) -> None:
    weight = realistic_weights(16, 64)
    packed, x = pack(weight), activations(m, 64)
    stride = 1 << 27
    far = torch.empty((m - 1) * stride + 64, dtype=torch.bfloat16).as_strided((m, 64), (stride, 1))
    far.copy_(x)
    gpu.calls()
    assert_gemm_close(ops.gemm(far, *packed), x, weight)
    assert gpu.kernels() == [way_out]


def test_tile_rows_out_of_reach(gpu: StandIn) -> None:
    weight = realistic_weights(32, 64)
    payload, index, escapes, *sizes = pack(weight)
    stride = 1 << 32
    far = torch.empty(stride + 1536, dtype=torch.uint8).as_strided((2, 1, 1536), (stride, 1536, 1))
    far.copy_(payload)
    x = activations(1, 64)
    gpu.calls()
    assert_gemm_close(ops.gemm(x, far, index, escapes, *sizes), x, weight)
    assert gpu.kernels() == ["gemm_matrix_t16"]
    with (
        nf12.use_kernel("fused"),
        pytest.raises(RuntimeError, match="kernel fused cannot reach tile rows this far apart"),
    ):
        ops.gemm(x, far, index, escapes, *sizes)


# ---- what a launch is given ---------------------------------------------------------------------


def gemm_params(launch: dict[str, str]) -> dict[str, int | float]:
    """GemmParams (csrc/gemm/params.hpp) from the bytes of a launch's argument."""
    names = [
        *("payload", "index", "escapes", "payload_stride_bytes", "index_stride", "n", "k"),
        *("quads", "base", "x", "bias", "y", "partials", "x_stride", "y_stride"),
        *("m", "splits", "columns_per_split", "scalar_columns", "scale"),
    ]
    values = struct.unpack_from("<3Q4qIi4Q2q4if", bytes.fromhex(launch["argument"]))
    return dict(zip(names, values, strict=True))


def test_a_launch_says_what_it_is_given(gpu: StandIn) -> None:
    packed, bias = pack(realistic_weights(40, 200, base=110), 110), activations(40)
    x, y = offset_rows(activations(3, 200), pad=4, offset=2), torch.empty(3, 50).bfloat16()[:, :40]
    gpu.calls()
    ops.gemm.out(x, *packed, bias, out=y)
    (launch,) = gpu.launches()
    assert launch["kernel"] == "nf12_gemm_fused_m3"
    assert (launch["grid_x"], launch["grid_y"], launch["threads"]) == (2, 1, 256)
    assert launch["dynamic_shared_bytes"] == 0
    assert gemm_params(launch) == {
        "payload": packed[0].data_ptr(), "index": packed[1].data_ptr(),
        "escapes": packed[2].data_ptr(), "payload_stride_bytes": 4 * 1536, "index_stride": 4,
        "n": 40, "k": 200, "quads": packed[2].numel() // 4, "base": 110,
        "x": x.data_ptr(), "bias": bias.data_ptr(), "y": y.data_ptr(), "partials": 0,
        "x_stride": 204, "y_stride": 50, "m": 3,
        "splits": 1, "columns_per_split": 4, "scalar_columns": 3, "scale": 0.25,
    }  # fmt: skip


def test_few_rows_are_split_and_summed(gpu: StandIn) -> None:
    weight, bias = realistic_weights(16, 4096, tile_share=0.5), activations(16)
    packed = pack(weight)
    for m, kernel in ((2, "gemm_fused_m2"), (20, "gemm_matrix_t32")):
        x = activations(m, 4096)
        gpu.calls()
        y = ops.gemm(x, *packed, bias)
        assert_gemm_close(y, x, weight, bias)
        first, last = gpu.launches()
        assert (first["kernel"], last["kernel"]) == (f"nf12_{kernel}", "nf12_gemm_combine")
        params = gemm_params(first)
        assert first["grid_y"] == params["splits"] > 1
        assert params["partials"] not in (0, params["y"]) and params["partials"] % 64 == 0
        assert gemm_params(last) == params
        assert (last["grid_x"], last["grid_y"]) == (1, m)
        assert_bits_equal(ops.gemm(x, *packed, bias), y, "twice the same")


def test_shared_memory_is_what_the_code_object_asks_for(gpu: StandIn) -> None:
    if "gfx1201" not in _C.build_info()["gpu_targets"]:
        pytest.skip("this build holds no code object for gfx1201")
    packed = pack(realistic_weights(32, 128))
    gpu.calls()
    for m in (1, 2, 8, 15, 16):
        ops.gemm(activations(m, 128), *packed)
    sizes = [launch["shared_bytes"] for launch in gpu.launches()]
    assert sizes[0] == 32 * 1024, "the brake on occupancy at one token"
    assert sizes[1:4] == [8 * 32 * 4 * m for m in (2, 8, 15)], "a plane of partial sums"
    assert sizes[4] > 2 * 16 * 64 * 2, "two stages of x"


# ---- unpack, gather, pack, check ----------------------------------------------------------------


@pytest.mark.parametrize("k", (1, 2, 63, 64, 66, 200))
@pytest.mark.parametrize("lead", ((), (3,)))
def test_unpack(gpu: StandIn, lead: tuple[int, ...], k: int) -> None:
    weight = special_weights(*lead, 33, k, share=0.1)
    assert_bits_equal(ops.unpack(*pack(weight)), weight)


def test_unpack_of_no_experts(gpu: StandIn) -> None:
    payload, index, escapes, *sizes = pack(realistic_weights(2, 16, 64))
    ops.unpack(payload, index, escapes, *sizes)
    gpu.calls()
    assert ops.unpack(payload[:0], index[:0], escapes, *sizes).shape == (0, 16, 64)
    assert gpu.calls() == []


@pytest.mark.parametrize("k", (64, 66, 67))
@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
def test_gather(gpu: StandIn, dtype: torch.dtype, k: int) -> None:
    weight = special_weights(50, k, share=0.1)
    packed = pack(weight)
    ids = torch.randint(0, 50, (3, 8), generator=generator(1), dtype=dtype)
    assert_bits_equal(ops.gather(ids, *packed), weight[ids.long()])
    assert_bits_equal(ops.gather(ids[:, ::2], *packed), weight[ids[:, ::2].long()])
    assert ops.gather(ids[:0], *packed).shape == (0, 8, k)


def test_gather_gives_nan_outside(gpu: StandIn) -> None:
    """A GPU cannot raise; it must not read there either, which the model would report."""
    packed = pack(realistic_weights(50, 64))
    outside = torch.tensor([-1, 50, 1 << 40, -(1 << 40)])
    assert bool((bits(ops.gather(outside, *packed)) == 0x7FFF).all())


@pytest.mark.parametrize("lead", ((), (3,)))
def test_pack_gives_the_bytes_of_the_cpu(gpus: StandIn, lead: tuple[int, ...]) -> None:
    weight = special_weights(*lead, 33, 130, share=0.05)
    wanted = ops.pack(weight)
    with gpus.on(0):
        packed = ops.pack(weight)
    for got, expected in zip(packed, wanted, strict=True):
        assert torch.equal(got, expected)


def test_check_finds_what_the_cpu_finds(gpus: StandIn) -> None:
    payload, index, escapes, *sizes = pack(special_weights(3, 33, 130))
    with gpus.on(0):
        ops.check(payload, index, escapes, *sizes, 1)
    index[1, 2, 1] = 65
    texts = []
    for device in (-1, 0):
        with gpus.on(device), pytest.raises(RuntimeError) as error:
            ops.check(payload, index, escapes, *sizes, 1)
        texts.append(str(error.value).splitlines()[0])
    assert texts[0] == texts[1]
    assert texts[0].endswith("index: count must be 0..64 or 255: 0x41, expert 1, tile (2, 1)")


# ---- devices and their code ---------------------------------------------------------------------


@pytest.mark.parametrize("arch", ("gfx1200", "gfx1201", "gfx1201:sramecc-:xnack-"))
def test_modules_are_those_of_the_exact_arch(gpus: StandIn, arch: str) -> None:
    driver = StandIn((arch, 32))
    with driver.on(0):
        ops.unpack(*pack(realistic_weights(16, 64)))
    loads = [call for call in driver.calls() if call["call"] == "hipModuleLoadData"]
    assert loads and {load["arch"] for load in loads} == {arch.partition(":")[0]}
    held = arch.partition(":")[0] in _C.build_info()["gpu_targets"]
    assert {load["is_text"] for load in loads} == {int(not held)}, "the shipped code, if there is"


@pytest.mark.parametrize("arch", ("gfx1100", "gfx90a", "gfx1250", "gfx12", "gfx120", "gfx12010"))
def test_an_unlisted_gpu_is_refused(gpus: StandIn, arch: str) -> None:
    weight = realistic_weights(16, 64)
    packed, x = pack(weight), activations(1, 64)
    driver = StandIn((arch, 48))
    with driver.on(0):
        for op, call in (
            ("gemm", lambda: ops.gemm(x, *packed)),
            ("unpack", lambda: ops.unpack(*packed)),
            ("gather", lambda: ops.gather(torch.tensor([0]), *packed)),
            ("pack", lambda: ops.pack(weight)),
            ("check", lambda: ops.check(*packed, 1)),
        ):
            with pytest.raises(RuntimeError) as error:
                call()
            sentence = str(error.value).splitlines()[0]
            assert sentence == f"nf12::{op}: {arch} has no kernels here, use backend torch"
    assert "hipModuleLoadData" not in {call["call"] for call in driver.calls()}
    assert _C.gpu_problem(0) == f"{arch} has no kernels here, use backend torch"


def test_devices_have_modules_of_their_own(gpus: StandIn) -> None:
    weight = realistic_weights(32, 64)
    packed, x = pack(weight), activations(2, 64)
    for device in (0, 1, 0, 1):
        with gpus.on(device):
            assert_gemm_close(ops.gemm(x, *packed), x, weight)
    calls = gpus.calls()
    loads = [(c["arch"], c["device"]) for c in calls if c["call"] == "hipModuleLoadData"]
    assert set(loads) == {("gfx1201", 0), ("gfx1200", 1)}
    assert len(loads) == 2 * 7, "each of seven modules once a device"
    launches = [c["device"] for c in calls if c["call"] == "hipModuleLaunchKernel"]
    assert launches == [0, 1, 0, 1]


def test_the_threads_device_is_left_as_it_was(gpus: StandIn) -> None:
    """A null stream means the current device's: it must be ours for the launch alone."""
    packed, x = pack(realistic_weights(32, 64)), activations(2, 64)
    with gpus.on(1):
        ops.gemm(x, *packed)
        gpus.calls()
        ops.gemm(x, *packed)
    names = [(call["call"], call.get("device")) for call in gpus.calls()]
    assert names == [
        ("hipGetDevice", None), ("hipSetDevice", 1), ("hipModuleLaunchKernel", 1),
        ("hipSetDevice", 0),
    ]  # fmt: skip


def test_work_goes_to_torchs_stream(gpus: StandIn) -> None:
    weight = realistic_weights(16, 4096)
    packed, x = pack(weight), activations(2, 4096)
    for device in (0, 1):
        stream = gpus.stream(device)
        with gpus.on(device, stream):
            ops.gemm(x, *packed)
            ops.gather(torch.tensor([3]), *packed)
            ops.check(*packed, 1)
            ops.pack(weight)
            with nf12.use_kernel("buffered"):
                ops.gemm(x, *packed)
        calls = [call for call in gpus.calls() if "stream" in call]
        assert {call["stream"] for call in calls} == {stream}
        assert {call["call"] for call in calls} == {
            "hipModuleLaunchKernel", "hipMemsetD32Async", "hipMemcpyDtoHAsync",
            "hipMemcpyHtoDAsync", "hipStreamSynchronize",
        }  # fmt: skip


def test_a_fresh_thread(gpus: StandIn) -> None:
    weight = realistic_weights(32, 64)
    packed, x, results = pack(weight), activations(2, 64), []

    def body() -> None:
        results.append(ops.gemm(x, *packed))

    with gpus.on(1):
        for _ in range(2):  # one that finds nothing, one that finds the device of the other
            thread = threading.Thread(target=body)
            thread.start()
            thread.join()
    assert len(results) == 2
    for y in results:
        assert_gemm_close(y, x, weight)


def test_threads_share_the_first_call(gpus: StandIn) -> None:
    packed, x, failures = pack(realistic_weights(32, 64)), activations(2, 64), []
    barrier = threading.Barrier(4)

    def body() -> None:
        barrier.wait()
        try:
            ops.gemm(x, *packed)
        except RuntimeError as error:
            failures.append(error)

    with gpus.on(0):
        threads = [threading.Thread(target=body) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert sum(call["call"] == "hipModuleLoadData" for call in gpus.calls()) == 7


def test_nothing_but_the_launch_after_the_first_call(gpu: StandIn) -> None:
    packed, x = pack(realistic_weights(32, 64)), activations(2, 64)
    ops.gemm(x, *packed)
    gpu.calls()
    ops.gemm(x, *packed)
    assert [call["call"] for call in gpu.calls()] == ["hipGetDevice", "hipModuleLaunchKernel"]


def test_the_first_call_may_be_captured(gpus: StandIn) -> None:
    packed, x = pack(realistic_weights(32, 64)), activations(2, 64)
    gpus.capture(True)
    with gpus.on(0):
        ops.gemm(x, *packed)
    modes = [call["mode"] for call in gpus.calls() if call["call"].startswith("hipThread")]
    assert modes[0] == 2 and modes[-1] == 0, "relaxed for the modules alone"
    assert "hipStreamSynchronize" not in {call["call"] for call in gpus.calls()}


# ---- failures -----------------------------------------------------------------------------------


# How a scope ends, which cannot fail: the error stays with HIP, for torch to find.
GO_BACK = {"call": "hipSetDevice", "device": 0}
END_RELAXED = {"call": "hipThreadExchangeStreamCaptureMode", "mode": 0}


@pytest.mark.parametrize("op", ("gemm", "pack", "check"))
def test_each_driver_call_may_fail(gpus: StandIn, op: str) -> None:
    """Every one of a first call, in turn: with its text, nothing half done, and a next call that
    works. HIP keeps its last error for whoever asks, and torch would take it for its own."""
    weight = special_weights(16, 2048, share=0.1)
    packed, x = pack(weight), activations(2, 2048)

    def call() -> None:
        if op == "gemm":
            ops.gemm(x, *packed)
        elif op == "pack":
            ops.pack(weight)
        else:
            ops.check(*packed, 1)

    with gpus.on(1):
        call()
    calls = gpus.calls()
    skips: dict[str, int] = {}
    for i, entry in enumerate(calls):
        name = entry["call"]
        skip = skips.setdefault(name, 0)
        skips[name] += 1
        if entry in (GO_BACK, END_RELAXED):
            continue
        gpus.forget_devices()
        text = f"the driver's words for call {i}"
        gpus.fail(name, text, skip=skip)
        with gpus.on(1), pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).splitlines()[0] == f"nf12::{op}: {name}: {text}"
        assert gpus.last_error() == 0
        with gpus.on(1):
            call()
    assert len(skips) >= 8


def test_a_device_that_is_not_there(gpus: StandIn) -> None:
    packed, x = pack(realistic_weights(16, 64)), activations(1, 64)
    for device, text in (
        (2, "hipGetDevicePropertiesR0600: invalid device ordinal"),
        (64, "device number 64, expected 0 .. 63"),
    ):
        with gpus.on(device), pytest.raises(RuntimeError, match=f"nf12::gemm: {text}"):
            ops.gemm(x, *packed)


# ---- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k", "kernel", "tokens", "splits"),
    (
        (1, 4096, 4096, "fused", 1, 1),
        (15, 4096, 4096, "fused", 15, 1),
        (16, 4096, 4096, "matrix", 16, 4),
        (17, 4096, 4096, "matrix", 32, 4),
        (64, 8192, 2048, "matrix", 64, 2),
        (65, 8192, 2048, "matrix", 128, 2),
        (1023, 4096, 4096, "matrix", 128, 1),
        (1024, 4096, 4096, "buffered", 0, 0),
        (4096, 4864, 896, "buffered", 0, 0),
        (1, 512, 4096, "fused", 1, 4),
        (8, 1024, 65536, "fused", 8, 4),
        (0, 4096, 4096, "fused", 1, 1),
    ),
)
def test_select_on_rdna4(
    gpus: StandIn, m: int, n: int, k: int, kernel: str, tokens: int, splits: int
) -> None:
    choice = {"kernel": kernel, "tokens": tokens, "splits": splits, "tuned": False}
    assert _C.select_gpu(m, n, k, 0) == choice
    assert _C.select(m, n, k, 0) == kernel


def test_select_fills_the_gpu_it_is_asked_about(gpus: StandIn) -> None:
    assert _C.select_gpu(16, 4096, 4096, 0)["splits"] == 4
    assert _C.select_gpu(16, 4096, 4096, 1)["splits"] == 2, "half as many compute units"


def test_names_of_kernels(gpu: StandIn) -> None:
    assert _C.gpu_kernels() == ["fused", "stream", "cluster", "wide", "matrix", "buffered"]
    packed, x = pack(realistic_weights(32, 64)), activations(16, 64)
    gpu.calls()
    for name in ("fused", "matrix", "buffered"):
        with nf12.use_kernel(name):
            assert _C.kernel_override() == name
            ops.gemm(x, *packed)
    assert _C.kernel_override() is None
    assert gpu.kernels() == ["gemm_fused_m16", "gemm_matrix_t16", "unpack_a16"]
    with nf12.use_kernel("stream"), pytest.raises(RuntimeError, match="stream is not built for"):
        ops.gemm(x, *packed)


def test_dependent_launch_can_be_turned_off(gpu: StandIn) -> None:
    """For the process. The kernels of this driver do not know it, and run as ever."""
    packed, x = pack(realistic_weights(32, 64)), activations(4, 64)
    assert _C.dependent_launch(), "so it is at first"
    wanted = ops.gemm(x, *packed)
    try:
        _C.set_dependent_launch(False)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(_C.dependent_launch()))
        thread.start()
        thread.join()
        assert seen == [False] and not _C.dependent_launch()
        assert_bits_equal(ops.gemm(x, *packed), wanted)
    finally:
        _C.set_dependent_launch(True)
    assert _C.dependent_launch()


def test_a_name_of_the_other_kind_of_device_has_no_effect(gpus: StandIn) -> None:
    packed, x = pack(realistic_weights(32, 64)), activations(16, 64)
    with nf12.use_kernel("fused"):
        wanted = ops.gemm(x, *packed)
    assert_bits_equal(wanted, ops.gemm(x, *packed))
    with gpus.on(0), nf12.use_kernel("portable"):
        gpus.calls()
        ops.gemm(x, *packed)
        assert gpus.kernels() == ["gemm_matrix_t16"]


def test_a_name_that_cannot_take_the_problem_is_refused(gpu: StandIn) -> None:
    packed, x = pack(realistic_weights(32, 64)), activations(17, 64)
    text = "nf12::gemm: kernel fused takes at most 16 tokens: gfx1201, m 17, n 32, k 64"
    with nf12.use_kernel("fused"), pytest.raises(RuntimeError, match=text):
        ops.gemm(x, *packed)


def test_the_environment_names_a_kernel() -> None:
    code = (
        "import gpu_standin, torch, nf12\n"
        "from reference import activations, realistic_weights\n"
        "driver = gpu_standin.StandIn(('gfx1201', 32))\n"
        "packed = nf12.packing.pack_spec(realistic_weights(32, 64), -1)\n"
        "with driver.on(0):\n"
        "    torch.ops.nf12.gemm(activations(2, 64), *packed[:3], *packed[3][1:].tolist())\n"
        "print(*driver.kernels())\n"
    )
    for name, wanted in (("matrix", "gemm_matrix_t16"), ("portable", "gemm_fused_m2")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"NF12_KERNEL": name, "NF12_STANDIN": str(library())},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [wanted]


# ---- the buffered path --------------------------------------------------------------------------


@pytest.mark.parametrize("with_bias", (False, True))
def test_buffered_slices(gpus: StandIn, with_bias: bool) -> None:
    """Five tile rows through room for two; the last one is not whole."""
    k = 136 if with_bias else 130
    weight = realistic_weights(72, k, tile_share=0.5)
    bias = activations(72, seed=2) if with_bias else None
    packed, x = pack(weight), activations(5, k)
    with gpus.on(0, slice_bytes=2 * 16 * k * 2), nf12.use_kernel("buffered"):
        gpus.calls()
        y = multiply(x, packed, bias)
    assert_gemm_close(y, x, weight, bias)
    assert gpus.kernels() == ["unpack_a16" if with_bias else "unpack_a4"] * 3


def test_buffered_refuses_a_bias_that_torch_would_add_to_a_rounded_product(gpu: StandIn) -> None:
    packed, x = pack(realistic_weights(37, 64)), activations(5, 64)
    with nf12.use_kernel("buffered"):
        ops.gemm(x, *packed)
        with pytest.raises(RuntimeError, match="kernel buffered rounds twice with a bias"):
            ops.gemm(x, *packed, activations(37))
    weight, many = realistic_weights(37, 64), activations(1024, 64)
    gpu.calls()
    assert_gemm_close(ops.gemm(many, *pack(weight), activations(37)), many, weight, activations(37))
    assert gpu.kernels() == ["gemm_matrix_t128"]


def test_buffered_takes_no_part_in_autograd(gpu: StandIn) -> None:
    weight = realistic_weights(32, 64)
    packed = pack(weight)
    x = activations(20, 64).requires_grad_()
    with nf12.use_kernel("buffered"):
        y = ops.gemm(x, *packed)
        assert_gemm_close(y.detach(), x.detach(), weight)
        y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


def test_many_tokens_are_buffered(gpu: StandIn) -> None:
    weight = realistic_weights(16, 64)
    packed, x = pack(weight), activations(1024, 64)
    gpu.calls()
    assert_gemm_close(ops.gemm(x, *packed), x, weight)
    assert gpu.kernels() == ["unpack_a16"]
