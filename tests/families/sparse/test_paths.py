"""Active paths, against drawings by hand and against the enumeration of all paths."""

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fathomless.families.sparse.export import to_sparse
from fathomless.families.sparse.model import InputSkip, SparseNetwork, inclusion_table
from fathomless.families.sparse.paths import active_paths, read_chain
from fathomless.nn.bayesian import bayesian
from fathomless.nn.images import Augment
from fathomless.nn.layers import MeanField
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.system.errors import DataError


def masked(network, *masks):
    """Make a network Bayesian, with these weights included."""
    model = bayesian(network)
    own = [part for part in model.modules() if isinstance(part, SpikeSlab)]
    for layer, mask in zip(own, masks, strict=True):
        mask = torch.as_tensor(mask, dtype=torch.bool)
        layer.weight.logit.data = torch.where(mask.reshape(layer.weight.mean.shape), 1.0, -1.0)
    return model


def random_masks(network, density, seed):
    generator = torch.Generator().manual_seed(seed)
    layers = [part for part in network.modules() if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d)]
    return [torch.rand(layer.weight.shape, generator=generator) < density for layer in layers]


def enumerated(masks, inputs, skip=False):
    """Walk along every path from an input to an output; tell the weights (output, source) on the way, and the inputs.

    Sources of a layer are the units of the one before, then, with `skip`, the inputs.
    """
    active, used, last = [torch.zeros_like(mask) for mask in masks], set(), len(masks) - 1

    def walk(layer, source, start, path):
        for target in masks[layer][:, source].nonzero().flatten().tolist():
            way = [*path, (layer, target, source)]
            if layer < last:
                walk(layer + 1, target, start, way)
            else:
                used.add(start)
                for at, row, column in way:
                    active[at][row, column] = True

    for first, i in itertools.product(range(len(masks) if skip else 1), range(inputs)):
        walk(first, i + (masks[first].shape[1] - inputs if first else 0), i, [])
    return active, [i in used for i in range(inputs)]


# --- drawn by hand


def test_a_drawing_by_hand():
    # input 0 -> unit 0 -> output 0; input 1 -> unit 1 -> nothing; nothing -> unit 2 -> output 1; input 2 -> nothing
    first = [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    second = [[1, 0, 0], [0, 0, 1]]
    paths = active_paths(masked(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), first, second))
    assert [layer.name for layer in paths.layers] == ["0", "2"]
    assert paths.layers[0].active.int().tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert paths.layers[1].active.int().tolist() == [[1, 0, 0], [0, 0, 0]]
    assert paths.layers[0].units.tolist() == [True, False, False]
    assert paths.layers[1].units.tolist() == [True, False]
    assert paths.inputs.tolist() == [True, False, False]
    assert paths.density == 4 / 15
    assert paths.active_density == 2 / 15
    assert [layer.density for layer in paths.layers] == [2 / 9, 2 / 6]
    assert [layer.active_density for layer in paths.layers] == [1 / 9, 1 / 6]
    assert paths.summary == (
        "2 of 15 weights on active paths (density 0.133; 4 included), 1 of 3 inputs used, hidden units 1"
    )


def test_channels_of_a_flattened_convolution_are_blocks_of_columns():
    # channel 0 of the input -> channel 1 -> its second position -> the output
    network = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(6, 1))
    kernels = torch.zeros(3, 2, 2)
    kernels[1, 0, 1] = kernels[2, 1, 0] = 1
    paths = active_paths(masked(network, kernels, [[1, 0, 0, 1, 0, 0]]))
    assert paths.inputs.tolist() == [True, False]
    assert paths.layers[0].units.tolist() == [False, True, False]
    assert paths.layers[0].active.nonzero().tolist() == [[1, 0, 1]]
    assert paths.layers[1].active.int().tolist() == [[0, 0, 0, 1, 0, 0]]


def test_groups_of_a_convolution_see_their_own_channels():
    network = nn.Sequential(nn.Conv1d(4, 2, 1, groups=2), nn.ReLU(), nn.Conv1d(2, 1, 1))
    paths = active_paths(masked(network, [[[1], [0]], [[0], [1]]], [[[0], [1]]]))
    assert paths.inputs.tolist() == [False, False, False, True]
    assert paths.layers[0].active.flatten().tolist() == [False, False, False, True]


