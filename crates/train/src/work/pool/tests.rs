use super::*;
use proptest::prelude::*;
use thalweg_core::batch::Targets;
use thalweg_core::spec::JobLayers;
use thalweg_data::Data;

const ROWS: usize = 50;

fn pool(workers: usize, per_lease: usize) -> Pool {
    let mut layers = JobLayers::default();
    for setting in ["train.global_batch=8", &format!("engine.workers={workers}")] {
        layers.add_assignment(setting).unwrap();
    }
    let job = crate::registry::resolve(layers).unwrap().spec;
    let data = Data::in_memory(1, vec![0.0; ROWS], Targets::Classes(vec![0; ROWS]), 0.0, 1).unwrap();
    Pool::new(&job, &data.training, per_lease)
}

fn worker(member: usize) -> Worker {
    Worker { member, since: 1 }
}

#[test]
fn a_lease_is_a_piece_of_a_step_and_counts_once() {
    let mut pool = pool(2, 1);
    pool.begin_epoch(1, 100, &ConsumedRows::new(ROWS as u64));
    let one = pool.hand_out(worker(0)).unwrap();
    let [piece] = &one.pieces[..] else { panic!("{one:?}") };
    assert_eq!((piece.step, piece.epoch, piece.of_step, piece.rows.len()), (7, 1, 8, 4));
    let rows = piece.rows.clone();
    assert_eq!(pool.commit(worker(1), one.number, &rows), 0, "of another worker");
    assert_eq!(pool.commit(Worker { member: 0, since: 2 }, one.number, &rows), 0, "of one with the same id");
    assert_eq!(pool.commit(worker(0), one.number, &rows), 4);
    assert_eq!(pool.commit(worker(0), one.number, &rows), 0, "again");
    assert_eq!((pool.rows(), pool.applied().count()), (ROWS as u64 + 4, 4));
}

#[test]
fn leases_of_workers_that_are_gone_come_first() {
    let mut pool = pool(2, 2);
    pool.begin_epoch(0, 100, &ConsumedRows::new(ROWS as u64));
    let (one, other) = (pool.hand_out(worker(0)).unwrap(), pool.hand_out(worker(1)).unwrap());
    assert_eq!(one.pieces.len(), 2);
    pool.keep(&[worker(1), Worker { member: 0, since: 2 }]);
    let again = pool.hand_out(worker(1)).unwrap();
    assert_eq!(again.pieces, one.pieces);
    assert_ne!(again.number, one.number);
    assert_eq!(pool.commit(worker(0), one.number, &[]), 0, "the lost worker's update came late");
    assert!(pool.has(worker(1), other.number) && pool.rows_out() > 0);
}

#[test]
fn what_was_computed_before_is_left_out_and_the_job_ends_where_it_ends() {
    let mut pool = pool(2, 1);
    let mut done = ConsumedRows::new(ROWS as u64);
    let first: Vec<u64> = pool.sampler.rows(0, 0).to_vec();
    let second: Vec<u64> = pool.sampler.rows(0, 1).to_vec();
    done.enter(&first);
    done.enter(&second[..3]);
    pool.begin_epoch(0, 2, &done);
    let leases: Vec<Lease> = std::iter::from_fn(|| pool.hand_out(worker(0))).collect();
    let rows: Vec<u64> = leases.iter().flat_map(Lease::rows).collect();
    assert_eq!((rows, pool.is_exhausted()), (second[3..].to_vec(), true));
    assert_eq!((pool.rows(), pool.rows_out()), (11, 5));
}

proptest! {
    /// Whatever workers do and whoever is lost: every row of the epoch is applied once.
    #[test]
    fn every_row_is_applied_once(
        workers in 1usize..5, per_lease in 1usize..4, events in prop::collection::vec((0usize..4, 0usize..8), 0..200),
    ) {
        let mut pool = pool(workers, per_lease);
        pool.begin_epoch(0, 100, &ConsumedRows::new(ROWS as u64));
        let mut incarnations: Vec<Worker> = (0..4).map(worker).collect();
        let mut held: Vec<(Worker, Lease)> = Vec::new();
        let finish = std::iter::repeat_n((0usize, 0usize), 400);
        for (member, what) in events.into_iter().chain(finish) {
            let of_member = held.iter().position(|(holder, _)| holder.member == member);
            match (what, of_member) {
                (7, _) => {
                    // Lost and replaced; its last update may still arrive.
                    incarnations[member].since += 1;
                    pool.keep(&incarnations);
                }
                (_, Some(index)) => {
                    let (holder, lease) = held.remove(index);
                    let rows: Vec<u64> = lease.rows().collect();
                    let counted = pool.commit(holder, lease.number, &rows);
                    prop_assert_eq!(counted > 0, holder == incarnations[member]);
                }
                (_, None) => held.extend(pool.hand_out(incarnations[member]).map(|lease| (incarnations[member], lease))),
            }
        }
        // The others are lost, and worker 0 computes the rest.
        incarnations[1..].iter_mut().for_each(|other| other.since += 1);
        pool.keep(&incarnations);
        while let Some(lease) = held.pop().filter(|(holder, _)| *holder == incarnations[0]).map(|(_, lease)| lease).or_else(|| pool.hand_out(incarnations[0])) {
            let rows: Vec<u64> = lease.rows().collect();
            pool.commit(incarnations[0], lease.number, &rows);
        }
        prop_assert_eq!(pool.applied().count(), ROWS as u64);
        let mut all = ConsumedRows::new(ROWS as u64);
        (0..ROWS as u64).for_each(|row| all.enter(&[row]));
        let audit = pool.applied().close(0, &all);
        prop_assert_eq!((audit.once, audit.missed, audit.repeated), (ROWS as u64, 0, 0));
        prop_assert!(pool.is_exhausted() && pool.rows_out() == 0);
    }
}
