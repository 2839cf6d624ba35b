"""The estimators of networks whose weights may be absent."""

import warnings
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Array
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import VariationalEstimator
from fathomless.families.sparse.export import SparseExport, to_sparse
from fathomless.families.sparse.model import InputSkip, SparseNetwork, inclusion_table
from fathomless.families.sparse.paths import active_paths, drawn_inputs
from fathomless.families.sparse.temperature import TemperatureChoice, temperatures
from fathomless.inference.run import Fitted
from fathomless.inference.training import adam_travel
from fathomless.nn.architectures import activation
from fathomless.nn.bayesian import bayesian
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SlabStart
from fathomless.posterior.ensemble import Ensemble, members_of
from fathomless.system import checks, memory
from fathomless.system.checks import real
from fathomless.system.errors import ConvergenceWarning, DataError
from fathomless.system.rng import as_generator, fold_in, seeded_globals

__all__ = ["SparseBayesClassifier", "SparseBayesRegressor"]

_POSTERIORS = ("lrt", "flow", "relaxed", "slab", "mnf")


class _SparseBayes(TemperatureChoice, VariationalEstimator, ABC):
    """How the options of the family become a model.

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

    saved_values: ClassVar[dict[str, type]] = {"FlowOptions": FlowOptions}
    structure_every: ClassVar[int] = 1

    inclusion_probability_: dict[str, Array]
    candidates_: list[dict[str, Any]]

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> SparseNetwork:
        checks.choice("posterior", self.posterior, _POSTERIORS)
        self._room(inputs, outputs, dtype)
        first, rest = self._priors(inputs)
        options: dict[str, Any] = {
            "inclusion": self.posterior not in ("slab", "mnf"),
            "multiplier": (self.flow or FlowOptions()) if self.posterior in ("flow", "mnf") else None,
            "estimator": "relaxed" if self.posterior == "relaxed" else "local",
        }
        with seeded_globals(fold_in(seed, "weights")):
            plain = self._network(inputs, outputs)
            entry = next((n for n, part in plain.named_modules() if isinstance(part, nn.Linear)), None)
            network = bayesian(plain, lambda name, part: SpikeSlab(part, first if name == entry else rest, **options))
            return SparseNetwork(network.to(dtype=dtype), predict_by=self.predict_by)

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        if callable(self.architecture):
            found: nn.Module = checks.returned("architecture", self.architecture(inputs, outputs), nn.Module)
            return found
        between, widths = activation(self.activation), [self.width] * self.depth
        match self.architecture:
            case "skip":
                network: nn.Module = InputSkip(inputs, widths, outputs, between)
            case "mlp":
                sizes = [inputs, *widths, outputs]
                linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
                parts = [part for layer in linear for part in (layer, activation(self.activation))]
                network = nn.Sequential(*parts[:-1])
            case _:
                raise DataError(
                    f"architecture={self.architecture!r} was given; allowed are 'mlp', 'skip', or a callable (inputs, "
                    "outputs) -> nn.Module"
                )
        for part in network.modules():
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight)
                nn.init.zeros_(part.bias)
        return network

    def _priors(self, inputs: int) -> tuple[SlabPrior, SlabPrior]:
        """Return the prior of the first layer, in which inputs may differ, and of the others."""
        given = self.prior_inclusion
        scale = self.weight_prior if isinstance(self.weight_prior, str) else real("weight_prior", self.weight_prior)
        if isinstance(given, list | tuple):
            if len(given) != inputs:
                raise DataError(
                    f"prior_inclusion has {len(given)} numbers and the encoded table {inputs} columns; give one for "
                    "each"
                )
            each = torch.tensor([real("prior_inclusion", p) for p in given], dtype=torch.float64)
            return SlabPrior(each, scale), SlabPrior(float(each.mean()), scale)
        one = SlabPrior(given if isinstance(given, str) else real("prior_inclusion", given), scale)
        return one, one

    def _room(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        """Refuse a network that will not fit: three numbers for each weight, their gradients and two moments."""
        if callable(self.architecture):
            return
        skip = inputs if self.architecture == "skip" else 0
        networks = max(self.n_restarts, len(temperatures(self.temperature)))  # at once

        def need(width: int) -> float:
            sizes = [inputs, *([width] * self.depth), outputs]
            weights = sum((a + (skip if i else 0)) * b for i, (a, b) in enumerate(pairwise(sizes)))
            return 12.0 * networks * dtype.itemsize * weights

        def fitting(share: float) -> str:
            width = self.width
            while width > 1 and need(width) > share * need(self.width):
                width = max(1, int(0.95 * width))
            return f"a width of about {width:,} fits"

        memory.require(need(self.width), f"a network of {self.depth} layers of width {self.width:,}", fitting)

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        if set(blueprint) - {"members", "sparse"}:  # "sparse" is what the first version wrote
            raise DataError(f"its layout is {sorted(blueprint)}, not that of a network whose weights may be absent")
        sizes = {size for shape in shapes.values() for size in shape}
        if self.depth and not callable(self.architecture) and self.width not in sizes:
            raise DataError(f"its width is {self.width}, and no weights have this size")

    def _members(self) -> list[SparseNetwork]:
        """Return the fitted network, or those of an ensemble of restarts."""
        return cast(list[SparseNetwork], members_of(self.model_))

    def _describe(self) -> None:
        for member in self._members():
            member.set_prediction(self.predict_by)
        self.structure_ = self.model_.structure()
        self.temperature_ = float(self.weighing_.get("temperature", self.temperature))
        self.candidates_ = self.weighing_.get("candidates", [])
        if "note" in self.weighing_:
            told = f"{self.structure_.summary}; temperature {self.temperature_:g}, {self.weighing_['note']}"
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
        noise = [as_generator(fold_in(self.seed_, "relevance", i), device=m.device) for i, m in enumerate(members)]
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
        check_is_fitted(self, "model_")
        if isinstance(self.model_, Ensemble):
            raise DataError(
                f"to_sparse was called on an average of {len(self.model_.members)} networks; set restarts='best', or "
                "export each of model_.members"
            )
        return to_sparse(self._members()[0].network, format=format)

    def _warn(self, fitted: Fitted) -> None:
        if self.posterior in ("slab", "mnf"):
            return
        empty = [row.layer for member in self._members() for row in inclusion_table(member) if row.kept == 0]
        if empty:
            remedy = "lower temperature, raise prior_inclusion, or take a narrower network"
            if self.candidates_:
                remedy = "at lower temperatures held-out rows are predicted no better, within one standard error"
            warnings.warn(
                f"the median probability model keeps no weight of layer {empty[0]!r}: it predicts a constant. The "
                f"evidence for the weights does not outweigh their divergence: {remedy}",
                ConvergenceWarning,
                stacklevel=4,
            )
        t = fitted.training
        if t is None:
            return
        start, travel = SlabStart().logit[1], t.structure_rate * adam_travel(fitted.history, t.learning_rate)
        if travel < start:
            warnings.warn(
                f"inclusion logits start up to {start:g} above the edge between in and out and could move by about "
                f"{travel:.2g}: how many weights are kept tells how long the training was. Raise epochs (now "
                f"{t.epochs}) or structure_rate (now {t.structure_rate:.2g})",
                ConvergenceWarning,
                stacklevel=4,
            )


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
