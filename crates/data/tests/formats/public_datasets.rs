//! Public data sets; skipped where they are not available.

use std::io::Write;
use std::path::PathBuf;
use thalweg_core::spec::data::{DataSpec, Missing, Scale};
use thalweg_core::spec::setting::{Auto, ColumnRef};
use thalweg_core::{Features, Targets, Task};
use thalweg_data::{Data, Rows, Sampler};

/// The path of a shared data set, if available.
fn shared(path: &str) -> Option<String> {
    let full = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(path);
    if full.exists() {
        return Some(full.to_str()?.into());
    }
    // Written to stderr directly: the test runner hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "skipped: {path} is not at hand");
    None
}

fn open(spec: &DataSpec) -> Data {
    let mut data = Data::open(spec, 7).unwrap();
    if data.needs_statistics() {
        let parts = [data.statistics(0, 2).unwrap(), data.statistics(1, 2).unwrap()];
        data.fit(&parts).unwrap();
    }
    data
}

/// Loads every row and returns the number of rows per class.
fn classes(rows: &Rows, classes: usize) -> Vec<usize> {
    let ids: Vec<u64> = (0..rows.len()).map(|index| rows.id(index)).collect();
    let mut batch = rows.empty_batch();
    rows.load(&ids, 0, &mut batch).unwrap();
    if let Features::Dense(values) = &batch.features {
        assert_eq!(values.len(), ids.len() * batch.width);
        assert!(values.iter().all(|value| value.is_finite()));
    }
    let Targets::Classes(targets) = batch.targets else { panic!("not classes") };
    let mut counts = vec![0; classes];
    targets.iter().for_each(|&class| counts[class as usize] += 1);
    counts
}

#[test]
fn digits_are_built_in() {
    let data = open(&DataSpec::default());
    assert_eq!((data.training.len(), data.validation.len(), data.schema.width()), (1438, 359, 64));
    assert_eq!(data.schema.classes, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    let counts = classes(&data.training, 10);
    assert!(counts.iter().all(|&count| count > 120), "{counts:?}");
    let mut batch = data.training.empty_batch();
    let mut sampler = Sampler::new(&data.training, 7, 64);
    data.training.load(sampler.rows(0, 0), 0, &mut batch).unwrap();
    let Features::Dense(values) = &batch.features else { panic!("not dense") };
    assert!(values.iter().all(|value| (0.0..=1.0).contains(value)));
}

#[test]
fn uci_tables() {
    for (name, rows, width, kinds) in
        [("iris", 150, 4, 3), ("wine", 178, 13, 3), ("breast_cancer", 569, 30, 2)]
    {
        let Some(source) = shared(&format!("uci/{name}.csv.gz")) else { return };
        // The first line of these files is neither a row nor a header: iris looks like a header, the others
        // do not fit.
        let automatic = Data::open(&DataSpec { source: source.clone(), ..Default::default() }, 7);
        match name {
            "iris" => assert_eq!(automatic.unwrap().training.source_len(), 150),
            _ => assert!(automatic.unwrap_err().message.contains("line 1 has")),
        }
        let data = open(&DataSpec { source, header: Auto::Is(true), ..Default::default() });
        assert_eq!((data.training.source_len(), data.schema.width()), (rows, width), "{name}");
        assert_eq!(classes(&data.training, kinds).iter().sum::<usize>() as u64, data.training.len());
    }
}

#[test]
fn adult_with_its_test_part() {
    let (Some(source), Some(test)) = (shared("tabular/adult.data.gz"), shared("tabular/adult.test.gz"))
    else {
        return;
    };
    let spec = DataSpec { source, missing: Missing::Mean, ..Default::default() };
    let data = open(&spec);
    assert_eq!((data.training.source_len(), data.schema.width()), (32_561, 108));
    assert_eq!(data.schema.classes, ["<=50K", ">50K"]);
    let counts = classes(&data.training, 2);
    let validation = classes(&data.validation, 2);
    assert_eq!(counts[1] + validation[1], 7841);
    let rows = Data::open_for_evaluation(&DataSpec { source: test, ..spec.clone() }, &data.schema).unwrap();
    assert_eq!(classes(&rows, 2), [12_435, 3846]);
    let strict = Data::open(&DataSpec { missing: Missing::Error, ..spec }, 7).unwrap();
    let message = strict.statistics(0, 1).unwrap_err().message;
    assert!(
        message.contains("adult.data.gz line 15, column `c13`: `?` stands for a missing value"),
        "{message}"
    );
}

#[test]
fn shuttle_and_bikes() {
    let (Some(shuttle), Some(bikes)) = (shared("tabular/shuttle.csv.gz"), shared("tabular/bike_hour.csv.gz"))
    else {
        return;
    };
    let data = open(&DataSpec { source: shuttle, ..Default::default() });
    assert_eq!((data.training.source_len(), data.schema.classes.len()), (58_000, 7));
    let ignore = ["instant", "dteday", "casual", "registered"].map(String::from).to_vec();
    let label = Some(ColumnRef::Name("cnt".into()));
    let data = open(&DataSpec { source: bikes, ignore, label, ..Default::default() });
    assert_eq!((data.training.source_len(), data.schema.width()), (17_379, 12));
    assert_eq!(data.schema.task, Task::Regression);
    assert!((data.schema.target.shift - 189.0).abs() < 5.0, "{:?}", data.schema.target);
}

#[test]
fn higgs_label_first_and_diabetes_spaces() {
    let Some(source) = shared("tabular/higgs7k.train.tsv.gz") else { return };
    let data = open(&DataSpec { source, label: Some(ColumnRef::Index(0)), ..Default::default() });
    assert_eq!((data.training.source_len(), data.schema.width()), (7000, 28));
    assert_eq!(data.schema.classes, ["0", "1"]);
    let Some(source) = shared("uci/diabetes_data_raw.csv.gz") else { return };
    let data = open(&DataSpec { source, ..Default::default() });
    assert_eq!((data.training.source_len(), data.schema.width()), (442, 9));
}

#[test]
fn mnist_validates_on_its_test_part() {
    let Some(source) = shared("mnist") else { return };
    let data = open(&DataSpec { source: source.clone(), ..Default::default() });
    assert_eq!((data.training.len(), data.validation.len(), data.schema.width()), (60_000, 10_000, 784));
    assert_eq!(classes(&data.validation, 10), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]);
    let mut batch = data.training.empty_batch();
    data.training.load(&[0], 0, &mut batch).unwrap();
    assert_eq!(batch.targets, Targets::Classes(vec![5]));
    let Features::Dense(pixels) = &batch.features else { panic!("not dense") };
    assert!((pixels.iter().sum::<f32>() - 107.941).abs() < 0.01);
    let rows = Data::open_for_evaluation(&DataSpec { source, ..Default::default() }, &data.schema).unwrap();
    assert_eq!(rows.len(), 10_000);
}

