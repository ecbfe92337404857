"""Writes layers.txt: predictions, losses, gradients and training steps of small networks in PyTorch, for golden_layers.rs.

usage: layers.py > layers.txt. Needs torch (made with 2.15). Each case: a name, the layers joined by ` ; `, the input, the
predictions (class probabilities; of a sequence, at its last position), the loss, the gradient, and the parameters after ten
steps of SGD at rate 0.1, both in the order of the layout. Every input is a multiple of 1/128, exact in single precision.
Images are NHWC here and NCHW in PyTorch; filters are [filters, height, width, channels].
"""

import torch
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
ROWS = 3


def numbers(count, seed):
    return torch.tensor([((seed * 37 + i * 53) % 97 - 48) / 128 for i in range(count)])


class Parameters:
    """The flat buffer split into tensors, in the order of the layout."""

    def __init__(self, shapes):
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.flat = numbers(sum(sizes), 20).requires_grad_()
        self.sizes, self.shapes = sizes, shapes
        self.cut()

    def cut(self):
        self.tensors = [t.reshape(s) for t, s in zip(self.flat.split(self.sizes), self.shapes)]


def conv(x, weight, bias, **settings):
    return F.conv2d(x, weight.permute(0, 3, 1, 2), bias, **settings)


def flat(x):
    return x.permute(0, 2, 3, 1).reshape(len(x), -1)


def show(name, texts, source, parameters, run):
    """`run` returns logits, loss and the updates of running statistics at the parameters."""
    print(name)
    print(" ; ".join(texts))
    print(*source)
    for step in range(10):
        parameters.flat.grad = None
        logits, loss, updates = run()
        loss.backward()
        gradient = parameters.flat.grad.clone()
        rates = torch.full_like(gradient, 0.1)
        for place, update in updates:
            gradient[place] = ROWS * update.detach()
            rates[place] = 1
        if step == 0:
            numbers_of(F.softmax(logits if logits.dim() == 2 else logits[:, -1], 1).flatten())
            print(f"{loss.item():.9g}")
            numbers_of(gradient)
        with torch.no_grad():
            parameters.flat -= rates * gradient / ROWS
        parameters.cut()
    numbers_of(parameters.flat)


def numbers_of(tensor):
    print(*(f"{value:.7g}" for value in tensor.tolist()))


