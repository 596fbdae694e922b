"""Automatic mixed precision: `autocast`, and `GradScaler` for gradients in float16."""

from ferrule.amp.grad_scaler import GradScaler
from ferrule.tensor.autocast import autocast

__all__ = ["GradScaler", "autocast"]
