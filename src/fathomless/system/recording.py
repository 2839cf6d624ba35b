"""Functions on a GPU that are recorded once and then replayed, as CUDA graphs.

A training step of small networks is hundreds of operations, and launching each of them from Python takes longer than
its arithmetic. A recorded function is launched as a whole. It must consist of the same operations in every call, must
not read numbers from the device, and must use the same tensors. Inputs that change are therefore copied into fixed
tensors before the call.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fathomless.system.errors import ConvergenceWarning

__all__ = ["RECORDERS", "Replayed", "can_record", "set_rate", "use_rate_tensors"]

Call = Callable[[], Sequence[Tensor]]
#: Record a function on a device; return its outputs, which are not computed yet, and the function that computes them.
Recorder = Callable[[Call, torch.device], tuple[Sequence[Tensor], Callable[[], object]]]

_PLAIN = 3  # calls before the recording, in which libraries allocate memory and optimisers their moments


def record_cuda(call: Call, device: torch.device) -> tuple[Sequence[Tensor], Callable[[], object]]:
    """Record the kernels of a function as a CUDA graph, without running them."""

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    with torch.cuda.device(device):
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # not the context manager torch.cuda.graph, which collects garbage in every recording
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                outputs = call()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
    return outputs, replay


#: Recorders by the type of the device. Functions on other devices are called as they are.
RECORDERS: dict[str, Recorder] = {"cuda": record_cuda}


def can_record(device: torch.device) -> bool:
    """Return True if functions on the device can be recorded."""
    return device.type in RECORDERS


class Replayed:
    """A function without arguments that is recorded in its fourth call, and then replayed.

    Parameters
    ----------
    call : callable
        The function. It returns tensors, which are copied before they are given to the caller.
    device : torch.device
        Device of its tensors.

    Warns
    -----
    ConvergenceWarning
        If the function could not be recorded. It is then called as it is.
    """

    def __init__(self, call: Call, device: torch.device) -> None:
        self.call = call
        self.device = device
        self.recorder = RECORDERS.get(device.type)
        self.calls = 0
        self.outputs: Sequence[Tensor] = ()
        self.replay: Callable[[], object] | None = None

    @property
    def recorded(self) -> bool:
        """True if the next call replays a recording."""
        return self.replay is not None

    def __call__(self) -> Sequence[Tensor]:
        """Call the function."""
        if self.recorder is None:
            return self.call()
        if self.replay is None:
            self.calls += 1
            if self.calls <= _PLAIN:
                return self.call()
            try:
                self.outputs, self.replay = self.recorder(self.call, self.device)
            except RuntimeError as error:
                self.recorder = None
                warnings.warn(
                    f"a training step could not be recorded as a CUDA graph, so that training is slower: {error}",
                    ConvergenceWarning,
                    stacklevel=2,
                )
                return self.call()
        self.replay()
        return [part.clone() for part in self.outputs]


def use_rate_tensors(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Let an optimiser read its learning rates from tensors on the device, if its steps can be recorded there."""
    if device.type != "cuda":
        return
    for group in optimizer.param_groups:
        group["capturable"] = True
        group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a group of parameters, a number or a tensor of :func:`use_rate_tensors`."""
    current = group["lr"]
    if isinstance(current, Tensor):
        current.fill_(rate)
    else:
        group["lr"] = rate
