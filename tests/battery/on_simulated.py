"""Run cases on the simulated accelerator, in a process of its own: one JSON line for each."""

import json
import sys

import torch
from accelerator import ask, cases

import simulated

#: That the same seed gives the same bytes, a pause says too; torch.func cannot trace tensors of the device.
PLAIN = ("resume",)


def main(names: list[str]) -> None:
    """Print a line for each case whose name is among those given, or for every one."""
    assert torch.Generator is simulated.Generator  # type: ignore[comparison-overlap]
    torch.set_num_threads(1)
    for case in cases():
        if not names or case.name in names:
            print(json.dumps(ask(case, "sim", 1e-6, PLAIN)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
