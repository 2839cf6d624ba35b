r"""Batched training: many networks of one architecture, stacked in one tensor per parameter.

At the size of most tables, the cost of a training step is dispatch rather than arithmetic. F networks of the same
architecture, each with its own data, seed, learning rates and posterior over structure, therefore share every
operation: parameters are stacked into (F, …), the evidence lower bound is evaluated under ``torch.func.vmap``, and one
backward pass computes all gradients. Each network follows the path of a separate
:func:`fathomless.inference.variational.svi.fit`, up to rounding: it has its own order of rows, its own moments and step
counts, and its parts are created and frozen by its own posterior. (Weight draws and dropout use one random generator
for all networks, so these paths differ like those of two seeds.)

The evaluated network has the union of the parts of all F networks. A part that a network lacks, or has frozen, has no
weight in its bound, and its parameters, moments and counts do not change.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fathomless.data.rows import Rows
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.driver import State, drive
from fathomless.inference.runs.limits import Planned
from fathomless.inference.runs.run import (
    Best,
    Fitted,
    check,
    history_row,
    structure_parameters,
    under,
)
from fathomless.inference.variational.objective import elbo, log_predictive
from fathomless.inference.variational.padded import PaddedRows, refuse_buffers, refuse_shapes, refuse_unlike
from fathomless.inference.variational.svi import calibrate, can_calibrate
from fathomless.inference.variational.training import Training, schedule
from fathomless.posterior.capabilities import Growing, Mergeable, get_blueprint, missing_capability, rebuild
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.posterior.structure import Structure
from fathomless.system import checks
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, fold_in, seeded_globals
from fathomless.system.torch_state import enable_gradients

__all__ = ["BatchedRun", "BatchedRuns", "fit_batched", "log_densities"]

_CHUNK = 65536  # rows scored at once, over all members
_KINDS = ("value", "first", "second", "count")  # state of every parameter, (F, …) each: value, moments, step count


@dataclass(eq=False)
class BatchedRun:
    """One member of a batched training, with the attributes of a :class:`~fathomless.inference.runs.run.Run`.

    Attributes
    ----------
    model, likelihood
        Trained in place; they have the result only after all members are done.
    training : Training
        Options.
    seed : int
        Seed of the order of the rows.
    history : list of dict
        One row per evaluation.
    best : Best
        Best validation score, with the state of the model at that epoch.
    epoch : int
        Number of epochs done.
    stop : bool
        True if it has stopped early.
    error : str
        Reason for which it was abandoned, if its bound was no longer finite. The other members continue.
    """

    model: Model
    likelihood: Likelihood
    training: Training
    seed: int
    history: list[dict[str, float]] = field(default_factory=list)
    best: Best = field(default_factory=Best)
    epoch: int = 0
    stop: bool = False
    error: str = ""

    def result(self) -> Fitted:
        """Return the result of the training so far."""
        done = (self.model, self.likelihood, self.history, self.epoch, self.best.score, self.seed)
        return Fitted(*done, training=self.training, stopped=self.stop, error=self.error)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters by their names in the evaluated pair of model and likelihood."""
        return {
            **{f"model.{name}": p for name, p in self.model.named_parameters()},
            **{f"likelihood.{name}": p for name, p in self.likelihood.named_parameters()},
        }


