"""pack and check on GPUs, through the stand-in driver: the bytes and the words of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from gpu_standin import StandIn
from reference import (
    all_patterns,
    assert_bits_equal,
    from_bits,
    generator,
    offset_rows,
    realistic_weights,
    special_weights,
)
from torch import Tensor

import nf12
from nf12 import _C, functional  # type: ignore[attr-defined]

ops = torch.ops.nf12
Packed = tuple[Tensor, ...]


@pytest.fixture
def gpu() -> Iterator[StandIn]:
    yield StandIn(("gfx1201", 32))
    _C.pretend_gpu("", -1)


def pack_on(gpu: StandIn, weight: Tensor, base: int = -1) -> Packed:
    """The GPU's answer, which must be the CPU's."""
    wanted = ops.pack(weight, base)
    before = weight.clone()
    with gpu.on(0):
        packed: Packed = ops.pack(weight, base)
    for name, got, expected in zip(
        ("payload", "index", "escapes", "meta"), packed, wanted, strict=True
    ):
        assert got.dtype == expected.dtype and got.shape == expected.shape, name
        assert torch.equal(got, expected), name
    assert_bits_equal(weight, before, "the weight itself")
    return packed


@pytest.mark.parametrize("k", (1, 8, 63, 64, 65, 130, 264))
@pytest.mark.parametrize("lead", [(1,), (16,), (17,), (40,), (1, 16), (3, 33)], ids=str)
def test_bytes_of_the_cpu(gpu: StandIn, lead: tuple[int, ...], k: int) -> None:
    rows = realistic_weights(torch.Size(lead).numel(), k, tile_share=0.7, seed=k)
    pack_on(gpu, rows.reshape(*lead, k))


def test_every_pattern_alone_and_among_ordinary_weights(gpu: StandIn) -> None:
    pack_on(gpu, all_patterns().reshape(256, 256))
    pack_on(gpu, special_weights(130, 260))


def test_any_strides(gpu: StandIn) -> None:
    weight = realistic_weights(40, 192, tile_share=0.7)
    stack = realistic_weights(120, 192, tile_share=0.7).reshape(3, 40, 192)
    for strided in (
        offset_rows(weight),
        weight[:, 1:],
        weight[:, 8:136],
        weight.t(),
        weight[:, ::2],
        weight[::3],
        weight[:1].expand(40, 192),
        weight[:, :1].expand(40, 192),
        stack[::2],
        stack.transpose(0, 1),
        stack[:1].expand(4, 40, 192),
    ):
        pack_on(gpu, strided)


def test_rows_of_sixteen_bytes_have_kernels_of_their_own(gpu: StandIn) -> None:
    weight = realistic_weights(32, 136, tile_share=0.5)
    for view, suffix in ((weight[:, 8:], "a16"), (weight[:, 1:], "a2"), (weight[:, :129], "a16")):
        gpu.calls()
        pack_on(gpu, view)
        assert set(gpu.kernels()) == {f"pack_{name}_{suffix}" for name in KERNELS}


KERNELS = ("survey", "count", "encode")


@pytest.mark.parametrize("base", (96, 111, 112, 113, 128))
def test_a_base_that_is_asked_for(gpu: StandIn, base: int) -> None:
    weight = realistic_weights(32, 128, tile_share=0.5)
    weight[0, :3] = torch.tensor([0.0, -0.0, float("inf")])
    *_, meta = pack_on(gpu, weight, base)
    assert meta.tolist() == [1, 32, 128, base]


def test_a_base_that_would_lose_bits_is_refused(gpu: StandIn) -> None:
    weight = realistic_weights(32, 128)
    weight[5, 7] = 3e38
    with gpu.on(0), pytest.raises(RuntimeError, match=r"^nf12::pack: base 96 would lose bits"):
        ops.pack(weight, 96)
    pack_on(gpu, weight)


def test_equal_raw_tiles_share_a_table(gpu: StandIn) -> None:
    weight = realistic_weights(48, 320)
    for place, value in enumerate((0.0, -0.0, 0.0, 2.0**-40, 0.0, -0.0)):
        r, c = divmod(place, 3)
        weight[16 * r : 16 * r + 16, 64 * c : 64 * c + 64] = value
    weight[3, 5] = 1.0  # one tile differs from its likes in one weight
    _, index, escapes, _ = pack_on(gpu, weight)
    raw = index[(index & 0xFF) == 255]
    assert len(raw) == 6 and len(raw.unique()) == 4
    assert "pack_compare" in gpu.kernels()
    assert escapes.numel() >= 4 * 512


def test_without_raw_tiles_nothing_is_compared(gpu: StandIn) -> None:
    pack_on(gpu, realistic_weights(48, 320, tile_share=0.5))
    assert not {"pack_compare", "pack_raw"} & set(gpu.kernels())


def test_the_copied_index_is_waited_for(gpu: StandIn) -> None:
    """The host's words are gone when the call returns: each copy to the device is before a wait."""
    pack_on(gpu, special_weights(130, 260))
    calls = [call["call"] for call in gpu.calls()]
    last_copy = len(calls) - calls[::-1].index("hipMemcpyHtoDAsync")
    assert "hipStreamSynchronize" in calls[last_copy:]


