"""State of a training between two epochs, which can be saved as tensors and JSON and restored."""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.batches import Batches
from fathomless.data.rows import Rows, Stream
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold.search import LogDensities, StructureSearch
from fathomless.inference.runs.averages import Averages
from fathomless.inference.runs.distributed import Ranks, ranks
from fathomless.inference.runs.limits import Planned
from fathomless.inference.variational.training import Training
from fathomless.posterior.capabilities import HasStructureLaw, get_blueprint, rebuild
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Diagnostics
from fathomless.posterior.hurdle import AtomNetworks
from fathomless.posterior.left_out import LeftOutLaws
from fathomless.posterior.likelihoods import ClassLikelihood, Likelihood, is_censored
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.recalibration import Recalibration
from fathomless.posterior.trees import TreePool
from fathomless.system.errors import DataError, DivergenceError, FathomlessError
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import evaluating

__all__ = [
    "Best",
    "Fitted",
    "Run",
    "add_prefix",
    "check",
    "find_first_part",
    "find_nonfinite",
    "history_row",
    "structure_parameters",
    "under",
]


@dataclass
class Best:
    """Best validation score so far, with the state of the model at that epoch.

    Attributes
    ----------
    score : float or None
        Best mean log predictive density of the validation rows, in nats per row.
    epoch : int
        Epoch of the best score.
    since : int
        Number of scores since then.
    blueprint : dict or None
        Blueprint of the model at that epoch; {} if its parts are fixed, None if there is no score yet.
    state : dict of str to Tensor
        Copies of the tensors of model and likelihood.
    """

    score: float | None = None
    epoch: int = 0
    since: int = 0
    blueprint: dict[str, Any] | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)

    def offer(self, score: float, epoch: int, model: Model, likelihood: nn.Module) -> None:
        """Store a copy of the present state if its score is the best so far."""
        if not math.isfinite(score) or (self.score is not None and score <= self.score):
            self.since += 1
            return
        self.score = score
        self.epoch = epoch
        self.since = 0
        self.blueprint = get_blueprint(model)
        self.state = {
            f"{prefix}/{name}": value.clone()
            for prefix, module in (("model", model), ("likelihood", likelihood))
            for name, value in module.state_dict().items()
        }

    def restore(self, model: Model, likelihood: nn.Module) -> None:
        """Restore the stored state of model and likelihood, if there is one."""
        if self.blueprint is not None:
            rebuild(model, self.blueprint)
            model.load_state_dict(under("model", self.state))
            likelihood.load_state_dict(under("likelihood", self.state))

    def is_exhausted(self, patience: int | None) -> bool:
        """Return True if the last `patience` scores have not been better."""
        return patience is not None and self.since >= patience

    def to_json(self) -> dict[str, Any]:
        """Return everything but the tensors as plain JSON, by the keys of checkpoints."""
        return {"score": self.score, "epoch": self.epoch, "since": self.since, "layout": self.blueprint}

    @staticmethod
    def from_json(meta: Mapping[str, Any], state: Mapping[str, Tensor]) -> "Best":
        """Restore a value from the result of :meth:`to_json` and the tensors."""
        return Best(meta["score"], meta["epoch"], meta["since"], meta["layout"], state)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Result of an inference, of any kind.

    Attributes
    ----------
    model : Model
        Posterior.
    likelihood : Likelihood
        p(y | f).
    history : list of dict
        One row per evaluation; see :class:`Run`.
    n_iter : int
        Number of epochs done.
    score : float or None
        Best mean log predictive density of the validation rows, in nats per row on the scale of the training targets.
        With ``Training(calibrate=True)``, that of the restored state, in which each part of the rows is scored with
        noise fitted to the other parts; the returned likelihood is fitted to all of them.
    seed : int
        Seed of the order of the rows and of weight draws.
    training : Training, optional
        Options of the training, if there was one.
    stopped : bool
        True if it ended before the last planned epoch, by early stopping or a callback.
    planned : int, optional
        Number of epochs that were planned before a time limit reduced it.
    error : str
        Reason for which one of several trainings was abandoned: the epoch at which its bound was not finite.
    log_densities : LogDensities, optional
        Log densities of the held-out rows in the restored best state, if the posterior over structure was fitted to
        them.
    diverged : tuple of int
        Indices of jointly trained networks that diverged and were left out.
    resumable : bool
        True if training can be extended bit-identically from its final checkpoint: none of its steps depended on the
        planned length.
    diagnostics : Diagnostics
        Diagnostics of the inference.
    recalibration : Recalibration, optional
        Laws of the standardised residual, learned after the inference.
    hurdle : AtomNetworks, optional
        Probabilities of the atoms of the target; the model is then that of other values.
    trees : TreePool, optional
        Boosted trees that the predictions of classes are pooled with.
    left_out : LeftOutLaws, optional
        Leave-one-out laws of the training rows, if the model consists of states of Markov chains and these laws are
        needed for a recalibration.
    warnings : tuple of str
        One sentence for each goal that the inference did not reach; an estimator issues them as warnings.
    """

    model: Model
    likelihood: Likelihood
    history: list[dict[str, float]] = field(repr=False)
    n_iter: int
    score: float | None
    seed: int
    training: Training | None = None
    stopped: bool = False
    planned: int | None = None
    error: str = ""
    log_densities: LogDensities | None = field(default=None, repr=False)
    diverged: tuple[int, ...] = ()
    resumable: bool = False
    diagnostics: Diagnostics = field(default_factory=CrossFitDiagnostics, repr=False)
    recalibration: Recalibration | None = field(default=None, repr=False)
    trees: TreePool | None = field(default=None, repr=False)
    hurdle: AtomNetworks | None = field(default=None, repr=False)
    left_out: LeftOutLaws | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()


class Run(Planned):
    """State of a training between two epochs: everything that is needed to continue it.

    Attributes
    ----------
    epoch, step : int
        Number of epochs and steps done.
    history : list of dict
        One row per evaluation: epoch, step, learning_rate, elbo, log_likelihood and divergence_* in nats for the
        data set, validation_log_likelihood in nats per row, and the structure's statistics.
    learning_rate : float
        Learning rate of the weights at the last step.
    best : Best
        Best validation score, with the state of the model at that epoch.
    terms : tuple of str
        Names of the divergences.
    tempered : frozenset of str
        Names of the divergences that the temperature multiplies.
    search : StructureSearch, optional
        State of the search, if the posterior over structure is fitted to held-out rows.
    averages : Averages, optional
        Moving averages of the weights, if the options have them.
    ranks : Ranks
        Processes of this training.
    divided : bool
        True if each process trains other networks, and False if all train the same one.
    planned : int, optional
        Number of epochs that were planned before :meth:`shorten` reduced it.
    stop : bool
        Set it to end the training after this epoch.
    pause : bool
        Set it in a callback to leave the training after this epoch with :class:`~fathomless.system.errors.PausedError`,
        once a checkpoint is written. The same call then continues from the checkpoint, with bit-identical results.
    """

    def __init__(
        self,
        model: Model,
        likelihood: Likelihood,
        training: Training,
        seed: int,
        search: StructureSearch | None = None,
        *,
        divided: bool = False,
    ) -> None:
        self.model = model
        self.likelihood = likelihood
        self.training = training
        self.seed = seed
        self.search = search
        self.ranks = ranks()
        self.divided = divided
        self.epoch = self.step = 0
        self.learning_rate = training.learning_rate
        self.history: list[dict[str, float]] = []
        self.best = Best()
        self.terms: tuple[str, ...] = ()
        self.tempered: frozenset[str] = frozenset()
        self.stop = self.pause = False
        self.planned: int | None = None
        self.order = as_generator(fold_in(seed, "order"))
        rank = ("rank", self.ranks.rank) if divided and self.ranks.rank else ()  # other networks, so other draws
        self.noise = as_generator(fold_in(seed, "noise", *rank), device=model.device)
        self.optimizer = _optimizer(training)
        self.averages: Averages | None = None
        self.register_parameters()
        self.model.train()
        self.likelihood.train()

    def result(self) -> Fitted:
        """Return the result of the training so far."""
        done = (self.model, self.likelihood, self.history, self.epoch, self.best.score, self.seed)
        return Fitted(*done, training=self.training, stopped=self.stop, planned=self.planned)

    @property
    def epochs(self) -> int:
        """Number of epochs of the whole training, by the present plan."""
        return self.training.epochs if self.search is None else self.search.epochs

    def shorten(self, epochs: int) -> None:
        """Reduce the planned epochs, also those of the schedule, to a number, or to the next possible one."""
        self.planned = self.planned or self.epochs
        if self.search is None:
            self.training = replace(self.training, epochs=max(epochs, self.epoch))
        else:
            self.search.shorten(epochs, self.epoch)

    @property
    def evaluates(self) -> bool:
        """True if the epoch that has just ended gets a row in the history."""
        due = self.search is not None and self.search.is_due(self.epoch)
        return self.epoch % self.training.evaluate_every == 0 or self.epoch == self.epochs or due

    @property
    def partners(self) -> Ranks:
        """Processes that train the same network, each with its share of every batch."""
        return Ranks() if self.divided else self.ranks

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters by their names in checkpoints."""
        return {
            **{f"model/{name}": p for name, p in self.model.named_parameters()},
            **{f"likelihood/{name}": p for name, p in self.likelihood.named_parameters()},
        }

    def register_parameters(self) -> None:
        """Add new parameters to the groups of the optimiser."""
        weights, structure = self.optimizer.param_groups
        known = {id(p) for group in (weights, structure) for p in group["params"]}
        of_structure = {id(p) for p in structure_parameters(self.model).values()}
        for p in self.named_parameters().values():
            if id(p) not in known:
                (structure if id(p) in of_structure else weights)["params"].append(p)
                if self.training.optimizer == "sgd" and self.training.momentum:
                    # a fused step needs momenta for all parameters or for none; a missing one is equivalent to zero
                    self.optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        self._follow_averages()

    def begin_averages(self, steps: int) -> None:
        """Begin the moving averages of the weights, if the options have them, for epochs of a number of steps."""
        if self.training.averaging and self.averages is None:
            self.averages = Averages(self.training.averaging * steps)
            self._follow_averages()

    def restore_best(self) -> None:
        """Restore the best state so far, and continue the training and the averages from it."""
        self.best.restore(self.model, self.likelihood)
        if self.averages is not None:
            self._follow_averages()
            self.averages.restart()

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Replace the weights by their moving averages for a while, if there are any."""
        return contextlib.nullcontext() if self.averages is None else self.averages.in_place()

    def _follow_averages(self) -> None:
        if self.averages is None:
            return
        law = structure_parameters(self.model)
        state = {name: value for name, value in self.model.state_dict().items() if name not in law}
        state = add_prefix("model", state) | add_prefix("likelihood", self.likelihood.state_dict())
        self.averages.follow({name: value for name, value in state.items() if value.is_floating_point()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors by name, not copied."""
        state = {
            **add_prefix("model", self.model.state_dict()),
            **add_prefix("likelihood", self.likelihood.state_dict()),
            **add_prefix("best", self.best.state),
            "generator/order": self.order.get_state(),
            "generator/noise": self.noise.get_state(),
            **({} if self.averages is None else add_prefix("average", self.averages.values)),
        }
        for name, p in self.named_parameters().items():
            for key, value in self.optimizer.state.get(p, {}).items():
                if value is not None:
                    state[f"optimizer/{name}/{key}"] = value
        return state

    def meta(self) -> dict[str, Any]:
        """Return the rest of the state as plain JSON."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "history": self.history,
            "layout": get_blueprint(self.model),
            "best": self.best.to_json(),
            **({} if self.search is None else {"looks": self.search.to_json(), "stop": self.stop}),
            **({"processes": self.ranks.count} if self.divided else {}),
            **({} if self.averages is None else {"averaged_steps": self.averages.steps}),
            **({} if self.planned is None else {"planned": self.planned, "epochs": self.epochs}),
        }

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`tensors` and :meth:`meta` returned.

        If the networks are divided among processes, the names of the tensors begin with the number of the process.
        """
        wrote, here = meta.get("processes", 1), self.ranks.count if self.divided else 1
        if wrote != here:
            raise DataError(
                f"the checkpoint of several networks was written by {wrote} processes, but this run has {here}; start "
                f"{wrote}, or give another folder (--overwrite on the command line) to start a new fit"
            )
        if ("averaged_steps" in meta) != (self.averages is not None):
            other = "with" if self.averages is None else "without"
            raise DataError(
                f"averaging={self.training.averaging:g} was given, and the checkpoint was written {other} averages; "
                "continue with the options of the first part, or begin anew"
            )
        if self.divided:
            tensors = under(str(self.ranks.rank), tensors)
        rebuild(self.model, meta["layout"])
        self.model.load_state_dict(under("model", tensors))
        self.likelihood.load_state_dict(under("likelihood", tensors))
        self.register_parameters()
        if self.averages is not None:
            self.averages.steps = meta["averaged_steps"]
            for name, value in under("average", tensors).items():
                self.averages.values[name].copy_(value)
        for name, p in self.named_parameters().items():
            moments = under(f"optimizer/{name}", tensors)
            if moments:
                # fused optimisers need all their state, the step count too, on the device of the parameter
                self.optimizer.state[p] = {key: value.to(p.device) for key, value in moments.items()}
        self.order.set_state(tensors["generator/order"].cpu())
        self.noise.set_state(tensors["generator/noise"].cpu())
        self.best = Best.from_json(meta["best"], under("best", tensors))
        self.epoch = meta["epoch"]
        self.step = meta["step"]
        self.planned = meta.get("planned")
        if self.search is None and self.planned is not None:
            self.training = replace(self.training, epochs=meta["epochs"])
        if self.search is None and self.epoch > self.epochs:
            raise DataError(
                f"epochs={self.epochs} was given, and the checkpoint has {self.epoch} epochs; give at least as many"
            )
        self.history = list(meta["history"])
        if self.search is not None:
            self.search.resume(meta["looks"])
        self.stop = meta["stop"] if self.search is not None else self.best.is_exhausted(self.training.patience)


