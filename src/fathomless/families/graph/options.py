"""Options of infinite graphs, as plain values. This module does not need torch."""

from dataclasses import dataclass

from fathomless.estimators.declaring import option
from fathomless.estimators.options import ChainOptions, DrawnWeightsOptions, TableOptions

__all__ = ["GraphOptions"]


@dataclass(kw_only=True, eq=False, repr=False)
class GraphOptions(DrawnWeightsOptions, ChainOptions, TableOptions):
    """Options of Markov chains over graphs with an unlimited number of hidden units.

    Parameters
    ----------
    prior : {"icp", "cibp", "ecibp", "ibp"}
        Prior over graphs: the Indian chefs process ("icp"); the cascading or extended cascading Indian buffet process,
        with layers ("cibp", "ecibp"); the two-parameter Indian buffet process, with one layer ("ibp").
    births : int
        Number of births or deaths of hidden units proposed in each sweep.
    grow_data : bool
        Use 20 % and 40 % of the rows in the first two quarters of the burn-in. Chains then find good graphs more often.
    max_hidden : int or None
        Largest number of hidden units; None for no limit. A limit truncates the prior.
    weight_scale : float
        Standard deviation of the prior of weights.
    bias_scale : float
        Standard deviation of the prior of biases. With a small value, the shares of separate clusters among rows drawn
        from a density are more equal than among the training rows; 10 keeps the shares.
    precision_prior : (float, float)
        Shape and rate of the gamma prior of the precision of every unit.
    mass_prior : (float, float)
        Shape and rate of the gamma prior of the mass γ, the expected number of hidden parents of a unit of order 0.
    concentration_prior : (float, float)
        Shape and rate of the gamma prior of 1 / α. With a small concentration α, children share hidden units more.
    popularity_prior : (float, float)
        Shape and rate of the gamma prior of the popularity φ. With a large φ, units have more edges from columns of X.
    margin : float
        Margin δ of a density at both ends of each column, 0 < δ < ½. The support extends δ / (1 − 2 δ) of the
        column's range beyond the data.
    networks : int
        Number of sampled networks averaged in a prediction, evenly spaced; a density averages four times as many.
    weight_draws : int
        Draws of the hidden units per network in a prediction.
    density_draws : int
        Draws of the hidden units per network in a density. Raise it if rows depend on few components.
    recalibrate : bool
        For regressors: learn the law of the standardised residual given the row, from leave-one-out laws of the
        training rows (:mod:`fathomless.inference.mcmc.left_out`) and held-out rows: its width, skewness and modes. It
        is used if it improves the cross-validated log-likelihood. Values that many rows share, such as zero in a column
        of amounts, are predicted apart (:mod:`fathomless.posterior.hurdle`).
    engine : {"auto", "compiled", "numpy"}
        Compile the sampler with numba (the extra ``mcmc``) or run it in NumPy. Both sample the same posterior with
        different random numbers. "auto" compiles if numba is installed.
    precision : {"float64"}
        Chains are run in double precision.
    """

    prior: str = option("icp", "choice", names=("icp", "cibp", "ecibp", "ibp"))
    births: int = option(4, "whole", least=1, most=10_000)
    grow_data: bool = option(True, "flag")
    max_hidden: "int | None" = option(None, "whole", None, least=0)
    weight_scale: float = option(1.0, "real")
    bias_scale: float = option(1.0, "real")
    precision_prior: tuple[float, float] = option((0.5, 0.5), "object")
    mass_prior: tuple[float, float] = option((0.5, 0.5), "object")
    concentration_prior: tuple[float, float] = option((0.5, 0.5), "object")
    popularity_prior: tuple[float, float] = option((0.5, 0.5), "object")
    margin: float = option(0.1, "real")
    networks: int = option(250, "whole", least=1, most=1_000_000)
    weight_draws: int = option(4, "whole", least=1, most=10_000)
    density_draws: int = option(32, "whole", least=1, most=10_000)
    recalibrate: bool = option(True, "flag")
    engine: str = option("auto", "choice", names=("auto", "compiled", "numpy"))
    precision: str = option("float64", "choice", names=("float64",))
