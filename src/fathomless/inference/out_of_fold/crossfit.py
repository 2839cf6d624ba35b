r"""Cross-fitting: K networks side by side, each fitted to all folds of the rows but one.

Every row trains K − 1 networks and is out of fold for one. What is decided from rows (the posterior over structure, the
epoch that is kept, the noise) is decided once for all networks, from the rows of all folds, each under the network that
has not seen it. With R partitions there are R·K networks, and a row is out of fold for R of them.
"""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.capabilities import JointlyTrainable, missing_capability
from fathomless.posterior.ensemble import Ensemble, check_no_shared_parameters
from fathomless.posterior.likelihoods import HasWidth, Likelihood
from fathomless.posterior.mixtures import Classes, Component, concatenate_rows
from fathomless.posterior.model import Model
from fathomless.system import memory
from fathomless.system.errors import ConvergenceWarning, DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.rng import as_generator, fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["OutOfFold", "StackedLikelihood", "crossfit", "fold_indices", "predict_held_out", "predict_out_of_fold"]

_CHUNK = 16384  # rows evaluated at once
_LOST = 2  # networks that may diverge and be left out


class StackedLikelihood(Likelihood, HasWidth):
    """F likelihoods of one kind as one, for rows in blocks: every parameter has a row for each.

    Parameters
    ----------
    members : sequence of F Likelihood
        Alike but for what they have learned.
    """

    def __init__(self, members: Sequence[Likelihood]) -> None:
        super().__init__()
        self.count = len(members)
        self.each = _Density(copy.deepcopy(members[0]))
        for name, parameter in self.each.named_parameters():
            name = name.removeprefix("one.")
            own = [dict(member.named_parameters())[name].detach() for member in members]
            parameter.data = torch.stack(own)

    @property
    def outputs(self) -> int:
        """Columns that each network must give."""
        return self.each.one.outputs

    @property
    def discrete(self) -> bool:
        """Whether the target is a class."""
        return self.each.one.discrete

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Log density of each row under each draw with the parameters of its own network, (S, F·B)."""
        rows = f.shape[1] // self.count
        parameters = {name: p.repeat_interleave(rows, 0) for name, p in self.each.named_parameters()}
        density: Tensor = functional_call(self.each, parameters, (f, y)) if parameters else self.each.one.log_prob(f, y)
        return density

    def components(self, f: Tensor) -> Component | Classes:
        """Law of the target under each draw and the parameters of each row's own network, with axes (S, F·B, ...)."""
        each = [self.member(i).components(block) for i, block in enumerate(f.chunk(self.count, 1))]
        classes = [one.log_probs for one in each if isinstance(one, Classes)]
        if classes:
            return Classes(torch.cat(classes, 1))
        return concatenate_rows([one for one in each if isinstance(one, Component)])

    def widen(self, factor: float) -> "StackedLikelihood":
        """Return a copy whose members are all wider, if they can be."""
        each = [self.member(i) for i in range(self.count)]
        return StackedLikelihood([one.widen(factor) if isinstance(one, HasWidth) else one for one in each])

    @torch.no_grad()
    def member(self, i: int) -> Likelihood:
        """Return a copy of one of the likelihoods."""
        one = copy.deepcopy(self.each.one)
        for p in one.parameters():
            p.data = p.data[i].clone()
        return one

    @torch.no_grad()
    def mean(self, like: Likelihood) -> Likelihood:
        """Return a copy of `like` that has the members' average of every parameter."""
        average, own = copy.deepcopy(like), dict(self.each.named_parameters())
        for name, p in average.named_parameters():
            p.copy_(own[f"one.{name}"].mean(0))
        return average.eval()


class _Density(nn.Module):
    """A likelihood whose call is its density."""

    def __init__(self, one: Likelihood) -> None:
        super().__init__()
        self.one = one

    def forward(self, f: Tensor, y: Tensor) -> Tensor:
        return self.one.log_prob(f, y)


