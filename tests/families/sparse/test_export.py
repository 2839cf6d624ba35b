"""Exports, against the deterministic median probability model and against counts by hand."""

import ast
import copy
import itertools
import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fathomless.families.sparse import plain as compact
from fathomless.families.sparse.export import to_sparse
from fathomless.families.sparse.model import InputSkip, SparseNetwork
from fathomless.families.sparse.paths import active_paths
from fathomless.families.sparse.plain import CompressedLinear, Select, SkipChain, load_sparse, save_sparse
from fathomless.nn.bayesian import bayesian
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.system import io
from fathomless.system.errors import DataError, FileError

FORMATS = ("auto", "dense", "csr")


def sparse(network, density, seed, make=None):
    """Return a sparse network with random parameters, whose weights are included at random."""
    generator = torch.Generator().manual_seed(seed)
    model = SparseNetwork(bayesian(network, make))
    for name, parameter in model.named_parameters():
        if name.endswith("logit"):
            included = torch.rand(parameter.shape, generator=generator) < density
            parameter.data = torch.where(included, 1.0, -1.0)
        elif name.endswith((".mean", ".weight", ".bias")) and "multiplier" not in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


def median(model, x):
    """Return the outputs of the deterministic median probability model."""
    with torch.no_grad():
        return copy.deepcopy(model).set_prediction("median", use_means=True).eval().draw(x).f[0]


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same(a, b):
    assert a.shape == b.shape
    assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(b.abs().max()))


def assert_exports_agree(model, x, folder=None):
    """All formats give the outputs of the median model; written and read back they give the same bytes."""
    expected = median(model, x)
    for format in FORMATS:
        export = to_sparse(model, format=format, example=x)
        with torch.no_grad():
            own = export.network(x)
        assert_same(own, expected)
        assert export.report.difference == float((own - expected).abs().max())
        if folder is not None and format != "auto":
            export.save(folder)
            assert torch.equal(load_sparse(folder)(x), own)


def perceptron(*widths, activation=nn.ReLU):
    parts = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*parts[:-1])


# --- invariants of the median probability model


def test_weights_that_are_not_included_are_exactly_zero():
    model = sparse(perceptron(5, 4, 2), 0.5, 0).set_prediction("median")
    for _, layer in model.sparse_layers():
        for weight in (layer.mean_weights()[0], layer.weight.draw(layer.weight.mean, "median", None)):
            assert torch.equal(weight == 0.0, layer.weight.logit <= 0.0)


@settings(max_examples=60)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=5),
    density=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**16),
    activation=st.sampled_from([nn.ReLU, nn.Sigmoid, nn.Softplus]),
)
def test_exports_of_perceptrons_agree_with_the_median_model(tmp_path_factory, widths, density, seed, activation):
    model = sparse(perceptron(*widths, activation=activation), density, seed)
    assert_exports_agree(model, rows(7, widths[0]), tmp_path_factory.mktemp("m"))


@settings(max_examples=60)
@given(
    inputs=st.integers(1, 5),
    widths=st.lists(st.integers(1, 4), max_size=3),
    density=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**16),
)
def test_exports_of_skip_networks_agree_with_the_median_model(tmp_path_factory, inputs, widths, density, seed):
    model = sparse(InputSkip(inputs, widths, 2, nn.Sigmoid()), density, seed)
    assert_exports_agree(model, rows(7, inputs), tmp_path_factory.mktemp("m"))