@torch.no_grad()
def check(
    model: Model, likelihood: Likelihood, data: Rows | Stream | StackedRows | Batches, *, finite: bool = True
) -> None:
    """Check model, likelihood and data against each other on the first rows, before a training starts.

    Parameters
    ----------
    model, likelihood, data
        Model and likelihood to be trained, and the training data.
    finite : bool
        If True, raise an error for outputs that are not finite. It is False for several networks, since those that
        diverge are left out.

    Raises
    ------
    DataError
        If rows, model and likelihood are not compatible.
    DivergenceError
        If the outputs of the network are not finite for finite rows.
    """
    rows = data.first
    for name, value in (("x", rows.x), ("y", rows.y), ("weight", rows.weight)):
        if name == "weight" and value is None:
            continue
        if not isinstance(value, Tensor):
            raise DataError(f"{name} was given as {type(value).__name__}; a torch.Tensor is allowed")
        if value.ndim == 0 or len(value) != len(rows.x):
            raise DataError(f"{name} has shape {tuple(value.shape)} and x {tuple(rows.x.shape)}; rows must agree")
    if not len(rows):
        raise DataError("0 rows were given; at least 1 is needed")
    _refuse_inference_tensors(model, likelihood, rows)
    _check_bounds(likelihood, rows.y)
    if rows.weight is not None:
        if rows.weight.ndim != 1 and isinstance(data, Rows):
            raise DataError(f"weight has shape {tuple(rows.weight.shape)}; one number for each row is allowed, (N,)")
        odd = rows.weight[~(rows.weight.isfinite() & (rows.weight >= 0))]
        if len(odd):
            raise DataError(
                f"weight has the value {odd[0].item():g}; finite numbers >= 0 are allowed: remove such rows"
            )
        if isinstance(data, Rows) and not rows.weight.any():
            raise DataError("all sample weights are zero; at least one must be positive")
    if rows.x.is_floating_point() and rows.x.dtype != model.dtype:
        raise DataError(f"x is {rows.x.dtype} and the model {model.dtype}; convert one of them, for instance x.float()")
    if isinstance(likelihood, ClassLikelihood):
        classes = likelihood.classes
        if rows.y.dtype != torch.int64 or bool(((rows.y < 0) | (rows.y >= classes)).any()):
            raise DataError(
                f"y is {rows.y.dtype} from {rows.y.min()} to {rows.y.max()}; classes are int64 from 0 to {classes - 1}"
            )
    few = rows if isinstance(data, StackedRows) else rows.take(slice(0, 2))
    try:
        with evaluating(model):
            draws = model.draw(few.x, 1, as_generator(0))
            likelihood.log_prob(draws.f, few.y)
    except (RuntimeError, TypeError, IndexError) as error:
        if isinstance(error, FathomlessError):
            raise
        raise DataError(
            f"the network cannot be applied to x of shape {tuple(rows.x.shape)} and y of shape {tuple(rows.y.shape)}: "
            f"{error}; check that each layer accepts what the one before it returns"
        ) from error
    if draws.f.dtype != model.dtype:
        where = find_first_part(model, few.x, lambda value: value.is_floating_point() and value.dtype != model.dtype)
        raise DataError(
            f"the output of the network is {draws.f.dtype} and its weights are {model.dtype}: {where} returns another "
            "type; convert the tensors that it adds or multiplies to the type of its input"
        )
    if finite:
        _check_weights(draws)
    if finite and few.x.isfinite().all() and not draws.f.isfinite().all():
        raise DivergenceError(
            f"before the first step the output of the network is not finite for finite rows; check "
            f"{find_nonfinite(model, few.x)}: its computation and its initial weights"
        )


