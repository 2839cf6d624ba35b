"""Estimators that learn from one part of the rows after the other: one pass over each, of one network."""

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
from fathomless.posterior.model import Model
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["Incremental"]


@dataclass(frozen=True, eq=False)
class _Going:
    """Where a training stands that goes on with the next part."""

    model: Model
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, Any]
    rows: float


class Incremental(VariationalEstimator, ABC):
    """How one network is trained part by part."""

    _going: _Going | None = None

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, total_rows: float | None = None
    ) -> Self:
        r"""Go on with one pass over these rows, as a random part of a stream of `total_rows`.

        With weights :math:`s_i` of the rows and N for `total_rows` the pass takes steps at a constant rate on

        .. math:: \frac{N}{\sum_i s_i} \sum_i s_i\, E \log p(y_i \mid f) - \text{divergences},

        the evidence bound of the stream as far as these rows tell of it. It moves the law over structure too, whatever
        `structure_from` says. The first call learns from its rows how the table is encoded, and starts a network; later
        ones keep that, and go on with the moments of the optimiser (from anew after :meth:`save` and :meth:`load`).
        After :meth:`fit` it goes on from its network, of several from the first.

        Parameters
        ----------
        X, y, sample_weight
            Rows, as in :meth:`fit`.
        classes : array, optional
            All labels that will come; the first call of a classifier needs them, unless y has a column for each label.
        total_rows : float, optional
            Rows N of the whole stream; by default those of all calls so far, so that rows that come again count again.

        Raises
        ------
        DataError, DivergenceError
            As :meth:`fit` does; and for options that ask for several networks, sampled weights, or heads that have a
            posterior.

        Notes
        -----
        Not guaranteed: the posterior given all rows. What earlier parts said is kept by the networks alone, and a part
        that differs from the rest moves them towards itself; give parts in random order, several times where the rows
        can be had again, or :meth:`fit_stream`. No row is held out, so there is no score, no epoch is chosen, and noise
        and temperature are not calibrated; `epochs`, `optimizer`, the delay of `structure_from`, `patience`,
        `validation_fraction` and `checkpoint` are for :meth:`fit`.
        """
        return self._fit(
            partial(self._prepare_part, X, y, sample_weight, classes), partial(self._pass, total_rows=total_rows)
        )

    def _pass(self, prepared: Prepared, total_rows: float | None) -> Fitted:
        """Train for one epoch; keep where the training stands."""
        self._refuse_several()
        rows, before = cast(Rows, prepared.train), self._going
        if before is not None and before.model is not self.model_:  # another fit came between
            before = None
        seen = rows.count + (0.0 if before is None else before.rows)
        size = seen if total_rows is None else checks.positive("total_rows", total_rows)
        if size < rows.count:
            raise DataError(f"total_rows={total_rows} was given with {rows.count:g} rows; at least as many are allowed")
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

        trained = fit(
            *self._from_here().start(prepared, prepared.seed),
            replace(rows, weight=once * (size / rows.count)),
            training=training,
            seed=fold_in(prepared.seed, "training"),
            callbacks=[*(self.callbacks or ()), keep],
            progress=self._session().display(),
            resume=None if before is None else ({n: t.clone() for n, t in before.tensors.items()}, before.meta),
        )
        self._going = _Going(trained.model, *states[-1], seen)
        return trained

    def _from_here(self) -> Problem:
        """Return the problem that continues from the fitted network, of several from the first."""
        if "model_" not in vars(self):
            return self._problem()
        self._require_as_fitted()
        return replace(self._problem(), fitted=(list_members(self.model_)[0], self.likelihood_))

    def _refuse_several(self) -> None:
        """Refuse options that are not of one network that is trained."""
        given = self._options_given()
        asked = {"n_restarts": self._restarts().count != 1, "class_weight": given.get("class_weight") is not None}
        asked["candidates"] = given.get("candidates") is not None
        asked["weights"] = self._choice("weights") == "hmc"
        asked["last_layer"] = self._head() != "point"
        found = [f"{name}={getattr(self, name)!r}" for name, wanted in asked.items() if wanted]
        if found := [*filter(None, [self._cross_fitted()]), *found]:
            raise DataError(
                f"{' and '.join(found)} was given; partial_fit trains one network and counts rows as they come: leave "
                "that out, or call fit"
            )