@st.composite
def convolutions(draw):
    """Draw a small network of convolutions, with everything that makes borders and channels difficult."""
    channels, parts = 2, []
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(st.sampled_from([1, 1, 2]))
        outputs = draw(st.sampled_from([2, 4])) if groups == 2 else draw(st.integers(1, 4))
        groups = groups if channels % 2 == 0 else 1
        padding = draw(st.sampled_from([0, 1, (1, 0), "same", "valid"]))
        stride = 1 if padding == "same" else draw(st.sampled_from([1, 1, 2]))
        mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
        kernel = draw(st.sampled_from([1, 2, (3, 1)]))
        parts.append(
            nn.Conv2d(
                channels,
                outputs,
                kernel,
                stride=stride,
                padding=padding,
                groups=groups,
                padding_mode=mode,
                bias=draw(st.booleans()),
            )
        )
        parts.append(draw(st.sampled_from([nn.ReLU(inplace=True), nn.Sigmoid(), nn.Tanh()])))
        pools = [
            nn.Identity(),
            nn.AvgPool2d(2, 1, padding=1, ceil_mode=True),
            nn.AvgPool2d(2, 2, padding=1, count_include_pad=False),
            nn.AvgPool2d(2, 1, divisor_override=3),
            nn.AvgPool2d(2, 2, ceil_mode=True),
            nn.MaxPool2d(2, 1, padding=1),
            nn.MaxPool2d(2, 1, padding=1, dilation=2),
            nn.AdaptiveAvgPool2d(3),
        ]
        parts.append(draw(st.sampled_from(pools)))
        channels = outputs
    return parts


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=80)
@given(parts=convolutions(), head=st.booleans(), density=st.floats(0.0, 1.0), seed=st.integers(0, 2**16))
def test_exports_of_convolutions_agree_with_the_median_model(tmp_path_factory, parts, head, density, seed):
    network, x = nn.Sequential(*parts), rows(3, 2, 9, 8)
    try:
        outputs = network(x).flatten(1)
    except RuntimeError:  # nothing is left of the picture, or too little to reflect
        assume(False)
    assume(bool(outputs.isfinite().all()))  # pooling with gaps may see nothing but its padding, −∞
    size = outputs.shape[1]
    if head:
        network = nn.Sequential(*parts, nn.Flatten(), nn.Linear(size, 3), nn.ReLU(), nn.Linear(3, 2))
    assert_exports_agree(sparse(network, density, seed), x, tmp_path_factory.mktemp("m"))


def test_active_paths_alone_decide_what_is_left():
    model = sparse(perceptron(8, 7, 6, 3), 0.25, 1)
    paths, report = active_paths(model), to_sparse(model).report
    assert 0 < paths.counts[2] < paths.counts[1]
    assert report.kept == paths.counts[2]
    assert report.inputs == tuple(paths.inputs.nonzero().flatten().tolist())
    assert [layer.units[1] for layer in report.layers[:-1]] == [int(layer.units.sum()) for layer in paths.layers[:-1]]
    pruned = copy.deepcopy(model)
    for (_, layer), own in zip(pruned.sparse_layers(), paths.layers, strict=True):
        layer.weight.logit.data = torch.where(own.active, 1.0, -1.0)
    # pruning leaves the constants that reached active units, which the export folds
    assert active_paths(pruned).active_density == paths.active_density


def test_pruning_inactive_weights_leaves_outputs_unchanged_where_constants_are_zero():
    model = sparse(perceptron(8, 7, 6, 3), 0.25, 1)
    for _, layer in model.sparse_layers():
        layer.bias.mean.data.zero_()
    pruned = copy.deepcopy(model)
    for (_, layer), own in zip(pruned.sparse_layers(), active_paths(model).layers, strict=True):
        layer.weight.logit.data = torch.where(own.active, 1.0, -1.0)
    x = rows(20, 8)
    assert_same(median(pruned, x), median(model, x))


# --- drawn by hand


def drawn(weights, biases, network):
    """Set means and inclusions: NaN stands for a weight that is not included."""
    model = SparseNetwork(bayesian(network))
    for (_, layer), weight, bias in zip(model.sparse_layers(), weights, biases, strict=True):
        weight = torch.as_tensor(weight).reshape(layer.weight.mean.shape)
        layer.weight.logit.data = torch.where(weight.isnan(), -2.0, 2.0)
        layer.weight.mean.data = weight.nan_to_num(9.0)
        layer.bias.mean.data = torch.as_tensor(bias)
    return model


