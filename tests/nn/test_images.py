"""Normalisation and augmentation of images, and networks for them."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.families.depth.deploy import classify_early
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.search import StructureSearch
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import Architecture, WideResNet, make_identity
from fathomless.nn.images import Augment, ImageInput, Normalize
from fathomless.posterior.likelihoods import Categorical
from fathomless.system.errors import DataError, PausedError
from fathomless.system.rng import seeded_globals

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(5, 9), st.integers(5, 9))


def make_images(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Return random bytes without zeros."""
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


# ---- normalisation


@given(SIZES)
def test_images_are_normalised_by_channel(shape: tuple[int, ...]) -> None:
    x = make_images(shape)
    mean, std = tuple(range(100, 100 + shape[1])), tuple(range(10, 10 + shape[1]))
    expected = torch.stack([(x[:, c].float() - mean[c]) / std[c] for c in range(shape[1])], 1)
    torch.testing.assert_close(Normalize(mean, std)(x), expected)


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((2, 5, 5, 3), r"use x\.permute\(0, 3, 1, 2\)"),
        ((2, 5, 5), r"use x\[:, None\]"),
        ((2, 1, 5, 5), "one number for"),
    ],
)
def test_images_with_other_axes_are_refused_with_advice(shape: tuple[int, ...], advice: str) -> None:
    with pytest.raises(DataError, match=rf"were given; allowed is \(B, 3, height, width\): .*{advice}"):
        Normalize((0.0,) * 3, (1.0,) * 3)(make_images(shape))


@pytest.mark.parametrize(
    ("mean", "std"), [((0.0,), (0.0,)), ((0.0,), (1.0, 1.0)), (1.0, 1.0), ((math.nan,), (1.0,)), ((), ())]
)
def test_impossible_means_and_scales_are_refused(mean: Any, std: Any) -> None:
    with pytest.raises(DataError, match="give two tuples, with a finite mean and a std > 0 for each channel"):
        ImageInput(WideResNet(), mean, std)


def test_mean_and_scale_are_saved() -> None:
    other = Normalize((0.0,), (1.0,))
    other.load_state_dict(Normalize((5.0,), (2.0,)).state_dict())
    assert other(torch.full((1, 1, 1, 1), 9.0)).item() == 2.0


def test_images_are_contiguous_on_the_processor() -> None:
    """Convolutions of other layouts crash in the backward pass of torch 2.13, for instance of 8 channels of 64 × 64."""
    x = make_images((4, 3, 8, 8))
    for channels_last in (False, True):
        made = ImageInput(
            WideResNet(size=8, base=4), (9.0,) * 3, (9.0,) * 3, crop=2, cutout=2, channels_last=channels_last
        )
        assert nn.Sequential(*list(made.layer(1))[:2]).train()(x).is_contiguous()
    convolution = nn.Conv2d(8, 16, 1, 2, bias=False)
    hidden = nn.Sequential(Augment(2).train(), nn.Identity())(torch.randn(8, 8, 64, 64, requires_grad=True))
    convolution(hidden).square().sum().backward()
    assert bool(convolution.weight.grad.isfinite().all())


# ---- augmentation


@pytest.mark.parametrize("padding", ["reflect", "zeros"])
@pytest.mark.parametrize("flip", ["none", "random", "alternating"])
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_augmented_images_are_crops_of_the_padded_image_or_its_mirror(
    padding: str, flip: str, kind: torch.dtype
) -> None:
    x = make_images((40, 3, 6, 5)).to(kind)
    augment = Augment(2, padding=padding, flip=flip, rows=40).train()
    with seeded_globals(0):
        found = augment(x)
    mode = "reflect" if padding == "reflect" else "constant"
    padded = nn.functional.pad(x.float(), (2, 2, 2, 2), mode=mode).to(kind)
    mirrored = 0
    for image, one in zip(padded, found, strict=True):
        crops = [image[:, i : i + 6, j : j + 5] for i in range(5) for j in range(5)]
        plain, turned = (any(torch.equal(one, c) for c in group) for group in (crops, [c.flip(2) for c in crops]))
        assert plain or turned
        mirrored += turned and not plain
    # of 40; a fair coin leaves this range once in 20,000 times
    assert mirrored == 0 if flip == "none" else 8 < mirrored < 32