def _check_bounds(likelihood: Likelihood, y: Tensor) -> None:
    """Raise DataError if lower bounds of censored targets are above upper ones."""
    if not is_censored(likelihood, y):
        return
    low, high = y.chunk(2, 1)
    if bool((low > high).any()):
        count, kind = low.shape[1], type(likelihood).__name__
        raise DataError(
            f"y has {2 * count} columns and the likelihood {count} target(s): the columns are lower and upper "
            f"bounds of censored targets, and some lower bounds are above the upper ones; for {2 * count} targets use "
            f"{kind}({2 * count})"
        )


def _check_weights(draws: Draws) -> None:
    """Raise DataError if the weights of the draws of a model do not have the sum 1."""
    total = float(draws.log_weight.double().exp().sum())
    if math.isfinite(total) and abs(total - 1.0) > 1e-3:
        raise DataError(
            f"the weights of the draws have the sum {total:.4g}; log_weight must have the logsumexp 0, such as "
            f"-log({len(draws.log_weight)}) for equal weights"
        )


@torch.no_grad()
def find_first_part(model: nn.Module, x: Tensor, wrong: Callable[[Tensor], bool]) -> str:
    """Find the first part of a model whose output is wrong; return its name and class.

    Parameters
    ----------
    model : Model
        Any family.
    x : Tensor, shape (B, ...)
        Rows that the model is applied to.
    wrong : callable
        Output of a part to bool.
    """
    parts: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def check_output(part: nn.Module, _: Any, output: Any) -> None:
            values = output if isinstance(output, tuple) else (output,)
            if any(isinstance(value, Tensor) and wrong(value) for value in values):
                parts.append(f"{name} (a {type(part).__name__})")

        return check_output

    hooks = [part.register_forward_hook(make_hook(name)) for name, part in model.named_modules() if name]
    try:
        model(x, 1, as_generator(0))
    finally:
        for hook in hooks:
            hook.remove()
    return parts[0] if parts else "the network's output"


