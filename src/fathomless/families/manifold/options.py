"""The options of weight manifolds, as plain values; nothing here needs torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fathomless.estimators.options import DrawnTrainingOptions, DrawnWeightsOptions, TableOptions, option

if TYPE_CHECKING:
    from fathomless.nn.layers import WeightPrior

__all__ = ["ManifoldOptions"]


@dataclass(kw_only=True, eq=False, repr=False)
class ManifoldOptions(DrawnTrainingOptions, DrawnWeightsOptions, TableOptions):
    """Networks whose weights are decoded from a latent space of few dimensions.

    Parameters
    ----------
    width : int or sequence of int
        Units of the hidden layer, or of each of several.
    activation : {"relu", "tanh", "rbf", "silu"}
        Of hidden units; "rbf" is exp(−a²).
    weight_prior : float, "auto" or WeightPrior
        Standard deviation of the prior of every weight of a candidate; "auto" is 1/√fan-in, and 1 for biases.
    candidates : int
        Networks from which the latent space is learned.
    candidate_steps : int
        Steps of their training.
    candidate_rate : float
        Its rate.
    holdout : float
        Share of the rows that each candidate does not see, 0 or 0.01 to 0.5: they tell bad optima, and the noise.
    anchored : bool
        Draw each candidate towards a draw from the prior: more doubt where there are no rows.
    matching : bool
        Bring the hidden units of candidates into one order first.
    latent_dim : int
        Dimensions of the latent space; a quarter of `candidates` at most is sensible.
    decoder_width : int or sequence of int
        Hidden units of the decoder; 0, or none, is a linear one.
    decoder_steps : int
        Steps of its training.
    decoder_law : {"bias", "last", "none"}
        What of the decoder is random: the constants of its last layer, the whole layer, nothing.
    components : int
        Normal laws in the posterior over the latent space, at most.
    covariance : {"diagonal", "full"}
        Of each.
    component_weights : {"equal", "learned"}
        Theirs. Learned ones maximise the bound: on small tables most of the mass goes to the network that fits best,
        and unseen rows are predicted worse.
    latent_steps : int
        Steps of the variational inference, once with the decoder held, once with its law.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.inference.stages.StagedRun` ten times in each stage.
    """

    width: "int | Sequence[int]" = option(50, "whole", list, tuple, least=1)
    activation: str = option("relu", "choice", names=("relu", "tanh", "rbf", "silu"))
    weight_prior: "float | str | WeightPrior" = option("auto", "real", "auto", object)
    candidates: int = option(40, "whole", least=2)
    candidate_steps: int = option(1200, "whole", least=10)
    candidate_rate: float = option(1e-2, "real")
    holdout: float = option(0.1, "real", least=0)
    anchored: bool = option(False, "flag")
    matching: bool = option(True, "flag")
    latent_dim: int = option(10, "whole", least=1)
    decoder_width: "int | Sequence[int]" = option(50, "whole", list, tuple, least=0)
    decoder_steps: int = option(1200, "whole", least=10)
    decoder_law: str = option("bias", "choice", names=("bias", "last", "none"))
    components: int = option(10, "whole", least=1)
    covariance: str = option("diagonal", "choice", names=("diagonal", "full"))
    component_weights: str = option("equal", "choice", names=("equal", "learned"))
    latent_steps: int = option(800, "whole", least=10)
    training_draws: int = option(10, "whole", least=1)
    weight_draws: int = option(32, "whole", least=1)
    callbacks: "Sequence[Callable[[Any], None]] | None" = option(None, "object")
