"""Small programs as PyTorch's tutorials have them. Each returns the losses of its steps.

`test_programs.py` runs them as they are, and with other lines of imports for ferrule.
"""

import numpy as np
import torch
from torch import nn, optim, tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


def numbers(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def classes(*shape, below, seed=0):
    return tensor(np.random.default_rng(seed).integers(0, below, shape))


def start(model):
    """The same small weights everywhere."""
    state = model.state_dict()
    named = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for seed, name in enumerate(sorted(named)):
        state[name] = numbers(*state[name].shape, seed=seed) * 0.3
    model.load_state_dict(state)
    return model


class Cubic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(tensor([0.1]))
        self.b = nn.Parameter(tensor([0.2]))
        self.c = nn.Parameter(tensor([0.3]))

    def forward(self, x):
        return self.a + self.b * x + self.c * x**3


def fit_a_curve():
    x = torch.linspace(-1, 1, 50)
    y = torch.sin(x * 3)
    model = Cubic()
    criterion = nn.MSELoss(reduction="sum")
    optimizer = optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = criterion(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.stack = nn.Sequential(
            nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)
        )

    def forward(self, x):
        return self.stack(self.flatten(x))


def classify_images():
    model = start(Perceptron())
    x, y = numbers(20, 4, 4), classes(20, below=5)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    model.train()
    for _ in range(8):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(F.cross_entropy(model(x), y).item())
    return losses


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(8 * 3 * 3, 3)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


def train_and_evaluate_convolutions():
    model = start(Convolutional())
    x, y = numbers(6, 1, 8, 8), classes(6, below=3)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(4):
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(F.nll_loss(model(x), y).item())
    return losses


def compress_and_restore():
    encoder = nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 2))
    decoder = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 12))
    model = start(nn.Sequential(encoder, decoder)).train()
    optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    x = numbers(10, 12)
    losses = []
    for _ in range(8):
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 7)

    def forward(self, tokens, state=None):
        out, state = self.lstm(self.table(tokens), state)
        return self.head(out), state


def predict_the_next_letter():
    model = start(Language())
    text = classes(3, 9, below=7)
    optimizer = optim.RMSprop(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        scores, _ = model(text[:, :-1])
        loss = F.cross_entropy(scores.reshape(-1, 7), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Block(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.register_buffer("mask", torch.ones(8, 8).tril().bool(), persistent=False)

    def forward(self, x):
        batch, length, size = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        mask = self.mask[:length, :length]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, size))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(7, 8)
        self.place = nn.Embedding(8, 8)
        self.blocks = nn.ModuleList([Block(8, 2) for _ in range(2)])
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train_a_small_gpt():
    model = start(Gpt())
    text = classes(4, 7, below=7)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = optim.AdamW(groups, lr=1e-2)
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(model(text[:, :-1]).reshape(-1, 7), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def let_two_models_compete():
    generator = start(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))).train()
    critic = start(nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))).train()
    criterion = nn.BCEWithLogitsLoss()
    opt_g = optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.999))
    opt_d = optim.Adam(critic.parameters(), lr=1e-2, betas=(0.5, 0.999))
    real, noise = numbers(12, 2), numbers(12, 3, seed=1)
    losses = []
    for _ in range(4):
        fake = generator(noise)
        opt_d.zero_grad()
        good, bad = critic(real), critic(fake.detach())
        loss_d = criterion(good, torch.ones_like(good)) + criterion(bad, torch.zeros_like(bad))
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        fooled = critic(fake)
        loss_g = criterion(fooled, torch.ones_like(fooled))
        loss_g.backward()
        opt_g.step()
        losses += [loss_d.item(), loss_g.item()]
    return losses


def tune_a_new_head():
    model = start(Convolutional())
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.fc = nn.Linear(8 * 3 * 3, 2)
    model.fc = start(model.fc)
    model.eval()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optim.SGD(trained, lr=0.1, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    x, y = numbers(6, 1, 8, 8), classes(6, below=2)
    losses = [float(len(trained))]
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def accumulate_gradients():
    model = start(Perceptron())
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, y = numbers(24, 16), classes(24, below=5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        for part in range(4):
            rows = slice(part * 6, part * 6 + 6)
            loss = F.cross_entropy(model(x[rows]), y[rows]) / 4
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def watch_activations_and_gradients():
    model = start(Perceptron())
    found = []
    for layer in model.stack:
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda module, args, out: found.append(out.abs().mean()))
            layer.register_full_backward_hook(
                lambda module, into, out: found.append(out[0].square().sum())
            )
    x, y = numbers(5, 16), classes(5, below=5)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return [loss.item(), *[value.item() for value in found]]


class Pairs(Dataset):
    def __init__(self, size):
        self.x = np.random.default_rng(3).standard_normal((size, 4)).astype("float32")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "label": int(self.x[index].sum() > 0), "name": f"row {index}"}


def train_by_batches():
    model = start(nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    rows = TensorDataset(numbers(11, 4), classes(11, below=2))
    losses = []
    for loader in (
        DataLoader(rows, batch_size=4),
        DataLoader(Subset(rows, [9, 0, 4, 2, 7]), batch_size=2, drop_last=True),
    ):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    for batch in DataLoader(Pairs(7), batch_size=3, shuffle=False):
        losses.append(F.cross_entropy(model(batch["x"]), batch["label"]).item())
        losses.append(float(len(batch["name"])))
    return losses


PROGRAMS = [
    fit_a_curve,
    classify_images,
    train_and_evaluate_convolutions,
    compress_and_restore,
    predict_the_next_letter,
    train_a_small_gpt,
    let_two_models_compete,
    tune_a_new_head,
    accumulate_gradients,
    watch_activations_and_gradients,
    train_by_batches,
]
