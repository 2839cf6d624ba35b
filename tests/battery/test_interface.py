"""What a family says that it can do, it does; what it cannot, it refuses by name. It has the options it registers."""

import ast
import copy
import inspect
import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import RepeatedKFold

import fathomless
from battery.cases import CASES, TRAINED, Case, fitted, named, parts, rows
from fathomless.estimators.declaring import nested_options
from fathomless.estimators.options import (
    CrossFitOptions,
    DrawnWeightsOptions,
    LawOptions,
    NaturalLawOptions,
    options_of,
)
from fathomless.estimators.values import Restarts
from fathomless.families import registry
from fathomless.inference.out_of_fold.heads import replace_heads_by_means
from fathomless.inference.runs.run import structure_parameters
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.capabilities import Growing, HasStructureLaw, Mergeable, NaturalGradient, Resizable
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError
from house.folders import each

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

SHORT = Training(epochs=2, batch_size=50)
FAMILIES = list({id(case.family): case.family for case in CASES}.values())
TASKS = [(family, task) for family in FAMILIES for task in family.tasks]
SUPERVISED = [(family, task) for family, task in TASKS if task in ("classification", "regression")]
SOURCES = sorted(Path(fathomless.__file__).parent.rglob("*.py"))


def state(*modules: torch.nn.Module) -> list[torch.Tensor]:
    return [value.clone() for module in modules for value in module.state_dict().values()]


def refused(case: Case, training: Training, capability: type) -> None:
    """Check that a training is refused before its first step, and that the capability is named."""
    model, likelihood = parts(case)
    before = state(model, likelihood)
    with pytest.raises(DataError, match=capability.__name__):
        fit(model, likelihood, rows(case), training=training)
    assert all(map(torch.equal, before, state(model, likelihood)))


@pytest.mark.parametrize(**named(CASES))
def test_stackable_models_are_trained_side_by_side_and_others_refused(case: Case) -> None:
    """Of what is trained side by side every member has a finite history of its own."""
    model, likelihood = parts(case)
    replace_heads_by_means(model)  # heads are trained before they have a posterior
    models, likelihoods = ([copy.deepcopy(part) for _ in range(2)] for part in (model, likelihood))
    before = state(*models, *likelihoods)
    if isinstance(model, Mergeable):
        both = fit_batched(models, likelihoods, rows(case), training=SHORT)
        for one in both:
            assert not one.error
            assert len(one.history) == SHORT.epochs
            assert all(math.isfinite(value) for row in one.history for value in row.values())
        assert not all(map(torch.equal, before, state(*models, *likelihoods)))
    else:
        with pytest.raises(DataError, match="Mergeable"):
            fit_batched(models, likelihoods, rows(case), training=SHORT)
        assert all(map(torch.equal, before, state(*models, *likelihoods)))


@pytest.mark.parametrize(**named([case for case in TRAINED if case.plain]))
def test_restarts_are_trained_side_by_side_or_refused(case: Case) -> None:
    model, _ = parts(case)
    model = model.members[0] if isinstance(model, Ensemble) else model
    several = case.estimator(n_restarts=Restarts(count=2, keep="average"))
    if isinstance(model, Mergeable):
        assert isinstance(several.fit(*case.table()).model_, Ensemble)
    else:
        with pytest.raises(DataError, match=r"Mergeable|are drawn around one network"):
            several.fit(*case.table())
        assert "model_" not in vars(several)


@pytest.mark.parametrize(**named([case for case in TRAINED if case.name.startswith("depth-cross-fitted")]))
def test_a_splitter_is_the_array_of_its_folds(case: Case, tmp_path: Path) -> None:
    X, y = case.table()
    splitter = RepeatedKFold(n_splits=2, n_repeats=2, random_state=0)
    fitted = case.estimator(cv=splitter).fit(X, y)
    folds = np.full((2, len(X)), -1)
    for i, (_, test) in enumerate(splitter.split(X)):
        folds[i // 2, test] = i % 2
    assert np.array_equal(fitted.fold_, folds)
    again = case.estimator(cv=folds).fit(X, y)
    for name, tensor in fitted.model_.state_dict().items():
        assert torch.equal(tensor, again.model_.state_dict()[name]), name
    fitted.save(tmp_path / "m")
    loaded = fathomless.load(tmp_path / "m")
    assert np.array_equal(loaded.cv, folds)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))


@pytest.mark.parametrize(**named([case for case in TRAINED if case.plain]))
def test_numbers_of_starts_keep_the_choice_among_them(case: Case) -> None:
    usual = type(case.estimator())()._restarts()
    assert case.estimator(n_restarts=3)._restarts() == Restarts(count=3, keep=usual.keep)
    assert usual == (Restarts(count=5, keep="average") if case.family.name == "ensemble" else Restarts())
    for keep in ("best", "average"):
        expected = Restarts(count=3, keep=keep)
        assert case.estimator(n_restarts=3).set_params(n_restarts__keep=keep)._restarts() == expected
        with pytest.warns(FutureWarning, match="restarts will be removed in the next version; use n_restarts="):
            old = case.estimator(n_restarts=3, restarts=keep)
        assert old._restarts() == expected


