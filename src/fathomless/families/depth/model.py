r"""Unbounded depth: networks whose number of layers is a random variable without an upper limit.

Layers :math:`f_1, f_2, \dots` are chained, :math:`h_0 = x`, :math:`h_k = f_k(h_{k-1})`; a head :math:`o_\ell` on
depth ℓ gives the parameters of the likelihood, :math:`\Omega_\ell = o_\ell \circ f_\ell \circ \dots \circ f_1`. Depth
has an unbounded prior and a posterior q(ℓ) with finite support, and layers are created as the support grows. All depths
share one pass through the layers. With q nested (weights that a depth does not use keep their prior),

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
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fathomless.families.depth.divergence import find_first, tabulate_charges
from fathomless.families.depth.parts import (
    apply_heads,
    check_kinds,
    check_options,
    check_part,
    count_head_bases,
    freeze,
    keep_inputs,
    mean_head,
    restore_gaussian_heads,
    restore_inputs,
    run_layers,
    unfreeze,
)
from fathomless.nn.architectures import make_identity
from fathomless.nn.bayesian import sparse_layers, with_weights
from fathomless.nn.layers import BayesianLayer, WeightPrior
from fathomless.nn.sparse_layer import draw_nested
from fathomless.nn.stacked import apply_each, is_deterministic, select_stackable, stack, unstack
from fathomless.posterior.capabilities import (
    Growing,
    HasLogJoint,
    JointlyEvaluable,
    JointlyTrainable,
    LinearHeads,
    ListedStructure,
    Mergeable,
    NaturalGradient,
    Recordable,
    SelectsInputs,
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
from fathomless.posterior.model import Deferred, Draws, Model
from fathomless.posterior.structure import ListedPosterior, make_depth_posterior
from fathomless.system.errors import ConvergenceWarning, DataError, DepthError
from fathomless.system.rng import building, fold_in

__all__ = ["UnboundedDepth"]

Build = Callable[[int], nn.Module]
_ROWS_AT_ONCE = 1024  # rows that networks are evaluated on jointly
_MISMATCH = (
    "the models differ in more than seeds and initial values; networks trained in parallel need equal layers, priors, "
    "options of weights, minimum depths and laws over depth"
)


class UnboundedDepth(
    Growing,
    NaturalGradient,
    ListedStructure,
    LinearHeads,
    JointlyTrainable,
    JointlyEvaluable,
    SelectsInputs,
    Mergeable,
    HasLogJoint,
    Recordable,
):
    """A network with a posterior over its depth.

    Parameters
    ----------
    layer : callable, int -> nn.Module
        Builds layer k = 1, 2, …, which accepts the output of layer k − 1. Any module is allowed; a
        :class:`~fathomless.nn.layers.BayesianLayer` has its own divergence.
    head : callable, int -> nn.Module
        Builds the head on the hidden state at depth ℓ; depth 0 is the input.
    shared_head : callable, () -> nn.Module, optional
        Builds one module that is applied after every head. With ``head=lambda depth: nn.Identity()`` all depths share
        one head, as in depth uncertainty networks; other heads act as adapters of each depth.
    law : DepthLaw
        Variational family over the offset ℓ − `min_depth`.
    prior : DepthPrior
        Prior over the offset.
    min_depth : int
        Minimum depth; 0 is a head on the input, such as a linear model.
    weights : {"map", "meanfield", "matrix", "sparse"}
        "map": point estimates with weight decay from the prior; the objective is a penalised likelihood, not an
        evidence bound. The others maximise evidence bounds. "meanfield": an independent Gaussian for each weight.
        "matrix": a matrix normal for each layer. "sparse": a Gaussian and an inclusion variable for each weight.
    weight_prior : WeightPrior
        Prior N(0, s²) of the weights; s may depend on the shape of a parameter.
    weight_scale : float
        Initial standard deviation of drawn weights.
    head_divergence : {"own", "cumulative"}
        Weight of the divergence of a head: the probability of its depth, or of its depth and all deeper ones (the
        paper's equation 10).
    growth : {"default", "identity"}
        Initial values of layers created after construction: as built, or such that the new deepest network computes
        the same function as the old one, by identity layers (zero residual branches) and a copied head.
    max_depth : int, optional
        Maximum depth. If the posterior extends beyond it, it is truncated there with a warning.
    seed : int
        Layer k is initialised from hash(seed, k), independently of when and on which device it is created.
    dtype : torch.dtype
        Floating-point type of the weights. The posterior over depth is always in float64.

    Raises
    ------
    DataError
        If an option is not allowed.

    Examples
    --------
    >>> from fathomless.nn.architectures import MLP
    >>> net = MLP(inputs=2, outputs=3, width=8)
    >>> model = UnboundedDepth(net.layer, net.head)
    >>> draws = model.draw(torch.zeros(5, 2))
    >>> draws.f.shape  # one row of networks for each depth in the support
    torch.Size([6, 5, 3])
    """

    _charges: Tensor  # (m, columns) coefficient of each divergence at each depth
    _sizes: Tensor  # (P,) number of elements of each point estimate with a prior
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
        check_options(min_depth, max_depth, weights, head_divergence, growth)
        check_kinds(law, prior, weight_prior)
        self.layer, self.head = layer, head
        self.law = law or TruncatedPoisson()
        self.prior = prior or PoissonPrior()
        self.min_depth, self.max_depth = min_depth, max_depth
        self.weights = weights
        self.weight_prior = weight_prior or WeightPrior()
        self.weight_scale = weight_scale
        self.head_divergence = head_divergence
        self.growth = growth
        self.seed = seed
        self._dtype = dtype
        self.layers = nn.ModuleDict()
        self.heads = nn.ModuleDict()
        self.law_parameters = nn.ParameterList()
        self.readout: nn.Module | None = None  # the shared head; saved models use this name
        self._support: tuple[int, ...] = ()
        self._cached_weights: _DepthWeights | None = None
        self._fixed_weights: tuple[DepthLaw, _DepthWeights] | None = None  # of a law without parameters
        self._frozen: set[str] = set()  # names of the frozen parameters
        self._kept_inputs: tuple[Tensor, int] | None = None  # of a network without some of its inputs, and their number
        self._given_masses: tuple[float, ...] | None = None  # masses given to the law, for the blueprint
        self._functional = False  # True if functional_call replaces the parameters
        self.register_load_state_dict_post_hook(_drop_cached_weights)
        self._add_law_parameters(0)
        if shared_head is not None:
            self.readout = self._build("readout", 0, lambda _: shared_head())
        self._extend(None)
        if growth == "identity":
            make_identity(self.layer(len(self.layers) + 1))  # raises before training if impossible

    # ---- interface of a model

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate one network for each depth in the support and each weight draw; point estimates need one pass.

        All depths share one joint draw of the layers, because q(θ_k | ℓ) is the same for every ℓ ≥ k.
        """
        depth = self._weigh_depths()
        n = n if self.stochastic else 1
        sparse = [] if self.training else self._sparse_layers
        only_heads = n > 1 and self._only_heads_drawn and not self.training
        hidden = self._hidden(x) if only_heads else None  # computed once for all draws of the heads
        if not (self.stochastic or self.training or torch.is_grad_enabled()):
            return self._list_draws(self._run_parts(x, None, None)[0], depth)
        passes, sets, sampled = draw_nested(lambda: self._evaluate(x, generator, hidden), n, sparse, generator)
        f = torch.cat([f for f, _ in passes]) if n > 1 else passes[0][0]  # (S, B, K)
        if f.dtype in (torch.float16, torch.bfloat16):  # under autocast
            f = f.float()
        divergence = torch.stack([kl for _, kl in passes]).mean(0) if n > 1 else passes[0][1]  # (columns,)
        log_weight = depth.log_weight.to(f.dtype)
        structure = self._depths
        if n > 1:
            log_weight = (log_weight - math.log(n)).repeat(n)  # (S,)
            structure = structure.repeat(n)  # (S,)
        if sampled:  # a structure is a depth together with a set of included weights
            shift = torch.tensor(sets, device=structure.device).repeat_interleave(len(self._depths))
            structure = structure + shift * (self.depth + 1)
        # a product and a sum: autocast would compute a dot product in reduced precision
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

    def draw_jointly(self, others: Sequence[Model], x: Tensor) -> list[Draws]:
        """Return the draws of this network and of others, which have equal layers and the same support over depth."""
        models = [self, *(other for other in others if isinstance(other, UnboundedDepth))]
        depths = self._depths_in_use
        if any(model.training or model.stochastic or model._depths_in_use != depths for model in models):
            return []
        layers = [[model.layers[str(k)] for model in models] for k in range(1, depths[-1] + 1)]
        heads = [[model.heads[str(depth)] for model in models] for depth in depths]
        shared = [model.readout for model in models if model.readout is not None]

        def evaluate(rows: Tensor) -> Tensor:
            hidden = [rows.expand(len(models), *rows.shape)]
            for of_models in layers:
                hidden.append(apply_each(of_models, hidden[-1]))
            outputs = [apply_each(of_models, hidden[depth]) for depth, of_models in zip(depths, heads, strict=True)]
            return torch.stack([apply_each(shared, f) for f in outputs] if shared else outputs, 1)

        # hidden states of a part of the rows fit into the cache of a processor; on other devices, all networks together
        # need as much memory as one network for all rows
        part = _ROWS_AT_ONCE if x.device.type == "cpu" else max(1, math.ceil(len(x) / len(models)))
        f = torch.cat([evaluate(rows) for rows in x.split(part)], 2)  # (networks, depths, B, K)
        return [model._list_draws(own, model._weigh_depths()) for model, own in zip(models, f, strict=True)]

    def _list_draws(self, f: Tensor, depth: "_DepthWeights") -> Draws:
        """Return the draws of point estimates from outputs; divergences are computed when they are read."""
        f = f.float() if f.dtype in (torch.float16, torch.bfloat16) else f  # under autocast
        divergence = Deferred({"weights": partial(self._charge, depth.charge), "depth": depth.divergence})
        return Draws(f, depth.log_weight.to(f.dtype), self._depths, divergence)

    def structure(self) -> ListedPosterior:
        """Return the posterior over depth."""
        return make_depth_posterior(self.depth_posterior())

    def grow(self, limit: int | None = None) -> int:
        """Adapt the layers to the support of q: create new layers, freeze those outside it, unfreeze those inside it.

        Frozen layers keep their parameters and buffers bit-identical: they have no gradient (None, not zero).

        Parameters
        ----------
        limit : int, optional
            Maximum number of layers to create now, with their heads; q is truncated at the deepest existing layer.

        Returns
        -------
        int
            Number of layers and heads created.
        """
        self._cached_weights = None
        bound = self.law.lower_bound()
        for p in self.law_parameters if bound is not None else ():
            p.data.clamp_(min=bound)
        return self._extend(limit)

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the raw parameters of the depth law."""
        return {f"law_parameters.{i}": p for i, p in enumerate(self.law_parameters)}

    def step_key(self) -> tuple[DepthLaw, tuple[int, ...]] | None:
        """Return the law over depth and its support, if the law is fixed and no part draws random numbers."""
        if len(self.law_parameters) or not all(is_deterministic(part) for _, part in self._parts):
            return None
        return self.law, self._support

    def constants(self) -> tuple[Any, ...]:
        """Return the weights of the depths and the tables of their divergences."""
        return self._weigh_depths(), self._charges, self._sizes, self._depths, self._log_prior

    @torch.no_grad()
    def fisher(self) -> Tensor:
        """Return the Fisher information Σ ∂q ∂qᵀ / q; for the Poisson law without truncation it is 1/λ in λ."""
        q, dq = self.law.probs_and_grad(self._eta(), self._support)
        q = q.clamp(min=1e-6)  # a depth that has just entered the support would dominate the sum
        return (dq / q[:, None]).T @ dq

    @torch.no_grad()
    def use_probability(self) -> dict[str, Tensor]:
        """Return the probability that each parameter is used: S_k for layer k, q(ℓ) for head ℓ, 1 for a shared head."""
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
        """Return the layout of this model as plain JSON; :meth:`rebuild` needs it before a ``state_dict`` is loaded."""
        return {
            "layers": len(self.layers),
            "heads": sorted(map(int, self.heads)),
            "law_parameters": len(self.law_parameters),
            "support": list(self._support),
            **({} if self._given_masses is None else {"masses": list(self._given_masses)}),
            **({"drawn_heads": drawn} if (drawn := count_head_bases([self.heads])) else {}),
        }

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Create or delete layers and heads, and set the support, to match a blueprint of :meth:`blueprint`."""
        unfreeze(self, self._frozen)
        if "masses" in blueprint:
            self._given_masses = tuple(blueprint["masses"])
            self.law = FixedDepth(tuple(blueprint["support"]), self._given_masses)
        for depth in range(blueprint["layers"] + 1, len(self.layers) + 1):
            del self.layers[str(depth)]
        for depth in range(len(self.layers) + 1, blueprint["layers"] + 1):
            self.layers[str(depth)] = self._build("layer", depth, self.layer)
        for name in set(self.heads) - set(map(str, blueprint["heads"])):
            del self.heads[name]
        for depth in blueprint["heads"]:
            self._add_head(depth, copied_from=None)
        restore_gaussian_heads(self.heads, blueprint.get("drawn_heads", {}))
        self.law_parameters = nn.ParameterList(list(self.law_parameters)[: blueprint["law_parameters"]])
        self._add_law_parameters(blueprint["law_parameters"] - 1)
        self._set_support(tuple(blueprint["support"]))

    def merge(self, others: Sequence[Model]) -> "UnboundedDepth":
        """Return a copy with all layers, heads and depths of this model and of `others`."""
        models = self._check_alike(others)
        support = sorted({k for model in models for k in model._support})
        heads = {int(depth) for model in models for depth in model.heads}
        whole = copy.deepcopy(self)
        whole._functional = True
        whole.rebuild(
            {
                "layers": max(len(model.layers) for model in models),
                "heads": sorted(heads),
                "law_parameters": max(len(model.law_parameters) for model in models),
                "support": support,
                "drawn_heads": count_head_bases([model.heads for model in models]),
            }
        )
        return whole

    def list_structures(self, count: int) -> dict[int, float]:
        """Return the log prior of each of the `count` smallest depths that `max_depth` and the prior allow."""
        if self.max_depth is not None:
            count = min(count, self.max_depth - self.min_depth + 1)
        log_prior = self.prior.log_prob(torch.arange(count, dtype=torch.float64, device="cpu"))
        return {self.min_depth + k: p for k, p in enumerate(log_prior.tolist()) if p > -math.inf}

    def weigh(self, masses: Mapping[int, float], *, only: bool = False) -> int:
        """Set the posterior to the given masses of depths; create missing layers and freeze unused ones.

        With `only`, unused layers and heads are deleted.
        """
        total = math.fsum(masses.values())
        self._given_masses = tuple(mass / total for mass in masses.values())
        self.law = FixedDepth(tuple(depth - self.min_depth for depth in masses), self._given_masses)
        self.law_parameters = nn.ParameterList()
        self._cached_weights = None
        created = self._extend(None)
        self._keep_fixed_weights()
        if only:
            self.rebuild({**self.blueprint(), "layers": self.depth, "heads": self._depths_in_use})
        return created

    def network(self, number: int) -> nn.Module:
        """Return a copy of the network of one depth, which must have a head, as a plain module."""
        parts = [*(self.layers[str(k)] for k in range(1, number + 1)), mean_head(self.heads[str(number)])]
        parts += [self.readout] if self.readout is not None else []
        return copy.deepcopy(nn.Sequential(*parts)).eval().requires_grad_(True)

    def stack(self, others: Sequence[Model]) -> "UnboundedDepth":
        """Return one network that stacks the layers and heads of this one and of `others`, for stacked rows."""
        models = self._check_alike(others)
        if self.stochastic or self.growth != "default":
            raise DataError(
                f"{len(models)} networks with weights={self.weights!r} and growth={self.growth!r} cannot be trained in "
                "parallel; allowed are point estimates (weights='map', and no drawn heads) and growth='default': "
                "set cv=1"
            )

        device = self._device()  # read before the parts are built into another network
        for model in models:
            unfreeze(model, model._frozen)

        def stack_parts(kind: str) -> Build:
            return lambda depth: stack([model._part(kind, depth) for model in models])

        return UnboundedDepth(
            stack_parts("layer"),
            stack_parts("head"),
            shared_head=None if self.readout is None else lambda: stack_parts("readout")(0),
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
        """Copy the layers, heads and law of a network that :meth:`stack` returned into the original networks."""
        for i, model in enumerate(models):
            assert isinstance(model, UnboundedDepth)
            model.rebuild(self.blueprint())
            model.load_state_dict({**unstack(self, i), **self.structure_parameters()})

    def first_weight(self) -> Tensor:
        """Return the weights of the first layer, or of the head of depth 0 if there are no layers."""
        maps = self._input_maps()
        if not maps:
            raise DataError("inputs were selected for a network without a linear map of its inputs; keep all inputs")
        return maps[0].weight.detach()

    def keep_inputs(self, kept: Tensor) -> None:
        """Leave out inputs in the first layer and in the head of depth 0, also if they are built later."""
        assert self._kept_inputs is None
        count = self.first_weight().shape[-1]
        if self.weight_prior.fan_in:
            raise DataError(f"inputs were selected for a network with {self.weight_prior}; fan_in must be False")
        self._require_linear_maps("selected")
        self._kept_inputs, self.weight_prior = (kept.cpu(), count), dataclasses.replace(self.weight_prior, inputs=count)
        for linear in self._input_maps():
            keep_inputs(linear, kept)
        self._set_support(self._support)

    def restore_inputs(self) -> None:
        """Restore all inputs of the first layer and of the head of depth 0."""
        assert self._kept_inputs is not None
        (kept, count), self._kept_inputs = self._kept_inputs, None
        self.weight_prior = dataclasses.replace(self.weight_prior, inputs=None)
        for linear in self._input_maps():
            restore_inputs(linear, kept, count)
        self._set_support(self._support)

    def add_inputs(self, places: Tensor, count: int) -> None:
        """Add inputs to the first layer and to the head of depth 0; parts that are built later do not have them."""
        assert self._kept_inputs is None
        self._require_linear_maps("added")
        for linear in self._input_maps():
            restore_inputs(linear, places, count)
        self._set_support(self._support)

    @torch.no_grad()
    def start_without(self, inputs: Tensor, count: int) -> None:
        """Set the initial weights of some inputs to 0 in the first layer and in the head of depth 0.

        Linear maps of other features, of which a custom first layer computes another number, are unchanged.
        """
        for linear in self._input_maps():
            if linear.in_features == count:
                linear.weight[:, inputs] = 0.0

    def _require_linear_maps(self, change: str) -> None:
        """Raise an error if the inputs cannot be changed."""
        if not all(map(_linear_maps, self._input_parts())):
            raise DataError(
                f"inputs of a network cannot be {change} if other weights than those of a linear map with point "
                "estimates come first in its first layer or in the head of depth 0; use weights='map', and the "
                "architecture 'mlp' or 'residual'"
            )

    def _input_maps(self) -> list[nn.Linear]:
        """Return the linear maps of the inputs: those of the first layer, and then that of the head of depth 0."""
        return [linear for part in self._input_parts() for linear in _linear_maps(part)]

    def _input_parts(self) -> list[nn.Module]:
        """Return the first layer and the head of depth 0, as far as they exist."""
        return [parts[name] for parts, name in ((self.layers, "1"), (self.heads, "0")) if name in parts]

    def _part(self, kind: str, depth: int) -> nn.Module:
        """Return a layer, a head or the shared head; build it if it does not exist."""
        if kind == "readout":
            assert self.readout is not None
            return self.readout
        parts, build = (self.layers, self.layer) if kind == "layer" else (self.heads, self.head)
        return parts[str(depth)] if str(depth) in parts else self._build(kind, depth, build)

    def features(self, x: Tensor) -> dict[int, Tensor]:
        """Return the hidden state at each depth in the support, the input of its head."""
        return dict(zip(self._depths_in_use, self._hidden(x), strict=True))

    def heads_in_use(self) -> dict[int, nn.Module]:
        """Return the head of each depth in the support."""
        if self.readout is not None or any(name.startswith("layers.") for name in self._bayesian):
            raise DataError(
                f"posteriors of heads were requested for a network with shared_head={self.readout is not None} and "
                f"weights={self.weights!r}; they need a head for each depth, and layers with point estimates"
            )
        return {depth: self.heads[str(depth)] for depth in self._depths_in_use}

    def replace_heads(self, heads: Mapping[int, nn.Module]) -> None:
        """Replace the heads at the given depths."""
        self.heads.update({str(depth): head for depth, head in heads.items()})
        self._set_support(self._support)

    def _check_alike(self, others: Sequence[Model]) -> "list[UnboundedDepth]":
        alike = [
            other for other in others if isinstance(other, UnboundedDepth) and other._signature() == self._signature()
        ]
        if len(alike) < len(others):
            raise DataError(_MISMATCH)
        return [self, *alike]

    def _signature(self) -> tuple[Any, ...]:
        """Return the properties that networks trained in parallel must share."""
        # only the initial rate of the law may differ
        rated = isinstance(self.law, TruncatedPoisson | QuantilePoisson | StickBreaking)
        law = dataclasses.replace(self.law, rate=1.0) if rated else self.law  # type: ignore[type-var]
        parts = [str(next(iter(part.values()), None)) for part in (self.layers, self.heads)]
        options = (self.weights, self.weight_prior, self.weight_scale, self.head_divergence, self.growth)
        return (law, self.prior, self.min_depth, self.max_depth, self._weights_dtype(), *options, *parts)

    # ---- depth

    @property
    def depth(self) -> int:
        """Largest depth in the support."""
        return self.min_depth + self._support[-1]

    @property
    def stochastic(self) -> bool:
        """True if any weight in use is drawn rather than a point estimate."""
        return bool(self._bayesian)

    @torch.no_grad()
    def depth_posterior(self) -> dict[int, float]:
        """Return q(ℓ) for every depth ℓ in the support."""
        q, _ = self.law.probs_and_grad(self._eta(), self._support)
        return {self.min_depth + k: p for k, p in zip(self._support, q.tolist(), strict=True)}

    def restrict(self, masses: dict[int, float]) -> "UnboundedDepth":
        """Return a copy with a fixed law on the given depths, without unused layers and heads."""
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
        """Return the type of new parts: that of the existing ones, even if these were converted."""
        weights = (p for parts in (self.layers, self.heads) for p in parts.parameters())
        return next((p.dtype for p in weights if p.is_floating_point()), self._dtype)

    def _weigh_depths(self) -> "_DepthWeights":
        """Return log q, the mean charge of each divergence and KL(q ‖ prior) over the support.

        The result of a fixed law is kept with the support. In training with frozen η the result is cached until the
        next call of :meth:`grow`. The version counter of a parameter cannot be used to detect a change, since fused
        optimisers do not increment it.
        """
        kept = self._fixed_weights
        if kept is not None and kept[0] is self.law and kept[1].charge.device == self._charges.device:
            return kept[1]
        law = list(self.law_parameters)  # functional_call puts in tensors that are not Parameters
        constant = not (self._functional or any(p.requires_grad or not isinstance(p, nn.Parameter) for p in law))
        frozen = constant and self.training and torch.is_grad_enabled()
        if frozen and self._cached_weights is not None and self._cached_weights.charge.device == self._charges.device:
            return self._cached_weights
        weights = self._compute_weights()
        self._cached_weights = weights if frozen else None
        return weights

    def _hidden(
        self, x: Tensor, generator: torch.Generator | None = None, divergences: dict[str, Tensor] | None = None
    ) -> list[Tensor]:
        """Run the layers once; return the hidden state of each depth in the support."""
        divergences = {} if divergences is None else divergences
        hidden = run_layers(self._layers_in_use, x, generator, divergences, plain=not self._bayesian)
        return [hidden[depth] for depth in self._depths_in_use]

    def _evaluate(
        self, x: Tensor, generator: torch.Generator | None, hidden: list[Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs (depths, B, K) and divergences (columns,); given hidden states are not computed again."""
        f, divergences = self._run_parts(x, generator, hidden)
        divergence = self._divergence_charges.decay(self._sizes, self._functional)
        if divergences:
            drawn = torch.stack([divergences[name].double() for name in self._bayesian])
            divergence = torch.cat([divergence, drawn])
        return f, divergence

    @torch.no_grad()
    def _charge(self, charge: Tensor) -> Tensor:
        """Return the mean divergence of point estimates, given the mean coefficient of each one."""
        return (charge * self._divergence_charges.decay(self._sizes, self._functional)).sum()

    def _run_parts(
        self, x: Tensor, generator: torch.Generator | None, hidden: list[Tensor] | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return outputs (depths, B, K), and the divergences of the parts whose weights are drawn, by name."""
        divergences: dict[str, Tensor] = {}
        hidden = self._hidden(x, generator, divergences) if hidden is None else hidden
        at_once = not self._functional and not torch.is_autocast_enabled(x.device.type)
        f = apply_heads(self._heads_in_use, self._linear_heads if at_once else [], hidden, generator, divergences)
        if self.readout is not None:
            f = apply_heads([("readout", self.readout)] * len(f), [], f.unbind(), generator, divergences)
        return f, divergences

    def _extend(self, limit: int | None) -> int:
        """Create the missing layers and heads of the support, at most `limit` layers; return their number."""
        built = len(self.layers) > 0 or (self.min_depth > 0 and bool(self.heads))
        support = self._truncate(self.law.support(self._eta()))
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
            self._set_support(support)
        return created

    def _truncate(self, support: Sequence[int]) -> tuple[int, ...]:
        if self.max_depth is None or self.min_depth + support[-1] <= self.max_depth:
            return tuple(support)
        deepest = self.max_depth - self.min_depth
        if not self._support or self._support[-1] < deepest:
            warnings.warn(
                f"the posterior over depth extends to {self.min_depth + support[-1]} layers and is truncated at "
                f"max_depth={self.max_depth}. Raise max_depth, lower the prior's mean depth, or accept the truncation",
                ConvergenceWarning,
                stacklevel=4,
            )
        return tuple(k for k in support if k <= deepest) or (deepest,)

    def _build(
        self, kind: str, depth: int, build: Build, adjust: Callable[[nn.Module], None] | None = None
    ) -> nn.Module:
        with building(fold_in(self.seed, kind, depth)):
            built = [(f"{k}s.{at}", part) for k in ("layer", "head") for at, part in getattr(self, f"{k}s").items()]
            part = check_part(kind, depth, build(depth), built)
            if adjust is not None:
                adjust(part)
            if self._kept_inputs is not None and (kind, depth) in (("layer", 1), ("head", 0)):
                for linear in _linear_maps(part):
                    keep_inputs(linear, self._kept_inputs[0])
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

    def _set_support(self, support: tuple[int, ...]) -> None:
        """Set the support, unfreeze its parts, freeze all others, and tabulate the divergences of each depth."""
        self._support = support
        self._cached_weights = None
        depths = [self.min_depth + k for k in support]
        layers = [(f"layers.{k}", self.layers[str(k)]) for k in range(1, depths[-1] + 1)]
        heads = [(f"heads.{k}", self.heads[str(k)]) for k in depths]
        readout = [("readout", self.readout)] if self.readout is not None else []
        self._parts: list[tuple[str, nn.Module]] = [*layers, *heads, *readout]
        unfreeze(self, self._frozen)
        self._frozen = freeze([("layers", self.layers), ("heads", self.heads)], [part for _, part in self._parts])
        self._layers_in_use = layers
        self._heads_in_use = heads
        self._depths_in_use = depths
        self._linear_heads = select_stackable([head for _, head in heads])
        self._bayesian = [name for name, part in self._parts if isinstance(part, BayesianLayer)]
        self._only_heads_drawn = all(name.startswith("heads.") for name in self._bayesian)
        self._sparse_layers = [layer for _, part in self._parts for _, layer in sparse_layers(part)]
        self._divergence_charges = tabulate_charges(
            self._parts, depths, self.weight_prior, cumulative=self.head_divergence == "cumulative"
        )
        log_prior = self.prior.log_prob(torch.tensor(support, dtype=torch.float64, device="cpu"))
        if not bool(log_prior.isfinite().all()):
            raise DepthError(
                f"the posterior over depth extends to {depths[-1]} layers, where the prior {self.prior} has no mass; "
                "choose a prior that covers the support, or a law within the support of the prior"
            )
        for name, table in (
            ("_charges", self._divergence_charges.table),
            ("_sizes", torch.tensor(self._divergence_charges.sizes, dtype=torch.int64, device=self._device())),
            ("_depths", torch.tensor(depths, device=self._device())),
            ("_log_prior", log_prior),
        ):
            self.register_buffer(name, table.to(self._device()), persistent=False)
        self._keep_fixed_weights()

    def _keep_fixed_weights(self) -> None:
        """Compute the weights of the depths of a law without parameters, outside of any prediction or transform."""
        self._fixed_weights = None
        if not len(self.law_parameters):
            with torch.inference_mode(False), torch.no_grad():
                self._fixed_weights = self.law, self._compute_weights()

    def _compute_weights(self) -> "_DepthWeights":
        q, log_q, divergence = depth_terms(self.law, self._eta(), self._support, self._log_prior)
        return _DepthWeights(log_q, (q[:, None] * self._charges).sum(0), divergence)


def _linear_maps(part: nn.Module) -> list[nn.Linear]:
    """Return the first linear map of a part; [] if other weights come first."""
    return [linear for linear in find_first(part) if isinstance(linear, nn.Linear)]


def _drop_cached_weights(model: nn.Module, _: object) -> None:
    """Clear the cached weights of depths after a ``state_dict`` is loaded."""
    assert isinstance(model, UnboundedDepth)
    model._cached_weights = None


class _DepthWeights(NamedTuple):
    """Weights of the depths of the support, and the terms of the bound that depend on them alone."""

    log_weight: Tensor  # (m,) log q
    charge: Tensor  # (columns,) mean coefficient of each divergence under q
    divergence: Tensor  # KL(q ‖ prior)
