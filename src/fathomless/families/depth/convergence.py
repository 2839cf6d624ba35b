"""Whether a posterior over structure has come to rest, by its history."""

import itertools
from collections.abc import Mapping, Sequence

__all__ = ["depth_drift"]


def depth_drift(history: Sequence[Mapping[str, float]]) -> float:
    """Return the layers that the mean depth would still go by, if it has not come to rest; else 0.

    Depth is still on its way if, in the last half of a training, the mean depth went almost always in one direction,
    at a pace which, without the decay of the learning rate, would carry it more than a layer in another training of
    the same length. Then the depth that is reported says how fast it was learned, not what the data ask for.
    """
    late = [row for row in history if row["epoch"] > history[-1]["epoch"] / 2]
    steps = [b["mean_depth"] - a["mean_depth"] for a, b in itertools.pairwise(late)]
    length = sum(map(abs, steps))
    share = sum(row["learning_rate"] for row in late) / max(sum(row["learning_rate"] for row in history), 1e-300)
    if len(steps) < 3 or length == 0.0 or share == 0.0 or abs(sum(steps)) < 0.9 * length:
        return 0.0
    way = sum(steps) / share
    return way if abs(way) > 1.0 else 0.0
