"""Names of the PyTorch interface in one place, for networks of your own.

>>> from fathomless.families.pytorch import Gaussian, Rows, Training, bayesian_network, fit, predictive
"""

from fathomless.data.rows import Rows, Stream
from fathomless.families.baselines.model import bayesian_network
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.sparse.model import SparseNetwork
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP, Architecture, ConvNet, Residual, SequenceTransformer, WideResNet
from fathomless.nn.bayesian import bayesian
from fathomless.nn.images import Augment, ImageInput, Normalize
from fathomless.nn.layers import BayesianLayer, MeanField, WeightPrior
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.weight_moments import weight_moments
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.laws import FixedDepth, PoissonPrior, TruncatedPoisson, UniformPrior
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, Likelihood, StudentT
from fathomless.posterior.predictive import predictive

__all__ = [
    "MLP",
    "Architecture",
    "Augment",
    "BayesianLayer",
    "Bernoulli",
    "Categorical",
    "ConvNet",
    "Ensemble",
    "FixedDepth",
    "Gaussian",
    "ImageInput",
    "Laplace",
    "Likelihood",
    "MeanField",
    "Normalize",
    "PoissonPrior",
    "Residual",
    "Rows",
    "SequenceTransformer",
    "SparseNetwork",
    "SpikeSlab",
    "Stream",
    "StructureSearch",
    "StudentT",
    "Training",
    "TruncatedPoisson",
    "UnboundedDepth",
    "UniformPrior",
    "WeightPrior",
    "WideResNet",
    "bayesian",
    "bayesian_network",
    "fit",
    "predictive",
    "weight_moments",
]
