"""Option values: choices that have their own options. This module does not import torch."""

import math
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, Protocol, runtime_checkable

from fathomless.estimators.declaring import OptionValue, option, option_value
from fathomless.system import checks

__all__ = ["ELBO", "HMC", "Adam", "CheckpointOptions", "FoldArray", "Folds", "Restarts", "Splitter"]


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class HMC(OptionValue):
    """Hamiltonian Monte Carlo for the weights: ``weights=HMC(...)``, or ``weights="hmc"`` with the default options.

    Scores and recalibration of sampled weights use leave-one-out predictions.

    Parameters
    ----------
    chains : int
        Number of chains for each structure, run in parallel; they start from the fitted networks.
    sweeps : int
        Number of trajectories of each chain; the first half is burn-in.
    leapfrogs : int
        Number of leapfrog steps of a trajectory.
    states : int or "auto"
        Number of networks kept from each chain, evenly spaced. "auto" is 30, or all after the burn-in if fewer.
    structure_weights : {"fit", "stacking"}
        Weights of the structures: those of the fit, from out-of-fold predictions ("fit"), or from the leave-one-out
        densities of the sampled networks ("stacking").

    Examples
    --------
    >>> HMC(chains=4)
    HMC(chains=4)
    >>> from fathomless import UnboundedDepthRegressor
    >>> UnboundedDepthRegressor(weights="hmc").set_params(weights__chains=4)
    UnboundedDepthRegressor(weights=HMC(chains=4))
    """

    chains: int = option(8, "whole", least=2, most=10_000)
    sweeps: int = option(200, "whole", least=16)
    leapfrogs: int = option(100, "whole", least=1)
    states: "int | str" = option("auto", "whole", "auto", least=1)
    structure_weights: str = option("stacking", "choice", names=("fit", "stacking"))


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class ELBO(OptionValue):
    """Evidence lower bound as the objective of the law over structure: ``structure_from=ELBO(...)``.

    ``structure_from="elbo"`` has the default options, and so has ``"auto"`` if it selects the evidence bound. A family
    refuses the options that it does not use.

    Parameters
    ----------
    rate : float or "auto"
        Learning rate of the law over structure relative to `learning_rate`. "auto" scales it so that the law can move
        equally far for any number of steps.
    delay : float
        Fraction of the epochs during which the law over structure is fixed at its initial value.
    optimizer : {"adam", "natural"}
        Optimizer of the law over structure. Natural gradients converge fast, even before the layers are fully trained.
    radius : float
        Maximum length of a natural-gradient step.
    initial_depth : float
        Initial value of the posterior over depth: its mean offset above `min_depth` before truncation.

    Examples
    --------
    >>> ELBO(rate=1.0, optimizer="natural")
    ELBO(rate=1.0, optimizer='natural')
    """

    rate: "float | str" = option("auto", "real", "auto")
    delay: float = option(0.0, "real", least=0)
    optimizer: str = option("adam", "choice", names=("adam", "natural"))
    radius: float = option(0.1, "real")
    initial_depth: float = option(2.0, "real", most=10_000)

    def law(self) -> dict[str, Any]:
        """Return the training options of the law over structure.

        Raises
        ------
        DataError
            If the rate is negative or the radius is not positive.
        """
        if self.rate != "auto":
            checks.interval("structure_from__rate", self.rate, 0.0, math.inf)
        checks.positive("structure_from__radius", self.radius)
        return {
            "structure_rate": self.rate,
            "structure_delay": self.delay,
            "structure_optimizer": self.optimizer,
            "structure_radius": self.radius,
        }


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Folds(OptionValue):
    """Folds for cross-fitting, one network per fold: ``cv=Folds(...)``, or ``cv=5`` for five random folds.

    Parameters
    ----------
    n_splits : int or "auto"
        Number of cross-fitted networks (folds) of a partition; 1 trains a single network. "auto" is 10 up to 5,000
        rows, 5 up to 50,000 and 1 above. It is lower below 30 rows. It is 1 below 4 rows, for more than a million
        weights, and if `validation_fraction`, `n_restarts` or `warm_start` require a single network.
    n_repeats : int
        Number of partitions into folds, with `n_splits` networks each.
    order : {"random", "blocks"}
        Random folds, or blocks of consecutive rows for time series. Training rows still include those after a block.

    Examples
    --------
    >>> Folds(n_splits=5, n_repeats=2)
    Folds(n_splits=5, n_repeats=2)
    >>> from fathomless import UnboundedDepthRegressor
    >>> UnboundedDepthRegressor(cv=5).set_params(cv__n_repeats=2)
    UnboundedDepthRegressor(cv=Folds(n_splits=5, n_repeats=2))
    """

    plain: ClassVar[str] = "n_splits"

    n_splits: "int | str" = option("auto", "whole", "auto", least=1, most=10_000)
    n_repeats: int = option(1, "whole", least=1, most=10_000)
    order: str = option("random", "choice", names=("random", "blocks"))


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Restarts(OptionValue):
    """Restarts from different initial weights: ``n_restarts=Restarts(...)``, or ``n_restarts=5`` for the best of five.

    Parameters
    ----------
    count : int
        Number of networks trained together from different initial weights, in less time than separate fits.
    keep : {"best", "average"}
        Keep the network with the best validation score (the best evidence bound if no rows are held out), or average
        the predictions of all networks.

    Examples
    --------
    >>> Restarts(count=5, keep="average")
    Restarts(count=5, keep='average')
    """

    plain: ClassVar[str] = "count"

    count: int = option(1, "whole", least=1, most=10_000)
    keep: str = option("best", "choice", names=("best", "average"))


