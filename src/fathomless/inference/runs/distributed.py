"""Training by several processes: shares of the rows or of the networks, and communication.

Every process (its number is its *rank*) has all rows. A single network is trained by all processes: each has the whole
network and the same random numbers, and evaluates its share of each batch. The gradients are summed over ranks, and all
ranks take the same step. R processes therefore follow the path of a single one, up to rounding, with one sum per step.

Several networks are divided among the processes: each trains its share of them, on the batches that they have in a
single process. The densities of out-of-fold rows are exchanged at every evaluation, so that all processes choose the
same posterior over structure and the same epoch.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fathomless.data.rows import Rows
from fathomless.system.errors import DataError, RankError

__all__ = ["Ranks", "checksum", "device_name", "local_device", "ranks", "start_group"]

_ANNOUNCED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Ranks:
    """Group of processes, from the view of one of them.

    Attributes
    ----------
    rank, count : int
        Number of this process, from 0, and number of processes.
    device : torch.device
        Device of the tensors of short messages.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def share(self, rows: Rows) -> Rows:
        """Return the share of this rank in the rows; shares have nearly equal sizes and partition the rows."""
        if self.count == 1:
            return rows
        return rows.take(slice(*self._bounds(len(rows))))

    def share_networks(self, count: int) -> tuple[range, bool]:
        """Return the numbers of the networks of this rank, and if they count in sums over ranks.

        Shares have nearly equal sizes and partition the networks. With fewer networks than ranks, some ranks train a
        network of another rank too, which does not count.

        Examples
        --------
        >>> [Ranks(rank, 4).share_networks(10)[0] for rank in range(4)]
        [range(0, 2), range(2, 5), range(5, 7), range(7, 10)]
        """
        start, stop = self._bounds(count)
        return (range(start, stop), True) if stop > start else (range(min(start, count - 1), start + 1), False)

    def _bounds(self, count: int) -> tuple[int, int]:
        """Return the first number of the share of this rank in 0, ..., `count` − 1, and the one after its last."""
        return count * self.rank // self.count, count * (self.rank + 1) // self.count

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order; tensors should be in the memory of the CPU."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value)
        return values

    def add_number(self, value: float) -> float:
        """Return the sum of a number over all ranks."""
        if self.count == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        self.add([total])
        return float(total)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all ranks, in place, with one message per data type."""
        if self.count == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor.detach())
        for same_type in by_type.values():
            total = _flatten_dense_tensors(same_type)
            dist.all_reduce(total)
            for tensor, part in zip(same_type, _unflatten_dense_tensors(total, same_type), strict=True):
                tensor.copy_(part)

    def agree(self, *requests: bool) -> tuple[bool, ...]:
        """Return, for each request, True if any rank makes it; all ranks are synchronised here."""
        if self.count == 1:
            return requests
        votes = torch.tensor([float(request) for request in requests], device=self.device)
        dist.all_reduce(votes)
        return tuple(vote > 0.0 for vote in votes.tolist())

    def broadcast(self, value: float) -> float:
        """Return the value of rank 0 on all ranks."""
        if self.count == 1:
            return value
        message = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(message, src=0)
        return float(message)

    def broadcast_tensor(self, tensor: Tensor) -> Tensor:
        """Return the tensor of rank 0 on all ranks; all must pass one of the same shape."""
        if self.count == 1:
            return tensor
        shared = torch.zeros_like(tensor) if self.rank else tensor.clone()
        self.add([shared])
        return shared

    def compare(self, step: int, tensors: Mapping[str, Tensor], plain: Any = None) -> None:
        """Check that all ranks have the same tensors and the same plain JSON as rank 0.

        Raises
        ------
        RankError
            On every rank, if any of them differs.
        """
        if self.count == 1:
            return
        digest = torch.tensor(checksum(tensors, plain), device=self.device)
        digests = [torch.empty_like(digest) for _ in range(self.count)]
        dist.all_gather(digests, digest)
        differing = [rank for rank, other in enumerate(digests) if int(other) != int(digests[0])]
        if differing:
            raise RankError(
                f"after step {step}, {'ranks' if differing[1:] else 'rank'} {', '.join(map(str, differing))} of "
                f"{self.count} had another network, or other data, than rank 0; give every process the same data, "
                "options, callbacks and seed, on machines of the same type"
            )

    def refuse_statistics(self, model: nn.Module) -> None:
        """Check that no layer computes statistics of a batch, since each rank evaluates a part of it.

        Raises
        ------
        DataError
            If there are such a layer and more than one rank.
        """
        for name, module in model.named_modules() if self.count > 1 else ():
            if isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats):
                raise DataError(
                    f"{name} is a {type(module).__name__}, which would compute its statistics from a part of the batch "
                    f"on each of {self.count} processes; use another normalisation (norm='group', nn.GroupNorm, "
                    "nn.LayerNorm), or one process"
                )

    def is_first(self, event: str) -> bool:
        """Return True on the first rank that calls this for an event, for instance to report a failure once.

        The call does not wait for other ranks. It returns False if the processes can no longer communicate.
        """
        if self.count == 1:
            return True
        try:
            calls: int = dist.distributed_c10d._get_default_store().add(f"fathomless/{event}", 1)
        except RuntimeError:
            return False
        return calls == 1


def ranks() -> Ranks:
    """Return the group of this process; a group of one if ``torch.distributed`` was not started."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    nccl = "cpu:" not in dist.get_backend_config()  # nccl alone cannot send tensors in the memory of the CPU
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


@contextlib.contextmanager
def start_group() -> Iterator[Ranks]:
    """Start the group that ``torchrun`` announces in the environment, and end it on exit.

    If none is announced, or a group has been started already, nothing is started. Communication uses gloo, and nccl
    between GPUs; each process uses the GPU with the number LOCAL_RANK.
    """
    announced = os.environ.keys() >= _ANNOUNCED and int(os.environ["WORLD_SIZE"]) > 1
    if not announced or dist.is_initialized():
        yield ranks()
        return
    accelerated = torch.cuda.is_available() and _local_rank() < torch.cuda.device_count()
    if accelerated:
        torch.cuda.set_device(_local_rank())
    dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo")
    try:
        yield ranks()
    finally:
        dist.destroy_process_group()


def local_device() -> torch.device:
    """Return the GPU of this process, or the CPU if there is none.

    Raises
    ------
    DataError
        If there are more processes on this machine than GPUs.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if ranks().count == 1:
        return torch.device("cuda")
    if _local_rank() >= torch.cuda.device_count():
        raise DataError(
            f"process {_local_rank()} of this machine (LOCAL_RANK) has no GPU: there are {torch.cuda.device_count()}; "
            "start as many processes as there are GPUs (torchrun --nproc-per-node), or set device='cpu'"
        )
    return torch.device("cuda", _local_rank())


def device_name(device: torch.device) -> str:
    """Return the type of a device, with the name of a GPU.

    Examples
    --------
    >>> device_name(torch.device("cpu"))
    'cpu'
    """
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def checksum(tensors: Mapping[str, Tensor], plain: Any = None) -> int:
    """Return a 64-bit checksum of the names and bytes of tensors and of plain JSON.

    Examples
    --------
    >>> checksum({"w": torch.zeros(2)}) == checksum({"w": torch.zeros(2)}) != checksum({"w": torch.ones(2)})
    True
    """
    digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"/{name}/{tensor.dtype}/{tuple(tensor.shape)}/".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest(), "big", signed=True)


def _local_rank() -> int:
    """Return the number of this process among those on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))
