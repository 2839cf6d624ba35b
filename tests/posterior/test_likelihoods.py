import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import distributions

from fathomless.posterior import mixtures
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, LocationScale, StudentT
from fathomless.system.errors import DataError

CONTINUOUS = [Gaussian, Laplace, StudentT]
NOISES = ["learned", "input", 0.3]
LAWS = [
    *((family.__name__, family, {}) for family in CONTINUOUS),
    ("StudentT near its bound", StudentT, {"df": 2.1}),
    ("StudentT learned", StudentT, {"df": "learned"}),
]


@dataclass(frozen=True, eq=False)
class LogisticLaw(mixtures.Component):
    """A law that the library does not have."""

    @staticmethod
    def energy(z):
        return z.abs() + 2.0 * torch.log1p(torch.exp(-z.abs()))

    @staticmethod
    def log_constant():
        return 0.0

    def standard_cdf(self, z):
        return z.sigmoid()

    def standard_icdf(self, p):
        return torch.logit(p)

    def standard_variance(self):
        return torch.full_like(self.loc, math.pi**2 / 3.0)

    def standard_sample(self, generator):
        return torch.logit(torch.rand(self.loc.shape, generator=generator, dtype=torch.float64))


class Logistic(LocationScale):
    def law(self):
        return LogisticLaw, ()


def batch(likelihood, s=4, b=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    f = torch.randn(s, b, likelihood.outputs, generator=g, dtype=torch.float64)
    y = torch.randn(b, likelihood.targets, generator=g, dtype=torch.float64)
    return f, y


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("targets", [1, 3])
def test_gaussian_log_prob_matches_torch_and_scipy(noise, targets):
    likelihood = Gaussian(targets, noise).double()
    f, y = batch(likelihood)
    with torch.no_grad():
        law = likelihood.components(f)
    ours = likelihood.log_prob(f, y)
    assert ours.shape == (4, 6)
    torch.testing.assert_close(ours, distributions.Normal(law.loc, law.scale).log_prob(y).sum(-1))
    np.testing.assert_allclose(ours.detach(), stats.norm(law.loc, law.scale).logpdf(y).sum(-1), rtol=1e-10)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("targets", [1, 3])
def test_laplace_log_prob_matches_torch_and_scipy(noise, targets):
    likelihood = Laplace(targets, noise).double()
    f, y = batch(likelihood)
    with torch.no_grad():
        law = likelihood.components(f)
    ours = likelihood.log_prob(f, y)
    torch.testing.assert_close(ours, distributions.Laplace(law.loc, law.scale).log_prob(y).sum(-1))
    np.testing.assert_allclose(ours.detach(), stats.laplace(law.loc, law.scale).logpdf(y).sum(-1), rtol=1e-10)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("df", [2.5, 30.0, "learned"])
@pytest.mark.parametrize("targets", [1, 3])
def test_student_log_prob_matches_torch_and_scipy(noise, df, targets):
    likelihood = StudentT(targets, df, noise).double()
    f, y = batch(likelihood)
    with torch.no_grad():
        law = likelihood.components(f)
    ours = likelihood.log_prob(f, y)
    theirs = distributions.StudentT(law.df, law.loc, law.scale).log_prob(y).sum(-1)
    torch.testing.assert_close(ours, theirs)
    expected = stats.t(law.df, law.loc, law.scale).logpdf(y).sum(-1)
    np.testing.assert_allclose(ours.detach(), expected, rtol=1e-10)


def test_categorical_log_prob_matches_torch_and_scipy():
    f = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([0, 4, 2, 2, 1, 3])
    ours = Categorical(5).log_prob(f, y)
    torch.testing.assert_close(ours, distributions.Categorical(logits=f).log_prob(y))
    probs = Categorical(5).components(f).log_probs.exp()
    np.testing.assert_allclose(ours[1, 1], stats.multinomial(1, probs[1, 1].numpy()).logpmf(np.eye(5)[4]), rtol=1e-12)


@pytest.mark.parametrize("targets", [1, 3])
def test_bernoulli_log_prob_matches_torch_and_scipy(targets):
    likelihood = Bernoulli(targets)
    f, y = batch(likelihood)
    y = (y > 0).long()
    ours = likelihood.log_prob(f, y)
    torch.testing.assert_close(ours, distributions.Bernoulli(logits=f).log_prob(y.double()).sum(-1))
    np.testing.assert_allclose(ours, stats.bernoulli(f.sigmoid().numpy()).logpmf(y).sum(-1), rtol=1e-10)


def test_bernoulli_prediction_is_its_mass():
    f, y = batch(Bernoulli())
    y = (y > 0).double()
    probs = Bernoulli().components(f).log_probs
    picked = torch.where(y.squeeze(-1) > 0, probs[..., 1], probs[..., 0])
    torch.testing.assert_close(picked, Bernoulli().log_prob(f, y))


@pytest.mark.parametrize("family", CONTINUOUS)
@pytest.mark.parametrize("noise", NOISES)
def test_components_are_the_law_that_is_trained(family, noise):
    likelihood = family(2, noise=noise).double()
    f, y = batch(likelihood)
    law = likelihood.components(f)
    assert law.loc.shape == law.scale.shape == (4, 6, 2)
    assert law.loc.dtype == torch.float64
    assert law.scale.requires_grad == any(p.requires_grad for p in likelihood.parameters())
    torch.testing.assert_close(law.log_prob(y).sum(-1), likelihood.log_prob(f, y))


@pytest.mark.parametrize(("family", "options"), [law[1:] for law in LAWS], ids=[law[0] for law in LAWS])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-12)])
def test_every_law_is_trained_and_predicted_with_one_density(family, options, noise, targets, dtype, tolerance):
    likelihood = family(targets, noise=noise, **options).to(dtype)
    f, y = (values.to(dtype) for values in batch(likelihood))
    law, ours = likelihood.components(f), likelihood.log_prob(f, y)
    assert type(law) is likelihood.law()[0]
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), law.log_prob(y.double()).sum(-1), rtol=tolerance, atol=tolerance)
    mixture = mixtures.Mixture(torch.zeros(4), law)
    assert mixture.log_prob(y.double()).shape == (6, targets)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_the_density_of_a_law_is_written_once(family, monkeypatch):
    """What changes the energy, or the constant, of a law changes its training and its prediction alike."""
    likelihood = family(2, noise="input").double()
    f, y = batch(likelihood)
    law = likelihood.components(f)
    before = likelihood.log_prob(f, y)
    energy, constant = type(law).energy, type(law).log_constant
    monkeypatch.setattr(type(law), "energy", staticmethod(lambda z, *shape: 3.0 * energy(z, *shape)))
    monkeypatch.setattr(type(law), "log_constant", staticmethod(lambda *shape: constant(*shape) - 1.0))
    after = likelihood.log_prob(f, y)
    assert (after < before - 1.0).all()
    torch.testing.assert_close(law.log_prob(y).sum(-1), after)


