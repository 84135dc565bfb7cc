"""Files that were truncated, damaged or made to harm: refused with file, rule and value; nothing is
written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_folder, write_json
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_bits_equal, realistic_weights, special_weights
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file

from nf12 import FormatError, PackedWeight, checkpoint
from nf12.checkpoint import CheckpointError
from nf12.checkpoint.header import read_header


def raw_file(path: Path, header: bytes | dict[str, Any], data: bytes, length: int = -1) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length < 0 else length
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


def entry(
    begin: int, end: int, shape: list[Any] | None = None, dtype: str = "U8"
) -> dict[str, Any]:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# Each: header, data, text of the error.
HEADERS: dict[str, tuple[bytes | dict[str, Any], bytes, str]] = {
    "not JSON": (b"{broken", b"", "the header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "the header is not JSON"),
    "deep nesting": (b"[" * 100_000, b"", "the header is not JSON"),
    "a list": (b"[]      ", b"", "a JSON list, not an object"),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"12",
        "the header names 'a' twice",
    ),
    "entry is a number": ({"a": 3}, b"", "an entry holds exactly dtype, shape and data_offsets"),
    "entry lacks a field": ({"a": {"dtype": "U8"}}, b"", "an entry holds exactly"),
    "unknown dtype": ({"a": entry(0, 4, dtype="Q4_0")}, b"1234", "unknown dtype 'Q4_0'"),
    "dtype is a number": ({"a": {**entry(0, 4), "dtype": 7}}, b"1234", "unknown dtype 7"),
    "negative size": ({"a": entry(0, 4, [-2, -2])}, b"1234", r"shape must be .* \[-2, -2\]"),
    "size is a float": ({"a": entry(0, 4, [4.0])}, b"1234", r"shape must be .* \[4.0\]"),
    "size is true": ({"a": entry(0, 1, [True])}, b"1", r"shape must be .* \[True\]"),
    "shape is a text": ({"a": {**entry(0, 4), "shape": "4"}}, b"1234", "shape must be .* '4'"),
    "product overflows 64 bits": (
        {"a": entry(0, 0, [1 << 32, 1 << 32])},
        b"",
        r"takes 1.8\d*e\+19 bytes, data_offsets hold 0",
    ),
    "size of 5000 digits": (
        b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}',
        b"1",
        "the header is not JSON|shape must be",
    ),
    "offsets reversed": ({"a": {**entry(0, 4), "data_offsets": [4, 0]}}, b"1234", r"\[4, 0\]"),
    "three offsets": ({"a": {**entry(0, 4), "data_offsets": [0, 2, 4]}}, b"1234", "data_offsets"),
    "negative offset": ({"a": {**entry(0, 4), "data_offsets": [-4, 0]}}, b"1234", r"\[-4, 0\]"),
    "shape and offsets disagree": (
        {"a": entry(0, 4, [3], "BF16")},
        b"1234",
        r"BF16 of shape \[3\] takes 6 bytes, data_offsets hold 4",
    ),
    "overlap": (
        {"a": entry(0, 4), "b": entry(2, 6)},
        b"123456",
        "'b' overlaps the tensor before it: begins at 2, the data so far end at 4",
    ),
    "the same bytes twice": (
        {"a": entry(0, 4), "b": entry(0, 4)},
        b"1234",
        "'b' overlaps the tensor before it",
    ),
    "hole": ({"a": entry(0, 2), "b": entry(4, 6)}, b"123456", "'b' leaves a hole: begins at 4"),
    "does not begin at 0": ({"a": entry(2, 4)}, b"1234", "'a' leaves a hole"),
    "truncated data": (
        {"a": entry(0, 400)},
        b"1234",
        "truncated: the tensors take 400 bytes, the file holds 4",
    ),
    "bytes too many": ({"a": entry(0, 2)}, b"1234", "bytes after the last tensor"),
    "metadata is a list": ({"__metadata__": ["x"]}, b"", "must map strings to strings"),
    "metadata holds a number": ({"__metadata__": {"x": 1}}, b"", "must map strings to strings"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_header_rules(case: str, tmp_path: Path) -> None:
    header, data, text = HEADERS[case]
    path = raw_file(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError, match=text) as caught:
        checkpoint.convert(path, tmp_path / "packed")
    assert str(caught.value).startswith(str(path)), "the file is not named"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.safetensors"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "truncated: 0 bytes, the header length alone takes 8"),
        (b"1234567", "truncated: 7 bytes"),
        ((1 << 63).to_bytes(8, "little") + b"{}", f"header length {1 << 63} is over the limit"),
        ((100_000_001).to_bytes(8, "little"), "header length 100000001 is over the limit"),
        ((50).to_bytes(8, "little") + b"{}", "header length 50, but only 2 bytes follow"),
    ],
)
def test_header_length(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.convert(tmp_path / "x.safetensors", tmp_path / "packed")


def test_data_at_an_odd_offset(tmp_path: Path) -> None:
    """Nothing in the file format aligns the data; only writers do."""
    weight = special_weights(64, 128)
    data = weight.view(torch.uint8).numpy().tobytes()
    text = json.dumps({"w": entry(0, len(data), [64, 128], "BF16")}).encode()
    path = raw_file(tmp_path / "x.safetensors", text.ljust(len(text) + 1 - len(text) % 2), data)
    assert read_header(path).data_start % 2 == 1
    checkpoint.convert(path, tmp_path / "packed.safetensors")
    loaded = checkpoint.load_file(tmp_path / "packed.safetensors")["w"]
    assert isinstance(loaded, PackedWeight)
    assert_bits_equal(loaded.unpack(), weight)
    assert checkpoint.verify(path, tmp_path / "packed.safetensors").identical


@given(data=st.data())
def test_no_byte_of_a_header_can_do_more_than_be_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What we accept, the safetensors package accepts with the same names, dtypes and shapes."""
    folder = tmp_path_factory.mktemp("fuzz")
    tensors = {"ab": torch.arange(6, dtype=torch.int16), "c": torch.ones(2, 3)}
    path = folder / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    content = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        ours = read_header(path)
    except CheckpointError:
        return
    try:
        with safe_open(path, "pt") as theirs:
            assert set(theirs.keys()) == set(ours.tensors)
            for name, found in ours.tensors.items():
                assert theirs.get_slice(name).get_shape() == list(found.shape)
                assert theirs.get_slice(name).get_dtype() == found.dtype
    except SafetensorError as error:
        raise AssertionError(f"accepted, but the safetensors package says {error}") from error