@dataclass(frozen=True)
class OutOfFold:
    """Rows, seen by networks that were not fitted to them.

    Attributes
    ----------
    f : Tensor, shape (S, N, K)
        Outputs, for each structure and, of several partitions, for each of the networks that have not seen the row.
    log_weight : Tensor, shape (S,)
        Log posterior weights.
    structure : Tensor of int64, shape (S,)
        Numbers of the structures.
    y : Tensor, shape (N, ...)
        Targets.
    weight : Tensor, shape (N,), optional
        How often each row counts.
    rows : Tensor of int64, shape (N,)
        Their numbers in the table.
    """

    f: Tensor
    log_weight: Tensor
    structure: Tensor
    y: Tensor
    weight: Tensor | None
    rows: Tensor

    def take(self, chosen: Tensor) -> "OutOfFold":
        """Return some of the rows, by a mask or by their places."""
        weight = None if self.weight is None else self.weight[chosen]
        return replace(self, f=self.f[:, chosen], y=self.y[chosen], weight=weight, rows=self.rows[chosen.cpu()])


@torch.no_grad()
def predict_held_out(model: Model, valid: Rows | StackedRows, seed: int, draws: int = 16) -> OutOfFold:
    """Evaluate networks, one or several side by side, on rows that they were not fitted to."""
    model.eval()
    parts, drawn = [], None
    for part in valid.parts(_CHUNK):
        drawn = model.draw(part.x, draws, as_generator(fold_in(seed, "score")))
        parts.append(drawn.f)
    assert drawn is not None
    log_weight, structure = drawn.log_weight.double(), drawn.structure
    if isinstance(valid, Rows):
        return OutOfFold(
            torch.cat(parts, 1), log_weight, structure, valid.y, valid.weight, torch.arange(len(valid), device="cpu")
        )
    networks, table = len(valid.index), valid.table
    joined = torch.cat([part.reshape(len(part), networks, -1, part.shape[-1]) for part in parts], 2).flatten(1, 2)
    real = (valid.weight > 0.0).reshape(-1)
    return _of_rows(joined[:, real], log_weight, structure, table, valid.index.reshape(-1)[real])


@torch.no_grad()
def predict_out_of_fold(
    models: Sequence[Model], table: Rows, outside: Sequence[Tensor], seed: int, draws: int = 16
) -> OutOfFold:
    """Evaluate networks of one law over structure, each by itself, on rows of a table that it was not fitted to.

    Parameters
    ----------
    models : sequence of F Model
        Networks.
    table : Rows
        All rows.
    outside : sequence of F Tensors of int64
        Numbers of the rows that each network was not fitted to.
    seed, draws : int
        Of weights, where they are drawn.
    """
    each = [
        predict_held_out(model, table.take(rows.to(table.x.device)), fold_in(seed, "network", k) if k else seed, draws)
        for k, (model, rows) in enumerate(zip(models, outside, strict=True))
    ]
    f, numbers = torch.cat([one.f for one in each], 1), torch.cat(list(outside)).to(table.x.device)
    return _of_rows(f, each[0].log_weight, each[0].structure, table, numbers)


def _of_rows(f: Tensor, log_weight: Tensor, structure: Tensor, table: Rows, numbers: Tensor) -> OutOfFold:
    """Put what several networks say of a row side by side, (S, all, K) to (S R, N, K)."""
    order = numbers.argsort(stable=True)
    rows, times = numbers.unique(return_counts=True)
    least = int(times.min())  # a row may be out of fold for more networks than another if one of them failed
    start = times.cumsum(0) - times
    f = f[:, order]  # the networks of a row next to each other
    f = torch.cat([f[:, start + r] for r in range(least)])
    log_weight = (log_weight - torch.tensor(least, dtype=torch.float32, device=log_weight.device).log()).repeat(least)
    weight = None if table.weight is None else table.weight[rows]
    return OutOfFold(f, log_weight, structure.repeat(least), table.y[rows], weight, rows.cpu())


