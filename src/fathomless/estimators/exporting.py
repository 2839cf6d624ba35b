r"""Export of a fitted estimator as a plain PyTorch module, or as a file for ONNX Runtime.

The input of the module has one row for each prediction and one column for each column of the training table, as numbers
(:func:`as_numbers` converts tables). The module encodes them, applies all networks of the predictive mixture, and
returns the summary of the mixture for each row. The weights are drawn once, and equal those of the estimator's own
predictions.

A quantile y of a mixture solves :math:`\sum_s w_s F_s(y) = p`. It is bracketed by repeated subdivision of an interval,
and refined by Newton's method. The number of steps is the same for all rows, since exported programs have no loops that
depend on data.
"""

import copy
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx

from fathomless.data.bins import BIN_SCALE, LIMIT, Bins
from fathomless.data.frames import as_numbers, encode, make_frame
from fathomless.data.schema import Column, Schema, circle
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.posterior import student
from fathomless.posterior.lattice import least_of_normals, moments_by_tails
from fathomless.posterior.likelihoods import Likelihood, cell_of
from fathomless.posterior.mixtures import Classes, Component, Indicators, Laplace, Normal, StudentT
from fathomless.posterior.model import Draws
from fathomless.posterior.recalibration import Recalibration
from fathomless.posterior.transformed import limit_rows
from fathomless.posterior.trees import BoostedTrees, TensorTrees
from fathomless.system import checks, io
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.tracing import trace
from fathomless.system.transforms import LogTransform
from fathomless.system.version import __version__

__all__ = ["Exported", "build_module", "build_networks", "describe", "export", "match_moments"]

_LEAST_P = 1e-300  # probability below which an entropy has the gradient 0
_FAR = 1e-6  # smallest level of a quantile of other values than atoms
_PARTS, _ROUNDS, _NEWTON = 4, 8, 2  # parts of an interval, number of subdivisions, Newton steps
_PIECES = 1024  # intervals of the table of Student's t, for an accuracy of 1e-10
_ROWS = 7  # rows of the example for tracing; the exported program accepts any number
_CHECKED = 64  # rows of the comparison with the estimator
_TOLERANCE = 1e-3  # largest difference allowed in the comparison: rounding errors of single precision in deep networks
_NODES_OF_PART, _END = 24, 8.5  # quadrature of moments with a transform, and its end in standard deviations
_NODES, _GROUPS = 32, 4  # nodes of the quadrature, evaluated in groups to save memory


@dataclass(frozen=True)
class Exported:
    """File of an exported estimator.

    Attributes
    ----------
    path : Path
        Path of the file.
    bytes : int
        Size of the file in bytes.
    difference : float
        Largest difference between the file and the estimator on random rows drawn from the schema: of means and
        standard deviations, in standard deviations of the target, or of probabilities.
    """

    path: Path
    bytes: int
    difference: float


def build_module(estimator: PredictiveEstimator, levels: Sequence[float], output: str | None = None) -> fx.GraphModule:
    """Build the module; see :meth:`~fathomless.estimators.tasks.Supervised.to_module`."""
    probabilities = tuple(float(level) for level in levels)
    if not all(0.0 < p < 1.0 for p in probabilities):
        raise DataError(f"levels={list(levels)} was given; probabilities between 0 and 1 are allowed")
    if output is not None:
        of_task = ("mean", "std") if isinstance(estimator.target_, TargetScale) else ("probabilities", "entropy")
        checks.choice("output", output, of_task)
    recalibration, hurdle = estimator.recalibration_, estimator.hurdle_
    _refuse_rows(estimator)
    pool = None if estimator.trees_ is None else _with_tensors(estimator.trees_, estimator.trees_.trees)
    if recalibration is not None and recalibration.trees is not None:
        recalibration = _with_tensors(recalibration, recalibration.trees.boosted)
    draw, likelihood, drawn = _fixed_draws(estimator)
    log_weight = drawn.log_weight.double()
    used = torch.nonzero(log_weight > -math.inf)[:, 0]
    weights = log_weight[used].log_softmax(0)
    with torch.no_grad():
        table = _student_table(likelihood.components(drawn.f[used]))

    def predict(x: Tensor) -> dict[str, Tensor] | Tensor:
        encoded = _encode(estimator.schema_, x)
        components = likelihood.components(draw(encoded).f[used])
        units = estimator._task().units(estimator.target_)
        if not isinstance(components, Component):
            if pool is not None and isinstance(components, Classes):
                components = Classes(pool.pool(components.log_probs.double(), encoded.to(estimator.model_.dtype)))
            average = {"probabilities": _average_classes(components, weights)}
            return average if output is None else _select_output(average, output, isinstance(components, Indicators))
        laws = [(weights.exp()[:, None, None], components)]
        if recalibration is not None:
            laws = _recalibrate(laws[0], encoded.to(estimator.model_.dtype), recalibration)
        shift, scale = (torch.as_tensor(units[name], dtype=torch.float64) for name in ("shift", "scale"))
        laws = [(weight, component.affine(shift, scale)) for weight, component in laws]
        transform = units.get("transform")
        on_lattice = transform is not None or cell_of(likelihood) is not None
        lattice = units.get("lattice") if on_lattice else None
        if hurdle is None:
            summary = _summarize(laws, probabilities, table, transform, lattice)
        else:
            mass = hurdle.log_mass(encoded.to(estimator.model_.dtype)).exp()[..., None]  # (A + 1, N, 1)
            summary = _summarize_with_atoms(
                laws, mass, cast(TargetScale, estimator.target_).hurdle, probabilities, table, transform, lattice
            )
        if output is not None:
            return _select_output(summary, output, False)
        return {name: value[:, 0] for name, value in summary.items()} if units["squeeze"] else summary

    return trace(predict, torch.ones(_ROWS, len(estimator.schema_.columns), dtype=torch.float64))


