"""Check of every family and mode on an accelerator in at most six minutes, with one JSON line for each case.

    python benchmarks/accelerator.py                    on the GPU
    python benchmarks/accelerator.py --device cpu       the same on the CPU
    python benchmarks/accelerator.py sparse continuous  cases and checks whose names start with these words
    python benchmarks/accelerator.py none --times       seconds of the default fit with and without recorded steps

Each case is fitted; all its predictions are computed; it is saved, loaded, compared with its predictions on the CPU,
and exported. The plain cases are also fitted again with the same seed, and paused and resumed, with identical bytes.
The last cases check the device itself. A line states which step failed and why; the exit status is 1 if any step
failed.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]
from battery.cases import CASES, Case, predicted  # type: ignore[import-not-found]  # noqa: E402
from fathomless import Heun, PathOptions, UnboundedDepthRegressor  # noqa: E402
from fathomless.estimators.predictor import AnyPredictive  # noqa: E402
from fathomless.estimators.values import ELBO, HMC  # noqa: E402
from fathomless.families.registry import families  # noqa: E402
from fathomless.posterior.classes import ClassPredictive  # noqa: E402
from fathomless.posterior.distributions import ContinuousPredictive, NumberPredictive  # noqa: E402
from fathomless.system.errors import DataError, PausedError  # noqa: E402
from fathomless.system.recording import RECORDERS  # noqa: E402

Array = npt.NDArray[Any]

SECONDS = 360.0
SHORT = {"epochs": 4, "weight_draws": 4, "candidate_steps": 20, "decoder_steps": 20, "latent_steps": 20}
MEMBERS = {"cv": 2, "validation_fraction": "auto"}
CHAINS = {**MEMBERS, "weights": HMC(chains=2, sweeps=16, states=4, leapfrogs=3)}
#: Modes that are not in the test battery: family, task, name, options.
MORE: list[tuple[str, str, str, dict[str, Any]]] = [
    ("depth", "classification", "transformer", {"architecture": "transformer", "width": 8}),
    ("depth", "regression", "transformer", {"architecture": "transformer", "width": 8}),
    ("depth", "regression", "transformer-members", {"architecture": "transformer", "width": 8, **MEMBERS}),
    ("depth", "classification", "hmc", CHAINS),
    ("depth", "regression", "hmc", CHAINS),
    ("depth", "regression", "hmc-student", {**CHAINS, "likelihood": "student_t"}),
    ("depth", "regression", "input-noise", {"noise": "input"}),
    ("depth", "regression", "student", {"likelihood": "student_t"}),
    ("depth", "regression", "laplace", {"likelihood": "laplace"}),
    (
        "depth",
        "classification",
        "natural",
        {"structure_from": ELBO(optimizer="natural"), "depth_law": "stick_breaking"},
    ),
    ("depth", "regression", "natural", {"structure_from": ELBO(optimizer="natural")}),
    ("depth", "classification", "float32", {"precision": "float32"}),
    ("depth", "classification", "bfloat16", {"precision": "bfloat16"}),
    ("depth", "regression", "conjugate-last-layer", {"last_layer": "conjugate"}),
    ("depth", "regression", "columns", {"weight_prior": "columns", **MEMBERS}),
    ("depth", "regression", "neighbors", {"neighbors": True, **MEMBERS}),
    ("sparse", "classification", "relaxed", {"posterior": "relaxed"}),
    ("sparse", "regression", "mnf", {"posterior": "mnf"}),
    ("sparse", "classification", "skip", {"architecture": "skip", "prior_inclusion": "learned"}),
    (
        "continuous",
        "classification",
        "reversible",
        {"solver": Heun(steps=8, gradient="reversible"), "path": PathOptions(rate=0.02), "precision": "float64"},
    ),
    ("continuous", "classification", "checkpointed", {"hidden": 6, "solver": Heun(steps=4, gradient="checkpointed")}),
    (
        "continuous",
        "classification",
        "times",
        {"hidden": 6, "solver": Heun(steps=3, jitter="times"), "path": PathOptions(transition="euler")},
    ),
    ("manifold", "regression", "sampled", {"latent_posterior": "sampled", "components": 2, "latent_dim": 2}),
    ("manifold", "classification", "last", {"decoder_law": "last", "latent_dim": 2}),
    ("manifold", "classification", "layers", {"decoder_map": "layers", "latent_dim": 2}),
    ("manifold", "regression", "dimensions", {"latent_dim": (2, 3)}),
]
STAGES = {"candidates": 12, "decoder_width": 8}


def cases() -> list[Case]:
    """Return the cases of the test battery and the additional modes."""
    known = families()
    more = [
        Case(f"{family}-{name}-{task}", known[family], task, {**(STAGES if family == "manifold" else {}), **options})
        for family, task, name, options in MORE
    ]
    return [case for case in CASES if case.family.name in known] + more


class CaseCheck:
    """Fitted case on a device; each method is a step that raises an exception if it fails."""

    def __init__(self, case: Case, device: str, folder: Path, tolerance: float = 1e-6) -> None:
        self.case, self.device, self.folder, self.tolerance = case, device, folder, tolerance
        self.elsewhere = device not in ("cpu", "auto")
        self.X, self.y = case.table()
        self.fitted: Any = None

    def estimator(self, **more: Any) -> Any:
        """Return the estimator with few epochs on the device."""
        own = self.case.estimator()
        known = own.get_params()
        short = {name: value for name, value in SHORT.items() if name in known and name not in self.case.options}
        return self.case.estimator(**{**short, "device": self.device, **more})

    def fit(self) -> None:
        """Fit the estimator; chains of graphs must refuse an accelerator and run on the CPU."""
        if self.case.family.name == "graph" and self.elsewhere:
            try:
                self.estimator().fit(self.X, self.y)
            except DataError as error:
                assert "chains run on the CPU" in str(error), error  # noqa: PT017
            else:
                raise AssertionError("chains accepted a device that they cannot run on")
            self.device = "auto"
        self.fitted = self.estimator().fit(self.X, self.y)
        wanted = "cpu" if self.device == "auto" else torch.device(self.device).type
        assert self.fitted.model_.device.type == wanted, self.fitted.model_.device

    def predict(self) -> None:
        """Predict twice, with the same result."""
        first = predicted(self.fitted, self.X)
        assert all(np.isfinite(one).all() for one in first if one.dtype.kind == "f")
        _assert_same(first, predicted(self.fitted, self.X))

    def methods(self) -> None:
        """Compute every method of the predictive distribution; draws depend on the seed only."""
        if self.case.task != "density":
            asked = predictive_values(self.fitted.predict_dist(self.X), self.X, self.y, self.device)
            assert not any(np.isinf(one).any() for one in asked if one.dtype.kind == "f")  # an unknown part is NaN

    def save(self) -> None:
        """Save and load on the same device, with identical bytes."""
        loaded = type(self.fitted).load(self.fitted.save(self.folder / "saved"))
        assert loaded.model_.device.type == self.fitted.model_.device.type
        assert loaded.device_ == self.fitted.device_
        assert loaded.device_.startswith(self.fitted.model_.device.type)
        _assert_same(predicted(loaded, self.X), predicted(self.fitted, self.X))

    def processor(self) -> None:
        """Compare predictions on the CPU with those on the device, including draws."""
        loaded = type(self.fitted).load(self.folder / "saved")
        loaded.model_ = loaded.model_.cpu()
        loaded.likelihood_ = loaded.likelihood_.cpu()
        loaded.device = "cpu"
        _assert_close(predicted(loaded, self.X), predicted(self.fitted, self.X), self.tolerance)
        if self.case.task != "density":
            ours, theirs = (
                predictive_values(one.predict_dist(self.X), self.X, self.y, "cpu") for one in (loaded, self.fitted)
            )
            _assert_close(ours, theirs, self.tolerance)

    def module(self) -> None:
        """Export to a plain module with the same predictions."""
        if (
            not hasattr(self.fitted, "to_module")
            or self.case.family.name == "graph"
            or self.case.options.get("neighbors")
        ):
            return
        told = self.fitted.to_module()(torch.as_tensor(self.fitted.to_numbers(self.X)))
        if self.case.task == "classification":
            ours = told["probabilities"].numpy()
            theirs = self.fitted.predict_proba(self.X)
        else:
            ours = told["mean"].numpy()
            theirs = self.fitted.predict(self.X)
        _assert_close([ours], [theirs], max(self.tolerance, 1e-5))

    def again(self) -> None:
        """Fit again with the same seed, with identical bytes."""
        _assert_same(predicted(self.estimator().fit(self.X, self.y), self.X), predicted(self.fitted, self.X))

    def resume(self) -> None:
        """Pause and resume, with the same bytes as without a pause."""
        place = self.folder / "checkpoint"

        def pause(run: Any) -> None:
            run.pause = True

        try:
            self.estimator(checkpoint=place, callbacks=[pause]).fit(self.X, self.y)
        except PausedError:
            pass
        else:
            raise AssertionError("the fit was not paused")
        if self.elsewhere:
            try:
                self.estimator(checkpoint=place, device="cpu").fit(self.X, self.y)
            except DataError as error:
                assert "the checkpoint in" in str(error), error  # noqa: PT017
            else:
                raise AssertionError("a checkpoint of the device was resumed on the CPU without an error")
        _assert_same(
            predicted(self.estimator(checkpoint=place).fit(self.X, self.y), self.X), predicted(self.fitted, self.X)
        )

    def derivatives(self) -> None:
        """Compare derivatives in the inputs by torch.func with those by automatic differentiation."""
        model = self.fitted.model_
        rows = self.fitted._encode(self.fitted.schema_, self.X)[:2]
        x = torch.as_tensor(rows, dtype=model.dtype).to(model.device).requires_grad_()

        def total(x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = model.draw(x, 2, torch.Generator().manual_seed(0)).f.double().sum()
            return found

        value = total(x)
        if not value.requires_grad:  # samples of weights are evaluated without gradients
            return
        (plain,) = torch.autograd.grad(value, x)
        _assert_close([torch.func.grad(total)(x.detach()).detach().cpu().numpy()], [plain.detach().cpu().numpy()], 1e-5)


#: Steps of every case, and additional steps of the plain cases.
EVERY = ("fit", "predict", "methods", "save", "processor", "module")
PLAIN = ("again", "resume", "derivatives")


def predictive_values(p: AnyPredictive, X: Array, y: Any, device: str) -> list[Array]:
    """Return the values of all methods and properties of a predictive distribution, with several kinds of seeds."""
    found: list[Any] = [p.log_prob(y), p.mc_error, p.rvs(random_state=3), p.rvs((2, *p.shape), random_state=3)]
    found += [p.sample(2, torch.Generator().manual_seed(1)), p.rvs(random_state=np.random.default_rng(0))]
    if device not in ("cpu", "auto"):  # a generator of the device gives other numbers, so only the shape is checked
        assert p.rvs(random_state=torch.Generator(device).manual_seed(0)).shape == p.shape
    split = p.uncertainty()
    found += [split.noise, split.weights, split.structure, split.total, split.mean().total, *p.columns().values()]
    if isinstance(p, ContinuousPredictive):
        levels = np.full((1, *[1] * (len(p.shape) - 1)), 0.3)
        found += [
            p.mean,
            p.variance,
            p.std,
            p.median,
            p.cdf(y),
            p.sf(y),
            p.pdf(y),
            p.logpdf(y),
            *p.log_prob_and_error(y),
        ]
        found += [p.icdf(levels), p.ppf(levels), p.isf(levels), p.quantile(levels), *p.interval(0.8)]
        found += [p.quantiles([0.1, 0.9])]
    elif isinstance(p, NumberPredictive):
        found += [p.mean, p.median, p.cdf(y), p.sf(y), p.cdf_before(y), *p.interval(0.8)]
    else:
        found += [p.probs, p.log_probs, p.predict(), p.entropy()]
        found += [p.mode, p.pmf(y), p.logpmf(y)] if isinstance(p, ClassPredictive) else []
    return [one.detach().numpy() if isinstance(one, torch.Tensor) else np.asarray(one) for one in found]


def _assert_same(ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert np.array_equal(a, b), f"the largest difference is {np.abs(a - b).max() if a.dtype.kind == 'f' else '?'}"


def _assert_close(ours: Sequence[Array], theirs: Sequence[Array], tolerance: float) -> None:
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=f"part {place}")
        elif tolerance <= 1e-6:
            assert np.array_equal(a, b), f"part {place}"


# ------------------------------------------------------------------------------------------------- the device itself


def check_automatic(device: str) -> None:
    """Check that ``device="auto"`` is the GPU if there is one."""
    case = next(case for case in CASES if case.name == "finite-regression")
    fitted = case.estimator(epochs=2).fit(*case.table())
    assert fitted.model_.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def check_memory_returned(device: str) -> None:
    """Check that repeated fits in one process do not increase the allocated device memory."""
    case = next(case for case in CASES if case.name == "depth-regression")
    used = []
    for _ in range(3):
        case.estimator(epochs=2, device=device).fit(*case.table()).predict(case.table()[0])
        gc.collect()
        used.append(torch.cuda.memory_allocated())
    assert used[0] == used[1] == used[2], used


def check_out_of_memory(device: str) -> None:
    """Check the error message of a fit that exceeds the device memory."""
    case = next(case for case in CASES if case.name == "finite-regression")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2e-3)
    try:
        case.estimator(epochs=1, width=8192, device=device).fit(*case.table())
    except DataError as error:
        assert "no memory left" in str(error), error  # noqa: PT017
        assert "device='cpu'" in str(error), error  # noqa: PT017
    else:
        raise AssertionError("a network larger than the device memory was fitted")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def check_recorded_steps(device: str) -> dict[str, float]:
    """Check that training steps are recorded, and that fits without recordings have the same bytes."""
    line = time_fits(300, device)
    assert line["largest_difference"] == 0.0, line
    assert "recorded_warning" not in line, line
    return {"ratio": round(line["plain"] / line["recorded"], 2)}


def time_draws_on_cpu(device: str) -> dict[str, float]:
    """Return the time of a prediction with random numbers from the CPU, relative to numbers from the device."""
    case = next(case for case in CASES if case.name == "meanfield-regression")
    model = case.estimator(epochs=1, width=256, device=device).fit(*case.table()).model_
    x = torch.zeros(10_000, 3, dtype=model.dtype, device=device)
    taken: dict[str, list[float]] = {"cpu": [], device: []}
    for _ in range(7):
        for where, kept in taken.items():
            begun = time.perf_counter()
            with torch.no_grad():
                model.draw(x, 16, torch.Generator(where).manual_seed(0)).f.sum().item()
            kept.append(time.perf_counter() - begun)
    return {"ratio": round(float(np.median(taken["cpu"]) / np.median(taken[device])), 3)}


ON_CARDS: dict[str, Callable[[str], Any]] = {
    "memory_returned": check_memory_returned,
    "out_of_memory": check_out_of_memory,
    "recorded_steps": check_recorded_steps,
}
ANYWHERE: dict[str, Callable[[str], Any]] = {"automatic": check_automatic, "draws_by_processor": time_draws_on_cpu}


# -------------------------------------------------------------------------------------------------------- the lines


def run_case(case: Case, device: str, tolerance: float, steps: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the steps of a case, by default all of its steps, until one fails."""
    begun = time.perf_counter()
    used = time.process_time()
    done = list[str]()
    line: dict[str, Any] = {"case": case.name, "device": device}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = CaseCheck(case, device, Path(folder), tolerance)
        if steps is None:
            steps = (*EVERY, *PLAIN) if case.plain else EVERY
        for step in steps:
            try:
                getattr(asked, step)()
            except Exception as error:  # every case has a line, whatever the exception
                line |= _failure(step, error)
                break
            done.append(step)
    taken = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - used}
    return {**line, "steps": done, **{name: round(value, 2) for name, value in taken.items()}}


