"""Writes layers.txt: loss and gradient of small networks as PyTorch computes them, for golden_layers.rs.

usage: layers.py > layers.txt. Needs torch (made with 2.15). Each case: a name, the layer texts joined by ` ; `, the input, the loss, the gradient
in the order of the layout. Every number that goes in is a multiple of 1/128, exact in single precision. Images are
height x width x channels here and channels first in PyTorch; filters are [filters, height, width, channels].
"""

import torch
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
ROWS = 3


def numbers(count, seed):
    return torch.tensor([((seed * 37 + i * 53) % 97 - 48) / 128 for i in range(count)])


class Parameters:
    """The flat buffer cut into tensors, in the order of the layout."""

    def __init__(self, shapes):
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.flat = numbers(sum(sizes), 20).requires_grad_()
        self.tensors = [t.reshape(s) for t, s in zip(self.flat.split(sizes), shapes)]


def conv(x, weight, bias, **settings):
    return F.conv2d(x, weight.permute(0, 3, 1, 2), bias, **settings)


def flat(x):
    return x.permute(0, 2, 3, 1).reshape(len(x), -1)


def case(name, texts, source, shapes, forward, classes):
    parameters = Parameters(shapes)
    kind, *sizes = source
    targets = torch.tensor([row % classes for row in range(ROWS)])
    if kind == "image":
        height, width, channels = sizes
        x = numbers(ROWS * height * width * channels, 10).reshape(ROWS, height, width, channels)
        logits = forward(x.permute(0, 3, 1, 2), *parameters.tensors)
        loss = F.cross_entropy(logits, targets, reduction="sum")
    else:
        window, vocabulary = sizes
        symbols = torch.tensor([(5 * i + i // 3) % vocabulary for i in range(ROWS * window)]).reshape(ROWS, window)
        logits = forward(symbols, *parameters.tensors)
        if logits.dim() == 3:
            targets = torch.cat([symbols[:, 1:], targets[:, None]], 1)
            loss = F.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1), reduction="sum") / window
        else:
            loss = F.cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    print(name)
    print(" ; ".join(texts))
    print(*source)
    print(f"{loss.item():.9g}")
    print(*(f"{value:.7g}" for value in parameters.flat.grad.tolist()))


def attention(x, heads, causal, out_b, out_w, in_b, in_w):
    b, t, c = x.shape
    q, k, v = F.linear(x, in_w, in_b).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return F.linear(y.transpose(1, 2).reshape(b, t, c), out_w, out_b)


def lstm(x, hidden, bias, weight):
    cell = torch.nn.LSTM(x.shape[2], hidden.shape[1], batch_first=True)
    names = {"weight_ih_l0": weight, "weight_hh_l0": hidden, "bias_ih_l0": bias, "bias_hh_l0": torch.zeros_like(bias)}
    return torch.func.functional_call(cell, names, (x,))[0]


def gru(x, hidden_bias, hidden, bias, weight):
    cell = torch.nn.GRU(x.shape[2], hidden.shape[1], batch_first=True)
    names = {"weight_ih_l0": weight, "weight_hh_l0": hidden, "bias_ih_l0": bias, "bias_hh_l0": hidden_bias}
    return torch.func.functional_call(cell, names, (x,))[0]


def rnn(x, hidden, bias, weight):
    cell = torch.nn.RNN(x.shape[2], hidden.shape[1], batch_first=True)
    names = {"weight_ih_l0": weight, "weight_hh_l0": hidden, "bias_ih_l0": bias, "bias_hh_l0": torch.zeros_like(bias)}
    return torch.func.functional_call(cell, names, (x,))[0]


case("convolution", ["conv 4 3x2 stride 2 pad 1 tanh", "dense auto"], ("image", 7, 6, 2), [(3,), (3, 64), (4,), (4, 3, 2, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(torch.tanh(conv(x, w0, b0, stride=2, padding=1))), w1, b1), 3)
case("groups and dilation", ["conv 4 3x3 dilation 2 groups 2 gelu", "dense auto"], ("image", 6, 7, 4),
     [(3,), (3, 24), (4,), (4, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(F.gelu(conv(x, w0, b0, dilation=2, groups=2), approximate="tanh")), w1, b1), 3)
case("largest", ["conv 3 3x3 pad 1", "pool max 3 stride 2 pad 1", "elu", "dense auto"], ("image", 5, 6, 2),
     [(3,), (3, 27), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(F.elu(F.max_pool2d(conv(x, w0, b0, padding=1), 3, 2, 1))), w1, b1), 3)
case("mean", ["conv 3 3x3 pad 1 leaky-relu", "pool mean 2", "dense auto"], ("image", 5, 6, 2), [(3,), (3, 18), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(F.avg_pool2d(F.leaky_relu(conv(x, w0, b0, padding=1)), 2)), w1, b1), 3)
case("global", ["conv 3 3x3 sigmoid", "pool global", "dense auto"], ("image", 5, 6, 2), [(3,), (3, 3), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(torch.sigmoid(conv(x, w0, b0)).mean((2, 3)), w1, b1), 3)
case("layernorm", ["flatten", "dense 5", "layernorm", "dense auto"], ("image", 2, 2, 2), [(3,), (3, 5), (5,), (5,), (5,), (5, 8)],
     lambda x, b1, w1, nb, nw, b0, w0: F.linear(F.layer_norm(F.linear(flat(x), w0, b0), (5,), nw, nb), w1, b1), 3)


def batchnorm():
    """By hand: the running statistics have moves instead of gradients, a tenth of the way to the batch's times the rows."""
    parameters = Parameters([(3,), (3, 27), (3,), (3,), (3,), (3,), (3,), (3, 3, 3, 2)])
    b1, w1, nb, nw, variance, mean, b0, w0 = parameters.tensors
    x = conv(numbers(ROWS * 5 * 5 * 2, 10).reshape(ROWS, 5, 5, 2).permute(0, 3, 1, 2), w0, b0)
    y = F.batch_norm(x, torch.zeros(3), torch.ones(3), nw, nb, training=True)
    loss = F.cross_entropy(F.linear(flat(y), w1, b1), torch.tensor([0, 1, 2]), reduction="sum")
    loss.backward()
    lines = x.permute(0, 2, 3, 1).reshape(-1, 3)
    gradient = parameters.flat.grad.clone()
    gradient[90:96] = 0.1 * ROWS * torch.cat([variance - lines.var(0), mean - lines.mean(0)]).detach()
    print("batchnorm\nconv 3 3x3 ; batchnorm ; dense auto\nimage 5 5 2")
    print(f"{loss.item():.9g}")
    print(*(f"{value:.7g}" for value in gradient.tolist()))


batchnorm()
case("embedding", ["embedding 4 positions", "dense auto"], ("symbols", 5, 6), [(6,), (6, 4), (5, 4), (6, 4)],
     lambda ids, b1, w1, places, table: F.linear(table[ids] + places, w1, b1), 6)
case("lstm", ["embedding 4", "lstm 3", "dense auto"], ("symbols", 5, 6), [(6,), (6, 3), (12, 3), (12,), (12, 4), (6, 4)],
     lambda ids, b1, w1, hidden, bias, weight, table: F.linear(lstm(table[ids], hidden, bias, weight), w1, b1), 6)
case("gru", ["embedding 4", "gru 3", "last", "dense auto"], ("symbols", 5, 6), [(6,), (6, 3), (9,), (9, 3), (9,), (9, 4), (6, 4)],
     lambda ids, b1, w1, hb, hidden, bias, weight, table: F.linear(gru(table[ids], hb, hidden, bias, weight)[:, -1], w1, b1), 6)
case("rnn", ["embedding 4", "rnn 3", "dense auto"], ("symbols", 5, 6), [(6,), (6, 3), (3, 3), (3,), (3, 4), (6, 4)],
     lambda ids, b1, w1, hidden, bias, weight, table: F.linear(rnn(table[ids], hidden, bias, weight), w1, b1), 6)
for causal in [False, True]:
    word = " causal" if causal else ""
    case("attention" + word, ["embedding 4", "attention 2" + word, "dense auto"], ("symbols", 5, 6),
         [(6,), (6, 4), (4,), (4, 4), (12,), (12, 4), (6, 4)],
         lambda ids, b1, w1, ob, ow, ib, iw, table: F.linear(attention(table[ids], 2, causal, ob, ow, ib, iw), w1, b1), 6)


def block(ids, b1, w1, db, dw, ub, uw, n2b, n2w, ob, ow, ib, iw, n1b, n1w, places, table):
    x = table[ids] + places
    x = x + attention(F.layer_norm(x, (4,), n1w, n1b), 2, True, ob, ow, ib, iw)
    up = F.gelu(F.linear(F.layer_norm(x, (4,), n2w, n2b), uw, ub), approximate="tanh")
    return F.linear(x + F.linear(up, dw, db), w1, b1)


case("transformer block",
     ["embedding 4 positions", "residual layernorm | attention 2 causal", "residual layernorm | dense 8 gelu | dense 4", "dense auto"],
     ("symbols", 5, 6),
     [(6,), (6, 4), (4,), (4, 8), (8,), (8, 4), (4,), (4,), (4,), (4, 4), (12,), (12, 4), (4,), (4,), (5, 4), (6, 4)], block, 6)
