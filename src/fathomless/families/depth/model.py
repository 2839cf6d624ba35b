r"""Unbounded depth: networks whose number of layers is a random variable without an upper limit.

Layers :math:`f_1, f_2, \dots` are chained, :math:`h_0 = x`, :math:`h_k = f_k(h_{k-1})`; a head :math:`o_\ell` on
depth ℓ gives the parameters of the likelihood, :math:`\Omega_\ell = o_\ell \circ f_\ell \circ \dots \circ f_1`. Depth
has a prior without bound and a posterior q(ℓ) whose every member is finite, so layers are created when q reaches
them. All depths share one pass through the layers. With q nested (weights that a depth does not use keep their prior),

.. math::
    \mathrm{ELBO} = \sum_\ell q(\ell) \mathrm{LL}(\ell) - \sum_k S_k \mathrm{KL}_k
                    - \sum_\ell q(\ell) \mathrm{KL}^o_\ell - \mathrm{KL}(q(\ell) \,\|\, p(\ell)),
    \qquad S_k = \sum_{\ell \ge k} q(\ell),

where :math:`S_k` is the probability that layer k is used, and a head is charged only at its own depth. (Equation 10
of Nazaret and Blei, 2022, charges heads as it does layers, which is a looser bound.)
"""

import copy
import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fathomless.families.depth.divergence import charges
from fathomless.families.depth.parts import (
    chained,
    check,
    checked,
    draw_heads,
    drawn_heads,
    freeze,
    mean_of,
    outputs,
    unfreeze,
)
from fathomless.nn.architectures import make_identity
from fathomless.nn.bayesian import sparse_layers, with_weights
from fathomless.nn.layers import BayesianLayer, WeightPrior
from fathomless.nn.sparse_layer import draw_nested
from fathomless.nn.stacked import select_stackable, stack, unstack
from fathomless.posterior.capabilities import (
    Growing,
    HasLogJoint,
    JointlyTrainable,
    LinearHeads,
    ListedStructure,
    Mergeable,
    NaturalGradient,
)
from fathomless.posterior.laws import (
    DepthLaw,
    DepthPrior,
    FixedDepth,
    PoissonPrior,
    QuantilePoisson,
    StickBreaking,
    TruncatedPoisson,
    depth_terms,
)
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.structure import ListedPosterior, make_depth_posterior
from fathomless.system.errors import ConvergenceWarning, DataError, DepthError
from fathomless.system.rng import building, fold_in

__all__ = ["UnboundedDepth"]

Build = Callable[[int], nn.Module]
_UNLIKE = (
    "the models differ in more than seeds and starts; networks trained side by side need equal layers, priors, kinds "
    "of weights, least depths and families of depths"
)