@pytest.mark.parametrize("noise", NOISES)
def test_a_new_law_is_one_component_and_its_name(noise):
    likelihood = Logistic(2, noise=noise).double()
    f, y = batch(likelihood)
    with torch.no_grad():
        law = likelihood.components(f)
    expected = stats.logistic(law.loc, law.scale)
    np.testing.assert_allclose(likelihood.log_prob(f, y).detach(), expected.logpdf(y).sum(-1), rtol=1e-10)
    mixture = mixtures.Mixture(torch.zeros(4), law)
    np.testing.assert_allclose(mixture.cdf(y), expected.cdf(y).mean(0), rtol=1e-10)
    torch.testing.assert_close(mixture.cdf(mixture.icdf(0.9)), torch.full((6, 2), 0.9, dtype=torch.float64))


def test_options_are_plain_attributes():
    """Trainings side by side compare likelihoods by them."""

    def plain(likelihood):
        parts = ((type(part).__name__, vars(part)) for part in likelihood.modules())
        return [(name, {k: v for k, v in held.items() if isinstance(v, int | float | str)}) for name, held in parts]

    for make in (Gaussian, Laplace, StudentT):
        assert plain(make(2, noise="input")) == plain(make(2, noise="input"))
    different = [
        *(make() for make in CONTINUOUS),
        Gaussian(2),
        Gaussian(noise="input"),
        Gaussian(noise=0.3),
        Gaussian(noise=0.4),
        Gaussian(min_noise=1e-2),
        Gaussian(noise="input", initial_noise=0.6),
        StudentT(df=5.0),
        StudentT(df="learned"),
    ]
    assert len({repr(plain(likelihood)) for likelihood in different}) == len(different)


def test_location_scale_is_no_law_of_its_own():
    with pytest.raises(TypeError, match="abstract"):
        LocationScale()


def test_gradient_of_learned_log_noise_is_known():
    """d/d log sigma of sum_n E_s log p = N (E e^2 / sigma^2 - 1), for draws s of equal weight."""
    likelihood = Gaussian(noise="learned", initial_noise=0.4).double()
    f, y = batch(likelihood, s=3, b=50)
    likelihood.log_prob(f, y).mean(0).sum().backward()
    expected = 50 * ((y - f).square().mean() / 0.4**2 - 1)
    floor = 1 - 1e-3**2 / 0.4**2  # d log sigma / d parameter
    assert likelihood.noise.raw.grad.item() == pytest.approx(expected.item() * floor, rel=1e-6)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_initial_noise_is_kept(family):
    for noise in ("learned", "input"):
        likelihood = family(2, noise=noise, initial_noise=0.7).double()
        scale = likelihood.components(torch.zeros(1, 3, likelihood.outputs)).scale
        torch.testing.assert_close(scale, torch.full((1, 3, 2), 0.7, dtype=torch.float64), atol=1e-6, rtol=0)


