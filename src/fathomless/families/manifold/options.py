"""Options of weight manifolds, as plain values. This module does not need torch."""

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
    """Options of networks whose weights are decoded from a low-dimensional latent space.

    Parameters
    ----------
    width : int or sequence of int
        Units of the hidden layer, or of each hidden layer.
    activation : {"relu", "tanh", "rbf", "silu"}
        Activation of hidden units; "rbf" is exp(−a²).
    architecture : "mlp" or callable
        "mlp" is a multilayer perceptron. A callable ``(inputs, outputs) -> nn.Module`` builds any network without
        buffers and dropout. Its hidden units are not matched between candidates, so set `snapshots`.
    weight_prior : float, "auto" or WeightPrior
        Prior standard deviation of each weight of a candidate; "auto" is 1/√fan-in for weights and 1 for biases.
    candidates : int
        Number of trained networks from which the latent space is learned.
    snapshots : int
        Number of candidates taken from each training trajectory (snapshot ensembles). The learning rate follows this
        number of cycles, which share the steps, and a candidate is taken at the end of each cycle.
        `candidates` / `snapshots` trajectories are trained in parallel.
    candidate_steps : int
        Training steps of a candidate.
    candidate_rate : float
        Learning rate of the candidates.
    holdout : float
        Share of the rows held out from each candidate, 0 or 0.01 to 0.5. Out-of-fold rows identify bad local optima and
        set the noise.
    anchored : bool
        Regularise each candidate towards a draw from the prior instead of towards 0: more uncertainty away from the
        data.
    matching : bool
        Match the hidden units of the candidates before the latent space is learned.
    latent_dim : int or sequence of int
        Dimensions of the latent space; at most a quarter of `candidates` is recommended. From several numbers, the one
        with the highest log-likelihood on held-out rows is chosen.
    decoder_width : int or sequence of int
        Hidden units of the decoder; 0 or an empty sequence for a linear decoder.
    decoder_map : {"whole", "layers", "chunks"}
        Last map of the decoder. "whole" is one linear map with `decoder_width` parameters per weight. For large
        networks, "layers" has a map with its own hidden units for each layer; "chunks" is one hypernetwork shared by
        chunks of 1,024 weights, with a learned embedding of each chunk.
    decoder_steps : int
        Training steps of the decoder.
    decoder_law : {"bias", "last", "none"}
        Random part of the decoder: the biases of its last layer, the whole last layer, or nothing.
    latent_posterior : {"mixture", "sampled"}
        Posterior over the latent space: a mixture of normal distributions that maximises the ELBO; or elliptical slice
        sampling started from this mixture, with a deterministic decoder. Sampling is slower, has no step size to tune,
        and serves as a reference.
    components : int
        Largest number of components of the mixture.
    covariance : {"diagonal", "full"}
        Covariance of each component.
    component_weights : {"counted", "equal", "learned"}
        Weights of the components: the share of candidates closest to each, equal, or learned with the ELBO. On small
        tables, learned weights concentrate on the network that fits best, and unseen rows are predicted worse.
    latent_steps : int
        Steps of variational inference, first with the decoder fixed, then with its posterior.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.families.manifold.stages.StagedRun` ten times per stage.
    """

    width: "int | Sequence[int]" = option(50, "whole", list, tuple, least=1)
    activation: str = option("relu", "choice", names=("relu", "tanh", "rbf", "silu"))
    architecture: "str | Callable[[int, int], Module]" = option("mlp", "choice", object, names=("mlp",))
    weight_prior: "float | str | WeightPrior" = option("auto", "real", "auto", object, above=0)
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
