//! Arbitrary bytes in every format: errors, never a panic.

use crate::support::{batch, fit, folder, spec};
use proptest::prelude::*;
use thalweg_core::spec::data::{DataSpec, Missing};
use thalweg_core::spec::setting::Bytes;
use thalweg_data::{Data, Records, sniff};

fn open_everything(name: &str, bytes: &[u8]) {
    let folder = folder(&[(name, bytes)]);
    let mut spec = spec(folder.path(), name);
    let _ = sniff::sniff(&spec, &mut |_, _| ());
    for (missing, memory) in [(Missing::Error, 1 << 20), (Missing::Mean, 0)] {
        (spec.missing, spec.memory, spec.window) = (missing, Bytes(memory), 3);
        if let Ok(mut data) = Data::open(&spec, 1)
            && fit(&mut data).is_ok()
        {
            let _ = batch(&data.training);
        }
    }
}

/// Text that resembles a table.
fn table_like() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "1", ",", "\n", "\"", "abc", "-2.5", ";", " ", "\r\n", "?", "1e999", "\u{e9}", ":", "#", "\t", "|",
        "0:1",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..80)
        .prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_bytes_in_any_format(bytes in prop_oneof![table_like(), prop::collection::vec(any::<u8>(), 0..200)]) {
        for name in ["a.csv", "a.libsvm", "a.txt", "a.csv.gz"] {
            open_everything(name, &bytes);
        }
    }

    #[test]
    fn any_header_of_images(header in prop::collection::vec(prop_oneof![Just(0u8), Just(8), Just(3), any::<u8>()], 0..40)) {
        let files = [("train-images-idx3-ubyte", &header[..]), ("train-labels-idx1-ubyte", &header[..])];
        let folder = folder(&files);
        let _ = Data::open(&spec(folder.path(), ""), 1).map(|data| batch(&data.training));
    }

    #[test]
    fn any_records(text in table_like()) {
        let schema = Data::open(&DataSpec::default(), 1).unwrap().schema;
        let read = |mut records: Records<&[u8]>| {
            let mut batch = records.empty_batch();
            while let Ok(true) = records.next_batch(3, &mut batch) {}
        };
        read(Records::json(&text[..], &schema));
        if let Ok(records) = Records::csv(&text[..], &schema, &DataSpec::default()) {
            read(records);
        }
    }
}
