# What type checkers find at a documented path; see `imports.py` for how programs do.
from ferrule.fusion import create_schedule as create_schedule
