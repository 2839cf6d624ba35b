r"""Cross-fitting: K stacked networks, each fitted to all folds of the rows but one.

Every row trains K − 1 networks and is out of fold for one. The posterior over structure, the epoch that is kept and the
noise are shared by all networks. They are chosen by out-of-fold predictions: each row is evaluated by the network that
was not fitted to it. With R partitions there are R·K networks, and a row is out of fold for R of them.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.inference.out_of_fold.search import StructureSearch, gather_networks
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.distributed import Ranks, ranks
from fathomless.inference.runs.run import Fitted, Run
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.capabilities import (
    JointlyTrainable,
    SelectsInputs,
    get_blueprint,
    missing_capability,
    rebuild,
)
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
_MOST_DIVERGED = 2  # networks that may diverge and be left out


class StackedLikelihood(Likelihood, HasWidth):
    """Stack of F likelihoods of one class, for stacked rows: every parameter has a first axis of length F.

    Parameters
    ----------
    members : sequence of F Likelihood
        Likelihoods that differ in their learned parameters only.
    """

    def __init__(self, members: Sequence[Likelihood]) -> None:
        super().__init__()
        self.count = len(members)
        self.each = _Density(copy.deepcopy(members[0]))
        for name, parameter in self.each.named_parameters():
            name = name.removeprefix("one.")
            values = [dict(member.named_parameters())[name].detach() for member in members]
            parameter.data = torch.stack(values)

    @property
    def outputs(self) -> int:
        """Number of outputs that each network must have."""
        return self.each.one.outputs

    @property
    def discrete(self) -> bool:
        """True if the target is a class."""
        return self.each.one.discrete

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row under each draw with the parameters of the row's network, (S, F·B)."""
        rows = f.shape[1] // self.count
        parameters = {name: p.repeat_interleave(rows, 0) for name, p in self.each.named_parameters()}
        density: Tensor = functional_call(self.each, parameters, (f, y)) if parameters else self.each.one.log_prob(f, y)
        return density

    def components(self, f: Tensor) -> Component | Classes:
        """Return the law of the target under each draw, by the parameters of each row's network, (S, F·B, ...)."""
        laws = [self.member(i).components(block) for i, block in enumerate(f.chunk(self.count, 1))]
        classes = [law.log_probs for law in laws if isinstance(law, Classes)]
        if classes:
            return Classes(torch.cat(classes, 1))
        return concatenate_rows([law for law in laws if isinstance(law, Component)])

    def widen(self, factor: float) -> "StackedLikelihood":
        """Return a copy with wider noise in every member, if they have a width."""
        one = self.each.one
        if not isinstance(one, HasWidth):
            return self
        known = dict(one.named_parameters())
        wider = one.widen(factor)  # of all members at once: it changes every element of a parameter in the same way
        for name, p in wider.named_parameters():
            if name not in known:  # such as a temperature, equal in all members
                p.data = p.data.expand(self.count, *p.shape).clone()
        return self._replace(wider)

    def _replace(self, one: Likelihood) -> "StackedLikelihood":
        """Return a stack whose parameters, with their first axis, are those of another likelihood."""
        other = StackedLikelihood.__new__(StackedLikelihood)  # without the copies of the constructor
        nn.Module.__init__(other)
        other.count, other.each = self.count, _Density(one)
        return other

    @torch.no_grad()
    def member(self, i: int) -> Likelihood:
        """Return a copy of likelihood i."""
        likelihood = copy.deepcopy(self.each.one)
        for p in likelihood.parameters():
            p.data = p.data[i].clone()
        return likelihood

    @torch.no_grad()
    def mean(self, like: Likelihood) -> Likelihood:
        """Return a copy of `like` with every parameter averaged over the members."""
        average = copy.deepcopy(like)
        stacked = dict(self.each.named_parameters())
        for name, p in average.named_parameters():
            p.copy_(stacked[f"one.{name}"].mean(0))
        return average.eval()


