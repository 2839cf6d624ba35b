"""The training loop: stochastic gradient ascent on the evidence bound, for every family.

One step is: draw networks on a batch, weigh their log-likelihood, subtract the divergences, differentiate, move. It
neither reads the device nor loops over rows. Between steps, every ``structure_every`` of them, the model may create or
retire parts; at the end of an epoch, when it is due, the validation rows are scored and the history gets a row.

A run is a value that can be taken apart into tensors and JSON and put together again (:class:`Run`): a training
killed at any moment and resumed from its last checkpoint ends in the same bytes as one that was never killed
(on the CPU, with the same number of threads).

Several processes may train one network (:mod:`fathomless.inference.runs.distributed`): they form the same batches, each
evaluates its share, and sums over all of them make the same step everywhere.
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
from fathomless.inference.runs.run import Fitted, Run, check, history_row, not_finite, structure_parameters
from fathomless.inference.variational.objective import elbo, log_predictive
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
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.structure import Structure
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning, DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, fold_in, seeded_globals
from fathomless.system.torch_state import enable_gradients

__all__ = ["calibrate", "fit", "parts_of", "score"]

_CHUNK = 8192  # rows scored at once
_KEPT = 1024  # steps whose numbers wait on the device to be summed


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

    With validation rows the state of the best mean log predictive density is restored at the end.

    Parameters
    ----------
    model : Model
        Any family.
    likelihood : Likelihood
        p(y | f); its parameters are learned too.
    train, valid : Rows
        Data on the model's device. The training data may be a :class:`~fathomless.data.rows.Stream`; for stacked
        models both are :class:`~fathomless.data.stacked_rows.StackedRows`. Either may be a ``DataLoader``, or any
        iterable of batches (x, y) or (x, y, weight), see :class:`~fathomless.data.batches.Batches`: training batches
        keep their size, whatever `training` has; held-out batches are gathered in memory.
    training : Training
        Options.
    search : StructureSearch, optional
        Finds the posterior over a list of structures from the validation rows; `epochs` is then the length without
        growth, the schedule is that of the phases, and calibration is left to the caller.
    seed : int
        Seed of the order of the rows and of weight draws.
    callbacks : sequence of callables
        Called with the run after every row of the history. All ranks need the same ones; ``run.ranks.rank`` tells which
        rank it is, and what one of them sets ``run.stop`` or ``run.pause`` to, all obey.
    progress : Progress
        Display.
    resume : (tensors, meta), optional
        State to go on from.

    Returns
    -------
    Fitted
        The model and its likelihood, trained, with their history.

    Raises
    ------
    DivergenceError
        When the bound is no longer finite; names the first tensor that is not.
    PausedError
        When a callback sets ``run.pause``.
    RankError
        When processes that train together do not hold the same network or the same data.

    Warns
    -----
    DataWarning
        When batches do not follow from the seed, so that a resumed training ends in other bytes.
    """
    learned, held = _read_again(train, model.device), _held_out(valid, model.device, seed)
    data = (learned, held) if held is not None else (learned,)
    for rows in data:
        check(model, likelihood, rows, finite=not isinstance(rows, StackedRows))
    run = Run(model, likelihood, training or Training(), seed, search)
    _refuse(run, learned, held)
    if resume is not None:
        run.resume(*resume)
    elif search is not None:
        assert isinstance(model, ListedStructure)
        if not search.focusing:
            search.begin(model)
        run.register_parameters()
    run.ranks.refuse_statistics(model)
    _compare(run, *data, plain=[asdict(run.training), seed, run.epoch, len(callbacks)])
    try:
        drive(run, lambda: _advance(run, learned, held), callbacks=callbacks, progress=progress, ranks=run.ranks)
    finally:
        run.best.restore(model, likelihood)  # also after an error: the best state so far is worth having
        for p in structure_parameters(model).values():
            p.requires_grad_()  # the last step may have been one in which the law stood still
        model.eval()
        likelihood.eval()
    if search is not None and held is not None:
        assert isinstance(model, ListedStructure)
        found = search.adopt(model, _unseen(run, held))
        return replace(run.result(), found=found)
    if run.training.calibrate and isinstance(held, Rows) and len(held) and _learns(likelihood):
        return replace(run.result(), score=calibrate(model, likelihood, held, run.training.draws, seed))
    return run.result()


