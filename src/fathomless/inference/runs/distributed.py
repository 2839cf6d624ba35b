"""Several processes that train one network: which rows are whose, and what they tell each other.

Every process (its number is its *rank*) holds all rows, the whole network and the same random numbers. It takes its
share of each batch; the gradients of all are summed, and everyone makes the same step. So R processes follow the path
of one, up to rounding, and need no more than a sum per step. Nothing else in the library knows of other processes.
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

__all__ = ["Ranks", "called", "checksum", "local_device", "ranks", "started"]

_ANNOUNCED = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Ranks:
    """A group of processes, as one of them sees it.

    Attributes
    ----------
    rank, count : int
        The number of this process, from 0, and how many there are.
    device : torch.device
        Where short messages have to lie.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def share(self, rows: Rows) -> Rows:
        """Return the part of some rows that is this rank's; the parts are nearly equal, and together they are all."""
        if self.count == 1:
            return rows
        return rows.take(slice(*(len(rows) * rank // self.count for rank in (self.rank, self.rank + 1))))

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all ranks, in place, with one message per data type."""
        if self.count == 1:
            return
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor.detach())
        for alike in kinds.values():
            total = _flatten_dense_tensors(alike)
            dist.all_reduce(total)
            for tensor, part in zip(alike, _unflatten_dense_tensors(total, alike), strict=True):
                tensor.copy_(part)

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Return, for each wish, whether any rank has it; all ranks wait here for each other."""
        if self.count == 1:
            return wishes
        votes = torch.tensor([float(wish) for wish in wishes], device=self.device)
        dist.all_reduce(votes)
        return tuple(vote > 0.0 for vote in votes.tolist())

    def from_first(self, value: float) -> float:
        """Return the value that rank 0 gave."""
        if self.count == 1:
            return value
        message = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(message, src=0)
        return float(message)

    def tensor_from_first(self, tensor: Tensor) -> Tensor:
        """Return the tensor that rank 0 gave, as all give one of equal shape."""
        if self.count == 1:
            return tensor
        shared = torch.zeros_like(tensor) if self.rank else tensor.clone()
        self.add([shared])
        return shared

    def compare(self, step: int, tensors: Mapping[str, Tensor], plain: Any = None) -> None:
        """Refuse to go on if a rank holds other tensors, or other plain JSON, than rank 0.

        Raises
        ------
        RankError
            On every rank, since all see the checksums of all.
        """
        if self.count == 1:
            return
        digest = torch.tensor(checksum(tensors, plain), device=self.device)
        digests = [torch.empty_like(digest) for _ in range(self.count)]
        dist.all_gather(digests, digest)
        strange = [rank for rank, one in enumerate(digests) if int(one) != int(digests[0])]
        if strange:
            raise RankError(
                f"after step {step}, {'ranks' if strange[1:] else 'rank'} {', '.join(map(str, strange))} of "
                f"{self.count} held another network, or other data, than rank 0; give every process the same data, "
                "options, callbacks and seed, on machines of one kind"
            )

    def refuse_statistics(self, model: nn.Module) -> None:
        """Refuse layers that compute statistics of a batch, of which each rank sees a part.

        Raises
        ------
        DataError
            If there is one and more than one rank.
        """
        for name, module in model.named_modules() if self.count > 1 else ():
            if isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats):
                raise DataError(
                    f"{name} is a {type(module).__name__}, whose statistics would be those of a part of the batch on "
                    f"each of {self.count} processes; use another normalisation (norm='group', nn.GroupNorm, "
                    "nn.LayerNorm), or one process"
                )

    def first(self, event: str) -> bool:
        """Whether no rank has asked this before, for instance which of them is to tell of a failure.

        It waits for nobody. If the processes can no longer reach each other, somebody else was first.
        """
        if self.count == 1:
            return True
        try:
            asked: int = dist.distributed_c10d._get_default_store().add(f"fathomless/{event}", 1)
        except RuntimeError:
            return False
        return asked == 1


def ranks() -> Ranks:
    """Return the group this process belongs to; alone if ``torch.distributed`` was not started."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    nccl = "cpu:" not in dist.get_backend_config()  # which takes nothing from the processor's memory
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


@contextlib.contextmanager
def started() -> Iterator[Ranks]:
    """Start the group that ``torchrun`` announces in the environment, and end it.

    Where nothing is announced, or a group is there already, nothing is started. Messages go by gloo, between graphics
    processors by nccl; each process takes the one that its LOCAL_RANK says.
    """
    announced = os.environ.keys() >= _ANNOUNCED and int(os.environ["WORLD_SIZE"]) > 1
    if not announced or dist.is_initialized():
        yield ranks()
        return
    accelerated = torch.cuda.is_available() and _local() < torch.cuda.device_count()
    if accelerated:
        torch.cuda.set_device(_local())
    dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo")
    try:
        yield ranks()
    finally:
        dist.destroy_process_group()


def local_device() -> torch.device:
    """Return the accelerator that is this process's, or the processor if there is none.

    Raises
    ------
    DataError
        If there are more processes on this machine than accelerators.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if ranks().count == 1:
        return torch.device("cuda")
    if _local() >= torch.cuda.device_count():
        raise DataError(
            f"process {_local()} of this machine (LOCAL_RANK) has none of its {torch.cuda.device_count()} graphics "
            "processors; start as many processes as there are (torchrun --nproc-per-node), or give device='cpu'"
        )
    return torch.device("cuda", _local())


def called(device: torch.device) -> str:
    """Return the kind of a device, and the name of a graphics processor.

    Examples
    --------
    >>> called(torch.device("cpu"))
    'cpu'
    """
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def checksum(tensors: Mapping[str, Tensor], plain: Any = None) -> int:
    """Return a checksum, of 64 bits, of the names and bytes of some tensors and of plain JSON.

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


def _local() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
