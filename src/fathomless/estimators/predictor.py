"""Predictions of fitted networks, without scikit-learn: a value that an estimator has, and that a folder holds."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.frames import take
from fathomless.data.schema import Schema
from fathomless.data.targets import Indicators, Target
from fathomless.estimators import saving
from fathomless.estimators.encoding import ClassTask, NumberTask, Task
from fathomless.estimators.networks import Networks
from fathomless.estimators.options import options_of
from fathomless.estimators.renamed import from_saved
from fathomless.posterior.capabilities import rebuild
from fathomless.posterior.distributions import ClassPredictive, ContinuousPredictive
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.fit_diagnostics import Candidate, CrossFitDiagnostics, Diagnostics
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import concatenate, predictive
from fathomless.posterior.structure import ListedPosterior, Structure
from fathomless.system import bounds, checks, io, memory, nonfinite
from fathomless.system.errors import DataError, DivergenceError, FileError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator, building, fold_in
from fathomless.system.torch_state import enable_gradients, without_gradients

__all__ = [
    "PREDICTED_AT_ONCE",
    "AnyPredictive",
    "Array",
    "Predictor",
    "Restored",
    "joined",
    "load_predictor",
    "named",
    "read_options",
    "restore",
]

#: NumPy arrays of any type.
Array = npt.NDArray[Any]

PREDICTED_AT_ONCE = 16384  #: rows

#: The predictive distribution of some task.
AnyPredictive: TypeAlias = ClassPredictive | ContinuousPredictive | IndicatorPredictive


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
        Weight draws of a prediction, where weights are drawn.
    fold : ndarray of int, shape (R, N), optional
        Fold of each row of the training, if networks were cross-fitted.
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

    def predict_dist(self, X: Any, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of every row: a mixture over structures and weight draws.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        fold : array of int, shape (R, N), optional
            Fold of each row, which is predicted by the cross-fitted networks alone that were kept from it.

        Raises
        ------
        DataError
            For rows that differ from those of the training, and folds that there are not.
        """
        with named(self.name):
            return joined(self.predict_parts(lambda part: self.encode(take(X, part)), len(X), fold), len(X))

    def encode(self, X: Any) -> Array:
        """Encode the predictors of a table, shape (N, D)."""
        return self.task.predictors(self.schema, X)

    def predict_parts(self, encoded: Callable[[slice], Array], count: int, fold: Any = None) -> Iterator[AnyPredictive]:
        """Predict rows part by part, with the same weight draws for all parts.

        Parameters
        ----------
        encoded : callable
            Encoded rows (n, D) of a slice.
        count : int
            Number of all rows N.
        fold : array of int, shape (R, N), optional
            As in :meth:`predict_dist`.
        """
        networks_of = self._kept_from(fold, count)
        device, likelihood, told = self.model.device, self.likelihood, self.diagnostics
        if networks_of is not None and isinstance(told, CrossFitDiagnostics) and told.narrowing:
            likelihood = copy.deepcopy(likelihood)  # that of single networks
            factor = 1.0 / torch.tensor(told.narrowing, dtype=torch.float32, device=device)
            likelihood.noise.rescale(factor)  # type: ignore[operator, union-attr]
        draws_each = checks.whole("weight_draws", self.weight_draws) if self.model.stochastic else self.weight_draws
        passes = draws_each if self.model.stochastic else 1
        networks = len(self.structure.names) if isinstance(self.structure, ListedPosterior) else 1
        networks *= len(list_members(self.model))
        memory.require(
            2.0 * 8.0 * passes * networks * min(count, PREDICTED_AT_ONCE) * likelihood.outputs,
            f"weight_draws={passes:,} of {min(count, PREDICTED_AT_ONCE):,} rows",
            lambda share: f"weight_draws={max(1, int(share * passes)):,} fits",
        )
        units = self.task.units(self.target)
        for start in range(0, max(1, count), PREDICTED_AT_ONCE):
            found = encoded(slice(start, start + PREDICTED_AT_ONCE))
            # not around the yield: the mode is the caller's there
            with memory.explain_out_of_memory("predict fewer rows at once, or set device='cpu'"), without_gradients():
                x = torch.as_tensor(found, dtype=self.model.dtype).to(device)
                draws = self.model.draw(x, draws_each, as_generator(fold_in(self.seed, "predict")))
                _check_finite(draws.f, start)
                if networks_of is not None:
                    draws = _of_networks(draws, networks_of[:, start : start + PREDICTED_AT_ONCE])
                chunk = predictive(draws, likelihood, **units)
            yield chunk

    def _kept_from(self, fold: Any, count: int) -> Array | None:
        """Return the numbers of the networks that have not seen each row, (R, N)."""
        if fold is None:
            return None
        given = np.asarray(unmask(fold))
        if self.fold is None or not isinstance(self.model, Ensemble):
            raise DataError("fold was given, and no networks were cross-fitted; leave it out")
        members = self.fold.max(1, keepdims=True) + 1  # of each partition, since one that diverged is left out
        if given.shape != (len(members), count) or given.min(initial=0) < 0 or np.any(given >= members):
            raise DataError(
                f"fold has shape {given.shape}; for these {count} rows ({len(members)}, {count}) is allowed, with "
                f"numbers from 0 to {members.min() - 1}: rows of fold -1 were seen by all networks, leave them out"
            )
        return cast(Array, given + np.cumsum(members, 0) - members)


