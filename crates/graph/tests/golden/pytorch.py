"""Prints the constants of golden.rs: losses and gradients in PyTorch.

Needs torch (made with 2.15). Every input is a multiple of 1/64, exact in single precision.
"""

import torch
from torch.nn import functional

torch.set_num_threads(1)


def numbers(count, seed):
    return [((seed * 37 + i * 53) % 97 - 48) / 64 for i in range(count)]


def show(name, values):
    print(f"    {name}: &[{', '.join(f'{value:.9g}' for value in values)}],")


def network(name, activation, classes):
    shapes = [(classes or 1,), (classes or 1, 5), (5,), (5, 3)]
    tensors = [torch.tensor(numbers(torch.Size(s).numel(), 20 + i)).reshape(s) for i, s in enumerate(shapes)]
    bias1, weight1, bias0, weight0 = (tensor.requires_grad_() for tensor in tensors)
    rows = torch.tensor(numbers(12, 10)).reshape(4, 3)
    outputs = functional.linear(activation(functional.linear(rows, weight0, bias0)), weight1, bias1)
    if classes:
        loss = functional.cross_entropy(outputs, torch.tensor([0, 2, 1, 1]))
    else:
        loss = functional.mse_loss(outputs[:, 0], torch.tensor(numbers(4, 11)))
    loss.backward()
    print(f"    {name} loss: {loss.item():.9g},")
    show(name, [value for tensor in tensors for value in tensor.grad.flatten().tolist()])


for activation in [torch.relu, torch.tanh, torch.sigmoid]:
    network(activation.__name__ + " classification", activation, 3)
    network(activation.__name__ + " regression", activation, None)
