"""Flows: triangular Jacobians, log-determinants, and densities that sum to one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from fathomless.nn.flows import Flow, GatedStep
from fathomless.system.errors import DataError


def flow(d: int, kind: str = "iaf", steps: int = 2, hidden: tuple[int, ...] = (16, 12), seed: int = 0) -> Flow:
    torch.manual_seed(seed)
    return Flow(d, kind, steps, hidden, gate=0.5, shift=0.3, scale=3.0).double()


@given(st.integers(1, 9), st.sampled_from(["iaf", "coupling"]), st.integers(0, 3), st.integers(0, 3))
def test_log_determinant_is_that_of_the_jacobian(d: int, kind: str, steps: int, seed: int) -> None:
    own = flow(d, kind, steps, seed=seed)
    z = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    _, log_det = own(z)
    j = jacobian(lambda v: own(v)[0], z)
    assert log_det.item() == pytest.approx(torch.linalg.slogdet(j).logabsdet.item(), abs=1e-9)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_step_is_triangular_in_its_ordering_and_uses_all_that_precede(reverse: bool) -> None:
    d = 6
    torch.manual_seed(1)
    ranks = torch.arange(d).flip(0) if reverse else torch.arange(d)
    step = GatedStep(ranks, (32, 32), coupling=False, gate=0.0, shift=0.0, scale=1.0).double()
    j = jacobian(lambda v: step(v)[0], torch.randn(d, dtype=torch.float64))
    later = ranks[:, None] < ranks[None, :]  # the input's rank is beyond the output's
    assert not j[later].any()
    assert bool((j[ranks[:, None] > ranks[None, :]].abs() > 0.0).all())


def test_the_first_coordinate_of_a_step_is_not_the_first_of_the_next() -> None:
    own = flow(5, steps=3)
    firsts = []
    for step in own.steps:
        j = jacobian(lambda v, step=step: step(v)[0], torch.randn(5, dtype=torch.float64))
        firsts.append(next(i for i in range(5) if (j[i] != 0.0).sum() == 1))
    assert firsts[0] != firsts[1]
    assert firsts[1] != firsts[2]


@pytest.mark.parametrize("kind", ["iaf", "coupling"])
def test_a_coupling_step_moves_one_half_and_the_next_the_other(kind: str) -> None:
    own = flow(6, kind)
    z = torch.randn(6, dtype=torch.float64)
    moved = []
    for step in own.steps:
        image, _ = step(z)
        moved.append(image != z)
    if kind == "coupling":
        assert torch.equal(moved[0], ~moved[1])
        assert moved[0].sum() == 3
    else:
        assert bool(moved[0].all() and moved[1].all())


@pytest.mark.parametrize("kind", ["iaf", "coupling"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_density_of_a_flow_sums_to_one(kind: str, d: int) -> None:
    own, n = flow(d, kind, seed=3), 100_000
    z0 = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        z, log_det = own(z0)
    log_q = -0.5 * (z0.square() + math.log(2.0 * math.pi)).sum(1) - log_det
    centre, scale = z.mean(0), 0.5 * z.std(0)
    log_t = torch.distributions.Normal(centre, scale).log_prob(z).sum(1)  # inside the support of q
    ratio = (log_t - log_q).exp()
    assert abs(ratio.mean().item() - 1.0) < 5.0 * ratio.std().item() / math.sqrt(n)


def test_many_vectors_are_mapped_as_one_by_one() -> None:
    own, z = flow(4), torch.randn(3, 4, dtype=torch.float64)
    image, log_det = own(z)
    for i in range(3):
        one, own_det = own(z[i])
        torch.testing.assert_close((image[i], log_det[i]), (one, own_det))


def test_masked_weights_stay_masked_under_an_optimiser() -> None:
    own = flow(5)
    optimizer = torch.optim.Adam(own.parameters(), lr=0.1)
    for _ in range(3):
        image, log_det = own(torch.randn(5, dtype=torch.float64))
        (image.square().sum() - log_det).backward()
        optimizer.step()
        optimizer.zero_grad()
    z = torch.randn(5, dtype=torch.float64)
    assert own(z)[1].item() == pytest.approx(torch.linalg.slogdet(jacobian(lambda v: own(v)[0], z)).logabsdet.item())


@pytest.mark.parametrize("kind", ["iaf", "coupling"])
def test_gradients_agree_with_finite_differences(kind: str) -> None:
    own = flow(3, kind, hidden=(4,))
    z = torch.randn(3, dtype=torch.float64, requires_grad=True)
    bias = own.steps[0].layers[0].bias
    assert torch.autograd.gradcheck(lambda v, b: own(v), (z, bias))


def test_masked_weights_have_no_second_derivatives() -> None:
    own, z = flow(3, hidden=(4,)), torch.randn(3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(own(z)[0].sum(), z, create_graph=True)
    step = own.steps[0]
    (found,) = torch.autograd.grad(slope.square().sum(), step.layers[0].weight)
    assert found.any()
    assert not found[step.mask_0 == 0].any()


def test_flows_side_by_side_equal_flows_alone() -> None:
    flows, z = [flow(4, seed=seed) for seed in range(2)], torch.randn(2, 4, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(flows)  # type: ignore[arg-type]
    for value in parameters.values():
        value.requires_grad_()

    def one(p: dict[str, torch.Tensor], b: dict[str, torch.Tensor], v: torch.Tensor) -> torch.Tensor:
        image, log_det = torch.func.functional_call(flows[0], (p, b), (v,))
        return image.square().sum() - log_det

    torch.vmap(one)(parameters, buffers, z).sum().backward()
    for i, own in enumerate(flows):
        image, log_det = own(z[i])
        (image.square().sum() - log_det).backward()
        for name, p in own.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], p.grad)


@pytest.mark.parametrize("given", [{"kind": "planar"}, {"d": 0}, {"steps": -1}, {"hidden": (4, 0)}], ids=str)
def test_bad_flows_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(DataError, match="a flow"):
        Flow(**{"d": 3, **given})  # type: ignore[arg-type]