def _read_again(train: Data | Iterable[Any], device: torch.device) -> Data:
    """Make batches of what is no data of ours; tell if their order is not in our hands."""
    if isinstance(train, Rows | Stream | StackedRows):
        return train
    batches = train.on(device) if isinstance(train, Batches) else Batches(train, device=device)
    if not batches.repeats():
        warnings.warn(
            f"two passes over the {type(batches.source).__name__} began with different batches, though torch's "
            "generators were seeded alike: a training that is resumed will not end in the same bytes. Let what is "
            "random draw from torch's global generator, or give the DataLoader a torch.Generator",
            DataWarning,
            stacklevel=3,
        )
    return batches


def _held_out(
    valid: Rows | StackedRows | Batches | Iterable[Any] | None, device: torch.device, seed: int
) -> Rows | StackedRows | None:
    """Gather held-out rows in memory."""
    if valid is None or isinstance(valid, Rows | StackedRows):
        return valid
    batches = valid.on(device) if isinstance(valid, Batches) else Batches(valid, device=device)
    return batches.together(fold_in(seed, "held out"))


def _refuse(run: Run, train: Data, valid: Rows | StackedRows | None) -> None:
    """Refuse options that the family has not what is needed for, and laws that would be moved as weights are."""
    t, model = run.training, run.model
    if run.search is not None and not isinstance(model, ListedStructure):
        raise missing_capability(
            model, ListedStructure, "a posterior over structure from held-out rows", "use the evidence bound"
        )
    if run.search is not None and (valid is None or not len(valid)):
        raise DataError("a posterior over structure from held-out rows was asked for, and no rows are held out")
    if isinstance(train, StackedRows) and run.ranks.count > 1:
        raise DataError(f"{len(train.index)} networks side by side were asked of {run.ranks.count} processes; use one")
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
                f"an {type(model).__name__} was given whose part {inside[0]} has a law over structure; train "
                "its members, with fit or side by side with fit_batched, and put them together then"
            )


@enable_gradients()
def calibrate(
    model: Model, likelihood: Likelihood, valid: Rows, draws: int = 1, seed: int = 0, *, move: bool = True
) -> float:
    """Maximise the log predictive density of the validation rows over the likelihood's parameters alone; score them.

    A change by one (a factor e of a scale) costs half a nat, so that a few rows do not say too much.

    Parameters
    ----------
    model, likelihood
        What predicts.
    valid : Rows
        Held-out rows.
    draws : int
        Weight draws, where weights are drawn; at least 8.
    seed : int
        Of these draws.
    move : bool
        Whether the parameters are fitted; if not, the rows are scored alone.

    Returns
    -------
    float
        Mean log predictive density in nats per row, of each part of the rows (:func:`parts_of`) under parameters that
        were fitted to the others.
    """
    parameters = [p for p in likelihood.parameters() if p.requires_grad and move]
    with torch.no_grad():
        noise = as_generator(fold_in(seed, "score"))
        drawn = model.draw(valid.x, max(draws, 8), noise)
    start = [p.detach().clone() for p in parameters]
    weight = torch.ones_like(drawn.f[0, :, 0]) if valid.weight is None else valid.weight
    part, total = parts_of(len(valid)).to(valid.x.device), 0.0
    for k in range(int(part.max()) + 1) if parameters else ():
        _fit_to(drawn, likelihood, valid, parameters, start, part != k)
        with torch.no_grad():
            rows = log_predictive(replace(drawn, f=drawn.f[:, part == k]), likelihood, valid.y[part == k])
            total += float((rows * weight[part == k]).double().sum())
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
    some: Tensor | None = None,
) -> None:
    """Fit parameters, from where they started, to some of the rows, all by default."""
    y, weight = valid.y, valid.weight
    if some is not None:
        drawn, y, weight = replace(drawn, f=drawn.f[:, some]), y[some], None if weight is None else weight[some]
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


def parts_of(rows: int) -> Tensor:
    """Return the part of each of some held-out rows; what scores a part is fitted to the others.

    There are ten parts at most, and two where rows are so many that one parameter follows none of them.
    """
    return torch.arange(rows, device="cpu") % min(10 if rows <= _CHUNK else 2, rows)


def _learns(likelihood: Likelihood) -> bool:
    return any(p.requires_grad for p in likelihood.parameters())


def _advance(run: Run, train: Data, valid: Rows | StackedRows | None) -> None:
    """Train up to the next epoch that is evaluated, and evaluate it."""
    rank = ("rank", run.ranks.rank) if run.ranks.rank else ()
    totals: Tensor | None = None
    while totals is None or not run.evaluates:
        # users' modules, nn.Dropout above all, draw from torch's global stream: it starts anew with every epoch, so
        # that a resumed training draws what an unbroken one does; each rank has rows of its own to drop from
        with seeded_globals(fold_in(run.seed, "epoch", run.epoch, *rank), run.model.device):
            sums = _epoch(run, train)
        totals = sums if totals is None else totals + sums
        run.epoch += 1
    _record(run, train, valid, totals)


