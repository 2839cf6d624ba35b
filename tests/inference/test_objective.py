"""What does not belong together, or is of another kind, is refused where a bound would be made of it."""

import pytest
import torch

from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.variational.objective import elbo, log_predictive
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.posterior.likelihoods import Gaussian
from fathomless.posterior.model import Draws
from fathomless.system.errors import DataError


@pytest.mark.parametrize("lacking", ["f", "log_weight", "structure", "network"])
def test_draws_whose_shapes_do_not_belong_together_are_refused(lacking):
    given = {"f": torch.zeros(2, 3, 1), "log_weight": torch.zeros(2), "structure": torch.arange(2)}
    given["network"] = torch.arange(2)
    Draws(divergence={}, **given)
    given[lacking] = given[lacking][0]  # of one network, without the axis
    with pytest.raises(DataError, match=rf"{lacking} \(.*allowed are f \(S, B, "):
        Draws(divergence={}, **given)


@pytest.mark.parametrize("axes", [(0, 1), 0, 1], ids=["a number", "one for each row", "one for each network"])
def test_a_likelihood_that_adds_up_too_much_is_refused(axes):
    class Summed(Gaussian):
        def log_prob(self, f, y):
            return super().log_prob(f, y).sum(axes)

    draws = Draws(torch.zeros(2, 3, 1), torch.full((2,), 0.5).log(), torch.arange(2), {})
    for score in (elbo, log_predictive):
        options = {"size": 3} if score is elbo else {}
        assert score(draws, Gaussian(), torch.zeros(3, 1), **options)[0].isfinite()
        with pytest.raises(DataError, match=r"log_prob of Summed returned .*allowed is \(2, 3\)"):
            score(draws, Summed(), torch.zeros(3, 1), **options)


def test_a_structure_that_is_none_is_refused():
    class Own(UnboundedDepth):
        def structure(self):
            return {"mean_depth": 1.0}

    net, rows = MLP(2, 1, 4), Rows(torch.zeros(9, 2), torch.zeros(9, 1))
    with pytest.raises(DataError, match=r"structure returned .*a dict; it must return a Structure"):
        fit(Own(net.layer, net.head), Gaussian(), rows, training=Training(epochs=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_weights_of_another_type_count_as_those_of_the_network_do(dtype):
    draws = Draws(torch.zeros(2, 3, 1), torch.full((2,), 0.5).log(), torch.arange(2), {})
    weight = torch.tensor([0.0, 2.0, 1.0])
    expected = elbo(draws, Gaussian(), torch.ones(3, 1), size=3, weight=weight).value
    found = elbo(draws, Gaussian(), torch.ones(3, 1), size=3, weight=weight.to(dtype)).value
    assert torch.equal(found, expected)
    net, rows = MLP(2, 1, 4), Rows(torch.zeros(3, 2), torch.zeros(3, 1), weight.to(dtype))
    fit(UnboundedDepth(net.layer, net.head), Gaussian(), rows, valid=rows, training=Training(epochs=1))


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        ([1.0, -2.0, 1.0], r"weight has the value -2; finite numbers >= 0 are allowed"),
        ([1.0, torch.nan, 1.0], "weight has the value nan"),
        ([1.0, torch.inf, 1.0], "weight has the value inf"),
        ([0.0, 0.0, 0.0], "all sample weights are zero; at least one must be positive"),
    ],
    ids=["negative", "nan", "infinite", "zero"],
)
def test_weights_that_count_nothing_are_refused(weight, told):
    net, rows = MLP(2, 1, 4), Rows(torch.zeros(3, 2), torch.zeros(3, 1), torch.tensor(weight))
    with pytest.raises(DataError, match=told):
        fit(UnboundedDepth(net.layer, net.head), Gaussian(), rows, training=Training(epochs=1))
