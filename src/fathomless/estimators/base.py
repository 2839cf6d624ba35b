"""The scikit-learn border, for every family: arrays or data frames in, calibrated predictions out.

An estimator is thin: it prepares a table, asks its family for a posterior, and shows it. How a posterior is found it
does not know: that is :mod:`fathomless.estimators.variational` or :mod:`fathomless.estimators.chains`. What a target
is, is :mod:`fathomless.estimators.tasks`.
"""

import contextlib
import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils import Tags

from fathomless.data.folds import without
from fathomless.data.targets import TargetScale
from fathomless.estimators import saving
from fathomless.estimators.fitted import FittedPredictor, named, require_fitted
from fathomless.estimators.options import GOING_ON, OF_A_RUN, options_of
from fathomless.estimators.preparation import Prepared, TableReader
from fathomless.inference.distributed import called
from fathomless.inference.run import Fitted
from fathomless.posterior.capabilities import blueprint_of
from fathomless.posterior.ensemble import Ensemble
from fathomless.system import checks, io, memory
from fathomless.system.errors import DataError
from fathomless.system.progress import Lines, Progress, Silent, Terminal
from fathomless.system.surroundings import recording

__all__ = ["Estimator", "Predictor"]


class Estimator(TableReader, ABC):
    """What all estimators share: fitting, and files.

    Attributes
    ----------
    structure_ : Structure
        Posterior over structure, with a summary.
    history_ : list of dict
        What happened in training: see :class:`~fathomless.inference.run.Run`.
    n_iter_ : int
        Epochs done.
    validation_score_ : float or None
        Mean log predictive density of rows that a network was not fitted to, in nats per row and in the units of the
        target. Of cross-fitted networks: of all rows, each under the networks that have not seen it, with a posterior
        over structure and a noise that were fitted without its fold. Of one network: of the held-out rows under what
        predicts, heads with a posterior and networks that were drawn after the training included; the rows chose the
        epoch too, and noise and law are those that were fitted without the row's part of ten. Of sampled weights: the
        mean leave-one-out density, copies of a row left out together, or None if it cannot be estimated.
    held_out_ : ndarray of int
        Numbers of the rows that were held out; of cross-fitted networks all rows, each of them from one network.
    weighing_ : dict
        What was decided by rows that the networks had not seen, as plain JSON: what the posterior over structure rests
        on (:func:`~fathomless.estimators.crossfitting.weighed`), the weights of kinds of network, how much narrower
        the noise of their average is, the temperature of a sparse one; empty if nothing was. If rows of the table are
        equal, "repeats" says how many and whether they were treated as observations or as copies.
    relevance_ : dict of str to dict
        For every encoded column, what the posterior says of its use, where weights were sampled; else empty.
    model_, likelihood_ : nn.Module
        The fitted network and p(y | f).
    device_ : str
        Where it was fitted: "cpu", or the kind of an accelerator and its name.
    goes_on_ : bool
        Whether a longer fit with the same `checkpoint` goes on from where this one has ended, to the bytes of one long
        fit. False of what was loaded.
    """

    goes_on_ = False

    shown: ClassVar[Mapping[str, str]] = {}  # columns of the history that a progress bar shows, with their words

    def __new__(cls, *given: Any, **options: Any) -> Self:
        """Say which option may be meant by one that there is not, as Python does from 3.13 on."""
        known = {*cls._get_param_names(), *(option.name for option in options_of(cls))}
        for name in options.keys() - known:
            if near := get_close_matches(name, known, 1):
                raise TypeError(
                    f"{cls.__name__}() got an unexpected keyword argument {name!r}. Did you mean {near[0]!r}?"
                )
        new: Self = super().__new__(cls)
        return new

    @abstractmethod
    def _warn(self, fitted: Fitted) -> None:
        """Warn of what an inference did not reach."""

    # ---- what an inference says

    @abstractmethod
    def _infer(self, prepared: Prepared) -> Fitted:
        """Find the posterior."""

    # ---- fitting

    def _fit(self, prepare: Callable[[], Prepared], infer: Callable[[Prepared], Fitted] | None = None) -> Self:
        """Read a table, find the posterior, show it; what fails leaves the estimator as it was."""
        with recording(), _restored_on_error(self), named(self), memory.told(_SMALLER):
            prepared = prepare()
            fitted = (infer or self._infer)(prepared)
            self._take_over(prepared, fitted)
        if infer is None:  # and not a step on the way
            self._warn(fitted)
        return self

    def _display(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> Progress:
        """Return what `verbose` asks to be shown of a fit, in some unit; with the words for what is shown."""
        level = checks.whole("verbose", self.verbose, least=0)
        words = self.shown if shown is None else shown
        return Silent() if level == 0 else Terminal(unit, words) if level == 1 else Lines(unit, words)

    def _require_as_fitted(self) -> None:
        """Refuse options that would make another network than the one that the fit goes on from."""
        before, now = self._plain(self._fitted_with), self._options()
        changed = [name for name in now if name not in GOING_ON and now[name] != before[name]]
        if changed:
            given = ", ".join(f"{name}={getattr(self, name)!r} (was {self._fitted_with[name]!r})" for name in changed)
            raise DataError(
                f"the fit goes on with a network that was built by other options, and {given} was given; set it back, "
                "or fit a new estimator"
            )

    def _lasting(self) -> dict[str, Any]:
        """Return the options that a fit depends on, as plain JSON."""
        return {name: value for name, value in self._options().items() if name not in OF_A_RUN}

    def _take_over(self, prepared: Prepared, fitted: Fitted) -> None:
        """Show what an inference made of a table."""
        self.schema_, self.target_ = prepared.schema, prepared.target
        self.held_out_, self.seed_ = prepared.held_out, prepared.seed
        self.model_, self.likelihood_ = fitted.model, fitted.likelihood
        self.history_, self.n_iter_, self._score = fitted.history, fitted.n_iter, fitted.score
        self.weighing_, self.goes_on_, self.fold_ = fitted.weighing, fitted.goes_on, None
        if prepared.repeats is not None:
            self.weighing_ = {**fitted.weighing, "repeats": prepared.repeats}
        self._fitted_with, self.device_ = self._given(), called(prepared.device)
        if prepared.fold_of_row is not None:
            if isinstance(fitted.model, Ensemble):
                self.fold_ = without(prepared.fold_of_row, fitted.lost)
            else:  # the folds were for networks from which this posterior was found, which has seen all rows
                self.held_out_ = prepared.held_out[:0]
        self.relevance_ = {}
        self._describe()

    @property
    def validation_score_(self) -> float | None:
        """Mean log predictive density of rows that a network was not fitted to, see above.

        In nats per row, in the units of the target; None if there are no such rows.
        """
        return None if self._score is None else self._score - self.target_.log_unit

    def _html_repr(self) -> str:
        """Return scikit-learn's display, and below it what was found, as HTML."""
        display = str(super()._html_repr())
        if "model_" not in vars(self):
            return display
        lines = [f"{self.structure_.kind}: {self.structure_.summary}"]
        if self.validation_score_ is not None:
            lines.append(f"unseen rows: {self.validation_score_:.4g} nats per row (mean log predictive density)")
        text = "<br>".join(map(html.escape, lines))
        return f'{display}<div style="font: 0.9em/1.4 sans-serif; margin: 0.2em 0.5em">{text}</div>'

    # ---- saving

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the fitted estimator as a folder: tensors and a JSON manifest, no pickle.

        Predictions after :meth:`load` are bit-equal, also where options were changed after the fit. ``callbacks`` and
        ``checkpoint`` are not kept; an option that is a function must be given again to :meth:`load`.

        Raises
        ------
        FileError
            If the folder cannot be written; what was there before is untouched.
        """
        require_fitted(self)
        tensors = {
            **{f"model/{name}": value for name, value in self.model_.state_dict().items()},
            **{f"likelihood/{name}": value for name, value in self.likelihood_.state_dict().items()},
            "held_out": torch.from_numpy(self.held_out_),
            **({} if self.fold_ is None else {"fold": torch.from_numpy(self.fold_)}),
        }
        now = self._options()
        of_a_run = {name: getattr(self, name) for name in OF_A_RUN if name in now}
        options = self._plain({**self._fitted_with, **of_a_run})
        meta = {
            "options": options,
            "changed": {name: value for name, value in now.items() if value != options[name]},
            "schema": self.schema_.to_json(),
            "target": self.target_.to_json(),
            "layout": blueprint_of(self.model_),
            "dtype": str(self.model_.dtype).removeprefix("torch."),
            "seed": self.seed_,
            "history": self.history_,
            "n_iter": self.n_iter_,
            "validation_score": self._score,
            "weighing": self.weighing_,
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", ())),
            **({} if self.device_ == "cpu" else {"device": self.device_}),
        }
        return io.save(path, kind=type(self).__name__, tensors=tensors, meta=meta)

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as plain JSON; what belongs to one run alone becomes None."""
        return self._plain(self._given())

    def _plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        given = {**given, "callbacks": None, "checkpoint": None}
        if not isinstance(given["random_state"], int | np.integer):
            given["random_state"] = None
        return {name: saving.encoded(given[name], self.saved_values) for name in sorted(given)}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.target_tags.multi_output = self._target_type() is TargetScale
        return tags


class Predictor(FittedPredictor, Estimator, ABC):
    """What estimators share whose posterior says something of rows with a law for each."""


#: What a fit that finds no memory can do.
_SMALLER = "lower batch_size, width, members or weight_draws, or set device='cpu' if an accelerator is full"


@contextlib.contextmanager
def _restored_on_error(estimator: Estimator) -> Iterator[None]:
    """Leave an estimator whose fit fails or is interrupted as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise
