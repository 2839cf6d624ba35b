r"""Choice of the temperature of a sparse network on held-out rows.

The best weight of the divergence in the ELBO depends on the data: at T = 1 networks on small tables lose nearly all
weights, and with little noise a low T predicts better. Networks are therefore trained at several temperatures on part
of the rows, and compared on the held-out rows. With :math:`p_T(y_i)` the predictive density of a held-out row, T is the
highest temperature whose mean log density differs from the best by at most one standard error of the difference,

.. math:: \frac1N \sum_i d_i \le \frac1N \Big( \sum_i (d_i - \bar d)^2 \Big)^{1/2}, \qquad
          d_i = \log p_\text{best}(y_i) - \log p_T(y_i).

The noise of a candidate is also fitted on held-out rows, cross-fitted so that no row is scored with noise fitted to it.
The noise from training is too small, the more so the lower T is, since the network overfits its training rows.
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
from fathomless.inference.out_of_fold.noise import (
    KAPPA_ALONE,
    choose_noise,
    fit_noise,
    free_likelihood,
    mixture_log_density,
)
from fathomless.inference.runs.callbacks import open_checkpoint
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.limits import Pace
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.posterior.structure import InclusionPosterior
from fathomless.system import io
from fathomless.system.errors import DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, fold_in

__all__ = ["FALLBACK", "AtChosenTemperature", "Candidate", "Choice", "Comparison", "compare_candidates"]

#: Temperature used if none can be chosen.
FALLBACK = 0.1

_FEW = 60  # number of rows below which none are held out
_SHARE = 0.2  # share of the rows held out to compare the candidates
_PARTS = 5  # parts of the held-out rows for the cross-fitting of the noise
_EVALUATIONS = 20  # evaluations during the training of a candidate
_TIME = 0.5  # share of the time limit for the candidates

_PLACE = "temperature"  # subfolder of the candidates in a checkpoint


class Comparison(NamedTuple):
    """Held-out log densities of candidates, in nats per row.

    Attributes
    ----------
    chosen : int
        Index of the first candidate within one standard error of the best.
    mean, error : Tensor, shape (F,)
        Mean log density, and its standard error.
    behind, behind_error : Tensor, shape (F,)
        Difference of the mean from that of the best candidate, and its standard error.
    """

    chosen: int
    mean: Tensor
    error: Tensor
    behind: Tensor
    behind_error: Tensor


def compare_candidates(log_density: Tensor, weight: Tensor | None = None) -> Comparison:
    """Compare candidates by their held-out log densities, and choose one.

    Parameters
    ----------
    log_density : Tensor, shape (F, N)
        Log densities of N rows under each candidate, in order of preference.
    weight : Tensor, shape (N,), optional
        Sample weights.

    Examples
    --------
    >>> rows = torch.tensor([[-3.0, -3.1, -3.0], [-1.0, -1.4, -0.9], [-1.1, -1.0, -1.1]])
    >>> compare_candidates(rows).chosen  # the last one is the best; the second is within one standard error
    1
    """
    values = log_density.double()
    w = torch.ones_like(values[0]) if weight is None else weight.to(values)
    mean, error = _mean_and_error(values, w)
    behind, behind_error = _mean_and_error(values[int(mean.argmax())] - values, w)
    return Comparison(int((behind <= behind_error).nonzero()[0]), mean, error, behind, behind_error)


def _mean_and_error(values: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted means of the rows of `values` and their standard errors, (F,) each."""
    mean = values @ w / w.sum()
    return mean, ((values - mean[:, None]).square() @ w).sqrt() / w.sum()