# ---- the index and the folder --------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tensors = {f"w{i}": realistic_weights(64, 64, seed=i) for i in range(4)}
    return write_folder(tmp_path / "source", tensors, shards=2)


def edit_index(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    edit(document)
    write_json(path, document)


INDEX_EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no weight_map": (lambda d: d.pop("weight_map"), "weight_map is missing or empty"),
    "weight_map is a list": (
        lambda d: d.update(weight_map=["a"]),
        "weight_map is missing or empty",
    ),
    "a tensor that no shard has": (
        lambda d: d["weight_map"].update(ghost="model-00001-of-00002.safetensors"),
        "'ghost' should be in model-00001-of-00002.safetensors, no shard has it",
    ),
    "the wrong shard": (
        lambda d: d["weight_map"].update(w0="model-00002-of-00002.safetensors"),
        "'w0' should be in model-00002-.*, it is in model-00001-of-00002.safetensors",
    ),
    "a tensor left out": (lambda d: d["weight_map"].pop("w1"), "'w1' of .* is not in the index"),
    "a shard that is not there": (
        lambda d: d["weight_map"].update(w0="model-00009-of-00002.safetensors"),
        r"missing shard model-00009-of-00002.safetensors \(1 of 3",
    ),
    "a path upwards": (
        lambda d: d["weight_map"].update(w0="../model-00001-of-00002.safetensors"),
        "is not the name of a safetensors file beside the index",
    ),
    "an absolute path": (
        lambda d: d["weight_map"].update(w0="/etc/passwd"),
        "'/etc/passwd' is not the name of a safetensors file",
    ),
    "a number": (lambda d: d["weight_map"].update(w0=3), "3 is not the name of a safetensors file"),
}