def _failure(step: str, error: BaseException) -> dict[str, Any]:
    places = [f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(error.__traceback__)]
    return {"failed": step, "error": f"{type(error).__name__}: {error}"[:600], "where": places[-6:]}


def check_device(device: str, names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Run the checks of the device; those that need a GPU are skipped without one, with the reason."""
    for name, call in {**ANYWHERE, **ON_CARDS}.items():
        if names and not name.startswith(tuple(names)):
            continue
        line: dict[str, Any] = {"case": name, "device": device}
        if name in ON_CARDS and torch.device(device).type != "cuda":
            yield {**line, "skipped": "needs a graphics processor"}
            continue
        begun = time.perf_counter()
        try:
            line |= call(device) or {}
        except Exception as error:
            line |= _failure(name, error)
        yield {**line, "seconds": round(time.perf_counter() - begun, 2)}


#: Rows of the fits that are timed.
TIMED = (300, 1000, 10_000, 50_000)


def time_fits(rows: int, device: str) -> dict[str, Any]:
    """Return the seconds of the default fit of a table with 20 columns, with and without recorded steps."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 20))
    y = X[:, 0] * X[:, 1] + np.sin(X[:, 2]) + 0.3 * rng.normal(size=rows)
    line: dict[str, Any] = {"case": f"default-{rows}", "device": device, "threads": torch.get_num_threads()}
    predictions = []
    for way in ("recorded", "plain"):
        kept = dict(RECORDERS)
        if way == "plain":
            RECORDERS.clear()
        try:
            with warnings.catch_warnings(record=True) as issued:
                warnings.simplefilter("always")
                _fit_default(X[:200], y[:200], device, epochs=2)
                fitted, seconds, training = _fit_default(X, y, device)
        finally:
            RECORDERS.update(kept)
        line |= {way: round(seconds, 2), f"{way}_training": round(training, 2)}
        line |= {f"{way}_steps": int(fitted.history_[-1]["step"]), f"{way}_evaluations": len(fitted.history_)}
        if told := [str(one.message)[:200] for one in issued if "record" in str(one.message)]:
            line[f"{way}_warning"] = told[0]
        predictions.append(fitted.predict(X[:1000]))
    line["largest_difference"] = float(np.abs(predictions[0] - predictions[1]).max())
    return line


def _fit_default(X: Array, y: Array, device: str, **options: Any) -> tuple[Any, float, float]:
    """Fit the default; return it with the seconds of the fit, and of its part up to the last row of the history."""
    begun = time.perf_counter()
    ends: list[float] = []

    def note(run: Any) -> None:
        ends.append(time.perf_counter())

    fitted = UnboundedDepthRegressor(random_state=0, device=device, callbacks=[note], **options).fit(X, y)
    return fitted, time.perf_counter() - begun, ends[-1] - begun


def tolerance_of(device: str) -> float:
    """Return the tolerance of predictions of a device against the CPU; sums in float32 have another order."""
    return 2e-3 if torch.device(device).type == "cuda" else 1e-6


def main(words: Sequence[str] | None = None) -> int:
    """Print a line for every case; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="first letters of the names of cases; all by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time after which no further case is started")
    parser.add_argument(
        "--times", action="store_true", help="also time the default fit with and without recorded steps"
    )
    given = parser.parse_args(words)
    begun = time.perf_counter()
    failed = 0
    left = 0
    for case in cases():
        if given.names and not case.name.startswith(tuple(given.names)):
            continue
        if time.perf_counter() - begun > given.seconds:
            left += 1
            continue
        failed += _print_line(run_case(case, given.device, tolerance_of(given.device)))
    failed += sum(map(_print_line, check_device(given.device, given.names)))
    if given.times:
        for rows in TIMED:
            _print_line(time_fits(rows, given.device))
    seconds = round(time.perf_counter() - begun, 1)
    name = torch.cuda.get_device_name() if torch.device(given.device).type == "cuda" else "processor"
    _print_line(
        {"device": given.device, "name": name, "torch": torch.__version__, "seconds": seconds, "left_out": left}
    )
    return int(failed > 0 or left > 0)


def _print_line(line: Mapping[str, Any]) -> bool:
    print(json.dumps(line), flush=True)
    return "failed" in line


if __name__ == "__main__":
    sys.exit(main())
