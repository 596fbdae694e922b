"""Functions of the rows of an array of codes as standard C11: sorting, and selecting by rank.

They compute what those of `runtime/cpu/native_sort.py` do, where codes are explained.
"""

from __future__ import annotations

from typing import Final

from ferrule.ir.dtype import dtypes
from ferrule.renderer.c.portable import KernelFunction, Parameter

_SORT_ROW: Final = """\
/* Sorts codes by their words, the upper 32 bits: byte by byte, the lowest first, which keeps the
   order of equal words. `codes` may be `sorted`, and `scratch` has as many elements. */
static void sort_row(const u64 *codes, u64 *sorted, u64 *scratch, i64 size) {
  i64 places[4][256] = {{0}};
  for (i64 i = 0; i < size; i++)
    for (int byte = 0; byte < 4; byte++) places[byte][codes[i] >> (32 + 8 * byte) & 255]++;
  for (int byte = 0; byte < 4; byte++) {
    const u64 *const from = byte == 0 ? codes : byte % 2 ? scratch : sorted;
    u64 *const to = byte % 2 ? sorted : scratch;
    i64 before = 0;
    for (int digit = 0; digit < 256; digit++) {
      const i64 count = places[byte][digit];
      places[byte][digit] = before;
      before += count;
    }
    for (i64 i = 0; i < size; i++) to[places[byte][from[i] >> (32 + 8 * byte) & 255]++] = from[i];
  }
}"""

_SELECT_ROW: Final = """\
/* Writes the codes with the ranks from `low` up to `high`. Only codes that begin as those at both
   ends do, or between them, are sorted. `scratch` has twice as many elements as there are codes. */
static void select_row(
    const u64 *codes, u64 *found, u64 *scratch, i64 size, i64 low, i64 high) {
  i64 counts[2048] = {0};
  for (i64 i = 0; i < size; i++) counts[codes[i] >> 53]++;
  u64 first = 0;
  i64 before = 0;
  while (before + counts[first] <= low) before += counts[first++];
  u64 last = first;
  i64 through = before + counts[first];
  while (through < high) through += counts[++last];
  i64 kept = 0;
  for (i64 i = 0; i < size; i++)
    if (codes[i] >> 53 >= first && codes[i] >> 53 <= last) scratch[kept++] = codes[i];
  sort_row(scratch, scratch, scratch + size, kept);
  memcpy(found, scratch + (low - before), (size_t)(high - low) * sizeof *found);
}"""

_ROWS: Final = """\
const i64 rows = value2, size = value3, width = value4{more};
for (i64 row = 0; row < rows; row++) {{
  const u64 *const codes = data1 + row * size;
  u64 *const found = data0 + row * (width + 2 * size); /* scratch memory is behind it */
{body}
}}"""

_MORE: Final = {
    "sort": "",
    "select": ", low = value5",
    "median": ", ignores_nan = value6;\nconst u64 nan = (u64)value5",
}
_BODIES: Final = {
    "sort": "  sort_row(codes, found, found + width, size);",
    "select": "  select_row(codes, found, found + width, size, low, low + width);",
    "median": """\
  i64 below = 0; /* codes of numbers: their middle one, the lower of two, unless there are others */
  for (i64 i = 0; i < size; i++) below += codes[i] < nan;
  const i64 middle = below > 0 ? (below - 1) / 2 : 0;
  const i64 low = ignores_nan || below == size ? middle : below;
  select_row(codes, found, found + width, size, low, low + 1);""",
}


def helpers(functions: set[str]) -> str:
    """The functions that some functions of rows call; nothing if there are none."""
    selects = bool(functions - {"sort"})
    return "\n\n".join([_SORT_ROW] * bool(functions) + [_SELECT_ROW] * selects)


def row_function(function: str, name: str) -> KernelFunction:
    """The function of rows "sort", "select" or "median", with a kernel's parameters."""
    memory = [Parameter(slot, dtypes.uint64, True, is_written=slot == 0) for slot in range(2)]
    n_values = 2 + len(_MORE[function].split("value"))
    values = [Parameter(slot, dtypes.int64, False, False) for slot in range(2, 2 + n_values)]
    text = _ROWS.format(more=_MORE[function], body=_BODIES[function])
    lines = [f"  {line}".rstrip() for line in text.splitlines()]
    return KernelFunction(name, (*memory, *values), tuple(lines))