@pytest.mark.parametrize("case", INDEX_EDITS)
def test_index_rules(case: str, sharded: Path, tmp_path: Path) -> None:
    edit, text = INDEX_EDITS[case]
    edit_index(sharded, edit)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.convert(sharded, tmp_path / "packed")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_an_index_beside_another_checkpoint(sharded: Path, tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, sharded / "model.safetensors")
    with pytest.raises(CheckpointError, match="are two checkpoints: pass the file, or remove one"):
        checkpoint.convert(sharded, tmp_path / "packed")


def test_missing_shard(sharded: Path, tmp_path: Path) -> None:
    (sharded / "model-00002-of-00002.safetensors").unlink()
    text = r"missing shard model-00002-of-00002.safetensors \(1 of 2"
    for job in (checkpoint.inspect, checkpoint.load_file):
        with pytest.raises(CheckpointError, match=text):
            job(sharded)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.verify(sharded, sharded)


def test_a_tensor_in_two_shards(sharded: Path, tmp_path: Path) -> None:
    first, second = (sharded / f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    save_file({**load_safetensors(second), "w0": torch.ones(2)}, second)
    assert "w0" in load_safetensors(first)
    with pytest.raises(CheckpointError, match="'w0' is in two shards"):
        checkpoint.convert(sharded, tmp_path / "packed")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "\xff", "[" * 100_000])
def test_json_that_is_none(name: str, text: str, sharded: Path, tmp_path: Path) -> None:
    (sharded / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=rf"{name}: (not JSON|a JSON list, not an object)"):
        checkpoint.convert(sharded, tmp_path / "packed")


def test_folders_without_one_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"no safetensors file$"):
        checkpoint.convert(folder, tmp_path / "packed")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"only pickled weights \(pytorch_model.bin\)"):
        checkpoint.convert(folder, tmp_path / "packed")
    with pytest.raises(CheckpointError, match=r"the name ends in '\.bin'"):
        checkpoint.convert(folder / "pytorch_model.bin", tmp_path / "packed")
    (folder / "pytorch_model.bin").unlink()
    write_folder(folder / "unet")
    with pytest.raises(CheckpointError, match="its folders unet do, convert each of them"):
        checkpoint.convert(folder, tmp_path / "packed")
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, folder / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="several safetensors files and no index"):
        checkpoint.convert(folder, tmp_path / "packed")
    for name in ("nothing/here/at/all", "../x", "what is this"):
        with pytest.raises(CheckpointError, match="no such file or folder"):
            checkpoint.convert(name, tmp_path / "packed")


def test_links_to_nothing_and_in_circles(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source")
    (source / "extra" / "gone").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="a symbolic link to nothing"):
        checkpoint.convert(source, tmp_path / "packed")
    (source / "extra" / "gone").unlink()
    (source / "extra" / "round").symlink_to(source)
    with pytest.raises(CheckpointError, match="a symbolic link to a folder around it"):
        checkpoint.convert(source, tmp_path / "packed")


# ---- packed weights ------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    tensors = {"a.weight": special_weights(144, 320), "b.weight": realistic_weights(64, 64)}
    save_file(tensors, tmp_path / "dense.safetensors")
    path = tmp_path / "packed.safetensors"
    checkpoint.convert(tmp_path / "dense.safetensors", path)
    return path


Tensors = dict[str, torch.Tensor]


def _meta(tensors: Tensors, at: int, value: int) -> None:
    tensors["a.weight_meta"][at] = value


def _listed(tensors: Tensors) -> tuple[torch.Tensor, int]:
    """The first entry of the first tile with a list."""
    words = tensors["a.weight_index"].flatten().tolist()
    word = next(word for word in words if 0 < word & 0xFF <= 64)
    return tensors["a.weight_escapes"], 4 * (word >> 8 & 0xFFFFFF)


def _out_of_order(tensors: Tensors) -> None:
    escapes, first = _listed(tensors)
    escapes[first + 1] = escapes[first]


def _beyond_the_table(tensors: Tensors) -> None:
    tensors["a.weight_escapes"] = tensors["a.weight_escapes"][:-4].clone()


