//! Two servers and their workers, message by message.

use super::message::Request;
use super::*;
use crate::audit::ConsumedRows;
use crate::known_bugs::{self, KnownBug};
use crate::state::Spread;
use crate::step_report::StepReport;
use crate::work::pool::Lease;
use thalweg_core::batch::Targets;
use thalweg_core::spec::JobLayers;
use thalweg_data::Data;

const ROWS: usize = 48;

/// Counts updates.
struct Counting {
    state: State,
    updates: usize,
}

impl Owner for Counting {
    fn apply(&mut self, _: Values<'_>, _: Moment, answer: &mut Vec<f32>) {
        self.updates += 1;
        answer.extend_from_slice(self.state.parameters());
    }
    fn begin(&mut self) {}
    fn add(&mut self, _: usize, _: Values<'_>) {}
    fn commit(&mut self, _: usize, _: Moment, _: &mut Vec<f32>) {}
    fn initial_answer(&self) -> &[f32] {
        self.state.parameters()
    }
    fn published(&self) -> &[f32] {
        self.state.parameters()
    }
    fn state(&self) -> &State {
        &self.state
    }
    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

struct Shard {
    server: Server<Counting>,
    pool: Pool,
}

impl Shard {
    /// The first server hands out leases.
    fn new(is_first: bool, done: &ConsumedRows) -> Shard {
        let mut layers = JobLayers::default();
        for setting in
            ["strategy.preset=parameter-server", "strategy.scheduling.kind=async", "train.global_batch=8"]
        {
            layers.add_assignment(setting).unwrap();
        }
        let job = crate::registry::resolve(layers).unwrap().spec;
        let data = Data::in_memory(1, vec![0.0; ROWS], Targets::Classes(vec![0; ROWS]), 0.0, 1).unwrap();
        let owner = Counting { state: State::with_parameters(Spread::OnServers, 1), updates: 0 };
        let mut server = Server::new(&job, owner, 1);
        server.table.leases = is_first;
        let mut pool = Pool::new(&job, &data.training, 1);
        pool.begin_epoch(0, 100, done);
        Shard { server, pool }
    }

    fn set_workers(&mut self, workers: &[Worker]) {
        self.server.table.workers = workers.to_vec();
        self.server.table.generation += 1;
        self.server.table.called.clear();
        self.pool.keep(workers);
    }

    fn receive(&mut self, worker: Worker, done: Option<Done>, meets: bool) {
        let generation = self.server.table.generation;
        let request = Request { worker, generation, done, fetches: true, meets: false };
        let values: &[f32] = if request.done.is_some() { &[1.0] } else { &[] };
        let message = envelope::encode(&request, values).unwrap();
        let moment = |updates, _| Moment { updates, rate: 1.0 };
        let Server { table, owner, outbox, .. } = &mut self.server;
        let mut handler = Handler { table, owner, pool: &mut self.pool, moment: &moment, meets };
        handler.receive(worker.member, &message, outbox).unwrap();
    }

    /// The lease that a worker has, of those of the first server.
    fn lease(&self, worker: Worker) -> Option<Lease> {
        self.pool.lease_of(worker)
    }
}

fn done(lease: &Lease) -> Done {
    let rows = lease.pieces.iter().flat_map(|piece| piece.rows.clone()).collect();
    Done { lease: lease.number, version: 0, rows, share: lease.share(), report: StepReport::default() }
}

/// A worker is lost after the second server has applied its part, and a meeting is called at once. Returns the servers when
/// the worker that stays is called to it.
fn lose_a_worker_before_a_meeting() -> [Shard; 2] {
    let (lost, stays) = (Worker { member: 0, since: 1 }, Worker { member: 1, since: 1 });
    let none = ConsumedRows::new(ROWS as u64);
    let [mut first, mut second] = [true, false].map(|is_first| Shard::new(is_first, &none));
    for workers in [&[lost, stays][..], &[stays]] {
        first.set_workers(workers);
        second.set_workers(workers);
        if let [lost, _] = workers {
            first.receive(*lost, None, false);
            second.receive(*lost, Some(done(&first.lease(*lost).unwrap())), false);
        }
    }
    first.receive(stays, None, true);
    for _ in 0..ROWS {
        let Some(lease) = first.lease(stays) else { break };
        second.receive(stays, Some(done(&lease)), true);
        first.receive(stays, Some(done(&lease)), true);
    }
    assert!(first.server.table.called.contains(&stays.member));
    [first, second]
}

/// What a checkpoint has of the rows is true of all servers: after resumption none applies rows a second time.
#[test]
fn at_a_meeting_all_servers_have_applied_the_same_rows() {
    let [first, second] = lose_a_worker_before_a_meeting();
    assert_eq!(first.pool.applied(), second.pool.applied());
    assert_eq!(
        (second.server.owner.updates, second.pool.mixed().count()),
        (1, 4),
        "the repetition is ignored"
    );

    known_bugs::set(KnownBug::MeetsEarly);
    let [first, second] = lose_a_worker_before_a_meeting();
    assert_eq!((first.pool.applied().count(), second.pool.applied().count()), (0, 4), "the bug is found");
}
