"""Values of options: choices that have options of their own. Nothing here needs torch."""

import math
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar

from fathomless.estimators.declaring import OptionValue, option, option_value
from fathomless.system import checks

__all__ = ["ELBO", "HMC", "Adam", "CheckpointOptions"]


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

    plain: ClassVar[tuple[type, ...]] = (str, PathLike)

    folder: "str | PathLike[str] | None" = option(None, "object")
    seconds: float = option(30.0, "real", least=0)
