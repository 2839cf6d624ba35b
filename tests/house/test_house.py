"""Tests of the rules of the code base, one for each rule."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fathomless
from house.folders import each

ROOT = Path(fathomless.__file__).parent
CLONE = Path(__file__).parents[2]
ORDER = ("system", "posterior", "nn", "tables", "data", "plots", "inference", "estimators", "families", "app")
APART = {"posterior", "nn", "data", "plots"}  # none of these imports another
READING_TABLES = {"data", "app"}  # streams and the command line read files of tables
OWNERS = {
    "safetensors": {"system.io"},
    "tqdm": {"system.progress"},
    "sklearn": {
        "data.frames",
        "app.page.outcomes",
        "app.peers",
        "estimators.preparation",
        "estimators.base",
        "estimators.tasks",
        "estimators.encoding",  # only for a warning
        "estimators.out_of_distribution",
        "inference.out_of_fold.trees",
        "experiments.densities",
    },
    "narwhals": {"posterior.distributions", "data.cells", "data.frames", "estimators.encoding", "estimators.tasks"},
    "scipy": {
        "posterior.student",
        "posterior.metrics",
        "inference.mcmc.diagnostics",
        "inference.mcmc.joint",
        "inference.mcmc.psis",
        "inference.mcmc.scales",
        "inference.out_of_fold.trees",
        "families.graph.conditional",
        "families.graph.density",
        "families.graph.probit",
        "families.manifold.matching",
    },
    "onnxruntime": {"estimators.exporting"},
    "onnxscript": {"estimators.exporting"},
    "botorch": {"estimators.botorch"},
    "numba": {"families.graph.engine"},
    "joblib": {"inference.mcmc.chains", "system.jobs"},
    "arviz": {"inference.mcmc.diagnostics"},
    "PIL": {"tables.readers"},
    "matplotlib": {"plots.canvas"},
    "pyarrow": {
        "tables.arrays",
        "tables.csv",
        "tables.files",
        "tables.formats",
        "tables.rules",
        "tables.notations",
        "tables.anomalies",
        "data.streams",
        "tables.writers",
        "app.commands.columns",
        "app.predicting",  # only for types
    },
    "openpyxl": {"tables.formats"},
    "starlette": {"app.commands.serving"},
    "uvicorn": {"app.commands.serving"},
    "jinja2": {"app.page.markup"},
    "pandas": set(),
    "polars": set(),
}
FILES = {
    "system.io",
    "system.locks",
    "system.memory",
    "tables.readers",
    "tables.files",
    "tables.writers",
}  # memory reads the system's files on memory
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path.stat().st_size)
EXPERIMENTS = sorted((CLONE / "experiments").glob("*.py"))  # not in the package, but with the same style
ALL = [*SOURCES, *EXPERIMENTS]


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT if path.is_relative_to(ROOT) else CLONE).with_suffix("").parts)


MODULES = {module(path) for path in SOURCES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted names that a module imports, including those for the type checker only."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> Iterator[str]:
    """Yield the modules of this package that a module imports, without the first part of their names."""
    names = {name.removeprefix("fathomless.") for name in imports(path) if name.startswith("fathomless.")}
    yield from sorted(names & MODULES)


def at_once(path: Path) -> set[str]:
    """Return the full names of the modules that are imported together with a module."""
    found = {a.name for node in tree(path).body if isinstance(node, ast.Import) for a in node.names}
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def test_prediction_from_a_folder_does_not_import_scikit_learn() -> None:
    known = {f"fathomless.{module(path)}": path for path in SOURCES}
    left = [
        "fathomless.app.cli",
        "fathomless.app.manifests",
        "fathomless.app.predicting",
        "fathomless.app.commands.columns",
        "fathomless.tables.writers",
    ]
    left += [name for name in known if name.startswith("fathomless.families.") and name.endswith(".networks")]
    left += ["fathomless.estimators.predictor"]
    assert len(left) >= 10
    seen: set[str] = set()
    while left:
        name = left.pop()
        seen.add(name)
        more = at_once(known[name])
        slow = {one for one in more if one.split(".")[0] in ("sklearn", "pandas", "joblib", "matplotlib", "arviz")}
        assert not slow, f"{name} imports {sorted(slow)}"
        left += [one for one in more if one in known and one not in seen]


def test_the_house_has_ten_folders() -> None:
    assert sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "_") == sorted(ORDER)
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]
    for folder in ORDER:
        source = ast.get_docstring(tree(ROOT / folder / "__init__.py")) or ""
        assert "mport" in source, f"{folder}/__init__.py does not say what it may import"


@each(SOURCES)
def test_a_folder_imports_only_folders_above_it(path: Path) -> None:
    """Imports for the type checker count too; only the top-level module may import everything."""
    own, *room = module(path).split(".")
    for target in ours(path) if room else ():
        other, *inside = target.split(".")
        if own == other == "families" and len(room) > 1:
            family, theirs = room[0], inside[0] if len(inside) > 1 else None
            kin = {family, None} | ({"depth"} if family == "baselines" else set())
            assert theirs in kin, f"{module(path)} imports {target}"
            assert inside[0] != "registry", f"{module(path)} imports {target}"
        elif own != other:
            assert ORDER.index(other) < ORDER.index(own), f"{module(path)} imports {target}"
            assert not {own, other} <= APART, f"{module(path)} imports {target}"
            assert other != "tables" or own in READING_TABLES, f"{module(path)} imports {target}"


@each(SOURCES)
def test_the_package_does_not_import_the_experiments(path: Path) -> None:
    assert not [name for name in imports(path) if name.split(".")[0] == "experiments"]


def test_the_experiments_do_not_import_the_application() -> None:
    assert len(EXPERIMENTS) > 20
    for path in EXPERIMENTS:
        assert not [name for name in ours(path) if name.split(".")[0] == "app"], module(path)


def test_no_module_imports_itself_by_a_detour() -> None:
    theirs = {module(path) for path in EXPERIMENTS}
    above = {module(path): set(ours(path)) for path in SOURCES}
    above |= {module(path): set(imports(path)) & theirs for path in EXPERIMENTS}
    left = set(above)
    while free := {name for name in left if not above[name] & left - {name}}:
        left -= free
    assert not left, f"a circle of imports goes through {sorted(left)}"


@each(ALL)
def test_each_third_party_package_has_its_owner(path: Path) -> None:
    for name in imports(path):
        package = name.split(".")[0]
        assert module(path) in OWNERS.get(package, {module(path)}), f"{module(path)} imports {package}"
        assert package in {*OWNERS, *sys.stdlib_module_names, "torch", "numpy", "fathomless", "experiments"}, (
            f"{package} has no owner"
        )


@each(ALL)
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = node.end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 60, f"{module(path)}.{node.name} has {length} lines"


OPENINGS = {"what", "how", "where", "whether", "who", "whose", "when", "which", "why"}


@each(ALL)
def test_docstrings_open_with_a_noun_phrase_or_an_imperative(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").lstrip()
            first = re.split(r"\W", text, maxsplit=1)[0].lower()
            assert first not in OPENINGS, f"{module(path)}: {text.splitlines()[0]!r} opens with {first!r}"


def test_no_method_only_says_that_a_class_cannot_do_it() -> None:
    for path in ALL:
        for kind in (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)):
            for method in (item for item in kind.body if isinstance(item, ast.FunctionDef)):
                body = method.body[1:] if ast.get_docstring(method) else method.body
                assert not (len(body) == 1 and isinstance(body[0], ast.Raise)), (
                    f"{kind.name}.{method.name} only refuses"
                )


def test_type_checkers_see_what_is_registered() -> None:
    names = {
        alias.name
        for node in ast.walk(tree(ROOT / "__init__.py"))
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith(("fathomless.families.", "fathomless.estimators.values", "fathomless.app."))
        for alias in node.names
    }
    assert names - {"BUILT_IN"} == set(fathomless.__all__) - {"__version__"}


@each(ALL)
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
    owned = {"app.commands.printing": {"print"}, "system.rng": {"torch.set_default_dtype"}}  # the latter gives it back
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in forbidden - owned.get(module(path), set()), f"{module(path)} calls {name}"
    assert not path.stem.startswith("util")
    assert "pickle" not in set(imports(path))


@each(ALL)
def test_only_the_owners_of_files_touch_files(path: Path) -> None:
    if module(path) in FILES:
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            own = owner in {"io", "webbrowser"} or ast.unparse(node) == "os.open(os.devnull, os.O_WRONLY)"
            reads = {"open", "read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir"}
            assert own or name not in reads, f"{module(path)} calls {ast.unparse(node.func)}"


def test_other_processes_are_known_to_one_module() -> None:
    for path in ALL:
        assert module(path) == "inference.runs.distributed" or not any(
            n.startswith("torch.distributed") for n in imports(path)
        )


def test_estimators_and_models_hold_no_training_loop() -> None:
    for path in SOURCES:
        if not module(path).startswith("inference."):
            assert not any(name.startswith("torch.optim") for name in imports(path)), f"{module(path)} optimises"


def test_every_public_object_has_a_docstring() -> None:
    for path in ALL:
        source = tree(path)
        assert ast.get_docstring(source), f"{module(path)} has no docstring"
        for node in source.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{module(path)}.{node.name} has no docstring"


def test_no_concrete_method_is_overridden() -> None:
    """Every class of this package is an interface or a leaf."""
    methods: dict[str, dict[str, bool]] = {}  # class -> method -> abstract?
    bases: dict[str, list[str]] = {}
    for path in ALL:
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
    """The import prints nothing, does not import torch, and does not change random states or defaults."""
    code = (
        "import sys, random; state = random.getstate(); import fathomless; "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; "
        "assert random.getstate() == state; assert 'UnboundedDepthClassifier' in dir(fathomless)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_every_module_changes_no_defaults() -> None:
    names = ", ".join(
        [f"fathomless.{module(path)}" for path in SOURCES if module(path) != "__init__"]
        + [module(path).removesuffix(".__init__") for path in EXPERIMENTS]
    )
    code = (
        "import torch, numpy as np; a = torch.get_rng_state(); b = np.random.get_state()[1].copy(); "
        "d = torch.get_default_dtype(); v = torch.distributions.Distribution._validate_args; "
        "t = torch.get_num_threads(); "
        f"import {names}; "
        "assert torch.equal(a, torch.get_rng_state()) and (b == np.random.get_state()[1]).all(); "
        "assert d == torch.get_default_dtype() and v == torch.distributions.Distribution._validate_args; "
        "assert t == torch.get_num_threads()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CLONE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_unknown_public_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="public names are"):
        _ = fathomless.UnboundedWidth
    for name in fathomless.__all__:
        assert getattr(fathomless, name)
