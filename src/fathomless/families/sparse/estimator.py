"""Estimators of sparse networks."""

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
from fathomless.estimators.transforms import is_noise_free
from fathomless.estimators.variational import OneNetwork
from fathomless.families.sparse.export import SparseExport, to_sparse
from fathomless.families.sparse.model import SparseNetwork, inclusion_table
from fathomless.families.sparse.networks import SparseDiagnostics, SparseNetworks
from fathomless.families.sparse.options import candidate_temperatures
from fathomless.families.sparse.paths import active_paths, draw_entries
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
    """Step that adds warnings about empty layers and about inclusion logits that cannot have converged.

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
        if empty and any(_is_constant(member) for member in members):
            diagnostics = fitted.diagnostics
            choice = diagnostics.choice if isinstance(diagnostics, SparseDiagnostics) else None
            remedy = "lower temperature, raise prior_inclusion, or use a narrower network"
            if choice is not None and choice.candidates:
                remedy = "lower temperatures do not predict held-out rows better, within one standard error"
            yield (
                f"the median probability model keeps no weight of layer {empty[0]!r}, so it predicts a constant. The "
                f"gain in log-likelihood from the weights does not outweigh their divergence; {remedy}"
            )
        t = fitted.training
        if t is None:
            return
        start = SlabStart().logit[1]
        # Adam moves a parameter by about its learning rate per step
        travel = t.structure_rate * adam_travel(fitted.history, t.learning_rate)
        if travel < start:
            yield (
                f"inclusion logits start at up to {start:g} and could move by about {travel:.2g}, so they cannot all "
                "reach 0: the number of weights kept depends on the length of the training. Raise epochs (now "
                f"{t.epochs}) or structure_rate (now {t.structure_rate:.2g})"
            )


def _is_constant(member: SparseNetwork) -> bool:
    """Return True unless an input has a path to an output in the median probability model."""
    try:
        return not bool(active_paths(member.network).inputs.any())
    except DataError:  # not a chain of layers
        return True


class _SparseBayes(SparseNetworks, OneNetwork, ABC):
    """Base of estimators of sparse networks.

    Attributes
    ----------
    inclusion_probability_ : dict of str to ndarray
        Posterior inclusion probabilities of the weights of each layer, shape (outputs, inputs).
    selected_features_ : list of str
        Names of the columns used by the median probability model.
    temperature_ : float
        Temperature of the training, given or chosen.
    candidates_ : list of dict
        Held-out scores of the candidate temperatures, in decreasing order of temperature: the fields of
        :class:`~fathomless.families.sparse.temperature.Candidate`. Empty if the temperature was not chosen.
    """

    fit_diagnostics_: SparseDiagnostics
    temperature_: float
    inclusion_probability_: dict[str, Array]
    candidates_: list[dict[str, Any]]

    structure_every: ClassVar[int] = 1

    def _strategy(self, prepared: Prepared) -> Strategy:
        svi = self._svi()
        candidates = candidate_temperatures(self.temperature)
        inference: Strategy = svi
        if candidates:
            inference = AtChosenTemperature(
                svi,
                candidates,
                self.weight_draws,
                free_noise=is_noise_free(self._current_options(), prepared.target),
                single=self.precision == "auto",
                alone=callable(self.architecture),
                before=self._previous_choice() if self._is_continued() else None,
            )
        return Then(inference, (Unconverged(self.posterior),))

    def _previous_choice(self) -> Choice:
        """Return the temperature of the fit that is continued, as a choice."""
        choice = self.fit_diagnostics_.choice
        candidates = [] if choice is None else [dict(record) for record in choice.candidates]
        noise = copy.deepcopy(self.likelihood_) if candidates and self.calibrate else None
        return Choice(self.temperature_, "from the network that was trained on", candidates, noise)

    def _members(self) -> list[SparseNetwork]:
        """Return the fitted network, or the networks of an ensemble of restarts, as a list."""
        return cast(list[SparseNetwork], list_members(self.model_))

    def _describe(self) -> None:
        self.structure_ = self.model_.structure()
        choice = self.fit_diagnostics_.choice
        self.temperature_ = float(cast(float, self.temperature) if choice is None else choice.temperature)
        self.candidates_ = [] if choice is None else [dict(record) for record in choice.candidates]
        if choice is not None:
            summary = f"{self.structure_.summary}; temperature {self.temperature_:g}, {choice.note}"
            self.structure_ = replace(self.structure_, summary=summary)
        first = self._members()[0]
        self.inclusion_probability_ = {
            name: layer.weight.inclusion().cpu().numpy() for name, layer in first.sparse_layers()
        }

    @property
    def selected_features_(self) -> list[str]:
        """Names of the columns used by the median probability model."""
        used = torch.stack([active_paths(member.network).inputs for member in self._members()]).any(0)
        return [name for name, features in self._columns().items() if bool(used[features].any())]

    def feature_relevance(self, draws: int = 200) -> dict[str, float]:
        """Return the posterior probability that the network uses each column: that it has a path to an output.

        A network with many weights per input rarely excludes a column completely. A probability below one half is
        therefore informative, and one close to 1 is not; :attr:`selected_features_` is a stricter selection. Redundant
        columns share the probability.

        Parameters
        ----------
        draws : int
            Number of structures drawn; the standard error is at most 1 / (2 √draws).

        Raises
        ------
        DataError
            If the network is not a chain of layers.
        """
        used = self._draw_entries(draws).any(1)
        return {name: float(used[:, features].any(1).double().mean()) for name, features in self._columns().items()}

    def feature_entries(self, draws: int = 200) -> dict[str, Array]:
        """Return the posterior probability that each column enters each layer on a path to an output, shape (L,).

        With ``architecture="skip"``, a column may enter any layer. One that only enters the last layer has a linear
        effect on the parameters of the likelihood. In other networks all columns enter the first layer.

        Parameters
        ----------
        draws : int
            Number of structures drawn, as for :meth:`feature_relevance`.

        Raises
        ------
        DataError
            If the network is not a chain of layers.
        """
        entries = self._draw_entries(draws)
        probability = {
            name: entries[..., of_column].any(2).double().mean(0) for name, of_column in self._columns().items()
        }
        return {name: values.cpu().numpy() for name, values in probability.items()}

    def _draw_entries(self, draws: int) -> torch.Tensor:
        """Draw structures; return the encoded columns that enter each layer, bool (draws, L, D)."""
        members = self._members()
        noise = [as_generator(fold_in(self.seed_, "relevance", i)) for i in range(len(members))]
        return torch.cat([draw_entries(member.network, draws, rng) for member, rng in zip(members, noise, strict=True)])

    def _columns(self) -> dict[str, list[int]]:
        """Return the indices of the encoded features of each column of the table."""
        features_of: dict[str, list[int]] = {}
        for column in self.schema_.columns:
            first = sum(map(len, features_of.values()))
            features_of[column.name] = list(range(first, first + len(column.features)))
        return features_of

    def to_sparse(self, format: str = "auto") -> SparseExport:
        """Return the median probability model as a compact plain network, with the posterior means of its weights.

        The network maps encoded rows, ``fathomless.data.frames.encode(estimator.schema_, X)``, to the parameters of the
        likelihood: logits of the classes, or standardised targets.

        Parameters
        ----------
        format : {"auto", "dense", "csr"}
            As for :func:`~fathomless.families.sparse.export.to_sparse`.

        Raises
        ------
        DataError
            If the network is not a chain of layers, or the model averages several networks.
        """
        require_fitted(self)
        if isinstance(self.model_, Ensemble):
            raise DataError(
                f"to_sparse was called on an average of {len(self.model_.members)} networks; set n_restarts=1, or "
                "export each network of model_.members"
            )
        return to_sparse(self._members()[0].network, format=format)


@documented
class SparseBayesClassifier(_SparseBayes, Classifier):
    """Classifier with a sparse network: a posterior over the inclusion of each weight.

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
    """Regressor with a sparse network, for one or more targets: a posterior over the inclusion of each weight.

    Targets are standardised internally; predictions are in the units of y.
    """
