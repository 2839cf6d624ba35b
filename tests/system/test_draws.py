"""Draws follow from the generator alone: not from strides, and not from the device that they are for."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fathomless.system import draws, memory
from fathomless.system.errors import DataError

LIKE = torch.zeros(40, 3, dtype=torch.float64)
EACH: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "normal": draws.normal,
    "uniform": draws.uniform,
    "exponential": draws.exponential,
    "bernoulli": lambda like, g: draws.bernoulli(like + 0.3, g),
    "multinomial": lambda like, g: draws.multinomial(like.new_ones(5), 40, g),
    "integers": lambda like, g: draws.integers(9, (40,), g, like.device),
    "permutation": lambda like, g: draws.permutation(40, g, like.device),
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", [name for name in EACH if name not in ("bernoulli", "multinomial")])
def test_draws_are_for_the_device_of_the_tensor(name: str) -> None:
    """A generator of the processor draws there, whatever device the numbers are for; "meta" has no probabilities."""
    draw = EACH[name]
    here, again = draw(LIKE, generator()), draw(LIKE, generator())
    elsewhere, source = draw(LIKE.to("meta"), own := generator()), own
    assert torch.equal(here, again)
    assert elsewhere.device.type == "meta"
    assert elsewhere.shape == here.shape
    assert not torch.equal(source.get_state(), generator().get_state())


@pytest.mark.parametrize("name", ["normal", "uniform"])
def test_draws_do_not_depend_on_strides(name: str) -> None:
    """Products have other strides on other devices."""
    plain, turned = (EACH[name](like, generator()) for like in (LIKE, LIKE.T.contiguous().T))
    assert torch.equal(plain, turned)
    shaped = {"normal": draws.normal, "uniform": draws.uniform}[name](LIKE[:0], generator(), LIKE.shape)
    assert torch.equal(plain, shaped)


def test_draws_have_their_laws() -> None:
    like = torch.zeros(20_000, dtype=torch.float64)
    means = {name: EACH[name](like, generator()).double().mean().item() for name in EACH if name not in "permutation"}
    wanted = {"normal": 0.0, "uniform": 0.5, "exponential": 1.0, "bernoulli": 0.3}
    for name, mean in wanted.items():
        assert means[name] == pytest.approx(mean, abs=0.03)
    assert sorted(EACH["permutation"](LIKE, generator()).tolist()) == list(range(40))


def test_a_failed_allocation_says_what_to_do() -> None:
    message = r"no memory left \(.*can't allocate memory.*\); lower width"
    with pytest.raises(DataError, match=message), memory.explain_out_of_memory("lower width"):
        torch.empty(1 << 60)
    with pytest.raises(RuntimeError, match="something else"), memory.explain_out_of_memory("lower width"):
        raise RuntimeError("something else")
    with pytest.raises(DataError, match="out of memory"), memory.explain_out_of_memory("lower width"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