@pytest.mark.parametrize(**named(CASES))
def test_the_union_of_models_says_what_each_of_them_says(case: Case) -> None:
    model, _ = parts(case)
    if not isinstance(model, Mergeable):
        return
    x, g = rows(case).x, [torch.Generator().manual_seed(0) for _ in range(2)]
    with torch.no_grad():
        draws, whole = model.draw(x, 4, g[0]), model.merge([copy.deepcopy(model)]).eval().draw(x, 4, g[1])
    torch.testing.assert_close(whole.f, draws.f, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(whole.log_weight, draws.log_weight)


@pytest.mark.parametrize(**named(CASES))
def test_natural_steps_are_taken_where_there_is_a_fisher_information_and_refused_elsewhere(case: Case) -> None:
    natural = Training(epochs=8, batch_size=50, structure_optimizer="natural", structure_every=1)
    model, likelihood = parts(case)
    if not isinstance(model, NaturalGradient):
        return refused(case, natural, NaturalGradient)
    before = structure_parameters(fitted(case).model_)
    count = len(before)
    assert model.fisher().shape == (count, count)
    assert (torch.linalg.eigvalsh(model.fisher()) > -1e-9).all()
    done = fit(model, likelihood, rows(case), training=natural)
    assert all(math.isfinite(value) for row in done.history for value in row.values())
    after = structure_parameters(model)
    assert any(not torch.equal(p, after[name]) for name, p in before.items()) == bool(count)


@pytest.mark.parametrize(**named(CASES))
def test_gradients_are_divided_by_use_where_use_is_known_and_refused_elsewhere(case: Case) -> None:
    divided = Training(epochs=2, batch_size=50, precondition=True)
    model, likelihood = parts(case)
    if not isinstance(model, Growing):
        return refused(case, divided, Growing)
    use = model.use_probability()
    assert set(use) <= set(dict(model.named_parameters(remove_duplicate=False)))
    assert all(0.0 <= float(share) <= 1.0 + 1e-9 for share in use.values())
    done = fit(model, likelihood, rows(case), training=divided)
    assert all(math.isfinite(value) for row in done.history for value in row.values())


@pytest.mark.parametrize(**named(CASES))
def test_a_law_over_structure_has_parameters_of_the_model(case: Case) -> None:
    model, _ = parts(case)
    if isinstance(model, HasStructureLaw):
        own = dict(model.named_parameters())
        assert all(own[name] is p for name, p in model.structure_parameters().items())
    else:
        assert structure_parameters(model) == {}


@pytest.mark.parametrize(**named(CASES))
def test_a_resizable_model_is_rebuilt_from_its_blueprint(case: Case) -> None:
    model, _ = parts(case)
    if not isinstance(model, Resizable):
        return
    names, blueprint = list(model.state_dict()), model.blueprint()
    model.rebuild(blueprint)
    assert list(model.state_dict()) == names
    assert model.blueprint() == blueprint


# ------------------------------------------------------------------------------------------- no stubs


def raises_only(method: ast.FunctionDef) -> bool:
    """Whether a method is a docstring, or none, and a raise."""
    body = method.body[1:] if ast.get_docstring(method) is not None else method.body
    return len(body) == 1 and isinstance(body[0], ast.Raise)


@each(SOURCES)
def test_no_method_is_a_refusal_and_nothing_else(path: Path) -> None:
    for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for method in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef):
                assert not raises_only(method), f"{kind.name}.{method.name} is a stub"


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_no_model_has_a_stub(family: Any) -> None:
    """Nor has a layer, a likelihood or an estimator; also those of other packages."""
    fits = [fitted(case) for case in CASES if case.family == family]
    parts = [part for fit in fits for whole in (fit.model_, fit.likelihood_) for part in whole.modules()]
    for kind in {base for thing in (*fits, *parts) for base in type(thing).__mro__}:
        if kind.__module__.partition(".")[0] in ("torch", "abc", "builtins", "sklearn"):
            continue
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(source, ast.ClassDef)
        stubs = [method.name for method in source.body if isinstance(method, ast.FunctionDef) and raises_only(method)]
        assert not stubs, f"{kind.__name__} has the stubs {stubs}"


# ------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(("family", "task"), SUPERVISED, ids=[f"{family.name}-{task}" for family, task in SUPERVISED])
def test_a_constructor_has_the_options_that_the_registry_names(family: Any, task: str) -> None:
    kind = registry.estimator_class(family.tasks[task])
    declared = registry.options(family, task)
    signature = inspect.signature(kind).parameters
    assert set(signature) == set(declared) == set(kind().get_params(deep=False))
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.values())
    for name, option in declared.items():
        assert signature[name].default == option.default
        assert f"{name} : " in (kind.__doc__ or ""), f"{name} is not documented"
    assert issubclass(kind, family.options)


@pytest.mark.parametrize(("family", "task"), TASKS, ids=[f"{family.name}-{task}" for family, task in TASKS])
def test_a_family_has_options_of_draws_and_laws_where_it_has_draws_and_laws(family: Any, task: str) -> None:
    """An option has a use: some variant of a family that can be told how many weights to draw does draw weights."""
    models = [part for c in CASES if c.family == family for part in fitted(c).model_.modules()]
    models = [part for part in models if isinstance(part, Model)]
    declared = set(registry.options(family, task))
    nested = {name for name, *_ in nested_options(options_of(family.options))}
    drawn = any(model.stochastic for model in models)
    law = any(structure_parameters(model) for model in models)
    natural = any(isinstance(model, NaturalGradient) and structure_parameters(model) for model in models)
    assert ("weight_draws" in declared) == drawn == issubclass(family.options, DrawnWeightsOptions)
    by_bound = "structure_from" in declared  # whose value has the options of the law
    assert by_bound == issubclass(family.options, CrossFitOptions)
    assert not (by_bound and issubclass(family.options, LawOptions))
    own = {"structure_rate", "structure_delay"}
    assert (own <= declared) == issubclass(family.options, LawOptions) == (law and not by_bound)
    assert bool(own & declared) == (law and not by_bound)
    assert ({"structure_from__rate", "structure_from__delay"} <= nested) == by_bound
    assert law or not by_bound
    assert ("structure_optimizer" in declared) == issubclass(family.options, NaturalLawOptions)
    assert natural == bool({"structure_optimizer", "structure_from__optimizer"} & (declared | nested))
