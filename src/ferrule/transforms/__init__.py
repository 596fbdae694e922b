"""Transformations of functions: derivatives, batching over axes, recomputing."""

from ferrule.transforms.custom import custom_vjp
from ferrule.transforms.derivatives import grad, jvp, linearize, value_and_grad, vjp
from ferrule.transforms.jacobians import hessian, jacfwd, jacobian, jacrev
from ferrule.transforms.mapping import vmap
from ferrule.transforms.recompute import checkpoint

__all__ = [
    "checkpoint",
    "custom_vjp",
    "grad",
    "hessian",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "value_and_grad",
    "vjp",
    "vmap",
]