def _refuse_inference_tensors(model: nn.Module, likelihood: nn.Module, rows: Rows) -> None:
    """Raise an error for tensors made in inference mode, which torch would refuse only in the first step."""
    tensors = {"x": rows.x, "y": rows.y, **({} if rows.weight is None else {"weight": rows.weight})}
    for prefix, module in (("model", model), ("likelihood", likelihood)):
        tensors |= {f"{prefix}.{name}": p for name, p in module.state_dict(keep_vars=True).items()}
    names = [name for name, value in tensors.items() if isinstance(value, Tensor) and value.is_inference()]
    if names:
        raise DataError(
            f"{names[0]} was made inside torch.inference_mode(), and such tensors cannot be trained; make it outside, "
            "or use torch.no_grad() instead of torch.inference_mode()"
        )


def find_nonfinite(model: nn.Module, x: Tensor) -> str:
    """Find the first weight of a model that is not finite, or else the first part whose output is not finite."""
    for name, p in model.named_parameters():
        if not bool(p.isfinite().all()):
            return f"model/{name}"
    return find_first_part(model, x, lambda value: value.is_floating_point() and not bool(value.isfinite().all()))


def history_row(
    place: Mapping[str, float],
    parts: Sequence[float],
    terms: Sequence[str],
    tempered: Collection[str],
    temperature: float,
) -> dict[str, float]:
    """Return a row of a history: epoch, step and rate, and the bound with its parts, in nats for the data set.

    Parameters
    ----------
    place : mapping
        Epoch, step and learning rate.
    parts : sequence of floats
        Expected log-likelihood, and the divergences.
    terms : sequence of str
        Names of the divergences.
    tempered : collection of str
        Names of the divergences that the temperature multiplies.
    temperature : float
        T.
    """
    log_likelihood, *divergences = parts
    row = {**place, "elbo": log_likelihood, "log_likelihood": log_likelihood}
    for name, term in zip(terms, divergences, strict=True):
        row[f"divergence_{name}"] = term
        row["elbo"] -= temperature * term if name in tempered else term
    return row


