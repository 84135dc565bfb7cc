"""The command `nf12`: what it prints, its exit codes, signals and pipes."""

from __future__ import annotations

import builtins
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import PACKED, digests, every_kind, write_folder
from forks import Done, forks
from reference import realistic_weights
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file
from typer.testing import CliRunner

import nf12
from nf12 import checkpoint
from nf12.cli import app
from nf12.cli.app import parse_size

MAIN = "from nf12.cli import main; main()"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "source")


def nf12_command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def nf12_process(*arguments: object) -> Done:
    return forks().run(MAIN, *arguments)


# ---- the way of a checkpoint ---------------------------------------------------------------------


def test_there_and_back(source: Path, tmp_path: Path) -> None:
    packed, back = tmp_path / "packed", tmp_path / "back"
    done = nf12_command("convert", source, packed)
    assert done.exit_code == 0, done.stderr
    assert f"packed: {len(PACKED)} of {len(every_kind())} tensors" in done.stdout
    assert "stays dense: layers.0.noise.weight (48 x 190) would not shrink: " in done.stdout
    assert "stays dense: layers.0.narrow.weight (384 x 3) would not shrink" in done.stdout
    assert "copied: config.json, extra/code.py, tokenizer.json" in done.stdout
    done = nf12_command("verify", source, packed)
    assert done.exit_code == 0, done.stdout
    assert done.stdout.startswith(f"identical: {len(every_kind())} tensors ({len(PACKED)} packed)")
    done = nf12_command("unpack", packed, back)
    assert done.exit_code == 0, done.stderr
    assert digests(back) == digests(source)


