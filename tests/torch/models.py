"""Small models of the usual kinds, written with PyTorch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norm1(self.first(x)), inplace=True)
        y = self.norm2(self.second(y))
        y += self.skip(x)
        return y.relu_()


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        return self.head(
            torch.flatten(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1)
        )


class Inverted(nn.Module):
    """MobileNet's block: wide, by channels, narrow, with a gate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 4 * channels
        self.expand = nn.Sequential(
            nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6()
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, 4, 1),
            nn.ReLU(),
            nn.Conv2d(4, wide, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels))

    def forward(self, x: Any) -> Any:
        y = self.depth(self.expand(x))
        return x + self.project(y * self.gate(y))


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Inverted(8), Inverted(8))
        self.head = nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 5))

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 17, 16) * 0.02)
        layer = nn.TransformerEncoderLayer(
            16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(16), enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        rows = self.patches(x).flatten(2).transpose(1, 2)
        token = self.token.expand(x.shape[0], -1, -1)
        return self.head(self.encoder(torch.cat([token, rows], 1) + self.places)[:, 0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down2 = nn.Sequential(
            nn.Conv2d(8, 16, 3, 1, 1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.1)
        )
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(functional.max_pool2d(a, 2))
        smooth = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(torch.cat([a, self.up(b)], 1)) + smooth[:, :2]


class Bert(nn.Module):
    """Words with a mask of those that are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(2, 16)
        self.places = nn.Embedding(32, 16)
        self.register_buffer("position_ids", torch.arange(32)[None], persistent=False)
        self.norm = nn.LayerNorm(16)
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.wide, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, words: Any, mask: Any, kinds: Any = None) -> Any:
        batch, length = words.shape
        x = self.words(words) + self.places(self.position_ids[:, :length])
        if kinds is not None:
            x = x + self.kinds(kinds)
        x = self.norm(x)
        q, k, v = (
            p(x).view(batch, length, 2, 8).transpose(1, 2)
            for p in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / 8**0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, torch.finfo(scores.dtype).min)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 16)
        x = self.norm(x + self.out(y))
        x = self.norm(x + self.narrow(functional.gelu(self.wide(x))))
        return {
            "last": x,
            "pooled": (x[:, 0].tanh(), (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)),
        }


class GPT(nn.Module):
    """Causal attention, RMS norms, rotary positions, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.norm1, self.norm2 = nn.RMSNorm(16), nn.RMSNorm(16)
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Any) -> Any:
        batch, length = words.shape
        x = self.words(words)
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, 2, 8).transpose(1, 2) for t in (q, k, v))
        angles = torch.outer(
            torch.arange(length, device=words.device).float(), 10000.0 ** (-torch.arange(4) / 4)
        )
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        q, k = (t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin for t in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 16))
        z = self.norm2(x)
        return self.head(x + self.down(functional.silu(self.gate(z)) * self.up(z)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Any) -> Any:
        x, (_, cell) = self.lstm(self.words(words))
        y, last = self.gru(x)
        return self.head(y[:, -1] + last[0]), cell


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.depth = nn.Conv2d(8, 8, 7, padding="same", groups=8)
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.1))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y), approximate="tanh"))
        return self.head((x + y.permute(0, 3, 1, 2)).mean([-2, -1]))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ELU(), nn.Linear(16, 4))
        self.decoder = nn.Sequential(
            nn.Linear(4, 16),
            nn.PReLU(16),
            nn.Linear(16, 48),
            nn.Sigmoid(),
            nn.Unflatten(1, (3, 4, 4)),
        )

    def forward(self, x: Any) -> Any:
        code = self.encoder(x)
        y = self.decoder(functional.normalize(code, dim=1))
        return y, functional.mse_loss(y, x) + 0.1 * code.abs().mean()


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.ConvTranspose2d(6, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True)),
            *(nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.BatchNorm2d(8), nn.Softplus()),
            *(nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()),
        )

    def forward(self, noise: Any) -> Any:
        return self.body(noise[:, :, None, None])


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(40, 8, mode="mean")
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 3))

    def forward(self, words: Any, starts: Any) -> Any:
        return self.head(self.bag(words, starts)).log_softmax(-1)


class SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(2),
            nn.Conv2d(3, 8, 5),
            nn.PReLU(),
            nn.Conv2d(8, 12, 3, 1, 1),
            nn.PixelShuffle(2),
        )

    def forward(self, x: Any) -> Any:
        return (self.body(x) + functional.interpolate(x, scale_factor=2, mode="nearest")).clamp(
            -2, 2
        )


class Mixture(nn.Module):
    """Experts, of which the two best are mixed for each row; positions by top-k and one-hot."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, 8) * 0.3)

    def forward(self, x: Any) -> Any:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        mixed = torch.einsum("bd,edf->bef", x, self.experts)
        taken = mixed.gather(1, chosen[..., None].expand(-1, -1, 8))
        counts = functional.one_hot(chosen, 4).sum((0, 1))
        return (taken * weights[..., None]).sum(1), counts, torch.cumsum(weights, 0).var(1)


class Example(NamedTuple):
    """A model, and how its inputs are made for a size of the batch."""

    model: type[nn.Module]
    kinds: tuple[tuple[Any, ...], ...]
    """Of each input its sizes behind the batch; in front of integers their number of values."""
    is_batched: bool = True

    def inputs(self, batch: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(batch)
        made = []
        for kind in self.kinds:
            values, *sizes = kind
            if values == 0:
                made.append(torch.randn(batch, *sizes, generator=generator))
            elif values == 2:
                made.append(
                    (torch.arange(sizes[0]) < torch.arange(batch)[:, None] % sizes[0] + 2).long()
                )
            else:
                made.append(torch.randint(0, values, (batch, *sizes), generator=generator))
        return tuple(made)


EXAMPLES = (
    Example(ResNet, ((0, 3, 24, 24),)),
    Example(MobileNet, ((0, 3, 16, 16),)),
    Example(ViT, ((0, 3, 16, 16),)),
    Example(UNet, ((0, 3, 16, 16),)),
    Example(Bert, ((50, 7), (2, 7))),
    Example(GPT, ((40, 9),)),
    Example(Recurrent, ((30, 5),)),
    Example(ConvNeXt, ((0, 3, 16, 16),)),
    Example(Autoencoder, ((0, 3, 4, 4),)),
    Example(Generator, ((0, 6),)),
    Example(SuperResolution, ((0, 3, 8, 8),)),
    Example(Mixture, ((0, 8),)),
)