class BatchedRuns(Planned):
    """State of a batched training between two epochs.

    Attributes
    ----------
    members : tuple of BatchedRun
        Members, in the order given.
    epoch, step : int
        Number of epochs and steps done.
    history : list of dict
        Means over the members that were still being trained.
    planned : int, optional
        Number of epochs that were planned before :meth:`shorten` reduced it.
    stop, pause : bool
        Requests to stop or pause all members; see :class:`~fathomless.inference.runs.run.Run`.
    """

    def __init__(self, members: Sequence[BatchedRun]) -> None:
        self.members = tuple(members)
        self.training = members[0].training
        self.device = members[0].model.device
        self.epoch = self.step = 0
        self.temperature_factor = 1.0  # factor of the temperatures
        self.history: list[dict[str, float]] = []
        self.stop = self.pause = False
        self.planned: int | None = None
        self.terms: tuple[str, ...] = ()
        self.tempered: frozenset[str] = frozenset()
        self.active = [i for i, member in enumerate(members) if not member.stop]
        self.orders = [as_generator(fold_in(member.seed, "order")) for member in members]
        self.noise = as_generator(fold_in(members[0].seed, "noise"), device=self.device)
        self.state: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
        self.gather()

    @property
    def epochs(self) -> int:
        """Number of planned epochs."""
        return self.training.epochs

    def shorten(self, epochs: int) -> None:
        """Reduce the planned epochs, also those of the schedule, to a number, or to the epochs done."""
        self.planned = self.planned or self.epochs
        self.training = replace(self.training, epochs=max(epochs, self.epoch))

    @property
    def evaluates(self) -> bool:
        """True if the epoch that has just ended gets a row in the history."""
        return self.epoch % self.training.evaluate_every == 0 or self.epoch == self.epochs

    def gather(self) -> None:
        """Build the evaluated network, with the parts of all active members, and the tensors of its parameters."""
        live = [self.members[i] for i in self.active]
        for member in live:
            member.model.train()
        first = live[0].model
        if not isinstance(first, Mergeable):
            raise missing_capability(first, Mergeable, "batched training", "fit its networks one by one (n_restarts=1)")
        self.pair = _Pair(first.merge([member.model for member in live[1:]]), live[0].likelihood).train()
        refuse_buffers(self.pair)
        parameters = [member.named_parameters() for member in live]
        self.of_structure = {f"model.{name}" for name in structure_parameters(self.pair.model)}
        self.active_mask: dict[str, Tensor] = {}  # (F,) 1 where a part is in use
        state = self.state
        for name, filler in self.pair.named_parameters():
            rows = [of_member.get(name) for of_member in parameters]
            refuse_shapes(name, filler, rows)
            if name not in state["value"]:
                blank = torch.zeros(len(rows), *filler.shape, dtype=filler.dtype, device=filler.device)
                counts = torch.zeros(len(rows), dtype=torch.float32, device=self.device)
                for kind in _KINDS:
                    state[kind][name] = counts if kind == "count" else blank.clone()
            steps = state["count"][name].tolist()
            for i, row in enumerate(rows):
                if not steps[i]:  # new, or not updated so far: take the value of the member, or the filler
                    state["value"][name][i] = (filler if row is None else row).detach()
            used = [float(row is not None and row.requires_grad) for row in rows]
            self.active_mask[name] = torch.tensor(used, dtype=torch.float32, device=self.device)
        # names and per-member options as the step needs them
        self.order_of = list(self.active_mask)
        self.rates = torch.tensor([m.training.learning_rate for m in live], dtype=torch.float64, device=self.device)
        self.temperature = torch.tensor([m.training.temperature for m in live], dtype=torch.float64, device=self.device)
        self.structure_rate = torch.tensor(
            [m.training.structure_rate for m in live], dtype=torch.float64, device=self.device
        )

    def release(self) -> None:
        """Write members that have stopped into their models, and remove them from the batch."""
        kept = [k for k, i in enumerate(self.active) if not self.members[i].stop]
        for k, i in enumerate(self.active):
            if self.members[i].stop:
                self.write(k)
        if len(kept) < len(self.active):
            self.active = [self.active[k] for k in kept]
            rows = torch.tensor(kept, dtype=torch.int64, device=self.device)
            self.state = {kind: {name: t[rows] for name, t in of.items()} for kind, of in self.state.items()}
            if kept:
                self.gather()

    @torch.no_grad()
    def write(self, k: int) -> None:
        """Copy row k of the stacked parameters into the model and likelihood of its member."""
        for name, p in self.members[self.active[k]].named_parameters().items():
            p.copy_(self.state["value"][name][k])

    @torch.no_grad()
    def update_structure(self, whole: bool = False) -> None:
        """Create or retire parts of every member by its own posterior over structure.

        Only laws with scalar parameters create parts. Laws with a parameter for each weight are copied into the models
        only if `whole`.
        """
        changed = False
        laws = [name for name in self.of_structure if self.state["value"][name].ndim == 1]
        values = {name: self.state["value"][name].tolist() for name in laws}
        for k, i in enumerate(self.active):
            for name, p in structure_parameters(self.members[i].model).items() if whole else ():
                if f"model.{name}" not in values:
                    p.copy_(self.state["value"][f"model.{name}"][k])
        if not laws:
            return
        for k, i in enumerate(self.active):
            model = self.members[i].model
            before = get_blueprint(model)
            for name, p in structure_parameters(model).items():  # scalars
                p.fill_(values[f"model.{name}"][k])
            if isinstance(model, Growing):
                model.grow()
            changed = changed or get_blueprint(model) != before
            for name, p in structure_parameters(model).items():  # a law may have moved its parameters to a bound
                if f"model.{name}" in values:
                    self.state["value"][f"model.{name}"][k] = p
        if changed:
            self.gather()

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors by name, not copied."""
        return {
            **{f"{kind}/{name}": t for kind, of in self.state.items() for name, t in of.items()},
            **{f"order/{i}": order.get_state() for i, order in enumerate(self.orders)},
            **{f"best/{i}/{name}": t for i, m in enumerate(self.members) for name, t in m.best.state.items()},
            **{
                f"done/{i}/{name}": p
                for i in self._inactive()
                for name, p in self.members[i].named_parameters().items()
            },
            "noise": self.noise.get_state(),
        }

    def meta(self) -> dict[str, Any]:
        """Return the rest of the state as plain JSON."""
        members = [
            {
                "layout": get_blueprint(m.model),
                "history": m.history,
                "epoch": m.epoch,
                "stop": m.stop,
                "error": m.error,
                "best": m.best.to_json(),
            }
            for m in self.members
        ]
        shorter = {} if self.planned is None else {"planned": self.planned, "epochs": self.epochs}
        return {"epoch": self.epoch, "step": self.step, "history": self.history, "members": members, **shorter}

    @torch.no_grad()
    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`tensors` and :meth:`meta` returned."""
        self.epoch = meta["epoch"]
        self.step = meta["step"]
        self.history = list(meta["history"])
        self.planned = meta.get("planned")
        if self.planned is not None:
            self.training = replace(self.training, epochs=meta["epochs"])
        for i, (member, saved) in enumerate(zip(self.members, meta["members"], strict=True)):
            rebuild(member.model, saved["layout"])
            member.history = list(saved["history"])
            member.epoch = saved["epoch"]
            member.stop = saved["stop"]
            member.error = saved["error"]
            member.best = Best.from_json(saved["best"], under(f"best/{i}", tensors))
            self.orders[i].set_state(tensors[f"order/{i}"].cpu())
            for name, value in under(f"done/{i}", tensors).items():
                member.named_parameters()[name].copy_(value)
        self.noise.set_state(tensors["noise"].cpu())
        self.active = [i for i, member in enumerate(self.members) if not member.stop]
        self.state = {kind: {name: t.to(self.device) for name, t in under(kind, tensors).items()} for kind in _KINDS}
        if self.active:
            self.gather()
        self.stop = not self.active

    def _inactive(self) -> list[int]:
        """Return the indices of the members that are no longer trained."""
        return [i for i in range(len(self.members)) if i not in self.active]