def _select_output(summary: Mapping[str, Tensor], output: str, labels: bool) -> Tensor:
    """Return one output with two axes, (N, T) or (N, K); the entropy in nats, (N, 1), or of each of several labels."""
    if output == "std":
        return summary["variance"].sqrt()
    if output == "entropy":
        p = summary["probabilities"]
        entropy = _entropy_term(p)
        return entropy + _entropy_term(1.0 - p) if labels else entropy.sum(1, keepdim=True)
    return summary[output]


def _entropy_term(p: Tensor) -> Tensor:
    """Return -p log p, with finite gradients at p = 0."""
    term: Tensor = torch.special.entr(p.clamp_min(_LEAST_P))
    return term


def build_networks(estimator: PredictiveEstimator) -> tuple[fx.GraphModule, Tensor, type[Component]]:
    """Build a module of the law of a numeric target under each network, without the laws of the recalibration.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted regressor.

    Returns
    -------
    module : fx.GraphModule
        Maps float64 numbers (N, C) to the parameters of the law, (S, N, T) each, in units of the target, or of its
        transform. It is differentiable.
    weights : Tensor of float64, shape (S,)
        Weight of each network; positive, with the sum 1.
    law : type
        Class of the law.

    Raises
    ------
    DataError
        As :func:`build_module`.
    """
    _refuse_rows(estimator)
    if estimator.recalibration_ is not None and estimator.recalibration_.trees is not None:
        raise DataError(
            "the estimator was fitted with trees=True, and trees have no gradients; fit it with trees=False"
        )
    draw, likelihood, drawn = _fixed_draws(estimator)
    log_weight = drawn.log_weight.double()
    used = torch.nonzero(log_weight > -math.inf)[:, 0]
    units = estimator._task().units(estimator.target_)
    shift, scale = (torch.as_tensor(units[name], dtype=torch.float64) for name in ("shift", "scale"))

    def parameters(x: Tensor) -> tuple[Tensor, ...]:
        law = cast(Component, likelihood.components(draw(_encode(estimator.schema_, x)).f[used])).affine(shift, scale)
        return law.loc, law.scale, *law.shape_parameters

    module = trace(parameters, torch.ones(_ROWS, len(estimator.schema_.columns), dtype=torch.float64))
    return module, log_weight[used].softmax(0), type(cast(Component, likelihood.components(drawn.f[used])))


def _refuse_rows(estimator: PredictiveEstimator) -> None:
    """Raise DataError for a fit with stored training rows."""
    recalibration = estimator.recalibration_
    if recalibration is not None and recalibration.neighbors is not None:
        raise DataError(
            f"the estimator was fitted with neighbors=True and contains {len(recalibration.neighbors.x):,} training "
            "rows, which an exported module does not search; fit it with neighbors=False to export it"
        )


def _with_tensors(part: Any, trees: BoostedTrees) -> Any:
    """Return a copy of a part of a fit whose boosted trees are evaluated by operations of PyTorch."""
    return copy.deepcopy(part, {id(trees): TensorTrees(trees)})


def _fixed_draws(estimator: PredictiveEstimator) -> tuple[Callable[[Tensor], Draws], Likelihood, Draws]:
    """Return a function that draws the networks of predictions, the likelihood, and the draws of example rows."""
    model, likelihood = estimator.model_, estimator.likelihood_
    if model.device.type != "cpu":
        model, likelihood = copy.deepcopy(model).cpu(), copy.deepcopy(likelihood).cpu()

    def draw(encoded: Tensor) -> Draws:
        return model.draw(
            encoded.to(model.dtype), estimator.weight_draws, as_generator(fold_in(estimator.seed_, "predict"))
        )

    with torch.no_grad():  # the weights of the draws do not depend on the rows
        drawn = draw(torch.randn(_ROWS, estimator.schema_.width, generator=torch.Generator().manual_seed(0)))
    return draw, likelihood, drawn


