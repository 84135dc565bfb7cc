"""benchmarks/plot.py: what it takes from result files, and that it draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import plot


def result(path: Path, rows: list[dict[str, Any]], **head: Any) -> Path:
    facts = {"device": "NVIDIA H200", "date": "2026-11-29", "mode": "cold", "read_gb_per_s": 4400.0}
    path.write_text(json.dumps(facts | head | {"rows": rows}))
    return path


def row(k: int, n: int, m: int, ratio: float, **fields: Any) -> dict[str, Any]:
    return {
        "k": k, "n": n, "m": m, "escapes": "3.3e-4", "dense_us": 10 * ratio, "nf12_us": 10.0,
        "gb_per_s": 3000.0, "violations": 0,
    } | fields  # fmt: skip


def rows_of_two_shapes() -> list[dict[str, Any]]:
    return [
        row(k, n, m, ratio)
        for k, n, ratio in ((4096, 4096, 1.6), (896, 4864, 0.9))
        for m in (64, 1, 8)
    ]


def test_it_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = result(tmp_path / "a.json", rows_of_two_shapes())
    pictures = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        plot.main([str(file), "--output", str(folder)])
        pictures.append([(folder / name).read_bytes() for name in ("speed-up.svg", "bytes.svg")])
    assert all(picture.startswith(b"<?xml") for picture in pictures[0])
    assert pictures[0] == pictures[1], "equal results, equal bytes"
    assert "speed-up.svg" in capsys.readouterr().out


def test_it_draws_the_results_of_a_cpu(tmp_path: Path) -> None:
    """Whose files are older than some of the fields."""
    pytest.importorskip("matplotlib")
    results = Path(plot.__file__).parent / "results"
    plot.main([str(results / "amd-epyc-2026-11-29.json"), "--output", str(tmp_path)])


def test_speed_ups_and_rates() -> None:
    rows = rows_of_two_shapes()
    by_shape = plot.speed_ups(rows)
    assert list(by_shape[4096, 4096]) == [1, 8, 64] and by_shape[896, 4864][8] == 0.9
    assert plot.geomeans(by_shape)[1] == pytest.approx((1.6 * 0.9) ** 0.5)
    dense, packed = plot.rates_gb_per_s(rows, 1)[4096, 4096]
    assert dense == pytest.approx(2 * 4096 * 4096 / 16e-6 / 1e9) and packed == 3000.0


def test_files_of_one_machine_add_up(tmp_path: Path) -> None:
    rows = rows_of_two_shapes()
    one = result(tmp_path / "1.json", rows)
    two = result(tmp_path / "2.json", [row(896, 4864, 1, 2.0), row(64, 64, 1, 9.0, escapes="raw")])
    report = plot.read([one, two])
    assert len(report["rows"]) == len(rows)
    assert plot.speed_ups(report["rows"])[896, 4864][1] == 2.0


@pytest.mark.parametrize(
    ("rows", "head", "text"),
    (
        ([row(1, 1, 1, 1.0)], {"mode": "warm"}, "is warm"),
        ([row(1, 1, 1, 1.0)], {"device": "another"}, "several machines"),
        ([row(1, 1, 1, 1.0, violations=3)], {}, "outside the bounds"),
    ),
)
def test_what_makes_no_picture(
    tmp_path: Path, rows: list[dict[str, Any]], head: dict[str, Any], text: str
) -> None:
    good = result(tmp_path / "good.json", rows_of_two_shapes())
    bad = result(tmp_path / "bad.json", rows, **head)
    with pytest.raises(SystemExit, match=text):
        plot.read([good, bad])


def test_no_row_to_draw(tmp_path: Path) -> None:
    file = result(tmp_path / "raw.json", [row(1, 1, 1, 1.0, escapes="raw")])
    with pytest.raises(SystemExit, match="no row with escapes"):
        plot.read([file])
