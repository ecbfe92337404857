"""Layers of a job as PyTorch modules, whose state has the tensor names of model.safetensors."""

import torch
from torch import nn

# Tensors that have another name in PyTorch. It has two biases per LSTM or RNN; model files have their sum.
RENAMED = {
    "lstm": {"input.weight": "weight_ih_l0", "input.bias": "bias_ih_l0", "hidden.weight": "weight_hh_l0"},
    "gru": {
        "input.weight": "weight_ih_l0",
        "input.bias": "bias_ih_l0",
        "hidden.weight": "weight_hh_l0",
        "hidden.bias": "bias_hh_l0",
    },
    "attention": {
        "input.weight": "in_proj_weight",
        "input.bias": "in_proj_bias",
        "output.weight": "out_proj.weight",
        "output.bias": "out_proj.bias",
    },
}
RENAMED["rnn"] = RENAMED["lstm"]
ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "leaky-relu": nn.LeakyReLU,
    "gelu": lambda: nn.GELU(approximate="tanh"),
    "gelu-erf": nn.GELU,
}


class Layer(nn.Module):
    """A layer of a job; its tensors are those of `module`, named after the layer."""

    def __init__(self, kind, module, run, activation=None):
        super().__init__()
        self.kind, self.module, self.run = kind, module, run
        self.activation = ACTIVATIONS[activation]() if activation else nn.Identity()

    def forward(self, value):
        return self.activation(self.run(self.module, value))


class Residual(nn.Module):
    def __init__(self, layers, shape):
        super().__init__()
        self.layers, self.shortcut = nn.ModuleList(), None
        inner = shape
        for layer in layers:
            module, inner = build(layer, inner)
            self.layers.append(module)
        self.stride = 1
        if inner != shape:
            self.stride = -(-shape[1] // inner[1])
            self.shortcut = nn.Parameter(torch.zeros(inner[0], shape[0], 1, 1))
        self.shape = inner

    def forward(self, value):
        around = value
        if self.shortcut is not None:
            around = nn.functional.conv2d(value, self.shortcut, stride=self.stride)
        for layer in self.layers:
            value = layer(value)
        return value + around


class Positions(nn.Module):
    def __init__(self, vocabulary, width, window):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(window, width))

    def forward(self, symbols):
        return self.table(symbols) + self.positions


def attend(module, value, causal):
    count = value.shape[1]
    mask = torch.triu(torch.full((count, count), -torch.inf), 1) if causal else None
    return module(value, value, value, attn_mask=mask, need_weights=False)[0]


def flattened(shape):
    """The flattened size; images are (channels, height, width), sequences (positions, width)."""
    return shape[0] * shape[1] * shape[2] if len(shape) == 3 else shape[-1]


def setting(words, name, usual):
    return int(words[words.index(name) + 1]) if name in words else usual


