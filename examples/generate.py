"""Generate tokens one by one, with a cache of keys and values.

Shows inference with a fixed amount of memory: the cache has room for all tokens, each step writes
one row of it in place, and a `Variable` tells the captured step how far the sequence has come. The
model is not trained; what is to be seen is that the cache changes nothing but the time.

    python examples/generate.py --tokens 64

Prints the tokens, and the time for each with the cache and without.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ferrule import Tensor, TinyJit, Variable, nn

WORDS, WIDTH, HEADS, LAYERS, ROOM = 256, 128, 4, 2, 256
DEPTH = WIDTH // HEADS


class Block:
    """One layer of a transformer, with a cache for all places there may be."""

    def __init__(self) -> None:
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU())
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.keys = Tensor.zeros(HEADS, ROOM, DEPTH, requires_grad=False).contiguous()
        self.values = Tensor.zeros(HEADS, ROOM, DEPTH, requires_grad=False).contiguous()

    def __call__(self, x: Tensor, place: Variable | None = None) -> Tensor:
        """Rows (places, width) to rows: of a whole sequence, or the one at `place` after others."""
        heads = self.qkv(self.norm(x)).reshape(-1, 3, HEADS, DEPTH).permute(1, 2, 0, 3)
        query, key, value = heads[0], heads[1], heads[2]
        if place is not None:
            self.keys[:, place : place + 1] = key
            self.values[:, place : place + 1] = value
            key, value = self.keys[:, : place + 1], self.values[:, : place + 1]
        mixed = query.scaled_dot_product_attention(key, value, is_causal=place is None)
        x = x + self.out(mixed.permute(1, 0, 2).reshape(-1, WIDTH))
        return x + self.narrow(self.mlp(x))


class Model:
    """Tokens, (places,), to the scores of the token that follows the last one."""

    def __init__(self) -> None:
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(ROOM, WIDTH)
        self.blocks = [Block() for _ in range(LAYERS)]
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def __call__(self, tokens: Tensor, place: Variable | None = None) -> Tensor:
        at = self.places.weight[: tokens.shape[0]] if place is None else self.places.weight[place]
        x = self.words(tokens) + at
        for block in self.blocks:
            x = block(x, place)
        return self.head(x[-1])


class Result(NamedTuple):
    """The same continuation, computed in two ways."""

    cached: list[int]
    recomputed: list[int]


def timed(name: str, generate: Callable[[], list[int]]) -> list[int]:
    """What `generate` gives; prints the time of a token once all kernels are compiled."""
    generate()
    start = time.perf_counter()
    tokens = generate()
    print(f"{name}: {1e3 * (time.perf_counter() - start) / len(tokens):.2f} ms a token")
    return tokens


def main(arguments: Sequence[str] | None = None) -> Result:
    """Generates with the cache, and again by computing everything for each token."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    count = parser.parse_args(arguments).tokens

    Tensor.manual_seed(0)
    model = Model()
    prompt = [17, 4, 99, 23]
    step = TinyJit(lambda token, place: model(token, place).argmax().realize())
    place = Variable("place", 0, ROOM - 1)

    def with_cache() -> list[int]:
        tokens = list(prompt)
        for at in range(len(prompt) + count - 1):
            following = step(Tensor([tokens[at]]), place.bind(at)).item()
            if at + 1 == len(tokens):
                tokens.append(int(following))
        return tokens

    def without_cache() -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(model(Tensor(tokens)).argmax().item()))
        return tokens

    with Tensor.no_grad():
        result = Result(timed("with the cache", with_cache), timed("without it", without_cache))
    print("tokens:", *result.cached)
    return result


if __name__ == "__main__":
    main()
