"""Images: normalisation, augmentation in training, and averages over mirrored images in predictions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn

from fathomless.nn.architectures import Architecture
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["Augment", "ImageInput", "Normalize"]

_FLIPS = ("none", "random", "alternating")
_MIX = 0x9E3779B1  # odd, so that its multiples modulo 2³² are those of a shuffled order


class Normalize(nn.Module):
    """(x − mean) / std for each channel of images (B, C, H, W), which may be bytes. The state contains mean and std.

    Parameters
    ----------
    mean, std : sequence of float
        One number for each channel, in the units of the images: for bytes, between 0 and 255.
    channels_last : bool
        If true, return tensors whose channels are adjacent in memory on GPUs, where convolutions of them are faster. On
        processors the channels are never adjacent, since the backward pass of torch 2.13 then crashes for some sizes.

    Raises
    ------
    DataError
        If there is not one finite mean and one positive std for each channel, or images have another shape.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], channels_last: bool = False) -> None:
        super().__init__()
        numbers: list[object] = [value for given in (mean, std) if isinstance(given, Sequence) for value in given]
        proper = all(isinstance(value, Real) and math.isfinite(value) for value in numbers)
        if not numbers or 2 * len(std) != len(numbers) or not proper or min(std) <= 0.0:
            raise DataError(
                f"mean={mean!r:.60} and std={std!r:.60} were given; give two tuples, with a finite mean and a std > 0 "
                "for each channel"
            )
        self.channels_last = channels_last
        for name, value in (("mean", mean), ("std", std)):
            column = torch.tensor(value, dtype=torch.float32, device="cpu")[:, None, None]
            self.register_buffer(name, column)

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised images of the same shape."""
        channels = len(self.mean)
        if x.ndim != 4 or x.shape[1] != channels:
            advice = "mean and std need one number for each channel"
            if x.ndim == 4 and x.shape[3] == channels:
                advice = "use x.permute(0, 3, 1, 2) for channels in the last place"
            elif x.ndim == 3:
                advice = "use x[:, None] for grey images without an axis of channels, and x[None] for one image"
            raise DataError(
                f"images of shape {tuple(x.shape)} were given; allowed is (B, {channels}, height, width): {advice}"
            )
        form = torch.channels_last if self.channels_last and x.is_cuda else torch.contiguous_format
        return ((x.to(self.mean.dtype) - self.mean) / self.std).contiguous(memory_format=form)


class Augment(nn.Module):
    """Random crops, mirroring and cutout of images (B, C, H, W). In evaluation mode images are unchanged.

    Random numbers come from torch's global generator of the device, which
    :func:`~fathomless.inference.variational.svi.fit` seeds in every epoch.

    Parameters
    ----------
    crop : int
        Largest shift in pixels. A crop of the size of the image is taken at a random place of the image with `crop`
        further pixels on each side; 0 for none.
    padding : {"reflect", "zeros"}
        Values of these pixels: the image reflected at its edges, or zeros.
    flip : {"none", "random", "alternating"}
        Mirror left and right: with probability ½, or in every second pass over the data. Alternating images are
        mirrored in the odd or in the even passes, by a hash of their pixels, so that two successive passes have both
        views of every image. The pixels must be the same in every pass, without random changes in a loader, and the
        training must have one process.
    cutout : int
        Side of a square at a random place that is set to zero, in pixels; 0 for none. Normalise the images first: zero
        is then the mean.
    rows : int, optional
        Number of images in a pass, required for alternating images. If the weights are drawn several times in a step,
        multiply it by the number of draws.

    Raises
    ------
    DataError
        If an option is not allowed, or the images are too small for the crop or the cutout.

    References
    ----------
    T. DeVries and G. Taylor, "Improved regularization of convolutional neural networks with cutout", 2017. K. Jordan,
    "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024 (alternating flip).
    """

    seen: Tensor

    def __init__(
        self, crop: int = 4, *, padding: str = "reflect", flip: str = "random", cutout: int = 0, rows: int | None = None
    ) -> None:
        super().__init__()
        checks.choice("padding", padding, ("reflect", "zeros"))
        checks.choice("flip", flip, _FLIPS)
        for name, value in (("crop", crop), ("cutout", cutout)):
            checks.whole(name, value, least=0)
        if flip == "alternating" and rows is None:
            raise DataError("flip='alternating' was given without rows=, the number of images in a pass; give it")
        self.crop, self.padding, self.flip, self.cutout = crop, padding, flip, cutout
        self.rows = 1 if rows is None else checks.whole("rows", rows)
        if flip == "alternating":
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64, device="cpu"))  # images in training so far

    def forward(self, x: Tensor) -> Tensor:
        """Return images of the same shape."""
        if not self.training:
            return x
        if x.ndim != 4:
            raise DataError(f"images of shape {tuple(x.shape)} were given; allowed is (B, C, height, width)")
        for name, pixels in (("crop", self.crop), ("cutout", self.cutout)):
            if pixels and pixels >= min(x.shape[2:]):
                size = f"{x.shape[2]} × {x.shape[3]} pixels"
                raise DataError(f"{name}={pixels} was given for images of {size}; it must be smaller")
        mirrored = self._choose_mirrored(x)
        if self.crop or mirrored is not None:
            x = self._shift(x, mirrored)
        return self._cut(x) if self.cutout else x

    def _choose_mirrored(self, x: Tensor) -> Tensor | None:
        """Return whether each image is mirrored, (B, 1)."""
        if self.flip == "none":
            return None
        if self.flip == "random":
            return torch.rand(len(x), 1, device=x.device) < 0.5
        # the sum of the pixels does not depend on the order in which a device adds whole numbers
        sums = (x.flatten(1) * 1024.0).to(torch.int64).sum(1, keepdim=True)
        order = self.seen + torch.arange(len(x), device=x.device)[:, None]
        self.seen += len(x)
        return ((((sums * _MIX) >> 15) + order // self.rows) % 2).bool()

    def _shift(self, x: Tensor, mirrored: Tensor | None) -> Tensor:
        batch, _, height, width = x.shape
        p = self.crop
        down, right = torch.randint(-p, p + 1, (2, batch, 1), device=x.device)
        row = down + torch.arange(height, device=x.device)  # (B, H)
        column = torch.arange(width, device=x.device)
        column = right + (column if mirrored is None else torch.where(mirrored, width - 1 - column, column))  # (B, W)
        if self.padding == "zeros":
            x = nn.functional.pad(x, (p, p, p, p))
            row, column = row + p, column + p
        else:
            row, column = (
                (size - 1) - (size - 1 - place.abs()).abs() for size, place in ((height, row), (width, column))
            )
        image = torch.arange(batch, device=x.device)[:, None, None]
        shifted = x.permute(0, 2, 3, 1)[image, row[:, :, None], column[:, None, :]].permute(0, 3, 1, 2)  # (B, C, H, W)
        return shifted if x.is_cuda else shifted.contiguous()

    def _cut(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        inside = []
        for size in (height, width):
            first = torch.randint(1 - self.cutout, size, (batch, 1), device=x.device)
            place = torch.arange(size, device=x.device)
            inside.append((place >= first) & (place < first + self.cutout))  # (B, size)
        return x.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0)


class _Views(nn.Module):
    """In evaluation mode, images and their mirror images, (B, 2, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else torch.stack([x, x.flip(-1)], 1)


class _EachView(nn.Module):
    """A layer that is applied to both views in evaluation mode, or a head whose outputs are their mean."""

    def __init__(self, part: nn.Module, mean: bool = False) -> None:
        super().__init__()
        self.part = part
        self.mean = mean

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            output: Tensor = self.part(hidden)
            return output
        output = self.part(hidden.flatten(0, 1)).unflatten(0, (-1, 2))
        return output.mean(1) if self.mean else output


@dataclass(frozen=True)
class ImageInput(Architecture):
    """An architecture for images with normalisation, augmentation, and predictions averaged over mirror images.

    Layer 1 begins with :class:`Normalize` and :class:`Augment`. Depth 0, a linear model, has no augmentation.

    Parameters
    ----------
    net : Architecture
        Layers and heads for normalised images.
    mean, std : sequence of float
        Mean and standard deviation of each channel, in the units of the images.
    crop, padding, flip, cutout, rows
        See :class:`Augment`.
    average_flips : bool
        If true, the outputs of the network in evaluation mode are the means of those for an image and for its mirror
        image. Predictions then take twice as long.
    channels_last : bool
        See :class:`Normalize`.

    Examples
    --------
    >>> from fathomless.nn.architectures import WideResNet
    >>> net = ImageInput(WideResNet(size=8, base=4), mean=(127.5,) * 3, std=(64.0,) * 3, crop=1)
    >>> images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="cpu")
    >>> net.head(1)(net.layer(1)(images)).shape
    torch.Size([2, 10])
    """

    net: Architecture
    mean: Sequence[float]
    std: Sequence[float]
    crop: int = 4
    padding: str = "reflect"
    flip: str = "random"
    cutout: int = 0
    rows: int | None = None
    average_flips: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.net, Architecture):
            raise DataError(f"net is a {type(self.net).__name__}; an Architecture is allowed, such as WideResNet()")
        self._normalize()
        self._augment()

    def layer(self, depth: int) -> nn.Module:
        """Build a layer; the first one also has the preprocessing."""
        layer = _EachView(self.net.layer(depth)) if self.average_flips else self.net.layer(depth)
        return layer if depth > 1 else nn.Sequential(self._normalize(), self._augment(), *self._views(), layer)

    def head(self, depth: int) -> nn.Module:
        """Build a head; that of depth 0 has the normalisation, without augmentation."""
        head = _EachView(self.net.head(depth), mean=True) if self.average_flips else self.net.head(depth)
        return nn.Sequential(self._normalize(), *self._views(), head) if depth == 0 else head

    def _normalize(self) -> Normalize:
        return Normalize(self.mean, self.std, self.channels_last)

    def _augment(self) -> Augment:
        return Augment(self.crop, padding=self.padding, flip=self.flip, cutout=self.cutout, rows=self.rows)

    def _views(self) -> list[nn.Module]:
        return [_Views()] if self.average_flips else []
