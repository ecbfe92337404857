"""PyTorch modules with the same layers load the tensors of model.safetensors unchanged and give the same outputs.

PyTorch is too large to be installed for every run: `pip install torch` in the environment of the external tests enables
these. test_onnx.py checks the tensor order against ONNX operators, which share PyTorch's order.
"""

import json

import pytest

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import test_onnx as onnx_tests  # noqa: E402
import torch_networks  # noqa: E402
from safetensors import safe_open  # noqa: E402

TOLERANCE = 1e-4


def file_of(run):
    """The tensors and metadata of a model."""
    with safe_open(run / "model.safetensors", "np") as file:
        metadata = json.loads(file.metadata()["thalweg"])
        return {name: file.get_tensor(name) for name in file.keys()}, metadata


def layers_of(metadata):
    """The layers with the size of the last one filled in."""
    schema = json.loads(metadata["schema"])
    layers = json.loads(metadata["layers"])
    classes = schema["classes"]
    return [layer.replace("auto", str(len(classes))) for layer in layers]


def check_images(jobs, *settings, sizes=(28, 28)):
    folder = jobs.folder / "images"
    pixels = onnx_tests.images(folder, sizes)
    run = onnx_tests.trained(jobs, folder, "train.global_batch=16", *settings)
    tensors, metadata = file_of(run)
    shaped = pixels.reshape(len(pixels), sizes[0], sizes[1], -1).transpose(0, 3, 1, 2) / 255
    model = torch_networks.network(layers_of(metadata), shaped.shape[1:], tensors)
    rows = torch.from_numpy(numpy.ascontiguousarray(shaped, dtype=numpy.float32))
    with torch.no_grad():
        outputs = model(rows)
    rebuilt = "reconstruct" in json.loads(metadata["schema"])
    if rebuilt:
        ours = onnx_tests.numbers(onnx_tests.predict(jobs, run, folder), 0) / 255
        outputs = outputs.reshape(rows.shape).permute(0, 2, 3, 1).reshape(ours.shape)
    else:
        ours = onnx_tests.numbers(onnx_tests.predict(jobs, run, folder, "--probabilities"), 2)
        outputs = outputs.flatten(1).softmax(1)
    numpy.testing.assert_allclose(outputs.numpy(), ours, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("zoo", ["mlp", "lenet", "resnet-small", "autoencoder-conv"])
def test_networks_of_images_load_into_pytorch(jobs, zoo):
    check_images(jobs, f"model.zoo={zoo}")


IMAGE_LAYERS = [
    ["conv 6 3x2 stride 2 pad 1 dilation 2 elu", "pool max 3 stride 2 pad 1", "dense auto"],
    ["conv 4 3 groups 2 leaky-relu", "pool mean 2", "batchnorm local", "flatten", "batchnorm local", "dense 8 gelu", "dense auto"],
    ["dense 40 tanh", "dense auto"],
    ["dense 60 relu", "reshape 4x3x5", "conv 3 2x2", "residual conv 4 1x1 stride 2", "dense auto"],
]


@pytest.mark.parametrize("layers", IMAGE_LAYERS, ids=lambda layers: layers[0])
def test_layers_of_images_load_into_pytorch(jobs, layers):
    check_images(jobs, f"model.layers={json.dumps(layers)}", sizes=(12, 10, 2))


def check_text(jobs, *settings):
    path = jobs.folder / "song.txt"
    path.write_text(onnx_tests.SONG)
    run = onnx_tests.trained(jobs, path, "train.global_batch=16", *settings)
    tensors, metadata = file_of(run)
    alphabet = json.loads(metadata["schema"])["shape"]["alphabet"]
    layers = [layer.replace("auto", str(len(alphabet))) for layer in json.loads(metadata["layers"])]
    model = torch_networks.network(layers, (onnx_tests.WINDOW, len(alphabet)), tensors)
    windows = [onnx_tests.SONG[start : start + onnx_tests.WINDOW] for start in range(0, 60, 3)]
    rows = jobs.folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": window}) + "\n" for window in windows))
    predicted = onnx_tests.predict(jobs, run, rows, "--format", "jsonl", "--probabilities")
    symbols = torch.tensor([[alphabet.index(character) for character in window] for window in windows])
    with torch.no_grad():
        outputs = model(symbols)
    outputs = outputs[:, -1] if outputs.dim() == 3 else outputs
    ours = [json.loads(line)["probabilities"] for line in predicted.splitlines()]
    ours = numpy.asarray([[row[character] for character in alphabet] for row in ours])
    numpy.testing.assert_allclose(outputs.softmax(1).numpy(), ours, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("zoo", ["char-lstm", "gpt-mini"])
def test_networks_of_texts_load_into_pytorch(jobs, zoo):
    check_text(jobs, f"model.zoo={zoo}")


TEXT_LAYERS = [
    ["embedding 8", "gru 10", "last", "dense auto"],
    ["embedding 8 positions", "rnn 6", "residual layernorm | attention 2", "dense auto"],
]


@pytest.mark.parametrize("layers", TEXT_LAYERS, ids=lambda layers: layers[0])
def test_layers_of_texts_load_into_pytorch(jobs, layers):
    check_text(jobs, f"model.layers={json.dumps(layers)}")
