"""The options of weight manifolds, as plain values; nothing here needs torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fathomless.estimators.declaring import option
from fathomless.estimators.options import DrawnTrainingOptions, DrawnWeightsOptions, TableOptions

if TYPE_CHECKING:
    from torch.nn import Module

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
    architecture : "mlp" or callable
        A callable ``(inputs, outputs) -> nn.Module`` builds networks of any kind without buffers and dropout. Their
        units are not brought into one order: give `snapshots`.
    weight_prior : float, "auto" or WeightPrior
        Standard deviation of the prior of every weight of a candidate; "auto" is 1/√fan-in, and 1 for biases.
    candidates : int
        Networks from which the latent space is learned.
    snapshots : int
        Candidates that are taken from each trajectory of the training, at the ends of as many cycles of its rate, which
        share the steps; `candidates` / `snapshots` trajectories are trained side by side.
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
    latent_dim : int or sequence of int
        Dimensions of the latent space; a quarter of `candidates` at most is sensible. Of several, that under which rows
        left out are likeliest is kept.
    decoder_width : int or sequence of int
        Hidden units of the decoder; 0, or none, is a linear one.
    decoder_map : {"whole", "layers", "chunks"}
        Its last map, which has as many numbers as `decoder_width` times the weights of a network; for large networks, a
        map for each layer with hidden units of its own, or one for all pieces of 1,024 weights, which it tells apart.
    decoder_steps : int
        Steps of its training.
    decoder_law : {"bias", "last", "none"}
        What of the decoder is random: the constants of its last layer, the whole layer, nothing.
    latent_posterior : {"mixture", "sampled"}
        Normal laws that maximise the bound; or chains of elliptical slice sampling that begin at these, with the
        decoder a point: a reference for them, slower, without a step to tune.
    components : int
        Normal laws in the posterior over the latent space, at most.
    covariance : {"diagonal", "full"}
        Of each.
    component_weights : {"counted", "equal", "learned"}
        Theirs: the share of the candidates that each stands for; the same; or what maximises the bound: on small tables
        most of the mass goes to the network that fits best, and unseen rows are predicted worse.
    latent_steps : int
        Steps of the variational inference, once with the decoder held, once with its law.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.families.manifold.stages.StagedRun` ten times in each stage.
    """

    width: "int | Sequence[int]" = option(50, "whole", list, tuple, least=1)
    activation: str = option("relu", "choice", names=("relu", "tanh", "rbf", "silu"))
    architecture: "str | Callable[[int, int], Module]" = option("mlp", "choice", object, names=("mlp",))
    weight_prior: "float | str | WeightPrior" = option("auto", "real", "auto", object)
    candidates: int = option(40, "whole", least=2, most=10_000)
    snapshots: int = option(1, "whole", least=1, most=10_000)
    candidate_steps: int = option(1200, "whole", least=10)
    candidate_rate: float = option(1e-2, "real")
    holdout: float = option(0.1, "real", least=0)
    anchored: bool = option(False, "flag")
    matching: bool = option(True, "flag")
    latent_dim: "int | Sequence[int]" = option(10, "whole", list, tuple, least=1)
    decoder_width: "int | Sequence[int]" = option(50, "whole", list, tuple, least=0)
    decoder_map: str = option("whole", "choice", names=("whole", "layers", "chunks"))
    decoder_steps: int = option(1200, "whole", least=10)
    decoder_law: str = option("bias", "choice", names=("bias", "last", "none"))
    latent_posterior: str = option("mixture", "choice", names=("mixture", "sampled"))
    components: int = option(10, "whole", least=1, most=10_000)
    covariance: str = option("diagonal", "choice", names=("diagonal", "full"))
    component_weights: str = option("counted", "choice", names=("counted", "equal", "learned"))
    latent_steps: int = option(800, "whole", least=10)
    training_draws: int = option(10, "whole", least=1, most=10_000)
    weight_draws: int = option(32, "whole", least=1, most=10_000)
    callbacks: "Sequence[Callable[[Any], None]] | None" = option(None, "object")