@settings(deadline=None)
@given(raw=st.floats(-300, 300), family=st.sampled_from(CONTINUOUS))
def test_predicted_noise_is_above_its_floor_and_never_stops_learning(raw, family):
    likelihood = family(noise="input", min_noise=1e-4)
    f = torch.tensor([[[0.0, raw]]], requires_grad=True)
    log_scale = likelihood.noise.split(f)[1]
    assert log_scale.item() >= math.log(1e-4)
    log_scale.sum().backward()
    assert f.grad[..., 1].item() > 1e-6
    assert likelihood.log_prob(f.detach(), torch.tensor([[0.5]])).isfinite().all()


@settings(deadline=None)
@given(raw=st.floats(-50, 20))
def test_learned_noise_is_above_its_floor(raw):
    likelihood = Gaussian(min_noise=1e-2)
    torch.nn.init.constant_(likelihood.noise.raw, raw)
    sd = likelihood.noise.log_scale().exp().item()
    assert sd == pytest.approx(math.hypot(math.exp(raw), 1e-2), rel=1e-4)


def test_learned_degrees_of_freedom_start_at_four_and_keep_a_variance():
    likelihood = StudentT(2, "learned")
    torch.testing.assert_close(likelihood.df(), torch.tensor([4.0, 4.0]))
    for raw, expected in ((-1e4, 200.0), (1e4, 2.05)):
        torch.nn.init.constant_(likelihood.raw_df, raw)
        torch.testing.assert_close(likelihood.df(), torch.full((2,), expected))


def test_degrees_of_freedom_are_learned_from_the_tail():
    data = torch.tensor(stats.t(3.0).rvs(400, random_state=0))[:, None]
    likelihood = StudentT(1, "learned", initial_noise=2.0).double()
    optimiser = torch.optim.LBFGS(likelihood.parameters(), max_iter=50)

    def loss():
        optimiser.zero_grad()
        value = -likelihood.log_prob(torch.zeros(1, 400, 1, dtype=torch.float64), data).mean()
        value.backward()
        return value

    optimiser.step(loss)
    df, _, scale = stats.t.fit(data.numpy().ravel(), floc=0.0)
    assert likelihood.df().item() == pytest.approx(df, rel=1e-2)
    assert likelihood.noise.log_scale().exp().item() == pytest.approx(scale, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "likelihood",
    [
        *(family(noise=noise) for family in CONTINUOUS for noise in NOISES),
        StudentT(df="learned"),
        Bernoulli(),
    ],
    ids=repr,
)
def test_log_prob_keeps_the_dtype_of_f(likelihood, dtype):
    f = torch.zeros(2, 3, likelihood.outputs, dtype=dtype, requires_grad=True)
    out = likelihood.log_prob(f, torch.zeros(3, 1, dtype=torch.float64))
    assert out.dtype == dtype
    out.sum().backward()
    assert f.grad.isfinite().all()


@pytest.mark.parametrize("family", CONTINUOUS)
def test_gradients_match_finite_differences(family):
    likelihood = family(2, noise="input").double()
    f, y = batch(likelihood, s=2, b=3)
    assert torch.autograd.gradcheck(lambda f: likelihood.log_prob(f, y), (f.requires_grad_(),))


def test_known_noise_has_no_parameter_and_survives_a_cast():
    likelihood = Gaussian(noise=0.1)
    assert not list(likelihood.parameters())
    law = likelihood.components(torch.zeros(1, 1, 1, dtype=torch.float64))
    assert law.scale.item() == pytest.approx(0.1, rel=1e-15)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_a_wider_copy_has_a_larger_learned_scale_and_leaves_the_first_alone(family):
    likelihood = family(2).double()
    f, y = batch(likelihood)
    scale = likelihood.noise.log_scale().exp().detach()
    wider = likelihood.widen(3.0)
    torch.testing.assert_close(wider.noise.log_scale().exp(), 3.0 * scale)
    torch.testing.assert_close(likelihood.noise.log_scale().exp(), scale)
    # y / 3 under the first is y under the wider one, with the Jacobian
    torch.testing.assert_close(wider.log_prob(3.0 * f, 3.0 * y), likelihood.log_prob(f, y) - 2.0 * math.log(3.0))
    known = family(2, noise=0.3).double()
    f, y = batch(known)
    assert torch.equal(known.widen(3.0).log_prob(f, y), known.log_prob(f, y))


