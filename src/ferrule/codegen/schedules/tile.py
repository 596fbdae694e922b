"""Register tiles: rows x vectors of accumulators, and the cost of one."""

from __future__ import annotations

from ferrule.base.records import dataclass
from ferrule.ir.speeds import Speeds
from ferrule.ir.target import Target

# Set on 2026-11-21 on the processors of docs/performance.md, from the times of whole products.
ROW_CYCLES = 0.06
"""Extra cycles for each row, which comes from the first cache."""
VECTOR_CYCLES = 0.3
"""Extra cycles for each vector, which comes from the second cache."""
FAR_ROWS_VECTOR_CYCLES = 0.1
"""The same if the rows come from no nearer: with it 1024 x 1024 x 1024 made 420 GFLOPS, before
370."""
SCATTER_CYCLES = 1.5
"""Cycles to store one element of a vector whose lanes go to different lines."""


@dataclass(frozen=True)
class Tile:
    """A register tile: rows x (vectors of lanes)."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def best_tile(
    target: Target, itemsize: int, rows: int, columns: int, vector_cycles: float = VECTOR_CYCLES
) -> Tile:
    """The tile with the least time: padded work over the throughput that its registers and loads
    allow.

    Of equal tiles it is the one with the narrowest vectors: some processors run two of these at
    once.
    """
    full = max(1, target.vector_bytes // max(itemsize, 4))
    registers = target.n_vector_registers
    best = Tile(1, 1, 1)
    best_cost = float("inf")
    for lanes in (full, full // 2, full // 4):
        if lanes < 2 or (lanes < full and columns > lanes * 2):
            continue
        for vectors in (1, 2, 3, 4, 6, 8):
            for r in range(1, 17):
                if r * vectors + vectors + 1 > registers or r > rows:
                    continue
                cost = tile_cost(
                    target.speeds, Tile(r, vectors, lanes), rows, columns, vector_cycles
                )
                if (cost, lanes) < (best_cost, best.lanes):
                    best, best_cost = Tile(r, vectors, lanes), cost
    return best


def tile_cost(
    speeds: Speeds, tile: Tile, rows: int, columns: int, vector_cycles: float = VECTOR_CYCLES
) -> float:
    """The relative time of rows x columns results, for one step of k.

    Vectors come from the second cache, rows from the first, unless `vector_cycles` says otherwise.
    """
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns)
    chains = tile.rows * tile.vectors
    loads = tile.vectors + tile.rows
    cycles = max(chains / speeds.arithmetic, loads / speeds.loads, speeds.latency)
    cycles += ROW_CYCLES * tile.rows + vector_cycles * tile.vectors
    return tiles * cycles
