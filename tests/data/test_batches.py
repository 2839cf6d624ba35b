"""Batches of others: what is taken, what is refused and how, and that a pass follows from its seed."""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from fathomless.data.batches import Batches
from fathomless.data.rows import Rows
from fathomless.families.baselines.model import bayesian_network
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.system.errors import DataError, DataWarning

SHORT = Training(epochs=4)


def table(n: int = 50) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(3))
    return x, (x[:, 0] * x[:, 1] > 0).long()


def loader(n: int = 50, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*table(n)), **{"batch_size": 16, **options})


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fitted(train: Any, valid: Any = None, *, training: Training = SHORT, **options: Any) -> Fitted:
    net = MLP(2, 2, 6)
    model = UnboundedDepth(net.layer, net.head)
    return fit(model, Categorical(2), train, valid, training=training, seed=5, **options)


def state(of: Fitted) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in of.model.state_dict().items()}


class Augmented(Dataset[Any]):
    """Rows with noise, from a source of randomness."""

    def __init__(self, noise: Callable[[], float]) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = table()
        return x[i] + self.noise(), y[i]


class Forward(IterableDataset[Any]):
    """Rows without a length."""

    def __iter__(self) -> Iterator[Any]:
        return zip(*table(), strict=True)


SOURCES: dict[str, Callable[[], Any]] = {
    "in order": loader,
    "shuffled": lambda: loader(shuffle=True),
    "own generator": lambda: loader(shuffle=True, generator=generator(8)),
    "generator of the sampler": lambda: loader(sampler=RandomSampler(range(50), generator=generator(8))),
    "generator inside": lambda: loader(
        sampler=BatchSampler(RandomSampler(range(50), generator=generator(8)), 16, drop_last=False), batch_size=None
    ),
    "weighted": lambda: loader(sampler=WeightedRandomSampler([1.0, 3.0] * 25, 50, generator=generator(8))),
    "last one dropped": lambda: loader(shuffle=True, drop_last=True),
    "augmented": lambda: DataLoader(Augmented(lambda: torch.rand(()).item()), batch_size=16, shuffle=True),
    "list": lambda: list(loader()),
    "rows": lambda: [Rows(*batch) for batch in loader()],
    "without a length": lambda: Batches(DataLoader(Forward(), batch_size=16), rows=50, steps=4),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_training_by_batches_resumes_to_the_same_bytes(make: Callable[[], Any], tmp_path: Path) -> None:
    """Whatever the state of the generators when it is resumed, torch's global one and the loader's."""
    count = itertools.count()

    def keep(run: Any) -> None:
        Checkpoint(tmp_path / str(next(count)), seconds=0.0)(run)

    torch.manual_seed(0)
    whole = fitted(make(), list(loader(20)), callbacks=[keep])
    torch.manual_seed(1)
    resumed = fitted(make(), list(loader(20)), resume=Checkpoint(tmp_path / "1").load())
    assert state(resumed) == state(whole)
    assert json.dumps(resumed.history) == json.dumps(whole.history)


def test_batches_in_order_are_the_rows_of_a_table_in_order() -> None:
    """One batch of all rows is a step on the table, and the bound is that of the table."""
    x, y = table()
    by_rows, by_batches = fitted(Rows(x, y)), fitted([(x, y)])
    assert state(by_rows) == state(by_batches)
    assert by_rows.history == by_batches.history


def test_several_batches_have_the_bound_of_all_rows() -> None:
    held = Training(epochs=1, learning_rate=1e-30)
    x, y = table()
    expected = fitted(Rows(x, y), training=held).history[0]["elbo"]
    assert fitted(loader(), training=held).history[0]["elbo"] == pytest.approx(expected, rel=1e-6)
    twice = [(x, y), (x, y)]
    assert fitted(Batches(twice, rows=50), training=held).history[0]["elbo"] == pytest.approx(expected, rel=1e-6)
    part = fitted(loader(drop_last=True), training=held).history[0]["elbo"]
    assert part == pytest.approx(expected, rel=0.1)  # 48 rows speak for 50
    weighted = [(x, y, torch.full((50,), 1.0)), (x, y, torch.zeros(50))]
    assert fitted(weighted, training=held).history[0]["elbo"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("batch_size", [5, 10])
def test_rows_of_a_smaller_last_batch_count_as_others(batch_size: int) -> None:
    """The posterior mode of a slope is that of ridge regression, although the last row is an outlier."""
    x = torch.randn(11, 1, generator=generator(1))
    y = 2.0 * x + 0.5 * torch.randn(11, 1, generator=generator(2))
    y[-1] += 5.0
    rows = DataLoader(TensorDataset(x, y), batch_size=batch_size)
    model = bayesian_network(nn.Linear(1, 1, bias=False), "map", weight_prior=WeightPrior(scale=1.0))
    fit(model, Gaussian(noise=0.5), rows, training=Training(epochs=300, learning_rate=0.02))
    (slope,) = model.parameters()
    mode = (x * y).sum() / (x.square().sum() + 0.25)
    assert slope.item() == pytest.approx(mode.item(), abs=0.02)


def test_held_out_batches_are_held_out_rows() -> None:
    x, y = table(30)
    by_rows = fitted(loader(), Rows(x, y), search=StructureSearch(4))
    by_batches = fitted(loader(), loader(30), search=StructureSearch(4))
    assert state(by_rows) == state(by_batches)
    assert by_batches.score is not None


def test_what_does_not_follow_from_the_seed_is_told() -> None:
    stream = random.Random(0)
    with pytest.warns(DataWarning, match=r"DataLoader began with different batches.*not be bit-identical"):
        fitted(DataLoader(Augmented(stream.random), batch_size=25), training=Training(epochs=1))


X, Y = table(6)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "generator": (lambda: (batch for batch in loader()), "a generator was given, which can be read only once.*list of"),
    "data set": (lambda: TensorDataset(X, Y), "a TensorDataset was given instead of batches; pass it to"),
    "number": (lambda: 3, "a int was given; allowed are Rows, a DataLoader and iterables"),
    "tensors": (lambda: (X, Y), r"batch 0 is a Tensor; allowed are \(x, y\) and"),
    "dictionaries": (lambda: [{"x": X, "y": Y}], "batch 0 is a dict;.*collate_fn"),
    "four": (lambda: [(X, Y, Y, Y)], "batch 0 is a tuple of 4"),
    "arrays": (lambda: [(X, Y.numpy())], "y of batch 0 is a ndarray"),
    "other rows": (lambda: [(X, Y), (X, Y[:3])], r"batch 1 has tensors of shapes \(6, 2\) and \(3,\)"),
    "nothing": (list, "a list without batches was given; at least one"),
    "no length": (lambda: DataLoader(Forward()), r"has no length.*Batches\(source, rows=N, steps=K\)"),
    "too few": (lambda: Batches([(X, Y)], rows=6, steps=2), "over the list yielded 1 batches, expected 2"),
    "double": (lambda: [(X.double(), Y)], "x is torch.float64 and the model torch.float32"),
    "classes": (lambda: [(X, Y + 7)], "classes are int64 from 0 to 1"),
    "no rows": (lambda: Batches([(X, Y)], rows=0), "rows=0 was given; at least 1"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_data_is_refused_with_what_is_allowed(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fitted(make())


def test_what_is_exhausted_after_a_pass_is_refused() -> None:
    """An object that hands out one iterator looks as if it could be read again."""

    class Once:
        def __init__(self) -> None:
            self.passing = iter([(X, Y)] * 3)

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[Any]:
            return self.passing

    with pytest.raises(
        DataError, match=r"every pass must yield as many: give an object whose __iter__ starts a new pass"
    ):
        fitted(Once())
