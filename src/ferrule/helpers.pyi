# What type checkers find at a documented path; see `imports.py` for how programs do.
from ferrule.base.helpers import *
from ferrule.ir.dtype import DType as DType
from ferrule.ir.dtype import dtypes as dtypes