def test_a_constant_unit_is_folded_into_the_next_bias():
    no = math.nan
    first, second = [[2.0, no, no], [no, no, no], [no, 1.0, no]], [[1.0, 3.0, no]]
    model = drawn([first, second], [[0.5, 0.25, 1.0], [1.0]], perceptron(3, 3, 1))
    export = to_sparse(model, example=torch.ones(4, 3))
    assert str(export.network).count("Linear(in_features=1, out_features=1, bias=True)") == 2
    select, into, _, out = export.network
    assert select.columns.tolist() == [0]
    assert (into.weight.tolist(), into.bias.tolist()) == ([[2.0]], [0.5])
    assert (out.weight.tolist(), out.bias.tolist()) == ([[1.0]], [1.0 + 3.0 * 0.25])
    report = export.report
    assert (report.inputs, report.kept, report.density) == ((0,), 2, 2 / 12)
    assert report.multiply_adds == (12, 2)
    assert report.bytes_dense == 4 * (12 + 4)
    assert report.bytes_trained == 4 * (3 * 12 + 2 * 4)
    assert report.bytes == 4 * (2 + 2) + 4  # weights and biases, one column
    assert [(layer.format, layer.inputs, layer.units) for layer in report.layers] == [
        ("dense", (3, 1), (3, 1)),
        ("dense", (3, 1), (1, 1)),
    ]
    assert report.difference == 0.0
    assert report.agreement is None
    assert report.summary.startswith("2 weights (density 0.167), 1 of 3 inputs, hidden units 1; 20 bytes")


def test_a_skip_network_that_became_linear_is_one_linear_map():
    no = math.nan
    weights = [[[1.0, 2.0], [no, no]], [[no, 3.0, no, 4.0]]]
    model = drawn(weights, [[1.0, 2.0], [0.5]], InputSkip(2, [2], 1, nn.ReLU()))
    export = to_sparse(model)
    select, out = export.network
    assert select.columns.tolist() == [1]
    assert (out.weight.tolist(), out.bias.tolist()) == ([[4.0]], [0.5 + 3.0 * 2.0])
    assert [layer.format for layer in export.report.layers] == ["none", "dense"]
    assert export.report.inputs == (1,)


def test_a_skip_network_keeps_its_own_columns_for_each_layer():
    no = math.nan
    weights = [[[1.0, no, no], [no, no, no]], [[2.0, no, no, 3.0, no]]]
    export = to_sparse(drawn(weights, [[1.0, 2.0], [0.5]], InputSkip(3, [2], 1, nn.ReLU())))
    (chain,) = export.network
    assert isinstance(chain, SkipChain)
    assert [select.columns.tolist() for select in chain.selections] == [[0], [1]]
    assert [tuple(layer.weight.shape) for layer in chain.layers] == [(1, 1), (1, 2)]
    assert export.report.inputs == (0, 1)


def test_a_constant_channel_is_folded_only_where_padding_leaves_it_constant():
    no = math.nan
    weights = [[[[1.0]], [[no]]], [[[1.0, 1.0], [1.0, 1.0]]]]
    biases = [[0.0, 1.0], [0.0]]
    for padding, mode, left in ((0, "zeros", 1), (1, "zeros", 2), (1, "circular", 1)):
        network = nn.Sequential(nn.Conv1d(1, 2, 1), nn.ReLU(), nn.Conv1d(2, 1, 2, padding=padding, padding_mode=mode))
        model = drawn(weights, biases, network)
        export = to_sparse(model, example=rows(2, 1, 5))
        assert export.report.layers[0].units == (2, left)
        assert export.report.difference <= 1e-6
        model.sparse_layers()[0][1].bias.mean.data[1] = -1.0  # rectified to 0, as the border is
        assert to_sparse(model).report.layers[0].units == (2, 1)