Callback = Callable[[BatchedRuns], None]


@enable_gradients()
def fit_batched(
    models: Sequence[Model],
    likelihoods: Sequence[Likelihood],
    train: Rows | Sequence[Rows],
    valid: Rows | Sequence[Rows] | None = None,
    *,
    training: Training | Sequence[Training] | None = None,
    seeds: Sequence[int] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    resume: State | None = None,
) -> tuple[Fitted, ...]:
    """Fit F models and their likelihoods in one batch, in place.

    Parameters
    ----------
    models : sequence of Model
        Models of one family and architecture; seeds and starts of the posterior over structure may differ.
    likelihoods : sequence of Likelihood
        One for each model, of the same class and options.
    train, valid : Rows, or sequence of F Rows
        Data on the models' device, shared by all models or one for each; all need the same number of rows.
    training : Training, or sequence of F Trainings
        Options; they may differ in `learning_rate`, `structure_rate` and `temperature`. The optimiser is Adam.
    seeds : sequence of int
        Seeds of the order of the rows; 0, 1, … by default.
    callbacks : sequence of callables
        Functions called with the :class:`BatchedRuns` after every evaluation.
    progress : Progress
        Display of means over the members.
    resume : (tensors, meta), optional
        State to resume from.

    Returns
    -------
    tuple of F Fitted
        Results in the order of the models. Members that were abandoned have the reason in :attr:`Fitted.error`.

    Raises
    ------
    DataError
        If models, rows or options cannot be trained in one batch.
    DivergenceError
        If the bounds of all members are no longer finite. A single member that fails is abandoned.
    PausedError
        If a callback sets ``runs.pause``.
    """
    members = _make_members(models, likelihoods, training, seeds)
    for data in (train, valid):
        for rows in [data] if isinstance(data, Rows) else data or ():
            if not isinstance(rows, Rows):
                raise DataError(
                    f"rows of type {type(rows).__name__} were given; networks in one batch need Rows, or one Rows for "
                    "each network, since they select rows"
                )
            check(models[0], likelihoods[0], rows, finite=False)
    training_rows = PaddedRows.of("training", train, len(members))
    valid_rows = None if valid is None or len(valid) == 0 else PaddedRows.of("validation", valid, len(members))
    runs = BatchedRuns(members)
    t = members[0].training
    if resume is not None:
        runs.resume(*resume)
    try:
        drive(runs, lambda: _advance(runs, training_rows, valid_rows), callbacks=callbacks, progress=progress)
    finally:
        for k in range(len(runs.active)):
            runs.write(k)
        for member in members:
            member.best.restore(member.model, member.likelihood)
            member.model.eval()
            member.likelihood.eval()
    scores = [member.best.score for member in members]
    if t.calibrate and valid_rows is not None and can_calibrate(likelihoods[0]):
        for i, member in enumerate(members):
            if not member.error:
                scores[i] = calibrate(member.model, member.likelihood, valid_rows.member(i), t.draws, member.seed)
    if all(member.error for member in members):
        raise DivergenceError(members[0].error)
    results = zip(members, scores, strict=True)
    return tuple(replace(member.result(), score=score, planned=runs.planned) for member, score in results)


