r"""Export: a fitted estimator as one plain module of PyTorch, or as a file that ONNX Runtime reads.

The module takes numbers, one row for each case and one column for each of the training table (:func:`as_numbers` makes
them), encodes them, applies every network that a prediction averages, and returns what the mixture says of each row.
Networks are drawn once: those that the estimator itself predicts with.

A quantile y of a mixture solves :math:`\sum_s w_s F_s(y) = p`: an interval is cut into parts, again and again, before
steps of Newton's method; as many for all rows.
"""

import copy
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx

from fathomless.data.frames import as_numbers, frame
from fathomless.data.schema import Column, Schema
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.posterior import student
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.mixtures import Classes, Component, Indicators, Laplace, Normal, StudentT
from fathomless.posterior.model import Draws
from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.tracing import trace
from fathomless.system.version import __version__

__all__ = ["Exported", "described", "export", "module_of"]

_PARTS, _ROUNDS, _NEWTON = 4, 8, 2  # an interval is cut into so many parts, and so often
_PIECES = 1024  # of a table that is exact to 1e-10
_ROWS = 7  # of the example that a program is written from, and of no other meaning
_CHECKED = 64
_TOLERANCE = 1e-3  # of the check below: what single precision can make of a deep network
_NODES, _GROUPS = 32, 4  # of a quadrature, and parts that need memory one after another


@dataclass(frozen=True)
class Exported:
    """A file that an estimator was written to.

    Attributes
    ----------
    path : Path
        Where it is.
    bytes : int
        Its size.
    difference : float
        The largest difference to the estimator on rows that were made up from the schema: of means and standard
        deviations in standard deviations of the target, or of probabilities.
    """

    path: Path
    bytes: int
    difference: float


def module_of(estimator: PredictiveEstimator, levels: Sequence[float]) -> fx.GraphModule:
    """Return the module; see :meth:`~fathomless.estimators.tasks.Supervised.to_module`."""
    given = tuple(float(level) for level in levels)
    if not all(0.0 < level < 1.0 for level in given):
        raise DataError(f"levels={list(levels)} was given; probabilities between 0 and 1 are allowed")
    model, likelihood = estimator.model_, estimator.likelihood_
    if model.device.type != "cpu":
        model, likelihood = copy.deepcopy(model).cpu(), copy.deepcopy(likelihood).cpu()

    def draw(encoded: Tensor) -> Draws:
        return model.draw(
            encoded.to(model.dtype), estimator.weight_draws, as_generator(fold_in(estimator.seed_, "predict"))
        )

    with torch.no_grad():  # weights of draws do not depend on the rows
        drawn = draw(torch.randn(_ROWS, estimator.schema_.width, generator=torch.Generator().manual_seed(0)))
        log_weight = drawn.log_weight.double()
        table = _table(likelihood.components(drawn.f[log_weight > -math.inf]))

    def predict(x: Tensor) -> dict[str, Tensor]:
        f = draw(_encoded(estimator.schema_, x)).f
        return _told(f, log_weight, likelihood, estimator._task().units(estimator.target_), given, table)

    return trace(predict, torch.ones(_ROWS, len(estimator.schema_.columns), dtype=torch.float64))