def build(text, shape):
    """The module of a layer in job notation for an input shape, and the output shape."""
    kind, _, rest = text.strip().partition(" ")
    words = rest.split()
    activation = next((word for word in words if word in ACTIVATIONS), None)
    if kind == "residual":
        module = Residual(rest.split("|"), shape)
        return module, module.shape
    if kind in ACTIVATIONS:
        return Layer(kind, None, lambda _, value: value, kind), shape
    if kind == "dense":
        module = nn.Linear(flattened(shape), int(words[0]))
        run = (lambda module, value: module(value.flatten(1))) if len(shape) == 3 else (lambda module, value: module(value))
        return Layer(kind, module, run, activation), (*shape[:-1], int(words[0])) if len(shape) == 2 else (int(words[0]),)
    if kind == "conv":
        size = [int(side) for side in words[1].split("x")] * (1 if "x" in words[1] else 2)
        stride, pad, dilation = (setting(words, name, usual) for name, usual in [("stride", 1), ("pad", 0), ("dilation", 1)])
        module = nn.Conv2d(shape[0], int(words[0]), size, stride, pad, dilation, setting(words, "groups", 1))
        layer = Layer(kind, module, lambda module, value: module(value), activation)
        return layer, tuple(module(torch.zeros(1, *shape)).shape[1:])
    if kind == "pool":
        if words[0] == "global":
            module = nn.AdaptiveAvgPool2d(1)
        else:
            size = int(words[1].split("x")[0])
            pool = nn.MaxPool2d if words[0] == "max" else nn.AvgPool2d
            module = pool(size, setting(words, "stride", size), setting(words, "pad", 0))
        layer = Layer(kind, module, lambda module, value: module(value))
        return layer, tuple(module(torch.zeros(1, *shape)).shape[1:])
    if kind == "batchnorm":
        module = nn.BatchNorm2d(shape[0]) if len(shape) == 3 else nn.BatchNorm1d(shape[-1])
        return Layer(kind, module, lambda module, value: module(value)), shape
    if kind == "layernorm":
        return Layer(kind, nn.LayerNorm(shape[-1]), lambda module, value: module(value)), shape
    if kind == "flatten":
        return Layer(kind, None, lambda _, value: value.flatten(1)), (flattened(shape),)
    if kind == "reshape":
        height, width, channels = (int(size) for size in words[0].split("x"))
        image = (channels, height, width)
        return Layer(kind, None, lambda _, value: value.unflatten(1, image)), image
    if kind == "upsample":
        module = nn.Upsample(scale_factor=int(words[0]))
        return Layer(kind, module, lambda module, value: module(value)), (shape[0], shape[1] * int(words[0]), shape[2] * int(words[0]))
    if kind == "embedding":
        (window, vocabulary), width = shape, int(words[0])
        module = Positions(vocabulary, width, window) if "positions" in words else nn.Embedding(vocabulary, width)
        return Layer(kind, module, lambda module, value: module(value)), (window, width)
    if kind in ("lstm", "gru", "rnn"):
        module = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](shape[-1], int(words[0]), batch_first=True)
        return Layer(kind, module, lambda module, value: module(value)[0]), (shape[0], int(words[0]))
    if kind == "attention":
        module = nn.MultiheadAttention(shape[-1], int(words[0]), batch_first=True)
        return Layer(kind, module, lambda module, value: attend(module, value, "causal" in words)), shape
    if kind == "last":
        return Layer(kind, None, lambda _, value: value[:, -1]), shape[1:]
    raise AssertionError(f"no PyTorch module for {text}")


def named_tensors(modules, prefix):
    """The tensors of the modules by their names in the file."""
    found = {}
    for index, module in enumerate(modules):
        name = f"{prefix}.{index}"
        if isinstance(module, Residual):
            found |= named_tensors(module.layers, name)
            if module.shortcut is not None:
                found[f"{name}.shortcut"] = module.shortcut
        elif module.module is not None:
            back = {theirs: ours for ours, theirs in RENAMED.get(module.kind, {}).items()}
            for theirs, tensor in module.module.state_dict(keep_vars=True).items():
                if theirs.endswith("num_batches_tracked"):
                    continue
                found[f"{name}.{back.get(theirs, theirs.removeprefix('table.'))}"] = tensor
    return found


def network(layers, shape, tensors):
    """The layers as one module with the tensors of a file, which are loaded unchanged."""
    modules = nn.ModuleList()
    for text in layers:
        module, shape = build(text, shape)
        modules.append(module)
    wanted = named_tensors(modules, "layers")
    spare = {name for name in wanted if name.endswith("bias_hh_l0")}
    assert wanted.keys() - spare == set(tensors), f"{sorted(wanted)} and {sorted(tensors)}"
    with torch.no_grad():
        for name, tensor in wanted.items():
            if name in spare:
                tensor.zero_()
                continue
            assert tuple(tensor.shape) == tensors[name].shape, f"{name}: {tensor.shape}, {tensors[name].shape}"
            tensor.copy_(torch.from_numpy(tensors[name]))
    return nn.Sequential(*modules).eval()
