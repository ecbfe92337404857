"""Every attribute that the ONNX operator sets define for an operator we read, at values besides its default: the import
answers as onnxruntime does, or refuses and names the attribute."""

import csv
import io
import re

import harness
import pytest

numpy = pytest.importorskip("numpy")
runtime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

OLDEST, NEWEST = 9, 28
# The newest set that the onnxruntime at hand is asked to run.
RUNTIME = 21
CLOSE = 1e-4
SHAPE = (2, 4, 4)
ROWS = 6


def operators():
    """Those that the importer names."""
    folder = harness.ROOT / "crates/graph/src/onnx/import"
    lists = [(folder / name).read_text() for name in ("importer.rs", "fold/mod.rs")]
    found = [re.search(r"const OPERATORS: \[&str; \d+\] = \[(.*?)\];", text, re.S) for text in lists]
    return sorted(name for match in found for name in re.findall(r'"(\w+)"', match.group(1)))


def versions(operator):
    """The versions of an operator that some set of our range has, oldest first, with their last set."""
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.name == operator]
    schemas = sorted((schema for schema in schemas if schema.domain == ""), key=lambda schema: schema.since_version)
    ends = [schema.since_version - 1 for schema in schemas[1:]] + [NEWEST]
    return [(schema, end) for schema, end in zip(schemas, ends) if end >= OLDEST and schema.since_version <= NEWEST]


def attributes():
    """Every attribute with the newest set that has it, preferring one that can be run."""
    found = {}
    for operator in operators():
        for schema, end in versions(operator):
            for name in schema.attributes:
                if (operator, name) not in found or schema.since_version <= RUNTIME:
                    found[operator, name] = max(min(end, RUNTIME), schema.since_version)
    return found