# ---- check ---------------------------------------------------------------------------------------


def verdict(packed: Packed, sizes: list[int]) -> str:
    try:
        ops.check(*packed, *sizes, 1)
    except RuntimeError as error:
        return str(error)
    return "valid"


def expect_same_verdict(gpu: StandIn, packed: Packed, sizes: list[int]) -> str:
    wanted = verdict(packed, sizes)
    with gpu.on(0):
        assert verdict(packed, sizes) == wanted
    return wanted


def test_check_of_random_faults(gpu: StandIn) -> None:
    random = generator(5)

    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=random))

    verdicts = []
    for _ in range(60):
        shape = (*((1 + below(3),) if below(2) else ()), 1 + below(40), 1 + below(200))
        weight = realistic_weights(torch.Size(shape[:-1]).numel(), shape[-1], tile_share=0.7)
        *packed, meta = ops.pack(weight.reshape(shape))
        for _ in range(below(3)):
            tensor = packed[below(3)].view(-1)
            if tensor.numel():
                at, bit = below(tensor.numel()), below(8 * tensor.element_size() - 1)
                tensor[at] ^= 1 << bit
        verdicts.append(expect_same_verdict(gpu, tuple(packed), meta.tolist()[1:]))
    refused = [v for v in verdicts if v != "valid"]
    assert 15 < len(refused) < 55, len(refused)
    assert len({v.split(":")[4] for v in refused}) > 3, "several rules"


def test_check_of_hostile_words(gpu: StandIn) -> None:
    random = generator(6)
    payload, index, escapes, meta = ops.pack(realistic_weights(40, 200, tile_share=1.0))
    for _ in range(20):
        words = torch.randint(-(2**31), 2**31, index.shape, generator=random).to(torch.int32)
        noise = torch.randint(-(2**31), 2**31, escapes.shape, generator=random).to(torch.int32)
        assert expect_same_verdict(gpu, (payload, words, noise), meta.tolist()[1:]) != "valid"


def test_check_names_the_expert(gpu: StandIn) -> None:
    payload, index, escapes, meta = ops.pack(realistic_weights(96, 64).reshape(3, 32, 64))
    payload[2, 1, 0, 0] ^= 1
    index[2, 1, 0] = 0x80
    text = expect_same_verdict(gpu, (payload, index, escapes), meta.tolist()[1:])
    assert "expert 2, tile (1, 0)" in text


def test_check_of_slices_and_no_experts(gpu: StandIn) -> None:
    payload, index, escapes, meta = ops.pack(realistic_weights(96, 200).reshape(3, 32, 200))
    sizes = meta.tolist()[1:]
    for parts in (slice(0, 0), slice(1, 2), slice(0, 3, 2)):
        packed = (payload[parts], index[parts], escapes)
        assert expect_same_verdict(gpu, packed, sizes) == "valid"
    columns = (payload[:, :, 1:], index[:, :, 1:], escapes)
    assert expect_same_verdict(gpu, columns, [32, 200 - 64, sizes[2]]) == "valid"


def test_check_copies_one_tile_only(gpu: StandIn) -> None:
    payload, index, escapes, meta = ops.pack(from_bits(torch.zeros(64, 256, dtype=torch.int16)))
    payload[1, 2, 7] = 1
    gpu.calls()
    expect_same_verdict(gpu, (payload, index, escapes), meta.tolist()[1:])
    copied = [c["bytes"] for c in gpu.calls() if c["call"] == "hipMemcpyDtoHAsync"]
    assert copied == [4, 1536, 4, 2048]


# ---- failures of the driver ----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pack", "check", "unpack", "gather", "gemm"])
def test_a_failing_driver_is_no_ones_argument(
    gpu: StandIn, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python callers get a RuntimeError of the driver's text, or the error for lack of memory."""
    monkeypatch.setattr(functional, "resolve_backend", lambda name, device: nf12.Backend.HIP)
    weight = realistic_weights(32, 128)
    packed = nf12.pack(weight)
    assert isinstance(packed, nf12.PackedWeight)
    tensors = (packed.payload, packed.index, packed.escapes, packed.meta)
    calls: dict[str, Callable[[], object]] = {
        "pack": lambda: nf12.pack(weight),
        "check": lambda: nf12.PackedWeight(*tensors),
        "unpack": packed.unpack,
        "gather": lambda: nf12.gather(torch.tensor([1]), packed),
        "gemm": lambda: nf12.gemm(weight[:1], packed),
    }
    with gpu.on(0):
        calls[call]()
        for text, kind in (
            ("the device was lost", RuntimeError),
            ("out of memory", torch.OutOfMemoryError),
        ):
            gpu.fail("hipModuleLaunchKernel", text)
            with pytest.raises(kind) as caught:
                calls[call]()
            assert str(caught.value) == f"nf12::{call}: hipModuleLaunchKernel: {text}"
            assert type(caught.value) is kind
        calls[call]()