def joined(parts: Iterator[AnyPredictive], rows: int) -> AnyPredictive:
    """Join the predictive distributions of parts of so many rows; DataError if they do not fit into memory."""
    chunks: list[AnyPredictive] = []
    for chunk in parts:
        if not chunks:  # its size tells that of the rest; joining needs each number twice
            memory.require(
                2.0 * chunk.nbytes / len(chunk) * rows,
                f"the predictive distribution of {rows:,} rows",
                lambda share: f"about {int(share * rows):,} rows fit: predict part by part, or lower weight_draws",
            )
        chunks.append(chunk)
    return cast(AnyPredictive, concatenate(chunks))


@dataclass(frozen=True, eq=False)
class Restored:
    """Fitted state of an estimator, as a folder holds it.

    Attributes
    ----------
    predictor : Predictor
        Networks and encodings.
    history : list of dict
        History of the training.
    n_iter : int
        Epochs.
    score : float or None
        Validation score, in nats per row of the encoded targets.
    held_out : ndarray of int
        Numbers of the rows that were held out.
    columns : int
        Number of columns C.
    names : tuple of str
        Their names; empty if the table had none.
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
    """Rebuild the fitted state that a folder holds.

    Parameters
    ----------
    saved : Saved
        Tensors and manifest.
    name : str
        Name of the estimator's class.
    networks : Networks
        Options of the fit.
    task : Task
        Encoding of rows and targets.

    Raises
    ------
    DataError
        For parts that do not belong together.
    """
    meta = saved.meta
    schema = Schema.from_json(meta["schema"])
    names = [column.name for column in schema.columns]
    if meta["n_features_in"] != len(names) or meta["feature_names_in"] not in ([], names):
        raise DataError("its columns are not those of its schema")
    several = isinstance(meta["target"], dict) and "indicators" in meta["target"]
    target: Target = (Indicators if several else task.encodes).from_json(meta["target"])
    dtype = {"float32": torch.float32, "float64": torch.float64}[meta["dtype"]]
    try:
        device = networks._device()
    except DataError:  # fitted on another machine
        networks.device = "auto"
        device = networks._device()
    likelihood = task.likelihood(target, saved.tensors).to(device, dtype)
    networks._check_saved(meta["layout"], {name: t.shape for name, t in saved.tensors.items()})
    diagnostics = networks.diagnostics_class.from_json(nonfinite.decode_nonfinite(meta.get("weighing", {})))
    model = _models(saved, networks, diagnostics, task.width(schema), likelihood, dtype)
    rebuild(model, meta["layout"])
    model.to(device)  # with all that was rebuilt
    for prefix, module in (("model/", model), ("likelihood/", likelihood)):
        state = {name.removeprefix(prefix): t for name, t in saved.tensors.items() if name.startswith(prefix)}
        module.load_state_dict(state)
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
        ),
        history=nonfinite.decode_nonfinite(meta["history"]),
        n_iter=meta["n_iter"],
        score=nonfinite.decode_nonfinite(meta["validation_score"]),
        held_out=saved.tensors["held_out"].numpy(),
        columns=meta["n_features_in"],
        names=tuple(meta["feature_names_in"]),
        device=str(meta.get("device", "cpu")),
    )


def _models(
    saved: io.Saved,
    networks: Networks,
    diagnostics: Diagnostics,
    inputs: int,
    likelihood: Likelihood,
    dtype: torch.dtype,
) -> Model:
    """Build the networks that a folder holds, with the numbers that they start with."""
    layout, seed = saved.meta["layout"], saved.meta["seed"]
    members = layout.get("members", [{}])  # only an ensemble has several
    kinds: Sequence[Candidate] = diagnostics.kinds if isinstance(diagnostics, CrossFitDiagnostics) else ()
    kinds = kinds or [Candidate(options={}, weight=1.0, networks=len(members))]
    if sum(kind.networks for kind in kinds) != len(members):
        raise DataError(f"its kinds do not have {len(members)} networks between them")
    if unknown := {name for kind in kinds for name in kind.options} - {one.name for one in options_of(type(networks))}:
        raise DataError(f"there is no option {min(unknown)!r}")
    numbers, built = sum(tensor.numel() for tensor in saved.tensors.values()), []
    bounds.check_counts(layout, numbers)
    with bounds.limit_parameters(numbers):
        for kind in kinds:
            own = networks._with(kind.options)
            built += [own._build_model(inputs, likelihood, seed, dtype) for _ in range(kind.networks)]
    return Ensemble(built) if "members" in layout else built[0]


def read_options(
    saved: io.Saved, path: str | PathLike[str], kind: type, functions: Mapping[str, Any], name: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the encoded options of a fit, and those that were changed afterwards.

    Raises
    ------
    FileError
        If they are no mappings.
    DataError
        If an option was a function that is not among `functions`.
    """
    given, changed = saved.meta.get("options", {}), saved.meta.get("changed", {})
    if not isinstance(given, dict) or not isinstance(changed, dict):
        raise FileError(f"{path} was altered: its options are no mapping; restore it from a backup or save again")
    given, changed = from_saved(kind, given, changed)
    name, every = name or kind.__name__, [*given.items(), *changed.items()]
    lacking = {option for option, value in every if value == saving.FUNCTION} - set(functions)
    if lacking:
        raise DataError(
            f"the estimator in {path} was fitted with a function as {', '.join(sorted(lacking))}; give it again: "
            f"{name}.load(path, {', '.join(f'{option}=...' for option in sorted(lacking))})"
        )
    return given, changed


