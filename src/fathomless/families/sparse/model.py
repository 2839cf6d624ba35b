r"""Sparse networks: the inclusion of each weight is a latent binary variable.

A *structure* is one of :math:`2^P` sub-networks, given by the inclusion variables of the P weights. Its posterior is a
product of Bernoulli distributions with probabilities α. Draws average over structures and weights. The median
probability model keeps the weights with α > ½; it is the model that is exported.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.nn.bayesian import sparse_layers
from fathomless.nn.layers import BayesianLayer
from fathomless.nn.sparse_layer import SpikeSlab, draw_nested
from fathomless.posterior.capabilities import HasStructureLaw, Mergeable
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.structure import InclusionPosterior, InclusionRow
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["InputSkip", "SparseNetwork", "freeze_after", "inclusion_table", "parameter_groups"]


class SparseNetwork(HasStructureLaw, Mergeable):
    """Sparse network with a posterior over weights and their inclusion.

    Parameters
    ----------
    network : BayesianLayer
        Network from :func:`~fathomless.nn.bayesian.bayesian`, with at least one spike-and-slab layer.
    predict_by : {"average", "median"}
        Draws in evaluation: structure and weights, or weights of the median probability model.
    use_means : bool
        Use the means of the weights in evaluation instead of draws: a single network.

    Raises
    ------
    DataError
        If no layer has spikes and slabs, or `predict_by` is invalid.

    Notes
    -----
    In training a pass draws independently for each row (local reparameterisation); in evaluation a draw is one network
    for all rows.

    Examples
    --------
    >>> from fathomless.nn.bayesian import bayesian
    >>> model = SparseNetwork(bayesian(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)))).eval()
    >>> model.draw(torch.zeros(5, 2), 4).f.shape
    torch.Size([4, 5, 3])
    """

    def __init__(self, network: BayesianLayer, *, predict_by: str = "average", use_means: bool = False) -> None:
        super().__init__()
        self.network = network
        if not self.sparse_layers():
            raise DataError(
                "a network without spike-and-slab layers was given; make one with fathomless.nn.bayesian.bayesian"
            )
        self.set_prediction(predict_by, use_means=use_means)

    # ---- the interface of a model

    @property
    def stochastic(self) -> bool:
        """True if weights are drawn in evaluation."""
        return not self.use_means

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate `n` drawn networks; in evaluation with `use_means`, the single network of posterior means.

        In evaluation several vectors of weights are drawn per structure, to separate the uncertainty about structure
        from that about weights. There is one structure if all inclusions are certain. In training each pass is a
        separate local draw.
        """
        n = n if self.stochastic or self.training else 1
        layers = [] if self.training else [layer for _, layer in self.sparse_layers()]
        passes, structures, sampled = draw_nested(lambda: self.network(x, generator), n, layers, generator)
        f = torch.stack([output for output, _ in passes])  # (S, B, K)
        if f.dtype in (torch.float16, torch.bfloat16):  # from autocast
            f = f.float()
        return Draws(
            f=f,
            log_weight=f.new_full((n,), -math.log(n)),
            structure=torch.tensor(structures, device=f.device),
            divergence={"weights": torch.stack([divergence for _, divergence in passes]).mean(0)},
            sampled=sampled,
        )

    @torch.no_grad()
    def structure(self) -> InclusionPosterior:
        """Return the inclusion of the weights by layer, and the density of the network."""
        rows = inclusion_table(self)
        total = max(sum(row.weights for row in rows), 1)
        kept = sum(row.kept for row in rows)
        expected = sum(row.expected * row.weights for row in rows) / total
        undecided = sum(row.undecided * row.weights for row in rows) / total
        return InclusionPosterior(
            kind="sparsity",
            rows=tuple(rows),
            statistics={"density": kept / total, "expected_density": expected, "undecided": undecided},
            summary=f"{kept:,} of {total:,} weights in the median probability model (density {kept / total:.3g}), "
            f"{expected * total:,.0f} expected",
        )

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the inclusion logits."""
        return {name: p for name, p in self.named_parameters() if name.endswith(".logit")}

    def merge(self, others: Sequence[Model]) -> "SparseNetwork":
        """Return a copy of this network, which has the same parameters as the others.

        Raises
        ------
        DataError
            If the networks have different parameters.
        """
        shapes = {name: p.shape for name, p in self.named_parameters()}
        for other in others:
            if not isinstance(other, SparseNetwork) or {n: p.shape for n, p in other.named_parameters()} != shapes:
                raise DataError("sparse networks of different sizes were given; trained jointly they must be equal")
        return copy.deepcopy(self)

    # ---- structure

    def set_prediction(self, predict_by: str, *, use_means: bool = False) -> "SparseNetwork":
        """Set the draws in evaluation, of this model and of its layers; return the model.

        Raises
        ------
        DataError
            If `predict_by` is invalid.
        """
        self.predict_by = checks.choice("predict_by", predict_by, ("average", "median"))
        self.use_means = use_means
        for _, layer in self.sparse_layers():
            layer.predict_by, layer.use_means = predict_by, use_means
        return self

    def sparse_layers(self) -> list[tuple[str, SpikeSlab]]:
        """Return the spike-and-slab layers with their names."""
        return sparse_layers(self.network)

    def freeze(self) -> "SparseNetwork":
        """Fix the structure at the median probability model, in place; weights can be trained further.

        The inclusion logits are set far from 0 and are no longer trained.
        """
        for _, layer in self.sparse_layers():
            for weights in (layer.weight, layer.bias):
                if weights is not None:
                    weights.freeze()
        return self


class InputSkip(nn.Module):
    """Multilayer perceptron with skip connections from the inputs to every layer after the first.

    Without active hidden units it is a linear model, so that sparsity can select a linear model.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of inputs and outputs.
    widths : sequence of int
        Units of the hidden layers.
    activation : nn.Module
        Activation between layers.
    """

    def __init__(self, inputs: int, widths: Sequence[int], outputs: int, activation: nn.Module) -> None:
        super().__init__()
        sizes = [inputs, *(width + inputs for width in widths)]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, [*widths, outputs], strict=True))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, D) to (B, K)."""
        h: Tensor = self.layers[0](x)
        for layer in self.layers[1:]:
            h = layer(torch.cat([self.activation(h), x], -1))
        return h