def describe(estimator: PredictiveEstimator, levels: Sequence[float]) -> dict[str, Any]:
    """Return the metadata of an exported file, as plain JSON."""
    structure = {name: value for name, value in asdict(estimator.structure_).items() if name != "edges"}
    classes = None if isinstance(estimator.target_, TargetScale) else cast(Any, estimator).classes_
    return {
        "fathomless": __version__,
        "estimator": type(estimator).__name__,
        "columns": [_describe_column(column, estimator.schema_) for column in estimator.schema_.columns],
        "outputs": ["mean", "variance", "quantiles"] if classes is None else ["probabilities"],
        "levels": list(levels) if classes is None else [],
        "classes": [] if classes is None else classes.tolist(),
        "target": estimator.target_.to_json(),
        "structure": structure,
        "scores": {"log_density_of_held_out_rows": estimator.validation_score_},
    }


def export(
    estimator: PredictiveEstimator, path: str | PathLike[str], levels: Sequence[float], about: dict[str, Any]
) -> Exported:
    """Write the module to a file; see :meth:`~fathomless.estimators.tasks.Supervised.export`."""
    path = Path(path)
    kinds = {".onnx": _write_onnx, ".pt2": _write_torch}
    if path.suffix not in kinds:
        raise DataError(f"{path} was given; a name that ends with {' or '.join(kinds)} is allowed")
    module = build_module(estimator, levels)
    rows = _sample_rows(estimator.schema_)
    meta = json.dumps({**describe(estimator, levels), **about}, default=str)
    x = torch.from_numpy(as_numbers(estimator.schema_, rows))
    shape = ({0: torch.export.Dim("rows")},)
    # a symbolic number of rows, so that the program accepts any number
    written = torch.export.export(module, (x[:_ROWS],), dynamic_shapes=shape)
    content, outputs = kinds[path.suffix](written, meta, x)
    difference = _difference(estimator, rows, outputs)
    if not difference <= _TOLERANCE:
        raise DataError(f"the exported module differs from the estimator by {difference:.2g}; please report it")
    io.write_bytes(path, content)
    return Exported(path, len(content), difference)


# ------------------------------------------------------------------------------------------------------------ inputs


def _encode(schema: Schema, x: Tensor) -> Tensor:
    """Encode numbers (N, C) as :func:`~fathomless.data.frames.encode` does a table: (N, D); NaN for refused rows."""
    source = []  # index of the column of each feature
    parts = []  # rule of each feature
    strict = []  # True for features whose column must not have missing values
    for place, column in enumerate(schema.columns):
        refuses = not _allows_missing(schema, column)
        for name in column.features:
            source.append(place)
            strict.append(refuses)
            parts.append(_feature_rule(column, name))
    kind, level, centre, scale, fill = (
        torch.tensor(values, dtype=torch.float64) for values in zip(*parts, strict=True)
    )
    values = x[:, source]
    gap = values.isnan()
    within = values
    if any(column.limits is not None for column in schema.columns):
        limits = [_raw_limits(schema.columns[place]) for place in source]
        low, high = torch.tensor(limits, dtype=torch.float64).T
        within = _clip(values, low, high)
    filled = torch.where(gap, fill, within)
    number = (filled - centre) / scale
    most = torch.tensor([float(len(schema.columns[place].levels)) for place in source], dtype=torch.float64)
    other = (values < 0.0) | (values >= most)
    truth = ((kind == _MISSING) & gap) | ((kind == _LEVEL) & (level < most) & (values == level))
    truth = truth | ((kind == _LEVEL) & (level == most) & other)
    alone = torch.tensor([schema.columns[place].constant for place in source]) & (kind == _LEVEL)
    gaps = torch.tensor([schema.columns[place].gaps for place in source])
    truth = truth | (alone & ~(gap & gaps))  # a single category
    features = torch.where(kind == _NUMBER, number, truth.double())
    if any(column.bins is not None for column in schema.columns):
        bounded = _clip(number, -LIMIT, LIMIT)
        features = torch.where(kind == _BOUNDED, bounded / (1.0 + (bounded / 3.0).square()).sqrt(), features)
        features = torch.where(kind == _SPIKE, (filled == level).double() - centre, features)
        features = torch.where(kind == _BIN, BIN_SCALE * (_clip(number, 0.0, 1.0) - level), features)
    known = torch.tensor([schema.unseen == "error" and not schema.columns[place].other for place in source])
    constant = torch.tensor([schema.columns[place].constant for place in source])
    unknown = known & ~gap & (((kind == _LEVEL) & other) | (constant & (within != values)))
    dates = [place for place, column in enumerate(schema.columns) if column.kind == "date"]
    if dates:
        kept = [_raw_limits(column) if column.constant else _UNLIMITED for column in (schema.columns[i] for i in dates)]
        first, last = torch.tensor(kept, dtype=torch.float64).T
        cycles = _cycles(_clip(x[:, dates], first, last))  # (N, dates, 4)
        index = [
            dates.index(place) * 4 + int(rule[1]) if rule[0] == _CYCLE else 0
            for place, rule in zip(source, parts, strict=True)
        ]
        features = torch.where(kind == _CYCLE, cycles.flatten(1)[:, index], features)
    return torch.where((gap & torch.tensor(strict)) | unknown, math.nan, features)


