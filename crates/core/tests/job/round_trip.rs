//! Property tests: a written job is read back unchanged, and no text makes the parser panic.

use crate::resolve;
use proptest::prelude::*;
use std::time::Duration;
use thalweg_core::spec::optimizer::OptimizerKind;
use thalweg_core::spec::setting::{Auto, Bytes, ColumnRef, HeldOut};
use thalweg_core::spec::{JobSpec, data};

/// Strings, including ones that need escapes.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z./:*]{1,12}", "\\PC{1,8}", Just("a\"b\\c\n'''#".to_string()), Just("true".to_string())]
}

/// Any path; addresses of other machines are refused elsewhere.
fn source() -> impl Strategy<Value = String> {
    text().prop_filter("an address", |source| !source.contains("://"))
}

fn data() -> impl Strategy<Value = data::DataSpec> {
    let label = prop_oneof![
        Just(None),
        text().prop_map(|name| Some(ColumnRef::Name(name))),
        any::<i64>().prop_map(|index| Some(ColumnRef::Index(index))),
    ];
    let validation = prop_oneof![
        Just(None),
        (0.0..1.0f64).prop_map(|share| Some(HeldOut::Share(share))),
        source().prop_map(|source| Some(HeldOut::Source(source))),
    ];
    let header = prop_oneof![Just(Auto::Auto), any::<bool>().prop_map(Auto::Is)];
    let columns = proptest::collection::vec(text(), 0..3);
    (source(), label, header, columns, validation, 0..1u64 << 50, 1..100usize).prop_map(
        |(source, label, header, ignore, validation, memory, window)| data::DataSpec {
            source,
            label,
            header,
            ignore,
            validation,
            memory: Bytes(memory),
            window,
            ..Default::default()
        },
    )
}

fn job() -> impl Strategy<Value = JobSpec> {
    let numbers = (1..10_000usize, 1..1000u64, 0..i64::MAX as u64, 1..4096usize, 1e-9..1e9f64, 0.0..1.0f64);
    let times = (1..100_000_000u64, proptest::option::of(1..100_000_000u64));
    (data(), numbers, times).prop_map(|(data, (batch, epochs, seed, workers, lr, momentum), (step, join))| {
        let mut spec = JobSpec { data, ..JobSpec::default() };
        (spec.train.global_batch, spec.train.epochs, spec.train.seed) = (batch, epochs, seed);
        (spec.engine.workers, spec.optimizer.lr) = (workers, lr);
        (spec.optimizer.kind, spec.optimizer.momentum) = (OptimizerKind::Momentum, Some(momentum));
        spec.fault.step_deadline = Duration::from_millis(step);
        spec.fault.join_deadline = join.map_or(Auto::Auto, |join| Auto::Is(Duration::from_millis(join)));
        spec
    })
}

proptest! {
    /// The launcher sends this text to its workers, which must resolve the same job.
    #[test]
    fn a_written_job_is_read_back(spec in job()) {
        let text = spec.to_toml();
        let again = resolve(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}")).spec;
        prop_assert_eq!(&again, &spec, "{}", text);
        prop_assert_eq!(again.hash(), spec.hash());
    }

    /// Any input gives a job or an error.
    #[test]
    fn no_text_makes_the_parser_panic(file in "\\PC{0,60}", assignment in "\\PC{0,40}") {
        let _ = resolve(&file, &[&assignment]);
    }
}
