//! Rows given as arrays.

use crate::support::all;
use thalweg_core::{Targets, Task};
use thalweg_data::Data;

#[test]
fn arrays_are_not_scaled() {
    let features: Vec<f32> = (0..20_000).map(|n| n as f32).collect();
    let classes = Targets::Classes((0..10_000).map(|n| n % 3).collect());
    let data = Data::in_memory(2, features, classes, 0.1, 4).unwrap();
    assert_eq!((data.training.len(), data.validation.len()), (9000, 1000));
    assert_eq!((data.schema.classes.len(), data.needs_statistics()), (3, false));
    let (values, Targets::Classes(classes)) = all(&data.training).unwrap() else { panic!("not classes") };
    for (index, row) in values.chunks(2).enumerate() {
        let id = data.training.id(index as u64);
        assert_eq!(
            (row[0], row[1], u64::from(classes[index])),
            (2.0 * id as f32, 2.0 * id as f32 + 1.0, id % 3)
        );
    }
    let values = Targets::Values(vec![0.5, 1.5]);
    let data = Data::in_memory(1, vec![1.0, 2.0], values.clone(), 0.0, 4).unwrap();
    assert_eq!((data.schema.task, all(&data.training).unwrap().1), (Task::Regression, values));
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let open = |width, features: &[f32], targets| Data::in_memory(width, features.to_vec(), targets, 0.0, 1);
    let message = |result: thalweg_core::Result<Data>| result.unwrap_err().message;
    assert!(message(open(2, &[1.0], Targets::Classes(vec![0]))).contains("but there are 1"));
    assert!(message(open(2, &[], Targets::Classes(vec![]))).contains("no rows"));
    assert!(message(open(1, &[f32::NAN], Targets::Classes(vec![0]))).contains("row 0, column 0"));
    assert!(message(open(1, &[1.0], Targets::Values(vec![f32::INFINITY]))).contains("row 0: the target"));
}

#[test]
fn checksums_change_with_one_value() {
    let checksums =
        |features: Vec<f32>, targets| Data::in_memory(2, features, targets, 0.0, 1).unwrap().checksums();
    let classes = || Targets::Classes(vec![0, 1]);
    let one = checksums(vec![1.0, 2.0, 3.0, 4.0], classes());
    assert_eq!(one, checksums(vec![1.0, 2.0, 3.0, 4.0], classes()));
    assert_ne!(one, checksums(vec![1.0, 2.0, 3.0, 5.0], classes()));
    assert_ne!(one, checksums(vec![1.0, 2.0, 3.0, 4.0], Targets::Classes(vec![1, 0])));
}
