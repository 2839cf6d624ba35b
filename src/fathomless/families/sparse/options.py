"""The options of networks whose weights may be absent. Nothing here needs torch."""

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

__all__ = ["TEMPERATURES", "SparseOptions", "temperatures"]

#: Candidates of ``temperature="auto"``.
TEMPERATURES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)


@dataclass(kw_only=True, eq=False, repr=False)
class SparseOptions(LawOptions, DrawnWeightsOptions, VariationalOptions, TableOptions):
    """A network whose weights may be absent.

    Parameters
    ----------
    posterior : {"lrt", "flow", "relaxed", "slab", "mnf"}
        Independent spikes and slabs, trained by sampling the outputs of layers ("lrt"), with slabs made dependent by
        flows ("flow"), or trained by relaxed draws of weights ("relaxed"); or all weights included, independent
        ("slab", mean field) or made dependent by flows ("mnf", multiplicative normalising flows).
    predict_by : {"average", "median"}
        Predict by averaging over structures, or by the weights that are included with probability above one half.
    architecture : {"mlp", "skip"} or callable
        A multilayer perceptron, or one whose layers all see the inputs too; or a function (inputs, outputs) ->
        nn.Module.
    depth : int
        Hidden layers; 0 is a linear model.
    width : int
        Units per hidden layer.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "tanh"}
        Between layers.
    prior_inclusion : float, "learned" or sequence of float
        Prior probability that a weight is included; "learned" finds one for each layer. A sequence has one number for
        every column of the encoded table, for the weights that leave it.
    weight_prior : float or "learned"
        Standard deviation of the prior of included weights; "learned" finds one for each layer.
    flow : FlowOptions, optional
        Kind and size of the flows.
    temperature : float, "auto" or sequence of float
        T multiplies the divergence of the weights; 1 is the model. "auto", or candidates of your own: networks of
        several temperatures are trained side by side on four fifths of the rows and weighed by the others; the highest
        one within a standard error of the best is taken, and the network trained at it on all rows. Below 60 rows, and
        for data that are read in parts or trained on by several processes, it is 0.1.
    """

    posterior: str = option("lrt", "choice", names=("lrt", "flow", "relaxed", "slab", "mnf"))
    predict_by: str = option("average", "choice", names=("average", "median"))
    architecture: "str | Callable[[int, int], Module]" = option("mlp", "choice", names=("mlp", "skip"))
    depth: int = option(2, "whole", least=0, most=1000)
    width: int = option(64, "whole", least=1)
    activation: str = option("relu", "choice", names=("relu", "leaky_relu", "elu", "gelu", "silu", "tanh"))
    prior_inclusion: "float | str | Sequence[float]" = option(0.1, "real", "learned", list, tuple)
    weight_prior: "float | str" = option(0.3, "real", "learned")
    flow: "FlowOptions | None" = option(None, "object")
    temperature: "float | str | Sequence[float]" = option("auto", "real", "auto", list, tuple)  # type: ignore[assignment]
    weight_draws: int = option(32, "whole", least=2, most=10_000)  # two for each of 16 structures
    validation_fraction: float = option(0.0, "real")
    patience: "int | None" = option(None, "whole", None, least=1)
    structure_rate: "float | str" = option(3.0, "real", "auto")


def temperatures(given: Any) -> tuple[float, ...]:
    """Return the candidates that an option asks for, the highest first; none for a number.

    Raises
    ------
    DataError
        For no candidates, or what is not a positive, finite number.

    Examples
    --------
    >>> temperatures((0.01, 1.0)), temperatures(0.1), temperatures("auto") == TEMPERATURES
    ((1.0, 0.01), (), True)
    """
    if isinstance(given, str):
        checks.choice("temperature", given, ("auto",))
        return TEMPERATURES
    if not isinstance(given, list | tuple):
        return ()
    if not given:
        raise DataError(f"temperature={given!r} was given; a number, a list of at least one, or 'auto' is allowed")
    return tuple(sorted({checks.positive("temperature", value) for value in given}, reverse=True))
