"""NULL in the place of instances, tables and memory: all formats with a header return errors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ferrule import Tensor, TinyJit
from tests.export.programs import generation

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

# A run needs an instance, the table of pointers, each pointer, and the table of sizes.
_WITH_ALL = """
#include "p.h"
#include <stddef.h>
#include <string.h>

int main(void) {
  p *one;
  float x[4] = {1, 2, 3, 4}, y[1] = {0}, cache[32] = {0};
  void *tensors[] = {x, y}, *no_result[] = {x, NULL}, *no_argument[] = {NULL, y};
  const int64_t sizes[] = {2};
  if (p_create(NULL) != P_NULL_POINTER) return 1;
  p_reset(NULL);
  p_destroy(NULL);
  if (p_state(NULL, 0) || p_state(NULL, 1)) return 2;
  if (p_set_state(NULL, 0, cache) != P_NULL_POINTER) return 3;
  if (p_target(NULL)) return 4;
  if (p_run_tensors(NULL, tensors, sizes) != P_NULL_POINTER) return 5;
  if (p_create(&one) != P_OK) return 6;
  if (!p_target(one) || strlen(p_target(one)) == 0) return 7;
  if (p_run_tensors(one, NULL, sizes) != P_NULL_POINTER) return 8;
  if (p_run_tensors(one, no_argument, sizes) != P_NULL_POINTER) return 9;
  if (p_run_tensors(one, no_result, sizes) != P_NULL_POINTER) return 10;
  if (p_run_tensors(one, tensors, NULL) != P_NULL_POINTER) return 11;
  if (p_run_tensors(one, NULL, NULL) != P_NULL_POINTER) return 12;
  if (!p_state(one, 0) || p_state(one, 1) || p_state(one, UINT32_MAX)) return 13;
  if (p_set_state(one, 0, NULL) != P_NULL_POINTER) return 14;
  if (p_set_state(one, 1, cache) != P_NULL_POINTER) return 15;
  if (p_state(one, 0) == NULL || p_state(one, 0) == cache) return 16;
  if (p_run_tensors(one, tensors, sizes) != P_OK || y[0] == 0) return 17;
  if (p_set_state(one, 0, cache) != P_OK || p_state(one, 0) != cache) return 18;
  if (p_run_tensors(one, tensors, sizes) != P_OK || cache[11] != 4 || y[0] != 30) return 19;
  if (strcmp(p_error_string(P_NULL_POINTER), "a pointer is null")) return 20;
  if (!strstr(p_error_string(P_THREADS + 1), "unknown")) return 21;
  if (!strstr(p_error_string(-1), "unknown")) return 22;
  p_destroy(one);
  return 0;
}
"""

# Nothing is read from tables that are empty, and NULL stands for them.
_WITHOUT = """
#include "p.h"
#include <stddef.h>

int main(void) {
  p *one;
  float y[4] = {0};
  void *tensors[] = {y};
  p_reset(NULL);
  if (p_state(NULL, 0) || p_target(NULL)) return 1;
  if (p_set_state(NULL, 0, y) != P_NULL_POINTER) return 2;
  if (p_create(&one)) return 3;
  if (p_run_tensors(NULL, tensors, NULL) != P_NULL_POINTER) return 4;
  if (p_run_tensors(one, tensors, NULL) != P_OK || y[3] != 2) return 5;
  if (p_state(one, 0) || p_set_state(one, 0, y) != P_NULL_POINTER) return 6;
  p_reset(one);
  p_destroy(one);
  return 0;
}
"""


def ran(step: TinyJit[Tensor], format: str, source: str, folder: Path) -> int:
    """The exit status of a program in C, with sanitizers, that uses an exported program."""
    file = step.export(folder / f"p.{format}", name="p").path
    (folder / "main.c").write_text(source)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    command = ["gcc", *strict, "main.c", file.name, "-lm", "-o", "main", "-Wl,-rpath,."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run(["./main"], cwd=folder, check=False).returncode


@needs_compiler
@pytest.mark.parametrize("format", ["so", "a", "c"])
def test_null_is_an_error_and_crashes_nothing(format: str, tmp_path: Path) -> None:
    assert ran(generation(), format, _WITH_ALL, tmp_path) == 0


@needs_compiler
@pytest.mark.parametrize("format", ["so", "a", "c"])
def test_null_stands_for_empty_tables(format: str, tmp_path: Path) -> None:
    ones = Tensor(np.ones(4, np.float32))
    step = TinyJit(lambda: (ones * 2).realize())
    for _ in range(3):
        step()
    assert ran(step, format, _WITHOUT, tmp_path) == 0
