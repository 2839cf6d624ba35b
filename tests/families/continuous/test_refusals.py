"""Invalid input: section 15 of the specification. Messages name the given value, the allowed ones and a remedy."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fathomless import Adam, ContinuousDepthRegressor, Euler, Heun, PathOptions, RandomHorizon
from fathomless.data.rows import Rows
from fathomless.families.continuous.accuracy import draw_coupled, effective_depth, find_common_steps
from fathomless.families.continuous.drift import PosteriorDrift
from fathomless.families.continuous.dynamics import ConvDynamics, MLPDynamics
from fathomless.families.continuous.grids import check_grid, find_steps, uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck, transition
from fathomless.families.continuous.solve import PathInference
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.laws import FreeCategorical, TruncatedPoisson
from fathomless.posterior.likelihoods import Gaussian
from fathomless.posterior.predictive import predictive
from fathomless.system import memory
from fathomless.system.errors import DataError, DataWarning, DivergenceError

NET = MLPDynamics(2, 1, width=3, hidden=(4,))
X = torch.zeros(4, 2)


def model(**options: Any) -> ContinuousDepth:
    given = {name: options.pop(name) for name in ("law", "horizon", "horizons", "weight_prior") if name in options}
    return ContinuousDepth(NET, options=PathInference(**options), **given)


REFUSED: list[tuple[str, Callable[[], Any], Sequence[str]]] = [
    ("rate below 0", lambda: OrnsteinUhlenbeck(rate=-0.5), ["rate=-0.5", ">= 0 is allowed", "0: the same weights"]),
    ("rate not finite", lambda: OrnsteinUhlenbeck(rate=math.inf), ["rate=inf", "a finite number is allowed"]),
    ("rate no number", lambda: OrnsteinUhlenbeck(rate="fast"), ["rate='fast'", "number"]),  # type: ignore[arg-type]
    ("scale of 0", lambda: OrnsteinUhlenbeck(scale=0.0), ["scale=0.0", "a positive, finite number"]),
    ("diffusion of 0", lambda: Brownian(diffusion=0.0), ["diffusion=0.0", "a positive, finite number"]),
    ("diffusion below 0", lambda: Brownian(diffusion=-1.0), ["diffusion=-1.0", "a positive, finite number"]),
    ("weight prior of 0", lambda: model(weight_prior=0.0), ["weight_prior=0.0", "a positive, finite number"]),
    ("horizon of 0", lambda: model(horizon=0.0), ["horizon=0.0", "a positive, finite number"]),
    ("horizon without end", lambda: model(horizon=math.inf), ["horizon=inf", "a positive, finite number"]),
    ("horizons of 0", lambda: model(horizons=0), ["horizons=0", "at least 1 is needed"]),
    ("horizon of a grid", lambda: uniform_grid(-1.0, 3), ["horizon=-1.0", "a positive, finite number"]),
    ("steps of a grid", lambda: uniform_grid(1.0, 0), ["steps=0", "at least 1 is needed"]),
    ("steps", lambda: model(steps=0), ["steps=0", "at least 1 is needed"]),
    ("steps of predictions", lambda: model(predict_steps=0), ["predict_steps=0", "at least 1 is needed"]),
    ("rank", lambda: model(rank=0), ["rank=0", "at least 1 is needed"]),
    ("knots", lambda: model(knots=0), ["knots=0", "at least 1 is needed"]),
    ("initial", lambda: model(initial="zero"), ["initial='zero'", "allowed are 'point' and 'gaussian'"]),
    ("drift", lambda: model(drift="full"), ["drift='full'", "allowed are 'shift'"]),
    ("transition", lambda: model(transition="heun"), ["transition='heun'", "'exact' and 'euler'"]),
    ("solver", lambda: model(solver="midpoint"), ["solver='midpoint'", "allowed are"]),
    ("jitter", lambda: model(jitter="all"), ["jitter='all'", "allowed are 'count', 'times' and 'none'"]),
    ("gradient", lambda: model(gradient="adjoint"), ["gradient='adjoint'", "allowed are 'auto'"]),
    ("estimator", lambda: model(estimator="open"), ["estimator='open'", "'closed', 'full' and 'sticking'"]),
    (
        "sticking with a quadrature",
        lambda: model(gradient="reversible", estimator="sticking"),
        [
            "estimator='sticking'",
            "only solver='heun' and path__estimator='closed' are allowed",
            "solver__gradient='checkpointed'",
        ],
    ),
    (
        "kind of drift",
        lambda: PosteriorDrift(3, "linear", rank=1, width=1.0, pieces=1, seed=0, dtype=torch.float32),
        ["drift='linear'", "allowed are"],
    ),
    (
        "kind of transition",
        lambda: transition(OrnsteinUhlenbeck(), torch.zeros(1), torch.ones(1), kind="milstein"),
        ["transition='milstein'", "'exact' and 'euler'"],
    ),
    (
        "grid that falls",
        lambda: check_grid((0.0, 0.6, 0.4, 1.0), 1.0),
        ["4 times", "increase from 0", "uniform_grid(1, 10)"],
    ),
    ("grid that stays", lambda: check_grid((0.0, 0.5, 0.5, 1.0), 1.0), ["4 times", "increase", "uniform_grid(1, 10)"]),
    (
        "grid that ends early",
        lambda: check_grid((0.0, 0.5), 1.0),
        ["from 0.0 to 0.5", "horizon 1", "uniform_grid(1, 10)"],
    ),
    (
        "grid that starts late",
        lambda: check_grid((0.1, 1.0), 1.0),
        ["from 0.1 to 1.0", "from 0", "uniform_grid(1, 10)"],
    ),
    ("grid of nothing", lambda: check_grid((), 2.0), ["0 times was given", "horizon 2", "uniform_grid(2, 10)"]),
    (
        "horizon between times",
        lambda: find_steps(uniform_grid(1.0, 3), (0.5, 1.0)),
        ["3 steps", "horizon 0.5; it must include", "a multiple of"],
    ),
    (
        "grid without a horizon",
        lambda: model(law=FreeCategorical(4), horizons=4).draw_on(X, 2, uniform_grid(1.0, 6), None),
        ["6 steps up to 1", "horizon 0.25; it must include", "a multiple of"],
    ),
    (
        "grid beyond the horizon",
        lambda: model().draw_on(X, 2, uniform_grid(2.0, 6), None),
        ["to 2.0", "the horizon 1", "uniform_grid(1, 10)"],
    ),
    (
        "outputs that are not in the state",
        lambda: MLPDynamics(1, 3, encoder="pad", augment=1),
        ["encoder='pad'", "1 columns, augment=1 and 3 outputs", "at least 2, or encoder='linear'"],
    ),
    ("augment", lambda: MLPDynamics(1, 1, augment=-1), ["augment=-1", "0 or more"]),
    ("encoder", lambda: MLPDynamics(1, 1, encoder="deep"), ["encoder='deep'", "'linear' and 'pad'"]),
    ("activation", lambda: MLPDynamics(1, 1, activation="step"), ["activation='step'", "allowed are 'relu'"]),
    ("time", lambda: MLPDynamics(1, 1, time="late"), ["time='late'", "'none' and 'gate'"]),
    ("hidden", lambda: MLPDynamics(1, 1, hidden=(4, 0)), ["hidden=0", "at least 1"]),
    ("images", lambda: ConvDynamics(1, 7, 2), ["side 7", "a multiple of 2 is allowed"]),
    ("squeezed images", lambda: ConvDynamics(1, 6, 2, squeeze=2), ["side 6", "a multiple of 4 is allowed"]),
    ("channels", lambda: ConvDynamics(0, 8, 2), ["channels=0", "at least 1"]),
    ("grids too fine", lambda: find_common_steps((7, 11, 13, 17)), ["17,017", "at most 1,024", "divide each other"]),
    ("no divisor", lambda: draw_coupled(model(), X, 2, 3, 8, 0), ["steps=3", "finest grid of 8", "divisors"]),
    (
        "no multiple of the horizons",
        lambda: draw_coupled(model(law=TruncatedPoisson(3.0), horizons=4), X, 2, 2, 8, 0),
        ["steps=2", "multiples of the 4 horizons"],
    ),
    (
        "distance of 1",
        lambda: effective_depth(model(), Gaussian(1), X, eps=1.0),
        ["eps=1.0", "inside (0, 1)", "for instance 0.01"],
    ),
    (
        "networks that differ",
        lambda: model().stack([model(steps=7)]),
        ["differ in more than seeds", "equal sizes, priors and grids"],
    ),
    ("paths of weights that stay", lambda: still().law_of_paths(uniform_grid(1.0, 2)), ["rate=0", "no weights vary"]),
]


def still() -> ContinuousDepth:
    return ContinuousDepth(NET, prior=OrnsteinUhlenbeck(rate=0.0))


@pytest.mark.parametrize(("call", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_refusal_says_what_was_given_and_what_is_allowed(call: Callable[[], Any], said: Sequence[str]) -> None:
    with pytest.raises(DataError) as caught:
        call()
    for part in said:
        assert part in str(caught.value)


@dataclass(frozen=True)
class Wide(MLPDynamics):
    """A slope smaller than the hidden state, which would be broadcast silently."""

    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        return super().slope(weights, t, h)[..., :1]


def test_a_slope_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"Wide\.slope returned shape \(1, 2, 4, 1\) .* state of shape \(1, 2, 4, 3\)"):
        ContinuousDepth(Wide(2, 1, width=3, hidden=(4,))).draw(X, 2, torch.Generator())


def test_a_natural_gradient_is_refused() -> None:
    rows = Rows(X, torch.zeros(4, 1))
    with pytest.raises(DataError, match=r"structure_optimizer='natural'.*ContinuousDepth.*structure_optimizer='adam'"):
        fit(model(), Gaussian(1), rows, training=Training(epochs=1, structure_optimizer="natural"))


def test_memory_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """States that exceed the memory are recomputed; beyond that, the error gives the number of paths that fits."""
    own, rows = model(steps=100, jitter="none"), torch.zeros(2000, 2)
    need = own.memory(50, 2000, 100)
    assert need > 2 * memory._SMALL
    monkeypatch.setattr(memory, "available", lambda: int(3 * need))
    assert own._segment(100, 50, 2000) == 0
    monkeypatch.setattr(memory, "available", lambda: int(need))
    assert own._segment(100, 50, 2000) == 10
    monkeypatch.setattr(memory, "available", lambda: int(0.1 * need))
    with pytest.raises(DataError) as caught:
        own.draw(rows, 50, torch.Generator())
    said = re.search(
        r"50 paths of 100 steps for 2,000 rows needs .* about (\d+) paths fit: lower training_draws", str(caught.value)
    )
    assert said is not None
    assert 15 <= int(said[1]) <= 25  # 90 % of a tenth, where a fifth is needed


def overflowing() -> ContinuousDepth:
    own = ContinuousDepth(MLPDynamics(2, 1, width=3, hidden=(4,), activation="relu"), options=PathInference(steps=20))
    with torch.no_grad():
        own.mean += 1e4
    return own


def test_hidden_states_that_overflow_end_the_training() -> None:
    """Training checks the network first; predictions count networks with non-finite values."""
    rows = Rows(torch.ones(8, 2), torch.zeros(8, 1))
    with pytest.raises(DivergenceError, match="before the first step the output of the network is not finite"):
        fit(overflowing(), Gaussian(1), rows, training=Training(epochs=1))
    with torch.no_grad():
        draws = overflowing().eval().draw(rows.x, 3, torch.Generator())
    assert not draws.f.isfinite().any()
    with pytest.raises(DivergenceError, match="3 of 3 drawn networks have outputs that are not finite"):
        predictive(draws, Gaussian(1))


QUICK: dict[str, Any] = {"epochs": 1, "width": 4, "hidden": 4, "solver__steps": 2, "cv": 1, "random_state": 0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path__rate": -1.0}, "path__rate=-1.0 was given; 0 or more is allowed"),
        ({"path__rate": math.nan}, "path__rate=nan was given; a finite number"),
        ({"weight_prior": 0.0}, "weight_prior=0.0 was given; a positive"),
        ({"horizon": 0.0}, "horizon=0.0 was given; a positive, finite number is allowed, or 'random'"),
        ({"horizon": "long"}, "horizon='long' was given; .* or 'random'"),
        ({"horizon": RandomHorizon(count=0)}, "horizon__count=0 was given; at least 1"),
        ({"solver__steps": 0}, "solver__steps=0 was given; at least 1"),
        ({"solver__predict_steps": 0}, "solver__predict_steps=0 was given; at least 1"),
        ({"hidden": (4, 0)}, "hidden=0 was given; at least 1"),
        ({"encoder": "pad", "augment": -1}, "augment=-1 was given"),
        ({"path__prior": "gp"}, "path__prior='gp' was given; allowed are 'ou' and 'brownian'"),
        ({"path__drift": "full"}, "path__drift='full' was given; allowed are"),
        ({"path": "ou"}, r"path='ou' was given; allowed are None and PathOptions\(...\)"),
        ({"path": 3}, r"path=3 was given; allowed are None and PathOptions\(...\)"),
        ({"horizon": Heun()}, r"horizon=Heun\(\) was given; a finite number is allowed, or 'random'"),
        (
            {"solver": Euler(gradient="reversible"), "path": PathOptions(rate=0.1)},
            "solver__gradient='reversible' was given with solver='euler' .*: set these, or solver__gradient=",
        ),
        (
            {"solver": Heun(gradient="reversible")},
            "solver__gradient='reversible' was given with a learned rate; .* set path__rate",
        ),
        ({"optimizer": Adam(warm_up=1.0)}, "optimizer__warm_up=1.0 was given; 0 <= optimizer__warm_up < 1 is allowed"),
        ({"optimizer": Adam(clip_norm=-1.0)}, "optimizer__clip_norm=-1.0 was given; a positive"),
        ({"architecture": "conv"}, "architecture='conv' was given; allowed is 'mlp'"),
    ],
    ids=str,
)
def test_estimators_refuse_options_by_their_names(options: dict[str, Any], said: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(DataError, match=said):
        ContinuousDepthRegressor().set_params(**{"solver": Heun(), **QUICK}).set_params(**options).fit(X, X[:, 0])


def test_a_prior_that_explodes_is_warned_of() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    wide = ContinuousDepthRegressor(weight_prior=4.0, path=PathOptions(initial="gaussian")).set_params(**QUICK)
    with pytest.warns(DataWarning, match=r"weight_prior=4 was given; above 1\.5, .* lower it"):
        wide.fit(X, X[:, 0])
