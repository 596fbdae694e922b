# What type checkers find at a documented path; see `imports.py` for how programs do.
from ferrule.ir.dtype import *
