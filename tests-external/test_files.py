"""Common tools read the files that thalweg writes, and the other way round."""

import csv
import gzip
import json
import math

import harness
import pytest

numpy = pytest.importorskip("numpy")
safe_open = pytest.importorskip("safetensors").safe_open


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on digits, shared by the tests that only read it."""
    jobs = harness.Jobs(tmp_path_factory.mktemp("files"))
    out = jobs.folder / "run"
    ended = jobs.run("train", jobs.job(), "--workers", 2, "--out", out)
    jobs.close()
    harness.succeed(ended)
    return out


def digits():
    """The pixels of the built-in digits as numbers, one list per row, and the labels."""
    with gzip.open(harness.ROOT / "crates/data/assets/digits.csv.gz", "rt") as file:
        rows = [[float(value) for value in row] for row in csv.reader(file)]
    return [row[:-1] for row in rows], [f"{row[-1]:g}" for row in rows]


def forward(run, rows):
    """The outputs of the model and its class names, computed by NumPy from the model file alone."""
    with safe_open(str(run / "model.safetensors"), framework="numpy") as file:
        schema, layers = (json.loads(json.loads(file.metadata()["thalweg"])[key]) for key in ("schema", "layers"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    scaling = schema["scaling"]
    values = numpy.asarray(rows, dtype=numpy.float32)
    values = values - numpy.asarray(scaling["shift"] or 0, dtype=numpy.float32)
    values = values * numpy.asarray(scaling["factor"] or 1, dtype=numpy.float32)
    for number, layer in enumerate(layers):
        weight, bias = tensors[f"layers.{number}.weight"], tensors[f"layers.{number}.bias"]
        assert weight.shape[0] == bias.shape[0] == int(layer.split()[1])
        values = values @ weight.T + bias
        if layer.endswith("relu"):
            values = numpy.maximum(values, 0)
    return values, numpy.asarray(schema["classes"])


def predicted_classes(text):
    """The predicted class of each row of predict's CSV."""
    header, *rows = csv.reader(text.splitlines())
    known = ("prediction", "predicted", "class", "label")
    column = next((header.index(name) for name in known if name in header), len(header) - 1)
    return [row[column] for row in rows]