class UnboundedDepth(Growing, NaturalGradient, ListedStructure, LinearHeads, JointlyTrainable, Mergeable, HasLogJoint):
    """A network with a posterior over its depth.

    Parameters
    ----------
    layer : callable, int -> nn.Module
        Builds layer k = 1, 2, …, which accepts what layer k − 1 returns. Any module will do; a
        :class:`~fathomless.nn.layers.BayesianLayer` brings its own divergence.
    head : callable, int -> nn.Module
        Builds the head on the hidden state at depth ℓ; depth 0 is the input.
    shared_head : callable, () -> nn.Module, optional
        Builds one module that every head ends in. With ``head=lambda depth: nn.Identity()`` all depths share one
        head, as in depth uncertainty networks; with small heads it is a shared head behind an adapter per depth.
    law : DepthLaw
        Variational family over the offset ℓ − `min_depth`.
    prior : DepthPrior
        Prior over the offset.
    min_depth : int
        Least depth; 0 puts a head straight on the input, a linear model.
    weights : {"map", "meanfield", "matrix", "sparse"}
        Point estimates with the decay of the prior (penalised maximum likelihood, no evidence bound), an independent
        Gaussian per weight, a matrix normal per layer, or a Gaussian and an inclusion variable (evidence bounds).
    weight_prior : WeightPrior
        Prior N(0, s²) of the weights; s may depend on the shape of a parameter.
    weight_scale : float
        Initial standard deviation of drawn weights.
    head_divergence : {"own", "cumulative"}
        Charge the head of a depth when that depth is drawn, or whenever a deeper one is (the paper's equation 10).
    growth : {"default", "identity"}
        Layers created after construction start as built, or so that the new deepest network computes what the old
        deepest one does: identity layers (zero residual branches) and a copied head.
    max_depth : int, optional
        Deepest network allowed. When the posterior asks for more it is cut there, with a warning.
    seed : int
        Layer k is initialised from hash(seed, k): the result does not depend on when or where it is created.
    dtype : torch.dtype
        Floating-point type of the weights. The posterior over depth is in float64 always.

    Raises
    ------
    DataError
        For options that are not allowed.

    Examples
    --------
    >>> from fathomless.nn.architectures import MLP
    >>> net = MLP(inputs=2, outputs=3, width=8)
    >>> model = UnboundedDepth(net.layer, net.head)
    >>> draws = model.draw(torch.zeros(5, 2))
    >>> draws.f.shape  # one row of networks for each depth in the support
    torch.Size([6, 5, 3])
    """

    _charges: Tensor  # (m, columns) what each depth pays for each divergence
    _sizes: Tensor  # (P,) elements of each point estimate that carries a prior
    _depths: Tensor  # (m,) depths of the support
    _log_prior: Tensor  # (m,)

    def __init__(
        self,
        layer: Build,
        head: Build,
        *,
        shared_head: Callable[[], nn.Module] | None = None,
        law: DepthLaw | None = None,
        prior: DepthPrior | None = None,
        min_depth: int = 1,
        weights: str = "map",
        weight_prior: WeightPrior | None = None,
        weight_scale: float = 0.02,
        head_divergence: str = "own",
        growth: str = "default",
        max_depth: int | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        check(min_depth, max_depth, weights, head_divergence, growth)
        self.layer, self.head = layer, head
        self.law, self.prior = law or TruncatedPoisson(), prior or PoissonPrior()
        self.min_depth, self.max_depth = min_depth, max_depth
        self.weights, self.weight_prior, self.weight_scale = weights, weight_prior or WeightPrior(), weight_scale
        self.head_divergence, self.growth, self.seed, self._dtype = head_divergence, growth, seed, dtype
        self.layers = nn.ModuleDict()
        self.heads = nn.ModuleDict()
        self.law_parameters = nn.ParameterList()
        self.readout: nn.Module | None = None  # the shared head, by the name that saved models have for it
        self._support: tuple[int, ...] = ()
        self._at_rest: _Weighed | None = None
        self._frozen: set[str] = set()  # names of the parameters that were put to rest
        self._given: tuple[float, ...] | None = None  # masses that the law was given, for the blueprint
        self._shared = False  # whether others' parameters are put in
        self.register_load_state_dict_post_hook(_forget)
        self._add_law_parameters(0)
        if shared_head is not None:
            self.readout = self._build("readout", 0, lambda _: shared_head())
        self._extend(None)
        if growth == "identity":
            make_identity(self.layer(len(self.layers) + 1))  # refuse now rather than in mid-training

    # ---- what the rest of the library asks of a model

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate one network per depth in the support and per weight draw; point estimates need one pass.

        One joint draw of the layers serves all depths, because q(θ_k | ℓ) is the same for every ℓ ≥ k.
        """
        depth = self._weigh_depths()
        n = n if self.stochastic else 1
        sparse = [] if self.training else self._sparse_layers
        alone = n > 1 and self._drawn_heads_alone and not self.training
        hidden = self._hidden(x) if alone else None  # once for all draws of the heads
        passes, sets, sampled = draw_nested(lambda: self._evaluate(x, generator, hidden), n, sparse, generator)
        f = torch.cat([f for f, _ in passes]) if n > 1 else passes[0][0]  # (S, B, K)
        if f.dtype in (torch.float16, torch.bfloat16):  # as autocast leaves it
            f = f.float()
        divergence = torch.stack([kl for _, kl in passes]).mean(0) if n > 1 else passes[0][1]  # (columns,)
        log_weight, structure = depth.log_weight.to(f.dtype), self._depths
        if n > 1:
            log_weight, structure = (log_weight - math.log(n)).repeat(n), structure.repeat(n)  # (S,)
        if sampled:  # a structure is a depth and what is included there
            shift = torch.tensor(sets, device=structure.device).repeat_interleave(len(self._depths))
            structure = structure + shift * (self.depth + 1)
        # a product and a sum, since autocast would round a dot product
        weights = (depth.charge * divergence).sum()
        number = torch.tensor(sets if sampled else range(n), device=structure.device) if n > 1 else None
        return Draws(
            f,
            log_weight,
            structure,
            {"weights": weights, "depth": depth.divergence},
            sampled=sampled,
            network=None if number is None else number.repeat_interleave(len(self._depths)),
        )

    def structure(self) -> ListedPosterior:
        """Return the posterior over depth."""
        return make_depth_posterior(self.depth_posterior())

    def grow(self, limit: int | None = None) -> int:
        """Follow the support of q: create layers, put layers outside it to rest, wake layers that return.

        Layers at rest keep their parameters and buffers bit for bit: they have no gradient (None, not zero).

        Parameters
        ----------
        limit : int, optional
            Create at most this many layers now, with their heads; q is cut at the deepest that exists.

        Returns
        -------
        int
            How many layers and heads were created.
        """
        self._at_rest, bound = None, self.law.lower_bound()
        for p in self.law_parameters if bound is not None else ():
            p.data.clamp_(min=bound)
        return self._extend(limit)

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the raw parameters of the depth law."""
        return {f"law_parameters.{i}": p for i, p in enumerate(self.law_parameters)}

    @torch.no_grad()
    def fisher(self) -> Tensor:
        """Σ ∂q ∂qᵀ / q; for the Poisson law without truncation this is 1/λ in λ."""
        q, dq = self.law.probs_and_grad(self._eta(), self._support)
        q = q.clamp(min=1e-6)  # an atom that has just entered would dominate without saying anything
        return (dq / q[:, None]).T @ dq

    @torch.no_grad()
    def use_probability(self) -> dict[str, Tensor]:
        """S_k for layer k, q(ℓ) for the head at depth ℓ, 1 for a shared head."""
        q, _ = self.law.probs_and_grad(self._eta(), self._support)
        survival = q.flip(0).cumsum(0).flip(0)  # (m,) probability of this depth or a deeper one
        shares = dict(zip(self._depths_in_use, zip(q.unbind(), survival.unbind(), strict=True), strict=True))
        used = {}
        for name, part in self._parts:
            kind, _, number = name.partition(".")
            if kind == "layers":
                share = next(s for depth, (_, s) in shares.items() if depth >= int(number))
            else:
                share = shares[int(number)][0] if kind == "heads" else torch.ones_like(q[0])
            used.update({f"{name}.{parameter}": share for parameter, _ in part.named_parameters()})
        return used

    def blueprint(self) -> dict[str, Any]:
        """Return what must exist before a ``state_dict`` of this model can be loaded, as plain JSON."""
        return {
            "layers": len(self.layers),
            "heads": sorted(map(int, self.heads)),
            "law_parameters": len(self.law_parameters),
            "support": list(self._support),
            **({} if self._given is None else {"masses": list(self._given)}),
            **({"drawn_heads": drawn} if (drawn := drawn_heads([self.heads])) else {}),
        }

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Have exactly the layers, heads and support of a blueprint that :meth:`blueprint` returned."""
        unfreeze(self, self._frozen)
        if "masses" in blueprint:
            self._given = tuple(blueprint["masses"])
            self.law = FixedDepth(tuple(blueprint["support"]), self._given)
        for depth in range(blueprint["layers"] + 1, len(self.layers) + 1):
            del self.layers[str(depth)]
        for depth in range(len(self.layers) + 1, blueprint["layers"] + 1):
            self.layers[str(depth)] = self._build("layer", depth, self.layer)
        for name in set(self.heads) - set(map(str, blueprint["heads"])):
            del self.heads[name]
        for depth in blueprint["heads"]:
            self._add_head(depth, copied_from=None)
        draw_heads(self.heads, blueprint.get("drawn_heads", {}))
        self.law_parameters = nn.ParameterList(list(self.law_parameters)[: blueprint["law_parameters"]])
        self._add_law_parameters(blueprint["law_parameters"] - 1)
        self._arrange(tuple(blueprint["support"]))

    def merge(self, others: Sequence[Model]) -> "UnboundedDepth":
        """Return a copy with every layer, head and depth that this model or any of `others` has."""
        models = self._with_alike(others)
        reach = sorted({k for model in models for k in model._support})
        heads = {int(depth) for model in models for depth in model.heads}
        whole = copy.deepcopy(self)
        whole._shared = True
        whole.rebuild(
            {
                "layers": max(len(model.layers) for model in models),
                "heads": sorted(heads),
                "law_parameters": max(len(model.law_parameters) for model in models),
                "support": reach,
                "drawn_heads": drawn_heads([model.heads for model in models]),
            }
        )
        return whole

    def list_structures(self, count: int) -> dict[int, float]:
        """Return depth -> log prior of the `count` shallowest depths, as far as `max_depth` and the prior allow."""
        if self.max_depth is not None:
            count = min(count, self.max_depth - self.min_depth + 1)
        log_prior = self.prior.log_prob(torch.arange(count, dtype=torch.float64, device="cpu"))
        return {self.min_depth + k: p for k, p in enumerate(log_prior.tolist()) if p > -math.inf}

    def weigh(self, masses: Mapping[int, float], *, only: bool = False) -> int:
        """Take these depths, with these masses, as the posterior; create what they need, put the rest to rest.

        With `only`, what they do not use is dropped.
        """
        total = math.fsum(masses.values())
        self._given = tuple(mass / total for mass in masses.values())
        self.law = FixedDepth(tuple(depth - self.min_depth for depth in masses), self._given)
        self.law_parameters = nn.ParameterList()
        created = self._extend(None)
        if only:
            self.rebuild({**self.blueprint(), "layers": self.depth, "heads": self._depths_in_use})
        return created

    def network(self, number: int) -> nn.Module:
        """Return the network of one depth, which must have a head, as a plain module that shares nothing with this."""
        parts = [*(self.layers[str(k)] for k in range(1, number + 1)), mean_of(self.heads[str(number)])]
        parts += [self.readout] if self.readout is not None else []
        return copy.deepcopy(nn.Sequential(*parts)).eval().requires_grad_(True)

    def stack(self, others: Sequence[Model]) -> "UnboundedDepth":
        """Return one network whose layers and heads are those of this one and of `others`, for rows in blocks."""
        models = self._with_alike(others)
        if self.stochastic or self.growth != "default":
            raise DataError(
                f"{len(models)} networks with weights={self.weights!r} and growth={self.growth!r} were asked to be "
                "trained as one; allowed are point estimates (weights='map', and no drawn heads) and growth='default': "
                "set cv=1"
            )

        device = self._device()  # before parts that are shared with these networks are built into another one
        for model in models:
            unfreeze(model, model._frozen)

        def joined(kind: str) -> Build:
            return lambda depth: stack([model._part(kind, depth) for model in models])

        return UnboundedDepth(
            joined("layer"),
            joined("head"),
            shared_head=None if self.readout is None else lambda: joined("readout")(0),
            law=self.law,
            prior=self.prior,
            min_depth=self.min_depth,
            weight_prior=self.weight_prior,
            head_divergence=self.head_divergence,
            max_depth=self.max_depth,
            seed=self.seed,
            dtype=self._weights_dtype(),
        ).to(device)

    @torch.no_grad()
    def unstack(self, models: Sequence[Model]) -> None:
        """Write the layers, heads and law of what :meth:`stack` returned into the networks it stands for."""
        for i, model in enumerate(models):
            assert isinstance(model, UnboundedDepth)
            model.rebuild(self.blueprint())
            model.load_state_dict({**unstack(self, i), **self.structure_parameters()})

    def _part(self, kind: str, depth: int) -> nn.Module:
        """Return a layer, a head or the shared head, built now if it does not exist."""
        if kind == "readout":
            assert self.readout is not None
            return self.readout
        parts, build = (self.layers, self.layer) if kind == "layer" else (self.heads, self.head)
        return parts[str(depth)] if str(depth) in parts else self._build(kind, depth, build)

    def features(self, x: Tensor) -> dict[int, Tensor]:
        """Return the hidden state that each depth in the support puts its head on."""
        return dict(zip(self._depths_in_use, self._hidden(x), strict=True))

    def heads_in_use(self) -> dict[int, nn.Module]:
        """Return the head of each depth in the support."""
        if self.readout is not None or any(name.startswith("layers.") for name in self._bayesian):
            raise DataError(
                f"heads were asked for by themselves of a network with shared_head={self.readout is not None} and "
                f"weights={self.weights!r}; a head for each depth, on layers whose weights are not drawn, is needed"
            )
        return {depth: self.heads[str(depth)] for depth in self._depths_in_use}

    def replace_heads(self, heads: Mapping[int, nn.Module]) -> None:
        """Put others in the place of the heads at some depths."""
        self.heads.update({str(depth): head for depth, head in heads.items()})
        self._arrange(self._support)

    def _with_alike(self, others: Sequence[Model]) -> "list[UnboundedDepth]":
        alike = [other for other in others if isinstance(other, UnboundedDepth) and other._kind() == self._kind()]
        if len(alike) < len(others):
            raise DataError(_UNLIKE)
        return [self, *alike]

    def _kind(self) -> tuple[Any, ...]:
        """Return what networks that are trained side by side must share."""
        rated = isinstance(self.law, TruncatedPoisson | QuantilePoisson | StickBreaking)
        law = dataclasses.replace(self.law, rate=1.0) if rated else self.law  # type: ignore[type-var]
        parts = [str(next(iter(part.values()), None)) for part in (self.layers, self.heads)]
        options = (self.weights, self.weight_prior, self.weight_scale, self.head_divergence, self.growth)
        return (law, self.prior, self.min_depth, self.max_depth, self._weights_dtype(), *options, *parts)

    # ---- depth

    @property
    def depth(self) -> int:
        """Deepest network in the support."""
        return self.min_depth + self._support[-1]

    @property
    def stochastic(self) -> bool:
        """Whether any weight in use is drawn rather than a point estimate."""
        return bool(self._bayesian)

    @torch.no_grad()
    def depth_posterior(self) -> dict[int, float]:
        """Return q(ℓ) for every depth ℓ in the support."""
        q, _ = self.law.probs_and_grad(self._eta(), self._support)
        return {self.min_depth + k: p for k, p in zip(self._support, q.tolist(), strict=True)}

    def restricted(self, masses: dict[int, float]) -> "UnboundedDepth":
        """Copy this model with a fixed law on the given depths, without the parts that they do not use."""
        small = copy.deepcopy(self)
        small.weigh(masses, only=True)
        return small

    # ---- inside

    def _eta(self) -> Tensor:
        none = torch.empty(0, dtype=torch.float64, device=self._device())
        return torch.stack(list(self.law_parameters)) if len(self.law_parameters) else none

    def _device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def _weights_dtype(self) -> torch.dtype:
        """Return the type that new parts get: that of those there are, also after a conversion."""
        weights = (p for parts in (self.layers, self.heads) for p in parts.parameters())
        return next((p.dtype for p in weights if p.is_floating_point()), self._dtype)

    def _weigh_depths(self) -> "_Weighed":
        """Weigh the depths of the support.

        In training, while η is frozen, the result is kept until the next look at η (:meth:`grow`). A parameter's
        version would not tell of a change, since fused optimisers do not count it up.
        """
        law = list(self.law_parameters)  # no Parameter is what functional_call has put in
        held = not (self._shared or any(p.requires_grad or not isinstance(p, nn.Parameter) for p in law))
        frozen = held and self.training and torch.is_grad_enabled()
        if frozen and self._at_rest is not None and self._at_rest.charge.device == self._charges.device:
            return self._at_rest
        q, log_q, divergence = depth_terms(self.law, self._eta(), self._support, self._log_prior)
        weighed = _Weighed(log_q, (q[:, None] * self._charges).sum(0), divergence)
        self._at_rest = weighed if frozen else None
        return weighed

    def _hidden(
        self, x: Tensor, generator: torch.Generator | None = None, divergences: dict[str, Tensor] | None = None
    ) -> list[Tensor]:
        """Run the layers once; return the hidden state of each depth in the support."""
        divergences = {} if divergences is None else divergences
        hidden = chained(self._layers_in_use, x, generator, divergences, plain=not self._bayesian)
        return [hidden[depth] for depth in self._depths_in_use]

    def _evaluate(
        self, x: Tensor, generator: torch.Generator | None, hidden: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (depths, B, K) and divergences (columns,), of hidden states if they are known."""
        divergences: dict[str, Tensor] = {}
        hidden = self._hidden(x, generator, divergences) if hidden is None else hidden
        at_once = not self._shared and not torch.is_autocast_enabled(x.device.type)
        f = outputs(self._heads_in_use, self._linear_heads if at_once else [], hidden, generator, divergences)
        if self.readout is not None:
            f = outputs([("readout", self.readout)] * len(f), [], f.unbind(), generator, divergences)
        divergence = self._pays.decay(self._sizes, self._shared)
        if divergences:
            drawn = torch.stack([divergences[name].double() for name in self._bayesian])
            divergence = torch.cat([divergence, drawn])
        return f, divergence

    def _extend(self, limit: int | None) -> int:
        built = len(self.layers) > 0 or (self.min_depth > 0 and bool(self.heads))
        support = self._allowed(self.law.support(self._eta()))
        wanted = self.min_depth + support[-1]
        created = 0
        while len(self.layers) < wanted and (limit is None or created < limit):
            depth = len(self.layers) + 1
            self.layers[str(depth)] = self._build(
                "layer", depth, self.layer, make_identity if built and self.growth == "identity" else None
            )
            self._add_law_parameters(depth - self.min_depth)
            created += 1
        reachable = len(self.layers) - self.min_depth
        support = tuple(k for k in support if k <= reachable) or (reachable,)
        for k in support:
            source = self.min_depth + k - 1 if built and self.growth == "identity" else None
            created += self._add_head(self.min_depth + k, copied_from=source)
        if created or support != self._support:
            self._arrange(support)
        return created

    def _allowed(self, support: Sequence[int]) -> tuple[int, ...]:
        if self.max_depth is None or self.min_depth + support[-1] <= self.max_depth:
            return tuple(support)
        deepest = self.max_depth - self.min_depth
        if not self._support or self._support[-1] < deepest:
            warnings.warn(
                f"the posterior over depth asks for {self.min_depth + support[-1]} layers; max_depth={self.max_depth} "
                "are allowed, and it is cut there. Raise max_depth, lower the prior's mean depth, or accept a bound",
                ConvergenceWarning,
                stacklevel=4,
            )
        return tuple(k for k in support if k <= deepest) or (deepest,)

    def _build(
        self, kind: str, depth: int, build: Build, adjust: Callable[[nn.Module], None] | None = None
    ) -> nn.Module:
        with building(fold_in(self.seed, kind, depth)):
            built = [(f"{k}s.{at}", part) for k in ("layer", "head") for at, part in getattr(self, f"{k}s").items()]
            part = checked(kind, depth, build(depth), built)
            if adjust is not None:
                adjust(part)
            part = with_weights(self.weights, part, self.weight_prior, self.weight_scale)
        return part.to(self._device(), self._weights_dtype()).train(self.training)

    def _add_head(self, depth: int, copied_from: int | None) -> int:
        if str(depth) in self.heads:
            return 0
        head = self._build("head", depth, self.head)
        if str(copied_from) in self.heads:
            old, new = self.heads[str(copied_from)].state_dict(), head.state_dict()
            if {name: value.shape for name, value in old.items()} == {name: value.shape for name, value in new.items()}:
                head.load_state_dict(old)
        self.heads[str(depth)] = head
        return 1

    def _add_law_parameters(self, last: int) -> None:
        for k in range(len(self.law_parameters), last + 1):
            raw = self.law.start(k)
            if raw is not None:
                value = torch.tensor(raw, dtype=torch.float64, device=self._device())
                self.law_parameters.append(nn.Parameter(value))

    def _arrange(self, support: tuple[int, ...]) -> None:
        """Set the support, wake what is in it and put the rest to rest, and lay out who uses what."""
        self._support, self._at_rest = support, None
        depths = [self.min_depth + k for k in support]
        layers = [(f"layers.{k}", self.layers[str(k)]) for k in range(1, depths[-1] + 1)]
        heads = [(f"heads.{k}", self.heads[str(k)]) for k in depths]
        readout = [("readout", self.readout)] if self.readout is not None else []
        self._parts: list[tuple[str, nn.Module]] = [*layers, *heads, *readout]
        unfreeze(self, self._frozen)
        self._frozen = freeze([("layers", self.layers), ("heads", self.heads)], [part for _, part in self._parts])
        self._layers_in_use, self._heads_in_use, self._depths_in_use = layers, heads, depths
        self._linear_heads = select_stackable([head for _, head in heads])
        self._bayesian = [name for name, part in self._parts if isinstance(part, BayesianLayer)]
        self._drawn_heads_alone = all(name.startswith("heads.") for name in self._bayesian)
        self._sparse_layers = [layer for _, part in self._parts for _, layer in sparse_layers(part)]
        self._pays = charges(self._parts, depths, self.weight_prior, cumulative=self.head_divergence == "cumulative")
        log_prior = self.prior.log_prob(torch.tensor(support, dtype=torch.float64, device="cpu"))
        if not bool(log_prior.isfinite().all()):
            reason = f"the posterior over depth reaches {depths[-1]} layers, where the prior {self.prior} has no mass"
            raise DepthError(f"{reason}; choose a prior that covers the support, or a law that stays inside the prior")
        for name, table in (
            ("_charges", self._pays.table),
            ("_sizes", torch.tensor(self._pays.sizes, dtype=torch.int64, device=self._device())),
            ("_depths", torch.tensor(depths, device=self._device())),
            ("_log_prior", log_prior),
        ):
            self.register_buffer(name, table.to(self._device()), persistent=False)


def _forget(model: nn.Module, _: object) -> None:
    """Forget what was computed from parameters that were just loaded."""
    assert isinstance(model, UnboundedDepth)
    model._at_rest = None


class _Weighed(NamedTuple):
    log_weight: Tensor  # (m,) log q
    charge: Tensor  # (columns,) what is paid for each divergence, on average over depths
    divergence: Tensor  # KL(q ‖ prior)
