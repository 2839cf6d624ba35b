"""The estimators of networks whose weights may be absent."""

import copy
from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch

from fathomless.estimators.base import require_fitted
from fathomless.estimators.options import documented
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.strategies import Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import OneNetwork
from fathomless.families.sparse.export import SparseExport, to_sparse
from fathomless.families.sparse.model import SparseNetwork, inclusion_table
from fathomless.families.sparse.networks import SparseDiagnostics, SparseNetworks
from fathomless.families.sparse.options import temperatures
from fathomless.families.sparse.paths import active_paths, drawn_inputs
from fathomless.families.sparse.temperature import AtChosenTemperature, Choice
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.training import adam_travel
from fathomless.nn.spike_slab import SlabStart
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["SparseBayesClassifier", "SparseBayesRegressor"]


@dataclass(frozen=True)
class Unconverged:
    """Step that adds warnings of weights whose inclusion the training did not settle.

    Attributes
    ----------
    posterior : str
        As the option of estimators.
    """

    posterior: str

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Add the warnings."""
        return replace(fitted, warnings=(*fitted.warnings, *self._texts(fitted)))

    def _texts(self, fitted: Fitted) -> Iterator[str]:
        if self.posterior in ("slab", "mnf"):
            return
        members = cast(list[SparseNetwork], list_members(fitted.model))
        empty = [row.layer for member in members for row in inclusion_table(member) if row.kept == 0]
        if empty:
            told = fitted.diagnostics
            chosen = isinstance(told, SparseDiagnostics) and told.choice is not None and told.choice.candidates
            remedy = "lower temperature, raise prior_inclusion, or take a narrower network"
            if chosen:
                remedy = "at lower temperatures held-out rows are predicted no better, within one standard error"
            yield (
                f"the median probability model keeps no weight of layer {empty[0]!r}: it predicts a constant. The "
                f"evidence for the weights does not outweigh their divergence: {remedy}"
            )
        t = fitted.training
        if t is None:
            return
        start, travel = SlabStart().logit[1], t.structure_rate * adam_travel(fitted.history, t.learning_rate)
        if travel < start:
            yield (
                f"inclusion logits start up to {start:g} above the edge between in and out and could move by about "
                f"{travel:.2g}: how many weights are kept tells how long the training was. Raise epochs (now "
                f"{t.epochs}) or structure_rate (now {t.structure_rate:.2g})"
            )


class _SparseBayes(SparseNetworks, OneNetwork, ABC):
    """Estimators of networks whose weights may be absent.

    Attributes
    ----------
    inclusion_probability_ : dict of str to ndarray
        Layer -> posterior probability that each weight is included, shape (outputs, inputs).
    selected_features_ : list of str
        Columns that the median probability model uses.
    temperature_ : float
        The temperature of the training, given or chosen.
    candidates_ : list of dict
        What rows that were held out say about each temperature that was tried, the highest first: the fields of
        :class:`~fathomless.families.sparse.temperature.Candidate`. Empty if it was not chosen.
    """

    fit_diagnostics_: SparseDiagnostics
    temperature_: float
    inclusion_probability_: dict[str, Array]
    candidates_: list[dict[str, Any]]

    structure_every: ClassVar[int] = 1

    def _strategy(self, prepared: Prepared) -> Strategy:
        svi, candidates = self._svi(), temperatures(self.temperature)
        inference: Strategy = svi
        if candidates:
            inference = AtChosenTemperature(
                svi,
                candidates,
                self.weight_draws,
                free_noise=self._current_options().get("likelihood") == "auto",
                single=self.precision == "auto",
                alone=callable(self.architecture),
                before=self._choice_before() if self._is_continued() else None,
            )
        return Then(inference, (Unconverged(self.posterior),))

    def _choice_before(self) -> Choice:
        """Return the choice of the fit that is continued."""
        choice = self.fit_diagnostics_.choice
        before = [] if choice is None else [dict(one) for one in choice.candidates]
        noise = copy.deepcopy(self.likelihood_) if before and self.calibrate else None
        return Choice(self.temperature_, "that of the network that was trained on", before, noise)

    def _members(self) -> list[SparseNetwork]:
        """Return the fitted network, or those of an ensemble of restarts."""
        return cast(list[SparseNetwork], list_members(self.model_))

    def _describe(self) -> None:
        self.structure_ = self.model_.structure()
        choice = self.fit_diagnostics_.choice
        self.temperature_ = float(cast(float, self.temperature) if choice is None else choice.temperature)
        self.candidates_ = [] if choice is None else [dict(one) for one in choice.candidates]
        if choice is not None:
            told = f"{self.structure_.summary}; temperature {self.temperature_:g}, {choice.note}"
            self.structure_ = replace(self.structure_, summary=told)
        first = self._members()[0]
        self.inclusion_probability_ = {
            name: layer.weight.inclusion().cpu().numpy() for name, layer in first.sparse_layers()
        }

    @property
    def selected_features_(self) -> list[str]:
        """Columns of the table that the median probability model uses."""
        used = torch.stack([active_paths(member.network).inputs for member in self._members()]).any(0)
        return [name for name, own in self._columns().items() if bool(used[own].any())]

    def feature_relevance(self, draws: int = 200) -> dict[str, float]:
        """Return the posterior probability that each column of the table is used: has a path to an output.

        A network with many weights per input seldom leaves one out altogether, so that probabilities below one half
        say much, and those near 1 little; :attr:`selected_features_` is the stricter list. Columns that tell the same
        share the probability between them.

        Parameters
        ----------
        draws : int
            Structures that are drawn; the standard error is at most 1 / (2 √draws).

        Raises
        ------
        DataError
            If the network is not a chain of layers.
        """
        members = self._members()
        noise = [as_generator(fold_in(self.seed_, "relevance", i)) for i in range(len(members))]
        used = torch.cat([drawn_inputs(m.network, draws, own) for m, own in zip(members, noise, strict=True)])
        return {name: float(used[:, own].any(1).double().mean()) for name, own in self._columns().items()}

    def _columns(self) -> dict[str, list[int]]:
        """Return the encoded features of every column of the table, by their numbers."""
        features_of: dict[str, list[int]] = {}
        for column in self.schema_.columns:
            first = sum(map(len, features_of.values()))
            features_of[column.name] = list(range(first, first + len(column.features)))
        return features_of

    def to_sparse(self, format: str = "auto") -> SparseExport:
        """Return the median probability model as a small plain network, with the means of its weights.

        It takes encoded rows, ``fathomless.data.frames.encode(estimator.schema_, X)``, and returns the parameters of
        the likelihood: logits of the classes, or targets in the units of their standard deviations.

        Parameters
        ----------
        format : {"auto", "dense", "csr"}
            As for :func:`~fathomless.families.sparse.export.to_sparse`.

        Raises
        ------
        DataError
            If the network is not a chain of layers, or is an average of several.
        """
        require_fitted(self)
        if isinstance(self.model_, Ensemble):
            raise DataError(
                f"to_sparse was called on an average of {len(self.model_.members)} networks; set n_restarts=1, or "
                "export each of model_.members"
            )
        return to_sparse(self._members()[0].network, format=format)


@documented
class SparseBayesClassifier(_SparseBayes, Classifier):
    """Classifier by a network whose weights may be absent.

    References
    ----------
    L. Skaaret-Lund, G. Storvik and A. Hubin, "Sparsifying Bayesian neural networks with latent binary variables and
    normalizing flows", 2023, arXiv:2305.03395.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SparseBayesClassifier(epochs=300, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """


@documented
class SparseBayesRegressor(_SparseBayes, Regressor):
    """Regressor, for one target or several, by a network whose weights may be absent.

    Targets are centred and scaled inside; predictions are in the units of y.
    """
