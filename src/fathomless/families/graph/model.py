r"""Posterior over infinite networks as a model: sampled networks, whose hidden units are drawn forward for each row.

Inputs are covariates with u = x and no distribution of their own. Hidden units are drawn in decreasing order,

.. math:: a_k \sim N\Big(b_k + \sum_c W_{ck} u_c,\ 1/\rho_k\Big), \qquad u_k = 1 / (1 + e^{-a_k}),

and the likelihood follows from the means :math:`\mu` and the precisions of the outputs: a normal distribution for
numbers, :math:`\Phi(\mu)` for two classes, and for more classes the probability that a latent activation is the
largest,

.. math:: p_c = \int N(t; \mu_c, 1) \prod_{j \ne c} \Phi(t - \mu_j)\, dt .
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fathomless.families.graph.graphs import Graph
from fathomless.posterior.capabilities import Resizable
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import GraphPosterior, credible_interval
from fathomless.system.draws import normal

if TYPE_CHECKING:
    from fathomless.inference.mcmc.chains import Arrays

__all__ = ["OUTPUTS", "IndianChefs", "count_output_units", "graph_of", "log_prob_largest"]

#: Kinds of outputs. Numbers have a precision each; classes are the sign of one unit or the largest of several.
OUTPUTS = ("numbers", "classes")

_STRETCHES = 10  # most blocks of states of a single chain
_NODES = 32  # of Gauss-Hermite quadrature
_OF_UNITS, _OF_LINKS = ("orders", "biases", "precisions"), ("parents", "children", "weights")
_WHOLE = ("units", "links", "link_parents", "link_children", "chain", "graph")


def count_output_units(outputs: int, kind: str) -> int:
    """Return the number of output units: T for 2 T parameters of numbers, 1 for two classes, K for K classes."""
    if kind == "numbers":
        return outputs // 2  # centres and log scales
    return 1 if outputs == 2 else outputs


class IndianChefs(Resizable):
    """Sampled networks with individual graphs.

    Parameters
    ----------
    inputs, outputs : int
        Columns D, and parameters K of the likelihood.
    kind : {"numbers", "classes"}
        Kind of the outputs.
    networks : int
        Largest number of networks in a draw, evenly spaced.

    Attributes
    ----------
    units, links : Tensor of int64, shape (S,)
        Numbers of units and edges of each network.
    unit_orders, unit_biases, unit_precisions : Tensor, shape (sum of units,)
        Orders, biases and precisions of inputs, outputs and hidden units, in this sequence, networks concatenated.
    link_parents, link_children, link_weights : Tensor, shape (sum of links,)
        Edges and their weights, networks concatenated.
    laws : Tensor, shape (S, 3)
        Concentration, mass and popularity.
    chain, graph : Tensor of int64, shape (S,)
        Chain of each network; index of its graph, the same for equal graphs.
    log_weight : Tensor, shape (S,)
        Log weight of each network; -inf for networks of chains without weight.
    """

    units: Tensor
    links: Tensor
    unit_orders: Tensor
    unit_biases: Tensor
    unit_precisions: Tensor
    link_parents: Tensor
    link_children: Tensor
    link_weights: Tensor
    laws: Tensor
    chain: Tensor
    graph: Tensor
    log_weight: Tensor

    def __init__(self, inputs: int, outputs: int, *, kind: str, networks: int = 250) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.kind = kind
        self.networks = networks
        self.rebuild({"networks": 0, "units": 0, "links": 0})

    @property
    def observed(self) -> int:
        """Number of observed units: inputs and outputs."""
        return self.inputs + count_output_units(self.outputs, self.kind)

    @property
    def stochastic(self) -> bool:
        """True: hidden units are drawn."""
        return True

    def blueprint(self) -> dict[str, Any]:
        """Return the numbers of networks, units and edges."""
        return {"networks": len(self.units), "units": len(self.unit_orders), "links": len(self.link_parents)}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Allocate buffers for the numbers of networks, units and edges in a blueprint."""
        networks, units, links = (blueprint[name] for name in ("networks", "units", "links"))
        sizes: dict[str, tuple[int, ...]] = {"log_weight": (networks,), "laws": (networks, 3)}
        sizes |= dict.fromkeys(("units", "links", "chain", "graph"), (networks,))
        sizes |= {f"unit_{name}": (units,) for name in _OF_UNITS}
        sizes |= {f"link_{name}": (links,) for name in _OF_LINKS}
        for name, size in sizes.items():
            dtype = torch.int64 if name in _WHOLE else torch.float64
            self.register_buffer(name, torch.zeros(size, dtype=dtype, device="cpu"))

    def fill(self, states: "Sequence[Arrays]", chain: Sequence[int], log_weight: Sequence[float]) -> None:
        """Set the networks from states kept by :class:`~fathomless.families.graph.sampler.GraphSampler`."""
        self.rebuild(
            {
                "networks": len(states),
                "units": sum(len(state["orders"]) for state in states),
                "links": sum(len(state["parents"]) for state in states),
            }
        )
        joined = {f"unit_{name}": np.concatenate([state[name] for state in states]) for name in _OF_UNITS}
        joined |= {f"link_{name}": np.concatenate([state[name] for state in states]) for name in _OF_LINKS}
        joined |= {"laws": np.stack([state["law"] for state in states])}
        joined |= {"units": np.array([len(state["orders"]) for state in states])}
        joined |= {"links": np.array([len(state["parents"]) for state in states])}
        joined |= {"chain": np.array(chain), "log_weight": np.array(log_weight)}
        keys = [graph_of(state, self.observed).key for state in states]
        first = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        joined["graph"] = np.array([first[key] for key in keys])
        for name, values in joined.items():
            getattr(self, name).copy_(torch.as_tensor(values, device="cpu"))

    def states(self) -> list[dict[str, NDArray[Any]]]:
        """Return the networks as one mapping of arrays each, the inverse of :meth:`fill`."""
        return [
            {name: values.cpu().numpy() for name, values in self._state(number).items()}
            for number in range(len(self.units))
        ]

    def graphs(self) -> Iterator[tuple[Graph, float]]:
        """Yield the graph and the weight of each network with positive weight."""
        weight = self.log_weight.exp().tolist()
        for number, state in enumerate(self.states()):
            if weight[number] > 0.0:
                yield graph_of(state, self.observed), weight[number]

    def _state(self, number: int) -> dict[str, Tensor]:
        state = {"law": self.laws[number]}
        for prefix, sizes, names in (("unit", self.units, _OF_UNITS), ("link", self.links, _OF_LINKS)):
            begin = int(sizes[:number].sum())
            part = slice(begin, begin + int(sizes[number]))
            state |= {name: getattr(self, f"{prefix}_{name}")[part] for name in names}
        return state

    def thin(self, most: int) -> tuple[Tensor, Tensor]:
        """Return indices and log weights, (S,), of at most `most` networks of positive weight, evenly spaced."""
        used = torch.nonzero(self.log_weight > -math.inf)[:, 0]
        count = min(most, len(used))
        chosen = used[((torch.arange(count, device=used.device) + 1) * len(used)) // count - 1]
        return chosen, self.log_weight[chosen].log_softmax(0)

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Draw the hidden units of at most `networks` networks `n` times, with the same noise for all rows.

        The prediction of a row therefore does not depend on other rows, and a draw is a smooth function of x. The
        variance due to hidden units counts as uncertainty about weights, since it varies within a graph.
        """
        chosen, log_weight = self.thin(self.networks)
        f = torch.cat([self._forward(self._state(number), x, n, generator) for number in chosen.tolist()])
        return Draws(
            f=f,
            log_weight=log_weight.repeat_interleave(n) - math.log(n),
            structure=self.graph[chosen].repeat_interleave(n),
            divergence={},
            tempered=frozenset(),
            sampled=True,
            network=self._number_independent_groups(chosen).repeat_interleave(n),
        )

    def _number_independent_groups(self, chosen: Tensor) -> Tensor:
        """Return the index of the independent group of each network, (S,): its chain, or a block of a single chain.

        States of a chain are autocorrelated, so only means over chains are independent. Means over long blocks of one
        chain are nearly independent, but do not include the variation between chains.
        """
        chain = self.chain[chosen]
        if len(chain.unique()) > 1:
            return chain
        place = torch.arange(len(chosen), device=chosen.device)
        return place * min(_STRETCHES, max(2, math.isqrt(len(chosen)))) // len(chosen)

    def _forward(self, state: Mapping[str, Tensor], x: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """Return the parameters of the likelihood under one network, (n, B, K)."""
        means, precisions = self.means(state, x, n, generator)
        if self.kind == "numbers":
            return torch.cat([means, (-0.5 * precisions.log()).expand_as(means)], -1)
        if means.shape[-1] == 1:
            log_p: Tensor = torch.special.log_ndtr(torch.cat([-means, means], -1))
            return log_p
        return log_prob_largest(means)

    def means(
        self, state: Mapping[str, Tensor], x: Tensor, n: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Draw hidden units forward; return means (n, B, T) and precisions (T,) of the output units."""
        units = len(state["orders"])
        inputs = self.inputs
        weights = x.new_zeros(units, units)
        weights[state["parents"], state["children"]] = state["weights"]
        of_inputs = state["biases"] + x @ weights[:inputs]  # (B, K)
        hidden = self.observed + torch.argsort(-state["orders"][self.observed :], stable=True)
        noise = normal(x, generator, (len(hidden), n, 1))
        noise = noise / state["precisions"][hidden].sqrt()[:, None, None]
        u = x.new_zeros(len(hidden), n, x.shape[0])
        for place, unit in enumerate(hidden.tolist()):  # parents before children
            activation = of_inputs[:, unit] + noise[place]
            if place:
                activation = activation + torch.tensordot(weights[hidden[:place], unit], u[:place], 1)
            u[place] = activation.sigmoid()
        outputs = slice(inputs, self.observed)
        means = of_inputs[:, outputs].expand(n, -1, -1)
        if len(hidden):
            means = means + torch.einsum("ht,hnb->nbt", weights[hidden, outputs], u)
        return means, state["precisions"][outputs]

    def structure(self) -> GraphPosterior:
        """Return the posterior of the numbers of hidden units and edges, and of the depth."""
        used = self.log_weight > -math.inf
        counts: dict[str, dict[int, float]] = {"hidden units": {}, "edges": {}, "depth": {}}
        for graph, weight in self.graphs():
            for law, value in zip(counts.values(), (graph.hidden, graph.links, graph.depth), strict=True):
                law[value] = law.get(value, 0.0) + weight
        counts = {name: dict(sorted(law.items())) for name, law in counts.items()}
        means = {name: sum(value * p for value, p in law.items()) for name, law in counts.items()}
        low, high = credible_interval(counts["hidden units"], 0.9) if counts["hidden units"] else (0, 0)
        graphs = len(self.graph[used].unique())
        chains = len(self.chain.unique())
        kept = len(self.chain[used].unique())
        return GraphPosterior(
            kind="graph",
            summary=f"{means['hidden units']:.1f} hidden units (90 %: {low}–{high}), {means['edges']:.0f} edges, "
            f"depth {means['depth']:.1f}; {chains} chains, {kept} used",
            statistics={
                "mean_hidden": means["hidden units"],
                "mean_edges": means["edges"],
                "mean_depth": means["depth"],
                "graphs": float(graphs),
            },
            counts=counts,
        )


def graph_of(state: "Arrays", observed: int) -> Graph:
    """Return the graph of a sampled network."""
    edges = np.zeros((len(state["orders"]),) * 2, dtype=bool)
    edges[state["parents"], state["children"]] = True
    return Graph(np.asarray(state["orders"]), edges, observed)


def log_prob_largest(means: Tensor) -> Tensor:
    """Return the log probability that each of K normal variables of variance 1 is the largest, for means (..., K)."""
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    t = torch.as_tensor(math.sqrt(2.0) * nodes, dtype=means.dtype, device=means.device)
    log_w = torch.as_tensor(np.log(weights / math.sqrt(math.pi)), dtype=means.dtype, device=means.device)
    columns = []
    for place in range(means.shape[-1]):
        gaps = means[..., place : place + 1] - means  # (..., K)
        rivals = torch.special.log_ndtr(t[:, None] + gaps[..., None, :])  # (..., Q, K)
        columns.append(torch.logsumexp(log_w + rivals.sum(-1) - rivals[..., place], -1))
    log_p: Tensor = torch.stack(columns, -1)
    return log_p.log_softmax(-1)
