r"""The temperature of a sparse network, from rows that it was not fitted to.

How much the divergence of weights should count is not known before the data: at T = 1 small tables lose nearly all
weights, and where there is little noise a low T predicts better. So networks of several temperatures are trained side
by side on some of the rows and weighed by the others. With :math:`p_T(y_i)` the density of such a row, T is the highest
temperature whose mean log density is behind the best one's by at most one standard error of that difference,

.. math:: \frac1N \sum_i d_i \le \frac1N \Big( \sum_i (d_i - \bar d)^2 \Big)^{1/2}, \qquad
          d_i = \log p_\text{best}(y_i) - \log p_T(y_i).

The noise of a candidate is fitted to held-out rows too, for each row without its part of them: a network that fits its
training rows takes the noise for too small, the more so the lower T is.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fathomless.data.folds import split_units
from fathomless.data.rows import Rows
from fathomless.estimators import saving
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem, Session
from fathomless.estimators.strategies import SVI
from fathomless.families.sparse.networks import SparseDiagnostics, TemperatureChosen
from fathomless.inference.out_of_fold.crossfit import OutOfFold, predict_held_out
from fathomless.inference.out_of_fold.noise import KAPPA_ALONE, choose_noise, fit_noise, mixture_log_density
from fathomless.inference.runs.callbacks import open_checkpoint
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.likelihoods import Categorical, Likelihood
from fathomless.posterior.model import Model
from fathomless.posterior.structure import InclusionPosterior
from fathomless.system import io
from fathomless.system.errors import DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, fold_in

__all__ = ["FALLBACK", "AtChosenTemperature", "Candidate", "Choice", "Comparison", "compared"]

#: The temperature where none can be chosen.
FALLBACK = 0.1

_FEW = 60  # rows below which none are held out
_SHARE = 0.2  # of the rows, to weigh the candidates
_PARTS = 5  # of those rows: each is weighed under a noise that was fitted to the other parts
_LOOKS = 20  # evaluations of a candidate

_PLACE = "temperature"  # folder of the candidates in a checkpoint


class Comparison(NamedTuple):
    """Candidates by rows that they were not fitted to, in nats per row.

    Attributes
    ----------
    chosen : int
        The first one that is behind the best one by no more than one standard error.
    mean, error : Tensor, shape (F,)
        Mean log density, and its standard error.
    behind, behind_error : Tensor, shape (F,)
        How far the mean is behind the best one's, and the standard error of that difference.
    """

    chosen: int
    mean: Tensor
    error: Tensor
    behind: Tensor
    behind_error: Tensor


def compared(log_density: Tensor, weight: Tensor | None = None) -> Comparison:
    """Choose among candidates.

    Parameters
    ----------
    log_density : Tensor, shape (F, N)
        Of N rows under each candidate; those that are preferred among equals come first.
    weight : Tensor, shape (N,), optional
        How often each row counts.

    Examples
    --------
    >>> rows = torch.tensor([[-3.0, -3.1, -3.0], [-1.0, -1.4, -0.9], [-1.1, -1.0, -1.1]])
    >>> compared(rows).chosen  # the last one is the best, and the one before it as good
    1
    """
    values = log_density.double()
    w = torch.ones_like(values[0]) if weight is None else weight.to(values)
    mean, error = _mean(values, w)
    behind, behind_error = _mean(values[int(mean.argmax())] - values, w)
    return Comparison(int((behind <= behind_error).nonzero()[0]), mean, error, behind, behind_error)


def _mean(values: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Means of the rows of `values` and their standard errors, (F,) each."""
    mean = values @ w / w.sum()
    return mean, ((values - mean[:, None]).square() @ w).sqrt() / w.sum()


@dataclass(frozen=True)
class Candidate:
    """A temperature, and what rows say about the network that was trained at it.

    Attributes
    ----------
    temperature : float
        T.
    log_density, error : float or None
        Mean log predictive density of the held-out rows and its standard error, in nats per row and in the units of
        the target; None if the training failed.
    behind, behind_error : float or None
        How far the mean is behind the best one's, and the standard error of that difference.
    kept : float or None
        Share of the weights in the median probability model.
    failed : str
        If its training was given up: where.
    """

    temperature: float
    log_density: float | None = None
    error: float | None = None
    behind: float | None = None
    behind_error: float | None = None
    kept: float | None = None
    failed: str = ""