def _epoch(run: Run, train: Data) -> Tensor:
    """One pass over the data; return the sums of the bound's parts, weighted by the size of their batch."""
    t = run.training
    if not run.model.training:  # walking through all modules costs as much as a few layers
        run.model.train()
        run.likelihood.train()
    created = seen = 0
    total: Tensor | float = 0.0
    parts: list[list[Tensor]] = []
    shares: list[float] = []
    steps = train.steps(t.batch_size)
    counts = train.weight.double().sum(1) if isinstance(train, StackedRows) else None
    for batch in train.batches(t.batch_size, run.order):
        # reading a number makes the host wait for the device, so the parts of the bound stay there and are summed
        # later; not at the end of the epoch alone, since an epoch may have a million steps
        if len(parts) == _KEPT:
            total = total + _summed(parts, shares)
            parts, shares = [], []
        run.step += 1
        # the law over structure moves, and the model grows, in every few steps only: both must read the device
        structure_step = run.step % t.structure_every == 0
        _set_rates(run, steps, structure_step and run.epoch >= t.structure_delay)
        heat = t.temperature_factor((run.step - 1) / (steps * t.epochs))
        parts.append(_step(run, batch, len(train), train.count, heat, counts))
        shares.append(len(batch) / len(train))
        seen += len(batch)
        if structure_step:
            _follow_law(run, train)
            new = _grow(run, None if t.max_growth is None else t.max_growth - created)
            created += new
            _compare(run, whole=bool(new))
        _clear(run)
    total = total + _summed(parts, shares)
    return total if seen == len(train) else total * (len(train) / seen)  # a loader may leave rows out, or repeat some


def _grow(run: Run, limit: int | None) -> int:
    """Let the model follow its law over structure; hand new parameters to the optimiser. Return how many parts."""
    if not isinstance(run.model, Growing):
        return 0
    new = run.model.grow(limit)
    if new:
        run.register_parameters()
        run.ranks.refuse_statistics(run.model)
    return new


def _summed(parts: Sequence[Sequence[Tensor]], shares: Sequence[float]) -> Tensor:
    """Sum the bound's parts over steps, weighted by shares of the rows."""
    weight = torch.tensor(shares, dtype=torch.float64).to(parts[0][0].device)
    return torch.stack([torch.stack(one).double() @ weight for one in zip(*parts, strict=True)])


def _compare(run: Run, *data: Data, whole: bool = True, plain: Any = None) -> None:
    """See to it that all ranks hold the same structure; the same weights, random numbers and data, if asked."""
    if run.ranks.count == 1:
        return
    compared = ("model/", "likelihood/", "generator/")
    tensors = {name: value for name, value in run.tensors().items() if whole and name.startswith(compared)}
    known = [get_blueprint(run.model), plain]
    for i, rows in enumerate(data):
        some = rows.first.take(slice(0, 256))
        tensors |= {f"{i}/x": some.x, f"{i}/y": some.y}
        known += [len(rows), rows.count]
    run.ranks.compare(run.step, tensors, known)


def _clear(run: Run) -> None:
    """Drop all gradients; ``Optimizer.zero_grad`` does the same and costs as much as three layers."""
    for group in run.optimizer.param_groups:
        for p in group["params"]:
            p.grad = None


def _step(
    run: Run,
    batch: Rows,
    size: int,
    count: float | None = None,
    heat: float = 1.0,
    counts: Tensor | None = None,
) -> list[Tensor]:
    """One step; return [log_likelihood, divergences…] on the device. Reads nothing back.

    The bound is divided by `count`, the sum of the weights of all `size` rows, so that weights are repetitions. With F
    networks side by side, `counts` (F,) has that sum for each of them. Each of several ranks evaluates its share of the
    batch and of the divergences: their sum is the bound, and their gradients' sum its gradient. What is returned is the
    share.
    """
    t = run.training
    part = run.ranks.share(batch)
    rows = part if len(part) else batch.take(slice(0, 1))  # of no weight: every rank goes through the same motions
    with torch.autocast(rows.x.device.type, torch.bfloat16) if t.mixed else contextlib.nullcontext():
        draws = run.model.draw(rows.x, t.draws, run.noise)
    if run.ranks.count > 1:
        draws = replace(draws, divergence={name: kl / run.ranks.count for name, kl in draws.divergence.items()})
    share = size * len(part) / len(batch)
    temperature = t.temperature * heat
    e = elbo(draws, run.likelihood, rows.y, size=share, weight=rows.weight, temperature=temperature)
    # per row, so that learning rates and clipping mean the same for every size of data
    (-e.value / (count or size)).backward()
    if run.ranks.count > 1:
        parameters = [p for _, p in sorted(run.named().items())]  # in an order that a resumed run shares
        run.ranks.add([p.grad for p in parameters if p.grad is not None])
    # a part that is used with probability p has a gradient p times as large; Adam divides it out, plain steps do not
    if t.optimizer == "sgd" if t.precondition is None else t.precondition:
        _precondition(run.model)
    _limit(run, counts)
    run.optimizer.step()
    run.terms, run.tempered = tuple(e.divergence), draws.tempered
    return [e.log_likelihood.detach(), *(term.detach() for term in e.divergence.values())]


