"""The grid of a kernel as text, and back."""

import pytest

from ferrule.codegen.launch import Launch
from ferrule.ir.expr import Variable, minimum, sint

N = Variable("n", 0, 1000)
M = Variable("m", 1, 7)


@pytest.mark.parametrize(
    "blocks",
    [1, 4096, N, N + 1, N * M, (N + 255) // 256, N % 8 + M, minimum(N, M) * 3 + N * M * 5 // 2],
    ids=str,
)
def test_a_launch_comes_back_as_it_was(blocks: sint) -> None:
    launch = Launch(blocks, 256, 64 << 10)
    back = Launch.from_json(launch.to_json(), [M, N])
    assert back == launch
    assert back.blocks is launch.blocks or isinstance(blocks, int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[256]",
        "[256, [1]]",
        '[256, ["k"], 0]',
        '[256, ["n", "m"], 0]',
        '[256, [["ADD", 2]], 0]',
        '[256, ["n", ["NO_SUCH_OP", 1]], 0]',
        '["many", [1], 0]',
        "[true, [1], 0]",
        "[256, [], 0]",
        '[256, [1], "all"]',
    ],
)
def test_any_other_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="is no launch"):
        Launch.from_json(text, [M, N])
