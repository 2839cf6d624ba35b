"""Random numbers: every stochastic function takes a generator, nothing reads global state.

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

_lending = threading.RLock()  # held while the global streams are lent

_BITS = 63  # torch takes seeds up to 2**64, NumPy and JSON are happier below 2**63


def as_seed(seed: Seed) -> int:
    """Turn anything that scikit-learn or torch call a random state into one integer.

    Integers are kept; generators are advanced by one draw; ``None`` asks the operating system.

    Examples
    --------
    >>> as_seed(7)
    7
    """
    match seed:
        case None:
            return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
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
    """Give an independent seed for a named purpose: the same names always give the same seed.

    The result is a hash of the seed and the names, so it does not depend on how many other seeds were
    derived, in which order, or in which process.

    Examples
    --------
    >>> fold_in(0, "layer", 3) == fold_in(0, "layer", 3) != fold_in(0, "layer", 4)
    True
    """
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def as_generator(seed: Seed, *, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a ``torch.Generator``; one that is given is passed through."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator(device=device).manual_seed(as_seed(seed))


def branch(generator: torch.Generator | None, *names: str | int) -> torch.Generator:
    """Return a generator that follows from the present state of another one, which is left as it is.

    Parameters
    ----------
    generator : torch.Generator, optional
        By default torch's global one.
    names : str or int
        What the new one is for.
    """
    source = torch.default_generator if generator is None else generator
    try:
        state = source.get_state().numpy().tobytes()
    except RuntimeError:  # inside torch.func.grad and the like a new tensor has no memory of its own
        state = bytes(source.get_state().tolist())
    digest = hashlib.blake2b(state, digest_size=8).digest()
    return as_generator(fold_in(int.from_bytes(digest, "big"), *names), device=source.device)


@contextlib.contextmanager
def seeded_globals(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Lend a seeded generator to code that can only read torch's global one, then give the old state back.

    Neither the initialisers of ``nn.Module`` nor dropout take a generator. Inside this block they read a stream that
    starts at `seed`, on the CPU and on `device`; on leaving, the global streams go on as if nothing had happened. One
    thread at a time is inside, the others wait; what code of other packages draws in another thread meanwhile comes
    from the seeded stream.
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
    """Lend a seeded generator as :func:`seeded_globals` does, with float32 as torch's default type, to build modules.

    Initial weights are drawn in the default type, which other code may have changed by ``torch.set_default_dtype``.
    """
    with seeded_globals(seed, device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def renew_lock() -> None:
    """Replace the lock of the global streams, in a process that was forked while another thread held it."""
    global _lending
    _lending = threading.RLock()
