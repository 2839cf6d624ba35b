"""The rules of the house, each as a small test."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fathomless

ROOT = Path(fathomless.__file__).parent
ORDER = [
    "__init__",
    "citations",
    "errors",
    "memory",
    "rng",
    "progress",
    "distributions",
    "mixtures",
    "likelihoods",
    "io",
    "readers",
    "cells",
    "tables",
    "flows",
    "spikes",
    "multipliers",
    "layers",
    "conversion",
    "models.interface",
    "predictive",
    "metrics",
    "schema",
    "data",
    "targets",
    "datasets",
    "models.blocks",
    "models.charges",
    "models.depth",
    "models.sparse",
    "models.ensemble",
    "models.baselines",
    "models.__init__",
    "compact",
    "paths",
    "export",
    "inference.__init__",
    "inference.objective",
    "inference.rows",
    "inference.ranks",
    "inference.callbacks",
    "inference.settling",
    "inference.selection",
    "inference.svi",
    "streams",
    "inference.stacks",
    "inference.many",
    "options",
    "settings",
    "restarts",
    "scikit",
    "tasks",
    "sparse_estimators",
    "estimators",
    "columns",
    "inputs",
    "evaluation",
    "doctor",
    "plots.checks",
    "plots.canvas",
    "plots.calibration",
    "plots.predictions",
    "plots.training",
    "plots.sparsity",
    "plots.__init__",
    "pieces",
    "structures",
    "report",
    "runs",
    "experiments.__init__",
    "experiments.results",
    "experiments.parts",
    "experiments.reproduce",
    "experiments.pictures",
    "experiments.spiral",
    "experiments.uci",
    "experiments.cifar",
    "experiments.sequences",
    "experiments.images",
    "experiments.joint",
    "experiments.logistic",
    "experiments.clusters",
    "arguments",
    "cli",
]
OWNERS = {
    "safetensors": {"io"},
    "tqdm": {"progress"},
    "sklearn": {"data", "scikit", "tasks", "sparse_estimators"},
    "narwhals": {"data", "scikit", "tasks"},
    "scipy": {"mixtures", "metrics"},
    "PIL": {"readers"},
    "matplotlib": {"plots.canvas"},
    "pyarrow": {"cells", "tables", "columns", "streams"},
    "jinja2": {"report"},
    "pandas": set(),
    "polars": set(),
}
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path.stat().st_size)


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports; names for the type checker alone do not count."""
    source = tree(path)
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not _guarded(source, node):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _guarded(source: ast.Module, node: ast.AST) -> bool:
    return any(
        isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test) and node in ast.walk(outer)
        for outer in ast.walk(source)
    )


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_a_module_imports_only_what_stands_above_it(path: Path) -> None:
    own = module(path)
    assert own in ORDER, f"{own} has no place in the order of the house"
    for name in imports(path):
        if name.startswith("fathomless."):
            target = name.removeprefix("fathomless.")
            if target in ORDER:
                assert ORDER.index(target) < ORDER.index(own), f"{own} imports {target}"


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_each_third_party_package_has_its_owner(path: Path) -> None:
    for name in imports(path):
        package = name.split(".")[0]
        assert module(path) in OWNERS.get(package, {module(path)}), f"{module(path)} imports {package}"
        assert package in {*OWNERS, *sys.stdlib_module_names, "torch", "numpy", "fathomless"}, f"{package} has no owner"


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_rooms_have_walls(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 600, f"{module(path)} has {lines} lines"
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = node.end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 60, f"{module(path)}.{node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_no_hidden_state_no_dispatch_by_attribute_no_code_from_files(path: Path) -> None:
    forbidden = {
        "hasattr",
        "eval",
        "exec",
        "torch.load",
        "torch.save",
        "torch.manual_seed",
        "np.random.seed",
        "torch.set_default_dtype",
        "print",
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in forbidden - ({"print"} if module(path) == "cli" else set()), (
                f"{module(path)} calls {name}"
            )
    assert not path.stem.startswith("util")
    assert "pickle" not in set(imports(path))


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_only_io_touches_files(path: Path) -> None:
    if module(path) in {"io", "readers", "tables", "memory"}:  # memory reads what the system tells of itself
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            own = owner in {"io", "webbrowser"} or ast.unparse(node) == "os.open(os.devnull, os.O_WRONLY)"
            reads = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir"}
            assert own or name not in reads, f"{module(path)} calls {ast.unparse(node.func)}"


def test_other_processes_are_known_to_one_module() -> None:
    for path in SOURCES:
        assert module(path) == "inference.ranks" or not any(n.startswith("torch.distributed") for n in imports(path))


def test_models_hold_no_training_loop_and_inference_knows_no_family() -> None:
    for path in SOURCES:
        own, names = module(path), set(imports(path))
        if own.startswith("models."):
            assert not any(name.startswith(("fathomless.inference", "torch.optim")) for name in names)
        if own.startswith("inference."):
            families = {name for name in names if name.startswith("fathomless.models.")}
            assert all(name.startswith("fathomless.models.interface") for name in families)


def test_every_public_object_has_a_docstring() -> None:
    for path in SOURCES:
        source = tree(path)
        assert ast.get_docstring(source), f"{module(path)} has no docstring"
        for node in source.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{module(path)}.{node.name} has no docstring"


def test_no_concrete_method_is_overridden() -> None:
    """A class of ours is an interface or a leaf."""
    methods: dict[str, dict[str, bool]] = {}  # class -> method -> abstract?
    bases: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base) for base in node.bases]
                methods[node.name] = {
                    item.name: any("abstract" in ast.unparse(d) for d in item.decorator_list)
                    for item in node.body
                    if isinstance(item, ast.FunctionDef) and not item.name.startswith("__")
                }
    for name, own in methods.items():
        for base in bases[name]:
            for method in own:
                assert methods.get(base, {}).get(method, True), f"{name}.{method} overrides a concrete method"


def test_importing_the_package_is_pure() -> None:
    """It prints nothing, does not import torch, and leaves the random streams and defaults alone."""
    code = (
        "import sys, random; state = random.getstate(); import fathomless; "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; "
        "assert random.getstate() == state; assert 'UnboundedDepthClassifier' in dir(fathomless)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_every_module_changes_no_defaults() -> None:
    names = ", ".join(f"fathomless.{module(path)}" for path in SOURCES if module(path) != "__init__")
    code = (
        "import torch, numpy as np; a = torch.get_rng_state(); b = np.random.get_state()[1].copy(); "
        "d = torch.get_default_dtype(); v = torch.distributions.Distribution._validate_args; "
        "t = torch.get_num_threads(); "
        f"import {names}; "
        "assert torch.equal(a, torch.get_rng_state()) and (b == np.random.get_state()[1]).all(); "
        "assert d == torch.get_default_dtype() and v == torch.distributions.Distribution._validate_args; "
        "assert t == torch.get_num_threads()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_unknown_public_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="public names are"):
        _ = fathomless.UnboundedWidth
    for name in fathomless.__all__:
        assert getattr(fathomless, name)
