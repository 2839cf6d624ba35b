"""A training between two epochs: a value that can be taken apart into tensors and JSON and put together again."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.batches import Batches
from fathomless.data.rows import Rows, Stream
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold.search import LogDensities, StructureSearch
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.driver import ResumableRun
from fathomless.inference.variational.training import Training
from fathomless.posterior.capabilities import HasStructureLaw, get_blueprint, rebuild
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Diagnostics
from fathomless.posterior.likelihoods import Categorical, Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError, DivergenceError, FathomlessError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["Best", "Fitted", "Run", "check", "first_part", "history_row", "not_finite", "structure_parameters", "under"]


@dataclass
class Best:
    """The best validation score so far, and the state it was reached in.

    Attributes
    ----------
    score : float or None
        Best mean log predictive density, in nats per row.
    epoch : int
        When.
    since : int
        Scores since then.
    blueprint : dict or None
        That of the model then; {} if its parts are fixed, None if there was no score yet.
    state : dict of str to Tensor
        Copies of the tensors of model and likelihood.
    """

    score: float | None = None
    epoch: int = 0
    since: int = 0
    blueprint: dict[str, Any] | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)

    def offer(self, score: float, epoch: int, model: Model, likelihood: nn.Module) -> None:
        """Keep the present state if its score is better."""
        if not math.isfinite(score) or (self.score is not None and score <= self.score):
            self.since += 1
            return
        self.score, self.epoch, self.since, self.blueprint = score, epoch, 0, get_blueprint(model)
        self.state = {
            f"{prefix}/{name}": value.clone()
            for prefix, module in (("model", model), ("likelihood", likelihood))
            for name, value in module.state_dict().items()
        }

    def restore(self, model: Model, likelihood: nn.Module) -> None:
        """Put model and likelihood into the state that was kept, if there is one."""
        if self.blueprint is not None:
            rebuild(model, self.blueprint)
            model.load_state_dict(under("model", self.state))
            likelihood.load_state_dict(under("likelihood", self.state))

    def exhausted(self, patience: int | None) -> bool:
        """Whether so many scores have come since."""
        return patience is not None and self.since >= patience

    def to_json(self) -> dict[str, Any]:
        """Return all but the tensors, by the names that checkpoints have for it."""
        return {"score": self.score, "epoch": self.epoch, "since": self.since, "layout": self.blueprint}

    @staticmethod
    def from_json(meta: Mapping[str, Any], state: Mapping[str, Tensor]) -> "Best":
        """Undo :meth:`to_json`."""
        return Best(meta["score"], meta["epoch"], meta["since"], meta["layout"], state)


@dataclass(frozen=True, eq=False)
class Fitted:
    """What an inference returns, however it found the posterior.

    Attributes
    ----------
    model : Model
        The posterior.
    likelihood : Likelihood
        p(y | f).
    history : list of dict
        One row per evaluation; see :class:`Run`.
    n_iter : int
        Epochs done.
    score : float or None
        Best mean log predictive density of the validation rows, in nats per row of the targets that were trained on.
    seed : int
        Of the order of the rows and of weight draws.
    training : Training, optional
        The options, if it was trained.
    stopped : bool
        Whether it ended before its time, by its validation rows or a callback.
    error : str
        If it is one of several trainings and was given up: where its bound ceased to be finite.
    found : Densities, optional
        Of the held-out rows, in the state that was kept, if the posterior over structure was fitted to them.
    lost : tuple of int
        Of networks that were trained side by side, those that diverged and were left out.
    resumable : bool
        Whether a checkpoint of its end can be gone on with by a longer inference, to the same bytes: nothing that was
        done followed from how long it was going to be.
    diagnostics : Diagnostics
        Diagnostics of the inference.
    warnings : tuple of str
        Goals that the inference did not reach, a sentence each; an estimator warns of them.
    """

    model: Model
    likelihood: Likelihood
    history: list[dict[str, float]] = field(repr=False)
    n_iter: int
    score: float | None
    seed: int
    training: Training | None = None
    stopped: bool = False
    error: str = ""
    found: LogDensities | None = field(default=None, repr=False)
    lost: tuple[int, ...] = ()
    resumable: bool = False
    diagnostics: Diagnostics = field(default_factory=CrossFitDiagnostics, repr=False)
    warnings: tuple[str, ...] = ()


class Run(ResumableRun):
    """A training between two epochs: everything that is needed to go on.

    Attributes
    ----------
    epoch, step : int
        Epochs and steps done.
    history : list of dict
        One row per evaluation: epoch, step, learning_rate, elbo, log_likelihood and divergence_* in nats for the
        data set, validation_log_likelihood in nats per row, and the structure's statistics.
    best : Best
        Best validation score and the state it was reached in.
    terms : tuple of str
        Names of the divergences.
    tempered : frozenset of str
        Those that the temperature multiplies.
    search : StructureSearch, optional
        Where it is, if the posterior over structure is fitted to held-out rows.
    ranks : Ranks
        The processes that train this network; alone if there is one.
    stop : bool
        Set it to end the training after this epoch.
    pause : bool
        Set it in a callback to leave the training after this epoch with :class:`~fathomless.system.errors.PausedError`,
        once a checkpoint is written: the same call then goes on from there, to the same bytes.
    """

    def __init__(
        self, model: Model, likelihood: Likelihood, training: Training, seed: int, search: StructureSearch | None = None
    ) -> None:
        self.model, self.likelihood, self.training, self.seed = model, likelihood, training, seed
        self.search = search
        self.ranks = ranks()
        self.epoch = self.step = 0
        self.history: list[dict[str, float]] = []
        self.best = Best()
        self.terms: tuple[str, ...] = ()
        self.tempered: frozenset[str] = frozenset()
        self.stop = self.pause = False
        self.order = as_generator(fold_in(seed, "order"))
        self.noise = as_generator(fold_in(seed, "noise"), device=model.device)
        self.optimizer = _optimizer(training)
        self.register_parameters()
        self.model.train()
        self.likelihood.train()

    def result(self) -> Fitted:
        """Return what the training has come to."""
        done = (self.model, self.likelihood, self.history, self.epoch, self.best.score, self.seed)
        return Fitted(*done, training=self.training, stopped=self.stop)

    @property
    def epochs(self) -> int:
        """How many epochs there will be, as it is known by now."""
        return self.training.epochs if self.search is None else self.search.epochs

    @property
    def evaluates(self) -> bool:
        """Return True if the epoch that has just ended gets a row in the history."""
        looked = self.search is not None and self.search.due(self.epoch)
        return self.epoch % self.training.evaluate_every == 0 or self.epoch == self.epochs or looked

    def named(self) -> dict[str, nn.Parameter]:
        """Return every parameter by the name it has in checkpoints."""
        return {
            **{f"model/{name}": p for name, p in self.model.named_parameters()},
            **{f"likelihood/{name}": p for name, p in self.likelihood.named_parameters()},
        }

    def register_parameters(self) -> None:
        """Hand parameters that the optimiser does not know to its existing groups."""
        weights, structure = self.optimizer.param_groups
        known = {id(p) for group in (weights, structure) for p in group["params"]}
        of_structure = {id(p) for p in structure_parameters(self.model).values()}
        for p in self.named().values():
            if id(p) not in known:
                (structure if id(p) in of_structure else weights)["params"].append(p)
                if self.training.optimizer == "sgd" and self.training.momentum:
                    # fused steps take no mixture of present and absent momenta; zero is what an absent one means
                    self.optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors by name, not copied."""
        state = {
            **_prefixed("model", self.model.state_dict()),
            **_prefixed("likelihood", self.likelihood.state_dict()),
            **_prefixed("best", self.best.state),
            "generator/order": self.order.get_state(),
            "generator/noise": self.noise.get_state(),
        }
        for name, p in self.named().items():
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
        }

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Take over a state that :meth:`tensors` and :meth:`meta` returned."""
        rebuild(self.model, meta["layout"])
        self.model.load_state_dict(under("model", tensors))
        self.likelihood.load_state_dict(under("likelihood", tensors))
        self.register_parameters()
        for name, p in self.named().items():
            moments = under(f"optimizer/{name}", tensors)
            if moments:
                # fused optimisers keep all their state, the step too, beside the parameter
                self.optimizer.state[p] = {key: value.to(p.device) for key, value in moments.items()}
        self.order.set_state(tensors["generator/order"].cpu())
        self.noise.set_state(tensors["generator/noise"].cpu())
        self.best = Best.from_json(meta["best"], under("best", tensors))
        self.epoch, self.step = meta["epoch"], meta["step"]
        if self.search is None and self.epoch > self.epochs:
            raise DataError(
                f"epochs={self.epochs} was given, and {self.epoch} are done; as many or more are allowed to go on"
            )
        self.history = list(meta["history"])
        if self.search is not None:
            self.search.resume(meta["looks"])
        self.stop = meta["stop"] if self.search is not None else self.best.exhausted(self.training.patience)


@torch.no_grad()
def check(
    model: Model, likelihood: Likelihood, data: Rows | Stream | StackedRows | Batches, *, finite: bool = True
) -> None:
    """Try the first rows, so that what does not fit together is told before a training starts.

    Parameters
    ----------
    model, likelihood, data
        What is trained, on what.
    finite : bool
        Whether values that are not finite are refused; of several networks, those that diverge are left out.

    Raises
    ------
    DataError
        If rows, model and likelihood do not fit together.
    DivergenceError
        If the network gives values that are not finite for rows that are.
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
    if rows.weight is not None:
        odd = rows.weight[~(rows.weight.isfinite() & (rows.weight >= 0))]
        if len(odd):
            raise DataError(
                f"weight has {odd[0].item():g} among its numbers; finite numbers >= 0 are allowed: leave such rows out"
            )
        if isinstance(data, Rows) and not rows.weight.any():
            raise DataError("every weight is zero; at least one row must count")
    if rows.x.is_floating_point() and rows.x.dtype != model.dtype:
        raise DataError(f"x is {rows.x.dtype} and the model {model.dtype}; convert one of them, for instance x.float()")
    if isinstance(likelihood, Categorical):
        classes = likelihood.classes
        if rows.y.dtype != torch.int64 or bool(((rows.y < 0) | (rows.y >= classes)).any()):
            raise DataError(
                f"y is {rows.y.dtype} from {rows.y.min()} to {rows.y.max()}; classes are int64 from 0 to {classes - 1}"
            )
    was_training = model.training
    model.eval()
    few = rows if isinstance(data, StackedRows) else rows.take(slice(0, 2))
    try:
        draws = model.draw(few.x, 1, as_generator(0))
        likelihood.log_prob(draws.f, few.y)
    except (RuntimeError, TypeError, IndexError) as error:
        if isinstance(error, FathomlessError):
            raise
        raise DataError(
            f"the network cannot be applied to x of shape {tuple(rows.x.shape)} and y of shape {tuple(rows.y.shape)}: "
            f"{error}; check that each layer accepts what the one before it returns"
        ) from error
    finally:
        model.train(was_training)
    if draws.f.dtype != model.dtype:
        where = first_part(model, few.x, lambda value: value.is_floating_point() and value.dtype != model.dtype)
        raise DataError(
            f"the network gives {draws.f.dtype} and its weights are {model.dtype}: {where} returns another type; make "
            "what it adds or multiplies of the type of its input"
        )
    if finite and few.x.isfinite().all() and not draws.f.isfinite().all():
        raise DivergenceError(
            f"before the first step the network gives values that are not finite, for rows that are: look at "
            f"{not_finite(model, few.x)}, at what it computes and at its initial weights"
        )


