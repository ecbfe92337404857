"""Exported ONNX models give the same outputs in onnxruntime as `thalweg predict`."""

import csv
import gzip
import io
import json
import struct

import harness
import pytest

numpy = pytest.importorskip("numpy")
runtime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

SONG = "the wheels on the bus go round and round, all through the town\n" * 12
WINDOW = 12
TOLERANCE = 1e-4


def session(path):
    """A checked model, run by onnxruntime."""
    onnx.checker.check_model(str(path), full_check=True)
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def numbers(text, skip):
    """The CSV output of predict without its header and first columns."""
    rows = list(csv.reader(io.StringIO(text)))[1:]
    return numpy.asarray([row[skip:] for row in rows], dtype=numpy.float32)


def images(folder, sizes=(28, 28), count=48):
    """An IDX folder of random images in three classes, and its pixels."""
    folder.mkdir(exist_ok=True)
    random = numpy.random.default_rng(3)
    pixels = random.integers(0, 256, (count, *sizes), dtype=numpy.uint8)
    labels = bytes(row % 3 for row in range(count))
    head = struct.pack(f">BBBB{1 + len(sizes)}I", 0, 0, 8, 1 + len(sizes), count, *sizes)
    (folder / f"train-images-idx{1 + len(sizes)}-ubyte").write_bytes(head + pixels.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, count) + labels)
    return pixels.astype(numpy.float32)


def trained(jobs, source, *settings, steps=3):
    """A run of a few steps."""
    out = jobs.folder / "run"
    given = (f"data.source={source}", f"data.window={WINDOW}", f"train.max_steps={steps}", *settings)
    arguments = [word for setting in given for word in ("--set", setting)]
    harness.succeed(jobs.run("train", "--quiet", "--overwrite", "--out", out, *arguments))
    return out


def predict(jobs, *arguments):
    """The output of predict."""
    ended = jobs.run("predict", *arguments)
    harness.succeed(ended)
    return ended.stdout


def exported(jobs, run):
    """The model of a run as an ONNX file."""
    path = jobs.folder / "model.onnx"
    harness.succeed(jobs.run("export", run, path, "--force"))
    return session(path)


def check_images(jobs, *settings, sizes=(28, 28)):
    folder = jobs.folder / "images"
    pixels = images(folder, sizes)
    run = trained(jobs, folder, "train.global_batch=16", *settings)
    model = exported(jobs, run)
    predicted = predict(jobs, run, folder, "--probabilities")
    shaped = pixels.reshape(len(pixels), sizes[0], sizes[1], -1).transpose(0, 3, 1, 2)
    (outputs,) = model.run(None, {"input": numpy.ascontiguousarray(shaped)})
    rebuilt = model.get_outputs()[0].name == "reconstruction"
    if rebuilt:
        outputs = outputs.transpose(0, 2, 3, 1)
    ours = numbers(predicted, 0 if rebuilt else 2)
    # Pixels range from 0 to 255, probabilities from 0 to 1.
    scale = 255 if rebuilt else 1
    numpy.testing.assert_allclose(outputs.reshape(ours.shape) / scale, ours / scale, atol=TOLERANCE, rtol=0)