def _limit(run: Run, counts: Tensor | None) -> None:
    """Clip the gradient; of networks side by side each one's own, in the units of its own bound.

    The law over structure is left out. Its gradient is a difference of whole bounds, and would decide how far all
    weights may go.
    """
    t = run.training
    law = structure_parameters(run.model)
    if counts is not None:
        units = counts.sum() / counts  # the joint bound was divided by the rows of all networks
        plain = t.optimizer == "sgd"  # Adam's steps do not depend on the units of a gradient
        if plain or t.clip_norm is not None:
            factor = units if plain else torch.ones_like(units)
            modules = (run.model, run.likelihood)
            scale_gradients(modules, factor, longest=t.clip_norm, units=units, without=law.values())
    elif t.clip_norm is not None:
        names = {f"model/{name}" for name in law}
        named = run.named()  # in an order that a resumed run shares, since sums depend on it
        nn.utils.clip_grad_norm_([named[name] for name in sorted(named) if name not in names], t.clip_norm)


@torch.no_grad()
def _follow_law(run: Run, train: Data) -> None:
    """Check that the posterior over structure is finite; take the natural step, if asked for."""
    t = run.training
    moving = [p for p in structure_parameters(run.model).values() if p.grad is not None]
    if not moving:
        return
    if t.structure_optimizer == "natural" and isinstance(run.model, NaturalGradient):
        fisher, factor = run.model.fisher(), run.optimizer.param_groups[0]["lr"] / t.learning_rate
        gradient = torch.stack([-train.count * p.grad for p in moving if p.grad is not None])
        step = factor * t.structure_rate * (torch.linalg.pinv(fisher, rtol=1e-9) @ gradient)
        length, radius = (step @ fisher @ step).sqrt(), factor * t.structure_radius
        step = step * torch.where(length > radius, radius / length, 1.0)
        for p, change in zip(moving, step, strict=True):
            p.add_(change)
    # a law of few numbers decides what is created; as many inclusions as weights are looked at with the bound
    law = [p.detach() for p in moving if p.ndim == 0]
    if law and not bool(torch.stack(law).isfinite().all()):
        _guard(run, train, math.nan)


@torch.no_grad()
def _precondition(model: Model, smallest: float = 1e-3) -> None:
    """Divide gradients by how much their parameter is used, so that new parts learn at full speed."""
    if not isinstance(model, Growing):
        return
    parameters = dict(model.named_parameters())
    for name, share in model.use_probability().items():
        gradient = parameters[name].grad if name in parameters else None  # a part that others share has one name
        if gradient is not None:
            gradient.div_(share.clamp(min=smallest))


def _set_rates(run: Run, steps: int, structure_moves: bool) -> None:
    """Set the rates of this step, and whether the posterior over structure takes part in it."""
    t = run.training
    weights, structure = run.optimizer.param_groups
    if run.search is None:
        factor = schedule(t.schedule, run.step - 1, steps * t.epochs, steps)
    else:
        factor = run.search.factor(run.step - 1, steps)
    weights["lr"] = t.learning_rate * factor
    # it moves in one of `structure_every` steps, that much further; natural steps are taken elsewhere
    structure["lr"] = weights["lr"] * t.structure_rate * t.structure_every * (t.structure_optimizer == "adam")
    for p in structure["params"]:
        p.requires_grad_(structure_moves)  # without a gradient Adam leaves value, moments and count as they are


