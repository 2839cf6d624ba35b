"""Options of estimators as plain values, declared once for Python, the command line and the documentation.

Options come in groups: tables, variational training, laws over structure that are fitted by gradients, chains. A family
combines the groups that it uses and adds its own; its estimators are dataclasses of them. This module does not import
torch, so that ``fathomless --help`` is fast.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from fathomless.estimators.declaring import build_docstring, option
from fathomless.estimators.renamed import old_names, translate_options
from fathomless.estimators.values import ELBO, Adam, CheckpointOptions, FoldArray, Folds, Restarts, Splitter

if TYPE_CHECKING:
    from fathomless.inference.runs.run import Run

__all__ = [
    "CHANGEABLE",
    "COMMON",
    "RUN_OPTIONS",
    "ChainOptions",
    "ClassOptions",
    "CrossFitOptions",
    "DrawnTrainingOptions",
    "DrawnWeightsOptions",
    "LawOptions",
    "NaturalLawOptions",
    "NoiseOptions",
    "TableOptions",
    "VariationalOptions",
    "documented",
    "options_of",
]

Kind = TypeVar("Kind", bound=type)


@dataclass(kw_only=True, eq=False, repr=False)
class TableOptions:
    """Options for reading a table, and for the device, precision, checkpoints, display and seed of a fit.

    Parameters
    ----------
    missing : {"auto", "error", "impute"}
        Missing values: "auto" accepts them in data frames, "error" nowhere, and "impute" in arrays too. When
        predicting, missing values in a column that had none in training are replaced by the mean, and "auto" warns of
        them.
    unseen : {"warn", "error", "ignore"}
        Categories that are not in the training set: they are encoded as none of the known categories, with a warning
        ("warn") or without ("ignore"), or raise an error ("error"). In a column with a level for rare categories
        (`max_levels`) they have this level.
    max_levels : int or "auto"
        Maximum number of categories of a text column. If there are more, the most frequent ones with two rows or more
        (a total weight of two) are kept; the others share one level with categories of new rows. "auto" is 100. For
        networks of unbounded depth with point estimates, it is up to 1,000, with at most half as many levels as rows,
        and fewer in tables of more than 50,000 rows; categories of a single row then share one level if there are more
        than 100 categories.
    numbers : {"auto", "plain", "binned"}
        Encoding of columns of numbers: "plain" is one standardised feature. "binned" adds a bounded copy, indicators of
        frequent values, and bins, which show masses and steps of a column to the first layer. "auto" is "binned" for
        networks of unbounded depth with point estimates from 500 rows on for classes and from 2,000 rows on for
        numbers. A short training of cross-fitted networks chooses between both by out-of-fold rows for smaller tables,
        of 100 rows or more, and for tables with 5 to 50 rows for each column, under the conditions for
        ``weight_prior="auto"``. Smaller tables without such a training are "plain", and so are tables with fewer than
        five rows for each column.
    device : str
        Device: "cpu", "cuda", ...; "auto" uses a GPU if one is available.
    precision : {"auto", "float32", "float64", "bfloat16"}
        Floating-point precision. "auto" is float64 up to 256 rows for several cross-fitted networks and below 2,000
        rows for one network, where it costs little time, and float32 above.
    checkpoint : path or CheckpointOptions, optional
        Folder for checkpoints, or :class:`~fathomless.estimators.values.CheckpointOptions`. An interrupted fit resumes
        from the last checkpoint, with bit-identical results.
    verbose : int
        Level of output on standard error: 0 is silent, 1 shows a progress bar, and 2 writes a line for every row of the
        history, for log files and notebooks.
    random_state : int, RandomState, Generator or None
        Seed. Results are bit-identical for the same seed, data, machine and number of threads.
    """

    missing: str = option("auto", "choice", names=("auto", "error", "impute"))
    unseen: str = option("warn", "choice", names=("warn", "error", "ignore"))
    max_levels: "int | str" = option("auto", "whole", "auto", least=2)
    numbers: str = option("auto", "choice", names=("auto", "plain", "binned"))
    device: str = option("auto", "text")
    precision: str = option("auto", "choice", names=("auto", "float32", "float64", "bfloat16"))
    checkpoint: "str | PathLike[str] | CheckpointOptions | None" = option(
        None, "object", None, str, PathLike, values={"checkpoint": CheckpointOptions}
    )
    verbose: int = option(0, "object")
    random_state: Any = option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class VariationalOptions:
    """Options of training networks by stochastic gradients, from one start or several.

    Parameters
    ----------
    temperature : float
        Factor T of the Kullback-Leibler divergence of the weights in the objective; 1 is the Bayesian posterior.
    epochs : int or "auto"
        Number of passes over the training set. "auto" makes about 4,000 steps (2,000 if more than five networks are
        trained together), within 20 and 1,000 epochs. If the posterior over structure is fitted to held-out rows,
        growth and slow starts may double them.
    batch_size : int or "auto"
        Rows per minibatch. "auto" is 256, or 512 from 10,000 rows on.
    learning_rate : float
        Learning rate of the weights.
    optimizer : {"adam"} or Adam
        Optimizer of the weights. :class:`~fathomless.estimators.values.Adam` has options for the schedule of the
        learning rate, gradient clipping and the warm-up of the temperature.
    patience : int, "auto" or None
        Early stopping after this number of validation scores without improvement; None never stops early. "auto" is 30.
        If the posterior over structure is fitted to held-out rows, "auto" is a tenth of the epochs, and training never
        stops before the focus phase.
    validation_fraction : float or "auto"
        Fraction of the rows that is held out of a single network to choose the best epoch; 0 trains on all rows. "auto"
        is 0.1 from 60 rows on, and 0 below.
    n_restarts : int or Restarts
        Number of networks trained from different initial weights; the best one is kept.
        :class:`~fathomless.estimators.values.Restarts` can average them instead.
    calibrate : bool
        Fit the scale of the noise to the held-out rows after training, or a factor of the scale if the network predicts
        it.
    minutes : float, optional
        Time limit of the fit in minutes. Trials that compare options are left out, and the planned epochs are reduced,
        so that the fit ends within this time, with a warning. It has at least two epochs, and its second stage, for
        which a tenth of the time is kept, is not shortened: a limit that is too short for both is exceeded. A
        shortened fit depends on the speed of the machine, not only on the seed. Not for ``weights="hmc"``.
    callbacks : sequence of callables, optional
        Functions called with the :class:`~fathomless.inference.runs.run.Run` after every row of the history, which is
        after the first epoch in every eight steps or so.
    warm_start : bool
        Continue from the fitted state at the next call of fit.
    """

    temperature: float = option(1.0, "real")
    epochs: "int | str" = option("auto", "whole", "auto", least=1)
    batch_size: "int | str" = option("auto", "whole", "auto", least=1)
    learning_rate: float = option(5e-3, "real")
    optimizer: "str | Adam" = option("adam", "choice", names=("adam",), values={"adam": Adam})
    patience: "int | str | None" = option("auto", "whole", "auto", None, least=1)
    validation_fraction: "float | str" = option("auto", "real", "auto")
    n_restarts: "int | Restarts" = option(1, "whole", least=1, most=10_000, values={"restarts": Restarts})
    calibrate: bool = option(True, "flag")
    minutes: "float | None" = option(None, "real", None)
    callbacks: "Sequence[Callable[[Run], None]] | None" = option(None, "object")
    warm_start: bool = option(False, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class LawOptions:
    """Options for fitting a law over structure by gradients.

    Parameters
    ----------
    structure_rate : float or "auto"
        Learning rate of the law over structure relative to `learning_rate`. "auto" scales it so that the law can move
        equally far for any number of steps.
    structure_delay : float
        Fraction of the epochs during which the law over structure is fixed at its initial value.
    """

    structure_rate: "float | str" = option("auto", "real", "auto")
    structure_delay: float = option(0.0, "real", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class NaturalLawOptions(LawOptions):
    """Options for a law over structure with few parameters, for which natural gradients are cheap.

    Parameters
    ----------
    structure_optimizer : {"adam", "natural"}
        Optimizer of the law over structure. Natural gradients converge fast, even before the layers are fully trained.
    structure_radius : float
        Maximum length of a natural-gradient step.
    """

    structure_optimizer: str = option("adam", "choice", names=("adam", "natural"))
    structure_radius: float = option(0.1, "real")


@dataclass(kw_only=True, eq=False, repr=False)
class CrossFitOptions:
    """Options of cross-fitting: the number of networks, their folds, and the rows that determine structure and noise.

    Parameters
    ----------
    structure_from : {"auto", "held_out", "elbo"} or ELBO
        Objective of the posterior over structure: the log-likelihood of held-out rows ("held_out"), or the evidence
        lower bound ("elbo", as in the papers), with the options of :class:`~fathomless.estimators.values.ELBO`. "auto"
        is "held_out" for point estimates of weights, if rows are held out or folded, and else "elbo".
    cv : int, "auto", Folds, splitter, list of splits or array of int, shape (N,) or (R, N)
        Number of cross-fitted networks (folds); 1 trains a single network, and "auto" chooses by the number of rows.
        :class:`~fathomless.estimators.values.Folds` also sets the number of partitions and the order of the rows. An
        array contains the fold of each row, in one partition or in R. A splitter of scikit-learn, such as
        ``GroupKFold(5)`` or ``RepeatedKFold()``, is called with the encoded rows of nonzero weight. It must test every
        row once in each repetition, and needs its own `random_state` if it shuffles. A list of splits, each (rows to
        train on, rows to test on), must also test every row once in each repetition.
    candidates : dict of str to list, optional
        Candidate architectures: all combinations of the values given for "architecture", "activation", "width",
        "numbers" ("plain" and "binned") and "weight_prior". Each is cross-fitted on the same folds, and stacking
        weights them by out-of-fold log-likelihood (below 200 rows they have equal weights). The cost is the sum of the
        costs of all candidates.
    """

    structure_from: "str | ELBO" = option("auto", "choice", names=("auto", "held_out", "elbo"), values={"elbo": ELBO})
    cv: "int | str | Folds | Any" = option(
        "auto", "whole", "auto", list, tuple, FoldArray, Splitter, least=1, most=10_000, values={"folds": Folds}
    )
    candidates: "Mapping[str, Sequence[Any]] | None" = option(None, "lists")


@dataclass(kw_only=True, eq=False, repr=False)
class ChainOptions:
    """Options of sampling a posterior by Markov chains.

    Parameters
    ----------
    chains : int
        Number of chains, each with its own random start.
    sweeps : int
        Number of sweeps of each chain, including the burn-in.
    burn_in : float
        Fraction of the sweeps that is discarded as burn-in, 0 <= burn_in < 1.
    states : int or "auto"
        Number of states kept from each chain, evenly spaced. "auto" is 250, or all after the burn-in if fewer.
    chains_by : {"selected", "all", "stacked"}
        Weights of the chains. "selected" gives equal weights to the chains whose training log-likelihood is within 0.08
        nats per row of the best (0.04 for each column of a density with more than two columns). "all" gives equal
        weights to all chains. "stacked" maximises the log-likelihood of held-out rows.
    validation_fraction : float
        Fraction of the rows that is held out, for "stacked" and for a score on rows that no chain was fitted to.
    n_jobs : int
        Number of chains that run in parallel, on threads unless joblib's ``parallel_config`` sets another backend; -1
        is one for each core. Results are bit-identical for any number.
    callbacks : sequence of callables, optional
        Functions called with the :class:`~fathomless.inference.mcmc.chains.Chains` forty times in a run.
    """

    chains: int = option(12, "whole", least=1, most=10_000)
    sweeps: int = option(4000, "whole", least=1)
    burn_in: float = option(0.5, "real", least=0)
    states: "int | str" = option("auto", "whole", "auto", least=1)
    chains_by: str = option("selected", "choice", names=("selected", "all", "stacked"))
    validation_fraction: float = option(0.0, "real", least=0)
    n_jobs: int = option(1, "whole", -1, least=1)
    callbacks: "Sequence[Callable[[Any], None]] | None" = option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class ClassOptions:
    """Options of class weights, misclassification costs and the order of classes.

    Parameters
    ----------
    class_weight : {"balanced"}, dict or None
        Weight of the rows of each class, as in scikit-learn: it multiplies `sample_weight` before the fit. Predicted
        probabilities, held-out scores and the posterior over structure then refer to the weighted population.
        "balanced" gives all classes the same total weight, and keeps the sum of the weights.
    class_cost : {"balanced"}, dict or None
        Cost of misclassifying a row of each class: `predict` returns the class with the largest cost times probability.
        Probabilities do not change. "balanced" is the inverse of the frequency of a class.
    ordinal : bool or list of labels
        True for ordered classes: numbers and booleans are ordered by value, and an ordered categorical of pandas or an
        Enum of polars by its categories. For text, give the labels in ascending order. The network then has one output,
        compared with learned thresholds (:class:`~fathomless.posterior.likelihoods.CumulativeLogit`). With few rows
        this is better than separate logits if one quantity underlies the classes. The columns of probabilities keep
        their order.
    trees : bool
        Fit boosted trees on the same folds, and pool their probabilities with those of the networks, with exponents
        from out-of-fold or held-out rows (:mod:`fathomless.posterior.trees`). This helps if classes depend on steps
        and interactions of columns. Such a fit has no gradients through the trees. Not for multilabel targets.
    """

    class_weight: Any = option(None, "choice", None, dict, names=("balanced",))
    class_cost: Any = option(None, "choice", None, dict, names=("balanced",))
    ordinal: Any = option(False, "order")
    trees: bool = option(False, "flag")


@dataclass(kw_only=True, eq=False, repr=False)
class DrawnWeightsOptions:
    """Option of the number of weight draws in predictions.

    Parameters
    ----------
    weight_draws : int
        Number of weight draws in predictions, for sampled weights. If structures are drawn too, each has two.
    """

    weight_draws: int = option(16, "whole", least=1, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class DrawnTrainingOptions:
    """Option of the number of weight draws in training, each shared by all rows.

    Parameters
    ----------
    training_draws : int
        Number of weight draws in each training step.
    """

    training_draws: int = option(1, "whole", least=1, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class NoiseOptions:
    """Options of the noise of a regression.

    Parameters
    ----------
    likelihood : {"auto", "gaussian", "student_t", "laplace"}
        Distribution of the noise. "auto" trains with Gaussian noise. If rows are held out or folded, it then changes to
        Student's t if its evidence on these rows is higher. "student_t" has 4 degrees of freedom.
    noise : {"learned", "input"} or float
        Scale of the noise: "learned" for one scale per target, "input" for a scale that depends on the features, or a
        number for a fixed scale, in standard deviations of the target.
    recalibrate : bool
        Learn the law of the standardised residual given the row, from out-of-fold or held-out rows after training
        (:mod:`fathomless.inference.out_of_fold.recalibration`): its width, skewness and modes. With ``weights="hmc"``
        these are all training rows, each with its leave-one-out law (:mod:`fathomless.inference.mcmc.left_out`). It is
        used if it improves the cross-validated log-likelihood. Values that many rows share, such as zero in a column of
        amounts, are predicted apart (:mod:`fathomless.posterior.hurdle`). If the target of 30 to 1,000 rows is skewed,
        networks that are trained by gradients are fitted to its logarithm too, and the fit with the higher out-of-fold
        log-likelihood is used (:mod:`fathomless.posterior.transformed`); the second fit doubles the time. It requires
        ``likelihood="auto"``, ``calibrate=True`` and no fixed noise; other laws stay unchanged.
    neighbors : bool
        Let the recalibration also use the targets of the 16 nearest training rows
        (:mod:`fathomless.posterior.neighbors`). This helps if near rows repeat targets, as replicates do, or if the
        table has detail that the networks do not learn. The fit and its saved file then contain the encoded training
        rows and their targets, if this improves the cross-validated log-likelihood. Consider privacy and size. Such a
        fit cannot be exported. It requires ``recalibrate=True``.
    trees : bool
        Fit boosted trees on the same folds, and add laws around their predictions to the recalibration
        (:mod:`fathomless.posterior.trees`). This helps if the target depends on steps and interactions of columns. Such
        a fit has no gradients through the trees. It requires ``recalibrate=True``.
    """

    likelihood: str = option("auto", "choice", names=("auto", "gaussian", "student_t", "laplace"))
    noise: "float | str" = option("learned", "real", "learned", "input", above=0)
    recalibrate: bool = option(True, "flag")
    neighbors: bool = option(False, "flag")
    trees: bool = option(False, "flag")


#: Names of the options that affect neither predictions nor checkpoints.
RUN_OPTIONS = ("verbose", "n_jobs")

#: Names of the options that families share: tables, training, laws, draws and chains.
COMMON = frozenset(
    f.name
    for group in (
        TableOptions,
        VariationalOptions,
        NaturalLawOptions,
        DrawnWeightsOptions,
        DrawnTrainingOptions,
        CrossFitOptions,
        ChainOptions,
    )
    for f in fields(group)
)

#: Names of the options that may differ between a fit and the earlier fit that it continues.
CHANGEABLE = COMMON | {f.name for f in fields(ClassOptions)} - {"ordinal", "trees"}


def options_of(kind: type) -> tuple[Field[Any], ...]:
    """Return the options of an estimator or of a group, those specific to a family first."""
    return tuple(sorted(fields(kind), key=lambda f: f.name in COMMON))


@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
def documented(kind: Kind) -> Kind:
    """Add a constructor with all options to an estimator, and a docstring with all options and attributes.

    The docstring of the class itself contains the summary, notes, references and examples. The sections of options and
    attributes are collected from its base classes.
    """
    dataclass(kw_only=True, eq=False, repr=False)(kind)
    if old_names(kind):
        _accept_old_names(kind)
    kind.__doc__ = build_docstring(kind)
    return kind


def _accept_old_names(kind: Any) -> None:
    """Wrap the constructor of an estimator to accept the option names of the previous version; keep its signature."""
    constructor = kind.__init__

    @functools.wraps(constructor)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        constructor(self, *args, **translate_options(kind, options))

    __init__.__signature__ = inspect.signature(constructor)  # type: ignore[attr-defined]
    kind.__init__ = __init__
