"""Values of options: choices that have options of their own. Nothing here needs torch."""

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
    """Hamiltonian Monte Carlo of the weights: ``weights=HMC(...)``, or ``weights="hmc"`` with the defaults.

    Parameters
    ----------
    chains : int
        Chains of each structure, side by side; they begin at the networks of a fit.
    sweeps : int
        Trajectories of each chain, the first half of them to burn in.
    leapfrogs : int
        Steps of a trajectory.
    states : int or "auto"
        Networks that are kept of each chain, evenly spaced. "auto" is 30, or all after the burn-in if these are fewer.
    structure_weights : {"fit", "stacking"}
        Weigh structures as the fit has, by networks that have not seen the rows, or by leave-one-out densities of the
        sampled ones.

    Examples
    --------
    >>> HMC(chains=4)
    HMC(chains=4)
    >>> from fathomless import UnboundedDepthRegressor
    >>> UnboundedDepthRegressor(weights="hmc").set_params(weights__chains=4)
    UnboundedDepthRegressor(weights=HMC(chains=4))
    """

    chains: int = option(8, "whole", least=2, most=10_000)
    sweeps: int = option(400, "whole", least=16)
    leapfrogs: int = option(100, "whole", least=1)
    states: "int | str" = option("auto", "whole", "auto", least=1)
    structure_weights: str = option("stacking", "choice", names=("fit", "stacking"))


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class ELBO(OptionValue):
    """Gradients of the evidence bound for the law over structure: ``structure_from=ELBO(...)``.

    ``structure_from="elbo"`` has the defaults, and so has ``"auto"`` where it ends in the bound. A family may have no
    use for some of these options, and then refuses them.

    Parameters
    ----------
    rate : float or "auto"
        Rate of the law over structure relative to `learning_rate`. "auto" lets the law go equally far however many
        steps there are.
    delay : float
        Share of the epochs during which the law over structure stays where it starts.
    optimizer : {"adam", "natural"}
        Kind of step of the law over structure. The natural gradient finds the structure fast, also where the layers
        have not learned yet what they could.
    radius : float
        Longest natural step.
    initial_depth : float
        Start of the posterior over depth: its mean offset above `min_depth` before truncation.

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
        """Return the options of a training that move the law over structure.

        Raises
        ------
        DataError
            For a negative rate, and a radius that is not positive.
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
    """Folds of the rows, one network for each: ``cv=Folds(...)``, or ``cv=5`` for a number of folds with the defaults.

    Parameters
    ----------
    n_splits : int or "auto"
        Cross-fitted networks of a partition, each fitted to all folds of the rows but one; 1 trains one network. "auto"
        is 10 up to 5,000 rows, 5 up to 50,000 and else 1; fewer below 30 rows, and 1 below 4, for more than a million
        weights, and where `validation_fraction`, `n_restarts` or `warm_start` ask for one network.
    n_repeats : int
        Partitions into folds; `n_splits` networks for each.
    order : {"random", "blocks"}
        Folds at random, or blocks of consecutive rows, for rows in the order of time; networks still see rows after
        their fold.

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
    """Trainings from different initial weights: ``n_restarts=Restarts(...)``, or a number for the best of so many.

    Parameters
    ----------
    count : int
        Networks trained from different initial weights, side by side; many of them cost less than as many fits.
    keep : {"best", "average"}
        Keep the network with the best validation score (without held-out rows, the best bound), or average the
        predictions of all.

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
    """A splitter of scikit-learn, such as ``GroupKFold``."""

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
    """An array or a series with the fold of each row."""

    def __len__(self) -> int: ...

    def __array__(self, *given: Any, **options: Any) -> Any: ...


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Adam(OptionValue):
    """Steps of the weights by Adam: ``optimizer=Adam(...)``, or ``optimizer="adam"`` with the defaults.

    Parameters
    ----------
    schedule : str or tuple
        Of the learning rate: "cosine", "constant", "one_cycle", or pieces as in
        :class:`~fathomless.inference.variational.training.Training`.
    clip_norm : float, "auto" or None
        Longest gradient of each network; None does not clip. "auto" is 10 for networks of continuous depth, and else
        None.
    warm_up : float or "auto"
        Share of the epochs over which the temperature rises from 0. No epoch of these is kept as the best one, unless
        held-out rows decide about structure too. "auto" is 0.5 for networks of continuous depth, and else 0.

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
        """Return the options of a training that move the weights.

        Parameters
        ----------
        clip_norm : float or None
            Longest gradient that "auto" stands for.
        warm_up : float
            Share of the epochs that "auto" stands for.

        Raises
        ------
        DataError
            For a longest gradient that is not positive, and a share outside of [0, 1).
        """
        longest = clip_norm if self.clip_norm == "auto" else self.clip_norm
        if longest is not None:
            longest = checks.positive("optimizer__clip_norm", longest, "auto", None)
        share = warm_up if self.warm_up == "auto" else self.warm_up
        share = checks.interval("optimizer__warm_up", share, 0.0, 1.0)
        return {"schedule": self.schedule, "clip_norm": longest, "warm_up": share}


@option_value
@dataclass(frozen=True, repr=False)
class CheckpointOptions(OptionValue):
    """Checkpoints of a fit: ``checkpoint=CheckpointOptions(...)``, or ``checkpoint="folder"`` with the defaults.

    Parameters
    ----------
    folder : path, optional
        Folder for checkpoints. A fit that was interrupted goes on from there, to the same bytes. Without a folder
        there are none.
    seconds : float
        Least time between two checkpoints; the first is written at the first row of the history.

    Examples
    --------
    >>> CheckpointOptions("run", seconds=60.0)
    CheckpointOptions(folder='run', seconds=60.0)
    """

    plain: ClassVar[str] = "folder"

    folder: "str | PathLike[str] | None" = option(None, "text", None)
    seconds: float = option(30.0, "real", least=0)
