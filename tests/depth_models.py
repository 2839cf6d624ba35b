"""Small models of unbounded depth, one for each law, and data for them."""

import torch
from torch import Tensor

from fathomless.families.depth.model import UnboundedDepth
from fathomless.nn.architectures import MLP
from fathomless.posterior.laws import (
    FixedDepth,
    FreeCategorical,
    HardTruncation,
    PoissonPrior,
    QuantilePoisson,
    SmoothTruncation,
    StickBreaking,
    TruncatedPoisson,
)

LAWS = {
    "soft": TruncatedPoisson(2.2),
    "hard": QuantilePoisson(2.2),
    "two_sided": TruncatedPoisson(4.0, HardTruncation(0.05, 0.95)),
    "taper": TruncatedPoisson(2.2, SmoothTruncation()),
    "stick_breaking": StickBreaking(2.0),
    "categorical": FreeCategorical(5),
    "point": FixedDepth((3,)),
}
NET = MLP(inputs=2, outputs=3, width=6)


def build(law: str = "soft", **options: object) -> UnboundedDepth:
    options = {"dtype": torch.float64, "prior": PoissonPrior(0.8), "seed": 1, **options}
    return UnboundedDepth(NET.layer, NET.head, law=LAWS[law], **options)  # type: ignore[arg-type]


def data(n: int = 64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, 2, generator=g, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 0] > 1).long()


def move_to(model: UnboundedDepth, eta: float) -> None:
    with torch.no_grad():
        for p in model.law_parameters:
            p.fill_(eta)
    model.grow()