@given(SIZES, st.integers(1, 4))
def test_cutout_is_one_rectangle_of_at_most_its_side(shape: tuple[int, ...], side: int) -> None:
    x = make_images(shape)
    with seeded_globals(0):
        found = Augment(0, flip="none", cutout=side).train()(x)
    assert torch.equal(found[found > 0], x[found > 0])
    for hole in (found == 0).all(1):
        rows, columns = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
        assert 1 <= len(rows) <= side
        assert 1 <= len(columns) <= side
        assert hole.sum() == len(rows) * len(columns)  # no gaps
        assert rows[-1] - rows[0] == len(rows) - 1


def test_cutout_covers_every_pixel_equally_often_in_the_middle() -> None:
    x = torch.ones(20_000, 1, 5, 5)
    with seeded_globals(0):
        cut = 1.0 - Augment(0, flip="none", cutout=2).train()(x).mean(0)[0]
    # the first row and column of the square are uniform on 6 places, and 2 × 2 of them cover a pixel
    torch.testing.assert_close(cut, torch.full((5, 5), 4 / 36), atol=5 * (4 / 36 / 20_000) ** 0.5, rtol=0.0)


def test_alternating_images_have_both_views_in_any_two_successive_passes() -> None:
    x = make_images((30, 3, 6, 6))
    augment = Augment(0, flip="alternating", rows=30).train()
    views = []
    for i in range(4):
        order = torch.randperm(30, generator=torch.Generator().manual_seed(i))
        found = torch.empty_like(x)
        for part in order.split(7):
            found[part] = augment(x[part])
        views.append((found == x).flatten(1).all(1))
    for before, after in itertools.pairwise(views):
        assert torch.equal(before, ~after)
    assert 5 < int(views[0].sum()) < 25  # of 30; a fair coin leaves this range once in 3,000 times


@given(SIZES)
def test_images_are_unchanged_in_evaluation_mode(shape: tuple[int, ...]) -> None:
    x = make_images(shape)
    assert torch.equal(Augment(2, cutout=3).eval()(x), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"padding": "black"}, "padding='black' was given; allowed are 'reflect' and 'zeros'"),
        ({"flip": "up"}, "flip='up' was given"),
        ({"flip": "alternating"}, "without rows="),
        ({"crop": -1}, "crop=-1 was given"),
        ({"cutout": 0.5}, "cutout=0.5 was given"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Augment(**options)


def test_images_that_are_too_small_or_no_images_are_refused() -> None:
    with pytest.raises(DataError, match="crop=6 was given for images of 6 × 8 pixels"):
        Augment(6).train()(make_images((2, 1, 6, 8)))
    with pytest.raises(DataError, match="cutout=9 was given for images of 9 × 12 pixels"):
        Augment(0, cutout=9).train()(make_images((2, 1, 9, 12)))
    with pytest.raises(DataError, match=r"images of shape \(2, 8, 8\) were given"):
        Augment().train()(make_images((2, 8, 8)))
    with pytest.raises(DataError, match="net is a Linear; an Architecture is allowed"):
        ImageInput(nn.Linear(2, 2), (0.0,), (1.0,))
    with pytest.raises(DataError, match="crop=-1 was given"):
        ImageInput(WideResNet(), (0.0,) * 3, (1.0,) * 3, crop=-1)


# ---- networks


def make_network(**options: Any) -> UnboundedDepth:
    """Return a small network of unbounded depth for images of 8 × 8 pixels."""
    settings: dict[str, Any] = {"mean": (128.0,), "std": (64.0,), "crop": 1, **options}
    net = ImageInput(WideResNet(channels=1, size=8, outputs=2, base=4, stages=(1, 1)), **settings)
    return UnboundedDepth(net.layer, net.head, seed=1)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("stages", "stride"), [((1, 1), 1), ((2, 1), 2), ((0, 0), 4), ((0, 2), 2), ((2, 0), 1)])
