"""Train a small GPT on text, letter by letter, and let it write.

Shows a transformer from its parts: embeddings, causal attention, and residual blocks. The text is a
round that repeats itself, so a model that has learnt it can go on from a few letters.

    python examples/small_gpt.py --steps 150

Prints the loss now and then, and what the model writes after a prompt.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ferrule import Tensor, TinyJit, nn

ROUND = "row row row your boat gently down the stream merrily merrily merrily life is but a dream "
LETTERS = sorted(set(ROUND))
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 32, 64, 4, 2, 16


class Block:
    """Attention to what came before, then two layers for each place; both add to their input."""

    def __init__(self) -> None:
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        split = "batch place (three head depth) -> three batch head place depth"
        query, key, value = self.qkv(self.attention_norm(x)).rearrange(split, three=3, head=HEADS)
        heads = query.scaled_dot_product_attention(key, value, is_causal=True)
        x = x + self.mix(heads.rearrange("batch head place depth -> batch place (head depth)"))
        return x + self.narrow(self.widen(self.mlp_norm(x)).gelu())


class GPT:
    """Letters, (batch, places), to scores of the next letter, (batch, places, letters)."""

    def __init__(self) -> None:
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)

    def __call__(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places(Tensor.arange(letters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Result(NamedTuple):
    """What training came to."""

    losses: list[float]
    written: str


def main(arguments: Sequence[str] | None = None) -> Result:
    """Trains, and writes on from a prompt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--length", type=int, default=60, help="how many letters to write")
    parser.add_argument("--prompt", default="merrily merrily merrily life is but ")
    options = parser.parse_args(arguments)

    Tensor.manual_seed(0)
    choose = np.random.default_rng(0)
    text = np.array([LETTERS.index(letter) for letter in ROUND * 20], np.int32)
    model = GPT()
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=3e-3)

    @TinyJit
    def step(letters: Tensor) -> Tensor:
        scores = model(letters[:, :-1])
        loss = scores.flatten(0, 1).cross_entropy(letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    @TinyJit
    def scores_of_next(letters: Tensor) -> Tensor:
        return model(letters)[0, -1].realize()

    losses = []
    for number in range(options.steps):
        starts = choose.integers(0, len(text) - CONTEXT, BATCH)
        batch = np.stack([text[start : start + CONTEXT + 1] for start in starts])
        losses.append(step(Tensor(batch)).item())
        if number % 25 == 0 or number == options.steps - 1:
            print(f"step {number:4d}  loss {losses[-1]:.4f}")

    written = options.prompt.rjust(CONTEXT)
    while len(written) < max(len(options.prompt), CONTEXT) + options.length:
        window = [LETTERS.index(letter) for letter in written[-CONTEXT:]]
        best = scores_of_next(Tensor([window])).argmax().item()
        written += LETTERS[int(best)]
    print(written.lstrip())
    return Result(losses, written.lstrip())


if __name__ == "__main__":
    main()