def test_pooling_that_sees_only_padding_makes_no_constant():
    pools = nn.MaxPool1d(2, 1, padding=1, dilation=2), nn.Sigmoid()
    network = nn.Sequential(nn.Conv1d(1, 2, 1), *pools, nn.Conv1d(2, 1, 1))
    no = math.nan
    model = drawn([[[[1.0]], [[no]]], [[[1.0], [1.0]]]], [[0.0, 1.0], [0.0]], network)
    for length in (1, 4):
        assert_exports_agree(model, rows(2, 1, length))


def test_an_empty_network_is_a_constant():
    for network, x in (
        (perceptron(3, 4, 2), rows(5, 3)),
        (perceptron(3, 2), rows(5, 3)),
        (nn.Sequential(nn.Flatten(), *perceptron(6, 4, 2)), rows(5, 2, 3)),
        (InputSkip(3, [2, 2], 2, nn.ReLU()), rows(5, 3)),
        (nn.Sequential(nn.Conv1d(2, 3, 1), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2)), rows(5, 2, 3)),
    ):
        model = sparse(network, 0.0, 0)
        for format in FORMATS:
            export = to_sparse(model, format=format, example=x)
            own = export.network(x)
            assert torch.equal(own, own[:1].expand(5, 2))
            assert_same(own, median(model, x))
            assert (export.report.kept, export.report.inputs) == (0, ())
            assert export.report.density == 0.0


def test_one_unit_of_everything():
    assert_exports_agree(sparse(perceptron(1, 1, 1), 1.0, 0), rows(3, 1))
    assert_exports_agree(sparse(nn.Linear(1, 1), 1.0, 0), rows(3, 1))
    assert_exports_agree(sparse(perceptron(3, 1, 2), 0.7, 2), torch.empty(0, 3).new_ones(1, 3))


def test_an_input_that_is_not_used_may_be_anything():
    model = sparse(perceptron(4, 6, 2), 0.6, 3)
    layer = model.sparse_layers()[0][1]
    layer.weight.logit.data[:, 2] = -1.0
    export, x = to_sparse(model), rows(6, 4)
    assert 2 not in export.report.inputs
    expected = median(model, x)
    x[:, 2] = math.nan
    assert_same(export.network(x), expected)


# --- what else a layer may have


def test_multipliers_and_biases_with_inclusions_are_those_of_the_median_model():
    def make(_, layer):
        return SpikeSlab(layer, multiplier=FlowOptions(steps=1, hidden=(4,)), bias_inclusion=True)

    torch.manual_seed(0)
    assert_exports_agree(sparse(perceptron(5, 4, 2), 0.6, 4, make), rows(6, 5))
    network = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    assert_exports_agree(sparse(network, 0.6, 5, make), rows(6, 2, 5))


def test_plain_layers_and_layers_without_inclusions_are_exported_whole():
    def make(name, layer):
        return {"0": None, "2": SpikeSlab(layer, inclusion=False)}.get(name, SpikeSlab(layer))

    model = sparse(perceptron(5, 4, 4, 2), 0.5, 6, make)
    assert_exports_agree(model, rows(6, 5))
    assert to_sparse(model).report.layers[0].weights == 20


def test_posterior_means_of_all_weights_can_be_exported_too():
    model, x = sparse(perceptron(5, 4, 2), 0.5, 7), rows(6, 5)
    with torch.no_grad():
        expected = copy.deepcopy(model).set_prediction("average", use_means=True).eval().draw(x).f[0]
    export = to_sparse(model, predict_by="average")
    assert_same(export.network(x), expected)
    assert export.report.density == 1.0
    assert float((expected - median(model, x)).abs().max()) > 1e-2


def test_double_precision_stays():
    model = sparse(perceptron(5, 4, 2), 0.5, 8).double()
    x = rows(6, 5).double()
    for format in FORMATS:
        export = to_sparse(model, format=format, example=x)
        assert export.network(x).dtype == torch.float64
        assert export.report.difference < 1e-13


