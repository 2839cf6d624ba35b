"""Training loop: stochastic gradient ascent on the evidence lower bound, for every family.

A step draws networks on a batch, computes the bound (the weighted log-likelihood minus the divergences) and its
gradient, and updates the parameters. It neither reads numbers from the device nor loops over rows. Every
``structure_every`` steps, the model may create or retire parts. At the end of an epoch, if an evaluation is due, the
validation rows are scored and a row is added to the history.

The state of a run can be saved as tensors and JSON and restored (:class:`Run`). A training that is killed and resumed
from its last checkpoint gives bit-identical results to an uninterrupted one (on the CPU, with the same number of
threads).

Several processes may train one network (:mod:`fathomless.inference.runs.distributed`): they form the same batches, each
evaluates its share, and gradients are summed over processes, so that all take the same step.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.batches import Batches
from fathomless.data.rows import Rows, Stream
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold.search import LogDensities, StructureSearch, score_structures
from fathomless.inference.runs.driver import State, drive
from fathomless.inference.runs.run import Fitted, Run, check, find_nonfinite, history_row, structure_parameters
from fathomless.inference.variational.objective import elbo, log_predictive
from fathomless.inference.variational.recorded import RecordedSteps
from fathomless.inference.variational.training import Training, schedule
from fathomless.nn.stacked import scale_gradients
from fathomless.posterior.capabilities import (
    Growing,
    HasStructureLaw,
    ListedStructure,
    NaturalGradient,
    get_blueprint,
    missing_capability,
)
from fathomless.posterior.likelihoods import Likelihood, LocationScale, is_censored
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.noise import InputNoise, LearnedNoise
from fathomless.posterior.structure import Structure
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning, DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.recording import set_rate
from fathomless.system.rng import as_generator, fold_in, seeded_globals
from fathomless.system.torch_state import enable_gradients, evaluating

__all__ = ["assign_parts", "calibrate", "can_calibrate", "fit", "score"]

_CHUNK = 8192  # rows scored at once
_KEPT = 1024  # steps whose bounds are kept on the device before they are summed
_SMALL, _LARGE = 0.1, 10.0  # range of the size of targets without a warning


Callback = Callable[[Run], None]
Data = Rows | Stream | StackedRows | Batches


@enable_gradients()
def fit(
    model: Model,
    likelihood: Likelihood,
    train: Data | Iterable[Any],
    valid: Rows | StackedRows | Batches | Iterable[Any] | None = None,
    *,
    training: Training | None = None,
    search: StructureSearch | None = None,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    resume: State | None = None,
) -> Fitted:
    """Fit a model and its likelihood to data, in place.

    With validation rows, the state with the best mean log predictive density is restored at the end.

    Parameters
    ----------
    model : Model
        Model of any family.
    likelihood : Likelihood
        p(y | f); its parameters are learned too.
    train, valid : Rows
        Data on the model's device. The training data may be a :class:`~fathomless.data.rows.Stream`; for stacked
        models both are :class:`~fathomless.data.stacked_rows.StackedRows`. Either may be a ``DataLoader``, or any
        iterable of batches (x, y) or (x, y, weight), see :class:`~fathomless.data.batches.Batches`. Training batches
        then keep their size, and `batch_size` has no effect; validation batches are gathered in memory.
    training : Training
        Options.
    search : StructureSearch, optional
        Search for the posterior over a list of structures, from the validation rows. `epochs` is then the length
        without growth, the schedule is that of the phases, and the likelihood is not calibrated.
    seed : int
        Seed of the order of the rows and of weight draws.
    callbacks : sequence of callables
        Functions called with the run after every row of the history. All ranks need the same callbacks;
        ``run.ranks.rank`` is the rank. ``run.stop`` or ``run.pause`` set on one rank applies to all.
    progress : Progress
        Display.
    resume : (tensors, meta), optional
        State to resume from.

    Returns
    -------
    Fitted
        Trained model and likelihood, with their history.

    Raises
    ------
    DivergenceError
        If the bound is no longer finite; the message names the first tensor that is not finite.
    PausedError
        If a callback sets ``run.pause``.
    RankError
        If processes that train together do not have the same network or the same data.

    Warns
    -----
    DataWarning
        If the batches do not follow from the seed, so that a resumed training is not bit-identical; and if the noise is
        fitted and the targets are far from size 1, for which the priors of noise and weights are meant.
    """
    _check_kinds(model, likelihood, train)
    batches = _as_batches(train, model.device)
    held_out = _gather_held_out(valid, model.device, seed)
    data = (batches, held_out) if held_out is not None else (batches,)
    for rows in data:
        check(model, likelihood, rows, finite=not isinstance(rows, StackedRows))
    if isinstance(batches, Rows | Batches):
        _warn_of_scale(likelihood, batches.first.y)
    divided = isinstance(batches, StackedRows) and batches.whole is not None
    run = Run(model, likelihood, training or Training(), seed, search, divided=divided)
    _check_options(run, batches, held_out)
    run.begin_averages(batches.steps(run.training.batch_size))
    if resume is not None:
        run.resume(*resume)
    elif search is not None:
        assert isinstance(model, ListedStructure)
        if search.q:
            raise DataError("search was used by another training, whose state it has; give a new StructureSearch")
        if not search.focusing:
            search.begin(model)
        run.register_parameters()
    run.partners.refuse_statistics(model)
    _compare(run, *data, plain=[asdict(run.training), seed, run.epoch, len(callbacks)])
    recorded = _make_steps(run, batches)
    try:
        drive(
            run,
            lambda: _advance(run, batches, held_out, recorded),
            callbacks=callbacks,
            progress=progress,
            ranks=run.ranks,
        )
    finally:
        if run.averages is not None:
            run.averages.adopt()
        run.best.restore(model, likelihood)  # also after an error, so that the best state so far is not lost
        for p in structure_parameters(model).values():
            p.requires_grad_()  # the last step may have been one without an update of the law
        model.eval()
        likelihood.eval()
    if search is not None and held_out is not None:
        assert isinstance(model, ListedStructure)
        densities = search.adopt(model, _score_held_out(run, held_out))
        return replace(run.result(), log_densities=densities)
    calibrates = run.training.calibrate and can_calibrate(likelihood)
    if calibrates and isinstance(held_out, Rows) and len(held_out):
        return replace(run.result(), score=calibrate(model, likelihood, held_out, run.training.draws, seed))
    return run.result()


def _check_kinds(model: object, likelihood: object, train: object) -> None:
    """Raise DataError for a model, a likelihood or data of another kind."""
    if not isinstance(model, Model):
        raise DataError(
            f"model is a {type(model).__name__}; a Model is allowed, such as bayesian_network(network) for a network"
        )
    if not isinstance(likelihood, Likelihood):
        raise DataError(f"likelihood={likelihood!r:.80} was given; a Likelihood is allowed, such as Gaussian()")
    if isinstance(train, Tensor):
        raise DataError("the training data are a Tensor; give Rows(x, y), or batches (x, y)")


def _as_batches(train: Data | Iterable[Any], device: torch.device) -> Data:
    """Wrap iterables in :class:`Batches`; warn if their order does not follow from the seed."""
    if isinstance(train, Rows | Stream | StackedRows):
        return train
    batches = train.on(device) if isinstance(train, Batches) else Batches(train, device=device)
    if not batches.is_reproducible():
        warnings.warn(
            f"two passes over the {type(batches.source).__name__} began with different batches, although torch's "
            "generators had the same seed: a resumed training will not be bit-identical. Draw random numbers from "
            "torch's global generator, or give the DataLoader a torch.Generator",
            DataWarning,
            stacklevel=4,
        )
    return batches


def _warn_of_scale(likelihood: Likelihood, y: Tensor) -> None:
    """Warn of targets whose size is far from 1, if the scale of the noise is fitted."""
    if not isinstance(likelihood, LocationScale) or not isinstance(likelihood.noise, LearnedNoise | InputNoise):
        return
    known = y.double()[y.isfinite()]
    size = float(known.square().mean().sqrt()) if len(known) else 1.0
    if not _SMALL <= size <= _LARGE and size > 0.0:
        warnings.warn(
            f"the root mean square of the targets is {size:.3g}; the priors of noise and weights are meant for targets "
            "of size 1. Train on (y - y.mean(0)) / y.std(0), and give predictive the mean as shift and the standard "
            "deviation as scale; an estimator that continues from a fit in other units should be fitted anew",
            DataWarning,
            stacklevel=4,
        )


def _gather_held_out(
    valid: Rows | StackedRows | Batches | Iterable[Any] | None, device: torch.device, seed: int
) -> Rows | StackedRows | None:
    """Gather validation batches in memory."""
    if valid is None or isinstance(valid, Rows | StackedRows):
        return valid
    batches = valid.on(device) if isinstance(valid, Batches) else Batches(valid, device=device)
    return batches.read_all(fold_in(seed, "held out"))


def _check_options(run: Run, train: Data, valid: Rows | StackedRows | None) -> None:
    """Check that the family supports the options, and that no part has a law that would be trained as weights."""
    t = run.training
    model = run.model
    if run.search is not None and not isinstance(model, ListedStructure):
        raise missing_capability(
            model, ListedStructure, "a posterior over structure from held-out rows", "use the evidence bound"
        )
    if run.search is not None and (valid is None or not len(valid)):
        raise DataError("a posterior over structure from held-out rows needs validation rows, and none were given")
    if isinstance(train, StackedRows) and run.partners.count > 1:
        raise DataError(
            f"joint training of {len(train.index)} networks was requested in {run.ranks.count} processes; use one"
        )
    if run.divided and run.search is None and structure_parameters(model):
        raise DataError(
            f"structure_from='elbo' cannot be used for several networks in {run.ranks.count} processes; use "
            "structure_from='held_out', cv=1, or one process"
        )
    if t.structure_optimizer == "natural" and not isinstance(model, NaturalGradient):
        raise missing_capability(
            model, NaturalGradient, "structure_optimizer='natural'", "use structure_optimizer='adam'"
        )
    if t.precondition and not isinstance(model, Growing):
        raise missing_capability(model, Growing, "precondition=True", "leave it out")
    if not isinstance(model, HasStructureLaw):
        inside = [name for name, part in model.named_modules() if isinstance(part, HasStructureLaw)]
        if inside:
            raise DataError(
                f"{inside[0]}, a part of the {type(model).__name__}, has a law over structure; train the members "
                "separately with fit, or together with fit_batched, and combine them afterwards"
            )


@enable_gradients()
def calibrate(
    model: Model, likelihood: Likelihood, valid: Rows, draws: int = 1, seed: int = 0, *, move: bool = True
) -> float:
    """Fit the parameters of the likelihood to the validation rows, with the network fixed; return a score.

    Scales that the network predicts get a factor for each target, which is such a parameter. The fit maximises the log
    predictive density. A quadratic penalty of half a nat for a change by one (a factor e of a scale) keeps a few rows
    from moving the parameters far. Learned scales are at least the rounding error of the lattice of their target.

    Parameters
    ----------
    model, likelihood
        Trained model and likelihood; the likelihood is changed in place.
    valid : Rows
        Validation rows.
    draws : int
        Number of weight draws, for families that draw weights; at least 8 are used.
    seed : int
        Seed of these draws.
    move : bool
        If False, only score the rows.

    Returns
    -------
    float
        Cross-fitted mean log predictive density in nats per row: each part of the rows (:func:`assign_parts`) is scored
        with parameters fitted to the other parts.

    Raises
    ------
    DataError
        If there are no validation rows.
    """
    if not len(valid):
        raise DataError("0 validation rows were given; at least 1 is needed")
    with evaluating(model, likelihood):
        return _calibrate(model, likelihood, valid, draws, seed, move)


def _calibrate(model: Model, likelihood: Likelihood, valid: Rows, draws: int, seed: int, move: bool) -> float:
    """Calibrate in evaluation mode; see :func:`calibrate`."""
    if move and isinstance(likelihood, LocationScale):
        likelihood.add_factor(valid.y)
    parameters = [p for p in likelihood.parameters() if p.requires_grad and move]
    with torch.no_grad():
        parts = [
            model.draw(part.x, max(draws, 8), as_generator(fold_in(seed, "score"))) for part in valid.parts(_CHUNK)
        ]
        drawn = replace(parts[0], f=torch.cat([part.f for part in parts], 1))
    start = [p.detach().clone() for p in parameters]
    weight = torch.ones_like(drawn.f[0, :, 0]) if valid.weight is None else valid.weight
    part = assign_parts(len(valid)).to(valid.x.device)
    total = 0.0
    for k in range(int(part.max()) + 1) if parameters else ():
        _fit_to(drawn, likelihood, valid, parameters, start, part != k)
        with torch.no_grad():
            density = log_predictive(replace(drawn, f=drawn.f[:, part == k]), likelihood, valid.y[part == k])
            total += float((density * weight[part == k]).double().sum())
    _fit_to(drawn, likelihood, valid, parameters, start)
    if not parameters:
        with torch.no_grad():
            total = float((log_predictive(drawn, likelihood, valid.y) * weight).double().sum())
    return total / valid.count


def _fit_to(
    drawn: Draws,
    likelihood: Likelihood,
    valid: Rows,
    parameters: Sequence[Tensor],
    start: Sequence[Tensor],
    chosen: Tensor | None = None,
) -> None:
    """Fit parameters, from their start, to the rows of a mask (all rows by default)."""
    y, weight = valid.y, valid.weight
    if chosen is not None:
        drawn = replace(drawn, f=drawn.f[:, chosen])
        y = y[chosen]
        weight = None if weight is None else weight[chosen]
    with torch.no_grad():
        for p, old in zip(parameters, start, strict=True):
            p.copy_(old)
    if not parameters or not len(y):
        return
    optimizer = torch.optim.LBFGS(parameters, max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        density = log_predictive(drawn, likelihood, y)
        change = sum(((p - old) ** 2).sum() for p, old in zip(parameters, start, strict=True))
        value: Tensor = 0.5 * change - (density if weight is None else density * weight).sum()
        value.backward()
        return value

    optimizer.step(loss)
    optimizer.zero_grad()
    if isinstance(likelihood, LocationScale):
        likelihood.raise_scale()


def assign_parts(rows: int) -> Tensor:
    """Assign validation rows to parts for cross-fitting: a part is scored by a fit to the others.

    There are at most ten parts, and two for more than 8,192 rows, where a single row has little influence on a fit.
    """
    return torch.arange(rows, device="cpu") % min(10 if rows <= _CHUNK else 2, rows)


def can_calibrate(likelihood: Likelihood) -> bool:
    """Return True if :func:`calibrate` can change the likelihood: it has parameters, or predicted scales."""
    predicted = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, InputNoise)
    return predicted or any(p.requires_grad for p in likelihood.parameters())


def _make_steps(run: Run, train: Data) -> RecordedSteps:
    """Return the steps of a training, which are recorded where that is possible."""
    count = train.count
    units = None
    if isinstance(train, StackedRows):
        whole = train.whole or train
        count = whole.count
        # the joint loss is divided by the rows of all networks, not of each
        units = whole.weight.double().sum(1).sum() / train.weight.double().sum(1)
    return RecordedSteps(
        run, lambda batch, temperature: _step(run, batch, _size_for(train, batch), count, temperature, units)
    )


def _size_for(train: Data, batch: Rows) -> int:
    """Return the number of rows of the bound that a batch estimates."""
    return train.size_for(len(batch)) if isinstance(train, Batches) else len(train)


def _advance(run: Run, train: Data, valid: Rows | StackedRows | None, recorded: RecordedSteps) -> None:
    """Train until the next evaluation is due, and evaluate."""
    recorded.refresh()
    rank = ("rank", run.ranks.rank) if run.ranks.rank else ()
    totals: Tensor | None = None
    while totals is None or not run.evaluates:
        # modules of users, such as nn.Dropout, draw from torch's global generator. It is seeded in every epoch, so that
        # a resumed training draws the same numbers as an uninterrupted one; ranks have different rows, so different
        # seeds
        with seeded_globals(fold_in(run.seed, "epoch", run.epoch, *rank), run.model.device):
            sums = _epoch(run, train, recorded)
        totals = sums if totals is None else totals + sums
        run.epoch += 1
    _record(run, train, valid, totals)


def _epoch(run: Run, train: Data, recorded: RecordedSteps) -> Tensor:
    """Train for one epoch; return the sums of the parts of the bound, weighted by the sizes of the batches."""
    t = run.training
    if not run.model.training:  # train() visits all modules, which takes as long as a few layers
        run.model.train()
        run.likelihood.train()
    created = seen = 0
    total: Tensor | float = 0.0
    parts: list[Sequence[Tensor]] = []
    shares: list[float] = []
    steps = train.steps(t.batch_size)
    for batch in train.batches(t.batch_size, run.order):
        # reading a number makes the host wait for the device, so the parts of the bound stay on the device and are
        # summed later, but before the end of the epoch, since an epoch may have a million steps
        if len(parts) == _KEPT:
            total = total + _sum_parts(parts, shares)
            parts, shares = [], []
        run.step += 1
        # the law over structure is updated, and the model grows, only every few steps: both read from the device
        structure_step = run.step % t.structure_every == 0
        _set_rates(run, steps, structure_step and run.epoch >= t.structure_delay)
        warm_up = t.temperature_factor((run.step - 1) / (steps * t.epochs))
        parts.append(recorded.take(batch, t.temperature * warm_up))
        shares.append(len(batch) / _size_for(train, batch))
        seen += len(batch)
        if structure_step:
            _follow_law(run, train)
            new = _grow(run, None if t.max_growth is None else t.max_growth - created)
            created += new
            _compare(run, whole=bool(new))
        _clear_gradients(run)
        if run.averages is not None:
            run.averages.update()
    total = total + _sum_parts(parts, shares)
    return total if seen == len(train) else total * (len(train) / seen)  # a DataLoader may skip or repeat rows


def _grow(run: Run, limit: int | None) -> int:
    """Create or retire parts by the law over structure and register new parameters; return the number of new parts."""
    if not isinstance(run.model, Growing):
        return 0
    new = run.model.grow(limit)
    if new:
        run.register_parameters()
        run.partners.refuse_statistics(run.model)
    return new


def _sum_parts(parts: Sequence[Sequence[Tensor]], shares: Sequence[float]) -> Tensor:
    """Sum the parts of the bound over steps, weighted by shares of the rows."""
    weight = torch.tensor(shares, dtype=torch.float64).to(parts[0][0].device)
    return torch.stack([torch.stack(values).double() @ weight for values in zip(*parts, strict=True)])


def _compare(run: Run, *data: Data, whole: bool = True, plain: Any = None) -> None:
    """Check that all ranks have the same structure; if `whole`, also the same weights, random numbers and data.

    Weights are not compared if the processes train different networks.
    """
    if run.ranks.count == 1:
        return
    compared = ("generator/order",) if run.divided else ("model/", "likelihood/", "generator/")
    tensors = {name: value for name, value in run.tensors().items() if whole and name.startswith(compared)}
    values = [get_blueprint(run.model), plain]
    for i, rows in enumerate(data):
        rows = rows.whole if isinstance(rows, StackedRows) and rows.whole is not None else rows
        first = rows.first.take(slice(0, 256))
        tensors |= {f"{i}/x": first.x, f"{i}/y": first.y}
        values += [len(rows), rows.count]
    run.ranks.compare(run.step, tensors, values)


def _clear_gradients(run: Run) -> None:
    """Set all gradients to None; ``Optimizer.zero_grad`` does the same but takes as long as three layers."""
    for group in run.optimizer.param_groups:
        for p in group["params"]:
            p.grad = None


def _step(
    run: Run,
    batch: Rows,
    size: int,
    count: float | None = None,
    temperature: float | Tensor = 1.0,
    units: Tensor | None = None,
) -> list[Tensor]:
    """Take one step; return [log_likelihood, divergences…] on the device, without reading from it.

    The bound is divided by `count`, the sum of the sample weights of all `size` rows, so that a weight is equivalent to
    repetitions of the row. With F stacked networks, `units` (F,) is this sum relative to that of each network. With
    several ranks for one network, each evaluates its share of the batch and of the divergences. The shares sum to the
    bound, and their gradients to the gradient of the bound. The returned values are those of the share.
    """
    t = run.training
    group = run.partners
    part = group.share(batch)
    # a rank without rows evaluates one with factor 0 (`share` below), so that it has the same gradients to sum
    rows = part if len(part) else batch.take(slice(0, 1))
    with torch.autocast(rows.x.device.type, torch.bfloat16) if t.mixed else contextlib.nullcontext():
        draws = run.model.draw(rows.x, t.draws, run.noise)
    if group.count > 1:
        draws = replace(draws, divergence={name: kl / group.count for name, kl in draws.divergence.items()})
    share = size * len(part) / len(batch)
    bound = elbo(draws, run.likelihood, rows.y, size=share, weight=rows.weight, temperature=temperature)
    # the loss is per row, so that learning rates and clipping do not depend on the number of rows
    (-bound.value / (count or size)).backward()
    if group.count > 1:
        # sorted, since a resumed run may register parameters in another order, and all ranks must add the same ones
        parameters = [p for _, p in sorted(run.named_parameters().items())]
        group.add([p.grad for p in parameters if p.grad is not None])
    # the gradient of a part is proportional to the probability that it is used; Adam is invariant to this scale, plain
    # gradient steps are not
    preconditions = t.optimizer == "sgd" if t.precondition is None else t.precondition
    if preconditions:
        _precondition(run.model)
    _clip_gradients(run, units)
    run.optimizer.step()
    run.terms = tuple(bound.divergence)
    run.tempered = draws.tempered
    return [bound.log_likelihood.detach(), *(term.detach() for term in bound.divergence.values())]


def _clip_gradients(run: Run, units: Tensor | None) -> None:
    """Clip the gradient of the weights; for stacked networks, the gradient of each network in units of its own bound.

    The law over structure is excluded. Its gradient is a difference of whole bounds, which would dominate the norm and
    so the step of all weights.
    """
    t = run.training
    law = structure_parameters(run.model)
    if units is not None:
        plain = t.optimizer == "sgd"  # Adam's steps do not depend on the units of a gradient
        if plain or t.clip_norm is not None:
            factor = units if plain else torch.ones_like(units)
            modules = (run.model, run.likelihood)
            scale_gradients(modules, factor, longest=t.clip_norm, units=units, without=law.values())
    elif t.clip_norm is not None:
        names = {f"model/{name}" for name in law}
        parameters = run.named_parameters()
        # sorted, since the rounding of the norm depends on the order, and a resumed run may have another one
        nn.utils.clip_grad_norm_([parameters[name] for name in sorted(parameters) if name not in names], t.clip_norm)


@torch.no_grad()
def _follow_law(run: Run, train: Data) -> None:
    """Take the natural-gradient step of the law over structure, if chosen, and check that the law is finite."""
    t = run.training
    moving = [p for p in structure_parameters(run.model).values() if p.grad is not None]
    if not moving:
        return
    if t.structure_optimizer == "natural" and isinstance(run.model, NaturalGradient):
        fisher = run.model.fisher()
        factor = run.learning_rate / t.learning_rate
        gradient = torch.stack([-train.count * p.grad for p in moving if p.grad is not None])
        step = factor * t.structure_rate * (torch.linalg.pinv(fisher, rtol=1e-9) @ gradient)
        # trust region: the length in the Fisher metric bounds the divergence between the old and the new law
        length = (step @ fisher @ step).sqrt()
        radius = factor * t.structure_radius
        step = step * torch.where(length > radius, radius / length, 1.0)
        for p, change in zip(moving, step, strict=True):
            p.add_(change)
    # a law with few (scalar) parameters is checked now, before parts are created from it; inclusion probabilities of
    # all weights are checked with the bound, at the next evaluation
    law = [p.detach() for p in moving if p.ndim == 0]
    if law and not bool(torch.stack(law).isfinite().all()):
        _check_finite(run, train, math.nan)


@torch.no_grad()
def _precondition(model: Model, smallest: float = 1e-3) -> None:
    """Divide gradients by the probability that their parameter is used, so that new parts learn at full speed."""
    if not isinstance(model, Growing):
        return
    parameters = dict(model.named_parameters())
    for name, share in model.use_probability().items():
        gradient = parameters[name].grad if name in parameters else None  # a shared parameter has only one name
        if gradient is not None:
            gradient.div_(share.clamp(min=smallest))


def _set_rates(run: Run, steps: int, structure_moves: bool) -> None:
    """Set the learning rates of this step, and include or exclude the law over structure."""
    t = run.training
    weights, structure = run.optimizer.param_groups
    if run.search is None:
        factor = schedule(t.schedule, run.step - 1, steps * t.epochs, steps)
    else:
        factor = run.search.factor(run.step - 1, steps)
    run.learning_rate = t.learning_rate * factor
    set_rate(weights, run.learning_rate)
    # the law is updated in one of `structure_every` steps, with a rate that many times larger; natural-gradient steps
    # are taken in _follow_law instead
    by_adam = t.structure_optimizer == "adam"
    set_rate(structure, run.learning_rate * t.structure_rate * t.structure_every * by_adam)
    for p in structure["params"]:
        p.requires_grad_(structure_moves)  # without a gradient, Adam leaves value, moments and step count unchanged


def _record(run: Run, train: Data, valid: Rows | StackedRows | None, totals: Tensor) -> None:
    """Read the sums, check that the bound is finite, score the validation rows, and add a row to the history."""
    t = run.training
    _compare(run)
    epochs = run.epoch - (int(run.history[-1]["epoch"]) if run.history else 0)
    networks = 1
    if isinstance(train, StackedRows):
        networks = len((train.whole or train).index)
        # a network of another process, and the divergence of the law over structure, are counted once
        kind = run.model.structure().kind
        counted = [train.counts and (train.start == 0 or name != kind) for name in ("", *run.terms)]
        totals = totals * torch.tensor(counted, device=totals.device)
    run.ranks.add([totals])
    parts = [value / (epochs * networks) for value in totals.double().tolist()]
    place = {"epoch": run.epoch, "step": run.step, "learning_rate": run.learning_rate}
    row = history_row(place, parts, run.terms, run.tempered, t.temperature)
    _check_finite(run, train, row["elbo"])
    row.update(checks.check_returned("structure", run.model.structure(), Structure).statistics)
    if run.search is not None and valid is not None:
        row.update(_evaluate_search(run, valid))
    elif valid is not None and len(valid):
        with run.averaged():
            row["validation_log_likelihood"] = score(run, valid)
            if t.temperature_factor(run.epoch / t.epochs) == 1.0:
                run.best.offer(row["validation_log_likelihood"], run.epoch, run.model, run.likelihood)
        run.stop = run.stop or run.best.is_exhausted(t.patience)
    run.history.append(row)


def _evaluate_search(run: Run, valid: Rows | StackedRows) -> dict[str, float]:
    """Fit the posterior to the held-out rows, score its mixture, keep the best state, and advance the search."""
    search = run.search
    model = run.model
    assert search is not None
    assert isinstance(model, ListedStructure)
    with run.averaged():
        densities = _score_held_out(run, valid)
        value = search.score(model, densities)
        run.best.offer(value, run.epoch, model, run.likelihood)
    if run.best.score is not None:
        search.adjust_length(value, run.best.score, densities.count, run.epoch)
    row = {"validation_log_likelihood": value}
    if len(model.list_structures(2)) > 1:
        row[f"mean_{model.structure().kind}"] = math.fsum(number * mass for number, mass in search.q.items())
    due = search.is_due(run.epoch)
    if due and run.epoch == search.explored:  # exploring ends: the focus phase starts from the best state
        run.restore_best()
        densities = _score_held_out(run, valid)
        search.score(model, densities)
    if search.advance_phase(model, densities, run.epoch):
        run.register_parameters()
    model.train()
    run.likelihood.train()
    if search.focusing and not due and search.patience is not None:
        run.stop = run.stop or run.epoch - max(run.best.epoch, search.explored) >= search.patience
    return row


def _score_held_out(run: Run, valid: Rows | StackedRows) -> LogDensities:
    """Score the held-out rows; all ranks get the densities of the first, so that their searches agree to the bit."""
    search = run.search
    assert search is not None
    draws = max(run.training.draws, search.draws)
    group = run.ranks if run.divided else None
    densities = score_structures(run.model, run.likelihood, valid, draws, run.seed, widened=search.widened, group=group)
    log_density = run.ranks.broadcast_tensor(densities.log_density.to(run.model.device)).cpu()
    return replace(densities, log_density=log_density)


@torch.no_grad()
def score(run: Run, rows: Rows | StackedRows) -> float:
    """Return the mean log predictive density of rows, in nats per row."""
    run.model.eval()
    run.likelihood.eval()
    total = torch.zeros((), dtype=torch.float64, device=run.model.device)
    for part in filter(len, map(run.partners.share, rows.parts(_CHUNK))):
        noise = as_generator(fold_in(run.seed, "score"))
        density = log_predictive(run.model.draw(part.x, max(run.training.draws, 8), noise), run.likelihood, part.y)
        total += (density if part.weight is None else density * part.weight).double().sum()
    if isinstance(rows, StackedRows):
        total, rows = total * rows.counts, rows.whole or rows
    run.ranks.add([total])
    return float(total) / rows.count


def _check_finite(run: Run, train: Data, elbo: float) -> None:
    """Raise an error if the bound is not finite, naming the first tensor that is not."""
    if math.isfinite(elbo):
        return
    structure = {f"model/{name}": p for name, p in structure_parameters(run.model).items()}
    y = train.first.y
    if is_censored(run.likelihood, y):
        y = torch.where(y.isinf(), 0.0, y)
    tensors = {"x (the inputs)": train.first.x, "y (the targets)": y, **structure, **run.named_parameters()}
    culprit = next(
        (name for name, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())),
        None,
    )
    if run.divided:  # the networks of another process may have diverged
        culprit = next((name for name in run.ranks.gather(culprit) if name is not None), None)
    if culprit is None:
        rows = train.first if isinstance(train, StackedRows) else train.first.take(slice(0, _CHUNK))
        culprit = f"the output of {find_nonfinite(run.model, rows.x)}"
    advice = f"Lower learning_rate (now {run.training.learning_rate}), set optimizer__clip_norm, or scale the data"
    if culprit.startswith(("x (", "y (")):
        advice = "Replace or drop the rows with NaN or infinity"
    raise DivergenceError(
        f"the evidence bound is {elbo} after epoch {run.epoch}; the first tensor that is not finite is {culprit}. "
        f"{advice}; the last checkpoint, if any, is untouched",
        _find_diverged(run, train) if isinstance(train, StackedRows) else (),
    )


@torch.no_grad()
def _find_diverged(run: Run, train: StackedRows) -> list[int]:
    """Return the indices of the networks of all processes whose log density of their first row is not finite."""
    rows = train.first
    density = run.likelihood.log_prob(run.model.draw(rows.x, 1, run.noise).f, rows.y)  # (S, F)
    found = torch.nonzero(~density.isfinite().all(0)).flatten() + train.start
    return sorted({number for numbers in run.ranks.gather(found.tolist()) for number in numbers})
