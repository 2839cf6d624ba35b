"""Stage 2: the objective has the right sign, affine maps are principal components, codes have their unit."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.families.manifold.autoencoder import (
    AutoencoderOptions,
    AutoencoderStage,
    ChunkMap,
    Decoder,
    LayerMap,
)
from fathomless.families.manifold.network import FlatNetwork
from fathomless.families.manifold.stages import run_stages
from fathomless.inference.runs.run import under
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.rng import seeded_globals

NET = FlatNetwork(1, 1, (4,), "tanh")
PLAIN = AutoencoderOptions(dimensions=2, hidden=(8,), noise=0.0, rho=0.0, steps=60)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(rows: int = 25) -> Rows:
    x = torch.linspace(-2.0, 2.0, rows, dtype=torch.float64)[:, None]
    return Rows(x, x.sin() + 0.05 * torch.randn(rows, 1, generator=noise(9), dtype=torch.float64))


def candidates(count: int = 12, rank: int = 3) -> Tensor:
    """Return weights that lie near a space of few dimensions."""
    base, axes = (torch.randn(size, NET.size, generator=noise(size), dtype=torch.float64) for size in (1, rank))
    loads = torch.randn(count, rank, generator=noise(5), dtype=torch.float64)
    rest = 0.01 * torch.randn(count, NET.size, generator=noise(6), dtype=torch.float64)
    return base + 0.5 * loads @ axes + rest


def stage(options: AutoencoderOptions = PLAIN, weights: Tensor | None = None, scale: float = 0.3) -> AutoencoderStage:
    given = candidates() if weights is None else weights
    return AutoencoderStage(NET, Gaussian(noise=scale), table(), given, options, seed=1)


def log_likelihood(one: AutoencoderStage) -> Tensor:
    w = one.decoder(one.encoder(one.components))
    return one.likelihood.log_prob(one.network(w, one.rows.x), one.rows.y).mean()


def test_the_objective_is_that_of_the_formula() -> None:
    one = stage(replace(PLAIN, rho=0.1))
    z = one.encoder(one.components)
    decoded = one.decoder.last(one.decoder.features(z))
    expected = (one.tilde - decoded).square().sum() / one.tilde.numel() + 0.1 * z.square().sum() / len(z)
    torch.testing.assert_close(one.loss(0.0, noise()), expected)
    torch.testing.assert_close(one.loss(0.5, noise()), expected)
    torch.testing.assert_close(one.loss(0.6, noise()), expected - 0.5 * log_likelihood(one))  # 12 candidates: all
    torch.testing.assert_close(one.loss(0.9, noise()), expected - log_likelihood(one))


def test_the_gradient_of_the_data_raises_the_log_likelihood() -> None:
    """Finite difference: a step of length ε down the loss's data term changes the log-likelihood by +ε |gradient|."""
    one = stage()
    parameters = [*one.encoder.parameters(), *one.decoder.parameters()]
    data = one.loss(0.9, noise()) - one.loss(0.1, noise())
    grads = torch.autograd.grad(data, parameters)
    size = math.sqrt(sum(float(g.square().sum()) for g in grads))
    before, epsilon = log_likelihood(one), 1e-6
    with torch.no_grad():
        for p, g in zip(parameters, grads, strict=True):
            p -= epsilon * g / size
    change = float((log_likelihood(one) - before).detach())
    assert change == pytest.approx(epsilon * size, rel=1e-3)
    assert change > 0.0


def test_noise_enters_where_the_encoder_reads() -> None:
    """With an encoder that reads nothing, noise changes nothing; on the decoder's side it would."""
    one = stage(replace(PLAIN, noise=5.0))
    with torch.no_grad():
        one.encoder[0][0].weight.zero_()
    assert float((one.loss(0.0, noise(1)) - one.loss(0.0, noise(2))).detach()) == 0.0
    two = stage(replace(PLAIN, noise=5.0))
    assert float((two.loss(0.0, noise(1)) - two.loss(0.0, noise(2))).detach()) != 0.0


@pytest.mark.parametrize("dimensions", [1, 2, 3, 8])
def test_affine_maps_start_at_the_principal_components(dimensions: int) -> None:
    """The loss is the sum of the squared singular values left out, and its gradient is zero (Eckart and Young)."""
    one = stage(replace(PLAIN, dimensions=dimensions, hidden=()))
    sizes = torch.linalg.svdvals(one.tilde)
    loss = one.loss(0.0, noise())
    torch.testing.assert_close(loss, sizes[dimensions:].square().sum() / one.tilde.numel())
    for g in torch.autograd.grad(loss, [*one.encoder.parameters(), *one.decoder.last.parameters()]):
        torch.testing.assert_close(g, torch.zeros_like(g), rtol=0, atol=1e-9)
    codes = one.codes()
    torch.testing.assert_close(codes.mT @ codes / len(codes), torch.eye(dimensions, dtype=codes.dtype))