def test_the_network_given_is_not_changed():
    model = sparse(perceptron(5, 4, 2), 0.5, 9).train()
    before, x = copy.deepcopy(model.state_dict()), rows(6, 5)
    state = torch.get_rng_state()
    export = to_sparse(model, example=x)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert [(layer.predict_by, layer.use_means) for _, layer in model.sparse_layers()] == [("average", False)] * 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        for parameter in export.network.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_bayesian_modules_are_exported_like_the_models_that_hold_them():
    model, x = sparse(perceptron(5, 4, 2), 0.5, 9), rows(6, 5)
    for part in (model.network, model.network.module):
        export = to_sparse(part, example=x)
        assert export.report.difference < 1e-5
        assert torch.equal(export.network(x), to_sparse(model).network(x))


# --- formats


def test_compressed_rows_are_taken_where_they_are_faster():
    def format(inputs, outputs, density):
        return to_sparse(sparse(nn.Linear(inputs, outputs), density, 0)).report.layers[0].format

    assert format(400, 400, 0.09) == "csr"
    assert format(400, 400, 0.11) == "dense"
    assert format(400, 300, 0.01) == "dense"


def test_compressed_rows_have_the_product_and_derivatives_of_a_dense_map():
    weight = rows(5, 4) * (rows(5, 4, seed=1) > 0.0)
    weight[2] = 0.0  # a row of nothing
    layer = CompressedLinear.of(weight, rows(5)).double().requires_grad_()
    dense = nn.Linear(4, 5).double()
    dense.load_state_dict({"weight": weight.double(), "bias": layer.bias.detach()})
    for shape in ((3, 4), (1, 4), (0, 4), (4,), (2, 3, 4)):
        x = rows(*shape).double().requires_grad_()
        assert torch.allclose(layer(x), dense(x), atol=1e-12)
    x = rows(3, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(layer, x)
    layer(x).square().sum().backward()
    dense(x).square().sum().backward()
    assert torch.allclose(layer.values.grad, dense.weight.grad[weight != 0])


def test_an_export_is_an_ordinary_module():
    model, x = sparse(perceptron(6, 8, 3), 0.5, 10), rows(9, 6)
    for format in ("dense", "csr"):
        network = to_sparse(model, format=format).network
        expected = network(x)
        twin = copy.deepcopy(network)
        for parameter in twin.parameters():
            parameter.data.zero_()
        assert not torch.equal(twin(x), expected)
        twin.load_state_dict(network.state_dict())
        assert torch.equal(twin(x), expected)
        assert torch.allclose(twin.to(torch.float64)(x.double()), expected.double(), atol=1e-5)
        batch = torch.export.Dim("batch", min=2)
        program = torch.export.export(network, (x,), dynamic_shapes=({0: batch},))
        assert torch.allclose(program.module()(x[:4]), expected[:4], atol=1e-6)
        assert not any(parameter.requires_grad for parameter in network.parameters())


# --- files


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_file_holds_what_is_left_and_little_else(tmp_path):
    for density in (0.01, 0.1, 0.5):
        model = sparse(perceptron(300, 200, 10), density, 0)
        export = to_sparse(model, format="csr")
        export.save(tmp_path / f"{density}")
        plain = io.save(
            tmp_path / "plain", kind="m", tensors=to_sparse(model, format="dense").network.state_dict(), meta={}
        )
        trained = io.save(tmp_path / "trained", kind="m", tensors=model.state_dict(), meta={})
        places = sum(layer.inputs[1] * layer.units[1] for layer in export.report.layers)
        biases = sum(layer.units[1] for layer in export.report.layers)
        index = min(places / 8, export.report.kept + places / 255)
        assert size(tmp_path / f"{density}") <= 4 * (export.report.kept + biases) + index + 4 * 300 + 6000
        assert size(tmp_path / f"{density}") < 0.75 * size(plain)
        assert size(tmp_path / f"{density}") < 0.25 * size(trained)


def test_places_are_stored_in_the_shorter_form(tmp_path):
    for density, form in ((0.001, "gaps"), (0.01, "gaps"), (0.3, "mask"), (1.0, "values")):
        to_sparse(sparse(nn.Linear(200, 100), density, 0), format="csr").save(tmp_path)
        tensors = io.load(tmp_path, kinds={"sparse-network"}).tensors
        names = {name.rpartition(".")[2] for name in tensors if "bias" not in name} - {"values"}
        assert form in names | {"values"}
        assert names - {"columns"} <= {form}


@pytest.mark.parametrize(
    "places", [[], [0], [2000], [254], [255], [256], [510], [511, 512], [0, 255, 511, 766], [2, 2000]]
)
def test_places_far_apart_come_back(places, tmp_path):
    weight = torch.zeros(3, 667)  # 2001 places
    weight.view(-1)[places] = torch.arange(1.0, 1.0 + len(places))
    network = nn.Sequential(CompressedLinear.of(weight, torch.zeros(3)))
    save_sparse(network, tmp_path)
    assert "network.0.gaps" in io.load(tmp_path, kinds={"sparse-network"}).tensors
    again = load_sparse(tmp_path)
    x = rows(3, 667)
    assert torch.equal(again(x), network(x))
    torch.testing.assert_close(again(torch.eye(667)), weight.mT)


def test_a_single_row_is_mapped_as_many_are():
    layer = CompressedLinear.of(torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 3.0]]), torch.tensor([0.5, 1.0, 0.0]))
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0]]), torch.tensor([[[1.0, 2.0]]])):
        assert layer(x).shape == (*x.shape[:-1], 3)
        assert layer(x).flatten().tolist() == [1.5, 1.0, 8.0]
    assert layer(torch.empty(0, 2)).shape == (0, 3)