@dataclass(frozen=True)
class Candidate:
    """Candidate temperature, and the held-out score of the network trained at it.

    Attributes
    ----------
    temperature : float
        Temperature T.
    log_density, error : float or None
        Mean log predictive density of the held-out rows and its standard error, in nats per row and in the units of
        the target; None if the training failed.
    behind, behind_error : float or None
        Difference of the mean from that of the best candidate, and its standard error.
    kept : float or None
        Share of the weights in the median probability model.
    failed : str
        Error message if the training failed, else "".
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
    """Chosen temperature, the reason for it, and the noise fitted on held-out rows.

    Attributes
    ----------
    temperature : float
        Temperature T.
    note : str
        Reason for the choice.
    candidates : list of dict
        Candidates as JSON values.
    likelihood : Likelihood, optional
        p(y | f) with the noise fitted on held-out rows.
    score : float, optional
        Mean log density of the held-out rows, in nats per row.
    """

    temperature: float
    note: str
    candidates: list[dict[str, Any]] = field(default_factory=list)
    likelihood: Likelihood | None = None
    score: float | None = None

    def diagnostics(self) -> SparseDiagnostics:
        """Return the diagnostics of the choice, which are saved with the fit."""
        choice = TemperatureChosen(temperature=self.temperature, note=self.note, candidates=tuple(self.candidates))
        return SparseDiagnostics(choice=choice)


@dataclass(frozen=True)
class AtChosenTemperature:
    """Training at a temperature chosen on held-out rows.

    Attributes
    ----------
    svi : SVI
        Training strategy.
    candidates : sequence of float
        Temperatures in decreasing order.
    draws : int
        Number of weight draws for the comparison of candidates.
    free_noise : bool
        True to choose the noise distribution on held-out rows.
    single : bool
        True to train candidates in single precision, which is sufficient for the comparison and twice as fast.
    alone : bool
        True to train candidates one after another, as required for user-defined networks.
    before : Choice, optional
        Choice of the fit that is continued; it is kept.
    """

    svi: SVI
    candidates: Sequence[float]
    draws: int
    free_noise: bool = False
    single: bool = False
    alone: bool = False
    before: Choice | None = None

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Choose a temperature, and train a network at it on all rows."""
        choice = self.before or _fallback(table) or self._choose(problem, table, session)
        changes = {"temperature": choice.temperature}
        svi = replace(self.svi, plan=replace(self.svi.plan, temperature=choice.temperature))
        lasting = {**session.lasting, **changes} if session.lasting else {}
        problem = replace(problem, networks=problem.networks._copy_with(changes))
        fitted = svi.infer(problem, table, replace(session, lasting=lasting))
        if session.checkpoint is not None:
            io.remove(Path(session.checkpoint) / _PLACE)
        if choice.likelihood is not None and table.valid is None:  # no rows are held out from this network
            fitted = replace(fitted, likelihood=choice.likelihood, score=choice.score)
        return replace(fitted, diagnostics=choice.diagnostics())

    def _choose(self, problem: Problem, table: Prepared, session: Session) -> Choice:
        """Train a network at each temperature, and compare them on held-out rows."""
        rows = cast(Rows, table.train)
        held_out = table.valid
        unit = None
        if held_out is None:
            rows, held_out, unit = _split(rows, table.seed, unit=table.group)
        dtype = torch.float32 if self.single else table.dtype
        rows, held_out = _cast(rows, dtype), _cast(held_out, dtype)
        fits = self._train(problem, replace(table, dtype=dtype), session, rows, held_out)
        seed = fold_in(table.seed, "temperature")
        fit_noise_of = self._noise_fitter()
        candidates = [Candidate(T, failed=fitted.error) for T, fitted in zip(self.candidates, fits, strict=True)]
        predictions: dict[int, OutOfFold] = {}
        log_densities: dict[int, Tensor] = {}
        for i, fitted in enumerate(fits):
            if not fitted.error:
                predicted = predict_held_out(fitted.model, held_out, seed, self.draws)
                log_density = _cross_fit_density(predicted, fitted.likelihood, fit_noise_of, unit)
                if bool(log_density.isfinite().all()):
                    predictions[i] = predicted
                    log_densities[i] = log_density
                else:
                    candidates[i] = replace(candidates[i], failed="the density of the held-out rows is not finite")
        if not predictions:
            raise DivergenceError(
                f"training failed at all of {len(candidates)} temperatures; the first: {candidates[0].failed}"
            )
        comparison = compare_candidates(torch.stack(list(log_densities.values())), held_out.weight)
        for k, i in enumerate(predictions):
            mean, error, behind, behind_error = (float(column[k]) for column in comparison[1:])
            mean -= table.target.log_unit
            kept = _kept_density(fits[i].model)
            candidates[i] = Candidate(self.candidates[i], mean, error, behind, behind_error, kept)
        best = list(predictions)[comparison.chosen]
        return Choice(
            self.candidates[best],
            f"chosen from {len(candidates)} on {held_out.count:g} held-out rows",
            [asdict(candidate) for candidate in candidates],
            fit_noise_of(predictions[best], fits[best].likelihood).to(table.device, table.dtype).eval(),
            float(comparison.mean[comparison.chosen]),
        )

    def _noise_fitter(self) -> Callable[[OutOfFold, Likelihood], Likelihood]:
        """Return the function that fits the noise of a likelihood to held-out predictions."""
        if not self.svi.plan.calibrate:
            return lambda _, trained: trained
        fitting = choose_noise if self.free_noise else fit_noise
        return lambda held, trained: fitting(held, free_likelihood(trained, held.f), KAPPA_ALONE)

    def _train(
        self, problem: Problem, table: Prepared, session: Session, rows: Rows, held_out: Rows
    ) -> tuple[Fitted, ...]:
        """Train from one start at each temperature, with as many steps as for the final network."""
        every = cast(Rows, table.train)
        first = self.candidates[0]
        networks = problem.networks._copy_with({"temperature": first})
        start = replace(problem, networks=networks).start(table, table.seed)
        training = replace(self.svi.plan, temperature=first).training(every.count, len(every))
        valid = held_out if table.valid is not None else None  # without early stopping the last state is used
        if valid is None:  # smaller batches, so that fewer rows give as many steps
            batch = math.ceil(len(rows) / every.steps(training.batch_size))
            training = replace(training, batch_size=batch, evaluate_every=math.ceil(training.epochs / _EVALUATIONS))
        trainings = [replace(training, temperature=temperature, calibrate=False) for temperature in self.candidates]
        starts = [copy.deepcopy(start) for _ in self.candidates]
        seed = fold_in(table.seed, "training")
        progress = session.display()
        if self.alone:  # user-defined networks may not support batched training
            count = len(starts)
            return tuple(
                _train_one(
                    *one_start, rows, valid, one_training, seed, progress, _limit_training(session, _TIME / (count - i))
                )
                for i, (one_start, one_training) in enumerate(zip(starts, trainings, strict=True))
            )

        def fingerprint() -> str:
            state = (*start[0].state_dict().values(), *start[1].state_dict().values())
            options = {**session.lasting, "seed": table.seed, "candidates": [plan.temperature for plan in trainings]}
            return saving.fingerprint(rows, held_out, state, trainings[0], options)

        folder = None if session.checkpoint is None else Path(session.checkpoint) / _PLACE
        callbacks, resume = open_checkpoint(
            _limit_training(session, _TIME),
            folder,
            session.seconds,
            fingerprint,
            rows.x.device,
            table.resumed,
            replace=True,
        )
        models, likelihoods = zip(*starts, strict=True)
        return fit_batched(
            models,
            likelihoods,
            rows,
            valid,
            training=trainings,
            seeds=[seed] * len(trainings),
            callbacks=callbacks,
            progress=progress,
            resume=resume,
        )