def case(name, texts, source, shapes, forward, classes):
    parameters = Parameters(shapes)
    kind, *sizes = source
    rows = torch.tensor([row % classes for row in range(ROWS)])

    def image():
        height, width, channels = sizes
        x = numbers(ROWS * height * width * channels, 10).reshape(ROWS, height, width, channels)
        logits = forward(x.permute(0, 3, 1, 2), *parameters.tensors)
        return logits, F.cross_entropy(logits, rows, reduction="sum"), []

    def symbols():
        window, vocabulary = sizes
        ids = torch.tensor([(5 * i + i // 3) % vocabulary for i in range(ROWS * window)]).reshape(ROWS, window)
        logits = forward(ids, *parameters.tensors)
        if logits.dim() == 2:
            return logits, F.cross_entropy(logits, rows, reduction="sum"), []
        targets = torch.cat([ids[:, 1:], rows[:, None]], 1)
        loss = F.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1), reduction="sum") / window
        return logits, loss, []

    show(name, texts, source, parameters, image if kind == "image" else symbols)


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
case("max pooling", ["conv 3 3x3 pad 1", "pool max 3 stride 2 pad 1", "elu", "dense auto"], ("image", 5, 6, 2),
     [(3,), (3, 27), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(F.elu(F.max_pool2d(conv(x, w0, b0, padding=1), 3, 2, 1))), w1, b1), 3)
case("mean pooling", ["conv 3 3x3 pad 1 leaky-relu", "pool mean 2", "dense auto"], ("image", 5, 6, 2), [(3,), (3, 18), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(F.avg_pool2d(F.leaky_relu(conv(x, w0, b0, padding=1)), 2)), w1, b1), 3)
case("global pooling", ["conv 3 3x3 sigmoid", "pool global", "dense auto"], ("image", 5, 6, 2), [(3,), (3, 3), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(torch.sigmoid(conv(x, w0, b0)).mean((2, 3)), w1, b1), 3)
case("relu", ["conv 3 3x3 relu", "dense 5 relu", "dense auto"], ("image", 5, 6, 2), [(3,), (3, 5), (5,), (5, 36), (3,), (3, 3, 3, 2)],
     lambda x, b2, w2, b1, w1, b0, w0: F.linear(torch.relu(F.linear(flat(torch.relu(conv(x, w0, b0))), w1, b1)), w2, b2), 3)
case("exact gelu", ["dense 7 gelu-erf", "dense auto"], ("image", 2, 2, 2), [(3,), (3, 7), (7,), (7, 8)],
     lambda x, b1, w1, b0, w0: F.linear(F.gelu(F.linear(flat(x), w0, b0)), w1, b1), 3)
for approximate, word in [("none", "gelu-erf"), ("tanh", "gelu")]:
    # GELU is not monotonic: in a third of the windows the maximum updates to another element.
    case("max pooling after " + word, [f"conv 3 4x4 {word}", "pool max 2", "dense auto"], ("image", 6, 5, 7),
         [(3,), (3, 3), (3,), (3, 4, 4, 7)],
         lambda x, b1, w1, b0, w0: F.linear(flat(F.max_pool2d(F.gelu(conv(x, w0, b0), approximate=approximate), 2)), w1, b1), 3)
case("mean pooling with padding", ["conv 3 3x3 tanh", "pool mean 3 stride 2 pad 1", "dense auto"], ("image", 6, 7, 2),
     [(3,), (3, 18), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(F.avg_pool2d(torch.tanh(conv(x, w0, b0)), 3, 2, 1, count_include_pad=True)), w1, b1), 3)
case("projection", ["residual conv 3 3x3 pad 1 tanh | conv 4 3x3 pad 1", "dense auto"], ("image", 3, 4, 2),
     [(3,), (3, 48), (4, 1, 1, 2), (4,), (4, 3, 3, 3), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, around, bb, wb, ba, wa: F.linear(
         flat(conv(torch.tanh(conv(x, wa, ba, padding=1)), wb, bb, padding=1) + conv(x, around, None)), w1, b1), 3)
case("projection with stride", ["residual conv 3 3x3 stride 2 pad 1 tanh", "dense auto"], ("image", 5, 6, 2),
     [(3,), (3, 27), (3, 1, 1, 2), (3,), (3, 3, 3, 2)],
     lambda x, b1, w1, around, ba, wa: F.linear(
         flat(torch.tanh(conv(x, wa, ba, stride=2, padding=1)) + conv(x, around, None, stride=2)), w1, b1), 3)
case("layernorm", ["flatten", "dense 5", "layernorm", "dense auto"], ("image", 2, 2, 2), [(3,), (3, 5), (5,), (5,), (5,), (5, 8)],
     lambda x, b1, w1, nb, nw, b0, w0: F.linear(F.layer_norm(F.linear(flat(x), w0, b0), (5,), nw, nb), w1, b1), 3)


def batchnorm(name, texts, source, width, outer, inner, before, after):
    """Batch normalisation between `before`, with parameters of the shapes `inner`, and `after`, with those of `outer`.
    Running statistics have updates instead of gradients, a tenth of the difference to the batch's; initial variances are
    above 1."""
    parameters = Parameters([*outer, (width,), (width,), (width,), (width,), *inner])
    begin = sum(parameters.sizes[:len(outer) + 2])
    places = slice(begin, begin + width), slice(begin + width, begin + 2 * width)
    with torch.no_grad():
        parameters.flat[places[0]] += 1
    parameters.cut()
    kind, *sizes = source

    def run():
        outer_tensors, rest = parameters.tensors[:len(outer)], parameters.tensors[len(outer):]
        nb, nw, variance, mean, *inner_tensors = rest
        x = before(numbers(ROWS * torch.Size(sizes).numel(), 10).reshape(ROWS, *sizes).permute(0, 3, 1, 2), *inner_tensors)
        learned = F.batch_norm(x, torch.zeros(width), torch.ones(width), nw, nb, training=True)
        loss = F.cross_entropy(after(learned, *outer_tensors), torch.tensor([0, 1, 2]), reduction="sum")
        evaluated = F.batch_norm(x, mean.detach(), variance.detach(), nw, nb, training=False)
        lines = x.movedim(1, -1).reshape(-1, width)
        updates = [(places[0], 0.1 * (variance - lines.var(0))), (places[1], 0.1 * (mean - lines.mean(0)))]
        return after(evaluated, *outer_tensors), loss, updates

    show(name, texts, source, parameters, run)


batchnorm("batchnorm", ["conv 3 3x3", "batchnorm", "dense auto"], ("image", 5, 5, 2), 3, [(3,), (3, 27)], [(3,), (3, 3, 3, 2)],
          lambda x, b0, w0: conv(x, w0, b0), lambda x, b1, w1: F.linear(flat(x), w1, b1))
batchnorm("batchnorm of flat rows", ["dense 5", "batchnorm", "tanh", "dense auto"], ("image", 2, 2, 2), 5, [(3,), (3, 5)], [(5,), (5, 8)],
          lambda x, b0, w0: F.linear(flat(x), w0, b0), lambda x, b1, w1: F.linear(torch.tanh(x), w1, b1))
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
case("concat", ["concat conv 2 1x1 tanh | conv 3 3x3 pad 1", "dense auto"], ("image", 4, 5, 2),
     [(3,), (3, 100), (3,), (3, 3, 3, 2), (2,), (2, 1, 1, 2)],
     lambda x, b1, w1, bb, wb, ba, wa: F.linear(flat(torch.cat([torch.tanh(conv(x, wa, ba)), conv(x, wb, bb, padding=1)], 1)), w1, b1), 3)
case("upsample", ["conv 2 3x3", "upsample 2", "tanh", "dense auto"], ("image", 4, 5, 2), [(3,), (3, 48), (2,), (2, 3, 3, 2)],
     lambda x, b1, w1, b0, w0: F.linear(flat(torch.tanh(F.interpolate(conv(x, w0, b0), scale_factor=2))), w1, b1), 3)
case("transpose", ["embedding 4", "transpose", "dense 3 tanh", "flatten", "dense auto"], ("symbols", 5, 6),
     [(6,), (6, 12), (3,), (3, 5), (6, 4)],
     lambda ids, b1, w1, b0, w0, table: F.linear(torch.tanh(F.linear(table[ids].transpose(1, 2), w0, b0)).flatten(1), w1, b1), 6)
case("reshape", ["dense 12", "reshape 2x3x2", "conv 2 2x2 tanh", "dense auto"], ("image", 2, 2, 2),
     [(3,), (3, 4), (2,), (2, 2, 2, 2), (12,), (12, 8)],
     lambda x, b2, w2, b1, w1, b0, w0: F.linear(flat(torch.tanh(conv(
         F.linear(flat(x), w0, b0).reshape(ROWS, 2, 3, 2).permute(0, 3, 1, 2), w1, b1))), w2, b2), 3)
case("softmax", ["flatten", "dense 5", "softmax", "dense auto"], ("image", 2, 2, 2), [(3,), (3, 5), (5,), (5, 8)],
     lambda x, b1, w1, b0, w0: F.linear(F.softmax(F.linear(flat(x), w0, b0), 1), w1, b1), 3)