def _inside_the_window(tensors: Tensors) -> None:
    escapes, first = _listed(tensors)
    escapes[first] = (int(escapes[first]) & ~0xFFFF) | 0x3C00


def _payload_at_an_escape(tensors: Tensors) -> None:
    escapes, first = _listed(tensors)
    words = tensors["a.weight_index"].flatten().tolist()
    tile = next(i for i, word in enumerate(words) if word >> 8 == first // 4 and word & 0xFF)
    position = int(escapes[first]) >> 16 & 0x3FF
    tensors["a.weight_payload"].view(-1)[1536 * tile + position] = 1


HOSTILE: dict[str, Callable[[Tensors], None]] = {
    "version 2": lambda t: _meta(t, 0, 2),
    "rows beyond the tiles": lambda t: _meta(t, 1, 145),
    "rows below zero": lambda t: _meta(t, 1, -16),
    "2^31 - 1 rows": lambda t: _meta(t, 1, (1 << 31) - 1),
    "no columns": lambda t: _meta(t, 2, 0),
    "columns of fewer tiles": lambda t: _meta(t, 2, 256),
    "base 95": lambda t: _meta(t, 3, 95),
    "base 129": lambda t: _meta(t, 3, 129),
    "meta of 5": lambda t: t.update({"a.weight_meta": torch.ones(5, dtype=torch.int32)}),
    "meta of int64": lambda t: t.update({"a.weight_meta": t["a.weight_meta"].long()}),
    "payload flat": lambda t: t.update({"a.weight_payload": t["a.weight_payload"].flatten()}),
    "index short": lambda t: t.update({"a.weight_index": t["a.weight_index"][:-1].clone()}),
    "index int64": lambda t: t.update({"a.weight_index": t["a.weight_index"].long()}),
    "count 65": lambda t: t["a.weight_index"].view(-1)[:1].fill_(65),
    "count 0 with a quad": lambda t: t["a.weight_index"].view(-1)[:1].fill_(256),
    "quad 2^24 - 1": lambda t: t["a.weight_index"].view(-1)[:1].fill_(-256 + 255),
    "escapes out of order": _out_of_order,
    "escapes end too early": _beyond_the_table,
    "escape inside the window": _inside_the_window,
    "payload at an escape": _payload_at_an_escape,
    "payload missing": lambda t: t.pop("a.weight_payload"),
    "index missing": lambda t: t.pop("a.weight_index"),
    "dense as well": lambda t: t.update({"a.weight": torch.ones(2)}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_packed_weights(case: str, packed: Path, tmp_path: Path) -> None:
    tensors = load_safetensors(packed)
    HOSTILE[case](tensors)
    save_file(tensors, packed)
    dense = tmp_path / "dense.safetensors"
    jobs: list[Callable[[], object]] = [
        lambda: checkpoint.verify(dense, packed),
        lambda: checkpoint.unpack(packed, tmp_path / "back.safetensors"),
        lambda: checkpoint.load_file(packed),
        lambda: checkpoint.inspect(packed),
    ]
    for job in jobs:
        with pytest.raises((FormatError, CheckpointError), match=r"a\.weight"):
            job()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dense.safetensors", "packed.safetensors"]


def test_one_suffix_alone_is_a_tensor_like_any_other(tmp_path: Path) -> None:
    tensors = {"x_meta": torch.ones(3), "y_index": torch.arange(4), "w": realistic_weights(64, 64)}
    source = write_folder(tmp_path / "source", tensors)
    checkpoint.convert(source, tmp_path / "packed")
    assert checkpoint.verify(source, tmp_path / "packed").identical


@pytest.mark.parametrize(
    "ties", ["[]", "{", '{"c": "nothing"}', '{"b.weight": "a.weight"}', '{"c": 3}', '{"c": []}']
)
def test_ties_to_nowhere(ties: str, packed: Path) -> None:
    save_file(load_safetensors(packed), packed, metadata={"nf12_tied": ties})
    with pytest.raises(CheckpointError, match="metadata nf12_tied"):
        checkpoint.load_file(packed)
