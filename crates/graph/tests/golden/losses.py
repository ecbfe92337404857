"""Writes losses.txt: every loss and its gradient as PyTorch computes them, for golden_losses.rs.

usage: losses.py > losses.txt. Needs torch (made with 2.15). Each case: the loss's name, the task, the loss summed over
the rows, the gradient in the order of the layout. The network is one dense layer from 5 columns to 3 classes, 1 value or
5 columns. Every input is a multiple of 1/64; some errors are above 1 and some below, for the Huber loss.
"""

import torch
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
ROWS, WIDTH = 4, 5


def numbers(count, seed):
    return torch.tensor([((seed * 37 + i * 53) % 97 - 48) / 64 for i in range(count)])


def case(name, task, outputs, criterion):
    x = numbers(ROWS * WIDTH, 10).reshape(ROWS, WIDTH)
    flat = numbers(outputs * (WIDTH + 1), 20).requires_grad_()
    bias, weight = flat[:outputs], flat[outputs:].reshape(outputs, WIDTH)
    loss = criterion(F.linear(x, weight, bias), x)
    loss.backward()
    print(name)
    print(task)
    print(f"{loss.item():.9g}")
    print(*(f"{value:.7g}" for value in flat.grad.tolist()))


classes = torch.tensor([row % 3 for row in range(ROWS)])
one_hot = F.one_hot(classes, 3).double()
values = numbers(ROWS, 30)

case("cross-entropy", "classification", 3, lambda y, _: F.cross_entropy(y, classes, reduction="sum"))
case("binary-cross-entropy", "classification", 3,
     lambda y, _: F.binary_cross_entropy_with_logits(y, one_hot, reduction="sum") / 3)
case("hinge", "classification", 3, lambda y, _: F.multi_margin_loss(y, classes, reduction="sum"))
case("squared", "regression", 1, lambda y, _: F.mse_loss(y[:, 0], values, reduction="sum"))
case("absolute", "regression", 1, lambda y, _: F.l1_loss(y[:, 0], values, reduction="sum"))
case("huber", "regression", 1, lambda y, _: F.huber_loss(y[:, 0], values, reduction="sum"))
case("reconstruction", "regression", WIDTH, lambda y, x: F.mse_loss(y, x, reduction="sum") / WIDTH)
