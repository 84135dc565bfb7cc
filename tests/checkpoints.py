"""Checkpoints for tests: one folder with every kind of tensor and file, and digests of folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from reference import all_patterns, from_bits, generator, realistic_weights, special_weights
from safetensors.torch import save_file
from torch import Tensor


def every_kind() -> dict[str, Tensor]:
    """Tensors that pack, that seem to but do not shrink, and that never pack."""
    noise = torch.randint(0, 1 << 16, (48, 190), generator=generator(9))
    patterns = realistic_weights(512, 1024, seed=5)
    patterns[:64] = all_patterns().reshape(64, 1024)
    return {
        "embed.weight": special_weights(130, 192),
        "layers.0.q.weight": realistic_weights(64, 192),
        "layers.0.all.weight": patterns,
        "layers.0.odd.weight": realistic_weights(47, 383, seed=3),
        "layers.0.experts.down": special_weights(3, 48, 120, share=0.004, seed=4),
        "layers.0.zeros.weight": torch.zeros(256, 128, dtype=torch.bfloat16),
        "layers.0.q.bias": realistic_weights(1, 65).reshape(65),
        "layers.0.narrow.weight": realistic_weights(384, 3),
        "layers.0.noise.weight": from_bits(noise),  # every tile raw: found out while packing
        "layers.0.conv.weight": realistic_weights(4, 3 * 5 * 7).reshape(4, 3, 5, 7),
        "layers.0.wide.weight": torch.randn(32, 128, generator=generator(1)),
        "layers.0.half.weight": torch.randn(32, 128, generator=generator(2)).half(),
        "positions": torch.arange(13),
        "mask": torch.tensor([True, False, True]),
        "scale": torch.tensor(1.5, dtype=torch.bfloat16),
        "fp8.weight": torch.arange(35, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(5, 7),
        "empty": torch.empty(0, 64, dtype=torch.bfloat16),
    }


PACKED = (
    "embed.weight",
    "layers.0.q.weight",
    "layers.0.all.weight",
    "layers.0.odd.weight",
    "layers.0.experts.down",
    "layers.0.zeros.weight",
)
CONFIG = {"architectures": ["Toy"], "dtype": "bfloat16", "rms_norm_eps": 1e-06, "vocab_size": 130}


def write_folder(
    folder: Path,
    tensors: dict[str, Tensor] | None = None,
    *,
    shards: int = 1,
    config: dict[str, object] | None = CONFIG,
) -> Path:
    """A folder as save_pretrained writes it, with other files, one of them in a subfolder."""
    tensors = every_kind() if tensors is None else tensors
    folder.mkdir(parents=True)
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        part = f"-{shard + 1:05}-of-{shards:05}" if shards > 1 else ""
        file_name = f"model{part}.safetensors"
        chosen = {name: tensors[name] for name in names[shard::shards]}
        save_file(chosen, folder / file_name, metadata={"format": "pt", "note": "kept"})
        weight_map |= dict.fromkeys(chosen, file_name)
    if shards > 1:
        total_size = sum(t.nbytes for t in tensors.values())
        document = {
            "metadata": {"total_size": total_size},
            "weight_map": dict(sorted(weight_map.items())),
        }
        write_json(folder / "model.safetensors.index.json", document)
    if config is not None:
        write_json(folder / "config.json", config)
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "extra").mkdir()
    (folder / "extra" / "code.py").write_text("x = 1\n")
    return folder


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below `folder`, by relative name."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