def test_numpy_gives_the_same_predictions_from_the_model_file(jobs, run):
    rows, labels = digits()
    outputs, classes = forward(run, rows)
    ours = classes[outputs.argmax(axis=1)]
    assert (ours == labels).mean() > 0.85

    path, out = jobs.folder / "rows.csv", jobs.folder / "predicted.csv"
    path.write_text("".join(",".join(f"{value:g}" for value in row) + "\n" for row in rows))
    harness.succeed(jobs.run("predict", run, path, "--format", "csv", "--out", out))
    theirs = predicted_classes(out.read_text())
    assert len(theirs) == len(rows)

    ordered = numpy.sort(outputs, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-3
    assert clear.sum() > 0.95 * len(rows)
    wrong = [row for row in numpy.flatnonzero(clear) if ours[row] != theirs[row]]
    shown = [f"row {row}: NumPy {ours[row]}, thalweg {theirs[row]}" for row in wrong[:10]]
    assert not wrong, f"{len(wrong)} rows differ: {shown}"


def test_tensorboard_reads_the_events(run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    files = sorted(run.glob("**/*tfevents*"))
    assert files, f"no TensorBoard events in {sorted(path.name for path in run.iterdir())}"
    scalars = {}
    for folder in {path.parent for path in files}:
        events = accumulator.EventAccumulator(str(folder)).Reload()
        scalars.update({tag: events.Scalars(tag) for tag in events.Tags()["scalars"]})
    losses = [points for tag, points in scalars.items() if "loss" in tag]
    assert losses, f"no loss among {sorted(scalars)}"
    for points in losses:
        assert points and all(math.isfinite(point.value) for point in points)
        steps = [point.step for point in points]
        assert steps == sorted(steps)


def test_tensorboard_has_no_step_twice_after_a_job_was_killed(jobs):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = jobs.folder / "killed"
    job = jobs.job()
    first = jobs.start(
        "train", job, "--workers", 2, "--out", out, "--set", "train.epochs=1000000", "--set", "fault.checkpoint_every=50"
    )
    harness.wait_for_event(out, first, '"event":"checkpoint"')
    # Wait for steps after the checkpoint, which are repeated after the resume.
    files = list(out.glob("*tfevents*"))
    size = files[0].stat().st_size
    harness.wait_until(lambda: files[0].stat().st_size > size, first)
    first.kill()
    before = accumulator.EventAccumulator(str(out), {"scalars": 0}).Reload().Scalars("train/loss")
    resumed_at = max(int(path.name[5:14]) for path in (out / "checkpoints").glob("step-*.safetensors"))
    harness.succeed(jobs.run("resume", out, "--set", f"train.max_steps={resumed_at + 500}", "--set", "train.epochs=1000000"))
    events = accumulator.EventAccumulator(str(out), {"scalars": 0}).Reload()
    for tag in ("train/loss", "train/samples_per_s", "validation/accuracy"):
        steps = [point.step for point in events.Scalars(tag)]
        assert steps == sorted(set(steps)), f"{tag}: {steps}"
    after = [point.step for point in events.Scalars("train/loss")]
    kept = [point.step for point in before if point.step <= resumed_at]
    assert kept and after[: len(kept)] == kept and after[-1] > resumed_at, (kept, after)
    superseded = {point.wall_time for point in before if point.step > resumed_at}
    assert not superseded & {point.wall_time for point in events.Scalars("train/loss")}


def test_the_report_has_its_documented_keys(run):
    report = harness.report(run)
    wanted = {"job", "dials", "world", "final", "wall_s", "samples_per_s", "ranks", "audit", "failures", "outcome"}
    assert wanted <= report.keys(), f"missing: {sorted(wanted - report.keys())}"
    assert {"loss", "accuracy"} <= report["final"].keys()
    assert report["wall_s"] > 0 and report["samples_per_s"] > 0 and report["failures"] == []
    measured = {"rank", "host", "compute_s", "exchange_s", "hidden_s", "wait_s", "bytes_sent", "bytes_received"}
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    for rank in report["ranks"]:
        assert measured <= rank.keys(), f"missing: {sorted(measured - rank.keys())}"
        assert rank["bytes_sent"] > 0 and rank["bytes_received"] > 0


def test_every_training_row_is_computed_once_per_epoch(run):
    audits = harness.report(run)["audit"]
    assert [audit["epoch"] for audit in audits] == list(range(10))
    for audit in audits:
        assert audit["once"] == audit["expected"] > 0, audit
        assert audit["missed"] == audit["repeated"] == audit["dropped"] == 0, audit


PARQUET_JOB = """\
[data]
source = "{source}"
label = "answer"
{missing}
[model]
layers = ["dense 16 relu", "dense 2"]

[train]
epochs = 30
global_batch = 32
"""


def write_parquet(path, compression, first=0, rows=300):
    """A table with whole numbers, numbers, texts and nulls, from which `answer` can be learned."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    numbers = range(first, first + rows)
    waves = [math.sin(0.7 * number) for number in numbers]
    table = pyarrow.table({
        "count": pyarrow.array([None if n % 17 == 0 else n % 10 for n in numbers], pyarrow.int64()),
        "small": pyarrow.array([n % 7 for n in numbers], pyarrow.int32()),
        "wave": pyarrow.array([None if n % 23 == 0 else wave for n, wave in zip(numbers, waves)], pyarrow.float64()),
        "single": pyarrow.array([wave / 2 for wave in waves], pyarrow.float32()),
        "colour": pyarrow.array([None if n % 31 == 0 else ("red", "green", "blue")[n % 3] for n in numbers]),
        "answer": pyarrow.array(["up" if wave > 0 else "down" for wave in waves]),
    })
    pyarrow.parquet.write_table(table, path, compression=compression, row_group_size=100)


def train_parquet(jobs, source, missing):
    job = jobs.job(PARQUET_JOB.format(source=source, missing=missing), "parquet.toml")
    out = jobs.folder / "parquet"
    return jobs.run("train", job, "--workers", 2, "--out", out), out


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4"])
def test_parquet_from_pyarrow_trains(jobs, compression):
    path = jobs.folder / "rows.parquet"
    write_parquet(path, compression)
    ended, out = train_parquet(jobs, path, 'missing = "mean"')
    harness.succeed(ended)
    assert harness.report(out)["final"]["accuracy"] > 0.9, str(ended)


def test_brotli_in_parquet_is_named(jobs):
    path = jobs.folder / "rows.parquet"
    write_parquet(path, "brotli")
    ended, _ = train_parquet(jobs, path, 'missing = "mean"')
    assert ended.code == 2 and "is compressed with brotli, which this build cannot read" in ended.stderr, str(ended)


PANDAS_JOB = """\
[data]
source = "{source}"
label = "answer"
{more}
"""


def test_missing_values_and_the_index_as_pandas_writes_them(jobs):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "wave": [math.sin(n) if n % 9 else None for n in range(200)],
        "colour": [("red", "green", None)[n % 3] for n in range(200)],
        "answer": ["up" if n % 2 else "down" for n in range(200)],
    })
    for word in ("", "N/A", "None", "<NA>", "#N/A", "nan"):
        path = jobs.folder / "frame.csv"
        frame.to_csv(path, na_rep=word)
        assert pandas.read_csv(path)["wave"].isna().sum() == frame["wave"].isna().sum()
        job = jobs.job(PANDAS_JOB.format(source=path, more='missing = "mean"'), "pandas.toml")
        ended = jobs.run("train", job, "--set", "train.max_steps=2", "--overwrite", "--out", jobs.folder / "pandas")
        harness.succeed(ended)
        assert "column 0 has no name and numbers the rows" in ended.stderr, str(ended)


def test_parquet_parts_with_different_compression_are_one_source(jobs):
    write_parquet(jobs.folder / "part-0.parquet", "snappy")
    write_parquet(jobs.folder / "part-1.parquet", "zstd", first=300)
    ended, out = train_parquet(jobs, jobs.folder / "part-*.parquet", 'missing = "mean"\nvalidation = 0.25')
    harness.succeed(ended)
    assert harness.report(out)["audit"][0]["expected"] == 450


def test_a_null_in_parquet_is_refused_by_default(jobs):
    path = jobs.folder / "rows.parquet"
    write_parquet(path, "snappy")
    ended, _ = train_parquet(jobs, path, "")
    assert ended.code == 2 and "rows.parquet row " in ended.stderr, str(ended)
    assert any(column in ended.stderr for column in ("count", "wave", "colour")), str(ended)
