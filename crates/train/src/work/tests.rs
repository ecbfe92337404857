use super::*;
use thalweg_core::batch::Targets;
use thalweg_core::spec::JobLayers;
use thalweg_data::Data;

fn shares(workers: usize) -> (Shares, Data) {
    let mut layers = JobLayers::default();
    layers.add_assignment("train.global_batch=6").unwrap();
    let job = crate::registry::resolve(layers).unwrap().spec;
    let data = Data::in_memory(1, vec![0.0; 20], Targets::Classes(vec![0; 20]), 0.0, 1).unwrap();
    let mut shares = Shares::new(&job, &data.training, 0, &[]).unwrap();
    shares.divide(0, (0..workers).collect(), Split::new(&job, workers, &[]));
    (shares, data)
}

/// The summary of workers that have done `steps` steps each, with the checksum of the rows of these steps.
fn summary(shares: &mut Shares, steps: &[u64]) -> StepSummary {
    let mut rows = Vec::new();
    for (worker, steps) in steps.iter().enumerate() {
        for step in 0..*steps {
            let count = shares.rows(shares.next + step).len();
            let range = shares.split.share(count, worker).rows;
            rows.extend_from_slice(&shares.rows[range]);
        }
    }
    let compute_ms = vec![1.0; steps.len()];
    StepSummary { steps: steps.to_vec(), rows: RowChecksum::of(&rows), compute_ms, ..StepSummary::default() }
}

#[test]
fn a_unit_that_ends_early_on_some_ranks_leaves_the_other_rows_for_later() {
    let (mut shares, data) = shares(2);
    assert_eq!(shares.steps_per_epoch(), 4);
    let early = summary(&mut shares, &[3, 1]);
    let committed = shares.commit(&early, Proof::Checksum).unwrap();
    assert_eq!((shares.next(), committed.rows, committed.by_worker), (1, 12, vec![9, 3]));
    assert_eq!((shares.rows(1).len(), shares.rows(2).len(), shares.rows(3).len()), (3, 3, 2));
    let interrupted = shares.audit(&data.training, 0);
    assert_eq!((interrupted.expected, interrupted.missed, interrupted.repeated), (12, 0, 0));
    let rest = summary(&mut shares, &[3, 3]);
    assert_eq!(shares.commit(&rest, Proof::Checksum).unwrap().rows, 8);
    let audit = shares.audit(&data.training, 0);
    assert_eq!((audit.expected, audit.once, audit.missed, audit.repeated), (20, 20, 0, 0));
}

#[test]
fn rows_of_later_steps_stay_left_out_where_each_rank_counts_its_own() {
    let (mut before, data) = shares(2);
    let early = summary(&mut before, &[3, 1]);
    before.commit(&early, Proof::Checksum).unwrap();
    let consumed = before.consumed().to_bytes();
    let mut job = thalweg_core::JobSpec::default();
    job.train.global_batch = 6;
    let mut ranks = [0, 1].map(|worker| {
        let mut shares = Shares::new(&job, &data.training, 1, &consumed).unwrap();
        shares.divide(worker, vec![0, 1], Split::new(&job, 2, &[]));
        shares
    });
    for step in 1..4 {
        for shares in &mut ranks {
            let planned = shares.plan(step);
            let own = planned.rows[planned.share.rows.clone()].to_vec();
            let alone = summary(shares, &[1, 1]);
            shares.commit(&alone, Proof::Own(&own)).unwrap();
        }
    }
    let own = [0, 1].map(|worker: usize| ranks[worker].own().to_bytes());
    ranks[0].collect(&own).unwrap();
    let audit = ranks[0].audit(&data.training, 0);
    assert_eq!((audit.expected, audit.once, audit.missed, audit.repeated), (20, 20, 0, 0));
}

#[test]
fn rows_that_the_checksum_does_not_confirm_are_an_error() {
    let (mut shares, _) = shares(2);
    let wrong = StepSummary { rows: RowChecksum::of(&[1, 2]), ..summary(&mut shares, &[1, 1]) };
    assert!(shares.commit(&wrong, Proof::Checksum).unwrap_err().message.contains("was not made of the rows"));
    assert_eq!(shares.next(), 0);
}
