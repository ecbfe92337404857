"""Makes the ONNX files of this folder with PyTorch, each with rows and PyTorch's predictions for them.

    pip install torch onnx onnxscript && python make.py

The suffix of NAME.onnx is the exporter: ts for TorchScript, dyn for torch.export. NAME.txt holds one line with the kind of
rows (flat WIDTH, image HEIGHT WIDTH CHANNELS, symbols WINDOW VOCABULARY), then for every row a line of its values (images in
NHWC) and a line of predictions: the softmax of the logits, at the last position of a sequence.
"""

import logging
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
FOLDER = Path(__file__).parent
VOCABULARY, WINDOW = 11, 5


class Convolutions(nn.Module):
    """8 x 8 images: convolution with groups and stride, batch normalisation, dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 12, 3, stride=2, groups=2)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(12 * 3 * 3, 10)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-0.2, 0.2)
            self.norm.running_var.uniform_(0.5, 1.5)
            self.norm.weight.uniform_(0.5, 1.5)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.second(x))
        return self.last(self.drop(x.view(x.size(0), -1)))


class Branches(nn.Module):
    """Two input channels, residual and concatenated branches, all kinds of pooling, dilation."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(2, 4, 3, padding=2, dilation=2)
        self.same = nn.Conv2d(4, 4, (3, 1), padding=(1, 0))
        self.other = nn.Conv2d(4, 3, 1, bias=False)
        self.up = nn.Upsample(scale_factor=2)
        self.last = nn.Linear(7, 3)

    def forward(self, x):
        x = F.leaky_relu(self.wide(x))
        x = x + torch.tanh(self.same(x))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = torch.cat([F.avg_pool2d(x, 2, stride=1), F.elu(self.other(x))[:, :, 1:, :-1]], 1)
        x = F.adaptive_avg_pool2d(self.up(x), 1)
        return self.last(torch.flatten(x, 1))


class Activations(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(6, 6), act) for act in
              (nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(), nn.ELU(), nn.Tanh(), nn.Softmax(-1), nn.SiLU(), nn.BatchNorm1d(6)))
        )
        self.last = nn.Linear(6, 3)
        self.shift = nn.Parameter(torch.randn(6))

    def forward(self, x):
        x = self.layers(x) * 0.5 + self.shift - 0.25
        return F.softmax(self.last(x * (1 - x)), -1)


class Recurrent(nn.Module):
    def __init__(self, kind, last="state"):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 6)
        self.cell = kind(6, 8, batch_first=True)
        self.last = nn.Linear(8, VOCABULARY)
        self.how = last

    def forward(self, x):
        states, last = self.cell(self.table(x))
        if self.how == "all":
            return self.last(states)
        return self.last(last[-1] if self.how == "state" else states[:, -1])


class Stacked(nn.Module):
    """A flat input reshaped to a sequence, two LSTM layers."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.cell(x.view(-1, 3, 4))[0][:, -1])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.all = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        rows, positions, width = x.shape
        parts = self.all(self.before(x)).split(width, dim=2)
        parts = [part.view(rows, positions, self.heads, width // self.heads).transpose(1, 2) for part in parts]
        gathered = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(gathered.transpose(1, 2).contiguous().view(rows, positions, width))
        return x + self.inner(self.between(x))


class Transformer(nn.Module):
    """A decoder-only transformer, as in GPT."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.places = nn.Embedding(WINDOW, 8)
        self.blocks = nn.Sequential(Block(8, 2), Block(8, 2))
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, x):
        places = self.places(torch.arange(x.shape[1]))
        return self.last(self.norm(self.blocks(self.table(x) + places)))


class Masked(nn.Module):
    """Attention written by hand with masked_fill."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.last = nn.Linear(8, VOCABULARY)
        self.register_buffer("mask", torch.tril(torch.ones(WINDOW, WINDOW)))

    def forward(self, x):
        x = self.table(x)
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / 8**0.5
        shares = F.softmax(scores.masked_fill(self.mask == 0, float("-inf")), dim=-1)
        return self.last(shares @ self.value(x))


class Encoder(nn.Module):
    """nn.TransformerEncoderLayer, and the mean over positions."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.last = nn.Linear(8, VOCABULARY)

    def forward(self, x):
        return self.last(self.layer(self.table(x)).mean(1))