def structure_parameters(model: Model) -> dict[str, nn.Parameter]:
    """Return the parameters of the law over structure, by name; none if the model has no such law."""
    return model.structure_parameters() if isinstance(model, HasStructureLaw) else {}


def _optimizer(t: Training) -> torch.optim.Optimizer:
    """Return an optimiser with two empty groups of parameters: weights and structure."""
    # torch refuses empty groups, so each starts with a placeholder that is removed again
    groups: list[dict[str, Any]] = [{"params": [nn.Parameter(torch.zeros((), device="cpu"))]} for _ in range(2)]
    optimizer: torch.optim.Optimizer
    if t.optimizer == "adam":
        # the loss is divided by N, so gradients are small and eps must be far below the usual 1e-8
        optimizer = torch.optim.Adam(groups, lr=t.learning_rate, eps=1e-10, fused=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=t.learning_rate, momentum=t.momentum, nesterov=t.nesterov, fused=True)
    for group in optimizer.param_groups:
        group["params"].clear()
    return optimizer


def add_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries with a prefix before their names."""
    return {f"{prefix}/{name}": value for name, value in state.items()}


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries with a prefix, by the rest of their names."""
    return {name[len(prefix) + 1 :]: value for name, value in state.items() if name.startswith(prefix + "/")}
