"""Linear, Embedding, packed parameters and convert_model: state dicts, devices, copies, compile."""

from __future__ import annotations

import copy
import json
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrize
from reference import (
    activations,
    assert_bits_equal,
    assert_gemm_close,
    realistic_weights,
    special_weights,
)
from torch import Tensor, nn

import nf12
from nf12 import ConversionReport, Embedding, FormatError, Linear, PackedWeight, convert_model
from nf12.packed_module import PackedModule
from nf12.packed_parameter import pack_parameter, unpack_parameter

BF16 = torch.bfloat16


def dense_linear(n: int = 128, k: int = 192, *, bias: bool = True, seed: int = 0) -> nn.Linear:
    linear = nn.Linear(k, n, bias=bias, dtype=BF16)
    linear.weight = nn.Parameter(realistic_weights(n, k, escape_rate=0.003, seed=seed))
    return linear


def dense_embedding(n: int = 128, k: int = 192, **options: Any) -> nn.Embedding:
    embedding = nn.Embedding(n, k, dtype=BF16, **options)
    embedding.weight = nn.Parameter(realistic_weights(n, k, escape_rate=0.003, seed=9))
    return embedding


def check_linear(module: nn.Module, dense: nn.Linear, *shape: int) -> None:
    x = activations(*(shape or (5, dense.in_features)))
    bias = None if dense.bias is None else dense.bias.detach()
    assert_gemm_close(module(x).detach(), x, dense.weight.detach(), bias)


def assert_near(y: Tensor, expected: Tensor) -> None:
    """For outputs of many layers: 2 % in norm, some ten roundings to BF16."""
    error = (y - expected).detach().double().norm() / expected.detach().double().norm()
    assert float(error) < 0.02


# ---- Linear -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(192,), (0, 192), (3, 192), (2, 3, 192)], ids=str)
def test_linear_multiplies(bias: bool, shape: tuple[int, ...]) -> None:
    dense = dense_linear(bias=bias)
    check_linear(Linear.from_linear(dense), dense, *shape)


def test_linear_from_linear() -> None:
    dense = dense_linear().eval()
    module = Linear.from_linear(dense)
    assert_bits_equal(module.weight, dense.weight.detach())
    assert_bits_equal(module.packed().unpack(), dense.weight.detach())
    assert module.bias is dense.bias and not module.training
    assert (module.in_features, module.out_features) == (192, 128)
    assert [name for name, _ in module.named_parameters()] == ["bias"]
    buffers = [name for name, _ in module.named_buffers()]
    assert buffers == ["weight_payload", "weight_index", "weight_escapes", "weight_meta"]
    base = module.packed().base
    assert f"in_features=192, out_features=128, bias=True, base={base}" in repr(module)
    assert Linear.from_linear(dense, base=112).packed().base == 112


def test_linear_refuses() -> None:
    with pytest.raises(ValueError, match=r"nf12\.Linear: 2 x 64 would take"):
        Linear.from_linear(dense_linear(2, 64))
    with pytest.raises(TypeError, match="float32, expected bfloat16"):
        Linear.from_linear(nn.Linear(64, 64))
    packed = Linear.from_linear(dense_linear()).packed()
    with pytest.raises(TypeError, match=r"bias has dtype torch\.float32"):
        Linear(packed, torch.zeros(128))
    with pytest.raises(ValueError, match=r"bias has shape \[5\], expected \[128\]"):
        Linear(packed, torch.zeros(5).bfloat16())
    stack = PackedWeight(*torch.ops.nf12.pack(special_weights(2, 64, 64)))
    with pytest.raises(ValueError, match=r"\[2, 64, 64\], expected \[N, K\]"):
        Linear(stack)
    with pytest.raises(ValueError, match=r"\[2, 64, 64\], expected \[N, K\]"):
        Embedding(stack)
    with pytest.raises(ValueError, match="x has 191 columns"):
        Linear(packed)(activations(3, 191))
    with pytest.raises(TypeError, match="x has dtype float32"):
        Linear(packed)(torch.zeros(3, 192))