@dataclass(frozen=True)
class Choice:
    """A temperature, the reason for it, and the noise by the rows that chose it.

    Attributes
    ----------
    temperature : float
        T.
    note : str
        Reason, in words.
    candidates : list of dict
        Candidates, as plain JSON.
    likelihood : Likelihood, optional
        p(y | f) with the noise that held-out rows chose.
    score : float, optional
        Mean log density of these rows, in nats.
    """

    temperature: float
    note: str
    candidates: list[dict[str, Any]] = field(default_factory=list)
    likelihood: Likelihood | None = None
    score: float | None = None

    def diagnostics(self) -> SparseDiagnostics:
        """Return the diagnostics that are kept with the fit."""
        choice = TemperatureChosen(temperature=self.temperature, note=self.note, candidates=tuple(self.candidates))
        return SparseDiagnostics(choice=choice)


@dataclass(frozen=True)
class AtChosenTemperature:
    """Training at a temperature that is chosen first.

    Attributes
    ----------
    svi : SVI
        The training.
    candidates : sequence of float
        Temperatures, the highest first.
    draws : int
        Weight draws by which candidates are compared.
    free_noise : bool
        True if rows choose the law of the noise.
    single : bool
        True if candidates are trained in single precision, which is enough to compare by, in half the time.
    alone : bool
        True if candidates are trained one by one, as networks of the user's own.
    before : Choice, optional
        Choice of the fit that is continued, which holds.
    """

    svi: SVI
    candidates: Sequence[float]
    draws: int
    free_noise: bool = False
    single: bool = False
    alone: bool = False
    before: Choice | None = None

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Choose a temperature, and train at it."""
        choice = self.before or _fallback(table) or self._chosen(problem, table, session)
        own = {"temperature": choice.temperature}
        svi = replace(self.svi, plan=replace(self.svi.plan, temperature=choice.temperature))
        lasting = {**session.lasting, **own} if session.lasting else {}
        fitted = svi.infer(
            replace(problem, networks=problem.networks._copy_with(own)), table, replace(session, lasting=lasting)
        )
        if session.checkpoint is not None:
            io.remove(Path(session.checkpoint) / _PLACE)
        if choice.likelihood is not None and table.valid is None:  # the network has seen all rows by now
            fitted = replace(fitted, likelihood=choice.likelihood, score=choice.score)
        return replace(fitted, diagnostics=choice.diagnostics())

    def _chosen(self, problem: Problem, table: Prepared, session: Session) -> Choice:
        """Train a network at every temperature, and weigh them by rows that they were not fitted to."""
        rows, judges, candidates, unit = cast(Rows, table.train), table.valid, self.candidates, None
        if judges is None:
            rows, judges, unit = _divided(rows, table.seed, unit=table.group)
        dtype = torch.float32 if self.single else table.dtype
        rows, judges = _cast(rows, dtype), _cast(judges, dtype)
        fits = self._trained(problem, replace(table, dtype=dtype), session, rows, judges)
        seed, seen, noise = fold_in(table.seed, "temperature"), {}, self._noise()
        told = [Candidate(temperature, failed=one.error) for temperature, one in zip(candidates, fits, strict=True)]
        for i, one in enumerate(fits):
            if not one.error:
                rows_of = predict_held_out(one.model, judges, seed, self.draws)
                log_density = _left_out(rows_of, one.likelihood, noise, unit)
                if bool(log_density.isfinite().all()):
                    seen[i] = rows_of, log_density
                else:
                    told[i] = replace(told[i], failed="its density of the held-out rows is not finite")
        if not seen:
            raise DivergenceError(f"training failed at all of {len(told)} temperatures; the first: {told[0].failed}")
        found = compared(torch.stack([log_density for _, log_density in seen.values()]), judges.weight)
        for k, i in enumerate(seen):
            mean, error, behind, behind_error = (float(part[k]) for part in found[1:])
            mean -= table.target.log_unit
            told[i] = Candidate(candidates[i], mean, error, behind, behind_error, _kept(fits[i].model))
        best = list(seen)[found.chosen]
        return Choice(
            candidates[best],
            f"chosen of {len(told)} by {judges.count:g} rows",
            [asdict(one) for one in told],
            noise(seen[best][0], fits[best].likelihood).to(table.device, table.dtype).eval(),
            float(found.mean[found.chosen]),
        )

    def _noise(self) -> Callable[[OutOfFold, Likelihood], Likelihood]:
        """Return how held-out rows change the noise of a training."""
        if not self.svi.plan.calibrate:
            return lambda seen, trained: trained
        fitting = choose_noise if self.free_noise else fit_noise
        return lambda seen, trained: fitting(seen, _open(trained, seen), KAPPA_ALONE)

    def _trained(
        self, problem: Problem, table: Prepared, session: Session, rows: Rows, judges: Rows
    ) -> tuple[Fitted, ...]:
        """Train from one start at every temperature, for as many steps as the network that is kept."""
        every, first = cast(Rows, table.train), self.candidates[0]
        networks = problem.networks._copy_with({"temperature": first})
        start = replace(problem, networks=networks).start(table, table.seed)
        training = replace(self.svi.plan, temperature=first).training(every.count, len(every))
        valid = judges if table.valid is not None else None  # else the last state counts, as in the end
        if valid is None:  # as many steps from fewer rows
            batch = math.ceil(len(rows) / every.steps(training.batch_size))
            training = replace(training, batch_size=batch, evaluate_every=math.ceil(training.epochs / _LOOKS))
        each = [replace(training, temperature=temperature, calibrate=False) for temperature in self.candidates]
        starts = [copy.deepcopy(start) for _ in self.candidates]
        seed, progress = fold_in(table.seed, "training"), session.display()
        if self.alone:  # may be more than can be trained side by side
            return tuple(
                _alone(*one, rows, valid, own_training, seed, progress)
                for one, own_training in zip(starts, each, strict=True)
            )

        def fingerprint() -> str:
            state = (*start[0].state_dict().values(), *start[1].state_dict().values())
            options = {**session.lasting, "seed": table.seed, "candidates": [one.temperature for one in each]}
            return saving.fingerprint(rows, judges, state, each[0], options)

        folder = None if session.checkpoint is None else Path(session.checkpoint) / _PLACE
        callbacks, resume = open_checkpoint(
            (), folder, session.seconds, fingerprint, rows.x.device, table.resumed, replace=True
        )
        models, likelihoods = zip(*starts, strict=True)
        return fit_batched(
            models,
            likelihoods,
            rows,
            valid,
            training=each,
            seeds=[seed] * len(each),
            callbacks=callbacks,
            progress=progress,
            resume=resume,
        )


def _fallback(table: Prepared) -> Choice | None:
    """Return the temperature where rows cannot choose it, and why; None if they can."""
    held_out = 0.0 if table.valid is None else table.valid.count
    count, processes = table.train.count + held_out, ranks().count
    if count < _FEW:
        return Choice(FALLBACK, f"not chosen: of {count:g} rows none are held out, only of {_FEW} or more")
    if not isinstance(table.train, Rows):
        return Choice(FALLBACK, "not chosen: the data were read in parts")
    if processes > 1:
        return Choice(FALLBACK, f"not chosen: {processes} processes trained one network")
    return None


def _divided(
    table: Rows, seed: int, share: float = _SHARE, unit: Tensor | None = None
) -> tuple[Rows, Rows, Tensor | None]:
    """Return rows to train the candidates on, rows to weigh them by, and the units of these; units stay together."""
    strata = None if table.y.is_floating_point() else table.y
    generator = as_generator(fold_in(seed, "temperature"))
    train, judges = split_units(None if unit is None else unit.numpy(), len(table), share, generator, strata=strata)
    device = table.x.device
    return table.take(train.to(device)), table.take(judges.to(device)), None if unit is None else unit[judges]


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    y = rows.y.to(dtype) if rows.y.is_floating_point() else rows.y
    return Rows(rows.x.to(dtype), y, None if rows.weight is None else rows.weight.to(dtype))


def _alone(
    model: Model,
    likelihood: Likelihood,
    rows: Rows,
    valid: Rows | None,
    training: Training,
    seed: int,
    progress: Progress,
) -> Fitted:
    """Train one candidate; what fails says where."""
    try:
        return fit(model, likelihood, rows, valid, training=training, seed=seed, progress=progress)
    except DivergenceError as error:
        return Fitted(model, likelihood, [], 0, None, seed, training=training, error=str(error))


def _open(trained: Likelihood, seen: OutOfFold) -> Likelihood:
    """Return a likelihood with all that held-out rows can tell: classes get a temperature of their own."""
    if not isinstance(trained, Categorical):
        return trained
    return Categorical(trained.classes, temperature=True).to(seen.f.device, seen.f.dtype)


def _left_out(
    seen: OutOfFold, trained: Likelihood, noise: Callable[[OutOfFold, Likelihood], Likelihood], unit: Tensor | None
) -> Tensor:
    """Log density of each row, under a noise that was fitted to the other parts of the rows, (N,)."""
    rows = len(seen.rows)
    number = torch.arange(rows, device=seen.f.device) if unit is None else unit.unique(return_inverse=True)[1]
    part, log_density = number.to(seen.f.device) % _PARTS, seen.f.new_zeros(rows, dtype=torch.float64)
    for k in range(min(_PARTS, int(number.max()) + 1)):
        own = part == k
        likelihood = noise(seen.take(~own), trained)
        with torch.no_grad():
            log_density[own] = mixture_log_density(seen.take(own), likelihood)
    return log_density


def _kept(model: Model) -> float | None:
    """Share of the weights in the median probability model; None if all are included by choice."""
    structure = model.structure()
    some = isinstance(structure, InclusionPosterior) and structure.rows
    return structure.statistics["density"] if some else None
