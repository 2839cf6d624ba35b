"""Predictor: fitted networks with their encodings, independent of scikit-learn, and its restoration from a folder."""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.categories import category_columns, category_name, read_categories
from fathomless.data.frames import take
from fathomless.data.given_rows import GivenRows, hash_rows, read_given_rows, select_plain
from fathomless.data.schema import Schema, rows_of
from fathomless.data.targets import ClassLabels, Indicators, Target, TargetScale
from fathomless.estimators import saving
from fathomless.estimators.encoding import ClassTask, NumberTask, Task
from fathomless.estimators.networks import Networks
from fathomless.estimators.options import options_of
from fathomless.estimators.renamed import rename_saved
from fathomless.posterior.capabilities import rebuild
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.conformal import ConformalScores, interval_bounds, unit_moments
from fathomless.posterior.distributions import NumberPredictive
from fathomless.posterior.ensemble import Ensemble, draw_jointly, list_members
from fathomless.posterior.fit_diagnostics import Candidate, CrossFitDiagnostics, Diagnostics, choose_options
from fathomless.posterior.hurdle import AtomNetworks, HurdlePredictive, read_atom_networks
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.posterior.likelihoods import ClassLikelihood, Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.out_of_distribution import TrainingDistribution, read_training_distribution
from fathomless.posterior.predictive import concatenate, predictive
from fathomless.posterior.recalibration import Recalibration, read_recalibration
from fathomless.posterior.structure import ListedPosterior, Structure
from fathomless.posterior.trees import TreePool, read_tree_pool
from fathomless.system import bounds, checks, io, memory, nonfinite
from fathomless.system.errors import DataError, DataWarning, DivergenceError, FileError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator, building, fold_in
from fathomless.system.torch_state import enable_gradients, without_gradients

__all__ = [
    "GUARANTEES",
    "PREDICTED_AT_ONCE",
    "AnyPredictive",
    "Array",
    "Predictor",
    "Restored",
    "concatenate_parts",
    "load_predictor",
    "name_errors",
    "read_options",
    "restore",
]

#: NumPy arrays of any type.
Array = npt.NDArray[Any]

PREDICTED_AT_ONCE = 16384  #: rows predicted at once

#: Guarantees of prediction intervals.
GUARANTEES = ("marginal", "group")

#: Predictive distribution of any task.
AnyPredictive: TypeAlias = ClassPredictive | NumberPredictive | IndicatorPredictive