class Foreign(nn.Module):
    """Three unsupported operators."""

    def forward(self, x):
        return torch.cos(x).clamp(0, 1) + torch.cumsum(x, 1)


def symbols():
    return torch.randint(0, VOCABULARY, (3, WINDOW))


def cases():
    """Name, model, rows and kind of rows."""
    mlp = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
    text = f"symbols {WINDOW} {VOCABULARY}"
    yield "mlp", mlp, torch.randn(3, 7), "flat 7"
    yield "convolutions", Convolutions(), torch.randn(3, 1, 8, 8), "image 8 8 1"
    yield "branches", Branches(), torch.randn(3, 2, 8, 6), "image 8 6 2"
    yield "activations", Activations(), torch.randn(3, 6), "flat 6"
    yield "lstm", Recurrent(nn.LSTM, "last"), symbols(), text
    yield "gru", Recurrent(nn.GRU), symbols(), text
    yield "rnn", Recurrent(nn.RNN, "all"), symbols(), text
    yield "stacked", Stacked(), torch.randn(3, 12), "flat 12"
    yield "transformer", Transformer(), symbols(), text
    yield "masked", Masked(), symbols(), text
    yield "encoder", Encoder(), symbols(), text


def line(values):
    return " ".join(f"{value:.8g}" for value in values.flatten().tolist())


def write(name, model, rows, kind):
    with torch.no_grad():
        outputs = model(rows)
    if outputs.dim() == 3:
        outputs = outputs[:, -1]
    if not isinstance(model, Activations):
        outputs = F.softmax(outputs, -1)
    shown = rows.permute(0, 2, 3, 1) if rows.dim() == 4 else rows
    lines = [kind]
    for row, output in zip(shown, outputs):
        lines += [line(row), line(output)]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


def by_torchscript(name, model, rows, **settings):
    settings = {"opset_version": 17, "do_constant_folding": True, **settings}
    torch.onnx.export(
        model, (rows,), FOLDER / f"{name}.onnx", dynamo=False, input_names=["input"], output_names=["output"],
        dynamic_axes={"input": {0: "rows"}, "output": {0: "rows"}}, **settings,
    )


def by_export(name, model, rows):
    torch.onnx.export(
        model, (rows,), FOLDER / f"{name}.onnx", dynamo=True, external_data=False, verbose=False,
        dynamic_shapes=({0: torch.export.Dim("rows")},),
    )
    # Stack traces of the source are half of the file.
    import onnx

    loaded = onnx.load(FOLDER / f"{name}.onnx")
    for node in loaded.graph.node:
        del node.metadata_props[:]
    for value in [*loaded.graph.value_info, *loaded.graph.input, *loaded.graph.output]:
        del value.metadata_props[:]
    del loaded.graph.value_info[:]
    del loaded.metadata_props[:]
    onnx.save(loaded, FOLDER / f"{name}.onnx")


def main():
    for name, model, rows, kind in cases():
        torch.manual_seed(len(name))
        model.eval()
        by_torchscript(f"{name}-ts", model, rows)
        write(f"{name}-ts", model, rows, kind)
        # torch.export unrolls nn.RNN, which is then no recurrent layer.
        if name != "rnn":
            by_export(f"{name}-dyn", model, rows)
            write(f"{name}-dyn", model, rows, kind)
    # With batch normalisation and dropout, for training.
    torch.manual_seed(1)
    model, rows = Convolutions().eval(), torch.randn(3, 1, 8, 8)
    keep = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    # Exporting runs the model once, which updates its running statistics.
    by_torchscript("trainable-ts", model, rows, **keep)
    write("trainable-ts", model.eval(), rows, "image 8 8 1")
    # Before operator set 17, layer normalisation is decomposed.
    torch.manual_seed(2)
    model, rows = Transformer().eval(), symbols()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.2, 0.2)
    write("written-out-ts", model, rows, f"symbols {WINDOW} {VOCABULARY}")
    by_torchscript("written-out-ts", model, rows, opset_version=16)
    by_torchscript("foreign", Foreign(), torch.randn(2, 4))


if __name__ == "__main__":
    sys.exit(main())