def test_linear_casts_on_request() -> None:
    dense = nn.Linear(128, 64)
    module = Linear.from_linear(dense, cast=True)
    check_linear(module, dense.bfloat16())


def test_gradients_reach_x_and_bias_only() -> None:
    dense = dense_linear()
    module = Linear.from_linear(copy.deepcopy(dense))
    x, dy = activations(4, 192).requires_grad_(), activations(4, 128, seed=2)
    module(x).backward(dy)
    assert x.grad is not None and module.bias is not None and module.bias.grad is not None
    assert_gemm_close(x.grad, dy, dense.weight.detach().T.contiguous())
    torch.testing.assert_close(module.bias.grad, dy.sum(0))


@pytest.mark.parametrize("wanted", ["x", "bias", "both"])
def test_eager_gradients_are_those_of_the_operator(wanted: str) -> None:
    """nf12.Linear records the product itself; torch.ops.nf12.gemm has register_autograd for it."""
    module = Linear.from_linear(dense_linear())
    assert module.bias is not None
    module.requires_grad_(wanted != "x")
    x = activations(4, 192).requires_grad_(wanted != "bias")
    inputs = [t for t in (x, module.bias) if t.requires_grad]
    y, expected = module(x), torch.ops.nf12.gemm(x, *module.operands(), module.bias)
    assert torch.equal(y, expected) and type(y.grad_fn).__name__ == "RecordedGemmBackward"
    dy = activations(4, 128, seed=2).requires_grad_()
    grads = torch.autograd.grad(y, inputs, dy, create_graph=True)
    ours = torch.autograd.grad([grad.sum() for grad in grads], dy)[0]
    grads_of_op = torch.autograd.grad(expected, inputs, dy, create_graph=True)
    for ours_i, op_i in zip(grads, grads_of_op, strict=True):
        assert torch.equal(ours_i, op_i)
    assert torch.equal(ours, torch.autograd.grad([g.sum() for g in grads_of_op], dy)[0])


def test_the_operator_without_an_autograd_key_is_taken_when_no_gradient_is_asked() -> None:
    module, x = Linear.from_linear(dense_linear()), activations(3, 192)

    def ops_called(run: Callable[[], object]) -> set[str]:
        with torch.profiler.profile() as profile:
            run()
        return {event.key for event in profile.key_averages() if event.key.startswith("nf12::")}

    with torch.no_grad():
        assert ops_called(lambda: module(x)) == {"nf12::_gemm"}
    with torch.inference_mode():
        assert ops_called(lambda: module(x)) == {"nf12::_gemm"}
    module.requires_grad_(False)
    assert ops_called(lambda: module(x)) == {"nf12::_gemm"}
    with torch.autocast("cpu", torch.bfloat16):
        assert "nf12::gemm" in ops_called(lambda: module(x.float()))


