"""Polynomials that kernels and functions of tensors share; the constant term comes first.

They were fitted by Chebyshev interpolation or weighted least squares.
"""

from __future__ import annotations

from typing import Final

# 2**x for |x| <= 1/2
EXP2_FLOAT32: Final = (
    1.0,
    0.6931472,
    0.24022648,
    0.055503596,
    0.009618499,
    0.0013390972,
    0.0001532937,
)
EXP2_FLOAT64: Final = (
    1.0,
    0.6931471805599453,
    0.24022650695910108,
    0.05550410866482172,
    0.009618129107601592,
    0.0013333558146546782,
    0.00015403530449057247,
    1.5252733632960968e-05,
    1.321543882544606e-06,
    1.0178160706561158e-07,
    7.073234650897426e-09,
    4.438728804496799e-10,
)
