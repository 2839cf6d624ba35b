"""Networks side by side equal the networks one by one."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fathomless.nn.architectures import MLP, Residual, TabularTransformer
from fathomless.nn.stacked import (
    Apart,
    StackedLinear,
    apply_each,
    apply_stackable,
    scale_gradients,
    select_stackable,
    stack,
    unstack,
)

F, B, H = 3, 5, 8


def build(kind: str) -> nn.Module:
    match kind:
        case "linear":
            return nn.Linear(H, 4)
        case "no bias":
            return nn.Linear(H, 4, bias=False)
        case "mlp":
            return MLP(H, 2, H, "tanh").layer(1)
        case "residual":
            return MLP(H, 2, H, "silu", residual=True).layer(2)
        case "transformer":
            return TabularTransformer(H, 2, 8).layer(1)
        case "batch norm":
            return nn.Sequential(nn.Linear(H, H), nn.BatchNorm1d(H))
    raise AssertionError(kind)


KINDS = ("linear", "no bias", "mlp", "residual", "transformer", "batch norm")


@pytest.mark.parametrize("kind", KINDS)
def test_side_by_side_equals_one_by_one(kind: str) -> None:
    torch.manual_seed(0)
    modules = [build(kind) for _ in range(F)]
    x = torch.randn(F * B, H)
    each = torch.cat([module(x[i * B : (i + 1) * B]) for i, module in enumerate(modules)])
    together = stack(modules)
    assert torch.allclose(together(x), each, atol=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, "flatten", "identity", "mixed", "biases"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("shape", [(B,), (0,), (B, 2)])
def test_modules_are_evaluated_jointly(kind: str, shared: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    modules = {
        "flatten": [nn.Flatten() for _ in range(F)],
        "identity": [nn.Sequential(nn.Identity(), nn.Linear(H, 2)) for _ in range(F)],
        "mixed": [nn.Linear(H, 4), nn.Sequential(nn.Linear(H, 4), nn.Tanh()), nn.Linear(H, 4, bias=False)],
        "biases": [nn.Linear(H, 4, bias=i > 0) for i in range(F)],
    }.get(kind) or [build(kind) for _ in range(F)]
    if kind in ("transformer", "batch norm") and len(shape) > 1:
        return  # these have a second axis of their own
    modules = [module.eval() for module in modules]
    rows = torch.randn(*shape, H).expand(F, *shape, H) if shared else torch.randn(F, *shape, H)
    each = torch.stack([module(own) for module, own in zip(modules, rows, strict=True)])
    torch.testing.assert_close(apply_each(modules, rows), each, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("before", [True, False])
def test_hooks_are_called_in_a_joint_evaluation(before: bool) -> None:
    modules = [nn.Linear(H, 4) for _ in range(F)]
    rows = torch.randn(B, H)
    weight, bias = modules[1].weight, modules[1].bias
    if before:
        modules[1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1.0,))
        expected = nn.functional.linear(rows + 1.0, weight, bias)
    else:
        modules[1].register_forward_hook(lambda module, inputs, output: output + 1.0)
        expected = nn.functional.linear(rows, weight, bias) + 1.0
    torch.testing.assert_close(apply_each(modules, rows.expand(F, B, H))[1], expected)


def test_shared_rows_are_not_changed_in_place() -> None:
    modules = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(H, 4)) for _ in range(F)]
    rows = torch.randn(B, H)
    before = rows.clone()
    joint = apply_each(modules, rows.expand(F, B, H))
    assert torch.equal(rows, before)
    torch.testing.assert_close(joint, torch.stack([module(before.clone()) for module in modules]))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stay_in_their_block(kind: str) -> None:
    torch.manual_seed(0)
    together = stack([build(kind) for _ in range(F)])
    x = torch.randn(F * B, H, requires_grad=True)
    together(x)[:B].square().sum().backward()  # of the first network alone
    assert x.grad is not None
    assert bool((x.grad[:B] != 0.0).any())
    assert bool((x.grad[B:] == 0.0).all())


@pytest.mark.parametrize("stacks", [1, F])
@pytest.mark.parametrize("outputs", [1, 4])
def test_derivatives_of_heads(outputs: int, stacks: int) -> None:
    """Values are those of the single heads; derivatives are those of finite differences, also under vmap."""
    torch.manual_seed(0)
    heads: list[nn.Module] = []
    widths = (3, 3, 3) if stacks == 1 else (3, 5, 5)  # the head of depth 0 has the width of the inputs
    for width in widths:
        maps = [nn.Linear(width, outputs).double() for _ in range(stacks)]
        heads.append(maps[0] if stacks == 1 else stack(maps))
    together = select_stackable(heads)
    assert len(together) == 3
    hidden = [torch.randn(stacks * 2, width, dtype=torch.float64, requires_grad=True) for width in widths]
    each = torch.stack([head(h) for head, h in zip(heads, hidden, strict=True)])
    assert torch.allclose(apply_stackable(together, hidden), each)
    empty = apply_stackable(together, [h[:0] for h in hidden])
    empty.sum().backward()
    assert empty.shape == (3, 0, outputs)
    every = nn.ModuleList(heads)
    names = [name for name, _ in every.named_parameters()]

    class Call(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = every

        def forward(self, *hidden: Tensor) -> Tensor:
            return apply_stackable(together, hidden)

    def call(*inputs: Tensor) -> Tensor:
        values = {f"heads.{name}": value for name, value in zip(names, inputs[3:], strict=True)}
        result: Tensor = torch.func.functional_call(Call(), values, inputs[:3])
        return result

    inputs = (*hidden, *every.parameters())
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)
    assert torch.autograd.gradcheck(call, (hidden[0].detach(), *inputs[1:]))
    gradient = torch.func.grad(lambda first: call(first, *inputs[1:]).square().sum())
    rows = torch.randn(5, stacks * 2, 3, dtype=torch.float64)
    assert torch.allclose(torch.func.vmap(gradient)(rows), torch.stack([gradient(row) for row in rows]))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_clipped_one_by_one(kind: str) -> None:
    """As torch clips those of each network by itself."""
    torch.manual_seed(0)
    modules = [build(kind) for _ in range(F)]
    together = stack(copy.deepcopy(modules))
    x = torch.randn(F * B, H) * torch.tensor([0.1, 1.0, 10.0]).repeat_interleave(B)[:, None]
    together(x).square().sum().backward()
    scale_gradients([together], torch.tensor([1.0, 1.0, 2.0]), longest=20.0)
    for p in together.parameters():
        p.data = torch.zeros_like(p) if p.grad is None else p.grad
    for i, module in enumerate(modules):
        module(x[i * B : (i + 1) * B]).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 20.0)
        found = unstack(together, i)
        for name, p in module.named_parameters():
            if p.grad is not None:
                assert torch.allclose(found[name], (2.0 if i == 2 else 1.0) * p.grad, rtol=1e-3, atol=1e-4), name


@pytest.mark.parametrize("kind", KINDS)
def test_state_comes_back(kind: str) -> None:
    torch.manual_seed(0)
    modules = [build(kind) for _ in range(F)]
    together = stack(modules)
    for i, module in enumerate(modules):
        state = unstack(together, i)
        assert set(state) == set(module.state_dict())
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_what_cannot_be_stacked_is_kept_apart() -> None:
    assert isinstance(stack([nn.Linear(2, 3), nn.Linear(2, 4)]), Apart)
    assert isinstance(stack([nn.LayerNorm(3), nn.LayerNorm(3)]), Apart)
    assert isinstance(stack([nn.Linear(2, 3), nn.Linear(2, 3)]), StackedLinear)
    residual = stack([Residual(nn.Linear(3, 3)), Residual(nn.Linear(3, 3))])
    assert isinstance(residual, Residual)
    assert isinstance(residual.branch, StackedLinear)


def test_batch_statistics_are_of_own_rows() -> None:
    torch.manual_seed(0)
    together = stack([build("batch norm") for _ in range(2)])
    x: Tensor = torch.cat([torch.zeros(B, H), 100.0 + torch.randn(B, H)])
    together(x)
    assert isinstance(together, nn.Sequential)
    norms = together[1]
    assert isinstance(norms, Apart)
    spread = [float(norm.running_var.mean()) for norm in norms.members]  # type: ignore[arg-type, union-attr]
    assert spread[0] < spread[1]