@pytest.mark.parametrize("requires_grad", [True, False])
def test_each_call_multiplies_by_what_the_module_then_holds(requires_grad: bool) -> None:
    """Whatever forward keeps to be fast: buffers, bias, hooks and mode may change between calls."""
    first, second = dense_linear(seed=1), dense_linear(seed=2)
    second.weight = nn.Parameter(special_weights(128, 192, share=0.02))
    module, other = Linear.from_linear(first), Linear.from_linear(second)
    x = activations(3, 192).requires_grad_(requires_grad)
    inputs = []
    module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))

    def expect(weight: nn.Linear, bias: Tensor | None) -> None:
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                y = module(x)
            assert y.requires_grad == (mode is torch.enable_grad and requires_grad)
            assert_gemm_close(y.detach(), x.detach(), weight.weight.detach(), bias)
            assert inputs.pop() is x

    assert first.bias is not None and second.bias is not None
    module.requires_grad_(False)
    expect(first, first.bias)
    for name in ("weight_payload", "weight_index", "weight_escapes", "weight_meta"):
        setattr(module, name, getattr(other, name))
    module.refresh_packed()
    expect(second, first.bias)
    module.bias = nn.Parameter(torch.ones(128, dtype=BF16), False)
    expect(second, torch.ones(128, dtype=BF16))
    module.bias = None
    expect(second, None)
    del module.bias
    module.bias = second.bias.detach()  # a plain attribute, as pruning and sharding leave one
    expect(second, second.bias.detach())
    del module.bias
    module.bias = nn.Parameter(second.bias.detach(), False)
    nn.utils.parametrize.register_parametrization(module, "bias", nn.Flatten(0))
    expect(second, second.bias.detach())
    nn.utils.parametrize.remove_parametrizations(module, "bias")
    with torch.no_grad():
        y = torch.func.functional_call(module, {"bias": torch.ones(128, dtype=BF16)}, x)
    assert_gemm_close(y, x.detach(), second.weight.detach(), torch.ones(128, dtype=BF16))
    inputs.clear()
    expect(second, second.bias.detach())


# ---- moving and converting ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.half(),
        lambda m: m.float(),
        lambda m: m.double(),
        lambda m: m.to(torch.float16),
        lambda m: m.type(torch.float32),
        lambda m: m.to("cpu", torch.float64),
    ],
    ids=["half", "float", "double", "to", "type", "to device and dtype"],
)
def test_dtype_conversions_leave_packed_modules_alone(convert: Callable[..., nn.Module]) -> None:
    dense = dense_linear()
    model = nn.Sequential(Linear.from_linear(dense), nn.LayerNorm(128, dtype=BF16))
    model[0].bias.grad = torch.zeros_like(model[0].bias)
    embedding = Embedding.from_embedding(dense_embedding())
    convert(model)
    convert(embedding)
    check_linear(model[0], dense)
    assert model[0].bias.dtype == model[0].bias.grad.dtype == BF16
    assert model[1].weight.dtype != BF16, "other modules of the model convert"
    assert embedding(torch.tensor([3])).dtype == BF16


def test_meta_and_to_empty() -> None:
    dense = dense_linear()
    module = Linear.from_linear(dense)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    module.to("meta")
    assert all(t.device.type == "meta" for t in module.state_dict().values())
    assert module(activations(2, 192).to("meta")).shape == (2, 128)
    module.to_empty(device="cpu")
    module.load_state_dict(state)
    check_linear(module, dense)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_whole_and_their_own(copied: Callable[[nn.Module], nn.Module]) -> None:
    dense = dense_linear()
    module = Linear.from_linear(dense)
    other = copied(module)
    module.weight_payload.zero_()
    check_linear(other, dense)


# ---- state dicts --------------------------------------------------------------------------------


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_load_into_an_empty_module(assign: bool, device: str) -> None:
    """The side table of the module has another length than the state dict's."""
    dense = dense_linear()
    model = nn.ModuleDict({"layer": Linear.from_linear(dense)})
    empty = nn.ModuleDict({"layer": Linear.empty(192, 128, escapes=8, device=device)})
    with pytest.raises(RuntimeError, match=r"Linear\.weight has not been loaded"):
        empty["layer"](activations(1, 192))
    assert "not loaded" in repr(empty)
    if device == "meta" and not assign:
        with pytest.raises(RuntimeError, match="load with assign=True"):
            empty.load_state_dict(model.state_dict())
        return
    empty.load_state_dict(model.state_dict(), assign=assign)
    check_linear(empty["layer"], dense)
    shared = empty["layer"].weight_payload.data_ptr() == model["layer"].weight_payload.data_ptr()
    assert shared == assign


