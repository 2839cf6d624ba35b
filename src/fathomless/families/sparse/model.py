r"""Networks with latent binary weights: which weights exist is a random variable.

Every weight has an inclusion variable, so that a *structure* is one of :math:`2^P` sub-networks; its posterior is a
product of Bernoulli probabilities α. Draws average over structures and weights; the median probability model keeps
the weights with α > ½, and is what is exported.
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
    """A network whose weights may be absent, with a posterior over which are there.

    Parameters
    ----------
    network : BayesianLayer
        As :func:`~fathomless.nn.bayesian.bayesian` returns it; any of its layers may have spikes and slabs.
    predict_by : {"average", "median"}
        What is drawn in evaluation: structure and weights, or weights of the median probability model.
    use_means : bool
        In evaluation take means of weights in place of draws: one network.

    Raises
    ------
    DataError
        If no layer has spikes and slabs, or for another `predict_by`.

    Notes
    -----
    In training a pass makes one local draw, independent for each row; in evaluation a draw is one network for all rows.

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
                "a network without spikes and slabs was given; make one with fathomless.nn.bayesian.bayesian"
            )
        self.set_prediction(predict_by, use_means=use_means)

    # ---- what the rest of the library asks of a model

    @property
    def stochastic(self) -> bool:
        """Whether weights are drawn."""
        return not self.use_means

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate `n` drawn networks; with `use_means`, and not in training, the one network of means.

        In evaluation several weights are drawn for each drawn structure, so that what is uncertain about either can be
        told apart; if no inclusion is open there is one structure. In training each pass is a local draw of its own.
        """
        n = n if self.stochastic or self.training else 1
        layers = [] if self.training else [layer for _, layer in self.sparse_layers()]
        passes, structures, sampled = draw_nested(lambda: self.network(x, generator), n, layers, generator)
        f = torch.stack([output for output, _ in passes])  # (S, B, K)
        if f.dtype in (torch.float16, torch.bfloat16):  # as autocast leaves it
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
        """Return the inclusion of every layer's weights, and the density of the network."""
        rows = inclusion_table(self)
        total = max(sum(row.weights for row in rows), 1)
        kept, expected = sum(row.kept for row in rows), sum(row.expected * row.weights for row in rows) / total
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
        """Return a copy; sparse networks that are built alike have the same parts.

        Raises
        ------
        DataError
            If the networks are not built alike.
        """
        own = {name: p.shape for name, p in self.named_parameters()}
        for other in others:
            if not isinstance(other, SparseNetwork) or {n: p.shape for n, p in other.named_parameters()} != own:
                raise DataError("sparse networks of several sizes were given; side by side they must be built alike")
        return copy.deepcopy(self)

    # ---- structure

    def set_prediction(self, predict_by: str, *, use_means: bool = False) -> "SparseNetwork":
        """Set what is drawn in evaluation, here and in the layers; return this model.

        Raises
        ------
        DataError
            For another `predict_by`.
        """
        self.predict_by = checks.choice("predict_by", predict_by, ("average", "median"))
        self.use_means = use_means
        for _, layer in self.sparse_layers():
            layer.predict_by, layer.use_means = predict_by, use_means
        return self

    def sparse_layers(self) -> list[tuple[str, SpikeSlab]]:
        """Return the layers with spikes and slabs, by name."""
        return sparse_layers(self.network)

    def freeze(self) -> "SparseNetwork":
        """Fix the inclusions at those of the median probability model, in place; weights can be trained on.

        Weights that are excluded stay excluded: their logits are set far from 0 and no longer trained.
        """
        for _, layer in self.sparse_layers():
            for weights in (layer.weight, layer.bias):
                if weights is not None:
                    weights.freeze()
        return self


class InputSkip(nn.Module):
    """A multilayer perceptron in which every layer after the first also sees the inputs.

    Without hidden units that matter it is a linear model, so that sparsity can choose one.

    Parameters
    ----------
    inputs, outputs : int
        Columns.
    widths : sequence of int
        Units of the hidden layers.
    activation : nn.Module
        Between layers.
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
    """Return one row for each layer that has inclusion variables, wherever in `model` it is."""
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
    """Return groups for an optimiser of your own: weights, inclusion logits, and flows.

    Inclusion logits need a rate of their own, since Adam moves a parameter by no more than about its rate in a step.

    Parameters
    ----------
    model : nn.Module
        With layers that have spikes and slabs.
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
    """Return a callback that fixes the structure after an epoch, so that the rest of a training is for the weights.

    The median probability model then is all there is: averaging over structures adds nothing.
    """

    def callback(run: Any) -> None:
        if run.epoch >= epoch:
            run.model.freeze()

    return callback
