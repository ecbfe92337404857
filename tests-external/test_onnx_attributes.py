"""Every attribute of the supported ONNX operators, at values other than its default: the imported model gives the outputs
of onnxruntime, or is refused with the name of the attribute."""

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
# The newest operator set used with onnxruntime.
RUNTIME = 21
TOLERANCE = 1e-4
SHAPE = (2, 4, 4)
ROWS = 6


def operators():
    """The operators that the importer lists."""
    folder = harness.ROOT / "crates/graph/src/onnx/import"
    lists = [(folder / name).read_text() for name in ("importer.rs", "fold/mod.rs")]
    found = [re.search(r"const OPERATORS: \[&str; \d+\] = \[(.*?)\];", text, re.S) for text in lists]
    return sorted(name for match in found for name in re.findall(r'"(\w+)"', match.group(1)))


def versions(operator):
    """The versions of an operator in the supported operator sets, oldest first, each with its last set."""
    schemas = [schema for schema in onnx.defs.get_all_schemas_with_history() if schema.name == operator]
    schemas = sorted((schema for schema in schemas if schema.domain == ""), key=lambda schema: schema.since_version)
    ends = [schema.since_version - 1 for schema in schemas[1:]] + [NEWEST]
    return [(schema, end) for schema, end in zip(schemas, ends) if end >= OLDEST and schema.since_version <= NEWEST]


def attributes():
    """Every attribute with the newest operator set that has it, preferably one that onnxruntime runs."""
    found = {}
    for operator in operators():
        for schema, end in versions(operator):
            for name in schema.attributes:
                if (operator, name) not in found or schema.since_version <= RUNTIME:
                    found[operator, name] = max(min(end, RUNTIME), schema.since_version)
    return found