def test_options_reach_the_conversion(source: Path, tmp_path: Path) -> None:
    options = ["--include", "layers.*", "--exclude", "*.zeros.*", "--exclude", "*.q.*", "--cast"]
    done = nf12_command(
        "convert", source, tmp_path / "packed", *options, "--max-shard-size", "300kB",
        "--workers", 1, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert {t["name"] for t in report["tensors"] if not t["reason"]} == {
        "layers.0.all.weight",
        "layers.0.odd.weight",
        "layers.0.experts.down",
        "layers.0.wide.weight",
        "layers.0.half.weight",
    }
    assert report["files"][0].startswith("model-00001-of-0000")
    done = nf12_command("verify", source, tmp_path / "packed")
    assert done.exit_code == 1
    done = nf12_command("verify", source, tmp_path / "packed", "--cast", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["identical"] is True


def test_dry_run_says_so(source: Path, tmp_path: Path) -> None:
    done = nf12_command("convert", source, tmp_path / "packed", "--dry-run")
    assert done.exit_code == 0
    assert "dry run, nothing written" in done.stdout
    assert "would copy: config.json" in done.stdout
    assert not (tmp_path / "packed").exists()


def test_verify_prints_the_first_difference(source: Path, tmp_path: Path) -> None:
    tensors = every_kind()
    tensors["embed.weight"][7, 9] = 2.5
    target = write_folder(tmp_path / "target", tensors)
    done = nf12_command("verify", source, target)
    assert done.exit_code == 1
    assert "different: 1 differences in" in done.stdout
    assert "embed.weight: first at [7, 9]: 0x" in done.stdout
    assert "0x4020 (2.5) in the target" in done.stdout


# ---- exit codes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["convert", "{source}", "{source}"], "the target is the source"),
        (["convert", "{nothing}", "{new}"], "no such file or folder"),
        (["convert", "{source}", "{new}", "--max-shard-size", "5 apples"], "a size such as 5GB"),
        (["convert", "{source}", "{new}", "--max-shard-size", "0"], "a size such as 5GB"),
        (["verify", "{source}", "{nothing}"], "no such file or folder"),
        (["unpack", "{source}", "{new}"], "holds no packed weight"),
        (["inspect", "{nothing}"], "no such file or folder"),
    ],
)
def test_bad_input_is_2_and_one_line(
    arguments: list[str], text: str, source: Path, tmp_path: Path
) -> None:
    places = {"source": source, "new": tmp_path / "new", "nothing": tmp_path / "nothing"}
    done = nf12_command(*(argument.format(**places) for argument in arguments))
    assert done.exit_code == 2
    assert text in done.stderr
    assert done.stderr.startswith(f"nf12 {arguments[0]}: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize("arguments", [["convert"], ["convert", "--what"], ["whatever"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert nf12_command(*arguments).exit_code == 2


def test_hostile_packed_checkpoint_is_2(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed")
    path = tmp_path / "packed" / "model.safetensors"
    tensors = load_safetensors(path)
    tensors["embed.weight_meta"][0] = 2
    save_file(tensors, path)
    for arguments in (["verify", source, tmp_path / "packed"], ["inspect", tmp_path / "packed"]):
        done = nf12_command(*arguments)
        assert done.exit_code == 2
        assert "embed.weight: nf12::check: " in done.stderr


def test_disk_full_is_3_and_says_how_to_go_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write

    def write(descriptor: int, view: memoryview) -> int:
        if view.nbytes > 10_000:  # there is room for the journal's lines, not for the weights
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(descriptor, view)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        done = nf12_command("convert", source, tmp_path / "packed")
    assert done.exit_code == 3
    assert "No space left on device; what is done is kept: run the same command" in done.stderr
    assert not (tmp_path / "packed").exists()


def test_no_room_to_begin_promises_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, view: memoryview) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nf12.checkpoint.staging.write_all", write)
    done = nf12_command("convert", source, tmp_path / "packed")
    assert done.exit_code == 3
    assert done.stderr.endswith("No space left on device\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


# Each file takes a tenth of a second, so that Ctrl-C comes in the middle.
SLOW_MAIN = """
    import time
    from nf12.checkpoint import staging
    from nf12.cli import main
    sync_folder = staging.sync_folder
    staging.sync_folder = lambda path: (time.sleep(0.1), sync_folder(path))
    main()
"""


def test_ctrl_c_is_130_and_the_next_run_goes_on(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", shards=12)
    packed = tmp_path / "packed"
    process = forks().start(SLOW_MAIN, "convert", source, packed)
    journal = tmp_path / "packed.nf12-partial" / "journal"
    deadline = time.monotonic() + 120
    while not (journal.exists() and b'"done"' in journal.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process, signal.SIGINT)
    done = forks().wait()
    assert done.code == 130, done.stderr
    assert done.stderr == (
        "nf12 convert: interrupted; what is done is kept: run the same command again to go on\n"
    )
    assert not packed.exists()
    done = nf12_process("convert", source, packed)
    assert done.code == 0, done.stderr
    assert "resumed: " in done.stdout
    assert nf12_process("verify", source, packed).code == 0


# ---- pipes and terminals -------------------------------------------------------------------------


def test_quiet_in_a_pipe(source: Path, tmp_path: Path) -> None:
    """A process of its own, from its own Python: no terminal codes, nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "convert", str(source), str(tmp_path / "packed")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout


def test_progress_on_a_terminal(source: Path, tmp_path: Path) -> None:
    script = """
        import io, os, pty, sys
        sys.argv[0] = "nf12"
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ["COLUMNS"] = "160"
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"))
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"))
            from nf12.cli import main
            try:
                main()
            finally:
                sys.stdout.flush()
                os._exit(0)
        shown = b""
        while True:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        os.waitpid(pid, 0)
        os.write(1, shown)
    """
    done = forks().run(script, "convert", source, tmp_path / "packed")
    assert "packing" in done.stdout, done
    assert "MB/s" in done.stdout or "kB/s" in done.stdout
    assert "packed: 6 of" in done.stdout


def test_names_are_not_cut_in_a_pipe(tmp_path: Path) -> None:
    name = "model." + "very_long_name." * 8 + "weight"
    save_file({name: realistic_weights(64, 64)}, tmp_path / "a.safetensors")
    done = nf12_process("inspect", tmp_path / "a.safetensors")
    assert done.code == 0
    assert name in done.stdout


# ---- inspect -------------------------------------------------------------------------------------


def test_inspect_prints_the_worst_first(source: Path, tmp_path: Path) -> None:
    checkpoint.convert(source, tmp_path / "packed")
    done = nf12_command("inspect", tmp_path / "packed", "--top", 2)
    assert done.exit_code == 0
    assert f": {len(PACKED)} weights at " in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert rows == ["layers.0.zeros.weight", "layers.0.all.weight"]


def test_inspect_json_and_plot(source: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    done = nf12_command("inspect", source, "--json", "--plot", picture)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["planned"] is True
    assert {w["name"] for w in report["weights"]} == set(PACKED)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert width > 1000
    assert height > 600


def test_plot_without_matplotlib(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import: Callable[..., Any] = builtins.__import__

    def importing(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    done = nf12_command("inspect", source, "--plot", tmp_path / "out.png")
    assert done.exit_code == 2
    assert "pip install 'nf12[plot]'" in done.stderr
    assert not (tmp_path / "out.png").exists()


# ---- info ----------------------------------------------------------------------------------------


def test_info() -> None:
    done = nf12_command("info", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == nf12.info()
    done = nf12_command("info")
    for name in ("auto", "hip", "cuda", "cpu", "torch"):
        assert f"backend {name}: " in done.stdout


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5GB", 5 * 10**9),
        ("5 gib", 5 << 30),
        ("1.5MB", 1_500_000),
        ("700", 700),
        ("10k", 10_000),
        ("2TiB", 2 << 40),
    ],
)
def test_parse_size(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "5 apples", "0", "1PB"])
def test_parse_size_refuses(text: str) -> None:
    with pytest.raises(checkpoint.CheckpointError, match="a size such as 5GB"):
        parse_size(text)
