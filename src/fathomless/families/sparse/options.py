"""Options of sparse networks, as plain values. This module does not need torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fathomless.estimators.declaring import option
from fathomless.estimators.options import DrawnWeightsOptions, LawOptions, TableOptions, VariationalOptions
from fathomless.system import checks
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from torch.nn import Module

    from fathomless.nn.multiplicative_flow import FlowOptions

__all__ = ["TEMPERATURES", "SparseOptions", "candidate_temperatures"]

#: Candidates of ``temperature="auto"``.
TEMPERATURES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)


@dataclass(kw_only=True, eq=False, repr=False)
class SparseOptions(LawOptions, DrawnWeightsOptions, VariationalOptions, TableOptions):
    """Options of sparse networks, whose weights have inclusion variables.

    Parameters
    ----------
    posterior : {"lrt", "flow", "relaxed", "slab", "mnf"}
        Variational posterior. Spike and slab: independent, with local reparameterisation ("lrt"); with dependent slabs
        by normalising flows ("flow"); or with relaxed draws of the inclusion variables ("relaxed"). All weights
        included: independent ("slab", mean field), or dependent by multiplicative normalising flows ("mnf").
    predict_by : {"average", "median"}
        Average predictions over structures, or predict with the median probability model: the weights with an
        inclusion probability above one half.
    architecture : {"mlp", "skip"} or callable
        A multilayer perceptron ("mlp"); one with skip connections from the inputs to each layer ("skip"); or a callable
        (inputs, outputs) -> nn.Module.
    depth : int
        Hidden layers; 0 is a linear model.
    width : int
        Units per hidden layer.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "tanh"}
        Activation between layers.
    prior_inclusion : float, "learned" or sequence of float
        Prior inclusion probability of a weight; "learned" for one learned probability per layer. A sequence has one
        number for each column of the encoded table, for the weights of the first layer.
    weight_prior : float or "learned"
        Prior standard deviation of included weights; "learned" for one learned scale per layer.
    flow : FlowOptions, optional
        Kind and size of the normalising flows.
    temperature : float, "auto" or sequence of float
        T, the factor of the divergence of the weights in the ELBO; 1 is the Bayesian posterior. With "auto" or a
        sequence of candidates, networks are trained at each temperature on 80 % of the rows. The highest temperature
        whose log-likelihood on the other rows is within one standard error of the best is chosen, and the network is
        trained at it on all rows. It is 0.1 for fewer than 60 rows, for data read in parts, and for several processes.
    """

    posterior: str = option("lrt", "choice", names=("lrt", "flow", "relaxed", "slab", "mnf"))
    predict_by: str = option("average", "choice", names=("average", "median"))
    architecture: "str | Callable[[int, int], Module]" = option("mlp", "choice", names=("mlp", "skip"))
    depth: int = option(2, "whole", least=0, most=1000)
    width: int = option(64, "whole", least=1)
    activation: str = option("relu", "choice", names=("relu", "leaky_relu", "elu", "gelu", "silu", "tanh"))
    prior_inclusion: "float | str | Sequence[float]" = option(0.1, "real", "learned", list, tuple, above=0, below=1)
    weight_prior: "float | str" = option(0.3, "real", "learned", above=0)
    flow: "FlowOptions | None" = option(None, "object")
    temperature: "float | str | Sequence[float]" = option("auto", "real", "auto", list, tuple)  # type: ignore[assignment]
    weight_draws: int = option(32, "whole", least=2, most=10_000)  # two for each of 16 structures
    validation_fraction: float = option(0.0, "real")
    patience: "int | None" = option(None, "whole", None, least=1)
    structure_rate: "float | str" = option(3.0, "real", "auto")


def candidate_temperatures(value: Any) -> tuple[float, ...]:
    """Return the candidate temperatures of an option, in decreasing order; an empty tuple for a number.

    Raises
    ------
    DataError
        If the sequence is empty, or a candidate is not a positive, finite number.

    Examples
    --------
    >>> candidate_temperatures((0.01, 1.0)), candidate_temperatures(0.1), candidate_temperatures("auto") == TEMPERATURES
    ((1.0, 0.01), (), True)
    """
    if isinstance(value, str):
        checks.choice("temperature", value, ("auto",))
        return TEMPERATURES
    if not isinstance(value, list | tuple):
        return ()
    if not value:
        raise DataError(f"temperature={value!r} was given; a number, a list of at least one, or 'auto' is allowed")
    return tuple(sorted({checks.positive("temperature", number) for number in value}, reverse=True))