def load_predictor(path: str | PathLike[str], name: str, family: type[Networks], task: str, noise: bool) -> Predictor:
    """Load the predictor of a saved estimator; predictions are those of the estimator, to the byte.

    Parameters
    ----------
    path : path
        The folder.
    name : str
        Name of the estimator's class.
    family : type
        Networks of the family.
    task : {"classification", "regression"}
        Task of the estimator.
    noise : bool
        True if the law of the noise of regressions is an option.

    Raises
    ------
    FileError
        If the folder is missing, damaged, altered, foreign, or written by a newer version.
    DataError
        If an option was a function.
    """
    saved = io.load(path, kinds={name})
    given, changed = read_options(saved, path, family, {}, name)
    with saving.foreign(path), enable_gradients(), building(0):
        own = [option.name for option in options_of(family)]
        known = saving.current(given, own)
        networks = family(**saving.decoded({k: v for k, v in known.items() if k in own}, family._saved_values()))
        networks._check_options()
        law = {"law": given["likelihood"], "noise": given["noise"]} if noise and task == "regression" else {}
        encoded: Task = ClassTask() if task == "classification" else NumberTask(**law)
        predictor = restore(saved, name, networks, encoded).predictor
        draws = changed.get("weight_draws", networks.weight_draws)
        return replace(predictor, weight_draws=checks.whole("weight_draws", draws, least=1))


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Add the name of an estimator to errors."""
    try:
        yield
    except (ValueError, DivergenceError) as error:  # what scikit-learn refuses is a ValueError, and so is a DataError
        if len(error.args) and name not in str(error):
            error.args = (f"{name}: {error}", *error.args[1:])
        raise


def _of_networks(draws: Draws, numbers: Array) -> Draws:
    """Keep, for each row, the draws of some networks: numbers (R, B); those of one line have one law over structure."""
    assert draws.network is not None
    lines: list[Tensor] = []
    log_weight, structure = [], []
    for line in torch.as_tensor(numbers, device=draws.f.device):
        chosen, place = line.unique(return_inverse=True)
        each = [draws.f[draws.network == number] for number in chosen]  # (S, B, K)
        own = draws.network == chosen[0] if len(chosen) else draws.network == 0
        lines.append(torch.stack(each, 2)[:, torch.arange(len(line)), place] if each else draws.f[own])
        log_weight.append(draws.log_weight[own])
        structure.append(draws.structure[own])
    both = torch.cat(log_weight)
    network = torch.cat([torch.full_like(own, r) for r, own in enumerate(structure)]) if len(lines) > 1 else None
    return Draws(torch.cat(lines), both - torch.logsumexp(both, 0), torch.cat(structure), {}, network=network)


def _check_finite(f: Tensor, start: int) -> None:
    """Refuse outputs of drawn networks, shape (S, B, K), that are not finite."""
    bad = ~f.isfinite().all(2).all(0)  # (B,)
    if bool(bad.any()):
        raise DataError(
            f"row {start + int(bad.int().argmax())} of X is so far from the training data that the network's output "
            f"is not finite in {str(f.dtype).removeprefix('torch.')}; check the units of its columns"
        )