def test_a_module_that_stands_in_two_places_is_saved_twice(tmp_path):
    relu = nn.ReLU()
    network = nn.Sequential(relu, nn.Linear(3, 2), relu, nn.Conv1d(2, 2, 1, bias=False)).eval()
    save_sparse(network, tmp_path)
    assert str(load_sparse(tmp_path)) == str(network)


def test_loading_needs_nothing_of_the_posterior(tmp_path):
    model, x = sparse(InputSkip(4, [5], 2, nn.GELU(approximate="tanh")), 0.5, 11), rows(6, 4)
    export = to_sparse(model)
    export.save(tmp_path)
    code = (
        "import sys, torch; from fathomless.families.sparse.plain import load_sparse; "
        f"x = torch.tensor({x.tolist()}); network = load_sparse({str(tmp_path)!r}); "
        "known = [n for n in sys.modules if n.startswith('fathomless.')]; "
        "print(sorted(known)); print(network(x).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    known, values = done.stdout.splitlines()
    folders = {name.split(".")[1] for name in ast.literal_eval(known)}
    assert folders == {"estimators", "families", "system"}  # what a registry reads: options, and no torch
    assert "fathomless.estimators.base" not in known
    assert "fathomless.families.sparse.model" not in known
    assert json.loads(values) == export.network(x).tolist()


def test_the_report_travels_with_the_network(tmp_path):
    export = to_sparse(sparse(perceptron(5, 4, 2), 0.5, 12), example=rows(6, 5))
    export.save(tmp_path)
    told = io.load(tmp_path, kinds={"sparse-network"}).meta["report"]
    assert told["multiply_adds"] == list(export.report.multiply_adds)
    assert [layer["kept"] for layer in told["layers"]] == [layer.kept for layer in export.report.layers]
    assert told["agreement"] == 1.0


def test_damaged_folders_are_refused(tmp_path):
    to_sparse(sparse(perceptron(5, 4, 2), 0.5, 13)).save(tmp_path)
    (tensors,) = tmp_path.glob("tensors-*")
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-4])
    with pytest.raises(FileError, match="cut off"):
        load_sparse(tmp_path)
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FileError, match="altered"):
        load_sparse(tmp_path)
    tensors.unlink()
    with pytest.raises(FileError, match="missing"):
        load_sparse(tmp_path)
    with pytest.raises(FileError, match="no folder"):
        load_sparse(tmp_path / "none")
    io.save(tmp_path / "other", kind="model", tensors={}, meta={})
    with pytest.raises(FileError, match="holds a 'model'"):
        load_sparse(tmp_path / "other")


