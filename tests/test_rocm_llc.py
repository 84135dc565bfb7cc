"""Last-level cache of ROCm GPUs: fake KFD trees, no GPU needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nf12
from nf12 import llc
from nf12.llc import KfdGpu, arch_name, kfd_gpus, llc_bytes, visible_gpus

MIB = 1 << 20
Caches = list[tuple[int, int]]  # (level, KiB)
R9700, R9060, R7900 = 120001, 120000, 110000  # gfx_target_version


@pytest.fixture(autouse=True)
def rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROCm build of torch without a GPU to ask, and none of the variables."""
    monkeypatch.setattr(torch.version, "hip", "7.1.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in (
        "NF12_LLC_BYTES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def add_node(tmp_path: Path) -> Callable[..., Path]:
    """Writes one node of a topology, as the kernel driver formats it."""

    def add(number: int, version: int, caches: Caches, *, unique_id: int = 0) -> Path:
        node = tmp_path / str(number)
        (node / "caches").mkdir(parents=True)
        simd_count = 128 if version else 0
        (node / "properties").write_text(
            f"cpu_cores_count {0 if version else 16}\nsimd_count {simd_count}\n"
            f"gfx_target_version {version}\nunique_id {unique_id}\ndrm_render_minor 128\n"
        )
        for i, (level, kib) in enumerate(caches):
            (node / "caches" / str(i)).mkdir()
            (node / "caches" / str(i) / "properties").write_text(
                f"processor_id_low 2147487744\nlevel {level}\nsize {kib}\ncache_line_size 128\n"
                f"type 9\nsibling_map 1,0,0\n"
            )
        return tmp_path

    return add


@pytest.fixture
def three_gpus(add_node: Callable[..., Path]) -> Path:
    """CPU, gfx1201 with 64 MiB, a gap, a second CPU, gfx1200 with 32 MiB, gfx1100 that lists 80."""
    add_node(0, 0, [(1, 32), (3, 131072)])
    add_node(1, R9700, [(1, 32), (1, 32), (2, 8192), (3, 65536)], unique_id=0x1111)
    add_node(4, 0, [(3, 131072)])
    add_node(10, R9060, [(1, 32), (2, 4096), (3, 32768)], unique_id=0xABCDEF0123456789)
    return add_node(11, R7900, [(2, 6144), (3, 81920)], unique_id=0x3333)


def torch_sees(monkeypatch: pytest.MonkeyPatch, *archs: str) -> None:
    class Properties:
        def __init__(self, arch: str) -> None:
            self.gcnArchName = arch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(archs))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(archs))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: Properties(archs[i]))


def test_gpu_nodes_in_numeric_order_without_cpus_and_gaps(three_gpus: Path) -> None:
    assert kfd_gpus(three_gpus) == [
        KfdGpu(1, "gfx1201", "GPU-0000000000001111", 64 * MIB),
        KfdGpu(10, "gfx1200", "GPU-abcdef0123456789", 32 * MIB),
        KfdGpu(11, "gfx1100", "GPU-0000000000003333", 80 * MIB),
    ]


@pytest.mark.parametrize(
    ("device", "mib"), [(0, 64), ("cuda:1", 32), (torch.device("cuda", 2), 80)]
)
def test_index_of_torch_is_the_order_of_the_nodes(
    three_gpus: Path, device: torch.device | str | int, mib: int
) -> None:
    assert llc_bytes(device, kfd_nodes=three_gpus) == mib * MIB