def _record(run: Run, train: Data, valid: Rows | StackedRows | None, totals: Tensor) -> None:
    """Read the sums once, refuse what is not finite, score the validation rows, add a row to the history."""
    t = run.training
    _compare(run)
    epochs = run.epoch - (int(run.history[-1]["epoch"]) if run.history else 0)
    run.ranks.add([totals])
    networks = len(train.index) if isinstance(train, StackedRows) else 1
    parts = [value / (epochs * networks) for value in totals.double().tolist()]
    place = {"epoch": run.epoch, "step": run.step, "learning_rate": run.optimizer.param_groups[0]["lr"]}
    row = history_row(place, parts, run.terms, run.tempered, t.temperature)
    _guard(run, train, row["elbo"])
    row.update(checks.check_returned("structure", run.model.structure(), Structure).statistics)
    if run.search is not None and valid is not None:
        row.update(_look(run, valid))
    elif valid is not None and len(valid):
        row["validation_log_likelihood"] = score(run, valid)
        if t.temperature_factor(run.epoch / t.epochs) == 1.0:
            run.best.offer(row["validation_log_likelihood"], run.epoch, run.model, run.likelihood)
        run.stop = run.stop or run.best.exhausted(t.patience)
    run.history.append(row)


def _look(run: Run, valid: Rows | StackedRows) -> dict[str, float]:
    """Score the mixture whose posterior is fitted to the held-out rows, keep the best state, move to the next phase."""
    search, model = run.search, run.model
    assert search is not None
    assert isinstance(model, ListedStructure)
    found = _unseen(run, valid)
    value = search.score(model, found)
    run.best.offer(value, run.epoch, model, run.likelihood)
    if run.best.score is not None:
        search.pace(value, run.best.score, found.count, run.epoch)
    row = {"validation_log_likelihood": value}
    if len(model.list_structures(2)) > 1:
        row[f"mean_{model.structure().kind}"] = math.fsum(number * mass for number, mass in search.q.items())
    moved = search.due(run.epoch)
    if moved and run.epoch == search.explored:
        run.best.restore(model, run.likelihood)
        found = _unseen(run, valid)
        search.score(model, found)
    if search.move(model, found, run.epoch):
        run.register_parameters()
    model.train()
    run.likelihood.train()
    if search.focusing and not moved and search.patience is not None:
        run.stop = run.stop or run.epoch - max(run.best.epoch, search.explored) >= search.patience
    return row


def _unseen(run: Run, valid: Rows | StackedRows) -> LogDensities:
    """Return the densities of held-out rows; of several ranks those of the first, so that all decide alike."""
    search = run.search
    assert search is not None
    draws = max(run.training.draws, search.draws)
    found = score_structures(run.model, run.likelihood, valid, draws, run.seed, widened=search.widened)
    return replace(found, log_density=run.ranks.tensor_from_first(found.log_density.to(run.model.device)).cpu())


@torch.no_grad()
def score(run: Run, rows: Rows | StackedRows) -> float:
    """Mean log predictive density of some rows, in nats per row."""
    run.model.eval()
    run.likelihood.eval()
    total = torch.zeros((), dtype=torch.float64, device=run.model.device)
    for part in filter(len, map(run.ranks.share, rows.parts(_CHUNK))):
        noise = as_generator(fold_in(run.seed, "score"))
        density = log_predictive(run.model.draw(part.x, max(run.training.draws, 8), noise), run.likelihood, part.y)
        total += (density if part.weight is None else density * part.weight).double().sum()
    run.ranks.add([total])
    return float(total) / rows.count


def _guard(run: Run, train: Data, elbo: float) -> None:
    """Refuse a bound that is not finite, naming the first tensor that is not."""
    if math.isfinite(elbo):
        return
    structure = {f"model/{name}": p for name, p in structure_parameters(run.model).items()}
    tensors = {"x (the inputs)": train.first.x, "y (the targets)": train.first.y, **structure, **run.named()}
    culprit = next(
        (name for name, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())),
        None,
    )
    if culprit is None:
        some = train.first if isinstance(train, StackedRows) else train.first.take(slice(0, _CHUNK))
        culprit = f"the output of {not_finite(run.model, some.x)}"
    advice = f"Lower learning_rate (now {run.training.learning_rate}), set optimizer__clip_norm, or scale the data"
    if culprit.startswith(("x (", "y (")):
        advice = "Replace or drop the rows with NaN or infinity"
    raise DivergenceError(
        f"the evidence bound is {elbo} after epoch {run.epoch}; the first tensor that is not finite is {culprit}. "
        f"{advice}; the last checkpoint, if any, is untouched",
        _lost(run, train) if isinstance(train, StackedRows) else (),
    )


@torch.no_grad()
def _lost(run: Run, train: StackedRows) -> list[int]:
    """Return which of the networks side by side give a density that is not finite to their first row."""
    rows = train.first
    density = run.likelihood.log_prob(run.model.draw(rows.x, 1, run.noise).f, rows.y)  # (S, F)
    return torch.nonzero(~density.isfinite().all(0)).flatten().tolist()
