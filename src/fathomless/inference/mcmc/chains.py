"""Several Markov chains: plain values that can be stopped after any block of sweeps and go on to the same bytes.

A chain knows nothing of the others: its random numbers follow from the seed and its own number. So it makes no
difference how many chains there are, in which order or by how many workers they are run, or how often a run was killed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from torch import Tensor

from fathomless.inference.mcmc.diagnostics import LEAST, Diagnosis, diagnose
from fathomless.inference.runs.driver import ResumableRun, State, drive
from fathomless.system.checks import choice, interval, whole
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.progress import Progress
from fathomless.system.rng import fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["Chain", "Chains", "JointSampler", "Plan", "Sampler", "run_chains"]

S = TypeVar("S")
Arrays = Mapping[str, NDArray[Any]]

_TRACED = 1000  # values of each followed quantity, about
_BLOCKS = 40  # of a run: after each, it can be stopped


class Sampler(ABC, Generic[S]):
    """The law that a chain samples, and how. States belong to the sampler: it may change them in place."""

    @abstractmethod
    def start(self, generator: np.random.Generator) -> S:
        """Draw where a chain begins."""

    @abstractmethod
    def sweep(self, state: S, done: int, generator: np.random.Generator) -> S:
        """Move a state that has done so many sweeps by one more."""

    @abstractmethod
    def follow(self, state: S) -> dict[str, float]:
        """Return what is traced: numbers that do not depend on anything without meaning, such as names of units."""

    @abstractmethod
    def keep(self, state: S) -> Arrays:
        """Return what predictions need of a state: copies, of any shapes, with the same names each time."""

    @abstractmethod
    def pack(self, state: S) -> Arrays:
        """Return the whole state as arrays."""

    @abstractmethod
    def unpack(self, arrays: Arrays) -> S:
        """Undo :meth:`pack`."""


class JointSampler(Sampler[S]):
    """A sampler that moves all chains at once, which costs less than one after the other."""

    @abstractmethod
    def sweep_all(self, states: Sequence[S], done: int, generators: Sequence[np.random.Generator]) -> list[S]:
        """Move states that have done so many sweeps by one more, each with its own generator."""

    def sweep(self, state: S, done: int, generator: np.random.Generator) -> S:
        """Move one of them."""
        return self.sweep_all([state], done, [generator])[0]


@dataclass(frozen=True)
class Plan:
    """How many chains, how long, and which states are kept.

    Parameters
    ----------
    chains : int
        Chains.
    sweeps : int
        Sweeps of each, those of the burn-in among them.
    burn_in : float
        Share of the sweeps before the first state that is kept.
    states : int
        States kept of each chain, evenly spaced.
    jobs : int
        Workers; joblib's ``parallel_config`` decides which.

    Raises
    ------
    DataError
        If a number is out of range, or there are not as many sweeps after the burn-in as states.
    """

    chains: int = 12
    sweeps: int = 4000
    burn_in: float = 0.5
    states: int = 250
    jobs: int = 1

    def __post_init__(self) -> None:
        whole("chains", self.chains)
        whole("sweeps", self.sweeps)
        whole("states", self.states)
        interval("burn_in", self.burn_in, 0.0, 1.0)
        left = self.sweeps - self.first
        if self.states > left:
            raise DataError(
                f"states={self.states} was given, and of sweeps={self.sweeps} {left} are left after burn_in="
                f"{self.burn_in}; at most as many states are allowed"
            )

    @classmethod
    def of(cls, chains: int, sweeps: int, burn_in: float, states: "int | str", *, usual: int, jobs: int = 1) -> "Plan":
        """Return a plan; of `states` "auto" is the usual number, or all after the burn-in if these are fewer."""
        if isinstance(states, str):
            choice("states", states, ("auto",))
            one = cls(chains, sweeps, burn_in, 1, jobs)
            states = min(usual, sweeps - one.first)
        return cls(chains, sweeps, burn_in, states, jobs)

    @property
    def first(self) -> int:
        """Sweeps of the burn-in."""
        return math.ceil(self.burn_in * self.sweeps)

    @property
    def kept(self) -> tuple[int, ...]:
        """After how many sweeps a state is kept: the last ones of equal stretches."""
        left = self.sweeps - self.first
        return tuple(self.first + (left * (k + 1)) // self.states for k in range(self.states))

    @property
    def every(self) -> int:
        """Sweeps between two values of a trace."""
        return max(1, self.sweeps // _TRACED)

    @property
    def block(self) -> int:
        """Sweeps between two moments at which a run can be stopped."""
        return max(1, math.ceil(self.sweeps / _BLOCKS))


@dataclass
class Chain(Generic[S]):
    """One chain, where it is and what it has seen.

    Attributes
    ----------
    number : int
        Which.
    state : S
        Where it is.
    generator : numpy.random.Generator
        Its own source of randomness.
    sweeps : int
        Done.
    traces : dict of str to list of float
        What was followed, every so many sweeps.
    kept : list of dict of str to array
        States that were kept.
    error : str
        Why it stopped before its time; what was kept until then stays usable.
    """

    number: int
    state: S
    generator: np.random.Generator
    sweeps: int = 0
    traces: dict[str, list[float]] = field(default_factory=dict)
    kept: list[Arrays] = field(default_factory=list)
    error: str = ""


class Chains(ResumableRun, Generic[S]):
    """A run of several chains, between two blocks: everything that is needed to go on.

    To callbacks it is what a training is (:class:`~fathomless.inference.runs.run.Run`): an epoch is a sweep of all
    chains.

    Attributes
    ----------
    chains : list of Chain
        All of them.
    history : list of dict
        A row after each block: means over chains of what is followed.
    planned : list of int
        Sweeps that the run was planned for, and those of each plan by which it went on when it had ended.
    stop, pause : bool
        Set them in a callback to end the run, or to leave it and go on later.
    """

    def __init__(self, sampler: Sampler[S], plan: Plan, seed: int) -> None:
        self.sampler, self.plan, self.seed = sampler, plan, seed
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self.stop = self.pause = False
        self.planned = [plan.sweeps]
        self.chains: list[Chain[S]] = []

    @property
    def epochs(self) -> int:
        """Sweeps there will be."""
        return self.plan.sweeps

    def begin(self, start: Callable[[int, np.random.Generator], S] | None = None) -> None:
        """Let the chains begin: where the sampler draws, or what a function of their numbers returns."""
        for number in range(self.plan.chains):
            generator = np.random.Generator(np.random.PCG64(fold_in(self.seed, "chain", number)))
            state = self.sampler.start(generator) if start is None else start(number, generator)
            self.chains.append(Chain(number, state, generator))

    def advance(self) -> None:
        """Move all chains by one block of sweeps.

        Raises
        ------
        DivergenceError
            If every chain has failed; the first reason is named.
        """
        plan = self.plan
        until = min(plan.sweeps, self.epoch + plan.block)
        if isinstance(self.sampler, JointSampler):
            _advance_all(self.sampler, plan, self.chains, until)
        else:
            workers = Parallel(n_jobs=plan.jobs, prefer="threads")
            self.chains = workers(delayed(_advance)(self.sampler, plan, chain, until) for chain in self.chains)
        self.epoch = until
        if not self.alive:
            raise DivergenceError(f"all {plan.chains} chains failed; the first: {self.chains[0].error}")
        self.history.append(_row(self))

    @property
    def alive(self) -> list[Chain[S]]:
        """The chains that came through so far."""
        return [chain for chain in self.chains if not chain.error]

    def trace(self, name: str) -> NDArray[np.float64]:
        """Return what was followed after the burn-in by the chains that came through, (chains, draws)."""
        begin = self.plan.first // self.plan.every
        return np.array([chain.traces[name][begin:] for chain in self.alive])

    def diagnose(self) -> dict[str, Diagnosis]:
        """Return R-hat, effective sample sizes and errors of everything that was followed, if often enough."""
        found = {name: self.trace(name) for name in self.alive[0].traces}
        return {name: diagnose(draws) for name, draws in found.items() if draws.shape[1] >= LEAST}

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays of all chains by name."""
        found: dict[str, Tensor] = {}
        for chain in self.chains:
            arrays = {f"state/{name}": array for name, array in self.sampler.pack(chain.state).items()}
            arrays |= {f"traces/{name}": np.array(values) for name, values in chain.traces.items()}
            for name in chain.kept[0] if chain.kept else ():
                parts = [np.asarray(state[name]) for state in chain.kept]
                arrays[f"kept/{name}"] = np.concatenate([part.reshape(-1) for part in parts])
                arrays[f"shapes/{name}"] = np.array([part.shape for part in parts], dtype=np.int64)
            found |= {
                f"{chain.number}/{name}": torch.as_tensor(array.copy(), device="cpu") for name, array in arrays.items()
            }
        return found

    def meta(self) -> dict[str, Any]:
        """Return the rest as plain JSON."""
        chains = [
            {
                "sweeps": chain.sweeps,
                "error": chain.error,
                "generator": chain.generator.bit_generator.state,
                "traces": list(chain.traces),  # in their order, which files of tensors do not keep
                "kept": list(chain.kept[0]) if chain.kept else [],
            }
            for chain in self.chains
        ]
        return {"epoch": self.epoch, "history": self.history, "planned": self.planned, "chains": chains}

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Take over what :meth:`tensors` and :meth:`meta` returned."""
        self.epoch, self.history, self.chains = meta["epoch"], list(meta["history"]), []
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        for number, told in enumerate(meta["chains"]):
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = told["generator"]
            own = {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{number}/")}
            state = self.sampler.unpack(_under("state", own))
            chain = Chain(number, state, generator, told["sweeps"], error=told["error"])
            traces, kept = _under("traces", own), _under("kept", own)
            chain.traces = {name: traces[name].tolist() for name in told.get("traces", sorted(traces))}
            chain.kept = _parted({name: kept[name] for name in told.get("kept", sorted(kept))}, _under("shapes", own))
            self.chains.append(chain)
        self.planned = list(meta["planned"])
        if self.planned[-1] != self.plan.sweeps:
            self._lengthen()

    def _lengthen(self) -> None:
        """Go on by another plan, as if it had been this one from the start: all that was done is burn-in."""
        before, plan = replace(self.plan, sweeps=self.planned[-1], states=1), self.plan
        if not _contains(plan, before, self.epoch):
            most = 1000 * max(self.epoch, plan.sweeps)
            allowed = range(max(plan.sweeps, self.epoch), most)
            fit = next((n for n in allowed if _contains(replace(plan, sweeps=n), before, self.epoch)), None)
            hint = "lengthen burn_in" if fit is None else f"sweeps={fit} is the next number that is allowed"
            raise DataError(
                f"sweeps={plan.sweeps} was given to go on with {self.epoch} of {before.sweeps}; the states of one long "
                f"run can be kept if all that is done is its burn-in: {hint}"
            )
        ratio = plan.every // before.every
        for chain in self.chains:
            chain.kept = []
            chain.traces = {name: values[ratio - 1 :: ratio] for name, values in chain.traces.items()}
        self.planned.append(plan.sweeps)


def _contains(plan: Plan, before: Plan, done: int) -> bool:
    """Whether what was done by a plan is what another one does at first, and keeps none of."""
    return plan.first >= done and plan.every % before.every == 0


@enable_gradients()
def run_chains(
    sampler: Sampler[S],
    plan: Plan,
    seed: int,
    *,
    start: Callable[[int, np.random.Generator], S] | None = None,
    callbacks: Sequence[Callable[[Any], None]] = (),
    progress: Progress | None = None,
    resume: State | None = None,
) -> Chains[S]:
    """Run chains to the end of their plan.

    Parameters
    ----------
    sampler : Sampler
        What is sampled.
    plan : Plan
        How long.
    seed : int
        From which every chain's random numbers follow.
    start : callable, optional
        (number, generator) -> where a chain begins; by default the sampler draws it.
    callbacks : sequence of callables
        Called after every block with the run, such as :class:`~fathomless.inference.runs.callbacks.Checkpoint`.
    progress : Progress, optional
        A display.
    resume : (tensors, meta), optional
        Of an interrupted run of the same seed and plan, or of one of fewer sweeps than the burn-in of this plan: it
        goes on as if it had been this one, apart from the rows of its history.

    Raises
    ------
    DataError
        If a run cannot go on by this plan.
    DivergenceError
        If every chain failed; the first reason is named.
    PausedError
        When a callback sets ``run.pause``.
    """
    run = Chains(sampler, plan, seed)
    if resume is None:
        run.begin(start)
    else:
        run.resume(*resume)
    drive(run, run.advance, callbacks=callbacks, progress=progress, unit="sweep")
    return run


def _advance(sampler: Sampler[S], plan: Plan, chain: Chain[S], until: int) -> Chain[S]:
    """Move one chain; one that fails stops, and keeps what it has."""
    kept = set(plan.kept)
    try:
        while not chain.error and chain.sweeps < until:
            state = sampler.sweep(chain.state, chain.sweeps, chain.generator)
            _arrive(sampler, plan, chain, state, kept)
    except (DivergenceError, DataError) as error:
        chain.error = f"chain {chain.number}, sweep {chain.sweeps + 1}: {error}"
    return chain


def _advance_all(sampler: JointSampler[S], plan: Plan, chains: Sequence[Chain[S]], until: int) -> None:
    """Move all chains, which have done equally many sweeps."""
    kept, generators = set(plan.kept), [chain.generator for chain in chains]
    for done in range(chains[0].sweeps, until):
        states = sampler.sweep_all([chain.state for chain in chains], done, generators)
        for chain, state in zip(chains, states, strict=True):
            _arrive(sampler, plan, chain, state, kept)


def _arrive(sampler: Sampler[S], plan: Plan, chain: Chain[S], state: S, kept: Collection[int]) -> None:
    """Take down what a chain has come to."""
    chain.state = state
    chain.sweeps += 1
    if chain.sweeps % plan.every == 0:
        for name, value in sampler.follow(state).items():
            chain.traces.setdefault(name, []).append(value)
    if chain.sweeps in kept:
        chain.kept.append(sampler.keep(state))


def _row(run: Chains[S]) -> dict[str, float]:
    """Return a row of the history: what the chains that are alive followed last, on average."""
    traced = [chain.traces for chain in run.alive if chain.traces]
    names = traced[0] if traced else {}
    means = {f"mean_{name}": float(np.mean([traces[name][-1] for traces in traced])) for name in names}
    return {"epoch": run.epoch, "chains": len(run.alive), **means}


def _under(prefix: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    return {name[len(prefix) + 1 :]: array for name, array in arrays.items() if name.startswith(prefix + "/")}


def _parted(flat: Arrays, shapes: Arrays) -> list[Arrays]:
    """Undo the concatenation of kept states."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for name, array in flat.items():
        sizes = shapes[name].prod(1).astype(np.int64)
        pieces = np.split(array, np.cumsum(sizes)[:-1])
        parts[name] = [piece.reshape(shape) for piece, shape in zip(pieces, shapes[name].tolist(), strict=True)]
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