def check_text(jobs, *settings):
    path = jobs.folder / "song.txt"
    path.write_text(SONG)
    run = trained(jobs, path, "train.global_batch=16", *settings)
    model = exported(jobs, run)
    windows = [SONG[start : start + WINDOW] for start in range(0, 60, 3)]
    rows = jobs.folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": window}) + "\n" for window in windows))
    predicted = predict(jobs, run, rows, "--format", "jsonl", "--probabilities")
    alphabet = json.loads(model.get_modelmeta().custom_metadata_map["alphabet"])
    symbols = numpy.asarray([[alphabet.index(character) for character in window] for window in windows])
    (outputs,) = model.run(None, {"input": symbols.astype(numpy.int64)})
    ours = [json.loads(line)["probabilities"] for line in predicted.splitlines()]
    ours = numpy.asarray([[row[character] for character in alphabet] for row in ours])
    numpy.testing.assert_allclose(outputs, ours, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("zoo", ["mlp", "lenet", "resnet-small", "autoencoder", "autoencoder-conv"])
def test_image_networks_give_the_same_outputs(jobs, zoo):
    check_images(jobs, f"model.zoo={zoo}")


@pytest.mark.parametrize("zoo", ["char-lstm", "gpt-mini", "mlp"])
def test_text_networks_give_the_same_outputs(jobs, zoo):
    check_text(jobs, f"model.zoo={zoo}")


IMAGE_LAYERS = [
    ["conv 6 3x2 stride 2 pad 1 dilation 2 elu", "pool max 3 stride 2 pad 1", "dense auto"],
    ["conv 4 3 groups 2 leaky-relu", "pool mean 2", "batchnorm local", "gelu", "dense auto"],
    ["concat conv 3 1x1 | conv 2 3x3 pad 1 & tanh", "residual conv 7 3x3 pad 1 stride 2", "pool global", "dense auto"],
    ["upsample 2", "dropout 0.5", "conv 3 5x5 sigmoid", "layernorm", "flatten", "dense 8", "batchnorm", "dense auto"],
]


@pytest.mark.parametrize("layers", IMAGE_LAYERS, ids=lambda layers: layers[0])
def test_image_layers_give_the_same_outputs(jobs, layers):
    check_images(jobs, f"model.layers={json.dumps(layers)}", sizes=(12, 10, 2))


TEXT_LAYERS = [
    ["embedding 8", "gru 10", "last", "dense auto"],
    ["embedding 8 positions", "rnn 6", "batchnorm", "transpose", "softmax", "transpose", "dense auto"],
    ["embedding 8", "residual layernorm | attention 2", "concat dense 3 | gelu", "dense auto"],
    ["dense 12 tanh", "dense auto"],
    ["lstm 7", "flatten", "dense auto"],
]


@pytest.mark.parametrize("layers", TEXT_LAYERS, ids=lambda layers: layers[0])
def test_text_layers_give_the_same_outputs(jobs, layers):
    check_text(jobs, f"model.layers={json.dumps(layers)}")


@pytest.mark.parametrize("task", ["classification", "regression", "reconstruction"])
def test_tables_need_no_preprocessing(jobs, task):
    random = numpy.random.default_rng(5)
    rows = random.normal(loc=[3, -40, 1000], scale=[1, 20, 300], size=(80, 3)).astype(numpy.float32)
    labels = rows @ [1, 0.1, 0.01] + 7 if task == "regression" else rows[:, 0] > 3
    table = jobs.folder / "rows.csv"
    table.write_text(
        "a,b,c,label\n" + "".join(",".join(map(str, [*row, label])) + "\n" for row, label in zip(rows, labels))
    )
    kind = "classification" if task == "reconstruction" else task
    settings = [f"data.task={kind}", "train.global_batch=16"]
    if task == "reconstruction":
        settings += ["model.loss=reconstruction", "model.layers=['dense 2 tanh', 'dense auto']"]
    run = trained(jobs, table, *settings, steps=20)
    model = exported(jobs, run)
    new = jobs.folder / "new.csv"
    new.write_text("a,b,c\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    predicted = predict(jobs, run, new, "--probabilities")
    (outputs,) = model.run(None, {"input": rows})
    ours = numbers(predicted, 2 if task == "classification" else 0)
    assert json.loads(model.get_modelmeta().custom_metadata_map["columns"]) == ["a", "b", "c"]
    scale = numpy.abs(ours).max(axis=0)
    numpy.testing.assert_allclose(outputs / scale, ours / scale, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("combine", ["average", "vote"])
def test_ensembles_answer_together(jobs, combine):
    check_images(
        jobs,
        "strategy.preset=ensemble",
        f"strategy.ensemble.combine={combine}",
        "engine.workers=3",
        "model.layers=['conv 4 3 relu', 'pool max 2', 'dense auto']",
        sizes=(12, 10, 2),
    )


def lenet_of(tensors):
    """LeNet in ONNX operators, whose weights have the shapes and order of PyTorch."""
    helper = onnx.helper
    nodes, value = [], "input"

    def add(operator, *inputs, **attributes):
        nonlocal value
        result = f"value-{len(nodes)}"
        nodes.append(helper.make_node(operator, [value, *inputs], [result], **attributes))
        value = result

    for layer in (0, 2):
        add("Conv", f"layers.{layer}.weight", f"layers.{layer}.bias")
        add("Relu")
        add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    add("Flatten")
    add("Gemm", "layers.5.weight", "layers.5.bias", transB=1)
    add("Relu")
    add("Gemm", "layers.6.weight", "layers.6.bias", transB=1)
    add("Softmax")
    image = helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, ["rows", 1, 28, 28])
    answer = helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, ["rows", 3])
    weights = [onnx.numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
    graph = helper.make_graph(nodes, "lenet", [image], [answer], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_tensors_of_the_model_file_have_the_order_of_onnx_and_pytorch(jobs):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    folder = jobs.folder / "images"
    pixels = images(folder)
    run = trained(jobs, folder, "train.global_batch=16", "model.zoo=lenet")
    tensors = load_file(run / "model.safetensors")
    path = jobs.folder / "lenet.onnx"
    onnx.save(lenet_of(tensors), path)
    (outputs,) = session(path).run(None, {"input": pixels.reshape(-1, 1, 28, 28) / 255})
    ours = numbers(predict(jobs, run, folder, "--probabilities"), 2)
    numpy.testing.assert_allclose(outputs, ours, atol=TOLERANCE, rtol=0)
    exported(jobs, run)
    written = {tensor.name: tensor for tensor in onnx.load(jobs.folder / "model.onnx").graph.initializer}
    for name, tensor in tensors.items():
        numpy.testing.assert_array_equal(onnx.numpy_helper.to_array(written[name]), tensor, err_msg=name)


FILES = harness.ROOT / "crates/graph/tests/onnx"


@pytest.mark.parametrize("name", ["trainable-ts", "convolutions-dyn"])
def test_a_pytorch_model_is_trained_and_exported(jobs, name):
    """With two workers on digits, starting from the weights of PyTorch."""
    with gzip.open(harness.ROOT / "crates/data/assets/digits.csv.gz", "rt") as file:
        rows = numpy.asarray([[float(value) for value in row] for row in csv.reader(file)], dtype=numpy.float32)
    settings = (f"model.onnx={FILES / name}.onnx", "engine.workers=2", "train.epochs=15")
    run = trained(jobs, "builtin:digits", *settings, steps=1000)
    report = json.loads((run / "report.json").read_text())
    assert len(report["ranks"]) == 2 and report["final"]["accuracy"] > 0.8, report["final"]
    model = exported(jobs, run)
    new = jobs.folder / "new.csv"
    new.write_text("".join(",".join(map(str, row)) + "\n" for row in rows[:200, :-1]))
    ours = numbers(predict(jobs, run, new, "--probabilities"), 2)
    (outputs,) = model.run(None, {"input": rows[:200, :-1]})
    numpy.testing.assert_allclose(outputs, ours, atol=TOLERANCE, rtol=0)
    (before,) = session(FILES / f"{name}.onnx").run(None, {name_of_input(name): rows[:200, :-1].reshape(-1, 1, 8, 8) / 16})
    assert numpy.abs(softmax(before) - ours).max() > 0.1, "training changed nothing"


def name_of_input(name):
    return onnx.load(FILES / f"{name}.onnx").graph.input[0].name


def softmax(scores):
    shares = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["transformer-ts", "transformer-dyn", "encoder-dyn", "gru-ts", "rnn-ts", "lstm-dyn"])
def test_a_pytorch_text_model_is_trained_and_exported(jobs, name):
    """The text has the alphabet size and window of the file."""
    path = jobs.folder / "text.txt"
    path.write_text("abcdefghijk kjihgfedcba "[:11] * 30)
    settings = ["data.source=" + str(path), "data.window=5", f"model.onnx={FILES / name}.onnx", "train.max_steps=5"]
    run = jobs.folder / "run"
    arguments = [word for setting in settings for word in ("--set", setting)]
    harness.succeed(jobs.run("train", "--quiet", "--workers", 2, "--out", run, *arguments))
    model = exported(jobs, run)
    alphabet = json.loads(model.get_modelmeta().custom_metadata_map["alphabet"])
    windows = ["abcde", "defgh", "ghijk", "kabcd", "aaaaa"]
    rows = jobs.folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": window}) + "\n" for window in windows))
    predicted = predict(jobs, run, rows, "--format", "jsonl", "--probabilities")
    ours = [json.loads(line)["probabilities"] for line in predicted.splitlines()]
    ours = numpy.asarray([[row[character] for character in alphabet] for row in ours])
    symbols = numpy.asarray([[alphabet.index(character) for character in window] for window in windows])
    (outputs,) = model.run(None, {"input": symbols.astype(numpy.int64)})
    numpy.testing.assert_allclose(outputs, ours, atol=TOLERANCE, rtol=0)
