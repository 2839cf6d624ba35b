"""Every new tensor has an explicit device; without one it is on the CPU, and fails with data on an accelerator."""

import ast
from pathlib import Path

import pytest

import fathomless
from house.folders import each

ROOT = Path(fathomless.__file__).parent
LOOKED_AT = ("posterior", "nn", "inference", "families", "data/rows.py")
SOURCES = [path for one in LOOKED_AT for path in sorted((ROOT / one).rglob("*.py")) or [ROOT / one]]
#: Functions of torch that create a tensor without an input tensor.
MADE = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "from_numpy", "frombuffer", "full"),
    *("hann_window", "linspace", "logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "range"),
    *("scalar_tensor", "sparse_coo_tensor", "sparse_csr_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
}
#: As in torch's own modules, parameters and buffers are created in ``__init__``, and ``.to`` moves them. A tensor that
#: is registered later needs the device of its module, which may have been moved by then.
BUILT = {"Parameter", "register_buffer"}


def homeless(source: str) -> list[str]:
    """Return the calls that create a tensor without a device, as "line: code"."""
    root = ast.parse(source)
    above = {child: node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}
    found = []
    for node in ast.walk(root):
        if not (isinstance(node, ast.Attribute) and node.attr in MADE and ast.unparse(node.value) == "torch"):
            continue
        call = above[node]
        called = isinstance(call, ast.Call) and call.func is node
        if not (called and (_named(call, "device") or _moved(call, above) or _built(call, above))):
            found.append(f"{node.lineno}: {ast.unparse(call)}")
    return found


def _named(call: ast.AST, argument: str) -> bool:
    return isinstance(call, ast.Call) and any(keyword.arg == argument for keyword in call.keywords)


def _moved(step: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return True if ``.to`` is among the methods that follow a call."""
    while isinstance(outer := above[step], ast.Attribute) or (isinstance(outer, ast.Call) and outer.func is step):
        if isinstance(outer, ast.Attribute) and outer.attr == "to":
            return True
        step = outer
    return False


def _built(call: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return True for a call inside a parameter or a buffer, unless it has a generator, which fixes the device."""
    step = call
    built = False
    while not isinstance(step, ast.FunctionDef | ast.Module):
        outer = above[step]
        if isinstance(outer, ast.Call) and ast.unparse(outer.func).rpartition(".")[2] in BUILT:
            built = not _named(call, "generator")
        step = outer
    return built and isinstance(step, ast.FunctionDef) and step.name == "__init__"


@each(SOURCES)
def test_every_new_tensor_has_an_explicit_device(path: Path) -> None:
    """Tensors that are on the CPU by design have ``device="cpu"``."""
    assert homeless(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("torch.zeros(3)", 1),
        ("torch.zeros(3, device=x.device)", 0),
        ("torch.zeros(3).double().to(x)", 0),
        ("f(torch.zeros(3)).to(x)", 1),
        ("map(torch.from_numpy, arrays)", 1),
        ("torch.zeros_like(x)", 0),
        ("def __init__(self): nn.Parameter(0.1 * torch.zeros(3))", 0),
        ("def __init__(self): nn.Parameter(torch.randn(3, generator=g))", 1),
        ("def __init__(self): self.register_buffer('a', torch.ones(3))", 0),
        ("def grow(self): self.register_buffer('a', torch.ones(3))", 1),
    ],
)
def test_tensors_without_a_device_are_found(source: str, count: int) -> None:
    assert len(homeless(source)) == count