def test_a_skip_network_may_be_linear():
    network = InputSkip(2, [2], 1, nn.ReLU())
    paths = active_paths(masked(network, [[1, 1], [1, 1]], [[0, 0, 0, 1]]))
    assert paths.inputs.tolist() == [False, True]
    assert paths.entries.tolist() == [[False, False], [False, True]]
    assert paths.layers[0].active.sum() == 0
    assert paths.active_density == 1 / 8
    assert paths.density == 5 / 8
    assert [layer.name for layer in paths.layers] == ["layers.0", "layers.1"]


def test_augmentation_has_no_paths_of_its_own():
    """It is the identity in evaluation mode, as dropout is, also in the small network of the median structure."""
    plain = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 6 * 6, 2)]
    masks = random_masks(nn.Sequential(*plain), 0.5, seed=0)
    chain = masked(nn.Sequential(*copy.deepcopy(plain)), *masks)
    augmented = masked(nn.Sequential(Augment(2), *copy.deepcopy(plain)), *masks)
    assert active_paths(augmented).counts == active_paths(chain).counts
    x = torch.rand(4, 1, 8, 8)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(chain.parameters()), augmented.parameters())
    small, expected = (to_sparse(SparseNetwork(network)).network.eval()(x) for network in (augmented, chain))
    torch.testing.assert_close(small, expected)


def test_without_any_weight_nothing_is_active():
    paths = active_paths(masked(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), [[0] * 3] * 4, [[0] * 4]))
    assert (paths.density, paths.active_density, int(paths.inputs.sum())) == (0.0, 0.0, 0)


def test_densities_count_weights_with_inclusion_variables_and_no_biases():
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    make = {"0": SpikeSlab, "2": lambda layer: None, "4": lambda layer: SpikeSlab(layer, bias_inclusion=True)}
    model = SparseNetwork(bayesian(layers, lambda name, layer: make[name](layer)))
    for _, layer in model.sparse_layers():
        layer.weight.logit.data = torch.where(torch.arange(layer.weight.mean.numel()) < 3, 1.0, -1.0).view_as(
            layer.weight.mean
        )
    paths = active_paths(model)
    assert [layer.variables for layer in paths.layers] == [True, False, True]
    assert [layer.density for layer in paths.layers] == [3 / 12, 1.0, 3 / 8]
    assert paths.density == 6 / 20 == model.structure().statistics["density"]
    assert [row.kept for row in inclusion_table(model)] == [3, 3]
    assert paths.active_density == 6 / 20  # 0 -> 3 inputs; three of the middle units -> output 0


# --- against the enumeration of all paths


@settings(max_examples=60)
@given(
    widths=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    density=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**16),
)
def test_fully_connected_paths_are_those_of_the_enumeration(widths, density, seed):
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout())]
    network = nn.Sequential(*layers)
    masks = random_masks(network, density, seed)
    paths = active_paths(masked(network, *masks))
    active, inputs = enumerated(masks, widths[0])
    assert all(torch.equal(layer.active, mask) for layer, mask in zip(paths.layers, active, strict=True))
    assert all(torch.equal(layer.included, mask) for layer, mask in zip(paths.layers, masks, strict=True))
    assert paths.inputs.tolist() == inputs


@settings(max_examples=60)
@given(
    inputs=st.integers(1, 4),
    widths=st.lists(st.integers(1, 3), min_size=0, max_size=3),
    density=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**16),
)
def test_paths_of_a_skip_network_are_those_of_the_enumeration(inputs, widths, density, seed):
    network = InputSkip(inputs, widths, 2, nn.Tanh())
    masks = random_masks(network, density, seed)
    paths = active_paths(masked(network, *masks))
    active, used = enumerated(masks, inputs, skip=True)
    assert all(torch.equal(layer.active, mask) for layer, mask in zip(paths.layers, active, strict=True))
    assert paths.inputs.tolist() == used
    assert torch.equal(paths.entries, torch.stack([mask[:, -inputs:].any(0) for mask in active]))