def _limit_training(session: Session, share: float) -> list[Pace]:
    """Return the callback of a training that may take a share of the remaining time; none without a limit."""
    return [] if session.limit is None else [Pace(session.limit.part(share))]


def _fallback(table: Prepared) -> Choice | None:
    """Return the fallback and its reason if the temperature cannot be chosen on held-out rows, else None."""
    held_out = 0.0 if table.valid is None else table.valid.count
    count = table.train.count + held_out
    processes = ranks().count
    if count < _FEW:
        return Choice(FALLBACK, f"not chosen: {count:g} rows, and rows are held out from {_FEW} rows on")
    if not isinstance(table.train, Rows):
        return Choice(FALLBACK, "not chosen: the data were read in parts")
    if processes > 1:
        return Choice(FALLBACK, f"not chosen: {processes} processes trained one network")
    return None


def _split(
    table: Rows, seed: int, share: float = _SHARE, unit: Tensor | None = None
) -> tuple[Rows, Rows, Tensor | None]:
    """Return training rows, held-out rows, and the units (groups) of the held-out rows; units are not split."""
    strata = None if table.y.is_floating_point() else table.y
    generator = as_generator(fold_in(seed, "temperature"))
    train, held_out = split_units(None if unit is None else unit.numpy(), len(table), share, generator, strata=strata)
    device = table.x.device
    return table.take(train.to(device)), table.take(held_out.to(device)), None if unit is None else unit[held_out]


def _cast(rows: Rows, dtype: torch.dtype) -> Rows:
    y = rows.y.to(dtype) if rows.y.is_floating_point() else rows.y
    return Rows(rows.x.to(dtype), y, None if rows.weight is None else rows.weight.to(dtype))


def _train_one(
    model: Model,
    likelihood: Likelihood,
    rows: Rows,
    valid: Rows | None,
    training: Training,
    seed: int,
    progress: Progress,
    callbacks: Sequence[Pace],
) -> Fitted:
    """Train one candidate; a failed training is returned with its error message."""
    try:
        return fit(model, likelihood, rows, valid, training=training, seed=seed, callbacks=callbacks, progress=progress)
    except DivergenceError as error:
        return Fitted(model, likelihood, [], 0, None, seed, training=training, error=str(error))


def _cross_fit_density(
    held: OutOfFold, trained: Likelihood, noise: Callable[[OutOfFold, Likelihood], Likelihood], unit: Tensor | None
) -> Tensor:
    """Return the log density of each held-out row, with noise fitted to the other parts of these rows, (N,)."""
    rows = len(held.rows)
    number = torch.arange(rows, device=held.f.device) if unit is None else unit.unique(return_inverse=True)[1]
    part = number.to(held.f.device) % _PARTS  # rows of a unit are in one part
    log_density = held.f.new_zeros(rows, dtype=torch.float64)
    for k in range(min(_PARTS, int(number.max()) + 1)):
        scored = part == k
        likelihood = noise(held.take(~scored), trained)
        with torch.no_grad():
            log_density[scored] = mixture_log_density(held.take(scored), likelihood)
    return log_density


def _kept_density(model: Model) -> float | None:
    """Return the share of weights in the median probability model; None for posteriors without inclusion variables."""
    structure = model.structure()
    sparse = isinstance(structure, InclusionPosterior) and structure.rows
    return structure.statistics["density"] if sparse else None
