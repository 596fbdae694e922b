"""Derivatives: values that remember how they were made, and the reverse rule of each op."""

from ferrule.autograd.recording import (
    enable_grad,
    is_recording,
    is_transforming,
    no_grad,
    transforming,
)
from ferrule.autograd.rules import RULES
from ferrule.autograd.tape import (
    FLAT,
    IDENTITY,
    REVERSE,
    GradEdge,
    GradientError,
    Gradients,
    GradNode,
    Leaf,
    Number,
    Parts,
    Region,
    Rule,
    Shape,
    TracedValue,
    check_expression,
    constant,
    record,
    record_several,
    result_of,
    tape_position,
)
from ferrule.autograd.training import is_training, note_evaluation, train, trains

__all__ = [
    "FLAT",
    "IDENTITY",
    "REVERSE",
    "GradEdge",
    "GradNode",
    "GradientError",
    "Gradients",
    "Leaf",
    "Number",
    "Parts",
    "Region",
    "Rule",
    "Shape",
    "TracedValue",
    "check_expression",
    "constant",
    "enable_grad",
    "is_recording",
    "is_training",
    "is_transforming",
    "no_grad",
    "note_evaluation",
    "record",
    "record_several",
    "result_of",
    "tape_position",
    "train",
    "trains",
    "transforming",
]

REVERSE.update(RULES)
