//! IDX folders through the public API.

use crate::support::{all, fit, folder, spec};
use thalweg_core::Targets;
use thalweg_core::spec::data::Scale;
use thalweg_core::spec::setting::{Bytes, HeldOut};
use thalweg_data::Data;

fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend(data);
    bytes
}

#[test]
fn pixels_are_divided_and_the_test_part_validates() {
    let files = [
        ("train-images-idx3-ubyte", idx(&[4, 1, 2], &[0, 255, 51, 102, 0, 0, 255, 255])),
        ("train-labels-idx1-ubyte", idx(&[4], &[0, 1, 0, 1])),
        ("t10k-images-idx3-ubyte", idx(&[1, 1, 2], &[255, 0])),
        ("t10k-labels-idx1-ubyte", idx(&[1], &[1])),
    ];
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
    let folder = folder(&files);
    let mut spec = spec(folder.path(), "");
    (spec.scale, spec.validation) = (Scale::Auto, None);
    let data = Data::open(&spec, 1).unwrap();
    assert!(!data.needs_statistics());
    let (pixels, targets) = all(&data.training).unwrap();
    assert!(
        pixels.iter().zip([0.0, 1.0, 0.2, 0.4]).all(|(&pixel, expected)| (pixel - expected).abs() < 1e-6)
    );
    assert_eq!(targets, Targets::Classes(vec![0, 1, 0, 1]));
    assert_eq!(all(&data.validation).unwrap(), (vec![1.0, 0.0], Targets::Classes(vec![1])));
    assert_eq!((data.validation.source_len(), data.validation.id(0)), (1, 0));
    spec.validation = Some(HeldOut::Share(0.5));
    assert_eq!(
        Data::open(&spec, 1).unwrap().validation.source_len(),
        4,
        "a share is drawn from the training part"
    );
    (spec.scale, spec.validation) = (Scale::Standard, Some(HeldOut::Share(0.0)));
    let mut standard = Data::open(&spec, 1).unwrap();
    fit(&mut standard).unwrap();
    let (pixels, _) = all(&standard.training).unwrap();
    assert!(pixels.iter().step_by(2).sum::<f32>().abs() < 1e-5);
    spec.memory = Bytes(0);
    let mut streamed = Data::open(&spec, 1).unwrap();
    fit(&mut streamed).unwrap();
    assert_eq!(all(&streamed.training).unwrap().0, pixels);
}

#[test]
fn checksums_change_with_one_pixel_or_label_in_either_part() {
    let checksums = |pixel: u8, label: u8, unseen: u8, memory: u64| {
        let folder = folder(&[
            ("train-images-idx3-ubyte", &idx(&[2, 1, 2], &[1, 2, 3, pixel])),
            ("train-labels-idx1-ubyte", &idx(&[2], &[label, 1 - label])),
            ("t10k-images-idx3-ubyte", &idx(&[1, 1, 2], &[unseen, 2])),
            ("t10k-labels-idx1-ubyte", &idx(&[1], &[0])),
        ]);
        let mut spec = spec(folder.path(), "");
        (spec.validation, spec.memory) = (None, Bytes(memory));
        Data::open(&spec, 1).unwrap().checksums()
    };
    let one = checksums(4, 0, 1, 1 << 20);
    assert_eq!(one, checksums(4, 0, 1, 0), "streamed or not");
    for other in [checksums(5, 0, 1, 0), checksums(4, 1, 1, 1 << 20), checksums(4, 0, 2, 0)] {
        assert_ne!(one, other);
    }
}