@torch.no_grad()
def inclusion_table(model: nn.Module) -> list[InclusionRow]:
    """Return one row for each layer of `model` with inclusion variables."""
    rows = []
    for name, layer in sparse_layers(model.network if isinstance(model, SparseNetwork) else model):
        logit = layer.weight.logit
        if logit is not None:
            kept, expected = torch.stack([(logit > 0).sum().double(), logit.sigmoid().double().mean()]).tolist()
            undecided = float((logit.abs() < 1.0).double().mean())
            rows.append(InclusionRow(name, logit.numel(), int(kept), expected, undecided))
    return rows


def parameter_groups(
    model: nn.Module, rate: float, logit_rate: float | None = None, flow_rate: float | None = None
) -> list[dict[str, Any]]:
    """Return parameter groups for an optimiser: weights, inclusion logits, and flows.

    Inclusion logits need a larger learning rate, since Adam moves a parameter by at most about its rate per step.

    Parameters
    ----------
    model : nn.Module
        Module with spike-and-slab layers.
    rate, logit_rate, flow_rate : float
        Learning rates; 30 times `rate` for logits and `rate` for flows by default.
    """
    named = dict(model.named_parameters())
    logits = [p for name, p in named.items() if name.endswith(".logit")]
    flows = [p for name, p in named.items() if ".multiplier." in name]
    known = {id(p) for p in (*logits, *flows)}
    return [
        {"params": [p for p in named.values() if id(p) not in known], "lr": rate},
        {"params": logits, "lr": 30.0 * rate if logit_rate is None else logit_rate},
        {"params": flows, "lr": rate if flow_rate is None else flow_rate},
    ]


def freeze_after(epoch: int) -> Callable[[Any], None]:
    """Return a callback that fixes the structure after an epoch; later epochs train only the weights.

    Afterwards averaging over structures is the same as predicting with the median probability model.
    """

    def callback(run: Any) -> None:
        if run.epoch >= epoch:
            run.model.freeze()

    return callback