@pytest.mark.parametrize("assign", [False, True])
def test_load_another_weight_over_one(assign: bool) -> None:
    first, second = dense_linear(seed=1), dense_linear(seed=2)
    second.weight = nn.Parameter(special_weights(128, 192, share=0.02))
    module = Linear.from_linear(first)
    source = Linear.from_linear(second)
    assert len(module.weight_escapes) != len(source.weight_escapes)
    module.load_state_dict(source.state_dict(), assign=assign)
    assert_bits_equal(module.weight, second.weight.detach())


def test_a_loader_may_set_buffers_one_by_one() -> None:
    dense = dense_linear()
    state = Linear.from_linear(dense).state_dict()
    module = Linear.empty(192, 128, device="meta")
    for name, tensor in state.items():
        setattr(module, name, nn.Parameter(tensor) if name == "bias" else tensor)
    module.refresh_packed()
    check_linear(module, dense)
    other = Linear.empty(192, 127)
    for name, tensor in state.items():
        if name != "bias":
            setattr(other, name, tensor)
    with pytest.raises(ValueError, match="weight is 128 x 192, the module's is 127 x 192"):
        other.refresh_packed()


def test_missing_and_unexpected_keys_are_torchs_errors() -> None:
    module = Linear.from_linear(dense_linear())
    state = module.state_dict()
    result = module.load_state_dict({"bias": state["bias"], "more": state["bias"]}, strict=False)
    assert result.unexpected_keys == ["more"]
    assert result.missing_keys == [
        "weight_payload", "weight_index", "weight_escapes", "weight_meta",
    ]  # fmt: skip
    with pytest.raises(RuntimeError, match=r"Missing key.*weight_payload"):
        module.load_state_dict({"bias": state["bias"], "weight": torch.zeros(128, 192)})


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: s["l.weight_index"].fill_(77),
        lambda s: s["l.weight_meta"].fill_(3),
        lambda s: s["l.weight_escapes"].fill_(-1),
        lambda s: s.update({"l.weight_escapes": s["l.weight_escapes"][:-4]}),
        lambda s: s.update({"l.weight_payload": s["l.weight_payload"].float()}),
        lambda s: s.pop("l.weight_index"),
    ],
    ids=["index", "meta", "escapes", "truncated", "dtype", "one of four missing"],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_hostile_state_dict_is_refused_and_nothing_changes(
    break_it: Callable[[dict[str, Tensor]], object], strict: bool
) -> None:
    dense = dense_linear()
    model = nn.ModuleDict({"l": Linear.from_linear(dense)})
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    break_it(state)
    with pytest.raises(FormatError, match=r"^l\.weight: "):
        model.load_state_dict(state, strict=strict)
    check_linear(model["l"], dense)


def test_a_state_dict_of_another_shape_is_refused() -> None:
    """127 and 128 rows take the same tiles: only meta tells them apart."""
    module, other = Linear.from_linear(dense_linear(128)), Linear.from_linear(dense_linear(127))
    before = module.weight
    with pytest.raises(RuntimeError, match=r"weight: size mismatch: \[127, 192\] in the state"):
        module.load_state_dict(other.state_dict(), strict=False)
    assert_bits_equal(module.weight, before)


# ---- Embedding and ties -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_embedding(dtype: torch.dtype) -> None:
    dense = dense_embedding(padding_idx=3)
    module = Embedding.from_embedding(dense)
    ids = torch.randint(0, 128, (2, 5), dtype=dtype)
    assert_bits_equal(module(ids), dense(ids).detach())
    assert (module.num_embeddings, module.embedding_dim, module.padding_idx) == (128, 192, 3)
    assert repr(module).startswith("Embedding(128, 192, padding_idx=3, base=")
    with pytest.raises(IndexError, match="128"):
        module(torch.tensor([128]))
    with pytest.raises(ValueError, match=r"max_norm is 1\.0"):
        Embedding.from_embedding(dense_embedding(max_norm=1.0))
    empty = Embedding.empty(128, 192, padding_idx=3)
    empty.load_state_dict(module.state_dict())
    assert_bits_equal(empty(ids), module(ids))