#[test]
fn a9a_stays_sparse_and_its_test_part_fits() {
    let (Some(source), Some(test)) = (shared("sparse/a9a.libsvm.gz"), shared("sparse/a9a.t.libsvm.gz"))
    else {
        return;
    };
    let spec = DataSpec { source, ..Default::default() };
    let data = open(&spec);
    assert_eq!((data.training.source_len(), data.schema.width()), (32_561, 123));
    assert_eq!(data.schema.classes, ["-1", "1"]);
    let (training, validation) = (classes(&data.training, 2), classes(&data.validation, 2));
    assert_eq!(training[1] + validation[1], 7841);
    let rows = Data::open_for_evaluation(&DataSpec { source: test, ..spec }, &data.schema).unwrap();
    assert_eq!(classes(&rows, 2), [12_435, 3846]);
}

#[test]
fn shakespeare_is_read_in_windows() {
    let Some(source) = shared("text/tinyshakespeare.txt.gz") else { return };
    let data = open(&DataSpec { source, window: 16, ..Default::default() });
    assert_eq!(data.training.source_len(), 1_115_394 - 16);
    assert_eq!(data.schema.classes.len(), 65);
    assert_eq!(data.validation.len(), ((1_115_394.0 - 16.0) * 0.2f64).round() as u64);
    let mut batch = data.training.empty_batch();
    data.training.load(&[0, 70_000], 0, &mut batch).unwrap();
    let (Features::Tokens { symbols, .. }, Targets::Classes(next)) = (&batch.features, &batch.targets) else {
        panic!("not tokens")
    };
    let text: String =
        symbols[..16].iter().map(|&symbol| data.schema.classes[symbol as usize].as_str()).collect();
    assert_eq!((text.as_str(), data.schema.classes[next[0] as usize].as_str()), ("First Citizen:\nB", "e"));
}

#[test]
fn rankings_and_wide_rows() {
    let Some(source) = shared("sparse/rank.train.libsvm.gz") else { return };
    let data = open(&DataSpec { source, ..Default::default() });
    assert_eq!((data.training.source_len(), data.schema.classes.len()), (3005, 5));
    let Some(source) = shared("sparse/rcv1_small.train.libsvm.gz") else { return };
    let data = open(&DataSpec { source, scale: Scale::Standard, ..Default::default() });
    assert_eq!(data.training.source_len(), 1000);
    assert_eq!(classes(&data.training, 2).iter().sum::<usize>(), 800);
}