def _raw_limits(column: Column) -> tuple[float, float]:
    """Return the limits of the numbers that :func:`~fathomless.data.frames.as_numbers` returns for a column."""
    if column.limits is None or column.kind == "category":
        return _UNLIMITED
    low, high = column.limits
    return (0.5 * (low + 1.0), 0.5 * (high + 1.0)) if column.kind == "boolean" else (low, high)


def _allows_missing(schema: Schema, column: Column) -> bool:
    """Return True if missing values of a column are predicted, with or without a warning."""
    return column.gaps or schema.missing == "impute" or (schema.missing == "auto" and schema.named)


_NUMBER, _LEVEL, _MISSING, _CYCLE, _BOUNDED, _SPIKE, _BIN = range(7)
_UNLIMITED = (-sys.float_info.max, sys.float_info.max)


def _feature_rule(column: Column, feature: str) -> tuple[float, float, float, float, float]:
    """Return the rule that computes a feature from its column: kind, level or cycle, centre, scale and fill value."""
    place = column.features.index(feature)
    if column.gaps and place == len(column.features) - 1:
        return _MISSING, 0.0, 0.0, 1.0, 0.0
    if column.kind == "category":
        return _LEVEL, float(place), 0.0, 1.0, 0.0
    if column.kind == "boolean":
        return _NUMBER, 0.0, 0.5, 0.5, 0.5
    if place and column.bins is not None:
        return _bins_rule(column, column.bins, place - 1)
    if place:
        return _CYCLE, place - 1.0, 0.0, 1.0, 0.0
    return _NUMBER, 0.0, column.center, column.scale, column.fill