def tied_model() -> nn.ModuleDict:
    embedding = Embedding.from_embedding(dense_embedding())
    return nn.ModuleDict({"head": Linear.tied_to(embedding), "embedding": embedding})


@pytest.mark.parametrize(
    "through",
    [
        lambda m: m,
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: m.float(),
        lambda m: (
            (m.to("meta").to_empty(device="cpu"), m.load_state_dict(tied_model().state_dict()))
            and m
        ),
    ],
    ids=["as built", "deepcopy", "pickle", "float", "to meta and back"],
)
def test_a_tie_holds(through: Callable[[nn.ModuleDict], nn.ModuleDict]) -> None:
    model = through(tied_model())
    names = [name for name in model.state_dict() if name.startswith("head")]
    assert names == [], "a tied weight is stored once"
    assert model["head"].operands()[0] is model["embedding"].weight_payload
    assert_bits_equal(model["head"].weight, dense_embedding().weight.detach())
    assert "tied" in repr(model["head"])
    other = Embedding.from_embedding(nn.Embedding(128, 192, dtype=BF16))
    model["embedding"].load_state_dict(other.state_dict())
    assert_bits_equal(
        model["head"].weight, other.weight, "loads of the owner reach the tied module"
    )


def test_embedding_tied_to_a_linear_with_its_own_bias() -> None:
    linear = Linear.from_linear(dense_linear())
    embedding = Embedding.tied_to(linear, padding_idx=1)
    assert_bits_equal(embedding(torch.tensor([5])), linear.weight[[5]])
    second = Linear.tied_to(embedding, bias=torch.ones(128).bfloat16())
    assert second.operands()[0] is linear.weight_payload
    assert second.bias is not linear.bias


# ---- packed parameters --------------------------------------------------------------------------


class Experts(nn.Module):
    """A stack of experts as libraries write it: 3-D parameters, indexed in forward."""

    def __init__(self, experts: int = 3, n: int = 64, k: int = 128) -> None:
        super().__init__()
        self.up = nn.Parameter(realistic_weights(experts, n, k, escape_rate=0.003))
        self.down = nn.Parameter(realistic_weights(experts, k, n, seed=4))
        self.scale = nn.Parameter(torch.ones(n, dtype=BF16))

    def forward(self, x: Tensor) -> Tensor:
        """Doc of forward."""
        for up, down in zip(self.up, self.down, strict=True):
            x = ((x @ up.T) * self.scale) @ down.T
        return x


def test_experts_are_packed_where_they_are() -> None:
    model, x = Experts(), activations(4, 128)
    dense, expected = copy.deepcopy(model), model(x)
    report = convert_model(model)
    assert [e.name for e in report.packed] == ["up", "down"]
    assert isinstance(model, Experts) and type(model).__name__ == "Experts"
    assert model.forward.__doc__ == "Doc of forward."
    assert_bits_equal(model.up, dense.up.detach())
    assert_bits_equal(model(x).detach(), expected.detach())
    assert [name for name, _ in model.named_parameters()] == ["scale"]
    assert {n for n, _ in model.named_buffers()} == {
        f"{name}{suffix}"
        for name in ("up", "down")
        for suffix in ("_payload", "_index", "_escapes", "_meta")
    }
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model)
        assert_bits_equal(other(x).detach(), expected.detach())
    other = Experts()
    with torch.no_grad():
        other.up.copy_(special_weights(3, 64, 128))
    convert_model(other)
    other.load_state_dict(model.state_dict())
    assert_bits_equal(other(x).detach(), expected.detach())


