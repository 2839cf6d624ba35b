"""The options of infinite graphs, as plain values; nothing here needs torch."""

from dataclasses import dataclass

from fathomless.estimators.declaring import option
from fathomless.estimators.options import ChainOptions, DrawnWeightsOptions, TableOptions

__all__ = ["GraphOptions"]


@dataclass(kw_only=True, eq=False, repr=False)
class GraphOptions(DrawnWeightsOptions, ChainOptions, TableOptions):
    """How a graph without an upper limit on its hidden units is sampled.

    Parameters
    ----------
    prior : {"icp", "cibp", "ecibp", "ibp"}
        Over graphs: the Indian chefs process; in layers, the cascading and the extended cascading Indian buffet
        process; one layer, the two-parameter Indian buffet process.
    births : int
        Births and deaths of hidden units that are tried in each sweep.
    grow_data : bool
        Use a fifth and two fifths of the rows in the first two quarters of the burn-in: chains find good graphs more
        often.
    max_hidden : int or None
        Most hidden units; None has no limit. A limit truncates the prior.
    weight_scale : float
        Standard deviation of the prior of weights.
    bias_scale : float
        Standard deviation of the prior of biases.
    precision_prior : (float, float)
        Shape and rate of the gamma prior of the precision of every unit.
    mass_prior : (float, float)
        Shape and rate of the gamma prior of the mass γ: the hidden units that one unit at the bottom asks for.
    concentration_prior : (float, float)
        Shape and rate of the gamma prior of 1 / α: a small concentration α has hidden units shared by many.
    popularity_prior : (float, float)
        Shape and rate of the gamma prior of the popularity φ: how readily units take columns that predict.
    margin : float
        Of a density: room δ at both ends of each column in units of its range, 0 < δ < ½. The density is positive
        δ / (1 − 2 δ) ranges beyond the data.
    networks : int
        Sampled networks that a prediction averages, evenly spaced; of a density four times as many.
    weight_draws : int
        Draws of the hidden units of each network in a prediction.
    density_draws : int
        Draws of the hidden units of each network in a density; more of them help where few components reach a row.
    engine : {"auto", "compiled", "numpy"}
        Moves compiled by numba (the extra ``mcmc``), or by NumPy: one law, other bytes. "auto" compiles if it can.
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
    engine: str = option("auto", "choice", names=("auto", "compiled", "numpy"))
    precision: str = option("float64", "choice", names=("float64",))