# Values besides the default; what else the node then needs stands behind them.
HALF = numpy_helper.from_array(numpy.asarray([0.5], dtype=numpy.float32))
WHOLE = numpy_helper.from_array(numpy.asarray([1], dtype=numpy.int64))
POOL = {
    "auto_pad": ["SAME_UPPER", "SAME_LOWER", "VALID"],
    "ceil_mode": [1],
    "dilations": [[2, 2], [1, 1]],
    "kernel_shape": [[1, 3], [3, 3]],
    "pads": [[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 1]],
    "strides": [[2, 2], [1, 3]],
}
RECURRENT = {
    "activation_alpha": [[0.5]],
    "activation_beta": [[0.5]],
    "clip": [0.1],
    "direction": ["reverse"],
    "hidden_size": [2],
    "layout": [1],
}
VALUES = {
    "AveragePool": {**POOL, "count_include_pad": [1]},
    "BatchNormalization": {"epsilon": [0.5], "momentum": [1.0, 2.0], "training_mode": [1]},
    "Cast": {"round_mode": ["down"], "saturate": [0], "to": [1, 6, 7, 9, 10, 11]},
    "Concat": {"axis": [1, 2, -1]},
    "Constant": {
        "sparse_value": [None],
        "value": [HALF],
        "value_float": [0.5],
        "value_floats": [[0.5]],
        "value_int": [1],
        "value_ints": [[1]],
        "value_string": ["a"],
        "value_strings": [["a"]],
    },
    "ConstantOfShape": {"value": [HALF, WHOLE]},
    "Conv": {
        "auto_pad": ["SAME_UPPER", "VALID"],
        "dilations": [[2, 1]],
        "group": [2],
        "kernel_shape": [[2, 2]],
        "pads": [[1, 1, 1, 1], [1, 0, 0, 0]],
        "strides": [[2, 2]],
    },
    "Dropout": {"ratio": [0.25], "seed": [3]},
    "Elu": {"alpha": [0.5, 1.0]},
    "Flatten": {"axis": [1, -3, 2]},
    "GRU": {**RECURRENT, "activations": [["Relu", "Tanh"]], "linear_before_reset": [0, 1]},
    "Gather": {"axis": [1, 2, -1]},
    "Gelu": {"approximate": ["tanh", "none"]},
    "Gemm": {"alpha": [0.5], "beta": [0.5], "transA": [1], "transB": [1]},
    "LSTM": {**RECURRENT, "activations": [["Relu", "Tanh", "Tanh"]], "input_forget": [1]},
    "LayerNormalization": {"axis": [2, 3, -1], "epsilon": [0.5], "stash_type": [11]},
    "LeakyRelu": {"alpha": [0.2]},
    "LogSoftmax": {"axis": [0, 1]},
    "MaxPool": {**POOL, "storage_order": [1]},
    "Mod": {"fmod": [1]},
    "OneHot": {"axis": [1]},
    "RNN": {**RECURRENT, "activations": [["Relu"]]},
    "Range": {"stash_type": [11]},
    "ReduceMean": {"axes": [[1], [2, 3]], "keepdims": [0], "noop_with_empty_axes": [0, 1]},
    "ReduceProd": {"axes": [[0]], "keepdims": [0], "noop_with_empty_axes": [1]},
    "Reshape": {"allowzero": [1]},
    "Resize": {
        "antialias": [1],
        "axes": [[2, 3]],
        "coordinate_transformation_mode": ["asymmetric", "align_corners", "pytorch_half_pixel"],
        "cubic_coeff_a": [-0.5],
        "exclude_outside": [1],
        "extrapolation_value": [1.0],
        "keep_aspect_ratio_policy": ["not_larger"],
        "mode": ["linear", "cubic"],
        "nearest_mode": ["floor", "ceil", "round_prefer_ceil"],
    },
    "Shape": {"end": [1, -1], "start": [1]},
    "Slice": {"axes": [[3]], "ends": [[3]], "starts": [[1]]},
    "Softmax": {"axis": [1, 2, -1]},
    "Split": {"axis": [1, 2], "num_outputs": [2], "split": [[1, 1]]},
    "Squeeze": {"axes": [[1]]},
    "Transpose": {"perm": [[0, 2, 3, 1]]},
    "Trilu": {"upper": [0]},
    "Unsqueeze": {"axes": [[2]]},
    "Upsample": {"mode": ["linear"]},
}
# What a node needs besides the attribute that is tried.
NEEDED = {
    "AveragePool": {"kernel_shape": [2, 2], "count_include_pad": 1},
    # Running statistics stay what they are.
    "BatchNormalization": {"momentum": 1.0},
    "MaxPool": {"kernel_shape": [2, 2]},
    "Cast": {"to": 1},
    "Concat": {"axis": 1},
    "Split": {"axis": 1},
    "GRU": {"linear_before_reset": 1, "hidden_size": 2},
    "LSTM": {"hidden_size": 2},
    "RNN": {"hidden_size": 2},
    "Gather": {"axis": 1},
    "Slice": {"starts": [0], "ends": [2], "axes": [2]},
    "Unsqueeze": {"axes": [1]},
}


class Builder:
    """A graph from rows of images to one line of numbers each."""

    def __init__(self):
        self.nodes, self.tensors = [], []
        self.random = numpy.random.default_rng(5)

    def drawn(self, *sizes):
        return self.tensor(self.random.uniform(0.1, 1, sizes).astype(numpy.float32))

    def wholes(self, *values, scalar=False):
        return self.tensor(numpy.asarray(values[0] if scalar else values, dtype=numpy.int64))

    def tensor(self, values):
        name = f"tensor-{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator, *inputs, name=None, outputs=1, **attributes):
        names = [f"value-{len(self.nodes)}.{index}" for index in range(outputs)]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(operator, list(inputs), names, name=name, **given))
        return names[0]


