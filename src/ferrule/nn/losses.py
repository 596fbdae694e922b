"""Losses as layers: `CrossEntropyLoss()(scores, target)`.

Each has a `reduction`, "mean", "sum" or "none". Weights among the settings are saved with the
model, and left alone by optimisers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from ferrule.nn.functions import layer
from ferrule.nn.module import Layer
from ferrule.tensor import Tensor
from ferrule.tensor.checked import checks_arguments

Lengths: TypeAlias = Sequence[int] | int | Tensor


@layer(Tensor.cross_entropy, "weight? ignore_index? reduction? label_smoothing?")
def CrossEntropyLoss(
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> None:
    """The mean of -log softmax(scores)[target], of scores (N, C, ...).

    `target` holds class indices (N, ...), or probabilities (N, C, ...). Indices equal to
    `ignore_index` count as nothing, `weight` (C,) is a factor for each class, and
    `label_smoothing` mixes in the same probability for all classes. `reduction` is "mean", "sum"
    or "none", which gives (N, ...). Raises `ShapeError` if the shapes do not fit.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import CrossEntropyLoss
    >>> CrossEntropyLoss()(Tensor([[100.0, 0.0]]), Tensor([1])).item()
    100.0
    """


@layer(Tensor.nll_loss, "weight? ignore_index? reduction?")
def NLLLoss(
    weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> None:
    """The negative log-probability (N, C, ...) of class indices (N, ...).

    >>> from ferrule import Tensor, nn
    >>> nn.NLLLoss()(Tensor([[-0.5, -1.0]]), Tensor([1])).item()
    1.0
    """


@layer(Tensor.binary_cross_entropy, "weight? reduction?")
def BCELoss(weight: Tensor | None = None, reduction: str = "mean") -> None:
    """Binary cross entropy of probabilities.

    >>> from ferrule import Tensor, nn
    >>> round(nn.BCELoss()(Tensor([0.5]), Tensor([1.0])).item(), 4)
    0.6931
    """


@layer(Tensor.binary_cross_entropy_with_logits, "weight? reduction? pos_weight?")
def BCEWithLogitsLoss(
    weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
) -> None:
    """Binary cross entropy of sigmoid(x), without overflow.

    >>> from ferrule import Tensor, nn
    >>> round(nn.BCEWithLogitsLoss()(Tensor([0.0]), Tensor([1.0])).item(), 4)
    0.6931
    """


@layer(Tensor.mse_loss, "reduction?")
def MSELoss(reduction: str = "mean") -> None:
    """The squared difference.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import MSELoss
    >>> MSELoss(reduction="sum")(Tensor([1.0, 2.0]), Tensor([3.0, 2.0])).item()
    4.0
    """


@layer(Tensor.l1_loss, "reduction?")
def L1Loss(reduction: str = "mean") -> None:
    """The size of the difference.

    >>> from ferrule import Tensor, nn
    >>> nn.L1Loss()(Tensor([1.0, 4.0]), Tensor([2.0, 1.0])).item()
    2.0
    """


@layer(Tensor.smooth_l1_loss, "reduction? beta?")
def SmoothL1Loss(reduction: str = "mean", beta: float = 1.0) -> None:
    """The size of the difference, squared below `beta`.

    >>> from ferrule import Tensor, nn
    >>> nn.SmoothL1Loss()(Tensor([0.0]), Tensor([3.0])).item()
    2.5
    """


@layer(Tensor.huber_loss, "reduction? delta?")
def HuberLoss(reduction: str = "mean", delta: float = 1.0) -> None:
    """Half the squared difference, continued as a straight line beyond `delta`.

    >>> from ferrule import Tensor, nn
    >>> nn.HuberLoss(delta=2.0)(Tensor([0.0]), Tensor([3.0])).item()
    4.0
    """


@layer(Tensor.kl_div, "reduction? log_target?")
def KLDivLoss(reduction: str = "mean", log_target: bool = False) -> None:
    """The divergence of log-probabilities from a target.

    >>> from ferrule import Tensor, nn
    >>> nn.KLDivLoss("sum")(Tensor([0.0]), Tensor([1.0])).item()
    0.0
    """


@layer(Tensor.poisson_nll_loss, "log_input? full? eps? reduction?")
def PoissonNLLLoss(
    log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> None:
    """The negative log-likelihood of counts.

    >>> from ferrule import Tensor, nn
    >>> nn.PoissonNLLLoss()(Tensor([0.0]), Tensor([2.0])).item()
    1.0
    """


@layer(Tensor.soft_margin_loss, "reduction?")
def SoftMarginLoss(reduction: str = "mean") -> None:
    """log(1 + e**(-target * x)) for targets 1 and -1.

    >>> from ferrule import Tensor, nn
    >>> round(nn.SoftMarginLoss()(Tensor([0.0]), Tensor([1.0])).item(), 4)
    0.6931
    """


@layer(Tensor.hinge_embedding_loss, "margin? reduction?")
def HingeEmbeddingLoss(margin: float = 1.0, reduction: str = "mean") -> None:
    """x for a target of 1, and max(0, margin - x) for a target of -1.

    >>> from ferrule import Tensor, nn
    >>> nn.HingeEmbeddingLoss()(Tensor([0.25]), Tensor([-1.0])).item()
    0.75
    """


@layer(Tensor.multi_margin_loss, "p? margin? weight? reduction?")
def MultiMarginLoss(
    p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"
) -> None:
    """max(0, margin - x[target] + x[other]) ** p, the sum over other classes divided by C.

    `x` are scores (N, C), `target` class indices (N,).

    >>> from ferrule import Tensor, nn
    >>> nn.MultiMarginLoss()(Tensor([[3.0, 2.5]]), Tensor([0])).item()
    0.25
    """


@layer(Tensor.multilabel_margin_loss, "reduction?")
def MultiLabelMarginLoss(reduction: str = "mean") -> None:
    """`MultiMarginLoss` for several classes, whose indices end with -1.

    >>> from ferrule import Tensor, nn
    >>> nn.MultiLabelMarginLoss()(Tensor([[1.0, 0.5]]), Tensor([[0, -1]])).item()
    0.25
    """


@layer(Tensor.multilabel_soft_margin_loss, "weight? reduction?")
def MultiLabelSoftMarginLoss(weight: Tensor | None = None, reduction: str = "mean") -> None:
    """Binary cross entropy of sigmoid(x), the mean over classes.

    >>> from ferrule import Tensor, nn
    >>> round(nn.MultiLabelSoftMarginLoss()(Tensor([[0.0]]), Tensor([[1.0]])).item(), 4)
    0.6931
    """


@layer(Tensor.cosine_similarity, "dim? eps?")
def CosineSimilarity(dim: int = 1, eps: float = 1e-8) -> None:
    """The cosine of the angle between vectors along an axis.

    >>> from ferrule import Tensor, nn
    >>> nn.CosineSimilarity()(Tensor([[3.0, 4.0]]), Tensor([[4.0, -3.0]])).tolist()
    [0.0]
    """


@layer(Tensor.pairwise_distance, "p? eps? keepdim?")
def PairwiseDistance(p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
    """The norm of the difference along the last axis.

    >>> from ferrule import Tensor, nn
    >>> round(nn.PairwiseDistance()(Tensor([[3.0, 4.0]]), Tensor([[0.0, 0.0]])).item(), 4)
    5.0
    """


@layer(Tensor.cosine_embedding_loss, "margin? reduction?")
def CosineEmbeddingLoss(margin: float = 0.0, reduction: str = "mean") -> None:
    """1 - cosine for a target of 1, and max(0, cosine - margin) for a target of -1.

    >>> from ferrule import Tensor, nn
    >>> nn.CosineEmbeddingLoss()(Tensor([[3.0, 4.0]]), Tensor([[4.0, -3.0]]), Tensor([1])).item()
    1.0
    """


@layer(Tensor.margin_ranking_loss, "margin? reduction?")
def MarginRankingLoss(margin: float = 0.0, reduction: str = "mean") -> None:
    """max(0, margin - target * (x1 - x2)), for targets 1 (x1 ranks higher) and -1.

    >>> from ferrule import Tensor, nn
    >>> nn.MarginRankingLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """


@layer(Tensor.triplet_margin_loss, "margin? p? eps? swap? reduction?")
def TripletMarginLoss(
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> None:
    """max(0, distance to `positive` - distance to `negative` + margin).

    >>> from ferrule import Tensor, nn
    >>> nn.TripletMarginLoss()(Tensor([[0.0]]), Tensor([[2.0]]), Tensor([[2.0]])).item()
    1.0
    """


@layer(Tensor.triplet_margin_with_distance_loss, "distance_function? margin? swap? reduction?")
def TripletMarginWithDistanceLoss(
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> None:
    """`TripletMarginLoss` with a distance of one's own; Euclid's unless given.

    >>> from ferrule import Tensor, nn
    >>> nn.TripletMarginWithDistanceLoss()(Tensor([[0.0]]), Tensor([[2.0]]), Tensor([[2.0]])).item()
    1.0
    """


@layer(Tensor.gaussian_nll_loss, "full? eps? reduction?")
def GaussianNLLLoss(full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
    """The negative log-likelihood of normal numbers of mean x and variance `var`.

    >>> from ferrule import Tensor, nn
    >>> nn.GaussianNLLLoss()(Tensor([1.0]), Tensor([3.0]), Tensor([1.0])).item()
    2.0
    """


@final
class CTCLoss(Layer):
    """Connectionist temporal classification: see `Tensor.ctc_loss`.

    >>> from ferrule import Tensor
    >>> from ferrule.nn import CTCLoss
    >>> scores = Tensor.ones(5, 1, 3).log_softmax(-1)
    >>> CTCLoss()(scores, Tensor([[1, 2]]), [5], [2]).shape
    ()
    """

    _shown = "blank? reduction? zero_infinity?"

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity

    @checks_arguments
    def __call__(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
    ) -> Tensor:
        """The loss of log-probabilities (T, N, C) for sequences of classes."""
        return log_probs.ctc_loss(
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
        )
