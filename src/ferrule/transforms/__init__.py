"""Transformations of functions: derivatives, batching over axes, recomputing, loops."""

from ferrule.transforms.batched_loops import LOOP_RULES
from ferrule.transforms.batching import LANE_RULES
from ferrule.transforms.control import cond, while_loop
from ferrule.transforms.custom_derivatives import custom_vjp
from ferrule.transforms.derivatives import grad, jvp, linearize, value_and_grad, vjp
from ferrule.transforms.jacobians import hessian, jacfwd, jacobian, jacrev
from ferrule.transforms.loops import scan
from ferrule.transforms.rematerialize import checkpoint
from ferrule.transforms.vectorize import vmap

__all__ = [
    "checkpoint",
    "cond",
    "custom_vjp",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "scan",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]

LANE_RULES.update(LOOP_RULES)