def test_default_device_is_the_current_one(
    three_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert llc_bytes(kfd_nodes=three_gpus) == 64 * MIB
    torch_sees(monkeypatch, "gfx1201", "gfx1200", "gfx1100")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert llc_bytes(kfd_nodes=three_gpus) == 32 * MIB
    assert llc_bytes("cuda", kfd_nodes=three_gpus) == 32 * MIB


@pytest.mark.parametrize(
    ("rocr", "hip", "cuda", "archs"),
    [
        ("2,0", None, None, ["gfx1100", "gfx1201"]),
        (None, "1", None, ["gfx1200"]),
        (None, None, "2,1", ["gfx1100", "gfx1200"]),
        (None, "0", "2", ["gfx1201"]),
        ("2,1", "1,0", None, ["gfx1200", "gfx1100"]),
        ("GPU-ABCDEF0123456789, 0", None, None, ["gfx1200", "gfx1201"]),
        ("1,7,0", None, None, ["gfx1200"]),
        (None, "0,-1,1", None, ["gfx1201"]),
        (None, "", None, []),
        ("0", "1", None, []),
    ],
)
def test_visible_devices(
    three_gpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    rocr: str | None,
    hip: str | None,
    cuda: str | None,
    archs: list[str],
) -> None:
    """ROCR filters first, HIP (or CUDA) counts in what is left, a bad entry ends the list."""
    for name, value in (("ROCR", rocr), ("HIP", hip), ("CUDA", cuda)):
        if value is not None:
            monkeypatch.setenv(f"{name}_VISIBLE_DEVICES", value)
    assert [gpu.arch for gpu in visible_gpus(kfd_gpus(three_gpus))] == archs


def test_variable_is_over_topology_and_table(
    three_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NF12_LLC_BYTES", "12345678")
    assert llc_bytes(0, kfd_nodes=three_gpus) == 12345678
    assert llc_bytes(0, kfd_nodes=three_gpus / "none") == 12345678


@pytest.mark.parametrize("value", ["", "0", "-1", "64MiB", "1e6", "0x100"])
def test_bad_variable_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NF12_LLC_BYTES", value)
    with pytest.raises(ValueError, match=r"NF12_LLC_BYTES is .*positive number of bytes"):
        llc_bytes(0)


@pytest.mark.parametrize(
    ("arch", "mib"), [("gfx1201", 64), ("gfx1200", 32), ("gfx1100", 96), ("gfx1151", 32)]
)
def test_table_where_the_topology_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, mib: int
) -> None:
    torch_sees(monkeypatch, f"{arch}:sramecc+:xnack-")
    assert llc_bytes(0, kfd_nodes=tmp_path / "none") == mib * MIB


def test_table_where_a_node_lists_no_level_3(add_node: Callable[..., Path]) -> None:
    nodes = add_node(1, R9700, [(1, 32), (2, 8192)])
    assert llc_bytes(0, kfd_nodes=nodes) == 64 * MIB


def test_dies_that_list_the_shared_cache_count_it_once(add_node: Callable[..., Path]) -> None:
    nodes = add_node(1, R9700, [(2, 4096), (3, 65536), (3, 65536)])
    assert llc_bytes(0, kfd_nodes=nodes) == 64 * MIB


def test_topology_is_not_believed_about_another_architecture(
    add_node: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch counts its devices otherwise: node 0 of the topology is not device 0."""
    nodes = add_node(1, R7900, [(3, 81920)])
    torch_sees(monkeypatch, "gfx1201")
    assert llc_bytes(0, kfd_nodes=nodes) == 64 * MIB


def test_unknown_architecture_has_no_answer(
    add_node: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = add_node(1, 90010, [(2, 8192)])
    assert llc_bytes(0, kfd_nodes=nodes) is None
    torch_sees(monkeypatch, "gfx12010")  # a name is never matched by its beginning
    assert llc_bytes(0, kfd_nodes=nodes / "none") is None


def test_index_past_the_last_gpu_has_no_answer(three_gpus: Path) -> None:
    assert llc_bytes(3, kfd_nodes=three_gpus) is None


def test_unreadable_and_odd_files(add_node: Callable[..., Path]) -> None:
    nodes = add_node(1, R9700, [(3, 65536)])
    (nodes / "2").mkdir()  # a node that vanished
    (nodes / "generation_id").write_text("3\n")
    (nodes / "1" / "caches" / "1").mkdir()
    (nodes / "1" / "caches" / "2").mkdir()
    (nodes / "1" / "caches" / "2" / "properties").write_text("level three\nsize\n\n9 9 9\n")
    assert [gpu.llc_bytes for gpu in kfd_gpus(nodes)] == [64 * MIB]


def test_none_where_torch_is_not_for_rocm(
    three_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    assert llc_bytes(0, kfd_nodes=three_gpus) is None
    assert nf12.llc_bytes("cuda:0") is None


def test_none_for_a_cpu(three_gpus: Path) -> None:
    assert llc_bytes("cpu", kfd_nodes=three_gpus) is None


@pytest.mark.parametrize(
    ("version", "name"),
    [(120001, "gfx1201"), (110501, "gfx1151"), (90010, "gfx90a"), (90402, "gfx942")],
)
def test_arch_names(version: int, name: str) -> None:
    assert arch_name(version) == name


def test_the_default_tree_is_the_kernel_drivers() -> None:
    assert Path("/sys/class/kfd/kfd/topology/nodes") == llc.KFD_NODES