class _Pair(nn.Module):
    """A model and its likelihood as one function of their parameters."""

    def __init__(self, model: Model, likelihood: Likelihood) -> None:
        super().__init__()
        self.model = model
        self.likelihood = likelihood
        self.terms: tuple[str, ...] = ()  # names of the divergences
        self.tempered: frozenset[str] = frozenset()  # names of those that the temperature multiplies

    def forward(
        self, x: Tensor, y: Tensor, weight: Tensor | None, size: int | None, temperature: Tensor, draws: int, noise: Any
    ) -> tuple[Tensor, ...]:
        """Return elbo, log-likelihood and divergences; or, without a size, the log predictive density of each row."""
        drawn = self.model.draw(x, draws, noise)
        if size is None:
            return (log_predictive(drawn, self.likelihood, y),)
        with torch.autocast(x.device.type, enabled=False):  # sums over rows need full precision
            bound = elbo(drawn, self.likelihood, y, size=size, weight=weight, temperature=temperature)
        self.terms = tuple(bound.divergence)
        self.tempered = drawn.tempered
        return (bound.value, bound.log_likelihood, *bound.divergence.values())


def _evaluate(
    runs: BatchedRuns, values: dict[str, Tensor], rows: Rows, size: int | None, draws: int, noise: Any
) -> Any:
    """Evaluate the pair for all active members at once; results as in :meth:`_Pair.forward`, with an axis of F."""

    def evaluate_member(
        parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor | None, temperature: Tensor
    ) -> Any:
        return functional_call(runs.pair, parameters, (x, y, weight, size, temperature, draws, noise))

    weight_dim = None if rows.weight is None else 0
    evaluate_all = vmap(evaluate_member, in_dims=(0, 0, 0, weight_dim, 0), randomness="different")
    return evaluate_all(
        {name: values[name] for name in runs.active_mask},
        rows.x,
        rows.y,
        rows.weight,
        runs.temperature * runs.temperature_factor,
    )


def _advance(runs: BatchedRuns, train: PaddedRows, valid: PaddedRows | None) -> None:
    """Train until the next evaluation is due, and evaluate."""
    totals: Tensor | None = None
    while totals is None or not runs.evaluates:
        with seeded_globals(fold_in(runs.members[0].seed, "epoch", runs.epoch), runs.device):
            sums = _epoch(runs, train)
        totals = sums if totals is None else totals + sums
        runs.epoch += 1
    _record(runs, train, valid, totals)