def test_descriptions_that_cannot_be_built_are_refused(tmp_path):
    save_sparse(nn.Sequential(nn.Linear(9, 8), nn.ReLU()), tmp_path)
    saved = io.load(tmp_path, kinds={"sparse-network"})

    def altered(tensors=None, **linear):
        meta = copy.deepcopy(saved.meta)
        meta["network"]["children"][0] |= linear
        io.save(tmp_path, kind="sparse-network", tensors=tensors or saved.tensors, meta=meta)
        with pytest.raises(FileError, match=r"cannot be built.*upgrade fathomless"):
            load_sparse(tmp_path)

    altered(type="Bilinear")
    altered(shape=[8, 10])
    altered(arguments={"rank": 3})
    altered({name: tensor for name, tensor in saved.tensors.items() if not name.endswith("values")})
    mask = {"network.0.mask": torch.full((9,), 255, dtype=torch.uint8)}
    altered({**saved.tensors, **mask, "network.0.values": torch.ones(3)})
    columns = {"network.0.columns": torch.full((3,), 99, dtype=torch.int16), "network.0.values": torch.ones(3)}
    altered({**saved.tensors, **columns, "network.0.starts": torch.tensor([0, 1, 2, 3, 3, 3, 3, 3, 3])})


# --- refusals


def test_other_options_are_refused():
    model = sparse(perceptron(3, 2), 0.5, 0)
    with pytest.raises(DataError, match=r"predict_by='mean'.*'median' and 'average'"):
        to_sparse(model, predict_by="mean")
    with pytest.raises(DataError, match=r"format='coo'.*'auto', 'dense' and 'csr'"):
        to_sparse(model, format="coo")
    with pytest.raises(DataError, match="1 is a BatchNorm1d"):
        to_sparse(SparseNetwork(bayesian(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))))


def test_other_modules_cannot_be_saved(tmp_path):
    with pytest.raises(DataError, match=r"network\.0 is a Bilinear.*CompressedLinear"):
        save_sparse(nn.Sequential(nn.Bilinear(2, 2, 2)), tmp_path)
    assert not io.holds(tmp_path)


def test_multiply_adds_of_convolutions_need_an_example():
    network = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    model = sparse(network, 1.0, 0)
    assert to_sparse(model).report.multiply_adds is None
    report = to_sparse(model, example=rows(2, 2, 6, 6)).report
    assert report.multiply_adds == (9 * 4 * 2 * 9 + 36 * 3,) * 2
    assert report.agreement == 1.0
    assert [layer.format for layer in report.layers] == ["convolution", "dense"]


def test_every_module_without_weights_is_made_again():
    arguments = {"kernel_size": 2, "output_size": 2, "lambd": 0.3, "threshold": 0.1, "value": -1.0}
    for kind, names in {**compact.ELEMENTWISE, **compact.POOLING}.items():
        needed = [arguments[name] for name in names if name in arguments and kind is not nn.Softplus]
        module = kind(*needed)
        x = rows(
            2, 3, *[6] * (int(kind.__name__[-2]) if kind.__name__.endswith("d") and kind in compact.POOLING else 1)
        )
        assert torch.equal(compact.copy_without_tensors(module)(x), module(x))
        assert str(compact.copy_without_tensors(module)) == str(module)
    assert isinstance(Select(torch.tensor([1])).columns, torch.Tensor)