@dataclass(frozen=True, eq=False)
class Predictor:
    """Fitted networks with the encodings of their table.

    Attributes
    ----------
    name : str
        Name of the estimator's class, for messages.
    task : Task
        Encoding of rows and targets.
    schema, target
        Fitted encodings.
    model, likelihood : nn.Module
        Fitted networks, and p(y | f).
    structure : Structure
        Posterior over structure.
    diagnostics : Diagnostics
        Diagnostics of the fit.
    seed : int
        Seed of the fit.
    weight_draws : int
        Number of weight draws of a prediction, for sampled weights.
    fold : ndarray of int, shape (R, N), optional
        Fold of each training row, if networks were cross-fitted.
    rows : GivenRows, optional
        Rows of the fit.
    recalibration : Recalibration, optional
        Laws of the standardised residual.
    hurdle : AtomNetworks, optional
        Probabilities of the atoms of the target.
    conformal : ConformalScores, optional
        Scores of out-of-fold or held-out rows of a regression, for intervals with a guarantee.
    trees : TreePool, optional
        Boosted trees that the predictions of classes are pooled with.
    training : TrainingDistribution, optional
        Distribution of the training rows, for p-values of new rows.
    """

    name: str
    task: Task
    schema: Schema
    target: Target
    model: Model
    likelihood: Likelihood
    structure: Structure
    diagnostics: Diagnostics
    seed: int
    weight_draws: int
    fold: Array | None = None
    rows: GivenRows | None = None
    recalibration: Recalibration | None = None
    hurdle: AtomNetworks | None = None
    conformal: ConformalScores | None = None
    trees: TreePool | None = None
    training: TrainingDistribution | None = None

    def predict_dist(self, X: Any, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of every row: a mixture over structures and weight draws.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        fold : array of int, shape (R, N), optional
            Fold of each row. A row is predicted only by the cross-fitted networks that were not trained on its fold.

        Raises
        ------
        DataError
            If rows do not match the training table, a fold does not exist, or training rows have folds of others.
        """

        def encode(part: slice) -> Array:
            return self.check_folds(self.encode(take(X, part)), fold, part)

        with name_errors(self.name):
            return concatenate_parts(self.predict_parts(encode, len(X), fold), len(X))

    def encode(self, X: Any) -> Array:
        """Encode the predictors of a table, shape (N, D)."""
        return self.task.encode_rows(self.schema, X)

    def predict_parts(self, encode: Callable[[slice], Array], count: int, fold: Any = None) -> Iterator[AnyPredictive]:
        """Predict rows part by part, with the same weight draws for all parts.

        Parameters
        ----------
        encode : callable
            Function that returns the encoded rows (n, D) of a slice.
        count : int
            Total number of rows N.
        fold : array of int, shape (R, N), optional
            As in :meth:`predict_dist`.
        """
        networks_of = self._held_out_networks(fold, count)
        device = self.model.device
        likelihood = self.likelihood
        diagnostics = self.diagnostics
        if networks_of is not None and isinstance(diagnostics, CrossFitDiagnostics) and diagnostics.narrowing:
            # out-of-fold predictions are of single networks, whose noise is larger than that of the average
            if isinstance(likelihood, ClassLikelihood):
                likelihood = likelihood.widen(1.0 / diagnostics.narrowing[0])
            else:
                likelihood = copy.deepcopy(likelihood)
                factor = 1.0 / torch.tensor(diagnostics.narrowing, dtype=torch.float32, device=device)
                likelihood.noise.rescale(factor)  # type: ignore[operator, union-attr]
        draws_each = checks.whole("weight_draws", self.weight_draws) if self.model.stochastic else self.weight_draws
        passes = draws_each if self.model.stochastic else 1
        networks = len(self.structure.names) if isinstance(self.structure, ListedPosterior) else 1
        networks *= len(list_members(self.model))
        # about two copies of the outputs in double precision
        memory.require(
            2.0 * 8.0 * passes * networks * min(count, PREDICTED_AT_ONCE) * likelihood.outputs,
            f"weight_draws={passes:,} of {min(count, PREDICTED_AT_ONCE):,} rows",
            lambda share: f"weight_draws={max(1, int(share * passes)):,} fits",
        )
        units = self.task.units(self.target)
        dtype = list_members(self.model)[0].dtype  # that of every network
        for start in range(0, max(1, count), PREDICTED_AT_ONCE):
            with _number_rows_from(start):
                encoded = encode(slice(start, start + PREDICTED_AT_ONCE))
            # the yield is outside this block: the caller's gradient mode must not change
            with memory.explain_out_of_memory("predict fewer rows at once, or set device='cpu'"), without_gradients():
                x = torch.as_tensor(encoded, dtype=dtype).to(device)
                # the same seed for every part: all rows have the same weight draws
                draws = draw_jointly(self.model, x, draws_each, as_generator(fold_in(self.seed, "predict")))
                _check_finite(draws.f, start)
                if networks_of is not None:
                    draws = _select_networks(draws, networks_of[:, start : start + PREDICTED_AT_ONCE])
                chunk: AnyPredictive = predictive(draws, likelihood, **units)
                of_row = None
                if fold is not None:
                    first = np.asarray(fold, dtype=np.int64)[0, start : start + PREDICTED_AT_ONCE]
                    of_row = torch.as_tensor(first, device="cpu")
                if isinstance(chunk, NumberPredictive):
                    chunk = self._complete(chunk, x, units, of_row)
                elif isinstance(chunk, ClassPredictive) and self.trees is not None:
                    chunk = chunk.with_log_p(self.trees.pool(chunk.log_p, x, of_row))
            yield chunk

    def _complete(
        self, prediction: NumberPredictive, x: Tensor, units: Mapping[str, Any], of_row: Tensor | None
    ) -> NumberPredictive:
        """Add the laws of the residual and the atoms of the target to a prediction of encoded rows (N, D).

        For out-of-fold predictions `of_row`, (N,), selects the networks that were not fitted to a row.
        """
        if self.recalibration is not None:
            prediction = _recalibrate(prediction, x, self.recalibration, units, of_row)
        if self.hurdle is None:
            return prediction
        assert isinstance(self.target, TargetScale)
        return HurdlePredictive.of(prediction, self.target.hurdle, self.hurdle.log_mass(x.cpu(), of_row))

    def predict_interval(
        self, X: Any, level: float = 0.9, guarantee: str | None = None, column: str | None = None
    ) -> tuple[Array, Array]:
        """Return the bounds of a prediction interval of each row, shape (N,) or (N, T).

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        level, guarantee, column
            As in :meth:`~fathomless.estimators.tasks.BaseRegressor.predict_interval`.

        Raises
        ------
        DataError
            As there, and if the target is a class.
        """
        if not isinstance(self.target, TargetScale):
            raise DataError("prediction intervals are for numeric targets; the target is a class")
        if guarantee is None and column is None:
            central = self.predict_dist(X)
            assert isinstance(central, NumberPredictive)
            low, high = central.interval(level)
            return low.numpy(), high.numpy()
        with name_errors(self.name):
            level = checks.interval("level", level, 0.0, 1.0, closed=False)
            scores, place = self._conformal_scores(guarantee, column)
            parts = [
                self._conformal_part(
                    scores, self.encode(take(X, slice(start, start + PREDICTED_AT_ONCE))), level, place
                )
                for start in range(0, max(1, len(X)), PREDICTED_AT_ONCE)
            ]
        both = np.concatenate(parts, 1)  # (2, N, T)
        if self.target.transform is not None:
            both = self.target.transform.invert(torch.from_numpy(both)).numpy()
        if self.target.ndim == 1:
            both = both[:, :, 0]
        return both[0], both[1]

    def ood_p_values(self, X: Any) -> Array:
        """Return the p-value of each row, (N,), for the hypothesis that it is from the distribution of training rows.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.

        Raises
        ------
        DataError
            If rows do not match the training table, or the fit has no distribution of the training rows.
        """
        if self.training is None:
            raise DataError(
                "there is no distribution of the training rows: the estimator was saved by an earlier version, or "
                "fitted to fewer than 50 rows (of the last part, by partial_fit), to a stream, or to inputs that are "
                "no table. Fit it again to a table in memory with 50 rows or more; for a density, use score_samples"
            )
        schema = self.schema.plain.unlimited_constants
        starts = range(0, max(1, len(X)), PREDICTED_AT_ONCE)
        with name_errors(self.name):
            pieces = (take(X, slice(start, start + PREDICTED_AT_ONCE)) for start in starts)
            encoded = (self.task.encode_rows(schema, piece) for piece in pieces)
            parts = (torch.as_tensor(x, dtype=self.model.dtype, device="cpu") for x in encoded)
            return np.concatenate([self.training.p_values(part) for part in parts])

    def _conformal_scores(self, guarantee: str | None, column: str | None) -> tuple[ConformalScores, int | None]:
        """Return the conformal scores, and the index of the column that defines the groups."""
        if guarantee is None:
            raise DataError(f"column={column!r} was given without a guarantee; set guarantee='group', or leave it out")
        checks.choice("guarantee", guarantee, GUARANTEES)
        if self.conformal is None:
            raise DataError(
                f"guarantee={guarantee!r} was given, but there are no scores of rows that a network was not trained "
                "on: the estimator was saved by an earlier version, or fitted without out-of-fold and held-out rows "
                "or to censored targets, or its posterior was fitted to all rows. Fit it again, with cv above 1 or a "
                "validation_fraction above 0 and at least 60 rows, and without weights='hmc' and censored; or use "
                "guarantee=None"
            )
        if guarantee == "marginal":
            if column is not None:
                raise DataError(f"column={column!r} was given with guarantee='marginal'; use guarantee='group'")
            return self.conformal, None
        if column is None:
            raise DataError(
                "guarantee='group' was given without a column; set column to the name of a column of categories"
            )
        return self.conformal, self.conformal.column(column)

    def _conformal_part(self, scores: ConformalScores, x: Array, level: float, place: int | None) -> Array:
        """Return the bounds of conformal intervals of encoded rows, (2, N, T)."""
        units = self.task.units(self.target)
        with memory.explain_out_of_memory("predict fewer rows at once, or set device='cpu'"), without_gradients():
            rows = torch.as_tensor(x, dtype=self.model.dtype).to(self.model.device)
            settings = (scores.draws, self.seed, units["shift"], units["scale"])
            moments = [unit_moments(self.model, of, self.likelihood, rows, *settings) for of in scores.networks]
        mean, std = (np.stack([pair[i] for pair in moments]) for i in range(2))  # (U, N, T)
        if place is None:
            _warn_infinite(scores, level, "the fit")
            return np.stack(interval_bounds(scores, mean, std, level))
        codes = read_categories(self.schema, x)[:, place]
        out = np.empty((2, *mean.shape[1:]))
        for code in np.unique(codes).tolist():
            chosen = codes == code
            of_category = scores.of_category(place, code)
            name = category_name(self.schema, scores.columns[place], code)
            _warn_infinite(of_category, level, f"column {scores.columns[place]!r}, {name}")
            out[:, chosen] = interval_bounds(of_category, mean[:, chosen], std[:, chosen], level)
        return out

    def check_folds(self, x: Array, fold: Any, part: slice) -> Array:
        """Return encoded rows (n, D), the part of the rows with folds (R, N), after a check.

        Raises
        ------
        DataError
            If rows of the fit have folds of other rows.
        """
        if fold is None or self.rows is None or self.fold is None or self.fold.shape[1] != self.rows.count:
            return x
        given = np.asarray(unmask(fold))[:, part].astype(np.int64)
        hashes = hash_rows(select_plain(self.schema, x))
        misplaced = self.rows.find_misplaced(self.fold.astype(np.int64), hashes, given)
        if misplaced.any():
            raise DataError(
                f"{rows_of(misplaced)} are rows of the fit, but have folds of other rows, so that networks would "
                "predict rows that they were trained on; give the columns of fold_ in the order of the rows of X"
            )
        return x

    def _held_out_networks(self, fold: Any, count: int) -> Array | None:
        """Return the numbers of the networks that were not trained on each row, (R, N)."""
        if fold is None:
            return None
        folds = np.asarray(unmask(fold))
        if self.fold is None or not isinstance(self.model, Ensemble):
            raise DataError("fold was given, but no networks were cross-fitted; leave it out")
        members = self.fold.max(1, keepdims=True) + 1  # per partition, since networks that diverged are left out
        if folds.shape != (len(members), count) or folds.min(initial=0) < 0 or np.any(folds >= members):
            raise DataError(
                f"fold has shape {folds.shape}; for these {count} rows ({len(members)}, {count}) is allowed, with "
                f"numbers from 0 to {members.min() - 1}: rows of fold -1 were in all training sets, leave them out"
            )
        return cast(Array, folds + np.cumsum(members, 0) - members)


def _warn_infinite(scores: ConformalScores, level: float, name: str) -> None:
    """Warn if there are too few scores for a level, so that the bounds are infinite."""
    count = float(scores.weight.sum())
    needed = level / (1.0 - level)
    if count < needed * (1.0 - 1e-9):
        warnings.warn(
            f"the intervals of level {level:g} are infinite for rows of {name}: a guarantee needs at least "
            f"{needed:.6g} out-of-fold rows, and there are {count:.6g}. Lower the level, or collect more rows",
            DataWarning,
            stacklevel=5,
        )


def concatenate_parts(parts: Iterator[AnyPredictive], rows: int) -> AnyPredictive:
    """Concatenate the predictive distributions of parts; raise DataError if the result does not fit into memory."""
    chunks: list[AnyPredictive] = []
    for chunk in parts:
        if not chunks:  # the first part gives the size of the rest; concatenation needs each number twice
            memory.require(
                2.0 * chunk.nbytes / len(chunk) * rows,
                f"the predictive distribution of {rows:,} rows",
                lambda share: f"about {int(share * rows):,} rows fit: predict in parts, or lower weight_draws",
            )
        chunks.append(chunk)
    return cast(AnyPredictive, concatenate(chunks))


@dataclass(frozen=True, eq=False)
class Restored:
    """Fitted state of an estimator, restored from a folder.

    Attributes
    ----------
    predictor : Predictor
        Networks and encodings.
    history : list of dict
        History of the training.
    n_iter : int
        Number of epochs.
    score : float or None
        Validation score, in nats per row of the encoded targets.
    held_out : ndarray of int
        Indices of the held-out rows.
    columns : int
        Number of columns C.
    names : tuple of str
        Names of the columns; empty if the table had none.
    device : str
        Device of the fit.
    """

    predictor: Predictor
    history: list[dict[str, float]]
    n_iter: int
    score: float | None
    held_out: Array
    columns: int
    names: tuple[str, ...]
    device: str


def restore(saved: io.Saved, name: str, networks: Networks, task: Task) -> Restored:
    """Restore the fitted state from a folder.

    Parameters
    ----------
    saved : Saved
        Tensors and manifest of the folder.
    name : str
        Name of the estimator's class.
    networks : Networks
        Options of the fit.
    task : Task
        Encoding of rows and targets.

    Raises
    ------
    DataError
        If parts of the manifest are inconsistent.
    """
    meta = saved.meta
    schema = Schema.from_json(meta["schema"])
    names = [column.name for column in schema.columns]
    if meta["n_features_in"] != len(names) or meta["feature_names_in"] not in ([], names):
        raise DataError("its columns differ from those of its schema")
    several = isinstance(meta["target"], dict) and "indicators" in meta["target"]
    target: Target = (Indicators if several else task.target_class).from_json(meta["target"])
    dtype = {"float32": torch.float32, "float64": torch.float64}[meta["dtype"]]
    try:
        device = networks._device()
    except DataError:  # the device of the fit is not available here
        networks.device = "auto"
        device = networks._device()
    likelihood = task.likelihood(target, saved.tensors).to(device, dtype)
    networks._check_saved(meta["layout"], {name: t.shape for name, t in saved.tensors.items()})
    diagnostics = networks.diagnostics_class.from_json(nonfinite.decode_nonfinite(meta.get("weighing", {})))
    model = _build_models(saved, networks, diagnostics, task.width(schema), likelihood, dtype)
    rebuild(model, meta["layout"])
    training = read_training_distribution(_under("training/", saved.tensors), len(schema.plain_features))
    recalibration, hurdle, trees = None, None, None
    if isinstance(target, ClassLabels):
        trees = read_tree_pool(_under("trees/", saved.tensors), len(target.labels), task.width(schema))
    if isinstance(target, TargetScale):
        with bounds.limit_parameters(sum(tensor.numel() for tensor in saved.tensors.values())):
            recalibration = read_recalibration(
                _under("recalibration/", saved.tensors), len(target.mean), task.width(schema)
            )
            hurdle = read_atom_networks(_under("hurdle/", saved.tensors), len(target.hurdle), task.width(schema))
    model.to(device)  # after rebuild, which adds parts
    for prefix, module in (("model/", model), ("likelihood/", likelihood)):
        module.load_state_dict(_under(prefix, saved.tensors))
        module.eval()
    return Restored(
        Predictor(
            name=name,
            task=task,
            schema=schema,
            target=target,
            model=model,
            likelihood=likelihood,
            structure=model.structure(),
            diagnostics=diagnostics,
            seed=meta["seed"],
            weight_draws=networks.weight_draws,
            fold=saved.tensors["fold"].numpy() if "fold" in saved.tensors else None,
            rows=read_given_rows(meta, saved.tensors),
            recalibration=recalibration,
            hurdle=hurdle,
            conformal=_restore_conformal(saved, schema, target, model),
            trees=trees,
            training=training,
        ),
        history=nonfinite.decode_nonfinite(meta["history"]),
        n_iter=meta["n_iter"],
        score=nonfinite.decode_nonfinite(meta["validation_score"]),
        held_out=saved.tensors["held_out"].numpy(),
        columns=meta["n_features_in"],
        names=tuple(meta["feature_names_in"]),
        device=str(meta.get("device", "cpu")),
    )


@contextlib.contextmanager
def _number_rows_from(start: int) -> Iterator[None]:
    """Name the first row of a part of a table in an error about its rows."""
    try:
        yield
    except DataError as error:
        if not start:
            raise
        raise DataError(f"{error} (in the rows from {start} on, and counted from there)") from error


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _restore_conformal(saved: io.Saved, schema: Schema, target: Target, model: Model) -> ConformalScores | None:
    """Return the conformal scores of a folder; None for estimators without scores, or of earlier versions."""
    if "conformal" not in saved.meta:
        return None
    tensors = _under("conformal/", saved.tensors)
    targets = len(cast(TargetScale, target).mean)
    scores = ConformalScores.from_saved(tensors, saved.meta["conformal"], targets, len(list_members(model)))
    if scores.columns != category_columns(schema):
        raise DataError("its conformal scores have other columns than its schema")
    return scores


def _build_models(
    saved: io.Saved,
    networks: Networks,
    diagnostics: Diagnostics,
    inputs: int,
    likelihood: Likelihood,
    dtype: torch.dtype,
) -> Model:
    """Build the networks of a folder, with their initial weights."""
    layout, seed = saved.meta["layout"], saved.meta["seed"]
    members = layout.get("members", [{}])  # only an ensemble has several
    kinds: Sequence[Candidate] = ()
    chosen: Mapping[str, Any] = {}
    if isinstance(diagnostics, CrossFitDiagnostics):
        kinds = diagnostics.kinds
        chosen = choose_options(diagnostics.trials)
    kinds = kinds or [Candidate(options=dict(chosen), weight=1.0, networks=len(members))]
    if sum(kind.networks for kind in kinds) != len(members):
        raise DataError(f"its candidate architectures do not have {len(members)} networks in total")
    known = {option.name for option in options_of(type(networks))}
    if unknown := {name for kind in kinds for name in kind.options} - known:
        raise DataError(f"there is no option {min(unknown)!r}")
    # a manifest must not build networks with more numbers than the folder has
    numbers = sum(tensor.numel() for tensor in saved.tensors.values())
    bounds.check_counts(layout, numbers)
    built = []
    with bounds.limit_parameters(numbers):
        for kind in kinds:
            candidate = networks._copy_with(kind.options)
            built += [candidate._build_model(inputs, likelihood, seed, dtype) for _ in range(kind.networks)]
    return Ensemble(built) if "members" in layout else built[0]


def read_options(
    saved: io.Saved, path: str | PathLike[str], kind: type, functions: Mapping[str, Any], name: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the encoded options of a fit, and those that were changed afterwards.

    Raises
    ------
    FileError
        If they are not mappings.
    DataError
        If an option was a function that is not in `functions`.
    """
    options, changed = saved.meta.get("options", {}), saved.meta.get("changed", {})
    if not isinstance(options, dict) or not isinstance(changed, dict):
        raise FileError(f"{path} was altered: its options are not a mapping; restore it from a backup or save again")
    options, changed = rename_saved(kind, options, changed)
    name = name or kind.__name__
    values = [*options.items(), *changed.items()]
    missing = {option for option, value in values if value == saving.FUNCTION} - set(functions)
    if missing:
        raise DataError(
            f"the estimator in {path} was fitted with a function as {', '.join(sorted(missing))}; pass it again: "
            f"{name}.load(path, {', '.join(f'{option}=...' for option in sorted(missing))})"
        )
    return options, changed


def load_predictor(path: str | PathLike[str], name: str, family: type[Networks], task: str, noise: bool) -> Predictor:
    """Load the predictor of a saved estimator; predictions are bit-identical to those of the estimator.

    Parameters
    ----------
    path : path
        Folder of the saved estimator.
    name : str
        Name of the estimator's class.
    family : type
        Class of the networks of the family.
    task : {"classification", "regression"}
        Task of the estimator.
    noise : bool
        True if the distribution of the noise is an option of regressors.

    Raises
    ------
    FileError
        If the folder is missing, damaged, altered, of another kind, or written by a newer version.
    DataError
        If an option was a function.
    """
    saved = io.load(path, kinds={name})
    options, changed = read_options(saved, path, family, {}, name)
    with saving.convert_errors(path), enable_gradients(), building(0):
        names = [option.name for option in options_of(family)]
        known = saving.update_names(options, names)
        networks = family(**saving.decode({k: v for k, v in known.items() if k in names}, family._saved_values()))
        networks._check_options()
        law = {"law": options["likelihood"], "noise": options["noise"]} if noise and task == "regression" else {}
        encoding: Task = ClassTask() if task == "classification" else NumberTask(**law)
        predictor = restore(saved, name, networks, encoding).predictor
        draws = changed.get("weight_draws", networks.weight_draws)
        return replace(predictor, weight_draws=checks.whole("weight_draws", draws, least=1))


@contextlib.contextmanager
def name_errors(name: str) -> Iterator[None]:
    """Add the name of an estimator to error messages."""
    try:
        yield
    except (ValueError, DivergenceError) as error:  # scikit-learn raises ValueError, and DataError is a subclass of it
        if len(error.args) and name not in str(error):
            error.args = (f"{name}: {error}", *error.args[1:])
        raise


def _recalibrate(
    prediction: NumberPredictive,
    x: Tensor,
    recalibration: Recalibration,
    units: Mapping[str, Any],
    fold: Tensor | None,
) -> NumberPredictive:
    """Add the laws of the standardised residual to a prediction; see :meth:`Predictor._complete`.

    `units` are those of :meth:`~fathomless.estimators.encoding.NumberTask.units`.
    """
    shift, scale = (torch.as_tensor(units[name], dtype=torch.float64, device="cpu") for name in ("shift", "scale"))
    continuous = prediction.continuous
    law = continuous.network_mixture
    laws = recalibration.mixtures(x, (law.mean - shift) / scale, law.std / scale, fold, (shift, scale))
    return prediction.with_continuous(replace(continuous, share=recalibration.share, residual_laws=laws))


def _select_networks(draws: Draws, numbers: Array) -> Draws:
    """Select the draws of one network per row and partition, given the numbers of the networks, (R, B).

    The networks of a partition have the same law over structure, so that their draws have equal weights.
    """
    assert draws.network is not None
    outputs: list[Tensor] = []
    log_weights, structures = [], []
    for line in torch.as_tensor(numbers, device=draws.f.device):
        networks, place = line.unique(return_inverse=True)
        of_networks = [draws.f[draws.network == number] for number in networks]  # (S, B, K)
        first = draws.network == networks[0] if len(networks) else draws.network == 0
        f = torch.stack(of_networks, 2)[:, torch.arange(len(line)), place] if of_networks else draws.f[first]
        outputs.append(f)
        log_weights.append(draws.log_weight[first])
        structures.append(draws.structure[first])
    log_weight = torch.cat(log_weights)
    network = None
    if len(outputs) > 1:
        network = torch.cat([torch.full_like(structure, r) for r, structure in enumerate(structures)])
    log_weight = log_weight - torch.logsumexp(log_weight, 0)
    return Draws(torch.cat(outputs), log_weight, torch.cat(structures), {}, network=network)


def _check_finite(f: Tensor, start: int) -> None:
    """Check that the outputs of drawn networks, shape (S, B, K), are finite."""
    bad = ~f.isfinite().all(2).all(0)  # (B,)
    if bool(bad.any()):
        raise DataError(
            f"row {start + int(bad.int().argmax())} of X is so far from the training data that the network's output "
            f"is not finite in {str(f.dtype).removeprefix('torch.')}; check the units of its columns"
        )
