"""Runs of several Markov chains, which can be stopped after any block of sweeps and resumed bit-identically.

Chains are independent: the random numbers of a chain follow from the seed and its number. Its states therefore do not
depend on the number of chains, their order, the number of workers, or interruptions of the run.
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

_TRACED = 1000  # approximate number of values in a trace
_BLOCKS = 40  # number of blocks of a run, after each of which it can be stopped


class Sampler(ABC, Generic[S]):
    """Target distribution of a chain, with its transitions. A sampler may change its states in place."""

    @abstractmethod
    def start(self, generator: np.random.Generator) -> S:
        """Draw the initial state of a chain."""

    @abstractmethod
    def sweep(self, state: S, done: int, generator: np.random.Generator) -> S:
        """Move a state by one sweep; `done` is the number of sweeps before it."""

    @abstractmethod
    def follow(self, state: S) -> dict[str, float]:
        """Return the traced quantities: numbers that are invariant to arbitrary labels, such as names of units."""

    @abstractmethod
    def keep(self, state: S) -> Arrays:
        """Return copies of the arrays that predictions need, of any shapes, with the same names for all states."""

    @abstractmethod
    def pack(self, state: S) -> Arrays:
        """Return the whole state as arrays."""

    @abstractmethod
    def unpack(self, arrays: Arrays) -> S:
        """Restore a state from the result of :meth:`pack`."""


class JointSampler(Sampler[S]):
    """Sampler that moves all chains at once, which is faster than moving them one after the other."""

    @abstractmethod
    def sweep_all(self, states: Sequence[S], done: int, generators: Sequence[np.random.Generator]) -> list[S]:
        """Move states by one sweep, each with its own generator; `done` is the number of sweeps before it."""

    def sweep(self, state: S, done: int, generator: np.random.Generator) -> S:
        """Move a single state by one sweep."""
        return self.sweep_all([state], done, [generator])[0]


@dataclass(frozen=True)
class Plan:
    """Number and length of the chains, and the states that are kept.

    Parameters
    ----------
    chains : int
        Number of chains.
    sweeps : int
        Number of sweeps of each chain, including the burn-in.
    burn_in : float
        Share of the sweeps that are burn-in, from which no states are kept.
    states : int
        Number of states kept of each chain, evenly spaced.
    jobs : int
        Number of workers; joblib's ``parallel_config`` sets the backend.

    Raises
    ------
    DataError
        If a number is out of range, or there are fewer sweeps after the burn-in than states.
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
        remaining = self.sweeps - self.first
        if self.states > remaining:
            raise DataError(
                f"states={self.states} was given, but sweeps={self.sweeps} with burn_in={self.burn_in} leave "
                f"{remaining} sweeps after the burn-in; at most that many states are allowed"
            )

    @classmethod
    def of(cls, chains: int, sweeps: int, burn_in: float, states: "int | str", *, usual: int, jobs: int = 1) -> "Plan":
        """Return a plan; `states="auto"` is the usual number, or that of the sweeps after the burn-in if smaller."""
        if isinstance(states, str):
            choice("states", states, ("auto",))
            with_one_state = cls(chains, sweeps, burn_in, 1, jobs)
            states = min(usual, sweeps - with_one_state.first)
        return cls(chains, sweeps, burn_in, states, jobs)

    @property
    def first(self) -> int:
        """Number of sweeps of the burn-in."""
        return math.ceil(self.burn_in * self.sweeps)

    @property
    def kept(self) -> tuple[int, ...]:
        """Numbers of the sweeps after which a state is kept: the last ones of intervals of equal length."""
        remaining = self.sweeps - self.first
        return tuple(self.first + (remaining * (k + 1)) // self.states for k in range(self.states))

    @property
    def every(self) -> int:
        """Number of sweeps between two values of a trace."""
        return max(1, self.sweeps // _TRACED)

    @property
    def block(self) -> int:
        """Number of sweeps of a block, after which a run can be stopped."""
        return max(1, math.ceil(self.sweeps / _BLOCKS))


@dataclass
class Chain(Generic[S]):
    """One chain: its present state, traces and kept states.

    Attributes
    ----------
    number : int
        Number of the chain, from 0.
    state : S
        Present state.
    generator : numpy.random.Generator
        Random generator of the chain.
    sweeps : int
        Number of sweeps done.
    traces : dict of str to list of float
        Traced quantities, at intervals of :attr:`Plan.every` sweeps.
    kept : list of dict of str to array
        Kept states.
    error : str
        Reason for which it stopped early, if it failed. States kept until then remain usable.
    """

    number: int
    state: S
    generator: np.random.Generator
    sweeps: int = 0
    traces: dict[str, list[float]] = field(default_factory=dict)
    kept: list[Arrays] = field(default_factory=list)
    error: str = ""


class Chains(ResumableRun, Generic[S]):
    """State of a run of several chains between two blocks: everything that is needed to continue it.

    Callbacks use it like a training (:class:`~fathomless.inference.runs.run.Run`): an epoch is a sweep of all chains.

    Attributes
    ----------
    chains : list of Chain
        All chains.
    history : list of dict
        A row after each block: means over chains of the traced quantities.
    planned : list of int
        Number of sweeps planned at first, and of each plan by which the run was extended.
    stop, pause : bool
        Set them in a callback to end the run, or to leave it and continue later.
    """

    def __init__(self, sampler: Sampler[S], plan: Plan, seed: int) -> None:
        self.sampler = sampler
        self.plan = plan
        self.seed = seed
        self.epoch = 0
        self.history: list[dict[str, float]] = []
        self.stop = self.pause = False
        self.planned = [plan.sweeps]
        self.chains: list[Chain[S]] = []

    @property
    def epochs(self) -> int:
        """Number of planned sweeps."""
        return self.plan.sweeps

    def begin(self, start: Callable[[int, np.random.Generator], S] | None = None) -> None:
        """Create the chains, with states drawn by the sampler or returned by a function of their numbers."""
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
        """Chains that have not failed so far."""
        return [chain for chain in self.chains if not chain.error]

    def trace(self, name: str) -> NDArray[np.float64]:
        """Return the trace of a quantity after the burn-in, in the chains that have not failed, (chains, draws)."""
        begin = self.plan.first // self.plan.every
        return np.array([chain.traces[name][begin:] for chain in self.alive])

    def diagnose(self) -> dict[str, Diagnosis]:
        """Compute R-hat, effective sample sizes and Monte Carlo errors of all traces with enough values."""
        traces = {name: self.trace(name) for name in self.alive[0].traces}
        return {name: diagnose(draws) for name, draws in traces.items() if draws.shape[1] >= LEAST}

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays of all chains by name."""
        tensors: dict[str, Tensor] = {}
        for chain in self.chains:
            arrays = {f"state/{name}": array for name, array in self.sampler.pack(chain.state).items()}
            arrays |= {f"traces/{name}": np.array(values) for name, values in chain.traces.items()}
            for name in chain.kept[0] if chain.kept else ():
                parts = [np.asarray(state[name]) for state in chain.kept]
                arrays[f"kept/{name}"] = np.concatenate([part.reshape(-1) for part in parts])
                arrays[f"shapes/{name}"] = np.array([part.shape for part in parts], dtype=np.int64)
            tensors |= {
                f"{chain.number}/{name}": torch.as_tensor(array.copy(), device="cpu") for name, array in arrays.items()
            }
        return tensors

    def meta(self) -> dict[str, Any]:
        """Return the rest as plain JSON."""
        chains = [
            {
                "sweeps": chain.sweeps,
                "error": chain.error,
                "generator": chain.generator.bit_generator.state,
                "traces": list(chain.traces),  # names in their order, which files of tensors do not preserve
                "kept": list(chain.kept[0]) if chain.kept else [],
            }
            for chain in self.chains
        ]
        return {"epoch": self.epoch, "history": self.history, "planned": self.planned, "chains": chains}

    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`tensors` and :meth:`meta` returned."""
        self.epoch = meta["epoch"]
        self.history = list(meta["history"])
        self.chains = []
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        for number, saved in enumerate(meta["chains"]):
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = saved["generator"]
            of_chain = {
                name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{number}/")
            }
            state = self.sampler.unpack(_under("state", of_chain))
            chain = Chain(number, state, generator, saved["sweeps"], error=saved["error"])
            traces, kept = _under("traces", of_chain), _under("kept", of_chain)
            chain.traces = {name: traces[name].tolist() for name in saved.get("traces", sorted(traces))}
            flat = {name: kept[name] for name in saved.get("kept", sorted(kept))}
            chain.kept = _split_states(flat, _under("shapes", of_chain))
            self.chains.append(chain)
        self.planned = list(meta["planned"])
        if self.planned[-1] != self.plan.sweeps:
            self._lengthen()

    def _lengthen(self) -> None:
        """Extend the run by another plan, as if it had been the first one: all sweeps so far become burn-in."""
        plan = self.plan
        before = replace(plan, sweeps=self.planned[-1], states=1)
        if not _extends(plan, before, self.epoch):
            candidates = range(max(plan.sweeps, self.epoch), 1000 * max(self.epoch, plan.sweeps))
            fit = next((n for n in candidates if _extends(replace(plan, sweeps=n), before, self.epoch)), None)
            hint = "lengthen burn_in" if fit is None else f"sweeps={fit} is the next number that is allowed"
            raise DataError(
                f"sweeps={plan.sweeps} was given to extend a run with {self.epoch} of {before.sweeps} sweeps done; all "
                f"sweeps that are done must be within the burn-in of the longer run: {hint}"
            )
        ratio = plan.every // before.every  # traces are thinned to the interval of the longer run
        for chain in self.chains:
            chain.kept = []
            chain.traces = {name: values[ratio - 1 :: ratio] for name, values in chain.traces.items()}
        self.planned.append(plan.sweeps)


def _extends(plan: Plan, before: Plan, done: int) -> bool:
    """Return True if a run of `done` sweeps by the plan `before` is part of the burn-in of another plan."""
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
        Target distribution and transitions.
    plan : Plan
        Number and length of the chains.
    seed : int
        Seed of the random generators of all chains.
    start : callable, optional
        (number, generator) -> initial state of a chain; by default the sampler draws it.
    callbacks : sequence of callables
        Functions called with the run after every block, such as
        :class:`~fathomless.inference.runs.callbacks.Checkpoint`.
    progress : Progress, optional
        Display.
    resume : (tensors, meta), optional
        State of an interrupted run with the same seed and plan, or of a run with fewer sweeps than the burn-in of this
        plan. Such a run is extended as if it had started with this plan, apart from the rows of its history.

    Raises
    ------
    DataError
        If the run cannot be extended to this plan.
    DivergenceError
        If all chains failed; the message has the first reason.
    PausedError
        If a callback sets ``run.pause``.
    """
    run = Chains(sampler, plan, seed)
    if resume is None:
        run.begin(start)
    else:
        run.resume(*resume)
    drive(run, run.advance, callbacks=callbacks, progress=progress, unit="sweep")
    return run


def _advance(sampler: Sampler[S], plan: Plan, chain: Chain[S], until: int) -> Chain[S]:
    """Move one chain; a chain that fails stops, and its kept states remain."""
    kept = set(plan.kept)
    try:
        while not chain.error and chain.sweeps < until:
            state = sampler.sweep(chain.state, chain.sweeps, chain.generator)
            _record(sampler, plan, chain, state, kept)
    except (DivergenceError, DataError) as error:
        chain.error = f"chain {chain.number}, sweep {chain.sweeps + 1}: {error}"
    return chain


def _advance_all(sampler: JointSampler[S], plan: Plan, chains: Sequence[Chain[S]], until: int) -> None:
    """Move all chains, which have done the same number of sweeps."""
    kept = set(plan.kept)
    generators = [chain.generator for chain in chains]
    for done in range(chains[0].sweeps, until):
        states = sampler.sweep_all([chain.state for chain in chains], done, generators)
        for chain, state in zip(chains, states, strict=True):
            _record(sampler, plan, chain, state, kept)


def _record(sampler: Sampler[S], plan: Plan, chain: Chain[S], state: S, kept: Collection[int]) -> None:
    """Store the new state of a chain, with its traces, and keep it if planned."""
    chain.state = state
    chain.sweeps += 1
    if chain.sweeps % plan.every == 0:
        for name, value in sampler.follow(state).items():
            chain.traces.setdefault(name, []).append(value)
    if chain.sweeps in kept:
        chain.kept.append(sampler.keep(state))


def _row(run: Chains[S]) -> dict[str, float]:
    """Return a row of the history: last traced values, averaged over the chains that have not failed."""
    traced = [chain.traces for chain in run.alive if chain.traces]
    names = traced[0] if traced else {}
    means = {f"mean_{name}": float(np.mean([traces[name][-1] for traces in traced])) for name in names}
    return {"epoch": run.epoch, "chains": len(run.alive), **means}


def _under(prefix: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays with a prefix, by the rest of their names."""
    return {name[len(prefix) + 1 :]: array for name, array in arrays.items() if name.startswith(prefix + "/")}


def _split_states(flat: Arrays, shapes: Arrays) -> list[Arrays]:
    """Split the concatenated arrays of kept states into states."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for name, array in flat.items():
        sizes = shapes[name].prod(1).astype(np.int64)
        pieces = np.split(array, np.cumsum(sizes)[:-1])
        parts[name] = [piece.reshape(shape) for piece, shape in zip(pieces, shapes[name].tolist(), strict=True)]
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
