r"""Continuous depth: weights are a stochastic process over depth that drives the hidden state.

.. math:: h_0 = \text{enter}(x), \qquad dh_t = f(t, h_t, w_t)\, dt, \qquad
          dw_t = -\theta w_t\, dt + \sigma\, dB_t, \qquad p(y \mid x, w) = p(y \mid \text{leave}(h_\tau)).

A draw is a path of weights, that is, one network for all rows. The weights of enter and leave are constant (θ = σ = 0).
All weights are one vector, in which the moving ones come first. With a law over the horizon τ ∈ {δ, 2δ, …} depth is a
random variable. The posterior of w on [0, t] is the same under every τ ≥ t, and

.. math:: \mathrm{ELBO} = \sum_k q(k) \mathrm{LL}(k) - \mathrm{KL}_0 - \sum_i S_i \mathrm{KL}_i
          - \mathrm{KL}(q(\tau) \,\|\, p(\tau)), \qquad S_i = \sum_{k \delta \ge t_{i+1}} q(k),

with the exact divergences :math:`\mathrm{KL}_i` of the Gaussian steps of the chain (see
:mod:`~fathomless.families.continuous.processes`). For every grid, it is a bound on the evidence of the model on that
grid. If the initial weights are a point estimate, it is a bound on the evidence given these, less their weight decay.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.families.continuous import reversible
from fathomless.families.continuous.drift import PathLaw, PosteriorDrift
from fathomless.families.continuous.dynamics import Dynamics, initial_weights
from fathomless.families.continuous.grids import Grid, find_steps, jitter_steps, uniform_grid
from fathomless.families.continuous.initial import InitialLaw
from fathomless.families.continuous.processes import OrnsteinUhlenbeck, Process
from fathomless.families.continuous.solve import (
    DivergenceProfile,
    Noise,
    PathDivergence,
    PathInference,
    PathOutput,
    follow,
    make_noise,
    segment_length,
    solve,
    split_weights,
)
from fathomless.posterior.capabilities import Growing, HasStructureLaw, JointlyTrainable, ListedStructure, Mergeable
from fathomless.posterior.laws import DepthLaw, DepthPrior, FixedDepth, PoissonPrior, depth_terms
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.structure import ListedPosterior, credible_interval
from fathomless.system import checks, memory
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, branch, fold_in

__all__ = ["ContinuousDepth"]

_PATHS = 16  # number of paths in the summary of a posterior
_MISMATCH = (
    "the models differ in more than seeds and initial values; networks in parallel need equal sizes, priors and grids"
)


class ContinuousDepth(Growing, HasStructureLaw, ListedStructure, JointlyTrainable, Mergeable):
    """A network with a continuum of layers, and a posterior over the path of its weights.

    Parameters
    ----------
    dynamics : Dynamics
        Map of the input to the hidden state, slope of the hidden state, and map to the output.
    prior : Process
        Prior of each moving weight in units of its scale, so that its `scale` is 1.
    weight_prior : float
        s = `weight_prior` / √fan-in is the prior standard deviation of a weight at depth 0.
    fan_in : bool
        If False, the standard deviation is `weight_prior` for every weight, as in the paper.
    options : PathInference
        Options of the inference and the solution of paths.
    horizon : float
        T. With a random horizon, it is the mean of the default prior.
    horizons : int
        Number of horizons up to T: δ = T / `horizons`.
    law, horizon_prior : DepthLaw and DepthPrior, optional
        Posterior and prior of k − 1 = τ/δ − 1; a point mass on T by default.
    seed : int
        Seed of the initial values.
    dtype : torch.dtype
        Floating-point type of the parameters.

    Examples
    --------
    >>> from fathomless.families.continuous.dynamics import MLPDynamics
    >>> model = ContinuousDepth(MLPDynamics(inputs=2, outputs=3)).eval()
    >>> draws = model.draw(torch.zeros(5, 2), 4, torch.Generator().manual_seed(0))
    >>> draws.f.shape
    torch.Size([4, 5, 3])
    """

    scale: Tensor  # (P,)

    def __init__(
        self,
        dynamics: Dynamics,
        *,
        prior: Process | None = None,
        weight_prior: float = 2.0 * math.sqrt(2.0),
        fan_in: bool = True,
        options: PathInference | None = None,
        horizon: float = 1.0,
        horizons: int = 8,
        law: DepthLaw | None = None,
        horizon_prior: DepthPrior | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.dynamics = dynamics
        self.options = options or PathInference()
        self.prior = prior or OrnsteinUhlenbeck()
        checks.scale("weight_prior", weight_prior)
        checks.scale("horizon", horizon)
        self.horizon = float(horizon)
        self.horizons = checks.whole("horizons", horizons)
        self.random_horizon = law is not None
        self.law = law or FixedDepth((self.horizons - 1,))
        self.horizon_prior = horizon_prior or PoissonPrior(max(self.horizons - 1.0, 0.5))
        self.seed = seed
        self.members = 1
        moves = self.prior.diffusion > 0.0
        self.moving = sum(weight.size for weight in dynamics.moving) if moves else 0
        mean, scale = initial_weights(dynamics, weight_prior, fold_in(seed, "initial"), dtype, fan_in=fan_in)
        self.register_buffer("scale", scale, persistent=False)
        self.mean = nn.Parameter(mean[None])
        self.drift: PosteriorDrift | None = None
        if self.moving:
            o = self.options
            pieces = math.ceil(o.knots * self.horizon - 1e-9)
            self.drift = PosteriorDrift(
                self.moving,
                o.drift,
                rank=o.rank,
                width=1.0 / o.knots,
                pieces=pieces,
                seed=seed,
                dtype=dtype,
                learned=o.learned,
            )
        self.log_width: nn.Parameter | None = None
        if self.options.initial == "gaussian":
            widths = torch.full((1, len(scale)), math.log(0.1), dtype=dtype, device="cpu")
            if self.drift is not None and self.drift.rotated:
                widths = torch.cat([widths.new_full((1, self.drift.rank), math.log(0.3)), widths[:, self.moving :]], 1)
            self.log_width = nn.Parameter(widths)
        self.law_parameters = nn.ParameterList()
        self._given_masses: tuple[float, ...] | None = None
        self._support: tuple[int, ...] = ()
        self.times: Grid | None = None
        self._add_law_parameters(0)
        self._set_support(tuple(self.law.support(self._eta())))

    # ---- interface of a model

    @property
    def stochastic(self) -> bool:
        """True if weights are drawn."""
        return self.moving > 0 or self.log_width is not None

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate `n` paths, at every horizon of the support.

        Noise is drawn independently of x, so that the prediction of a row depends neither on other rows nor on batches.
        """
        return self.draw_on(x, n, self._jitter_times(self.grid(self._steps(generator)), generator), generator)

    def draw_on(
        self, x: Tensor, n: int, grid: Grid, generator: torch.Generator | None, noise: Noise | None = None
    ) -> Draws:
        """Evaluate `n` paths on a grid, with given noise of the steps if `noise` is set."""
        n = n if self.stochastic else 1
        marks = self.marks(grid)
        f, _, _, divergence = self.follow_paths(x, n, grid, generator, marks, noise)
        f = f.transpose(0, 1).flatten(0, 1)  # horizons of a path are adjacent
        q, log_q, of_law = depth_terms(self.law, self._eta(), self._support, self._log_prior())
        ends = torch.tensor(marks, device=x.device)
        # a step is charged by the probability that the horizon lies beyond it
        survival = (q[:, None] * (ends[:, None] > torch.arange(len(grid) - 1, device=x.device))).sum(0)  # (steps,)
        path = (divergence.path.mean(2).sum(1).to(q) * survival).sum() + divergence.initial.mean(1).sum().to(q)
        random = self.random_horizon
        charge = None if self.drift is None else self.drift.charge()
        k = torch.tensor([offset + 1 if random else 0 for offset in self._support], device=x.device)
        number = torch.arange(n, device=x.device).repeat_interleave(len(self._support))
        return Draws(
            f=f,
            log_weight=(log_q.to(f.dtype) - math.log(n)).repeat(n),
            structure=k.repeat(n),
            divergence={
                "weights": path.to(divergence.path.dtype),
                **({} if charge is None else {"rate": charge}),
                **({"horizon": of_law} if random else {}),
            },
            network=number if random and n > 1 else None,
        )

    @torch.no_grad()
    def structure(self) -> ListedPosterior:
        """Return statistics of the paths of weights, and the posterior over a random horizon."""
        grid = self.grid()
        divergence = roughness = deviation = 0.0
        initial = self._initial().closed(1).mean().item()
        if self.moving:
            profile = self.divergence_profile()
            divergence = float((profile.rate * torch.tensor(grid, dtype=torch.float64, device="cpu").diff()).sum())
            _, path = self.path(_PATHS, grid, as_generator(0))
            _, middle = self.path(1, grid, None)
            deviation = path[-1].std(1).mean().item()
            roughness = float(torch.stack([(b - a).abs().mean() for a, b in pairwise(middle)]).sum())
        statistics = {
            "path_divergence": divergence,
            "initial_divergence": initial,
            "roughness": roughness,
            "rate": self.rate,
            "contraction": deviation / math.sqrt(self.prior.unit().variance(self.clock(grid[-1]))),
        }
        summary = self.summary(statistics)
        if not self.random_horizon:
            return ListedPosterior(
                kind="path", names=("all",), probabilities=(1.0,), statistics=statistics, summary=summary
            )
        masses = self.horizon_posterior()
        mean = sum(k * p for k, p in masses.items())
        low, high = (k * self.unit for k in credible_interval(masses, 0.9))
        return ListedPosterior(
            kind="horizon",
            names=tuple(map(str, masses)),
            probabilities=tuple(masses.values()),
            statistics={"mean_horizon": mean, **statistics},
            summary=f"mean horizon {mean * self.unit:.2f}, 90 % between {low:.2f} and {high:.2f}; {summary}",
        )

    def summary(self, statistics: Mapping[str, float]) -> str:
        """Return a line with the statistics of :meth:`structure`, or with their means over several networks."""
        point = " (point estimates)" if self.log_width is None else ""
        return (
            f"mean weights change by {statistics['roughness']:.2g} prior standard deviations over depth; divergence "
            f"{statistics['path_divergence']:.1f} nats along the path and {statistics['initial_divergence']:.1f} nats "
            f"at depth 0{point}"
        )

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the raw parameters of the law over the horizon; empty if it is fixed."""
        return {f"law_parameters.{i}": p for i, p in enumerate(self.law_parameters)}

    def grow(self, limit: int | None = None) -> int:
        """Adapt to the support of the law over the horizon; shift and feedback are extended by zeros.

        The extension equals the prior and adds nothing to the divergence, so that the bound is continuous.
        """
        if not self.law_parameters:
            return 0
        bound = self.law.lower_bound()
        for p in self.law_parameters if bound is not None else ():
            p.data.clamp_(min=bound)
        support = tuple(self.law.support(self._eta()))
        if limit is not None:  # number of new horizons
            support = tuple(k for k in support if k <= self._support[-1] + limit)
        return self._set_support(support) if support != self._support else 0

    @torch.no_grad()
    def use_probability(self) -> dict[str, Tensor]:
        """Return the probability that the horizon lies beyond the start of each piece of depth."""
        q, _ = self.law.probs_and_grad(self._eta(), self._support)
        ends = torch.tensor([(k + 1) * self.unit for k in self._support], device=q.device)
        used: dict[str, Tensor] = {}
        names = ("shift", "log_rate") if self.drift is not None and len(self.drift.log_rate) else ("shift",)
        for k in range(0 if self.drift is None else self.drift.pieces):
            share = q[ends > k / self.options.knots + 1e-9].sum()
            used |= {f"drift.{name}.{k}": share for name in names}
        return used

    def blueprint(self) -> dict[str, Any]:
        """Return the layout of this model as plain JSON; :meth:`rebuild` needs it before a ``state_dict`` is loaded."""
        return {
            "pieces": 0 if self.drift is None else self.drift.pieces,
            "support": list(self._support),
            "law_parameters": len(self.law_parameters),
            **({} if self._given_masses is None else {"masses": list(self._given_masses)}),
            **({} if self.times is None else {"times": list(self.times)}),
        }

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Set the pieces of depth and the support of a blueprint."""
        if "masses" in blueprint:
            self._given_masses = tuple(blueprint["masses"])
            self.law = FixedDepth(tuple(blueprint["support"]), self._given_masses)
        if self.drift is not None:
            self.drift.extend(blueprint["pieces"])
            self.drift.shorten(blueprint["pieces"])
        self.law_parameters = nn.ParameterList(list(self.law_parameters)[: blueprint["law_parameters"]])
        self._add_law_parameters(blueprint["law_parameters"] - 1)
        if self.random_horizon:  # the support of a fixed horizon has no meaning
            self._support = tuple(blueprint["support"])
        self.times = tuple(blueprint["times"]) if "times" in blueprint else None

    def list_structures(self, count: int) -> dict[int, float]:
        """Return the log prior of the numbers k of the `count` shortest horizons kδ; {0: 0} for a fixed one."""
        if not self.random_horizon:
            return {0: 0.0}
        log_prior = self.horizon_prior.log_prob(torch.arange(count, dtype=torch.float64, device="cpu"))
        return {1 + k: p for k, p in enumerate(log_prior.tolist()) if p > -math.inf}

    def weigh(self, masses: Mapping[int, float], *, only: bool = False) -> int:
        """Set the posterior to the given masses of horizons; extend shift and feedback to the longest one.

        Pieces beyond it are kept even with `only`, since the weights of a shorter horizon do not depend on them.
        """
        if not self.random_horizon:
            return 0
        total = math.fsum(masses.values())
        self._given_masses = tuple(mass / total for mass in masses.values())
        self.law = FixedDepth(tuple(k - 1 for k in masses), self._given_masses)
        self.law_parameters = nn.ParameterList()
        return self._set_support(self.law.offsets)

    def stack(self, others: Sequence[Model]) -> "ContinuousDepth":
        """Return one network that stacks the parameters of this one and of `others`, one row for each."""
        models = self._check_alike(others)
        whole = copy.deepcopy(self)
        named = [dict(model.named_parameters()) for model in models]
        for name, p in whole.named_parameters():
            if name not in self.structure_parameters():
                p.data = torch.cat([own[name].data for own in named])
        whole.members = len(models)
        return whole

    @torch.no_grad()
    def unstack(self, models: Sequence[Model]) -> None:
        """Copy the rows of a network that :meth:`stack` returned into the original networks."""
        for i, model in enumerate(models):
            assert isinstance(model, ContinuousDepth)
            model.rebuild(self.blueprint())
            law = self.structure_parameters()
            state = {name: value if name in law else value[i : i + 1] for name, value in self.named_parameters()}
            model.load_state_dict(state)

    def merge(self, others: Sequence[Model]) -> "ContinuousDepth":
        """Return a copy with all horizons of this network and of `others`."""
        models = self._check_alike(others)
        whole = copy.deepcopy(self)
        whole._set_support(sorted({k for model in models for k in model._support}))
        return whole

    # ---- depth

    @property
    def rate(self) -> float:
        """Rate of the prior process, learned or given; the geometric mean over stacked networks."""
        speed = None if self.drift is None else self.drift.speed(self.prior)
        return self.prior.pace * (1.0 if speed is None else speed.log().mean().exp().item())

    def clock(self, t: float) -> float:
        """Return the length of the depths up to t in which the weights vary."""
        low, high = self.options.span
        return max(0.0, min(t, high) - low)

    @property
    def unit(self) -> float:
        """Distance δ between horizons."""
        return self.horizon / self.horizons

    @torch.no_grad()
    def horizon_posterior(self) -> dict[int, float]:
        """Return q(k) for every horizon kδ of the support."""
        q, _ = self.law.probs_and_grad(self._eta(), self._support)
        return {1 + k: p for k, p in zip(self._support, q.tolist(), strict=True)}

    def predict_by(
        self, *, steps: int | None = None, solver: str | None = None, grid: Grid | None = None
    ) -> "ContinuousDepth":
        """Set the solver and the steps of predictions; return this model.

        Parameters
        ----------
        steps : int, optional
            Number of steps on the horizon T; they replace a given grid.
        solver : {"heun", "euler"}, optional
            Solver of the hidden state.
        grid : Grid, optional
            Times up to the longest horizon that include all horizons, see
            :mod:`~fathomless.families.continuous.adaptive`.
        """
        options = self.options
        self.options = replace(options, predict_steps=steps or options.predict_steps, solver=solver or options.solver)
        if grid is not None:
            self.marks(grid)  # raises if a horizon is not on the grid
        self.times = grid if grid is not None or steps is not None else self.times
        return self

    def grid(self, steps: int | None = None) -> Grid:
        """Return the grid up to the longest horizon, with `steps` steps on T; by default that of predictions."""
        if steps is None and self.times is not None:
            return self.times
        steps = steps or self.options.predict_steps or self.options.steps
        if not self.random_horizon:
            return uniform_grid(self.horizon, steps)
        longest = self._support[-1] + 1
        return uniform_grid(longest * self.unit, longest * max(1, round(steps / self.horizons)))

    def marks(self, grid: Grid) -> list[int]:
        """Return the number of steps of a grid up to each horizon of the support."""
        return find_steps(grid, [(k + 1) * self.unit for k in self._support] if self.random_horizon else [self.horizon])

    @torch.no_grad()
    def path(self, n: int, grid: Grid, generator: torch.Generator | None) -> tuple[Tensor, list[Tensor]]:
        """Return initial weights (F, n, P), and moving ones (F, n, M) at every time of a grid, in units of s.

        The random numbers are those of :meth:`draw`. Without a generator, it is the mean path.
        """
        mean = self.mean[:, None].expand(-1, n, -1)
        start = mean.detach() if generator is None else self._initial().draw(n, generator).detach()
        first = self.scale.numel() - sum(weight.size for weight in self.dynamics.still)
        w = start[..., :first]
        if not self.moving:
            return start, [w] * len(grid)
        law = self.law_of_paths(grid)
        path = [w]
        noise = make_noise(generator, w, tuple(w.shape))
        for i in range(len(grid) - 1):
            if law.varies(i):
                w, _ = law.step(i, w, torch.zeros_like(w) if generator is None else noise(i))
            path.append(w)
        return start, path

    @torch.no_grad()
    def log_weights(self) -> Tensor:
        """Return the log posterior weight of each horizon of the support."""
        return self.law.probs_and_grad(self._eta(), self._support)[0].log()

    @torch.no_grad()
    def divergence_profile(self, n: int = 16, seed: int = 0) -> DivergenceProfile:
        """Return E KL_i / Δ_i for every step of the grid of predictions, large where the data changed the weights."""
        grid = self.grid()
        dt = torch.tensor(grid, dtype=torch.float64, device="cpu").diff()
        depth = tuple(0.5 * (a + b) for a, b in pairwise(grid))
        if not self.moving:
            return DivergenceProfile(depth, torch.zeros(len(dt), dtype=torch.float64, device="cpu"))
        _, path = self.path(n, grid, as_generator(seed))
        law = self.law_of_paths(grid)
        divergences = torch.zeros(len(dt), dtype=torch.float64, device="cpu")
        for i in law.steps:
            divergences[i] = law.closed(i, law.change(i, path[i])).mean()
        return DivergenceProfile(depth, divergences / dt)

    def law_of_paths(self, grid: Grid, *, stopped: bool = False) -> PathLaw:
        """Return the posterior law of paths of the weights that move, in units of their prior scale."""
        if self.drift is None:
            raise DataError(
                "path__rate=0 or path__stochastic=0 was given, so that no weights vary with depth; their paths have no "
                "law"
            )
        reference = self.mean[:, : self.moving]
        o = self.options
        return self.drift.law(self.prior.unit(), grid, reference, kind=o.transition, stopped=stopped, span=o.span)

    def follow_paths(
        self,
        x: Tensor,
        n: int,
        grid: Grid,
        generator: torch.Generator | None,
        marks: Sequence[int],
        noise: Noise | None = None,
    ) -> PathOutput:
        """Solve the differential equations of `n` paths on a grid.

        Parameters
        ----------
        x : Tensor, shape (F·B, ...)
            Inputs, a block for each member.
        n : int
            Number of paths.
        grid : Grid
            Times of the steps.
        generator : torch.Generator, optional
            Source of the noise of initial weights and steps.
        marks : sequence of int
            Numbers of steps after which the state is read.
        noise : callable, optional
            Given noise of the steps.
        """
        estimator = self.options.estimator if self.training else "full"
        with torch.autocast(x.device.type, enabled=False):  # only the slope may be in reduced precision
            law = self._initial()
            start = law.draw(n, generator)  # (F, n, P)
            stopped = law.stopped() if estimator == "sticking" else law
            initial = law.closed(n) if estimator == "closed" else stopped.full(start)
        first = self.scale.numel() - sum(weight.size for weight in self.dynamics.still)
        rows = x.reshape(self.members, -1, *x.shape[1:])
        fixed = split_weights(start[..., first:] * self.scale[first:], self.dynamics.still)
        h = self.dynamics.enter(fixed, rows)
        h = h.expand(self.members, n, *h.shape[2:])
        solver = self.options.solver
        if self.drift is not None:
            w = start[..., :first]
            scale = self.scale[:first]
            source = noise or generator or torch.default_generator
            if self.training and self.options.gradient == "reversible":
                law_of_path = self.drift, self.prior.unit(), self.mean[:, : self.moving], grid
                solution = reversible.solve(self.dynamics, scale, *law_of_path, w, h, source, marks=marks)
            else:
                solution = solve(
                    self.dynamics,
                    scale,
                    self.law_of_paths(grid),
                    w,
                    h,
                    source,
                    marks=marks,
                    solver=solver,
                    estimator=estimator,
                    stopped=self.law_of_paths(grid, stopped=True) if estimator == "sticking" else None,
                    segment=0 if noise is not None else self._segment(len(grid) - 1, n, rows.shape[1]),
                )
            hidden, weights, path = solution.hidden, solution.weights, solution.divergence
        else:
            flat = start[..., :first]
            constant = [split_weights(flat * self.scale[:first], self.dynamics.moving)] * len(grid)
            hidden = follow(self.dynamics, constant, h, grid, marks, solver)
            weights = [flat] * len(marks)
            path = initial.new_zeros(len(grid) - 1, *initial.shape)
        f = torch.stack([self.dynamics.leave(fixed, state) for state in hidden])  # (marks, F, n, B, K)
        f = f.transpose(1, 2).flatten(2, 3)
        f = f.float() if f.dtype in (torch.float16, torch.bfloat16) else f
        return PathOutput(f, hidden, weights, PathDivergence(initial, path))

    # ---- inside

    def _steps(self, generator: torch.Generator | None) -> int | None:
        """Return the number of steps on T in training, jittered by the state of the generator; None in evaluation."""
        o = self.options
        if not self.training:
            return None
        if o.jitter != "count":
            return o.steps
        multiple = self.horizons if self.random_horizon else 1
        return jitter_steps(o.steps, branch(generator, "grid").initial_seed(), multiple)

    def _jitter_times(self, grid: Grid, generator: torch.Generator | None) -> Grid:
        """Shift the times of a grid at random in training, except for 0 and the horizons."""
        if not self.training or self.options.jitter != "times":
            return grid
        drawn = branch(generator, "times")
        shift = (
            torch.rand(len(grid), generator=as_generator(drawn.initial_seed()), dtype=torch.float32, device="cpu")
            .sub(0.5)
            .tolist()
        )
        fixed = {0, *self.marks(grid)}
        return tuple(t if i in fixed else t + 0.9 * shift[i] * grid[1] for i, t in enumerate(grid))

    def _initial(self) -> InitialLaw:
        U = None if self.drift is None else self.drift.directions()
        return InitialLaw(self.mean, self.log_width, U if self.log_width is not None else None, self.options.charged)

    def _segment(self, steps: int, n: int, rows: int) -> int:
        """Return the length of checkpointed segments for the gradient; 0 if all states are kept in memory."""
        o = self.options
        if not torch.is_grad_enabled() or o.gradient == "unrolled":
            return 0
        segment = segment_length(steps)
        if o.gradient == "checkpointed":
            return segment
        free = memory.available()
        if free is None or self.memory(n, rows, steps) <= 0.5 * free:
            return 0
        memory.require(
            self.memory(n, rows, 2 * segment),
            f"the gradient of {n} paths of {steps} steps for {rows:,} rows",
            lambda share: f"about {max(1, int(share * n))} paths fit: lower training_draws, steps or batch_size",
        )
        return segment

    def memory(self, n: int, rows: int, steps: int) -> float:
        """Return the approximate memory in bytes of the gradient of n paths for `rows` rows of each member."""
        slopes = 2 if self.options.solver == "heun" else 1
        numbers = 6 * self.moving + slopes * self.dynamics.numbers(rows)
        parameters = sum(p.numel() for p in self.parameters())
        return self.mean.element_size() * (float(steps) * self.members * n * numbers + 4 * parameters)

    def _eta(self) -> Tensor:
        none = torch.empty(0, dtype=torch.float64, device=self.mean.device)
        return torch.stack(list(self.law_parameters)) if len(self.law_parameters) else none

    def _log_prior(self) -> Tensor:
        if not self.random_horizon:
            return torch.zeros(1, dtype=torch.float64, device=self.mean.device)
        offsets = torch.tensor(self._support, dtype=torch.float64, device=self.mean.device)
        return self.horizon_prior.log_prob(offsets)

    def _add_law_parameters(self, last: int) -> None:
        for k in range(len(self.law_parameters), last + 1):
            raw = self.law.start(k)
            if raw is not None:
                value = torch.tensor(raw, dtype=torch.float64, device=self.mean.device)
                self.law_parameters.append(nn.Parameter(value))

    def _set_support(self, support: Sequence[int]) -> int:
        """Set the support and extend shift and feedback to the longest horizon by zeros; return the pieces added."""
        self._support = tuple(support)
        self.times = None
        self._add_law_parameters(self._support[-1])
        if self.drift is None:
            return 0
        return self.drift.extend(math.ceil(self.options.knots * (self._support[-1] + 1) * self.unit - 1e-9))

    def _check_alike(self, others: Sequence[Model]) -> "list[ContinuousDepth]":
        def signature(model: ContinuousDepth) -> tuple[Any, ...]:
            grown = ("drift.shift.", "drift.log_rate.", "law_parameters.")
            sizes = [(name, p.shape[1:]) for name, p in model.named_parameters() if not name.startswith(grown)]
            return (model.dynamics, model.prior, model.options, model.horizon, model.horizons, sizes)

        models = [self]
        for other in others:
            if not isinstance(other, ContinuousDepth) or signature(other) != signature(self):
                raise DataError(_MISMATCH)
            models.append(other)
        return models