def test_wide_residual_networks_have_the_documented_shapes(norm: str, stages: tuple[int, int], stride: int) -> None:
    net = WideResNet(channels=2, size=16, outputs=3, base=4, stages=stages, stride=stride, norm=norm)
    hidden = torch.randn(2, 2, 16, 16)
    assert net.head(0)(hidden).shape == (2, 3)
    first, second = stages
    for depth in range(1, 6):
        hidden = net.layer(depth)(hidden)
        stage = (depth > first) + (depth > first + second)
        # one for each stage with blocks but the first one
        shrinkings = len({(k > first) + (k > first + second) for k in range(1, depth + 1)}) - 1
        size = -(-16 // stride // 2**shrinkings)
        assert hidden.shape == (2, 4 * 2**stage, size, size)
        assert net.head(depth)(hidden).shape == (2, 3)


def test_blocks_of_equal_shape_are_the_identity_at_first() -> None:
    net = WideResNet(size=8, base=4, stages=(2, 1))
    hidden = torch.randn(2, 16, 2, 2)
    torch.testing.assert_close(net.layer(5)(hidden), hidden)
    make_identity(net.layer(3))
    make_identity(net.layer(5))


@pytest.mark.parametrize(
    ("options", "name"), [({"stages": (1, -1)}, r"stages\[1\]"), ({"stages": 3}, "stages"), ({"base": 0}, "base")]
)
def test_impossible_networks_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(DataError, match=f"^{name}=.* was given"):
        WideResNet(**options)


class Linear(Architecture):
    """Linear maps of all pixels; every call returns the same modules."""

    def __init__(self) -> None:
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh())
        self.heads = [nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), nn.Linear(5, 3)]

    def layer(self, depth: int) -> nn.Module:
        return self.hidden

    def head(self, depth: int) -> nn.Module:
        return self.heads[depth]


@pytest.mark.parametrize("depth", [0, 1])
def test_predictions_are_averages_over_an_image_and_its_mirror(depth: int) -> None:
    net, x = Linear(), make_images((5, 1, 8, 8))

    def predict(average: bool, images: Tensor, *, training: bool = False) -> Tensor:
        made = ImageInput(net, (128.0,), (64.0,), crop=0, flip="none", average_flips=average)
        layers = [made.layer(k) for k in range(1, depth + 1)]
        f: Tensor = nn.Sequential(*layers, made.head(depth)).train(training)(images)
        return f

    expected = (predict(False, x) + predict(False, x.flip(-1))) / 2
    torch.testing.assert_close(predict(True, x), expected)
    torch.testing.assert_close(predict(True, x.flip(-1)), expected)
    torch.testing.assert_close(predict(True, x, training=True), predict(False, x))


def test_images_are_classified_by_a_posterior_over_depth_and_trainings_resume_to_the_same_bytes() -> None:
    """Bright squares on the left or on the right: mirroring would hide the class, so it is off."""
    x = make_images((400, 1, 8, 8)) // 4
    y = torch.arange(400) % 2
    x[y == 0, :, 2:5, 1:4] += 120
    x[y == 1, :, 2:5, 4:7] += 120
    train, valid = Rows(x[:300], y[:300]), Rows(x[300:], y[300:])
    training = Training(epochs=6, batch_size=50, learning_rate=0.01)

    def run(stop_at: int | None = None, state: Any = None) -> tuple[UnboundedDepth, Any, Any]:
        model, kept = make_network(flip="none", cutout=2), []

        def pause(run: Run) -> None:
            if run.epoch == stop_at:
                kept.append(({k: v.clone() for k, v in run.tensors().items()}, run.meta()))
                run.pause = True

        likelihood = Categorical(2, smoothing=0.1)
        search = StructureSearch(training.epochs, first=3)
        try:
            fitted = fit(
                model, likelihood, train, valid, training=training, search=search, callbacks=[pause], resume=state
            )
        except PausedError:
            return model, None, kept[0]
        return model, fitted, None

    model, fitted, _ = run()
    assert fitted.score > -0.25
    again, resumed, _ = run(state=run(stop_at=3)[2])
    assert resumed.history == fitted.history
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_images_exit_early_with_averages_over_mirror_images() -> None:
    """Every image keeps its own hidden state, so that images can be dropped one by one."""
    model = make_network(average_flips=True)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(p.numel()))
    model.eval()
    x = make_images((20, 1, 8, 8))
    label, stopped = classify_early(model, x)
    draws = model.draw(x)
    mixture = (draws.log_weight.exp()[:, None, None] * draws.f.softmax(-1)).sum(0)
    assert torch.equal(label, mixture.argmax(-1))
    assert int(stopped.min()) < int(stopped.max())