def fold_indices(folds: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the rows that each network is fitted to, and those of its fold.

    Parameters
    ----------
    folds : Tensor of int64, shape (R, N)
        The fold of each row, 0 … K − 1, in every partition; −1 for a row that trains all networks and is scored by
        none.

    Returns
    -------
    inside, outside : lists of R·K Tensors of int64
        Those of the first partition first.
    """
    inside, outside = [], []
    for partition in folds:
        for k in range(int(folds.max()) + 1):
            inside.append(torch.nonzero(partition != k).flatten())
            outside.append(torch.nonzero(partition == k).flatten())
    return inside, outside


@enable_gradients()
def crossfit(
    starts: Sequence[tuple[Model, Likelihood]],
    table: Rows,
    inside: Sequence[Tensor],
    outside: Sequence[Tensor],
    *,
    training: Training,
    search: StructureSearch | None = None,
    seed: int = 0,
    callbacks: Sequence[Callable[[Run], None]] = (),
    progress: Progress | None = None,
    resume: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> tuple[Fitted, OutOfFold]:
    """Fit networks side by side, each to some of the rows, and decide by the others.

    Parameters
    ----------
    starts : sequence of F (Model, Likelihood)
        Untrained, alike but for their seeds.
    table : Rows
        All N rows, on the models' device.
    inside, outside : sequences of F Tensors of int64
        Numbers of the rows that each network is fitted to, and of those that it is judged by; see :func:`fold_indices`.
    training, search, seed, callbacks, progress, resume
        As in :func:`~fathomless.inference.variational.svi.fit`.

    Returns
    -------
    fitted : Fitted
        An :class:`~fathomless.posterior.ensemble.Ensemble` of all networks, with the average of their likelihoods.
    held : Held
        The rows, each under the networks that have not seen it.

    Raises
    ------
    DataError
        If the models cannot be trained side by side.
    DivergenceError
        As :func:`~fathomless.inference.variational.svi.fit` does, if more than two of three or more networks diverge.
        One or two are left out with a warning: the others are trained anew, without checkpoints, and the rows that were
        to judge those that are lost are judged by none.
    PausedError
        As :func:`~fathomless.inference.variational.svi.fit` does.
    """
    kept, before = list(range(len(starts))), None if search is None else search.to_json()
    while True:
        try:
            done, seen = _as_one(
                [starts[i] for i in kept],
                StackedRows.of(table, [inside[i] for i in kept]),
                StackedRows.of(table, [outside[i] for i in kept]),
                training=training,
                search=search,
                seed=seed,
                callbacks=callbacks,
                progress=progress,
                resume=resume,
            )
            return replace(done, lost=tuple(i for i in range(len(starts)) if i not in kept)), seen
        except DivergenceError as error:
            rest = [i for k, i in enumerate(kept) if k not in error.networks]
            if len(rest) == len(kept) or len(starts) - len(rest) > _LOST or not rest:
                raise
            told = ", ".join(str(i) for i in kept if i not in rest)
            warnings.warn(
                f"of {len(starts)} networks number {told} diverged, is left out, and the others are trained anew: "
                f"{error}",
                ConvergenceWarning,
                stacklevel=2,
            )
            kept, resume, callbacks = rest, None, [one for one in callbacks if not isinstance(one, Checkpoint)]
            if search is not None and before is not None:
                search.resume(before)


def _as_one(
    starts: Sequence[tuple[Model, Likelihood]], train: StackedRows, valid: StackedRows, *, seed: int, **settings: Any
) -> tuple[Fitted, OutOfFold]:
    """Fit networks side by side."""
    models = [model for model, _ in starts]
    check_no_shared_parameters(models)
    first = models[0]
    if not isinstance(first, JointlyTrainable):
        raise missing_capability(first, JointlyTrainable, f"training {len(models)} networks as one", "set cv=1")
    each = sum(p.numel() * p.element_size() for p in first.parameters())
    memory.require(
        6.0 * len(models) * each,  # as they are, and together: weights, gradients, two moments and the best state
        f"{len(models)} networks of {memory.human(each)} side by side",
        lambda share: f"{int(share * len(models))} fit: set members, or a smaller width",
    )
    together, likelihood = first.stack(models[1:]), StackedLikelihood([likelihood for _, likelihood in starts])
    done = fit(together, likelihood.to(first.device), train, valid, seed=seed, **settings)
    together.unstack(models)
    seen = predict_held_out(together, valid, seed)
    ensemble = Ensemble(models).eval()
    return replace(done, model=ensemble, likelihood=likelihood.mean(starts[0][1])), seen