def tried(build, operator, attribute, given, version):
    """The node that is tried, between what it needs; the name of the value it ends in."""
    image, add = "x", build.add

    def own(*inputs, **more):
        return add(operator, *inputs, name="tried", **given, **more)

    if operator in ("AveragePool", "MaxPool", "Dropout", "Elu", "Gelu", "LeakyRelu", "Softmax", "Transpose", "Flatten"):
        return own(image)
    if operator == "BatchNormalization":
        return own(image, *(build.drawn(2) for _ in range(4)))
    if operator == "Cast":
        return add("Cast", own(add("Mul", image, build.tensor(numpy.float32(3)))), to=1)
    if operator == "Concat":
        return own(image, image)
    if operator == "Constant":
        if attribute in ("value_int", "value_ints"):
            return add("Gather", image, own(), axis=1)
        return add("Mul", image, own())
    if operator == "ConstantOfShape":
        filled = add("Cast", own(build.wholes(4)), to=1)
        return add("Mul", image, filled)
    if operator == "Conv":
        return own(image, build.drawn(4, 2 // given.get("group", 1), 2, 2))
    if operator in ("GRU", "LSTM", "RNN"):
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
        lines = add("Reshape", image, build.wholes(0, 8, 4))
        if not given.get("layout"):
            lines = add("Transpose", lines, perm=[1, 0, 2])
        answers = own(lines, build.drawn(1, 2 * gates, 4), build.drawn(1, 2 * gates, 2))
        if given.get("layout"):
            return answers
        return add("Transpose", add("Squeeze", answers, build.wholes(1)), perm=[1, 0, 2])
    if operator == "Gather":
        return own(image, build.wholes(1, scalar=True))
    if operator == "Gemm":
        return own(add("Flatten", image), build.drawn(32, 32), build.drawn(32))
    if operator == "LayerNormalization":
        axis = given.get("axis", -1)
        return own(image, build.drawn(*((2, 4, 4)[axis - 1 if axis > 0 else axis :])))
    if operator == "LogSoftmax":
        return own(add("Flatten", image))
    if operator == "Mod":
        rest = own(build.wholes(7, scalar=True), build.wholes(4, scalar=True))
        return add("Mul", image, add("Cast", rest, to=1))
    if operator == "Range":
        ends = [build.wholes(number, scalar=True) for number in (0, 4, 1)]
        return add("Mul", image, add("Cast", own(*ends), to=1))
    if operator == "OneHot":
        chosen = add("Cast", image, to=7)
        bits = build.tensor(numpy.asarray([0, 1], dtype=numpy.float32))
        return own(chosen, build.wholes(3, scalar=True), bits)
    if operator == "ReduceMean":
        if attribute == "axes":
            return own(image)
        axes = build.wholes(*([] if attribute == "noop_with_empty_axes" else [1]))
        return own(image, axes) if version >= 18 else add("ReduceMean", image, name="tried", axes=[1], **given)
    if operator == "ReduceProd":
        return add("Mul", image, add("Cast", own(build.wholes(3)), to=1))
    if operator == "Reshape":
        return own(image, build.wholes(-1, 8, 4))
    if operator in ("Resize", "Upsample"):
        twice = build.tensor(numpy.asarray([2, 2] if "axes" in given else [1, 1, 2, 2], dtype=numpy.float32))
        return own(image, "", twice) if operator == "Resize" else own(image, twice)
    if operator == "Shape":
        sizes = add("Cast", add("ReduceProd", own(image), keepdims=0), to=1)
        if given.get("end") == 1:
            return image
        return add("Mul", image, add("Div", sizes, sizes) if not given.get("start") else sizes)
    if operator in ("Slice", "Unsqueeze"):
        return own(image)
    if operator == "Split":
        if version >= 18:
            given.setdefault("num_outputs", 2)
        return own(image, outputs=2)
    if operator == "Squeeze":
        return own(add("ReduceMean", image, axes=[1]))
    if operator == "Trilu":
        grid = build.tensor(numpy.full((4, 4), 2, dtype=numpy.int64))
        return add("Mul", image, add("Cast", own(grid), to=1))
    raise AssertionError(f"no graph for {operator}")


def saved(path, build, end, width, version, closing=None):
    """Writes the model: a product with a weight behind the value, unless its size is to be found out."""
    flat = build.add("Flatten", end) if closing is None else end
    if width:
        flat = build.add("Gemm", flat, build.drawn(width, 3), build.drawn(3))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", *SHAPE])
    answer = helper.make_tensor_value_info(flat, TensorProto.FLOAT, ["rows", 3 if width else "numbers"])
    graph = helper.make_graph(build.nodes, "tried", [image], [answer], build.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)
    onnx.save(model, path)


def reference(path, rows):
    """What onnxruntime answers; nothing if it cannot run the file, or answers without rows."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        model = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        (answers,) = model.run(None, {"x": rows.reshape(-1, *SHAPE)})
    except Exception:
        return None
    return answers if answers.ndim == 2 and len(answers) == len(rows) else None


@pytest.fixture
def table(jobs):
    """Rows of 32 numbers in three classes."""
    rows = numpy.random.default_rng(3).uniform(-2, 2, (48, 32)).astype(numpy.float32)
    lines = [",".join([*map(repr, map(float, row)), f"c{index % 3}"]) for index, row in enumerate(rows)]
    names = [f"n{column}" for column in range(32)]
    (jobs.folder / "rows.csv").write_text("\n".join([",".join([*names, "label"]), *lines]) + "\n")
    new = [",".join(map(repr, map(float, row))) for row in rows[:ROWS]]
    (jobs.folder / "new.csv").write_text("\n".join([",".join(names), *new]) + "\n")
    return rows[:ROWS]


def softmax(scores):
    shares = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def check(jobs, path, expected, words):
    """Answers as onnxruntime, or refuses by name. Says whether it answered."""
    out = jobs.folder / "run"
    settings = [f"data.source={jobs.folder / 'rows.csv'}", "data.scale=none", "data.header=true", f"model.onnx={path}"]
    settings += ["train.max_steps=1", "train.optimizer.lr=1e-12", "train.global_batch=16", "engine.workers=1"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    ended = jobs.run("train", "--quiet", "--overwrite", "--out", out, *arguments)
    if ended.code != 0:
        assert ended.code == 2 and any(word in ended.stderr for word in words), str(ended)
        return False
    assert expected is not None, f"{words}: not refused, though onnxruntime cannot run it"
    said = jobs.run("predict", out, jobs.folder / "new.csv", "--probabilities")
    harness.succeed(said)
    rows = list(csv.reader(io.StringIO(said.stdout)))[1:]
    ours = numpy.asarray([row[2:] for row in rows], dtype=numpy.float32)
    numpy.testing.assert_allclose(softmax(expected), ours, atol=CLOSE, rtol=0, err_msg=str(words))
    return True


def model_of(jobs, operator, attribute, given, version, rows):
    """The file, and onnxruntime's answers."""
    path = jobs.folder / "tried.onnx"
    build = Builder()
    end = tried(build, operator, attribute, given, version)
    closing = operator if operator == "LogSoftmax" else None
    saved(path, build, end, None, version, closing)
    found = reference(path, rows)
    if closing:
        return path, None if given.get("axis") == 0 else found
    width = found.shape[1] if found is not None else 32
    build = Builder()
    end = tried(build, operator, attribute, given, version)
    saved(path, build, end, width, version)
    return path, reference(path, rows)


@pytest.mark.parametrize("operator", sorted(VALUES))
def test_attributes_are_honoured_or_refused(jobs, table, operator):
    for (owner, attribute), version in attributes().items():
        for value in VALUES[operator].get(attribute, []) if owner == operator else []:
            given = {**NEEDED.get(operator, {}), attribute: value}
            if operator == "Constant":
                given = {attribute: value if value is not None else sparse()}
            path, expected = model_of(jobs, operator, attribute, given, version, table)
            if attribute == "training_mode":
                # Trained here whatever it says; what it answers is what the file answers in use.
                _, expected = model_of(jobs, operator, attribute, {**given, attribute: 0}, version, table)
                model_of(jobs, operator, attribute, given, version, table)
            words = [attribute]
            if operator == "LogSoftmax":
                # 32 numbers are no classes: what is told is the axis, or that they are too many.
                words = ["axis" if value == 0 else "expected 3 numbers"]
            # These end in something that another node refuses.
            words += {"OneHot": ["only float", "`to`"], "Flatten": ["rows"], "Shape": ["depend"]}.get(operator, [])
            words += {"ReduceMean": ["axes"], "Transpose": ["rows"], "Dropout": ["ratio"]}.get(operator, [])
            check(jobs, path, expected, words)


def sparse():
    values = numpy_helper.from_array(numpy.asarray([0.5], dtype=numpy.float32), "sparse")
    places = numpy_helper.from_array(numpy.asarray([0], dtype=numpy.int64))
    return helper.make_sparse_tensor(values, places, [1])


def test_every_attribute_of_the_operator_sets_is_tried():
    missing = [f"{operator}.{name}" for operator, name in attributes() if name not in VALUES.get(operator, {})]
    assert not missing, f"attributes that no test tries: {missing}"
    assert onnx.defs.onnx_opset_version() <= NEWEST or len(operators()) > 60


def test_momentum_moves_running_statistics(jobs, table):
    """The batch of the one step is the same: what it brings in follows from either momentum."""
    load_file = pytest.importorskip("safetensors.numpy").load_file
    batches = []
    for momentum in (0.3, 0.8):
        path, expected = model_of(jobs, "BatchNormalization", "momentum", {"momentum": momentum}, 15, table)
        before = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
        with pytest.raises(AssertionError):
            check(jobs, path, expected, ["momentum"])
        after = load_file(jobs.folder / "run/model.safetensors")
        moved = [(after[name] - momentum * before[name]) / (1 - momentum) for name in ("tensor-2", "tensor-3")]
        batches.append(numpy.concatenate(moved))
    numpy.testing.assert_allclose(batches[0], batches[1], rtol=1e-4)
    assert numpy.abs(batches[0][:2]).max() < 0.5 and (batches[0][2:] > 1).all(), "rows are uniform in -2 to 2"


COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def test_all_ways_to_resize(jobs, table):
    answered = set()
    for coordinates in COORDINATES:
        for nearest in NEAREST:
            given = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
            path, expected = model_of(jobs, "Resize", "nearest_mode", given, 19, table)
            if check(jobs, path, expected, ["nearest_mode"]):
                answered.add((coordinates, nearest))
    assert {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")} <= answered
    assert ("asymmetric", "ceil") not in answered


def test_an_exported_model_comes_in_again_without_being_scaled_twice(jobs, table):
    """Standardised columns, the scaling of the job left as it is."""
    rows = numpy.random.default_rng(4).normal([900, -3], [200, 0.01], (200, 2))
    labels = (rows[:, 0] - 900) / 200 + (rows[:, 1] + 3) / 0.01 > 0
    text = "".join(f"{row[0]},{row[1]},{'yes' if label else 'no'}\n" for row, label in zip(rows, labels))
    (jobs.folder / "two.csv").write_text("a,b,label\n" + text)

    def accuracy(out, *settings):
        given = [f"data.source={jobs.folder / 'two.csv'}", "engine.workers=1", *settings]
        arguments = [word for setting in given for word in ("--set", setting)]
        harness.succeed(jobs.run("train", "--quiet", "--out", out, *arguments))
        return harness.report(out)["final"]["accuracy"]

    first = accuracy(jobs.folder / "first", "train.epochs=20")
    path = jobs.folder / "again.onnx"
    harness.succeed(jobs.run("export", jobs.folder / "first", path))
    assert first > 0.9
    again = accuracy(jobs.folder / "again", f"model.onnx={path}", "train.max_steps=1", "train.optimizer.lr=1e-12")
    assert again == first