def test_forward_unpacks_each_parameter_once_and_keeps_nothing() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(realistic_weights(64, 128))

        def forward(self, x: Tensor) -> Tensor:
            assert self.w is self.w
            self.seen = weakref.ref(self.w)
            if x.numel() == 0:
                raise ZeroDivisionError
            return x @ self.w.T

    model = Twice()
    convert_model(model)
    model(activations(2, 128))
    assert model.seen() is None, "the dense weight is gone after the call"
    with pytest.raises(ZeroDivisionError):
        model(activations(0, 128))
    assert model.seen() is None, "also after an error"
    assert model.w is not model.w


def test_pack_parameter_refuses() -> None:
    packed = PackedWeight(*torch.ops.nf12.pack(special_weights(64, 64)))
    with pytest.raises(ValueError, match=r"Experts .*parameter other .*none"):
        pack_parameter(Experts(), "other", packed)
    with pytest.raises(ValueError, match=r"parameter up .*\[3, 64, 128\]"):
        pack_parameter(Experts(), "up", packed)


def test_parameters_are_unpacked_again_one_by_one() -> None:
    model, x = Experts(), activations(4, 128)
    expected = model(x)
    convert_model(model)
    for name in ("up", "down"):
        assert isinstance(model, PackedModule)
        dense = nn.Parameter(model.unpack_weight(name))
        assert unpack_parameter(model, name, dense) is model
        assert model._parameters[name] is dense
    assert type(model) is Experts and list(model.buffers()) == []
    assert_bits_equal(model(x).detach(), expected.detach())
    assert len(convert_model(model).packed) == 2


def test_parameter_lists_and_dicts() -> None:
    model = nn.Module()
    model.items = nn.ParameterList([realistic_weights(64, 64), realistic_weights(64, 64, seed=2)])
    model.named = nn.ParameterDict({"a": realistic_weights(64, 64, seed=3)})
    report = convert_model(model)
    assert [e.name for e in report.packed] == ["items.0", "items.1", "named.a"]
    assert_bits_equal(model.items[1], realistic_weights(64, 64, seed=2))
    assert_bits_equal(next(iter(model.items)), realistic_weights(64, 64))
    assert_bits_equal(model.named["a"], realistic_weights(64, 64, seed=3))


# ---- convert_model ------------------------------------------------------------------------------