@pytest.mark.parametrize("family", CONTINUOUS)
def test_a_predicted_scale_has_a_factor_only_if_it_is_added(family):
    likelihood = family(2, noise="input")
    assert not any("factor" in name for name in likelihood.state_dict())
    f, y = batch(likelihood)
    before, scale = likelihood.log_prob(f, y), likelihood.components(f).scale
    likelihood.add_factor()
    assert torch.equal(likelihood.log_prob(f, y), before)
    likelihood.noise.rescale(torch.tensor([2.0, 0.5]))
    likelihood.add_factor()  # there is one
    torch.testing.assert_close(likelihood.components(f).scale, scale * torch.tensor([2.0, 0.5]).double())
    wider = likelihood.widen(3.0)
    torch.testing.assert_close(wider.components(f).scale, scale * torch.tensor([6.0, 1.5]).double())
    torch.testing.assert_close(likelihood.components(f).scale, scale * torch.tensor([2.0, 0.5]).double())
    again = family(2, noise="input")
    again.add_factor(torch.zeros(1, dtype=torch.float64))
    assert again.noise.log_factor.dtype == torch.float64
    again.to(torch.float32).load_state_dict(likelihood.state_dict())
    assert torch.equal(again.log_prob(f, y), likelihood.log_prob(f, y))
    assert torch.equal(again.components(f).scale, likelihood.components(f).scale)


@pytest.mark.parametrize("family", CONTINUOUS)
def test_predicted_scales_are_at_most_ten_and_can_shrink(family):
    likelihood = family(1, noise="input")
    f = torch.tensor([[[0.0, 30.0]], [[0.0, -1.0]]], dtype=torch.float64, requires_grad=True)
    scale = likelihood.components(f).scale
    assert scale[0].item() == pytest.approx(10.0)
    assert scale[1].item() < 1.0
    loss = -likelihood.log_prob(f, torch.zeros(1, 1, dtype=torch.float64)).sum()
    assert torch.autograd.grad(loss, f)[0][0, 0, 1] > 0.5  # a step of descent decreases the scale


def test_wider_classes_are_warmer():
    f, y = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0])
    once = Categorical(4).widen(2.0)
    torch.testing.assert_close(once.log_prob(f, y), Categorical(4).log_prob(f / 2.0, y))
    torch.testing.assert_close(once.widen(1.5).log_prob(f, y), Categorical(4).log_prob(f / 3.0, y))


def test_learned_noise_is_in_the_state():
    first, second = StudentT(2, "learned"), StudentT(2, "learned", initial_noise=0.9)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.noise.raw, second.noise.raw)
    assert set(first.state_dict()) == {"noise.raw", "raw_df"}


def test_outputs_say_what_the_network_must_give():
    assert Gaussian(3).outputs == 3
    assert Gaussian(3, "input").outputs == 6
    assert Categorical(7).outputs == 7
    assert Bernoulli(2).outputs == 2
    assert [likelihood.discrete for likelihood in (Gaussian(), Categorical(2), Bernoulli())] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0),
        lambda: Gaussian(1.5),
        lambda: Gaussian(True),
        lambda: Gaussian(noise=-1.0),
        lambda: Gaussian(noise=0.0),
        lambda: Gaussian(noise=math.nan),
        lambda: Gaussian(noise=math.inf),
        lambda: Gaussian(noise=True),
        lambda: Gaussian(noise="constant"),
        lambda: Laplace(noise=-1.0),
        lambda: Gaussian(initial_noise=1e-4),
        lambda: Gaussian(min_noise=0.0),
        lambda: StudentT(df=2.0),
        lambda: StudentT(df=math.inf),
        lambda: StudentT(df=math.nan),
        lambda: StudentT(df="free"),
        lambda: Categorical(1),
        lambda: Bernoulli(0),
    ],
)
def test_bad_options_are_refused(make):
    with pytest.raises(DataError, match="was given as"):
        make()


@pytest.mark.parametrize(
    ("likelihood", "f", "y"),
    [
        (Gaussian(), (2, 3, 2), (3, 1)),
        (Gaussian(), (3, 1), (3, 1)),
        (Gaussian(), (2, 3, 1), (3,)),
        (Gaussian(2), (2, 3, 2), (3, 1)),
        (Gaussian(noise="input"), (2, 3, 1), (3, 1)),
        (StudentT(), (2, 3, 1), (4, 1)),
        (Laplace(), (2, 3, 1), (1, 1)),
        (Bernoulli(), (2, 3, 1), (3,)),
        (Categorical(3), (2, 3, 3), (3, 1)),
        (Categorical(3), (2, 3, 4), (3,)),
    ],
    ids=repr,
)
def test_shapes_that_do_not_fit_are_refused(likelihood, f, y):
    with pytest.raises(DataError, match="allowed is"):
        likelihood.log_prob(torch.zeros(f), torch.zeros(y, dtype=torch.int64))