def test_all_dimensions_reproduce_all_candidates() -> None:
    """R standardised candidates have rank R − 1; what is more has no effect."""
    one = stage(replace(PLAIN, dimensions=9, hidden=()), candidates(6, rank=6))
    assert one.gate().reconstruction < 1e-20
    assert one.gate().apart < 1e-10
    assert one.gate().log_likelihood == pytest.approx(one.gate().of_candidates)


def test_components_are_all_that_candidates_are() -> None:
    """Inner products of components are those of weights; noise of size η along each has the same length in both."""
    one = stage()
    torch.testing.assert_close(one.components @ one.components.mT, one.unit**2 * one.tilde @ one.tilde.mT)
    assert float(one.components.square().mean()) == pytest.approx(float(one.tilde.square().mean()))


@pytest.mark.parametrize("last", ["layers", "chunks"])
def test_smaller_maps_have_what_the_formula_says(last: str) -> None:
    net = FlatNetwork(3, 2, (30, 40), "relu")  # 1,442 weights: two pieces, three layers
    with seeded_globals(0):
        decoder = Decoder(2, (5,), net.size, last, net.blocks).double()
    z = torch.randn(4, 2, generator=noise(1), dtype=torch.float64)
    h, own = decoder.features(z), decoder.last
    if isinstance(own, LayerMap):
        parts = [second(torch.tanh(first(h))) for first, _, second in own.maps]  # type: ignore[misc]
        assert [part.shape[1] for part in parts] == [120, 1240, 82]
        expected = torch.cat(parts, 1)
    else:
        assert isinstance(own, ChunkMap)
        expected = torch.cat([own.out(torch.tanh(own.inside(h) + e)) for e in own.which], 1)[:, : net.size]
        assert sum(p.numel() for p in own.parameters()) == 2 * 64 + 5 * 64 + 64 + 64 * 1024 + 1024
    torch.testing.assert_close(decoder(z), decoder.mean + decoder.scale * expected)


def test_a_layer_that_is_large_gets_few_units() -> None:
    sizes = [first.out_features for first, _, _ in LayerMap(50, (100, 2**18, 2**22)).maps]  # type: ignore[misc]
    assert sizes == [50, 4, 4]


@pytest.mark.parametrize("last", ["layers", "chunks"])
def test_smaller_maps_learn(last: str) -> None:
    options = AutoencoderOptions(dimensions=3, hidden=(16,), last=last, steps=400)
    found = run_stages({"a": lambda _: stage(options, scale=5.0)}, 0).found
    assert float(found["a/gate"][0]) < 0.3
    decoder = AutoencoderStage.decoder_of(under("a", found), options, NET)
    left = (candidates() - decoder(found["a/codes"]).detach()) / decoder.scale
    assert float(left.square().mean()) == pytest.approx(float(found["a/gate"][0]))


def test_codes_get_their_unit_and_decoding_stays() -> None:
    one = stage()
    before = one.decoder(one.codes()).detach()
    found = one.finish()
    torch.testing.assert_close(found["codes"].mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["codes"].std(0, correction=0), torch.ones(2, dtype=torch.float64))
    decoder = AutoencoderStage.decoder_of(found, PLAIN, NET)
    torch.testing.assert_close(decoder(found["codes"]).detach(), before)
    left = (one.weights - before) / decoder.scale
    torch.testing.assert_close(decoder.residual, left.square().mean(0))
    assert float(found["gate"][0]) == pytest.approx(float(decoder.residual.mean()))


def test_learning_keeps_the_candidates_and_their_predictions() -> None:
    """Three dimensions hold what there is but for a little noise; candidates are at random, so that noise is large."""
    options = AutoencoderOptions(dimensions=3, hidden=(16,), steps=800)
    found = run_stages({"a": lambda _: stage(options, scale=5.0)}, 0).found
    reconstruction, decoded, of_candidates, _ = found["a/gate"].tolist()
    assert reconstruction < 0.05
    assert decoded > of_candidates - 0.05
    decoder = AutoencoderStage.decoder_of(under("a", found), options, NET)
    assert decoder(found["a/codes"]).shape == (12, NET.size)


def test_the_printed_sign_would_make_predictions_worse_without_end() -> None:
    """Minimising reconstruction plus log-likelihood, as the paper prints it, sends the latter to −∞."""
    right, wrong = (
        run_stages({"a": lambda _, beta=beta: stage(replace(PLAIN, beta=beta, steps=300))}, 0).found["a/gate"]
        for beta in (1.0, -1.0)
    )
    assert float(right[1]) > float(right[2]) - 1.0
    assert float(wrong[1]) < float(right[1]) - 100.0


def test_weights_of_rows_are_repetitions() -> None:
    rows = table(6)
    times = torch.tensor([1, 2, 3, 1, 2, 3])
    options = replace(PLAIN, dimensions=2)
    heavy = AutoencoderStage(NET, Gaussian(noise=0.3), Rows(rows.x, rows.y, times.double()), candidates(), options, 1)
    again = Rows(rows.x.repeat_interleave(times, 0), rows.y.repeat_interleave(times, 0))
    light = AutoencoderStage(NET, Gaussian(noise=0.3), again, candidates(), options, 1)
    torch.testing.assert_close(heavy.loss(0.9, noise()), light.loss(0.9, noise()))
