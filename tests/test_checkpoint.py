"""Checkpoints: converted, verified and unpacked bit for bit; interrupted anywhere; bad requests."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoints import CONFIG, PACKED, digests, every_kind, write_folder, write_json
from forks import forks
from reference import assert_bits_equal, realistic_weights, special_weights
from safetensors import safe_open
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file
from torch import Tensor

import nf12
from nf12 import checkpoint
from nf12.checkpoint import CheckpointError
from nf12.packed_weight import SUFFIXES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "source")


def partial(target: Path) -> Path:
    return target.with_name(target.name + ".nf12-partial")


def assert_same_tensors(path: Path, expected: dict[str, Tensor]) -> None:
    actual = load_safetensors(path)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert actual[name].shape == tensor.shape, name
        assert actual[name].view(-1).view(torch.uint8).equal(tensor.view(-1).view(torch.uint8))


# ---- there and back ------------------------------------------------------------------------------


def test_packed_tensors_are_the_packers(source: Path, tmp_path: Path) -> None:
    report = checkpoint.convert(source, tmp_path / "packed")
    assert tuple(sorted(t.name for t in report.packed)) == tuple(sorted(PACKED))
    tensors = every_kind()
    stored = load_safetensors(tmp_path / "packed" / "model.safetensors")
    for name in PACKED:
        weight = nf12.pack(tensors[name])
        assert isinstance(weight, nf12.PackedWeight)
        for part, tensor in weight.tensors(name).items():
            assert stored.pop(part).equal(tensor), part
    assert stored.keys() == tensors.keys() - set(PACKED)


@pytest.mark.parametrize("shards", [1, 3])
def test_unpack_gives_the_very_files_back(shards: int, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", shards=shards)
    checkpoint.convert(source, tmp_path / "packed")
    assert checkpoint.verify(source, tmp_path / "packed").identical
    report = checkpoint.unpack(tmp_path / "packed", tmp_path / "back")
    assert report.unpacked == len(PACKED)
    assert digests(tmp_path / "back") == digests(source)


def test_the_source_is_only_read(source: Path, tmp_path: Path) -> None:
    before = digests(source), {p: p.stat().st_mtime_ns for p in source.rglob("*")}
    checkpoint.convert(source, tmp_path / "packed")
    checkpoint.verify(source, tmp_path / "packed")
    assert before == (digests(source), {p: p.stat().st_mtime_ns for p in source.rglob("*")})


def test_report_adds_up(source: Path, tmp_path: Path) -> None:
    report = checkpoint.convert(source, tmp_path / "packed")
    tensors = every_kind()
    assert report.source_bytes == sum(t.nbytes for t in tensors.values())
    stored = load_safetensors(tmp_path / "packed" / "model.safetensors")
    assert report.bytes == sum(t.nbytes for t in stored.values())
    packed_bytes = sum(tensors[name].nbytes for name in PACKED)
    assert report.packed_share == packed_bytes / report.source_bytes
    assert {t.name for t in report.would_not_shrink} == {
        "layers.0.narrow.weight",
        "layers.0.noise.weight",
        "empty",
    }
    assert sorted(report.copied) == ["config.json", "extra/code.py", "tokenizer.json"]
    reasons = {t.name: t.reason for t in report.tensors}
    assert reasons["layers.0.q.bias"] == "rank 1"
    assert reasons["layers.0.conv.weight"] == "rank 4"
    assert reasons["layers.0.wide.weight"] == "F32, would need the cast to BF16"
    assert reasons["fp8.weight"] == "dtype F8_E4M3"
    json.dumps(report.to_json())


def test_config_says_nf12_and_the_rest_is_kept(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed")
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "nf12", "bits": 12, "version": 1}
    assert config == CONFIG
    with safe_open(tmp_path / "packed" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "kept"}


def test_without_config_and_as_one_file(tmp_path: Path) -> None:
    tensors = {"w": realistic_weights(64, 64), "b": torch.ones(3)}
    save_file(tensors, tmp_path / "a.safetensors")
    checkpoint.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    checkpoint.convert(tmp_path / "a.safetensors", tmp_path / "folder")
    expected = digests(tmp_path)["b.safetensors"]
    assert digests(tmp_path / "folder") == {"a.safetensors": expected}
    assert checkpoint.verify(tmp_path / "a.safetensors", tmp_path / "b.safetensors").identical
    checkpoint.unpack(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    assert digests(tmp_path)["c.safetensors"] == digests(tmp_path)["a.safetensors"]
    assert not list(tmp_path.glob("*.nf12-partial"))


def test_data_are_aligned_to_their_elements(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed")
    header = next(iter(checkpoint.open_checkpoint(tmp_path / "packed").shards.values())).header
    assert header.data_start % 64 == 0
    for entry in header.tensors.values():
        width = 8 * entry.nbytes // entry.numel // 8 if entry.numel else 1
        assert entry.begin % width == 0, entry


def test_bytes_do_not_depend_on_the_threads(source: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 5):
        checkpoint.convert(source, tmp_path / str(workers), workers=workers)
    assert digests(tmp_path / "1") == digests(tmp_path / "2") == digests(tmp_path / "5")


# ---- shards --------------------------------------------------------------------------------------


def test_shards_by_size_keep_a_weight_in_one_file(tmp_path: Path) -> None:
    tensors = {f"layers.{i}.weight": special_weights(64, 128, seed=i) for i in range(9)}
    source = write_folder(tmp_path / "source", tensors, shards=2)
    limit = 3 * 64 * 128 * 2
    report = checkpoint.convert(source, tmp_path / "packed", max_shard_bytes=limit)
    names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    assert report.files == names
    index = json.loads((tmp_path / "packed" / "model.safetensors.index.json").read_text())
    stored = {name: load_safetensors(tmp_path / "packed" / name) for name in names}
    assert index["weight_map"] == {t: file for file in names for t in sorted(stored[file])}
    total = sum(t.nbytes for part in stored.values() for t in part.values())
    assert index["metadata"]["total_size"] == total
    for name in tensors:
        assert len({index["weight_map"][name + suffix] for suffix in SUFFIXES}) == 1
    for part in stored.values():
        assert sum(t.nbytes for t in part.values()) <= limit
    assert checkpoint.verify(source, tmp_path / "packed").identical


def test_other_names_than_model_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    tensors = {f"w{i}": realistic_weights(64, 64, seed=i) for i in range(2)}
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")
    checkpoint.convert(folder, tmp_path / "packed", max_shard_bytes=8192)
    assert sorted(digests(tmp_path / "packed")) == [
        "diffusion_pytorch_model-00001-of-00002.safetensors",
        "diffusion_pytorch_model-00002-of-00002.safetensors",
        "diffusion_pytorch_model.safetensors.index.json",
    ]


# ---- where it comes from -------------------------------------------------------------------------


def test_hub_id_in_the_cache_with_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    blobs = write_folder(tmp_path / "blobs")
    commit = "0" * 40
    repo = tmp_path / "hub" / "models--someone--toy"
    snapshot = repo / "snapshots" / commit
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    checkpoint.convert("someone/toy", tmp_path / "packed")
    assert not any(path.is_symlink() for path in (tmp_path / "packed").rglob("*"))
    assert checkpoint.verify(blobs, tmp_path / "packed").identical
    with pytest.raises(CheckpointError, match="nf12 downloads nothing"):
        checkpoint.convert("someone/else", tmp_path / "other")


def test_other_files_keep_their_mode_and_git_stays_behind(source: Path, tmp_path: Path) -> None:
    (source / "run.sh").write_text("true\n")
    (source / "run.sh").chmod(0o755)
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("ref\n")
    checkpoint.convert(source, tmp_path / "packed")
    assert (tmp_path / "packed" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "packed" / ".git").exists()


# ---- which tensors -------------------------------------------------------------------------------


def test_include_and_exclude(source: Path, tmp_path: Path) -> None:
    report = checkpoint.convert(
        source, tmp_path / "packed", include=["layers.*"], exclude=["*.experts.*", "*.zeros.*"]
    )
    assert sorted(t.name for t in report.packed) == [
        "layers.0.all.weight",
        "layers.0.odd.weight",
        "layers.0.q.weight",
    ]
    assert checkpoint.verify(source, tmp_path / "packed").identical


def test_cast_is_reported_and_verified_as_what_it_is(source: Path, tmp_path: Path) -> None:
    tensors = every_kind()
    report = checkpoint.convert(source, tmp_path / "packed", cast=True)
    errors = {t.name: t.worst_error for t in report.tensors if t.worst_error is not None}
    assert errors.keys() == {"layers.0.wide.weight", "layers.0.half.weight"}
    for name, error in errors.items():
        exact = tensors[name].double()
        assert error == float((exact - exact.bfloat16().double()).abs().max())
        packed = checkpoint.load_file(tmp_path / "packed")[name]
        assert isinstance(packed, nf12.PackedWeight)
        assert_bits_equal(packed.unpack(), tensors[name].bfloat16())
    verified = checkpoint.verify(source, tmp_path / "packed")
    assert {d.name for d in verified.differences} == set(errors)
    assert "packed after a cast to BF16" in str(verified.differences[0])
    verified = checkpoint.verify(source, tmp_path / "packed", cast=True)
    assert verified.identical
    assert set(verified.cast) == set(errors)


def test_cast_overflow_is_an_infinite_error_and_config_follows(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    weight[3, 5], weight[0, 0] = 3.4e38, float("inf")
    config = {**CONFIG, "dtype": "float32"}
    source = write_folder(tmp_path / "source", {"w": weight}, config=config)
    report = checkpoint.convert(source, tmp_path / "packed", cast=True)
    assert report.tensors[0].worst_error == float("inf")
    written = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert written["dtype"] == "bfloat16"


def test_tied_copy_is_stored_once_and_comes_back(tmp_path: Path) -> None:
    table = realistic_weights(130, 192)
    tensors = {
        "lm_head.weight": table.clone(),
        "model.embed_tokens.weight": table,
        "model.twin.weight": realistic_weights(130, 192),  # equal, but no name of an embedding
        "model.other.weight": realistic_weights(64, 96),
    }
    tied = {**CONFIG, "tie_word_embeddings": True}
    source = write_folder(tmp_path / "source", tensors, config=tied)
    del tensors["model.twin.weight"]
    source = write_folder(tmp_path / "source2", tensors, config=tied)
    report = checkpoint.convert(source, tmp_path / "packed")
    assert report.ties == {"lm_head.weight": "model.embed_tokens.weight"}
    names = load_safetensors(tmp_path / "packed" / "model.safetensors").keys()
    assert not any(name.startswith("lm_head") for name in names)
    assert checkpoint.verify(source, tmp_path / "packed").identical
    loaded = checkpoint.load_file(tmp_path / "packed")
    assert loaded["lm_head.weight"] is loaded["model.embed_tokens.weight"]
    checkpoint.unpack(tmp_path / "packed", tmp_path / "back")
    assert digests(tmp_path / "back") == digests(source)


@pytest.mark.parametrize("change", ["flag", "bytes", "rows"])
def test_copies_that_are_not_tied_are_kept(change: str, tmp_path: Path) -> None:
    table = realistic_weights(130, 192)
    head = table.clone()
    if change == "bytes":
        head[129, 191] = -head[129, 191]
    config = {**CONFIG, "tie_word_embeddings": change != "flag"}
    if change == "rows":
        config["vocab_size"] = 131
    tensors = {"lm_head.weight": head, "model.embed_tokens.weight": table}
    source = write_folder(tmp_path / "source", tensors, config=config)
    assert checkpoint.convert(source, tmp_path / "packed").ties == {}
    assert checkpoint.verify(source, tmp_path / "packed").identical


def test_too_many_escapes_for_the_table_stays_dense(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(weight: Tensor) -> nf12.PackedWeight:
        raise ValueError("nf12::pack: 16777217 quads, the side table holds 16777216")

    monkeypatch.setattr(sys.modules["nf12.checkpoint.convert"], "pack", refuse)
    report = checkpoint.convert(source, tmp_path / "packed")
    assert not report.packed
    assert "quads" in report.would_not_shrink[0].reason
    # Nothing is packed, so nothing tells loaders that it is.
    assert digests(tmp_path / "packed")["config.json"] == digests(source)["config.json"]


# ---- verify --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layers.0.odd.weight", "layers.0.experts.down", "positions"])
def test_verify_names_the_first_difference(name: str, source: Path, tmp_path: Path) -> None:
    tensors = every_kind()
    changed = tensors[name].clone()
    at = tuple(size // 2 for size in changed.shape)
    old = changed[at].clone()
    integers = changed.view(torch.int16 if changed.dtype == torch.bfloat16 else changed.dtype)
    integers[at] ^= 1
    integers[tuple(size - 1 for size in changed.shape)] ^= 2
    tensors[name] = changed
    checkpoint.convert(write_folder(tmp_path / "changed", tensors), tmp_path / "packed")
    report = checkpoint.verify(source, tmp_path / "packed")
    assert [difference.name for difference in report.differences] == [name]
    text = report.differences[0].what
    assert text.startswith(f"first at {list(at)}: 0x")
    if changed.dtype == torch.bfloat16:
        first, second = (f"({float(value):.9g})" for value in (old, changed[at]))
        assert f"{first} in the source" in text
        assert f"{second} in the target" in text


def test_verify_sees_negative_zero_and_nan_payloads(tmp_path: Path) -> None:
    weight = realistic_weights(64, 64)
    integers = weight.view(torch.int16)
    integers[1, 2], integers[3, 4] = 0, 0x7FC1
    source = write_folder(tmp_path / "source", {"w": weight.clone()})
    for row, column, value in ((1, 2, -(1 << 15)), (3, 4, 0x7FC2)):
        other = weight.clone()
        other.view(torch.int16)[row, column] = value
        target = write_folder(tmp_path / f"other{row}", {"w": other})
        report = checkpoint.verify(source, target)
        assert f"first at [{row}, {column}]" in str(report.differences[0])


def test_verify_counts_missing_extra_and_reshaped(source: Path, tmp_path: Path) -> None:
    tensors = every_kind()
    del tensors["mask"]
    tensors["new"] = torch.ones(2)
    tensors["positions"] = tensors["positions"].int()
    tensors["layers.0.q.bias"] = tensors["layers.0.q.bias"].reshape(5, 13)
    target = write_folder(tmp_path / "target", tensors)
    (target / "tokenizer.json").write_text('{"a": 2}')
    (target / "extra" / "code.py").unlink()
    write_json(target / "config.json", {**CONFIG, "rms_norm_eps": 1e-5})
    texts = [str(d) for d in checkpoint.verify(source, target).differences]
    assert sorted(texts) == [
        "config.json: rms_norm_eps is 1e-06 in the source, 1e-05 in the target",
        "extra/code.py: the target does not have this file",
        "layers.0.q.bias: shape [65] in the source, [5, 13] in the target",
        "mask: the target does not have this tensor",
        "new: the source does not have this tensor",
        "positions: dtype I64 in the source, I32 in the target",
        "tokenizer.json: the files differ at byte 6",
    ]


# ---- load and inspect ----------------------------------------------------------------------------


def test_load_file(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed", max_shard_bytes=50_000)
    loaded = checkpoint.load_file(tmp_path / "packed")
    expected = every_kind()
    assert loaded.keys() == expected.keys()
    for name, value in loaded.items():
        assert isinstance(value, nf12.PackedWeight) == (name in PACKED)
        dense = value.unpack() if isinstance(value, nf12.PackedWeight) else value
        assert dense.view(-1).view(torch.uint8).equal(expected[name].view(-1).view(torch.uint8))


def test_inspect_agrees_before_and_after(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed")
    before, after = checkpoint.inspect(source), checkpoint.inspect(tmp_path / "packed")
    assert before.planned
    assert not after.planned
    by_name = {w.name: w.to_json() for w in after.weights}
    assert {w.name: w.to_json() for w in before.weights} == by_name
    assert set(by_name) == set(PACKED)
    assert before.bytes == after.bytes
    for weight in after.weights:
        exponents = every_kind()[weight.name].view(torch.int16).int() >> 7 & 0xFF
        expected = torch.bincount(exponents.flatten(), minlength=256)
        assert weight.exponents.tolist() == expected.tolist()
        coded = expected[weight.base : weight.base + 16].sum()
        assert weight.escapes == int(expected.sum() - coded)
    rates = [w.escape_rate for w in after.worst]
    assert rates == sorted(rates, reverse=True)
    json.dumps(after.to_json())


# ---- interrupted ---------------------------------------------------------------------------------

# One process for every point at which a job touches the disk: killed there, having written half of
# what it was about to write; some of them once more during the rerun.
KILL_EVERYWHERE = """
    import os, signal, sys
    from pathlib import Path
    import torch
    from checkpoints import digests
    from nf12 import checkpoint
    from nf12.checkpoint import staging

    torch.set_num_threads(1)
    source, work, operation = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    staging.SYNC_BYTES, step = map(int, sys.argv[4:])
    job = getattr(checkpoint, operation)
    real = {name: getattr(os, name) for name in
            ("write", "fsync", "rename", "truncate", "unlink", "rmdir", "mkdir")}
    real["fsync"] = lambda descriptor: None  # a kill does not lose what the system has taken

    def kill_at(point):
        count = 0
        def counted(name):
            def call(*args, **kwargs):
                nonlocal count
                count += 1
                if count == point:
                    if name == "write":
                        real["write"](args[0], args[1][: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real[name](*args, **kwargs)
            return call
        for name in real:
            setattr(os, name, counted(name))

    def run(target, point=0):
        pid = os.fork()
        if pid == 0:
            kill_at(point)
            report = job(source, target)
            os._exit(10 if getattr(report, "resumed_bytes", 1) else 0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def content(path):
        return digests(path) if path.is_dir() else path.read_bytes()

    whole = work / f"whole{source.suffix}"
    assert run(whole) in (0, 10)
    expected = content(whole)
    point = 1 - step
    resumed = 0
    while True:
        point += step
        target = work / f"killed{point}{source.suffix}"
        partial = Path(f"{target}.nf12-partial")
        if run(target, point) != -signal.SIGKILL:
            break
        if point % 4 == 0:
            run(target, 6 + point % 5)
        if target.exists():
            assert content(target) == expected, f"half a target after a kill at {point}"
            if not (partial / "journal").exists():
                continue  # all that was left to do was to remove an empty folder
        code = run(target)
        assert code in (0, 10), (point, code)
        resumed += code == 10
        assert content(target) == expected, f"other bytes after a kill at {point}"
        assert not partial.exists(), point
    print(point, resumed)
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two shards; one weight stays dense only when packing shows it; one other file."""
    tensors = {name: every_kind()[name] for name in ("layers.0.q.weight", "positions", "scale")}
    tensors |= {"noise": every_kind()["layers.0.noise.weight"], "w": realistic_weights(64, 64)}
    return write_folder(tmp_path / "small", tensors, shards=2)


@pytest.mark.parametrize(
    ("sync_bytes", "step"), [(0, 1), (1 << 40, 3)], ids=["sync each tensor", "sync each file"]
)
def test_killed_at_any_point_ends_with_the_same_bytes(
    sync_bytes: int, step: int, small: Path, tmp_path: Path
) -> None:
    done = forks().run(KILL_EVERYWHERE, small, tmp_path, "convert", sync_bytes, step)
    assert done.code == 0, done.stderr
    points, resumed = map(int, done.stdout.split())
    assert points > 30
    assert resumed > points / step / 4, "kills, but hardly anything was resumed"


def test_unpack_killed_at_any_point(small: Path, tmp_path: Path) -> None:
    checkpoint.convert(small, tmp_path / "packed")
    done = forks().run(KILL_EVERYWHERE, tmp_path / "packed", tmp_path, "unpack", 0, 3)
    assert done.code == 0, done.stderr


def test_single_file_killed_at_any_point(tmp_path: Path) -> None:
    save_file({"w": realistic_weights(64, 64)}, tmp_path / "a.safetensors")
    done = forks().run(KILL_EVERYWHERE, tmp_path / "a.safetensors", tmp_path, "convert", 0, 1)
    assert done.code == 0, done.stderr


class Interrupt(checkpoint.Progress):
    """Stops a job after so many tensors, as Ctrl-C does."""

    def __init__(self, after: int) -> None:
        self.after = after

    def advance(self, name: str, nbytes: int) -> None:
        self.after -= 1
        if self.after == 0:
            raise KeyboardInterrupt


def interrupted(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nf12.checkpoint.staging.SYNC_BYTES", 0)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.convert(source, target, progress=Interrupt(3))
    assert not target.exists()
    assert partial(target).exists()


def test_interrupted_run_resumes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "packed"
    interrupted(source, target, monkeypatch)
    report = checkpoint.convert(source, target)
    assert 0 < report.resumed_bytes < report.source_bytes
    checkpoint.convert(source, tmp_path / "whole")
    assert digests(target) == digests(tmp_path / "whole")
    assert len(report.tensors) == len(every_kind())


def test_changed_source_is_refused_and_restart_begins_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "packed"
    interrupted(source, target, monkeypatch)
    tensors = every_kind()
    tensors["embed.weight"].view(torch.int16)[0, 0] ^= 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt", "note": "kept"})
    with pytest.raises(CheckpointError, match=r"source changed: model\.safetensors was modified"):
        checkpoint.convert(source, target)
    report = checkpoint.convert(source, target, restart=True)
    assert report.resumed_bytes == 0
    assert checkpoint.verify(source, target).identical


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"exclude": ["embed*"]}, r"exclude changed: \[\] -> \['embed\*'\]"),
        ({"max_shard_bytes": 9}, "max_shard_bytes changed: None -> 9"),
    ],
)
def test_changed_options_are_refused(
    change: dict[str, object],
    text: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "packed"
    interrupted(source, target, monkeypatch)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.convert(source, target, **change)  # type: ignore[arg-type]
    assert checkpoint.convert(source, target).resumed_bytes > 0


def test_new_file_in_the_source_is_a_change(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(source, tmp_path / "packed", monkeypatch)
    (source / "added.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"added\.txt is new"):
        checkpoint.convert(source, tmp_path / "packed")


def test_source_changed_while_it_is_read(source: Path, tmp_path: Path) -> None:
    class Touch(checkpoint.Progress):
        def advance(self, name: str, nbytes: int) -> None:
            os.utime(source / "tokenizer.json", ns=(1, 1))

    with pytest.raises(CheckpointError, match="changed while it was read"):
        checkpoint.convert(source, tmp_path / "packed", progress=Touch())
    assert not (tmp_path / "packed").exists()


def test_source_truncated_while_it_is_read(source: Path, tmp_path: Path) -> None:
    class Cut(checkpoint.Progress):
        def advance(self, name: str, nbytes: int) -> None:
            os.truncate(source / "model.safetensors", 4096)

    with pytest.raises(CheckpointError, match="truncated while it was read"):
        checkpoint.convert(source, tmp_path / "packed", progress=Cut())
    assert not (tmp_path / "packed").exists()


def test_two_runs_at_once(source: Path, tmp_path: Path) -> None:
    class Second(checkpoint.Progress):
        text = ""

        def advance(self, name: str, nbytes: int) -> None:
            if not self.text:
                with pytest.raises(CheckpointError) as caught:
                    checkpoint.convert(source, tmp_path / "packed", restart=True)
                self.text = str(caught.value)

    second = Second()
    checkpoint.convert(source, tmp_path / "packed", progress=second)
    assert "another process is writing it" in second.text
    assert checkpoint.verify(source, tmp_path / "packed").identical


def test_damaged_partial_file_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(source, tmp_path / "packed", monkeypatch)
    os.truncate(partial(tmp_path / "packed") / "tree" / "model.safetensors", 100)
    with pytest.raises(CheckpointError, match="shorter than its journal says"):
        checkpoint.convert(source, tmp_path / "packed")


# ---- the disk ------------------------------------------------------------------------------------


def test_disk_full_keeps_what_is_done(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "packed"
    real_write, room = os.write, 60_000

    def write(descriptor: int, view: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real_write(descriptor, view[:room])
        room -= written
        return written

    monkeypatch.setattr("nf12.checkpoint.staging.SYNC_BYTES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match=r"No space left on device: .*model\.safetensors"):
            checkpoint.convert(source, target)
    assert not target.exists()
    report = checkpoint.convert(source, target)
    assert report.resumed_bytes > 0
    checkpoint.convert(source, tmp_path / "whole")
    assert digests(target) == digests(tmp_path / "whole")


def test_file_size_limit_of_the_system(source: Path, tmp_path: Path) -> None:
    script = """
        import resource, sys
        from nf12 import checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        try:
            checkpoint.convert(sys.argv[1], sys.argv[2])
        except OSError as error:
            print(error)
    """
    done = forks().run(script, source, tmp_path / "packed")
    assert "File too large" in done.stdout, done.stderr
    assert not (tmp_path / "packed").exists()
    checkpoint.convert(source, tmp_path / "packed")
    assert checkpoint.verify(source, tmp_path / "packed").identical


def test_too_small_a_disk_is_refused_before_work(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match="1000 bytes free, the target takes at least"):
        checkpoint.convert(source, tmp_path / "packed")


def test_read_only_target() -> None:
    script = """
        import os, sys
        from nf12 import checkpoint
        if os.getuid() == 0:  # root may write anywhere
            os.setuid(65534)
        try:
            checkpoint.convert(sys.argv[1], sys.argv[2])
        except PermissionError as error:
            print(error)
    """
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        work = Path(name)
        work.chmod(0o755)
        source = write_folder(work / "source")
        (work / "locked").mkdir(mode=0o555)
        done = forks().run(script, source, work / "locked" / "packed")
        assert "Permission denied" in done.stdout, done.stderr
        assert not list((work / "locked").iterdir())


# ---- requests that make no sense -----------------------------------------------------------------


def test_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    report = checkpoint.convert(source, tmp_path / "packed", dry_run=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]
    real = checkpoint.convert(source, tmp_path / "packed")
    assert report.bytes <= real.bytes
    assert report.files == real.files
    assert set(PACKED) <= {t.name for t in report.packed}


@pytest.mark.parametrize("where", ["equal", "inside", "around", "link"])
def test_target_in_the_source_or_around_it(where: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    target = {
        "equal": source,
        "inside": source / "a" / "b",
        "around": tmp_path,
        "link": tmp_path / "link" / "x",
    }[where]
    before = digests(tmp_path)
    with pytest.raises(CheckpointError, match=r"target is the source|lies inside"):
        checkpoint.convert(source, target)
    assert digests(tmp_path) == before


def test_existing_target_is_never_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    target.mkdir()
    (target / "mine").write_text("x")
    for restart in (False, True):
        with pytest.raises(CheckpointError, match="exists already"):
            checkpoint.convert(source, target, restart=restart)
    assert digests(target).keys() == {"mine"}
    assert not partial(target).exists()
    (target / "mine").unlink()
    checkpoint.convert(source, target)  # an empty folder is no loss
    assert checkpoint.verify(source, target).identical


def test_target_that_appears_meanwhile_is_not_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"

    class Appear(checkpoint.Progress):
        def advance(self, name: str, nbytes: int) -> None:
            target.mkdir(exist_ok=True)
            (target / "theirs").write_text("x")

    with pytest.raises(CheckpointError, match="exists already"):
        checkpoint.convert(source, target, progress=Appear())
    assert digests(target).keys() == {"theirs"}


def test_file_target_for_several_files(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the source is a folder"):
        checkpoint.convert(source, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="files to write, so the target must be a folder"):
        checkpoint.convert(
            source / "model.safetensors", tmp_path / "x.safetensors", max_shard_bytes=1000
        )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_name_collision(suffix: str, tmp_path: Path) -> None:
    tensors = {"w": realistic_weights(64, 64), "w" + suffix: torch.ones(3)}
    source = write_folder(tmp_path / "source", tensors)
    with pytest.raises(CheckpointError, match=f"name collision: packing 'w' makes 'w{suffix}'"):
        checkpoint.convert(source, tmp_path / "packed")
    checkpoint.convert(source, tmp_path / "packed", exclude=["w"])
    assert checkpoint.verify(source, tmp_path / "packed").identical


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"text_config": {"quantization_config": {"quant_method": "gptq"}}},
    ],
)
def test_quantized_source_is_refused(config: dict[str, object], tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", config=config)
    with pytest.raises(CheckpointError, match=r"quantization_config with quant_method 'gptq'"):
        checkpoint.convert(source, tmp_path / "packed")


def test_packed_source_is_refused(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed")
    with pytest.raises(CheckpointError, match="quant_method 'nf12'"):
        checkpoint.convert(tmp_path / "packed", tmp_path / "again")
    with pytest.raises(CheckpointError, match="is packed already"):
        checkpoint.convert(tmp_path / "packed" / "model.safetensors", tmp_path / "again")
    with pytest.raises(CheckpointError, match="holds no packed weight"):
        checkpoint.unpack(source, tmp_path / "again")


# ---- memory --------------------------------------------------------------------------------------

MEMORY = """
    import sys, threading
    from pathlib import Path
    import torch
    import nf12
    from nf12 import checkpoint

    def anonymous():
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10

    before = peak = anonymous()
    running = True
    def sample():
        global peak
        while running:
            peak = max(peak, anonymous())
    thread = threading.Thread(target=sample)
    thread.start()
    source, work, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    try:
        if command == "convert":
            checkpoint.convert(source, work / "packed", cast=True)
        elif command == "verify":
            checkpoint.verify(source, work / "packed", cast=True)
        else:
            checkpoint.unpack(work / "packed", work / "back")
    finally:
        running = False
        thread.join()
    print(before, peak)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is a Linux figure")
def test_anonymous_memory_is_bounded_by_the_largest_tensor(tmp_path: Path) -> None:
    noise = torch.randint(-(1 << 15), 1 << 15, (4096, 4096), dtype=torch.int16)
    weight = (torch.randn(2048, 4096) * 0.02).bfloat16()
    tensors = {
        "wide": torch.randn(2048, 4096),  # 32 MiB, to cast
        "noise": noise.view(torch.bfloat16),  # every tile raw: the largest side table there is
        "big": weight.repeat(2, 1),
        "experts": weight.reshape(8, 256, 4096).repeat(1, 2, 1),
        **{f"w{i}": weight.clone() for i in range(6)},
    }
    source = write_folder(tmp_path / "source", tensors)
    largest = max(t.nbytes for t in tensors.values())
    bound = 2 * largest + (64 << 20)
    for command in ("convert", "verify", "unpack"):  # a process each, as users run them
        done = forks().run(MEMORY, source, tmp_path, command)
        assert done.code == 0, done.stderr
        before, peak = map(int, done.stdout.split())
        print(f"{command} {largest=} {peak - before=} {bound=}")
        assert peak - before < bound, command
    # A bound that a checkpoint held whole would meet as well would prove nothing.
    assert sum(t.nbytes for t in tensors.values()) > 1.2 * bound
