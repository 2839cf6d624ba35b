"""Estimators of networks on a low-dimensional manifold of weights."""

import math
from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch

from fathomless.estimators.base import Estimator, require_fitted
from fathomless.estimators.options import documented
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.transforms import is_noise_free
from fathomless.families.manifold.autoencoder import AutoencoderOptions
from fathomless.families.manifold.fit import STEPS, ManifoldConfig
from fathomless.families.manifold.latent import WEIGHTS
from fathomless.families.manifold.model import ProjectedNetwork
from fathomless.families.manifold.networks import ManifoldDiagnostics, ManifoldNetworks
from fathomless.families.manifold.strategy import ManifoldStages
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.model import Draws
from fathomless.posterior.predictive import predictive
from fathomless.posterior.structure import LatentPosterior
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["ProjectedBayesClassifier", "ProjectedBayesRegressor"]

_FEW = 12  # number of rows below which no rows are held out
_ALONG, _FAR = 60, 2.0  # grid points along a column, and its half-width in standard deviations


class _ProjectedBayes(ManifoldNetworks, Estimator, ABC):
    """Base of estimators of weight manifolds.

    Attributes
    ----------
    latent_posterior_ : LatentPosterior
        Weights, centres and standard deviations of the components of the posterior over the latent space.
    decoder_gate_ : dict of str to float
        Reconstruction quality of the decoder; see :class:`~fathomless.families.manifold.autoencoder.Gate`.
    candidates_ : dict
        "kept": indices of the candidates that the latent space was learned from, the best first. "score": mean
        log-likelihood of out-of-fold rows under the candidates, in nats per row: `validation_score_` for standardised
        targets. It is a score of the first stage; for each row, candidates and noise are chosen on the other nine
        tenths of the rows.
    latent_dim_ : int
        Dimensions of the latent space.
    latent_dims_ : dict of int to dict of str to float
        If several numbers of dimensions were tried, the mean log-likelihood on held-out rows of each, for standardised
        targets, and its weight in the best mixture; else empty.
    sampling_ : dict
        For a sampled posterior, the number of "chains", of "draws" per chain, and "rhat" and "ess" of the
        log-likelihood; else empty.
    """

    fit_diagnostics_: ManifoldDiagnostics
    model_: ProjectedNetwork
    structure_: LatentPosterior
    latent_dim_: int
    candidates_: dict[str, Any]

    shown: ClassVar[Mapping[str, str]] = {"modes": "modes"}

    def _describe(self) -> None:
        diagnostics = self.fit_diagnostics_
        self.structure_ = self.latent_posterior_ = self.model_.structure()
        self.decoder_gate_ = dict(diagnostics.gate)
        self.latent_dim_ = int(self.model_.law.means.shape[1])
        self.latent_dims_ = {int(number): dict(trial) for number, trial in diagnostics.latent_dims.items()}
        self.sampling_ = dict(diagnostics.sampling)
        self.candidates_ = {"kept": list(diagnostics.kept), "score": diagnostics.score}

    def _config(self, dimensions: int) -> ManifoldConfig:
        prior = ManifoldConfig().prior
        if isinstance(self.weight_prior, WeightPrior):
            prior = self.weight_prior
        elif self.weight_prior != "auto":
            prior = WeightPrior(checks.positive("weight_prior", self.weight_prior, "auto"))
        return ManifoldConfig(
            prior=prior,
            candidates=self.candidates,
            anchored=self.anchored,
            snapshots=self._check_snapshots(),
            candidate_steps=self.candidate_steps,
            candidate_rate=checks.positive("candidate_rate", self.candidate_rate),
            matching=self.matching,
            autoencoder=AutoencoderOptions(
                dimensions=dimensions,
                hidden=self._decoder_hidden(),
                last=self._decoder_map(),
                members=self.training_draws,
                steps=self.decoder_steps,
            ),
            components=self.components,
            covariance=self.covariance,
            weights=checks.choice("component_weights", self.component_weights, WEIGHTS),
            random=self._random_part(),
            latent_steps=self.latent_steps,
            draws=self.training_draws,
        )

    def _check_snapshots(self) -> int:
        snapshots = checks.whole("snapshots", self.snapshots, least=1)
        if snapshots > max(1, self.candidate_steps // STEPS) or snapshots > self.candidates:
            raise DataError(
                f"snapshots={snapshots} was given for {self.candidates} candidates and candidate_steps="
                f"{self.candidate_steps}; at most one snapshot per candidate, with at least {STEPS} steps each, is "
                "allowed"
            )
        return snapshots

    def _strategy(self, prepared: Prepared) -> ManifoldStages:
        tried = self._latent_dims()
        return ManifoldStages(
            self._config(max(tried)),
            tried,
            sampled=self.latent_posterior == "sampled",
            free_noise=is_noise_free(self._current_options(), prepared.target),
            architecture=self.architecture if callable(self.architecture) else None,
        )

    def modes(self, X: Any) -> Array:
        """Return the predictions at the centre of each component of the latent posterior, the modes of functions.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.

        Returns
        -------
        ndarray, shape (M, N) or (M, N, T)
            Predicted means; for classes, probabilities (M, N, K). The weights of the modes are in
            ``latent_posterior_.weights``.
        """
        require_fitted(self)
        return self._modes(self._encode(self.schema_, self._table(X, reset=False)))

    def modes_along(self, column: str) -> tuple[Array, Array]:
        """Return the modes of functions along one numeric column, with other columns at their average.

        The average of a categorical column is the share of each category in the training rows.

        Parameters
        ----------
        column : str
            Name of the column; "x0", "x1", … for tables without names.

        Returns
        -------
        grid : ndarray, shape (60,)
            Values of the column, up to two standard deviations on both sides of its average.
        values : ndarray, shape (M, 60) or (M, 60, …)
            As :meth:`modes` returns them.

        Raises
        ------
        DataError
            If there is no numeric column of this name.
        """
        require_fitted(self)
        numeric = {entry.name: entry for entry in self.schema_.columns if entry.kind == "numeric"}
        if column not in numeric:
            raise DataError(f"column={column!r} was given; allowed are numeric columns: {', '.join(numeric) or '–'}")
        away = np.linspace(-_FAR, _FAR, _ALONG)
        encoded = np.tile(self.fit_diagnostics_.average or np.zeros(self.schema_.width), (_ALONG, 1))
        first = self.schema_.encoded_names.index(column)
        encoded[:, first] = away
        entry = numeric[column]
        if entry.bins is not None:
            features = entry.bins.encode(entry.clip(entry.center + entry.scale * away))
            encoded[:, first + 1 : first + 1 + features.shape[1]] = features
        return numeric[column].center + numeric[column].scale * away, self._modes(encoded)

    def _modes(self, encoded: Array) -> Array:
        x = torch.as_tensor(encoded, dtype=self.model_.dtype).to(self.model_.device)
        with torch.no_grad():
            weights, _ = self.model_.moments(self.model_.law.means)
            outputs = self.model_.network(weights, x)
        zero = torch.zeros(1, dtype=torch.int64, device=outputs.device)
        return np.stack([self._predict_mean(Draws(f[None], zero.double(), zero, {})) for f in outputs])

    def _predict_mean(self, draws: Draws) -> Array:
        with torch.no_grad():
            p: Any = predictive(draws, self.likelihood_, **self._task().units(self.target_))
            prediction = p.probs if self.likelihood_.discrete else p.mean
        return cast(Array, prediction.numpy())

    # ---- preparation

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        if stream:
            raise DataError("a stream was given; a weight manifold needs all rows in memory: pass a table to fit")
        if self.holdout and not 0.01 <= self.holdout <= 0.5:
            raise DataError(f"holdout={self.holdout} was given; 0, or 0.01 <= holdout <= 0.5, is allowed")
        if not self.holdout or count < _FEW:
            return SplitPlan()
        folds = round(1.0 / self.holdout)
        return SplitPlan(members=folds, repeats=math.ceil(self.candidates / folds), optional=True)


@documented
class ProjectedBayesClassifier(_ProjectedBayes, Classifier):
    """Classifier with a posterior over networks on a low-dimensional manifold of weights.

    Notes
    -----
    The manifold is learned from networks trained on the same rows. The ELBO is therefore conditional on the decoder
    and cannot be compared with that of other families.

    References
    ----------
    M. F. Pradier, W. Pan, J. Yao, S. Ghosh and F. Doshi-Velez, "Projected BNNs: Avoiding weight-space pathologies by
    learning latent representations of neural network weights", 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> quick = {"candidates": 12, "candidate_steps": 100, "decoder_steps": 200, "latent_steps": 50}
    >>> clf = ProjectedBayesClassifier(width=8, latent_dim=6, components=2, random_state=0, **quick).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.modes(X[:2]).shape
    ((2, 3), (2, 2, 3))
    """

    several_labels = False


@documented
class ProjectedBayesRegressor(_ProjectedBayes, Regressor):
    """Regressor with a posterior over networks on a low-dimensional manifold of weights, for one or more targets.

    Notes
    -----
    The manifold is learned from networks trained on the same rows. The ELBO is therefore conditional on the decoder
    and cannot be compared with that of other families.

    References
    ----------
    M. F. Pradier, W. Pan, J. Yao, S. Ghosh and F. Doshi-Velez, "Projected BNNs: Avoiding weight-space pathologies by
    learning latent representations of neural network weights", 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> quick = {"candidates": 12, "candidate_steps": 100, "decoder_steps": 200, "latent_steps": 50}
    >>> reg = ProjectedBayesRegressor(width=8, latent_dim=6, components=2, random_state=0, **quick).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape, reg.modes(X[:3]).shape
    ((3,), (3,), (2, 3))
    """