class _Density(nn.Module):
    """A likelihood as a module whose forward pass is its log density, for `functional_call`."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.one = likelihood  # the name is part of the keys of checkpoints

    def forward(self, f: Tensor, y: Tensor) -> Tensor:
        return self.one.log_prob(f, y)


@dataclass(frozen=True)
class OutOfFold:
    """Out-of-fold predictions: rows evaluated by networks that were not fitted to them.

    Attributes
    ----------
    f : Tensor, shape (S, N, K)
        Outputs of the networks for each structure. With several partitions, S also counts the networks for which a row
        is out of fold.
    log_weight : Tensor, shape (S,) or (S, N)
        Log posterior weights, of all rows or of each row.
    structure : Tensor of int64, shape (S,)
        Structure of each draw.
    y : Tensor, shape (N, ...)
        Targets.
    weight : Tensor, shape (N,), optional
        Sample weights.
    rows : Tensor of int64, shape (N,)
        Indices of the rows in the table.
    """

    f: Tensor
    log_weight: Tensor
    structure: Tensor
    y: Tensor
    weight: Tensor | None
    rows: Tensor

    def take(self, chosen: Tensor) -> "OutOfFold":
        """Return a subset of the rows, chosen by a mask or by indices."""
        weight = None if self.weight is None else self.weight[chosen]
        log_weight = self.log_weight if self.log_weight.ndim == 1 else self.log_weight[:, chosen]
        rows = self.rows[chosen.cpu()]
        return replace(self, f=self.f[:, chosen], log_weight=log_weight, y=self.y[chosen], weight=weight, rows=rows)


@torch.no_grad()
def predict_held_out(model: Model, valid: Rows | StackedRows, seed: int, draws: int = 16) -> OutOfFold:
    """Evaluate one network, or several stacked ones, on rows that they were not fitted to."""
    model.eval()
    parts: list[Tensor] = []
    drawn = None
    for part in valid.parts(_CHUNK):
        drawn = model.draw(part.x, draws, as_generator(fold_in(seed, "score")))
        parts.append(drawn.f)
    assert drawn is not None
    log_weight, structure = drawn.log_weight.double(), drawn.structure
    if isinstance(valid, Rows):
        return OutOfFold(
            torch.cat(parts, 1), log_weight, structure, valid.y, valid.weight, torch.arange(len(valid), device="cpu")
        )
    networks = len(valid.index)
    by_network = [part.reshape(len(part), networks, -1, part.shape[-1]) for part in parts]
    stacked = torch.cat(by_network, 2).flatten(1, 2)
    if valid.whole is not None:  # the other networks are those of other processes
        stacked, valid = gather_networks(stacked.movedim(1, 0), valid, ranks()).movedim(0, 1), valid.whole
    real = (valid.weight > 0.0).reshape(-1)  # padding has no weight
    return _group_by_row(stacked[:, real], log_weight, structure, valid.table, valid.index.reshape(-1)[real])


@torch.no_grad()
def predict_out_of_fold(
    models: Sequence[Model], table: Rows, outside: Sequence[Tensor], seed: int, draws: int = 16
) -> OutOfFold:
    """Evaluate each network on the rows of a table that it was not fitted to.

    Parameters
    ----------
    models : sequence of F Model
        Networks that share one posterior over structure.
    table : Rows
        All rows.
    outside : sequence of F Tensors of int64
        Indices of the rows that each network was not fitted to.
    seed, draws : int
        Seed and number of weight draws, for families that draw weights.
    """
    predictions = [
        predict_held_out(model, table.take(rows.to(table.x.device)), fold_in(seed, "network", k) if k else seed, draws)
        for k, (model, rows) in enumerate(zip(models, outside, strict=True))
    ]
    f = torch.cat([prediction.f for prediction in predictions], 1)
    first = predictions[0]
    return _group_by_row(f, first.log_weight, first.structure, table, torch.cat(list(outside)).to(table.x.device))


def _group_by_row(f: Tensor, log_weight: Tensor, structure: Tensor, table: Rows, index: Tensor) -> OutOfFold:
    """Group the predictions of several networks by row, (S, all, K) to (S R, N, K); `index` has the row of each."""
    order = index.argsort(stable=True)
    rows, times = index.unique(return_counts=True)
    # if a network diverged, some rows are out of fold for fewer networks than others: the smallest number is used for
    # all, so that the predictions stay a rectangular tensor
    least = int(times.min())
    start = times.cumsum(0) - times
    f = f[:, order]  # the predictions of a row are now adjacent, beginning at its `start`
    f = torch.cat([f[:, start + r] for r in range(least)])
    log_weight = (log_weight - torch.tensor(least, dtype=torch.float32, device=log_weight.device).log()).repeat(least)
    weight = None if table.weight is None else table.weight[rows]
    return OutOfFold(f, log_weight, structure.repeat(least), table.y[rows], weight, rows.cpu())


def fold_indices(folds: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the indices of the training rows and of the out-of-fold rows of each network.

    Parameters
    ----------
    folds : Tensor of int64, shape (R, N)
        Fold of each row, 0 … K − 1, in every partition; −1 for a row that trains all networks and is scored by none.

    Returns
    -------
    inside, outside : lists of R·K Tensors of int64
        Indices, ordered by partition and then by fold.
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
    used: Tensor | None = None,
    training: Training,
    search: StructureSearch | None = None,
    seed: int = 0,
    callbacks: Sequence[Callable[[Run], None]] = (),
    progress: Progress | None = None,
    resume: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
) -> tuple[Fitted, OutOfFold]:
    """Cross-fit networks: train each on its inside rows, and score it on its outside rows.

    Parameters
    ----------
    starts : sequence of F (Model, Likelihood)
        Untrained networks that differ in their seeds only.
    table : Rows
        All N rows, on the models' device.
    inside, outside : sequences of F Tensors of int64
        Indices of the training rows and of the out-of-fold rows of each network; see :func:`fold_indices`.
    used : Tensor of bool, shape (F, D), optional
        Features that each network uses. The weights of the others are 0.
    training, search, seed, callbacks, progress, resume
        As in :func:`~fathomless.inference.variational.svi.fit`.

    Returns
    -------
    fitted : Fitted
        An :class:`~fathomless.posterior.ensemble.Ensemble` of all networks, with the average of their likelihoods.
    out_of_fold : OutOfFold
        Out-of-fold predictions of the rows.

    Raises
    ------
    DataError
        If the models cannot be trained jointly.
    DivergenceError
        As in :func:`~fathomless.inference.variational.svi.fit`, if more than two networks diverge, or fewer than two
        remain. Otherwise those that diverge are left out with a warning. The others are trained again from the start,
        without checkpoints, and the out-of-fold rows of the networks that diverged are not scored.
    PausedError
        As in :func:`~fathomless.inference.variational.svi.fit`.
    """
    kept = list(range(len(starts)))
    initial = None if search is None else search.to_json()
    while True:
        try:
            fitted, out_of_fold = _fit_jointly(
                [starts[i] for i in kept],
                StackedRows.of(table, [inside[i] for i in kept], None if used is None else used[kept]),
                StackedRows.of(table, [outside[i] for i in kept], None if used is None else used[kept]),
                training=training,
                search=search,
                seed=seed,
                callbacks=callbacks,
                progress=progress,
                resume=resume,
            )
            return replace(fitted, diverged=tuple(i for i in range(len(starts)) if i not in kept)), out_of_fold
        except DivergenceError as error:
            rest = [i for k, i in enumerate(kept) if k not in error.networks]
            if len(rest) == len(kept) or len(starts) - len(rest) > _MOST_DIVERGED or len(rest) < 2:
                raise
            numbers = ", ".join(str(i) for i in kept if i not in rest)
            warnings.warn(
                f"training diverged for network {numbers} of {len(starts)} (counted from 0); it is left out, and the "
                f"others are trained again: {error}",
                ConvergenceWarning,
                stacklevel=2,
            )
            # networks share the epoch and the posterior, so those that remain restart from the beginning; a checkpoint
            # would hold another number of networks than the call that resumes it
            kept = rest
            resume = None
            callbacks = [callback for callback in callbacks if not isinstance(callback, Checkpoint)]
            if search is not None and initial is not None:
                search.resume(initial)


def _fit_jointly(
    starts: Sequence[tuple[Model, Likelihood]], train: StackedRows, valid: StackedRows, *, seed: int, **settings: Any
) -> tuple[Fitted, OutOfFold]:
    """Train networks jointly, and return their ensemble with its out-of-fold predictions.

    Each of several processes trains its share of the networks, and all have the same result.
    """
    models = [model for model, _ in starts]
    likelihoods = [likelihood for _, likelihood in starts]
    check_no_shared_parameters(models)
    group = ranks()
    own, counts = group.share_networks(len(models))
    if group.count > 1:
        train, valid = train.share(own, counts=counts), valid.share(own, counts=counts)
    chosen = slice(own.start, own.stop)
    fitted, out_of_fold, stacked = _fit_stacked(models[chosen], likelihoods[chosen], train, valid, seed, settings)
    likelihoods[chosen] = [stacked.member(i) for i in range(len(own))]
    if group.count > 1:
        _exchange(models, likelihoods, own, group)
    fitted = replace(fitted, model=Ensemble(models).eval())
    return replace(fitted, likelihood=StackedLikelihood(likelihoods).mean(starts[0][1])), out_of_fold


def _fit_stacked(
    models: Sequence[Model],
    likelihoods: Sequence[Likelihood],
    train: StackedRows,
    valid: StackedRows,
    seed: int,
    settings: Mapping[str, Any],
) -> tuple[Fitted, OutOfFold, StackedLikelihood]:
    """Stack networks, and train them in place; return also the out-of-fold predictions and the likelihoods."""
    first = models[0]
    if not isinstance(first, JointlyTrainable):
        raise missing_capability(first, JointlyTrainable, f"joint training of {len(models)} networks", "set cv=1")
    size = sum(p.numel() * p.element_size() for p in first.parameters())
    memory.require(
        6.0 * len(models) * size,  # the given networks; and stacked: weights, gradients, two moments, the best state
        f"joint training of {len(models)} networks of {memory.human(size)}",
        lambda share: f"{int(share * len(models))} fit: set members, or a smaller width",
    )
    with _keep_inputs(models, train.kept):
        stacked = first.stack(models[1:])
        likelihood = StackedLikelihood(likelihoods)
        fitted = fit(stacked, likelihood.to(first.device), train, valid, seed=seed, **settings)
        stacked.unstack(models)
        return fitted, predict_held_out(stacked, valid, seed), likelihood


def _exchange(models: Sequence[Model], likelihoods: Sequence[Likelihood], own: range, group: Ranks) -> None:
    """Copy trained networks and likelihoods of other processes into the untrained ones of this process, in place."""
    layout = get_blueprint(models[own.start])
    parts = {i: [_to_cpu(models[i]), _to_cpu(likelihoods[i])] for i in own}
    for part in group.gather(parts):
        for i, (weights, law) in part.items():
            if i not in own:
                rebuild(models[i], layout)
                models[i].load_state_dict(weights)
                likelihoods[i].load_state_dict(law)


def _to_cpu(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in module.state_dict().items()}


@contextmanager
def _keep_inputs(models: Sequence[Model], kept: Tensor | None) -> Iterator[None]:
    """Leave out the inputs that networks do not use, as long as the context is active."""
    reduced: list[SelectsInputs] = []
    try:
        for model, inputs in zip(models, () if kept is None else kept, strict=kept is not None):
            if not isinstance(model, SelectsInputs):
                raise missing_capability(model, SelectsInputs, "a selection of columns", "set weight_prior=1.0")
            model.keep_inputs(inputs)
            reduced.append(model)
        yield
    finally:
        for model in reduced:
            model.restore_inputs()