def _epoch(runs: BatchedRuns, train: PaddedRows) -> Tensor:
    """Train for one epoch; return the sums of the parts of the bounds, (parts, F)."""
    t = runs.training
    size = len(train)
    steps = math.ceil(size / t.batch_size)
    orders = [torch.randperm(size, generator=runs.orders[i], device="cpu") for i in runs.active] if steps > 1 else []
    index = torch.stack(orders).to(runs.device) if orders else None  # (F, N)
    shares = []
    for b in range(steps):
        edges = slice(size * b // steps, size * (b + 1) // steps)
        batch = train.take(runs.active, edges if index is None else index[:, edges])
        runs.step += 1
        structure_step = runs.step % t.structure_every == 0
        runs.temperature_factor = t.temperature_factor((runs.step - 1) / (steps * t.epochs))
        factor = schedule(t.schedule, runs.step - 1, steps * t.epochs, steps)
        parts = _step(runs, batch, train, factor, structure_step)
        shares.append(parts * ((edges.stop - edges.start) / size))
        if structure_step and runs.of_structure:
            runs.update_structure()
    return torch.stack(shares).sum(0)


def _step(runs: BatchedRuns, batch: Rows, train: PaddedRows, factor: float, structure_step: bool) -> Tensor:
    """Take one step of all members; return log-likelihoods and divergences, (parts, F)."""
    t = runs.training
    structure_step = structure_step and runs.epoch >= t.structure_delay
    trained = [name for name in runs.order_of if structure_step or name not in runs.of_structure]
    values = {name: value.detach().requires_grad_(name in trained) for name, value in runs.state["value"].items()}
    with torch.autocast(runs.device.type, torch.bfloat16) if t.mixed else contextlib.nullcontext():
        bound, *parts = _evaluate(runs, values, batch, len(train), t.draws, runs.noise)
    runs.terms = runs.pair.terms
    runs.tempered = runs.pair.tempered
    # members share no parameters, so the gradient of the sum of their losses has the gradient of each in its row
    counts = torch.tensor([train.counts[i] for i in runs.active], dtype=bound.dtype, device=runs.device)
    all_gradients = torch.autograd.grad(-(bound / counts).sum(), [values[name] for name in trained], allow_unused=True)
    gradients = {name: g for name, g in zip(trained, all_gradients, strict=True) if g is not None}
    if t.clip_norm is not None:
        _clip(gradients, runs.of_structure, t.clip_norm)
    _adam(runs, gradients, factor)
    return torch.stack([part.detach().double() for part in parts])


@torch.no_grad()
def _adam(
    runs: BatchedRuns, gradients: Mapping[str, Tensor], factor: float, beta1: float = 0.9, beta2: float = 0.999
) -> None:
    """Take a step of Adam for every member's parameters in use; those not in use keep value, moments and count.

    It is written out since ``torch.optim.Adam`` has one step count and one rate per tensor, not per row.
    """
    names = list(gradients)
    state = runs.state
    used = torch.stack([runs.active_mask[name] for name in names])  # (P, F)
    count = torch.stack([state["count"][name] for name in names]) + used
    of_structure = torch.tensor([name in runs.of_structure for name in names], device=runs.device)
    structure_rate = torch.where(
        of_structure[:, None], runs.structure_rate * runs.training.structure_every, torch.ones_like(runs.structure_rate)
    )
    count64 = count.double().clamp(min=1.0)
    rate = factor * runs.rates * structure_rate * used / (1.0 - beta1**count64)  # (P, F)
    spread = (1.0 - beta2**count64).sqrt()
    for k, name in enumerate(names):
        g = gradients[name]
        value, first, second = (state[kind][name] for kind in _KINDS[:3])
        per_member = (-1, *[1] * (g.ndim - 1))  # (F, 1, …)
        in_use = used[k].to(g.dtype).view(per_member)
        first.lerp_(g, (1.0 - beta1) * in_use)
        second.lerp_(g * g, (1.0 - beta2) * in_use)
        scale = (second.sqrt() / spread[k].to(g.dtype).view(per_member)).add_(1e-10)
        value.sub_(first * rate[k].to(g.dtype).view(per_member) / scale)
        state["count"][name] = count[k]


@torch.no_grad()
def _clip(gradients: Mapping[str, Tensor], of_structure: set[str], longest: float) -> None:
    """Clip the norm of each member's gradient of the weights, law over structure excluded."""
    weights = [g for name, g in sorted(gradients.items()) if name not in of_structure]
    length = torch.stack([g.double().square().flatten(1).sum(1) if g.ndim > 1 else g.double() ** 2 for g in weights])
    factor = (longest / (length.sum(0).sqrt() + 1e-6)).clamp(max=1.0)  # (F,)
    for g in weights:
        g.mul_(factor.to(g.dtype).view(-1, *[1] * (g.ndim - 1)))


def _record(runs: BatchedRuns, train: PaddedRows, valid: PaddedRows | None, totals: Tensor) -> None:
    """Read the sums, abandon members whose bound is not finite, score the others, and add rows to the histories."""
    t = runs.training
    last = int(runs.history[-1]["epoch"]) if runs.history else 0
    parts = (totals / (runs.epoch - last)).T.tolist()
    if runs.of_structure:
        runs.update_structure(whole=True)
    scores = [] if valid is None else _score(runs, valid)
    for k, i in enumerate(runs.active):
        member = runs.members[i]
        member.epoch = runs.epoch
        place = {
            "epoch": runs.epoch,
            "step": runs.step,
            "learning_rate": member.training.learning_rate * _rate_factor(runs, train),
        }
        row = history_row(place, parts[k], runs.terms, runs.tempered, member.training.temperature)
        if not math.isfinite(row["elbo"]):
            member.stop = True
            member.error = (
                f"the evidence bound is {row['elbo']} after epoch {runs.epoch}; lower learning_rate (now "
                f"{member.training.learning_rate}), set optimizer__clip_norm, or scale the data"
            )
            continue
        runs.write(k)  # the statistics of the structure and the best state are read from the model
        row.update(checks.check_returned("structure", member.model.structure(), Structure).statistics)
        if scores:
            row["validation_log_likelihood"] = scores[k]
        if scores and t.temperature_factor(runs.epoch / t.epochs) == 1.0:
            member.best.offer(scores[k], runs.epoch, member.model, member.likelihood)
            member.stop = member.stop or member.best.is_exhausted(t.patience)
        member.history.append(row)
    rows = [runs.members[i].history[-1] for i in runs.active if not runs.members[i].error]
    if rows:
        means = {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}
        runs.history.append({**means, "epoch": runs.epoch, "step": runs.step})
    else:
        runs.history.append({"epoch": runs.epoch, "step": runs.step})
    runs.release()
    runs.stop = runs.stop or not runs.active


def _rate_factor(runs: BatchedRuns, train: PaddedRows) -> float:
    """Return the factor of the learning rate at the last step."""
    steps = math.ceil(len(train) / runs.training.batch_size)
    return schedule(runs.training.schedule, runs.step - 1, steps * runs.training.epochs, steps)


@torch.no_grad()
def log_densities(runs: BatchedRuns, rows: Rows) -> Tensor:
    """Return the log predictive density of rows (F, N, …), each under the network of its active member, (F, N)."""
    runs.pair.eval()
    noise = as_generator(fold_in(runs.members[0].seed, "score"))
    (density,) = _evaluate(runs, runs.state["value"], rows, None, max(runs.training.draws, 8), noise)
    runs.pair.train()
    return cast(Tensor, density)


@torch.no_grad()
def _score(runs: BatchedRuns, valid: PaddedRows) -> list[float]:
    """Return the mean log predictive density of each active member's validation rows, in nats per row."""
    total = torch.zeros(len(runs.active), dtype=torch.float64, device=runs.device)
    chunk = max(256, _CHUNK // len(runs.active))
    for start in range(0, len(valid), chunk):
        part = valid.take(runs.active, slice(start, start + chunk))
        density = log_densities(runs, part)
        total += (density if part.weight is None else density * part.weight).double().sum(1)
    return [value / valid.counts[i] for value, i in zip(total.tolist(), runs.active, strict=True)]


def _make_members(
    models: Sequence[Model],
    likelihoods: Sequence[Likelihood],
    training: Training | Sequence[Training] | None,
    seeds: Sequence[int] | None,
) -> list[BatchedRun]:
    """Make the members from models, likelihoods, options and seeds, and check that they can be trained in one batch."""
    count = len(models)
    if ranks().count > 1:
        raise DataError(
            f"a batched training of {count} networks was requested in {ranks().count} processes; use one process"
        )
    trainings = [training or Training()] * count if training is None or isinstance(training, Training) else training
    seeds = range(count) if seeds is None else seeds
    for name, values in (("likelihoods", likelihoods), ("trainings", trainings), ("seeds", seeds)):
        if len(values) != count or not count:
            raise DataError(f"{count} models and {len(values)} {name} were given; one for each model is needed")
    refuse_unlike(trainings, likelihoods)
    return [BatchedRun(*member) for member in zip(models, likelihoods, trainings, seeds, strict=True)]