def _clip(values: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Clip values, except for NaN. The optimiser of ONNX programs fails on two pairs of scalar bounds of one value."""
    return torch.where(values < low, low, torch.where(values > high, high, values))


def _bins_rule(column: Column, bins: Bins, place: int) -> tuple[float, float, float, float, float]:
    """Return the rule of a further feature of a column of numbers; the level of a bin is its mean."""
    spikes = len(bins.spikes)
    if place == 0:
        return _BOUNDED, 0.0, bins.median, bins.spread, column.fill
    mean = bins.means[place - 1]
    if place <= spikes:
        return _SPIKE, bins.spikes[place - 1], mean, 1.0, column.fill
    low, high = bins.knots[place - 1 - spikes : place + 1 - spikes]
    return _BIN, mean, low, high - low, column.fill


def _cycles(days: Tensor) -> Tensor:
    """Return sine and cosine of the day of the year and of the week, 0 if missing: (...) -> (..., 4).

    The year starts in March, so that a leap day is its last day. The year then follows in closed form from the day
    within a period of 400 years.

    References
    ----------
    E. Reingold and N. Dershowitz, *Calendrical Calculations*, Cambridge University Press, 2018.
    """
    gap = days.isnan()
    whole = torch.where(gap, 0.0, days).floor()
    day = whole + 719468.0  # since 0000-03-01
    era = (day / 146097.0).floor()
    day = day - 146097.0 * era  # day within a period of 400 years
    year = day - (day / 1460.0).floor() + (day / 36524.0).floor() - (day / 146096.0).floor()
    year = (year / 365.0).floor()
    since = day - (365.0 * year + (year / 4.0).floor() - (year / 100.0).floor())  # days since the first of March
    next_year = since >= 306.0  # January and February
    calendar = year + next_year.double()
    is_leap = (_divides(4.0, calendar) & ~_divides(100.0, calendar)) | _divides(400.0, calendar)
    leap = is_leap.double()
    passed = torch.where(next_year, since - 306.0, since + 59.0 + leap)
    week = whole + 3.0  # 1970-01-01 was a Thursday; the week starts on Monday
    weekday = week - 7.0 * (week / 7.0).floor()
    # tables, since ONNX Runtime has no cosine in double
    of_year = torch.from_numpy(np.vstack([circle(np.arange(days) / days) for days in (365.0, 366.0)]))
    of_week = torch.from_numpy(circle(np.arange(7.0) / 7.0))
    waves = torch.cat([_look_up(of_year, passed + 365.0 * leap), _look_up(of_week, weekday)], -1)
    return torch.where(gap[..., None], 0.0, waves)


def _look_up(table: Tensor, place: Tensor) -> Tensor:
    """Return the rows of a table at places (N, ...), in the nearest row for places beyond it."""
    return torch.nn.functional.embedding(place.long().clamp(0, len(table) - 1), table)


def _divides(divisor: float, number: Tensor) -> Tensor:
    return number == divisor * (number / divisor).floor()


# ----------------------------------------------------------------------------------------------------------- outputs


Law = tuple[Tensor, Component]  # weights of components, which broadcast to their parameters (S, N, T)


def _average_classes(components: Classes | Indicators, log_weight: Tensor) -> Tensor:
    """Return the class probabilities of a mixture with log weights (S,)."""
    if isinstance(components, Classes):
        return torch.logsumexp(log_weight[:, None, None] + components.log_probs, 0).exp()
    return (log_weight.exp()[:, None, None] * components.logit.sigmoid()).sum(0).clamp_max(1.0)  # may be rounded up


def _recalibrate(networks: Law, x: Tensor, recalibration: Recalibration) -> list[Law]:
    """Return the law of the networks and the laws of the standardised residual, with their weights."""
    mean, variance = _moments([networks])
    laws = recalibration.law_parameters(x, mean, variance.sqrt())
    share = recalibration.share[:, None]  # (C + 1, 1, T)
    weight, component = networks
    residual = [
        (share[j] * law.log_weight.exp(), Normal(law.loc, law.log_scale.exp())) for j, law in enumerate(laws, start=1)
    ]
    return [(share[0] * weight, component), *residual]


def _moments(laws: Sequence[Law]) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a mixture, (N, T) each."""
    means = [(weight * component.mean).sum(0) for weight, component in laws]
    mean = torch.stack(means).sum(0)
    parts = [(weight * (component.variance + (component.mean - mean).square())).sum(0) for weight, component in laws]
    return mean, torch.stack(parts).sum(0)


def _summarize(
    laws: Sequence[Law],
    levels: Sequence[float],
    table: "_StudentTable | None",
    transform: LogTransform | None,
    lattice: tuple[float, float] | None,
) -> dict[str, Tensor]:
    """Return mean and variance, (N, T), and quantiles, (N, T, L), of a mixture, or of a law with a transform."""
    mean, variance = _round_moments(laws, transform, lattice)
    p = torch.tensor(levels, dtype=torch.float64)[:, None, None]
    quantiles = _quantiles(laws, p, table)
    quantiles = quantiles if transform is None else transform.invert(quantiles)
    return {"mean": mean, "variance": variance, "quantiles": quantiles.movedim(0, -1)}


def _round_moments(
    laws: Sequence[Law], transform: LogTransform | None, lattice: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a target, (N, T), after rounding if it is on a lattice, given by step and offset."""
    mean, variance = _moments(_in_units(laws, transform))
    if lattice is None:
        return mean, variance
    step, offset = lattice
    if not all(isinstance(component, Normal) for _, component in laws):
        return mean, variance + step**2 / 12.0
    least = least_of_normals([component for _, component in laws])[0]
    least = least if transform is None else transform.invert(least)
    first = offset + step * ((least - offset) / step).round()
    below = _distribution(laws, None)

    def tail(y: Tensor) -> Tensor:
        return 1.0 - below(y if transform is None else transform.transform(y))

    return moments_by_tails(first, mean, variance, step, tail)


def _in_units(laws: Sequence[Law], transform: LogTransform | None) -> Sequence[Law]:
    """Return laws of the target with the same moments as those of its transform."""
    if transform is None:
        return laws
    highest = limit_rows(*laws[0], transform)
    return [(weight, match_moments(component, transform, highest)) for weight, component in laws]


def match_moments(component: Component, transform: LogTransform, highest: Tensor) -> Normal:
    """Return the Gaussians of :func:`~fathomless.posterior.transformed.match_moments`.

    ONNX has no distribution function of a Gaussian in double precision. Moments are therefore computed by quadrature in
    the three parts of the line.
    """
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(_NODES_OF_PART))
    centre = transform.sign * component.loc
    inner = [(end - centre) / component.scale for end in (0.0, highest)]
    inner = [torch.where(z < -_END, -_END, torch.where(z > _END, _END, z)) for z in inner]
    ends = [torch.full_like(centre, -_END), *inner, torch.full_like(centre, _END)]
    low, high = torch.stack(ends[:-1], -1)[..., None], torch.stack(ends[1:], -1)[..., None]
    z = low + 0.5 * (high - low) * (1.0 + nodes)  # (..., 3, nodes)
    mass = 0.5 * (high - low) * weights * torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    values = transform.invert_limited(
        component.loc[..., None, None] + transform.sign * component.scale[..., None, None] * z,
        highest[..., None, None],
    )
    mean = (mass * values).sum((-2, -1))
    variance = (mass * (values - mean[..., None, None]).square()).sum((-2, -1))
    return Normal(mean, variance.sqrt())


def _summarize_with_atoms(
    laws: Sequence[Law],
    mass: Tensor,
    atoms: Sequence[float],
    levels: Sequence[float],
    table: "_StudentTable | None",
    transform: LogTransform | None,
    lattice: tuple[float, float] | None,
) -> dict[str, Tensor]:
    """Return the summary of a law with atoms; see :mod:`fathomless.posterior.hurdle`.

    `mass`, (A + 1, N, 1), has the probabilities of other values and of each atom.
    """
    other_mean, other_variance = _round_moments(laws, transform, lattice)
    other, *each = mass.unbind(0)
    mean = other * other_mean + sum(p * a for p, a in zip(each, atoms, strict=True))
    variance = other * (other_variance + (other_mean - mean).square())
    variance = variance + sum(p * (a - mean).square() for p, a in zip(each, atoms, strict=True))
    below = _distribution(laws, table)
    p = torch.tensor(levels, dtype=torch.float64)[:, None, None]
    shape = (len(levels), *mean.shape)
    low, high = torch.full(shape, -math.inf).double(), torch.full(shape, math.inf).double()
    passed = torch.zeros(mean.shape).double()  # probability of the atoms before
    counted = torch.zeros(shape).double()  # probability of the atoms below the quantile
    for probability, atom in zip(each, atoms, strict=True):
        passed = passed + probability
        place = torch.full((1, *mean.shape), atom).double()
        place = place if transform is None else transform.transform(place)
        is_below = passed + other * below(place)[0] < p
        low = torch.where(is_below, atom, low)
        high = torch.where(is_below | (high < math.inf), high, atom)
        counted = torch.where(is_below, counted + probability, counted)
    level = ((p - counted) / other.clamp_min(1e-300)).clamp(_FAR, 1.0 - _FAR)
    quantiles = _quantiles(laws, level, table)
    quantiles = quantiles if transform is None else transform.invert(quantiles)
    # the ONNX exporter cannot merge minimum and maximum with those at the end of the quantiles
    quantiles = torch.where(quantiles < low, low, torch.where(quantiles > high, high, quantiles))
    return {"mean": mean, "variance": variance, "quantiles": quantiles.movedim(0, -1)}


def _distribution(laws: Sequence[Law], table: "_StudentTable | None") -> Callable[[Tensor], Tensor]:
    """Return the distribution function of a mixture, for values (..., L, N, T); the table is that of the first law."""
    tables = [table, *(None for _ in laws[1:])]
    parts = [(*law, 1.0 / law[1].scale, own) for law, own in zip(laws, tables, strict=True)]

    def below(y: Tensor) -> Tensor:
        y = y.unsqueeze(-3)
        each = [(w * _cdf(c, (y - c.loc) * inverse, own)).sum(-3) for w, c, inverse, own in parts]
        return torch.stack(each).sum(0)

    return below


def _quantiles(laws: Sequence[Law], p: Tensor, table: "_StudentTable | None" = None) -> Tensor:
    """Return the quantiles of a mixture at levels that broadcast to (L, N, T); the table is that of the first law."""
    # the quantile of a mixture lies between the smallest and the largest quantile of its components; those of a
    # heavier-tailed distribution bound them in closed form
    heaviest = (2.0 * p - 1.0) / torch.sqrt(2.0 * p * (1.0 - p))  # quantile of Student's t with 2 degrees of freedom
    left, right = heaviest.clamp_max(0.0)[:, None], heaviest.clamp_min(0.0)[:, None]
    low = torch.stack([(law.loc + law.scale * left).amin(1) for _, law in laws]).amin(0)
    width = torch.stack([(law.loc + law.scale * right).amax(1) for _, law in laws]).amax(0) - low
    inverses = [1.0 / component.scale for _, component in laws]
    tables = [table, *(None for _ in laws[1:])]
    parts = [(*law, inverse, own) for law, inverse, own in zip(laws, inverses, tables, strict=True)]

    distribution = _distribution(laws, table)

    def excess(y: Tensor) -> Tensor:
        return distribution(y) - p

    def density(y: Tensor) -> Tensor:
        y = y.unsqueeze(-3)
        each = [(w * _density(c, (y - c.loc) * inverse, own) * inverse).sum(-3) for w, c, inverse, own in parts]
        return torch.stack(each).sum(0)

    steps = torch.arange(1.0, _PARTS, dtype=torch.float64).view(-1, 1, 1, 1) / _PARTS
    for _ in range(_ROUNDS):
        below = excess(low + steps * width) <= 0.0  # (_PARTS - 1, L, N, T)
        low, width = low + width * (below.double().sum(0) / _PARTS), width / _PARTS
    y = low + 0.5 * width
    for _ in range(_NEWTON):  # clipped to the bracket, since Newton's method may overshoot
        y = torch.minimum(torch.maximum(y - excess(y) / density(y).clamp_min(1e-300), low), low + width)
    return y


def _cdf(component: Component, z: Tensor, table: "_StudentTable | None") -> Tensor:
    """Return the distribution function of a standardized component at z."""
    match component:
        case Normal():  # ONNX Runtime has no error function in double precision
            return 0.5 + 0.5 * torch.erf((z * math.sqrt(0.5)).float()).double()
        case Laplace():
            return component.standard_cdf(z)
        case StudentT(df=df):
            return _student_cdf(z, df) if table is None else table.below(z)
    raise DataError(f"a likelihood with {type(component).__name__} components has no quantiles to export")


def _density(component: Component, z: Tensor, table: "_StudentTable | None") -> Tensor:
    """Return the density of a standardized component at z."""
    match component:
        case StudentT(df=df):  # ONNX has no gamma function
            if table is not None:
                return table.density(z)
            return _gamma_ratio(0.5 * df) / torch.sqrt(math.pi * df) * torch.exp(-component.energy(z, df))
    return component.standard_log_prob(z).exp()


def _student_table(components: Any) -> "_StudentTable | None":
    """Return a table of Student's t if the degrees of freedom are the same for all rows, judged by an example."""
    match components:
        case StudentT(df=df) if (df == df[:, :1]).all():
            return _StudentTable(df[:, :1])
    return None


class _StudentTable:
    r"""Student's t with known degrees of freedom (S, 1, T), with a tabulated distribution function.

    The table is a cubic Hermite spline in :math:`u = z / (1 + |z|)` with equal intervals, which matches the values and
    slopes of the function at the knots. It needs a few operations, and a quadrature hundreds.
    """

    def __init__(self, df: Tensor) -> None:
        distinct, place = df.unique(return_inverse=True)
        u = torch.linspace(-1.0, 1.0, _PIECES + 1, dtype=torch.float64)
        z = u / (1.0 - u.abs())
        nu = distinct[:, None].expand(-1, len(u))  # (D, pieces + 1)
        value = student.cdf(z.expand_as(nu), nu)
        log_slope = student.log_constant(nu) - student.energy(z, nu) + 2.0 * torch.log1p(z.abs())
        slope = torch.where(u.abs() < 1.0, log_slope.exp(), 0.0) * (2.0 / _PIECES)  # per interval
        rise = value.diff(dim=1)
        first, last = slope[:, :-1], slope[:, 1:]
        cubics = (value[:, :-1], first, 3.0 * rise - 2.0 * first - last, first + last - 2.0 * rise)
        self.cubics = torch.stack(cubics, -1).flatten(0, 1).contiguous()  # (D pieces, 4)
        self.start = place * _PIECES if len(distinct) > 1 else None
        self.df = df
        self.log_constant = torch.as_tensor(student.log_constant(df))

    def below(self, z: Tensor) -> Tensor:
        """Return the distribution function at z, (..., S, N, T)."""
        x = (z / (1.0 + z.abs()) + 1.0) * (0.5 * _PIECES)
        piece = torch.where(x.isnan(), 0.0, x.floor().clamp(0.0, _PIECES - 1.0))  # t and the result are NaN
        t = x - piece
        place = piece.long()
        place = place if self.start is None else place + self.start
        a, b, c, d = torch.nn.functional.embedding(place, self.cubics).unbind(-1)
        return a + t * (b + t * (c + t * d))

    def density(self, z: Tensor) -> Tensor:
        """Return the density at z."""
        return torch.exp(self.log_constant - student.energy(z, self.df))


def _student_cdf(z: Tensor, df: Tensor) -> Tensor:
    r"""Return the distribution function of Student's t at z, by Gauss-Legendre quadrature.

    With :math:`u = z / \sqrt{\nu + z^2}`,

    .. math:: F(z) = \frac12 + \frac{\Gamma((\nu + 1) / 2)}{\sqrt\pi\, \Gamma(\nu / 2)}
              \int_0^u (1 - v^2)^{(\nu - 2) / 2}\, dv .
    """
    nodes, weights = (torch.from_numpy(values).view(_GROUPS, -1) for values in np.polynomial.legendre.leggauss(_NODES))
    end = torch.minimum(z.abs() / torch.sqrt(df + z.square()), 10.0 / df.sqrt())  # the integrand is negligible beyond
    total = torch.zeros_like(end)
    for group, shares in zip(0.5 + 0.5 * nodes, 0.5 * weights, strict=True):
        values = torch.exp((0.5 * df - 1.0)[..., None] * torch.log1p(-(group * end[..., None]).square()))
        total = total + (values * shares).sum(-1)
    return 0.5 + z.sign() * end * total * _gamma_ratio(0.5 * df) / math.sqrt(math.pi)


def _gamma_ratio(x: Tensor) -> Tensor:
    """Return Γ(x + 1/2) / Γ(x) for x >= 1, from its asymptotic expansion; ONNX has no gamma function."""
    ratio = torch.ones_like(x)
    for step in range(8):  # recurrence to x + 8, where the expansion is accurate
        ratio = ratio * (x + step) / (x + step + 0.5)
    far = x + 8.0
    series = -1.0 / (8.0 * far) + 1.0 / (192.0 * far**3) - 1.0 / (640.0 * far**5) + 17.0 / (14336.0 * far**7)
    return ratio * far.sqrt() * series.exp()


# ------------------------------------------------------------------------------------------------------------- files


def _describe_column(column: Column, schema: Schema) -> dict[str, Any]:
    """Describe a column of the module's input, for the metadata of a file."""
    given = {
        "numeric": "the number",
        "boolean": "0 or 1",
        "category": "place in levels, from 0; -1 for any other",
        "date": "days since 1970-01-01, in UTC",
        "empty": "any value, which is ignored",
    }[column.kind]
    missing = "NaN" if _allows_missing(schema, column) else "not allowed: all outputs are NaN"
    return {"name": column.name, "kind": column.kind, "given": given, "levels": list(column.levels), "missing": missing}


def _sample_rows(schema: Schema) -> Any:
    """Draw random rows with the types and ranges of the training table."""
    rng = np.random.default_rng(0)
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for column in schema.columns:
        near = column.fill + (column.scale if column.scale != 1.0 else 1.0) * rng.normal(size=_CHECKED)
        match column.kind:
            case "category":
                columns[column.name] = np.array(
                    [column.levels[i] for i in rng.integers(len(column.levels), size=_CHECKED)]
                )
            case "empty":
                columns[column.name] = np.full(_CHECKED, math.nan)
            case "boolean":
                columns[column.name] = rng.random(_CHECKED) < 0.5
            case "date":
                columns[column.name] = np.floor(near).astype(np.int64).astype("datetime64[D]").astype("datetime64[us]")
            case _:
                columns[column.name] = near
    plain = all(column.kind in ("numeric", "empty") for column in schema.columns)
    return np.column_stack(list(columns.values())) if plain else make_frame(columns)


def _difference(estimator: PredictiveEstimator, rows: Any, outputs: dict[str, Any]) -> float:
    """Return the largest difference between a module and the estimator; see :class:`Exported`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # these rows are not those of a user
        encoded = encode(estimator.schema_, rows)
    dist = cast(Any, estimator.predict_encoded(encoded))
    if "probabilities" in outputs:
        return float(np.abs(dist.probs.numpy() - outputs["probabilities"]).max())
    unit = np.asarray(cast(TargetScale, estimator.target_).spread)
    mean = np.abs(dist.mean.numpy() - outputs["mean"]).reshape(_CHECKED, -1) / unit
    std = np.abs(dist.std.numpy() - np.sqrt(outputs["variance"])).reshape(_CHECKED, -1) / unit
    return float(max(mean.max(), std.max()))


def _write_torch(written: torch.export.ExportedProgram, meta: str, x: Tensor) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a file for ``torch.export.load``, and its outputs for rows."""
    import io as memory

    file = memory.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of tensors that share memory
        torch.export.save(written, file, extra_files={"metadata.json": meta})
    content = file.getvalue()
    read = torch.export.load(memory.BytesIO(content)).module()
    return content, {name: value.numpy() for name, value in read(x).items()}


def _write_onnx(written: torch.export.ExportedProgram, meta: str, x: Tensor) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a file for ONNX Runtime, and its outputs for rows."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # required by the exporter of torch
    except ImportError as error:
        raise DataError(f"ONNX needs {error.name}; pip install 'fathomless[export]'") from error
    names = list(written.module()(x))
    for optimize in (True, False):  # the optimiser of onnxscript 0.7 can fail if a value is clipped twice
        content = _convert(written, names, meta, optimize=optimize)
        try:
            session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
            break
        except Exception as error:  # ONNX Runtime has many exception classes without a common base
            if not optimize:
                raise DataError(f"ONNX Runtime cannot run this network ({error}); export it as .pt2") from error
    outputs = session.run(names, {"x": x.numpy()})
    return content, dict(zip(names, outputs, strict=True))


def _convert(written: torch.export.ExportedProgram, names: Sequence[str], meta: str, *, optimize: bool) -> bytes:
    """Return a program of PyTorch as an ONNX file."""
    import logging

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            exported = torch.onnx.export(
                written, (), dynamo=True, verbose=False, input_names=["x"], output_names=names, optimize=optimize
            )
        finally:
            logging.disable(logging.NOTSET)
    assert exported is not None
    proto = exported.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "fathomless", meta
    content: bytes = proto.SerializeToString()
    return content