@torch.no_grad()
def first_part(model: nn.Module, x: Tensor, wrong: Callable[[Tensor], bool]) -> str:
    """Name the first part of a model whose output is wrong, by its place in the model and its class.

    Parameters
    ----------
    model : Model
        Any family.
    x : Tensor, shape (B, ...)
        Rows that it is applied to.
    wrong : callable
        Given the output of a part, says whether it is.
    """
    found: list[str] = []

    def looking(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(part: nn.Module, _: Any, output: Any) -> None:
            values = output if isinstance(output, tuple) else (output,)
            if any(isinstance(value, Tensor) and wrong(value) for value in values):
                found.append(f"{name} (a {type(part).__name__})")

        return look

    hooks = [part.register_forward_hook(looking(name)) for name, part in model.named_modules() if name]
    try:
        model(x, 1, as_generator(0))
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else "the network's output"


def _refuse_inference_tensors(model: nn.Module, likelihood: nn.Module, rows: Rows) -> None:
    """Refuse tensors that torch allows in no training, in place of its error in the first step."""
    given = {"x": rows.x, "y": rows.y, **({} if rows.weight is None else {"weight": rows.weight})}
    for prefix, module in (("model", model), ("likelihood", likelihood)):
        given |= {f"{prefix}.{name}": p for name, p in module.state_dict(keep_vars=True).items()}
    made = [name for name, value in given.items() if isinstance(value, Tensor) and value.is_inference()]
    if made:
        raise DataError(
            f"{made[0]} was made inside torch.inference_mode(), which allows its tensors in no training; make it "
            "outside, or take torch.no_grad() in place of torch.inference_mode()"
        )


def not_finite(model: nn.Module, x: Tensor) -> str:
    """Name the first weight of a model that is not finite, or else the first part whose output for some rows is not."""
    for name, p in model.named_parameters():
        if not bool(p.isfinite().all()):
            return f"model/{name}"
    return first_part(model, x, lambda value: value.is_floating_point() and not bool(value.isfinite().all()))


def history_row(
    place: Mapping[str, float],
    parts: Sequence[float],
    terms: Sequence[str],
    tempered: Collection[str],
    temperature: float,
) -> dict[str, float]:
    """Return a row of a history: where the training is, and the bound with its parts, in nats for the data set.

    Parameters
    ----------
    place : mapping
        Epoch, step and learning rate.
    parts : sequence of floats
        Expected log-likelihood, and the divergences.
    terms : sequence of str
        Names of the divergences.
    tempered : collection of str
        Those that the temperature multiplies.
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
    """Two groups, weights and structure, empty at first."""
    # an empty group is refused: each opens with a placeholder that is taken out again
    groups: list[dict[str, Any]] = [{"params": [nn.Parameter(torch.zeros((), device="cpu"))]} for _ in range(2)]
    optimizer: torch.optim.Optimizer
    if t.optimizer == "adam":
        # the loss is divided by N, so eps must be far below the usual 1e-8
        optimizer = torch.optim.Adam(groups, lr=t.learning_rate, eps=1e-10, fused=True)
    else:
        optimizer = torch.optim.SGD(groups, lr=t.learning_rate, momentum=t.momentum, fused=True)
    for group in optimizer.param_groups:
        group["params"].clear()
    return optimizer


def _prefixed(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": value for name, value in state.items()}


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries below a prefix, by the rest of their names."""
    return {name[len(prefix) + 1 :]: value for name, value in state.items() if name.startswith(prefix + "/")}
