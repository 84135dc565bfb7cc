"""`nf12 tune`: what it measures, its cache, and that the library goes by it; see gpu_standin.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_folder
from gpu_standin import StandIn
from reference import activations, assert_bits_equal, assert_gemm_close, realistic_weights
from typer.testing import CliRunner

import nf12
from nf12 import _C, checkpoint, functional, timing, tune, tuned  # type: ignore[attr-defined]
from nf12.cli import app, speed
from nf12.tuned import MOST_TOKENS, Tuned

ops = torch.ops.nf12
CPU, HIP = torch.device("cpu"), nf12.Backend.HIP


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NF12_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NF12_TUNE", raising=False)
    monkeypatch.setattr(tuned, "device_name", lambda device: "AMD Radeon AI PRO R9700")
    monkeypatch.setattr(tuned, "driver_version", lambda device: "6.16.6")
    return tmp_path / "cache"


@pytest.fixture
def gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """GPU 0 of the operators, and of the commands."""
    driver = StandIn(("gfx1201", 32), ("gfx1200", 16))
    monkeypatch.setenv("NF12_LLC_BYTES", str(1 << 12))
    monkeypatch.setattr(speed.validation, "device_of", lambda backend: CPU)
    for module in (nf12, functional):
        monkeypatch.setattr(module, "resolve_backend", lambda name, device: HIP)
    monkeypatch.setattr(functional, "gpu_index", lambda index: 0)
    with driver.on(0):
        yield driver
        for index in (0, 1):
            _C.set_gemm_table(index, [])
    _C.pretend_gpu("", -1)


def packed_weight(n: int, k: int) -> tuple[torch.Tensor, Any]:
    weight = realistic_weights(n, k)
    payload, index, escapes, meta = nf12.packing.pack_spec(weight)
    return weight, (payload, index, escapes, n, k, int(meta[3]))


# ---- the library ---------------------------------------------------------------------------------


def test_the_library_goes_by_the_table(gpu: StandIn) -> None:
    weight, packed = packed_weight(32, 64)
    _C.set_gemm_table(0, [(32, 64, 2, 3, "matrix"), (32, 64, 16, 20, "buffered")])
    gpu.calls()
    for m in (1, 2, 3, 4, 16):
        x = activations(m, 64)
        assert_gemm_close(ops.gemm(x, *packed), x, weight)
    assert gpu.kernels() == [
        "gemm_fused_m1", "gemm_matrix_t16", "gemm_matrix_t16", "gemm_fused_m4", "unpack_a16",
    ]  # fmt: skip
    assert _C.select(2, 32, 64, 0) == "matrix" and _C.select(2, 32, 64, 1) == "fused"
    assert _C.select_gpu(3, 32, 64, 0)["tuned"] and not _C.select_gpu(4, 32, 64, 0)["tuned"]
    assert nf12.select(16, 32, 64, CPU) == nf12.Selection(HIP, "buffered", tuned=True)
    with nf12.use_kernel("fused"):
        ops.gemm(activations(2, 64), *packed)
    assert gpu.kernels() == ["gemm_fused_m2"], "a name is above the table"
    _C.set_gemm_table(0, [])
    assert _C.select(2, 32, 64, 0) == "fused"


def test_a_path_that_does_not_take_the_problem_leaves_it_to_the_rules(gpu: StandIn) -> None:
    weight, packed = packed_weight(20, 64)
    _C.set_gemm_table(0, [(20, 64, 1, 99, "fused"), (20, 128, 1, 99, "stream")])
    x = activations(17, 64)
    gpu.calls()
    assert_gemm_close(ops.gemm(x, *packed), x, weight)
    assert gpu.kernels() == ["gemm_matrix_t32"]
    choice = _C.select_gpu(17, 20, 64, 0)
    assert choice["kernel"] == "matrix" and not choice["tuned"]
    assert _C.select_gpu(1, 20, 128, 0)["kernel"] == "fused", "stream is not for this GPU"


@pytest.mark.parametrize(
    "row",
    [(0, 64, 1, 2, "fused"), (32, 0, 1, 2, "fused"), (32, 64, 0, 2, "fused"),
     (32, 64, 3, 2, "fused"), (32, 64, 1, 2, "avx2"), (32, 64, 1, 2, "whatever")],
)  # fmt: skip
def test_what_is_no_row_is_refused(gpu: StandIn, row: tuple[int, int, int, int, str]) -> None:
    _C.set_gemm_table(0, [(32, 64, 1, 9, "matrix")])
    with pytest.raises(RuntimeError, match="row 1 of the table is no row"):
        _C.set_gemm_table(0, [(32, 64, 1, 1, "fused"), row])
    assert _C.select(2, 32, 64, 0) == "matrix", "the table stays as it was"


def test_a_gpu_that_is_not_there_gets_no_table(gpu: StandIn) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        _C.set_gemm_table(5, [(32, 64, 1, 9, "matrix")])


# ---- measuring -----------------------------------------------------------------------------------


def test_every_kernel_is_measured_where_it_takes_the_tokens(gpu: StandIn) -> None:
    small, large = tune.run(CPU, HIP, [(64, 32)], [20, 1])
    assert (small.m, small.rules, list(small.us)) == (1, "fused", ["fused", "matrix", "buffered"])
    assert (large.m, large.rules, list(large.us)) == (20, "matrix", ["matrix", "buffered"])
    for at in (small, large):
        assert at.kernel in at.us and at.wrong == () and all(us > 0 for us in at.us.values())
        assert at.gain >= 0.99 or at.kernel == at.rules


def test_measuring_goes_by_the_rules_and_ends_with_the_users_table(gpu: StandIn) -> None:
    tuned.write(CPU, [Tuned(32, 64, 1, 1, "matrix")], [])
    tuned.load(0)
    run = tune.run(CPU, HIP, [(64, 32)], [1, 2])
    assert next(run).rules == "fused"
    run.close()
    assert _C.select(1, 32, 64, 0) == "matrix"


def test_a_wrong_kernel_is_never_chosen(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    real = timing.rotate

    def rotate(calls: Any, *rest: Any, **options: Any) -> list[timing.Rotation]:
        first, *others = real(calls, *rest, **options)
        return [timing.Rotation(0.001, first.result + 1, False), *others]

    monkeypatch.setattr(tune, "rotate", rotate)
    (at,) = tune.run(CPU, HIP, [(64, 32)], [1])
    assert at.wrong == ("fused",) and at.kernel in ("matrix", "buffered")


def test_the_choice() -> None:
    us = {"fused": 10.0, "matrix": 8.0, "buffered": 7.95}
    assert tune._choose(us, (), "fused") == "buffered"
    assert tune._choose(us, (), "matrix") == "matrix", "as good as the best"
    assert tune._choose(us, ("buffered",), "fused") == "matrix"
    assert tune._choose(us, tuple(us), "matrix") == "matrix", "all wrong: the rules"


def measured(m: int, kernel: str, k: int = 64, n: int = 32) -> tune.Measured:
    return tune.Measured(k, n, m, {kernel: 1.0, "matrix": 2.0}, (), "matrix", kernel)


def test_rows_reach_from_one_m_to_the_next() -> None:
    points = [measured(m, "fused") for m in (8, 1, 4)]
    points += [measured(16, "matrix"), measured(64, "buffered"), measured(1, "stream", n=48)]
    assert tune.table(points) == [
        Tuned(32, 64, 1, 8, "fused"), Tuned(32, 64, 9, 16, "matrix"),
        Tuned(32, 64, 17, 64, "buffered"), Tuned(48, 64, 1, 1, "stream"),
    ]  # fmt: skip
    assert tune.table([measured(1024, "fused"), measured(4096, "buffered")]) == [
        Tuned(32, 64, 1, 1024, "fused"), Tuned(32, 64, 1025, MOST_TOKENS, "buffered"),
    ]  # fmt: skip
    assert tune.table([measured(8, "fused"), measured(4096, "fused")]) == [
        Tuned(32, 64, 1, MOST_TOKENS, "fused")
    ]


def test_shapes_of_a_checkpoint_packed_or_dense(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source")
    checkpoint.convert(source, tmp_path / "packed")
    shapes = tune.shapes_of_model(source)
    assert shapes and len(set(shapes)) == len(shapes)
    noise = (190, 48)  # would not shrink, as packing it shows
    assert set(tune.shapes_of_model(tmp_path / "packed")) == set(shapes) - {noise}
    with pytest.raises(checkpoint.CheckpointError):
        tune.shapes_of_model(tmp_path / "nothing")


# ---- the cache -----------------------------------------------------------------------------------

ROWS = [Tuned(32, 64, 1, 8, "matrix"), Tuned(32, 64, 9, MOST_TOKENS, "buffered")]


def test_a_table_comes_back(gpu: StandIn, cache: Path) -> None:
    assert tuned.read(CPU) == ([], "not tuned")
    file = tuned.write(CPU, ROWS, [{"m": 1}])
    assert file.parent == cache and list(cache.iterdir()) == [file], "and nothing else stays"
    assert "r9700-6.16.6-0.1.0" in file.name
    assert tuned.read(CPU) == (ROWS, None)
    assert tuned.load(0) is None and _C.select(1, 32, 64, 0) == "matrix"
    assert tuned.state(0) == "2 rows"
    other = Tuned(16, 64, 1, 1, "fused")
    tuned.write(CPU, [other], [])
    tuned.write(CPU, ROWS[:1], [])
    assert tuned.read(CPU) == ([other, ROWS[0]], None), "a shape's rows go together"
    assert tuned.forget(CPU) and not tuned.forget(CPU)
    assert not file.exists() and _C.select(1, 32, 64, 0) == "fused"


def test_a_table_of_another_machine_is_none(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tuned.write(CPU, ROWS, [])
    build = _C.build_info()
    for name, change in (
        ("device_name", lambda device: "another card"),
        ("driver_version", lambda device: "7.0"),
        ("build_info", lambda: build | {"source_hash": "0" * 64}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(tuned, name, change)
            assert tuned.read(CPU) == ([], "not tuned with this driver and build")
            os.link(file, tuned.path(CPU))  # a name alone does not make it right
            assert tuned.read(CPU)[1] == f"{tuned.path(CPU)} is of another GPU, driver or build"
            assert tuned.load(0) is not None and _C.select(1, 32, 64, 0) == "fused"
    assert tuned.read(CPU) == (ROWS, None)


def damaged() -> Iterator[tuple[str, Any]]:
    def document(**row: Any) -> bytes:
        fields = {"n": 32, "k": 64, "m_first": 1, "m_last": 8, "kernel": "matrix"} | row
        rows = [{name: value for name, value in fields.items() if value is not ...}]
        return json.dumps({"version": 1, "key": KEY, "rows": rows}).encode()

    yield "empty", b""
    yield "cut", document()[:-9]
    yield "binary", b"\xff\xfe\x00"
    yield "no_object", b"[1, 2]"
    yield "deep", b"[" * 100_000
    yield "of_a_later_version", document().replace(b'"version": 1', b'"version": 2')
    yield "rows_missing", json.dumps({"version": 1, "key": KEY}).encode()
    yield "rows_no_list", json.dumps({"version": 1, "key": KEY, "rows": 7}).encode()
    yield "row_no_object", json.dumps({"version": 1, "key": KEY, "rows": [7]}).encode()
    yield "field_missing", document(k=...)
    yield "field_too_many", document(splits=3)
    for name, row in (
        ("negative", {"n": -32}), ("zero", {"m_first": 0}), ("huge", {"m_last": 1 << 70}),
        ("backwards", {"m_first": 9}), ("float", {"n": 32.0}), ("bool", {"m_first": True}),
        ("text", {"n": "32"}), ("null", {"k": None}), ("cpu_kernel", {"kernel": "avx2"}),
        ("unknown_kernel", {"kernel": "warp"}), ("kernel_no_text", {"kernel": ["matrix"]}),
    ):  # fmt: skip
        yield name, document(**row)


KEY = {"gpu": "AMD Radeon AI PRO R9700", "driver": "6.16.6", "nf12": nf12.__version__,
       "build": _C.build_info()["source_hash"]}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), list(damaged()), ids=[name for name, _ in damaged()])
def test_a_damaged_table_is_none(gpu: StandIn, cache: Path, name: str, content: bytes) -> None:
    cache.mkdir()
    tuned.path(CPU).write_bytes(content)
    rows, reason = tuned.read(CPU)
    assert rows == [] and reason
    assert tuned.load(0) is not None and _C.select(1, 32, 64, 0) == "fused"
    tuned.write(CPU, ROWS, [])
    assert tuned.read(CPU) == (ROWS, None), "it is replaced"


def test_other_things_in_the_caches_place(
    gpu: StandIn, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    tuned.path(CPU).mkdir()
    assert tuned.load(0) is not None
    monkeypatch.setattr(tuned, "_MOST_BYTES", 10)
    tuned.path(CPU).rmdir()
    tuned.write(CPU, ROWS, [])
    assert str(tuned.read(CPU)[1]).endswith("is too large")
    monkeypatch.setenv("NF12_CACHE", os.devnull)
    assert tuned.load(0) is not None, "the folder is no folder"
    with pytest.raises(OSError):
        tuned.write(CPU, ROWS, [])


def test_the_variable_ignores_every_table(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.write(CPU, ROWS, [])
    monkeypatch.setenv("NF12_TUNE", "0")
    assert tuned.read(CPU) == ([], "NF12_TUNE=0") and tuned.load(0) == "NF12_TUNE=0"
    assert _C.select(1, 32, 64, 0) == "fused" and tuned.state(0) == "NF12_TUNE=0"


def test_the_users_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NF12_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned.folder() == tmp_path / "nf12"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned.folder() == tmp_path / ".cache" / "nf12"


def test_the_first_backend_of_a_gpu_loads_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(tuned, "load", loaded.append)
    monkeypatch.setattr(nf12.backend, "_decide", lambda name, kind, index: nf12.Backend(name))
    caches = (nf12.backend._resolve_once, nf12.backend._load_table)
    for cached in caches:
        cached.cache_clear()
    for name, index in (("cuda", 0), ("cuda", 0), ("hip", 0), ("cuda", 1), ("torch", 2)):
        nf12.backend._resolve_once(name, "cuda", index)
    nf12.backend._resolve_once("cpu", "cpu", None)
    for cached in caches:
        cached.cache_clear()
    assert loaded == [0, 1]


# ---- the command ---------------------------------------------------------------------------------


def tune_command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def test_the_command(gpu: StandIn, cache: Path) -> None:
    done = tune_command("--shapes", "64x32", "--m", "1,17")
    assert done.exit_code == 0, done.stdout + done.stderr
    (file,) = cache.iterdir()
    heads, *lines, last = done.stdout.splitlines()
    assert heads.split()[-4:] == ["the", "rules", "used", "gain"]
    assert [line.split()[:4] for line in lines] == [["64", "x", "32", m] for m in ("1", "17")]
    assert last.startswith(f"{file}: ") and last.endswith("of 2 differ from the rules")
    used = {int(line.split()[3]): line.split()[-2] for line in lines}
    for m, kernel in used.items():
        choice = _C.select_gpu(m, 32, 64, 0)
        assert choice["kernel"] == kernel and choice["tuned"], "this process has it already"
    assert not _C.select_gpu(18, 32, 64, 0)["tuned"]
    done = tune_command("--forget")
    assert done.stdout == "forgotten\n" and not file.exists()
    assert tune_command("--forget").stdout == "there was no table\n"


def test_the_command_on_a_model(gpu: StandIn, tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model")
    done = tune_command("--model", model, "--m", "1", "--json")
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    shapes = [(at["k"], at["n"]) for at in report["measured"]]
    assert shapes == tune.shapes_of_model(model)
    assert Path(report["path"]).exists() and report["key"] == KEY


def test_a_wrong_kernel_is_told_and_1(gpu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune.bench, "count_violations", lambda x, w, results: 1)
    done = tune_command("--shapes", "64x32", "--m", "1")
    assert done.exit_code == 1
    assert "!: values outside the bounds, never used" in done.stdout


def test_a_cpu_has_nothing_to_tune(cache: Path) -> None:
    done = tune_command("--backend", "cpu")
    assert done.exit_code == 2
    assert done.stderr.startswith("nf12 tune: there is nothing to tune for backend cpu")
    assert not cache.exists()


def test_equal_results_with_and_without_a_table(gpu: StandIn) -> None:
    weight, packed = packed_weight(48, 192)
    x = activations(12, 192)
    wanted = ops.gemm(x, *packed)
    tuned.give(CPU, [Tuned(48, 192, 1, 12, "fused")])
    assert_bits_equal(ops.gemm(x, *packed), wanted)
    tuned.give(CPU, [Tuned(48, 192, 1, 12, "matrix")])
    assert_gemm_close(ops.gemm(x, *packed), x, weight)
