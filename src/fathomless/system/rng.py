"""Seeds and generators. Every stochastic function takes a generator; none reads global state.

A seed is an integer, ``None`` (fresh entropy), a NumPy ``RandomState`` or ``Generator``, or a ``torch.Generator``.
"""

import contextlib
import hashlib
import threading
from collections.abc import Iterator

import numpy as np
import torch

__all__ = ["as_generator", "as_seed", "branch", "building", "fold_in", "renew_lock", "seeded_globals"]

Seed = int | np.integer | np.random.RandomState | np.random.Generator | torch.Generator | None

_lending = threading.RLock()  # held while the global generators are seeded by this module

_BITS = 63  # torch takes seeds up to 2**64; NumPy and JSON need less than 2**63


def as_seed(seed: Seed) -> int:
    """Convert any random state of scikit-learn or torch to an integer.

    Integers are kept, generators are advanced by one draw, and ``None`` takes entropy of the operating system.

    Examples
    --------
    >>> as_seed(7)
    7
    """
    match seed:
        case None:
            return int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 1
        case int() | np.integer():
            return int(seed) % (1 << _BITS)
        case torch.Generator():
            return int(torch.randint(1 << 62, (), generator=seed, device=seed.device).item())
        case np.random.Generator():
            return int(seed.integers(1 << 62))
        case np.random.RandomState():
            return int(seed.randint(1 << 31))
    raise TypeError(
        f"a seed was given as {type(seed).__name__}; allowed are an integer, None, a NumPy RandomState "
        "or Generator, or a torch.Generator"
    )


def fold_in(seed: int, *names: str | int) -> int:
    """Derive an independent seed for a named purpose; the same names always give the same seed.

    The result is a hash of the seed and the names. It does not depend on the number or order of other derived seeds,
    or on the process.

    Examples
    --------
    >>> fold_in(0, "layer", 3) == fold_in(0, "layer", 3) != fold_in(0, "layer", 4)
    True
    """
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def as_generator(seed: Seed, *, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a ``torch.Generator`` for a seed; a generator is returned unchanged."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator(device=device).manual_seed(as_seed(seed))


def branch(generator: torch.Generator | None, *names: str | int) -> torch.Generator:
    """Return a new generator seeded by the state of another one, which does not change.

    Parameters
    ----------
    generator : torch.Generator, optional
        Source; the global generator of torch by default.
    names : str or int
        Purpose of the new generator.
    """
    source = torch.default_generator if generator is None else generator
    try:
        state = source.get_state().numpy().tobytes()
    except RuntimeError:  # inside transforms such as torch.func.grad a new tensor has no storage
        state = bytes(source.get_state().tolist())
    digest = hashlib.blake2b(state, digest_size=8).digest()
    return as_generator(fold_in(int.from_bytes(digest, "big"), *names), device=source.device)


@contextlib.contextmanager
def seeded_globals(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators of torch inside a block, and restore their state afterwards.

    Initialisers of ``nn.Module`` and dropout take no generator. Inside this block they draw from a stream that starts
    at `seed`, on the CPU and on `device`. One thread at a time is inside, and others wait. Draws of other packages in
    other threads come from the seeded stream during this time.
    """
    accelerator = device is not None and device.type == "cuda"
    with _lending, torch.random.fork_rng(devices=[device] if accelerator else []):
        torch.default_generator.manual_seed(seed)
        if accelerator:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextlib.contextmanager
def building(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global generators as :func:`seeded_globals` does, with float32 as default data type, to build modules.

    Initial weights are drawn in the default data type, which other code may have changed.
    """
    with seeded_globals(seed, device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def renew_lock() -> None:
    """Replace the lock of the global generators in a forked process; another thread may have held it in the parent."""
    global _lending
    _lending = threading.RLock()
