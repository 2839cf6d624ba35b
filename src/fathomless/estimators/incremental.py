"""Incremental training with ``partial_fit``: one pass of a single network over each part of the rows."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.estimators.variational import VariationalEstimator
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.svi import fit
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.posterior.model import Model
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["Incremental"]


@dataclass(frozen=True, eq=False)
class _TrainingState:
    """State of a training that continues with the next part."""

    model: Model
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]
    rows: float


class Incremental(VariationalEstimator, ABC):
    """Base class of estimators that train a single network on one part of the rows at a time."""

    _training_state: _TrainingState | None = None

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, total_rows: float | None = None
    ) -> Self:
        r"""Train for one pass over these rows, as a random part of a stream of `total_rows`.

        With sample weights :math:`s_i` and N for `total_rows`, the pass takes steps with a constant learning rate on

        .. math:: \frac{N}{\sum_i s_i} \sum_i s_i\, E \log p(y_i \mid f) - \text{divergences},

        an estimate of the evidence bound of the stream. The law over structure is fitted by the same objective,
        regardless of `structure_from`. The first call fits the encodings to its rows and initializes a network. Later
        calls keep the encodings, the moments of the optimizer and the number of rows. :meth:`save` and :meth:`load`
        reset the moments and the number of rows; give `total_rows` after them. After :meth:`fit`, training continues
        from the fitted network, or from the first of several.

        Parameters
        ----------
        X, y, sample_weight
            Rows, as in :meth:`fit`.
        classes : array, optional
            Labels of all parts. Required in the first call of a classifier, unless y has a column for each label.
        total_rows : float, optional
            Number of rows N of the stream; by default the number of rows of all calls so far, including repeated rows,
            since the last :meth:`fit` or :meth:`load`.

        Raises
        ------
        DataError, DivergenceError
            As in :meth:`fit`, and for options that require several networks, sampled weights, or a posterior of the
            heads.

        Notes
        -----
        The result is NOT guaranteed to approximate the posterior given all rows. The information of earlier parts is
        only in the network, and a part with another distribution shifts it. Pass parts in random order, several times
        if possible, or use :meth:`fit_stream`. No rows are held out: there is no score, no choice of an epoch, and no
        calibration of noise and temperature. `epochs`, `optimizer`, the delay of `structure_from`, `patience`,
        `validation_fraction`, `minutes` and `checkpoint` only affect :meth:`fit`.
        """
        return self._fit(
            partial(self._prepare_part, X, y, sample_weight, classes), partial(self._pass, total_rows=total_rows)
        )

    def _pass(self, prepared: Prepared, total_rows: float | None) -> tuple[Prepared, Fitted]:
        """Train for one epoch, and store the state of the training."""
        self._check_one_network()
        rows = cast(Rows, prepared.train)
        before = self._training_state
        if before is not None and before.model is not self.model_:  # another fit replaced the network since
            before = None
        seen = rows.count + (0.0 if before is None else before.rows)
        size = seen if total_rows is None else checks.positive("total_rows", total_rows)
        if size < rows.count:
            raise DataError(
                f"total_rows={total_rows} was given with {rows.count:g} rows; it must be at least that number"
            )
        # weights that sum to the size of the stream give the likelihood its scale relative to the divergences
        once = torch.ones(len(rows)).to(rows.x) if rows.weight is None else rows.weight
        passes = 0 if before is None else int(before.meta["epoch"])
        training = replace(
            self._training_plan().training(size, len(rows)),
            epochs=passes + 1,
            schedule="constant",
            warm_up=0.0,
            structure_delay=0,
            patience=None,
            calibrate=False,
            evaluate_every=1,
        )
        states: list[tuple[dict[str, Tensor], dict[str, Any]]] = []

        def keep(run: Run) -> None:
            states.append((run.tensors(), run.meta()))

        # a pass resumes the previous one as an additional epoch; clones keep the stored state unchanged
        trained = fit(
            *self._continued_problem().start(prepared, prepared.seed),
            replace(rows, weight=once * (size / rows.count)),
            training=training,
            seed=fold_in(prepared.seed, "training"),
            callbacks=[*(self.callbacks or ()), keep],
            progress=self._session().display(),
            resume=None if before is None else ({n: t.clone() for n, t in before.tensors.items()}, before.meta),
        )
        self._training_state = _TrainingState(trained.model, *states[-1], seen)
        previous = vars(self).get("fit_diagnostics_")
        if isinstance(previous, CrossFitDiagnostics):  # the options that the network was built with
            diagnostics = cast(CrossFitDiagnostics, trained.diagnostics)
            trained = replace(trained, diagnostics=replace(diagnostics, trials=previous.trials))
        return prepared, trained

    def _continued_problem(self) -> Problem:
        """Return the problem that continues from the fitted network, or from the first of several."""
        if "model_" not in vars(self):
            return self._problem()
        self._check_same_options()
        return replace(self._problem(), fitted=(list_members(self.model_)[0], self.likelihood_))

    def _check_one_network(self) -> None:
        """Check that the options do not require more than the training of a single network."""
        options = self._current_options()
        unsupported = {
            "n_restarts": self._restarts().count != 1,
            "class_weight": options.get("class_weight") is not None,
            "candidates": options.get("candidates") is not None,
            "weights": self._choice("weights") == "hmc",
            "last_layer": self._head() != "point",
            "trees": bool(options.get("trees")),
            "neighbors": bool(options.get("neighbors")),
        }
        listed = [f"{name}={getattr(self, name)!r}" for name, is_set in unsupported.items() if is_set]
        if listed := [*filter(None, [self._several_networks()]), *listed]:
            raise DataError(
                f"{' and '.join(listed)} was given, but partial_fit trains a single network, without class weights "
                "and without a second stage; leave that out, or call fit"
            )