def described(estimator: PredictiveEstimator, levels: Sequence[float]) -> dict[str, Any]:
    """Return what a file says of itself, as plain JSON."""
    structure = {name: value for name, value in asdict(estimator.structure_).items() if name != "edges"}
    classes = None if isinstance(estimator.target_, TargetScale) else cast(Any, estimator).classes_
    return {
        "fathomless": __version__,
        "estimator": type(estimator).__name__,
        "columns": [_column(column, estimator.schema_) for column in estimator.schema_.columns],
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
    kinds = {".onnx": _onnx, ".pt2": _torch}
    if path.suffix not in kinds:
        raise DataError(f"{path} was given; a name that ends with {' or '.join(kinds)} is allowed")
    module = module_of(estimator, levels)
    rows = _made_up(estimator.schema_)
    meta = json.dumps({**described(estimator, levels), **about}, default=str)
    x = torch.from_numpy(as_numbers(estimator.schema_, rows))
    shape = ({0: torch.export.Dim("rows")},)
    written = torch.export.export(module, (x[:_ROWS],), dynamic_shapes=shape)
    content, found = kinds[path.suffix](written, meta, x)
    difference = _difference(estimator, rows, found)
    if not difference <= _TOLERANCE:
        raise DataError(f"the exported module differs from the estimator by {difference:.2g}; please report it")
    io.write_bytes(path, content)
    return Exported(path, len(content), difference)


# ------------------------------------------------------------------------------------------------------ what goes in


def _encoded(schema: Schema, x: Tensor) -> Tensor:
    """Encode numbers (N, C) as :func:`~fathomless.data.frames.encode` does a table: (N, D); NaN where that refuses."""
    source, parts, strict = [], [], []
    for place, column in enumerate(schema.columns):
        refuses = not column.gaps and schema.missing != "impute"
        for name in column.features:
            source.append(place)
            strict.append(refuses)
            parts.append(_part(column, name))
    kind, level, centre, scale, fill = (
        torch.tensor(values, dtype=torch.float64) for values in zip(*parts, strict=True)
    )
    values = x[:, source]
    gap = values.isnan()
    filled = torch.where(gap, fill, values)
    if any(column.limits is not None for column in schema.columns):
        limits = [schema.columns[place].limits or (-_LARGEST, _LARGEST) for place in source]
        low, high = torch.tensor(limits, dtype=torch.float64).T
        filled = torch.minimum(torch.maximum(filled, low), high)
    number = (filled - centre) / scale
    most = torch.tensor([float(len(schema.columns[place].levels)) for place in source], dtype=torch.float64)
    other = (values < 0.0) | (values >= most)
    truth = ((kind == _MISSING) & gap) | ((kind == _LEVEL) & (level < most) & (values == level))
    truth = truth | ((kind == _LEVEL) & (level == most) & other)
    found = torch.where(kind == _NUMBER, number, truth.double())
    known = torch.tensor([schema.unseen == "error" and not schema.columns[place].other for place in source])
    unknown = (kind == _LEVEL) & known & ~gap & other
    waves = [place for place, column in enumerate(schema.columns) if column.kind == "date"]
    if waves:
        cycled = _cycles(x[:, waves])  # (N, dates, 4)
        index = [
            waves.index(place) * 4 + int(one[1]) if one[0] == _CYCLE else 0
            for place, one in zip(source, parts, strict=True)
        ]
        found = torch.where(kind == _CYCLE, cycled.flatten(1)[:, index], found)
    return torch.where((gap & torch.tensor(strict)) | unknown, math.nan, found)


_NUMBER, _LEVEL, _MISSING, _CYCLE = range(4)
_LARGEST = sys.float_info.max


def _part(column: Column, feature: str) -> tuple[float, float, float, float, float]:
    """Return how one feature follows from its column: kind, level or wave, centre, scale and fill."""
    place = column.features.index(feature)
    if column.gaps and place == len(column.features) - 1:
        return _MISSING, 0.0, 0.0, 1.0, 0.0
    if column.kind == "category":
        return _LEVEL, float(place), 0.0, 1.0, 0.0
    if column.kind == "boolean":
        return _NUMBER, 0.0, 0.5, 0.5, 0.5
    if place:
        return _CYCLE, place - 1.0, 0.0, 1.0, 0.0
    return _NUMBER, 0.0, column.center, column.scale, column.fill


def _cycles(days: Tensor) -> Tensor:
    """Return sine and cosine of the day of the year and of the week, 0 where missing: (...) -> (..., 4).

    The year starts in March, so that a leap day is its last: then a day of 400 years gives its year in closed form.

    References
    ----------
    E. Reingold and N. Dershowitz, *Calendrical Calculations*, Cambridge University Press, 2018.
    """
    gap = days.isnan()
    whole = torch.where(gap, 0.0, days).floor()
    day = whole + 719468.0  # since 0000-03-01
    era = (day / 146097.0).floor()
    day = day - 146097.0 * era  # of 400 years
    year = day - (day / 1460.0).floor() + (day / 36524.0).floor() - (day / 146096.0).floor()
    year = (year / 365.0).floor()
    since = day - (365.0 * year + (year / 4.0).floor() - (year / 100.0).floor())  # since the first of March
    next_year = since >= 306.0  # January and February
    calendar = year + next_year.double()
    leap = (_divides(4.0, calendar) & ~_divides(100.0, calendar)) | _divides(400.0, calendar)
    leap = leap.double()
    passed = torch.where(next_year, since - 306.0, since + 59.0 + leap)
    yearly = 2.0 * math.pi * passed / (365.0 + leap)
    week = whole + 3.0  # 1970-01-01 was a Thursday; the week starts on Monday
    weekly = 2.0 * math.pi / 7.0 * (week - 7.0 * (week / 7.0).floor())
    angles = torch.stack([yearly, yearly, weekly, weekly], -1).float()  # ONNX Runtime has no cosine in double
    waves = torch.stack([angles[..., 0].sin(), angles[..., 1].cos(), angles[..., 2].sin(), angles[..., 3].cos()], -1)
    return torch.where(gap[..., None], 0.0, waves.double())


def _divides(divisor: float, number: Tensor) -> Tensor:
    return number == divisor * (number / divisor).floor()


# ------------------------------------------------------------------------------------------------------ what comes out


def _told(
    f: Tensor,
    log_weight: Tensor,
    likelihood: Likelihood,
    units: dict[str, Any],
    levels: Sequence[float],
    table: "_StudentTable | None",
) -> dict[str, Tensor]:
    """Return what a mixture of S networks, (S, N, K), says of each row, in the user's units."""
    kept = torch.nonzero(log_weight > -math.inf)[:, 0]
    log_weight = log_weight[kept].log_softmax(0)
    match likelihood.components(f[kept]):
        case Classes(log_p):
            return {"probabilities": torch.logsumexp(log_weight[:, None, None] + log_p, 0).exp()}
        case Indicators(logit):
            return {"probabilities": (log_weight.exp()[:, None, None] * logit.sigmoid()).sum(0)}
        case Component() as component:
            weight = log_weight.exp()[:, None, None]
            component = component.affine(*(torch.as_tensor(units[name]).double() for name in ("shift", "scale")))
            mean = (weight * component.mean).sum(0)
            variance = (weight * (component.variance + (component.mean - mean).square())).sum(0)
            quantiles = _quantiles(weight, component, levels, table).movedim(0, -1)  # (N, T, L)
            found = {"mean": mean, "variance": variance, "quantiles": quantiles}
            return {name: value[:, 0] for name, value in found.items()} if units["squeeze"] else found


def _quantiles(
    weight: Tensor, component: Component, levels: Sequence[float], table: "_StudentTable | None" = None
) -> Tensor:
    """Return the quantiles of mixtures with weights (S, 1, 1) and laws (S, N, T), shape (L, N, T)."""
    p = torch.tensor(levels, dtype=torch.float64)[:, None, None]
    heaviest = (2.0 * p - 1.0) / torch.sqrt(2.0 * p * (1.0 - p))  # quantile of Student's t with 2 degrees of freedom
    bounds = component.loc + component.scale * heaviest.clamp_max(0.0)[:, None]
    low = bounds.amin(1)
    width = (component.loc + component.scale * heaviest.clamp_min(0.0)[:, None]).amax(1) - low
    inverse = 1.0 / component.scale
    start = -component.loc * inverse  # z = start + inverse * y

    def excess(z: Tensor) -> Tensor:
        return (weight * _below(component, z, table)).sum(-3) - p

    steps = torch.arange(1.0, _PARTS, dtype=torch.float64).view(-1, 1, 1, 1) / _PARTS
    for _ in range(_ROUNDS):
        inside = low + steps * width  # (_PARTS - 1, L, N, T)
        below = excess(start + inverse * inside[:, :, None]) <= 0.0
        low, width = low + width * (below.double().sum(0) / _PARTS), width / _PARTS
    y = low + 0.5 * width
    for _ in range(_NEWTON):
        z = start + inverse * y[:, None]
        density = (weight * _density(component, z, table) * inverse).sum(1)
        y = torch.minimum(torch.maximum(y - excess(z) / density.clamp_min(1e-300), low), low + width)
    return y


def _below(component: Component, z: Tensor, table: "_StudentTable | None") -> Tensor:
    """Return the probability below z."""
    match component:
        case Normal():  # ONNX Runtime has no error function in double
            return 0.5 + 0.5 * torch.erf((z * math.sqrt(0.5)).float()).double()
        case Laplace():
            return component.standard_cdf(z)
        case StudentT(df=df):
            return _below_student(z, df) if table is None else table.below(z)
    raise DataError(f"a likelihood with {type(component).__name__} components has no quantiles to export")


def _density(component: Component, z: Tensor, table: "_StudentTable | None") -> Tensor:
    """Return the density of z."""
    match component:
        case StudentT(df=df):  # ONNX has no gamma function
            if table is not None:
                return table.density(z)
            return _gamma_ratio(0.5 * df) / torch.sqrt(math.pi * df) * torch.exp(-component.energy(z, df))
    return component.standard_log_prob(z).exp()


def _table(components: Any) -> "_StudentTable | None":
    """Return a table of Student's law, if its degrees of freedom are the same for all rows: those of some are given."""
    match components:
        case StudentT(df=df) if (df == df[:, :1]).all():
            return _StudentTable(df[:, :1])
    return None


class _StudentTable:
    r"""Student's law with known degrees of freedom (S, 1, T): its distribution function from a table of cubics.

    They are pieces in :math:`u = z / (1 + |z|)`, of equal length, that have the values and slopes of the function at
    their ends. That takes a few steps where a quadrature takes hundreds.
    """

    def __init__(self, df: Tensor) -> None:
        distinct, place = df.unique(return_inverse=True)
        u = torch.linspace(-1.0, 1.0, _PIECES + 1, dtype=torch.float64)
        z = u / (1.0 - u.abs())
        each = distinct[:, None].expand(-1, len(u))  # (D, pieces + 1)
        value = student.cdf(z.expand_as(each), each)
        log_slope = student.log_constant(each) - student.energy(z, each) + 2.0 * torch.log1p(z.abs())
        slope = torch.where(u.abs() < 1.0, log_slope.exp(), 0.0) * (2.0 / _PIECES)  # of a piece
        rise = value.diff(dim=1)
        first, last = slope[:, :-1], slope[:, 1:]
        cubics = (value[:, :-1], first, 3.0 * rise - 2.0 * first - last, first + last - 2.0 * rise)
        self.cubics = torch.stack(cubics, -1).flatten(0, 1).contiguous()  # (D pieces, 4)
        self.start = place * _PIECES if len(distinct) > 1 else None
        self.df, self.log_constant = df, torch.as_tensor(student.log_constant(df))

    def below(self, z: Tensor) -> Tensor:
        """Return the probability below z, (..., S, N, T)."""
        x = (z / (1.0 + z.abs()) + 1.0) * (0.5 * _PIECES)
        piece = x.floor().clamp(0.0, _PIECES - 1.0)
        t, place = x - piece, piece.long()
        place = place if self.start is None else place + self.start
        a, b, c, d = torch.nn.functional.embedding(place, self.cubics).unbind(-1)
        return a + t * (b + t * (c + t * d))

    def density(self, z: Tensor) -> Tensor:
        """Return the density of z."""
        return torch.exp(self.log_constant - student.energy(z, self.df))


def _below_student(z: Tensor, df: Tensor) -> Tensor:
    r"""Return the probability below z under Student's t law, by Gauss and Legendre's quadrature.

    With :math:`u = z / \sqrt{\nu + z^2}`,

    .. math:: F(z) = \frac12 + \frac{\Gamma((\nu + 1) / 2)}{\sqrt\pi\, \Gamma(\nu / 2)}
              \int_0^u (1 - v^2)^{(\nu - 2) / 2}\, dv .
    """
    nodes, weights = (torch.from_numpy(values).view(_GROUPS, -1) for values in np.polynomial.legendre.leggauss(_NODES))
    end = torch.minimum(z.abs() / torch.sqrt(df + z.square()), 10.0 / df.sqrt())  # nothing is left beyond
    total = torch.zeros_like(end)
    for group, shares in zip(0.5 + 0.5 * nodes, 0.5 * weights, strict=True):
        values = torch.exp((0.5 * df - 1.0)[..., None] * torch.log1p(-(group * end[..., None]).square()))
        total = total + (values * shares).sum(-1)
    return 0.5 + z.sign() * end * total * _gamma_ratio(0.5 * df) / math.sqrt(math.pi)


def _gamma_ratio(x: Tensor) -> Tensor:
    """Return Γ(x + 1/2) / Γ(x) for x >= 1, from its expansion at x + 8; ONNX has no gamma function."""
    ratio = torch.ones_like(x)
    for step in range(8):
        ratio = ratio * (x + step) / (x + step + 0.5)
    far = x + 8.0
    series = -1.0 / (8.0 * far) + 1.0 / (192.0 * far**3) - 1.0 / (640.0 * far**5) + 17.0 / (14336.0 * far**7)
    return ratio * far.sqrt() * series.exp()


# ------------------------------------------------------------------------------------------------------------- files


def _column(column: Column, schema: Schema) -> dict[str, Any]:
    """Return how a column is given to the module."""
    given = {
        "numeric": "the number",
        "boolean": "0 or 1",
        "category": "place in levels, from 0; -1 for any other",
        "date": "days since 1970-01-01, in UTC",
    }[column.kind]
    missing = "NaN" if column.gaps or schema.missing == "impute" else "not allowed: all outputs are NaN"
    return {"name": column.name, "kind": column.kind, "given": given, "levels": list(column.levels), "missing": missing}


def _made_up(schema: Schema) -> Any:
    """Return rows that look like those of the training."""
    rng = np.random.default_rng(0)
    columns: dict[str, np.ndarray[Any, Any]] = {}
    for column in schema.columns:
        near = column.fill + (column.scale if column.scale != 1.0 else 1.0) * rng.normal(size=_CHECKED)
        match column.kind:
            case "category":
                columns[column.name] = np.array(
                    [column.levels[i] for i in rng.integers(len(column.levels), size=_CHECKED)]
                )
            case "boolean":
                columns[column.name] = rng.random(_CHECKED) < 0.5
            case "date":
                columns[column.name] = np.floor(near).astype(np.int64).astype("datetime64[D]").astype("datetime64[us]")
            case _:
                columns[column.name] = near
    plain = all(column.kind == "numeric" for column in schema.columns)
    return np.column_stack(list(columns.values())) if plain else frame(columns)


def _difference(estimator: PredictiveEstimator, rows: Any, found: dict[str, Any]) -> float:
    """Return how far a module is from the estimator; see :class:`Exported`."""
    dist = cast(Any, estimator.predict_dist(rows))
    if "probabilities" in found:
        return float(np.abs(dist.probs.numpy() - found["probabilities"]).max())
    unit = np.asarray(estimator._task().units(estimator.target_)["scale"]).reshape(-1)
    mean = np.abs(dist.mean.numpy() - found["mean"]).reshape(_CHECKED, -1) / unit
    std = np.abs(dist.std.numpy() - np.sqrt(found["variance"])).reshape(_CHECKED, -1) / unit
    return float(max(mean.max(), std.max()))


def _torch(written: torch.export.ExportedProgram, meta: str, x: Tensor) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a file for ``torch.export.load``, and what it makes of rows."""
    import io as memory
    import warnings

    file = memory.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors that share memory
        torch.export.save(written, file, extra_files={"metadata.json": meta})
    content = file.getvalue()
    read = torch.export.load(memory.BytesIO(content)).module()
    return content, {name: value.numpy() for name, value in read(x).items()}


def _onnx(written: torch.export.ExportedProgram, meta: str, x: Tensor) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a file for ONNX Runtime, and what that makes of rows."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  # what the exporter of torch needs
    except ImportError as error:
        raise DataError(f"ONNX needs {error.name}; pip install 'fathomless[export]'") from error
    import logging
    import warnings

    names = list(written.module()(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            made = torch.onnx.export(written, (), dynamo=True, verbose=False, input_names=["x"], output_names=names)
        finally:
            logging.disable(logging.NOTSET)
    assert made is not None
    proto = made.model_proto
    entry = proto.metadata_props.add()
    entry.key, entry.value = "fathomless", meta
    content: bytes = proto.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # of classes of its own
        raise DataError(f"ONNX Runtime cannot run this network ({error}); export it as .pt2") from error
    found = session.run(names, {"x": x.numpy()})
    return content, dict(zip(names, found, strict=True))