@settings(max_examples=60)
@given(groups=st.sampled_from([1, 2]), density=st.floats(0.0, 1.0), seed=st.integers(0, 2**16))
def test_paths_of_convolutions_are_those_of_their_unfolded_channels(groups, density, seed):
    network = nn.Sequential(
        nn.Conv2d(2, 4, 2, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=groups), nn.Flatten(), nn.Linear(16, 2)
    )
    masks = random_masks(network, density**2, seed)
    paths = active_paths(masked(network, *masks))
    joins = [mask.flatten(2).any(-1) for mask in masks[:2]]
    if groups == 2:
        joins[1] = torch.cat([torch.block_diag(joins[1][:2].int(), joins[1][2:].int())]).bool()
    joins.append(masks[2].unflatten(1, (4, 4)).any(-1))
    active, inputs = enumerated(joins, 2)
    if groups == 2:
        active[1] = torch.cat([active[1][:2, :2], active[1][2:, 2:]])
    spread = [active[0][..., None, None], active[1][..., None, None], active[2].repeat_interleave(4, 1)]
    for layer, mask, channels in zip(paths.layers, masks, spread, strict=True):
        assert torch.equal(layer.active, mask & channels)
    assert paths.inputs.tolist() == inputs


# --- reading


def test_a_network_is_read_through_its_wrappers_alike():
    network = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))
    model = bayesian(network)
    for given_ in (model, model.module, SparseNetwork(model)):
        assert [link.name for link in read_chain(given_).links] == ["1.0", "2"]
    assert [link.name for link in read_chain(SparseNetwork(SpikeSlab(nn.Linear(2, 1)))).links] == [""]
    assert active_paths(nn.Linear(2, 1)).density == 1.0


def test_geometry_of_a_convolution_is_read_back():
    cases = (
        nn.Conv1d(2, 2, 3, stride=2, padding=1, dilation=2, groups=2),
        nn.Conv2d(2, 2, (3, 2), padding=(2, 1), padding_mode="reflect"),
        nn.Conv2d(2, 2, (2, 3), padding="same", padding_mode="circular"),
        nn.Conv3d(2, 2, 2, padding="valid"),
    )
    for layer in cases:
        plain, sparse = (read_chain(given_).links[0].geometry for given_ in (layer, SpikeSlab(layer)))
        again = type(layer)(2, 2, layer.kernel_size, **sparse)
        again.load_state_dict(layer.state_dict())
        x = torch.randn(2, 2, *[7] * (layer.weight.ndim - 2), generator=torch.Generator().manual_seed(0))
        assert torch.equal(again(x), layer(x))
        assert plain.keys() == sparse.keys()


def test_what_is_not_a_chain_is_refused_by_name():
    linear, conv = nn.Linear(4, 4), nn.Conv1d(2, 2, 1)
    cases = (
        (nn.Sequential(linear, nn.BatchNorm1d(4)), r"1 is a BatchNorm1d.*nn\.Sequential"),
        (nn.Sequential(linear, nn.Softmax(-1)), "1 is a Softmax"),
        (nn.Sequential(nn.Flatten(0), linear), "0 is a Flatten"),
        (nn.Sequential(linear, nn.AvgPool1d(2), nn.Linear(2, 1)), "1 is a AvgPool1d"),
        (nn.Sequential(linear, nn.Linear(3, 2)), r"1 has weights of shape \(2, 3\) after a layer with 4"),
        (nn.Sequential(conv, nn.Linear(4, 2)), "1 has weights"),
        (nn.Sequential(conv, nn.Flatten(), nn.Linear(5, 2)), "2 has weights"),
        (nn.Sequential(linear, conv), "1 has weights"),
        (nn.Sequential(conv, nn.Flatten(), nn.Conv1d(2, 2, 1)), "2 has weights"),
        (nn.Sequential(InputSkip(4, [3], 4, nn.ReLU()), linear), "an InputSkip was given beside"),
        (nn.Sequential(MeanField(linear)), "0 is a MeanField"),
        (InputSkip(4, [3], 2, nn.Softmax(-1)), "activation is a Softmax"),
        (nn.Sequential(nn.ReLU()), "without linear maps"),
    )
    for network, told in cases:
        with pytest.raises(DataError, match=told):
            active_paths(network)
