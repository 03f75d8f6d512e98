"""Momentum^2 Teacher: "Momentum Teacher with Momentum Statistics for Self-Supervised Learning" (arXiv 2101.07525).

BYOL's frame and loss (figure 2); the teacher's every BN, the projector's too, is Momentum BN with the lazy update of
eqs. 5 and 6 (``norms.MomentumBatchNorm``), the student keeps plain BN of each process's batch. The two momenta, of the
weights (m) and of the statistics (alpha), fall to 0 by eq. 8. A step is: the teacher's weights move, both teacher
forwards, both student forwards, the loss, the optimizer.
"""

from momentum_transfer.pretrain.methods.byol import BYOL


class Momentum2Teacher(BYOL):
    """BYOL whose evaluated network is the teacher ("we dump the model from teacher", 3.4).

    What makes it the paper's method are its normalisation and order: NORM.TEACHER MomentumBN, TEACHER.MOVES before.
    They stay settings, so that tables 1, 6 and 7 differ in one or two keys.
    """

    network_default = "teacher"