@runtime_checkable
class Splitter(Protocol):
    """Splitter of scikit-learn, such as ``GroupKFold``."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Any:
        """Yield (rows to train on, rows to test on).

        Parameters
        ----------
        X : array, shape (N, D)
            Rows.
        y : array, shape (N,) or (N, T), optional
            Targets.
        groups : array, shape (N,), optional
            Groups of the rows.
        """

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of splits.

        Parameters
        ----------
        X, y, groups
            As in :meth:`split`.
        """


@runtime_checkable
class FoldArray(Protocol):
    """Array or series with the fold of each row."""

    def __len__(self) -> int: ...

    def __array__(self, *given: Any, **options: Any) -> Any: ...


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Adam(OptionValue):
    """Adam optimizer of the weights: ``optimizer=Adam(...)``, or ``optimizer="adam"`` with the default options.

    Parameters
    ----------
    schedule : str or tuple
        Schedule of the learning rate: "cosine", "constant", "one_cycle", or pieces as in
        :class:`~fathomless.inference.variational.training.Training`.
    clip_norm : float, "auto" or None
        Maximum gradient norm of each network; None does not clip. "auto" is 10 for networks of continuous depth, and
        else None.
    warm_up : float or "auto"
        Fraction of the epochs over which the temperature rises from 0. None of these epochs is kept as the best one,
        unless the posterior over structure is fitted to held-out rows. "auto" is 0.5 for networks of continuous depth,
        and else 0.

    Examples
    --------
    >>> Adam(schedule="one_cycle", clip_norm=3.0)
    Adam(schedule='one_cycle', clip_norm=3.0)
    """

    schedule: "str | tuple[tuple[int, float], ...]" = option(
        "cosine", "choice", names=("cosine", "constant", "one_cycle")
    )
    clip_norm: "float | str | None" = option("auto", "real", "auto", None)
    warm_up: "float | str" = option("auto", "real", "auto", least=0)

    def training(self, clip_norm: float | None, warm_up: float) -> dict[str, Any]:
        """Return the training options of the weights.

        Parameters
        ----------
        clip_norm : float or None
            Value of "auto" for the maximum gradient norm.
        warm_up : float
            Value of "auto" for the fraction of warm-up epochs.

        Raises
        ------
        DataError
            If the norm is not positive, or the fraction is outside [0, 1).
        """
        max_norm = clip_norm if self.clip_norm == "auto" else self.clip_norm
        if max_norm is not None:
            max_norm = checks.positive("optimizer__clip_norm", max_norm, "auto", None)
        fraction = warm_up if self.warm_up == "auto" else self.warm_up
        fraction = checks.interval("optimizer__warm_up", fraction, 0.0, 1.0)
        return {"schedule": self.schedule, "clip_norm": max_norm, "warm_up": fraction}


@option_value
@dataclass(frozen=True, repr=False)
class CheckpointOptions(OptionValue):
    """Checkpoints of a fit: ``checkpoint=CheckpointOptions(...)``, or ``checkpoint="folder"`` with the default options.

    Parameters
    ----------
    folder : path, optional
        Folder for checkpoints. An interrupted fit resumes from the last one, with bit-identical results. None writes no
        checkpoints.
    seconds : float
        Minimum time between two checkpoints in seconds; the first is written at the first row of the history.

    Examples
    --------
    >>> CheckpointOptions("run", seconds=60.0)
    CheckpointOptions(folder='run', seconds=60.0)
    """

    plain: ClassVar[str] = "folder"

    folder: "str | PathLike[str] | None" = option(None, "text", None)
    seconds: float = option(30.0, "real", least=0)