# Values other than the default.
HALF = numpy_helper.from_array(numpy.asarray([0.5], dtype=numpy.float32))
INTEGER = numpy_helper.from_array(numpy.asarray([1], dtype=numpy.int64))
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
    "ConstantOfShape": {"value": [HALF, INTEGER]},
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
# Further attributes that a node needs.
REQUIRED = {
    "AveragePool": {"kernel_shape": [2, 2], "count_include_pad": 1},
    # Keeps running statistics constant.
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
    """A graph from images to a vector per row."""

    def __init__(self):
        self.nodes, self.tensors = [], []
        self.random = numpy.random.default_rng(5)

    def random_tensor(self, *sizes):
        return self.tensor(self.random.uniform(0.1, 1, sizes).astype(numpy.float32))

    def integers(self, *values, scalar=False):
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


def under_test(build, operator, attribute, given, version):
    """Adds the node under test with its surrounding nodes; returns the name of the result."""
    image, add = "x", build.add

    def own(*inputs, **more):
        return add(operator, *inputs, name="tested", **given, **more)

    if operator in ("AveragePool", "MaxPool", "Dropout", "Elu", "Gelu", "LeakyRelu", "Softmax", "Transpose", "Flatten"):
        return own(image)
    if operator == "BatchNormalization":
        return own(image, *(build.random_tensor(2) for _ in range(4)))
    if operator == "Cast":
        return add("Cast", own(add("Mul", image, build.tensor(numpy.float32(3)))), to=1)
    if operator == "Concat":
        return own(image, image)
    if operator == "Constant":
        if attribute in ("value_int", "value_ints"):
            return add("Gather", image, own(), axis=1)
        return add("Mul", image, own())
    if operator == "ConstantOfShape":
        filled = add("Cast", own(build.integers(4)), to=1)
        return add("Mul", image, filled)
    if operator == "Conv":
        return own(image, build.random_tensor(4, 2 // given.get("group", 1), 2, 2))
    if operator in ("GRU", "LSTM", "RNN"):
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
        lines = add("Reshape", image, build.integers(0, 8, 4))
        if not given.get("layout"):
            lines = add("Transpose", lines, perm=[1, 0, 2])
        outputs = own(lines, build.random_tensor(1, 2 * gates, 4), build.random_tensor(1, 2 * gates, 2))
        if given.get("layout"):
            return outputs
        return add("Transpose", add("Squeeze", outputs, build.integers(1)), perm=[1, 0, 2])
    if operator == "Gather":
        return own(image, build.integers(1, scalar=True))
    if operator == "Gemm":
        return own(add("Flatten", image), build.random_tensor(32, 32), build.random_tensor(32))
    if operator == "LayerNormalization":
        axis = given.get("axis", -1)
        return own(image, build.random_tensor(*((2, 4, 4)[axis - 1 if axis > 0 else axis :])))
    if operator == "LogSoftmax":
        return own(add("Flatten", image))
    if operator == "Mod":
        rest = own(build.integers(7, scalar=True), build.integers(4, scalar=True))
        return add("Mul", image, add("Cast", rest, to=1))
    if operator == "Range":
        ends = [build.integers(number, scalar=True) for number in (0, 4, 1)]
        return add("Mul", image, add("Cast", own(*ends), to=1))
    if operator == "OneHot":
        chosen = add("Cast", image, to=7)
        bits = build.tensor(numpy.asarray([0, 1], dtype=numpy.float32))
        return own(chosen, build.integers(3, scalar=True), bits)
    if operator == "ReduceMean":
        if attribute == "axes":
            return own(image)
        axes = build.integers(*([] if attribute == "noop_with_empty_axes" else [1]))
        return own(image, axes) if version >= 18 else add("ReduceMean", image, name="tested", axes=[1], **given)
    if operator == "ReduceProd":
        return add("Mul", image, add("Cast", own(build.integers(3)), to=1))
    if operator == "Reshape":
        return own(image, build.integers(-1, 8, 4))
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
    """Writes the model, with a final dense layer if the width is known."""
    flat = build.add("Flatten", end) if closing is None else end
    if width:
        flat = build.add("Gemm", flat, build.random_tensor(width, 3), build.random_tensor(3))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", *SHAPE])
    output = helper.make_tensor_value_info(flat, TensorProto.FLOAT, ["rows", 3 if width else "numbers"])
    graph = helper.make_graph(build.nodes, "tested", [image], [output], build.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)
    onnx.save(model, path)


def reference(path, rows):
    """The outputs of onnxruntime; None if it cannot run the file, or the outputs have no rows."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        model = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        (outputs,) = model.run(None, {"x": rows.reshape(-1, *SHAPE)})
    except Exception:
        return None
    return outputs if outputs.ndim == 2 and len(outputs) == len(rows) else None


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


def check(jobs, path, expected, texts):
    """Asserts the outputs of onnxruntime, or a refusal with one of the texts. Returns whether it was accepted."""
    out = jobs.folder / "run"
    settings = [f"data.source={jobs.folder / 'rows.csv'}", "data.scale=none", "data.header=true", f"model.onnx={path}"]
    settings += ["train.max_steps=1", "train.optimizer.lr=1e-12", "train.global_batch=16", "engine.workers=1"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    ended = jobs.run("train", "--quiet", "--overwrite", "--out", out, *arguments)
    if ended.code != 0:
        assert ended.code == 2 and any(text in ended.stderr for text in texts), str(ended)
        return False
    assert expected is not None, f"{texts}: not refused, though onnxruntime cannot run it"
    predicted = jobs.run("predict", out, jobs.folder / "new.csv", "--probabilities")
    harness.succeed(predicted)
    rows = list(csv.reader(io.StringIO(predicted.stdout)))[1:]
    ours = numpy.asarray([row[2:] for row in rows], dtype=numpy.float32)
    numpy.testing.assert_allclose(softmax(expected), ours, atol=TOLERANCE, rtol=0, err_msg=str(texts))
    return True


def model_of(jobs, operator, attribute, given, version, rows):
    """The file and the outputs of onnxruntime."""
    path = jobs.folder / "tested.onnx"
    build = Builder()
    end = under_test(build, operator, attribute, given, version)
    closing = operator if operator == "LogSoftmax" else None
    saved(path, build, end, None, version, closing)
    found = reference(path, rows)
    if closing:
        return path, None if given.get("axis") == 0 else found
    width = found.shape[1] if found is not None else 32
    build = Builder()
    end = under_test(build, operator, attribute, given, version)
    saved(path, build, end, width, version)
    return path, reference(path, rows)


@pytest.mark.parametrize("operator", sorted(VALUES))
def test_attributes_are_honoured_or_refused(jobs, table, operator):
    for (owner, attribute), version in attributes().items():
        for value in VALUES[operator].get(attribute, []) if owner == operator else []:
            given = {**REQUIRED.get(operator, {}), attribute: value}
            if operator == "Constant":
                given = {attribute: value if value is not None else sparse()}
            path, expected = model_of(jobs, operator, attribute, given, version, table)
            if attribute == "training_mode":
                # The attribute does not affect training here; predictions are those of inference mode.
                _, expected = model_of(jobs, operator, attribute, {**given, attribute: 0}, version, table)
                model_of(jobs, operator, attribute, given, version, table)
            texts = [attribute]
            if operator == "LogSoftmax":
                # 32 outputs are not 3 classes: the error names the axis or the number.
                texts = ["axis" if value == 0 else "expected 3 numbers"]
            # The results of these are refused by another node.
            texts += {"OneHot": ["only float", "`to`"], "Flatten": ["rows"], "Shape": ["depend"]}.get(operator, [])
            texts += {"ReduceMean": ["axes"], "Transpose": ["rows"], "Dropout": ["ratio"]}.get(operator, [])
            check(jobs, path, expected, texts)


def sparse():
    values = numpy_helper.from_array(numpy.asarray([0.5], dtype=numpy.float32), "sparse")
    indices = numpy_helper.from_array(numpy.asarray([0], dtype=numpy.int64))
    return helper.make_sparse_tensor(values, indices, [1])


def test_every_attribute_of_the_operator_sets_has_values():
    missing = [f"{operator}.{name}" for operator, name in attributes() if name not in VALUES.get(operator, {})]
    assert not missing, f"attributes without test values: {missing}"
    assert onnx.defs.onnx_opset_version() <= NEWEST or len(operators()) > 60


def test_momentum_updates_running_statistics(jobs, table):
    """The batch statistics of the single step can be computed from the result with either momentum."""
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


def test_all_modes_of_resize(jobs, table):
    accepted = set()
    for coordinates in COORDINATES:
        for nearest in NEAREST:
            given = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
            path, expected = model_of(jobs, "Resize", "nearest_mode", given, 19, table)
            if check(jobs, path, expected, ["nearest_mode"]):
                accepted.add((coordinates, nearest))
    assert {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")} <= accepted
    assert ("asymmetric", "ceil") not in accepted


def test_an_exported_model_is_imported_without_scaling_twice(jobs, table):
    """Standardised columns, with the default scaling of the job."""
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