class Everything(nn.Module):
    """Modules of every kind, tied and shared weights, things to leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = dense_embedding()
        self.first = dense_linear(192, 192, seed=1)
        self.alias = self.first
        self.second = dense_linear(192, 192, bias=False, seed=1)
        self.second.weight = self.first.weight
        self.conv = nn.Conv1d(192, 64, 64, dtype=BF16)
        self.attention = nn.MultiheadAttention(192, 4, batch_first=True, dtype=BF16)
        self.norm = nn.LayerNorm(192, dtype=BF16)
        self.wide = nn.Linear(192, 192)
        self.head = dense_linear(128, 192, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        h = self.norm(h + self.alias(h) + self.second(h))
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(h)


def test_convert_everything() -> None:
    model = Everything()
    dense = copy.deepcopy(model)
    ids = torch.randint(0, 128, (2, 7))
    report = convert_model(model)
    packed = {entry.name: entry for entry in report.packed}
    assert list(packed) == [
        "embedding.weight", "first.weight", "conv.weight", "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]  # fmt: skip
    assert packed["embedding.weight"].aliases == ("head.weight",)
    assert packed["first.weight"].aliases == ("alias.weight", "second.weight")
    assert type(model.embedding) is Embedding and type(model.head) is Linear
    assert type(model.first) is Linear and model.alias is model.first
    assert model.second.operands()[0] is model.first.weight_payload
    assert model.head.operands()[0] is model.embedding.weight_payload
    assert isinstance(model.attention.out_proj, PackedModule)
    for name in ("embedding", "first", "second", "head", "conv"):
        kept = getattr(dense, name).weight.detach()
        assert_bits_equal(getattr(model, name).weight, kept, name)
    reasons = {entry.name: entry.reason for entry in report.dense}
    assert reasons["wide.weight"] == "dtype is torch.float32"
    assert reasons["norm.weight"] == "1-D, NF12 packs 2-D and 3-D weights"
    assert_near(model(ids), dense(ids))

    before = sum(p.nbytes for p in dense.parameters())
    after = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert report.bytes_before == before and report.bytes_after == after
    dense_bytes = sum(entry.dense_bytes for entry in report.dense)
    assert report.coverage == 1 - dense_bytes / before


def test_report_prints_and_is_json() -> None:
    report = convert_model(Everything(), cast=True)
    text = str(report)
    assert text.startswith("packed 6 of 13 weights, ")
    assert "  dense norm.weight [192]: 1-D" in text
    assert "  cast  wide.weight [192, 192] from torch.float32: worst error" in text
    data = json.loads(report.to_json())
    assert data["coverage"] == report.coverage
    assert data["packed"][0]["name"] == "embedding.weight"
    assert data["packed"][-1]["cast"]["source_dtype"] in (None, "torch.float32")
    assert str(ConversionReport()).startswith("packed 0 of 0 weights, 0.0% of the bytes")


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        ("*.weight", None, {"embedding.weight", "first.weight", "conv.weight",
                            "attention.out_proj.weight"}),
        (["first", "conv"], None, {"first.weight", "conv.weight"}),
        ("alias.weight", None, {"first.weight"}),
        (None, "head", {"first.weight", "conv.weight", "attention.in_proj_weight",
                        "attention.out_proj.weight"}),
        (None, ("attention.*", "second.weight", "embedding"), {"conv.weight"}),
        ("attention*", "*.out_proj*", {"attention.in_proj_weight"}),
        ("First*", None, set()),
    ],
)  # fmt: skip
def test_include_and_exclude(include: Any, exclude: Any, expected: set[str]) -> None:
    report = convert_model(Everything(), include, exclude)
    assert {entry.name for entry in report.packed} == expected
    reasons = {entry.name: entry.reason for entry in report.dense}
    if exclude == "head":
        assert reasons["embedding.weight"] == "excluded", "a tied weight is one weight"
    if include == "First*":
        assert set(reasons.values()) == {"not included"}


def test_subclasses_keep_their_forward() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Shifted(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + 1

    model = nn.ModuleDict({"a": Doubled(128, 64, dtype=BF16), "b": Shifted(64, 128, dtype=BF16)})
    x, ids = activations(2, 128), torch.tensor([1, 2])
    expected = model["a"](x), model["b"](ids)
    assert len(convert_model(model).packed) == 2
    assert isinstance(model["a"], Doubled) and isinstance(model["b"], Shifted)
    assert torch.equal(model["a"](x), expected[0]) and torch.equal(model["b"](ids), expected[1])


def leave_alone() -> dict[str, tuple[nn.Module, str]]:
    """Modules that stay dense, and a part of the reason."""
    hooked = dense_linear()
    hooked.register_forward_hook(lambda m, i, o: o)
    patched = dense_linear()
    patched.forward = lambda x: x  # type: ignore[method-assign]
    parametrized = nn.utils.parametrizations.orthogonal(nn.Linear(64, 64, dtype=torch.float32))
    parametrized.to(BF16)
    no_columns = nn.Linear(1, 5, bias=False, dtype=BF16)
    no_columns.weight = nn.Parameter(torch.empty(5, 0, dtype=BF16))
    half_bias = dense_linear()
    half_bias.bias = nn.Parameter(torch.zeros(128))
    return {
        "hook": (hooked, "has hooks"),
        "patched": (patched, "forward of its own"),
        "parametrization": (parametrized, "source of a parametrization"),
        "float bias": (half_bias, "bias has dtype torch.float32"),
        "max_norm": (dense_embedding(max_norm=2.0), "max_norm"),
        "sparse": (dense_embedding(sparse=True), "for training"),
        "scale_grad": (dense_embedding(scale_grad_by_freq=True), "for training"),
        "lstm": (nn.LSTM(128, 64, dtype=BF16), "keeps references"),
        "meta": (dense_linear().to("meta"), "meta device"),
        "tiny": (dense_linear(2, 64), "would take"),
        "conv2d": (nn.Conv2d(64, 64, 3, dtype=BF16), "4-D"),
        "empty": (no_columns, "empty"),
    }


@pytest.mark.parametrize("case", leave_alone())
def test_what_stays_dense_is_listed_with_its_reason(case: str) -> None:
    module, reason = leave_alone()[case]
    model = nn.ModuleDict({"m": module})
    report = convert_model(model)
    assert report.packed == [] and report.coverage == 0
    assert model["m"] is module
    weights = [entry for entry in report.dense if len(entry.shape) > 1]
    assert weights and all(reason in entry.reason for entry in weights), report.dense


def test_a_weight_tied_to_one_that_must_stay_stays() -> None:
    model = nn.ModuleDict({"a": dense_linear(), "b": dense_linear()})
    model["b"].weight = model["a"].weight
    model["b"].register_forward_pre_hook(lambda m, i: None)
    report = convert_model(model)
    assert report.packed == [] and "hooks" in report.dense[0].reason
    assert model["b"].weight is model["a"].weight


def test_parameters_that_view_the_same_memory_are_one_weight() -> None:
    model = nn.ModuleDict({"a": dense_linear(), "b": dense_linear(bias=False)})
    model["b"].weight = nn.Parameter(model["a"].weight.detach())
    report = convert_model(model)
    assert [entry.aliases for entry in report.packed] == [("b.weight",)]
    assert model["b"].operands()[0] is model["a"].weight_payload


def test_the_model_itself() -> None:
    linear = dense_linear()
    report = convert_model(linear)
    assert "use nf12.Linear.from_linear" in report.dense[0].reason
    assert type(linear) is nn.Linear


def test_converting_twice_changes_nothing() -> None:
    model = Everything()
    convert_model(model)
    state = model.state_dict()
    assert convert_model(model).packed == []
    assert model.state_dict().keys() == state.keys()


def test_each_dense_weight_is_released_as_it_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(dense_linear(bias=False, seed=i) for i in range(4)))
    alive = [weakref.ref(layer.weight) for layer in model]
    seen = []
    real = nf12.convert.pack

    def counting(weight: Tensor, **options: Any) -> Any:
        seen.append(sum(ref() is not None for ref in alive))
        return real(weight, **options)

    monkeypatch.setattr(nf12.convert, "pack", counting)
    convert_model(model)
    assert seen == [4, 3, 2, 1]
    assert all(ref() is None for ref in alive)


def test_a_transformer_encoder_reads_weights_of_its_children() -> None:
    """nn.TransformerEncoderLayer looks at linear1.weight and has a fused path in eval mode."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dtype=BF16).eval()
    dense, x = copy.deepcopy(layer), activations(2, 5, 64)
    assert len(convert_model(layer).packed) == 4
    with torch.no_grad():
        assert_near(layer(x), dense(x))


# ---- compile and export -------------------------------------------------------------------------


def test_compiles_whole_with_changing_batches() -> None:
    model = Everything().requires_grad_(False)
    convert_model(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (3, 5, 9):
        ids = torch.randint(0, 128, (2, tokens))
        assert_near(compiled(ids), model(ids))


def test_compiles_with_gradients() -> None:
    module = Linear.from_linear(dense_linear())
    x = activations(3, 192).requires_grad_()
    expected = torch.autograd.grad(module(x).sum(), x)[0]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], expected)


def test_exports() -> None:
    dense = dense_linear()
    model = nn.Sequential(Linear.from_linear(dense)).requires_grad_(False)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (activations(3, 192),), dynamic_shapes=({0: batch},))
    check_linear(program.module(), dense, 7, 192)
