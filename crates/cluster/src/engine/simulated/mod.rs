//! A group on a simulated network: kills, stops, cuts and newcomers, in virtual time and from a seed.
//!
//! Programs see the same [`Rank`] as everywhere, and membership is decided by the same
//! [`MembershipPolicy`](crate::membership_policy::MembershipPolicy) as for real processes.
//!
//! ```text
//! coordinator.rs  executes the policy      role.rs     which rank has the coordinator's role
//! member.rs       a rank's side             control.rs  messages between them
//! ```

mod control;
mod coordinator;
mod member;
mod role;

use super::threads::{CollectedEvents, RankObserver, RankOutcome};
use crate::membership_policy::MembershipConfig;
use crate::rank::{Emit, Rank, RankParts};
use crate::regroup::Generation;
use crate::rendezvous::message::Control;
use control::{MemberMessage, SimulatedControl};
use coordinator::SimulatedCoordinator;
use member::{Killed, SimulatedMember};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use thalweg_comm::transport::sim::{
    Network, SimulatedFault, SimulatedFaultKind, Simulation, SimulationControl, Trace,
};
use thalweg_core::event::Event;
use thalweg_core::{Error, Kind, Result};

/// Runs a program on every rank of a simulated group, and on the ranks that join it. The outcomes are in the order of
/// member ids; the same arguments give the same outcomes and the same trace.
pub fn simulate<T: Send>(
    network: Network,
    faults: &[SimulatedFault],
    config: &MembershipConfig,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<RankOutcome<T>>, Trace) {
    let collected = CollectedEvents::default();
    let observer = |rank, _: &SimulationControl| collected.observer(rank);
    let (results, trace) = simulate_observed(network, (faults, 0), config, &observer, program);
    (collected.outcomes(results), trace)
}

/// The same, with an observer of each running rank, and with so many ranks in reserve, which join when an observer tells
/// them to.
pub fn simulate_observed<T: Send>(
    network: Network,
    (faults, reserved): (&[SimulatedFault], usize),
    config: &MembershipConfig,
    observer: &dyn Fn(usize, &SimulationControl) -> RankObserver,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<Result<T>>, Trace) {
    let (seed, world) = (network.seed, network.world);
    let simulation = Simulation::with_coordinator(network, faults, reserved);
    let (size, outside) = (simulation.size(), simulation.control());
    let joins = |id| faults.iter().any(|fault| fault.kind == SimulatedFaultKind::Join { rank: id });
    let (emits, rank_statuses): (Vec<Emit>, Vec<_>) =
        (0..size).map(|id| observer(id, &outside)).map(|of| (of.emit, of.rank_status)).unzip();
    let control = SimulatedControl::new(rank_statuses);
    let coordinator =
        SimulatedCoordinator::new(simulation.endpoint(size), Arc::clone(&control), config.clone(), world);
    let member = |(id, emit): (usize, Emit)| {
        let (endpoint, control, config) = (simulation.endpoint(id), Arc::clone(&control), config.clone());
        (
            SimulatedMember {
                id,
                endpoint,
                control,
                config,
                generation: Arc::default(),
                term: Arc::default(),
            },
            emit,
        )
    };
    let members: Vec<(SimulatedMember, Emit)> = emits.into_iter().enumerate().map(member).collect();
    let program = &program;
    let results = std::thread::scope(|scope| {
        scope.spawn(move || coordinator.run());
        let start = |(member, emit): (SimulatedMember, Emit)| {
            let planned = member.id < world || joins(member.id);
            scope.spawn(move || match planned || member.endpoint.await_join() {
                true => run(member, emit, world, seed, program),
                false => unused(member),
            })
        };
        let threads: Vec<_> = members.into_iter().map(start).collect();
        let panicked = |_| Err(Error::internal("a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    (results, simulation.trace())
}

/// The outcome of an id without a rank.
fn unused<T>(member: SimulatedMember) -> Result<T> {
    Err(Error::new(Kind::Rendezvous, format!("rank {} never joined", member.id)))
}

/// Runs one rank from its join to its end.
fn run<T>(
    member: SimulatedMember,
    emit: Emit,
    world: usize,
    seed: u64,
    program: impl Fn(&mut Rank) -> Result<T>,
) -> Result<T> {
    let witness = member.clone();
    let rank_status = Arc::clone(&member.control.rank_statuses[member.id]);
    rank_status.set_witness_handler(Box::new(move |error, heartbeat, source| {
        witness.report_witness(error, heartbeat, source);
    }));
    let reporter = member.clone();
    rank_status.set_work_handler(Box::new(move |report| {
        reporter.send(MemberMessage::Control(Control::Work(report)));
    }));
    let id = member.id;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut client = member.clone();
        let first = client.join(id >= world).inspect_err(|error| {
            emit(Event::Failed { error: error.clone(), heartbeat: rank_status.heartbeat() });
        })?;
        let mut rank = rank(client, first, emit, seed);
        let result = program(&mut rank).map_err(|error| rank.final_error(error));
        // A rank that the others went on without is killed by its launcher, even if it had received all it waited for.
        let removal = member.config.elastic.then(|| rank_status.abort_reason()).flatten();
        let result = result.and_then(|done| removal.map_or(Ok(done), Err));
        if result.is_ok() {
            rank.leave();
        }
        result
    }));
    let result = match ended {
        Err(panic) if panic.is::<Killed>() => {
            Err(Error::new(Kind::RankFailed, format!("rank {id} was killed")))
        }
        ended => {
            let result = ended.unwrap_or_else(|_| Err(Error::internal(format!("rank {id} panicked"))));
            member.send(MemberMessage::Control(match &result {
                Ok(_) => Control::Goodbye,
                Err(error) => Control::Failed(Box::new(error.clone()), rank_status.heartbeat()),
            }));
            member.send(MemberMessage::Closed);
            result
        }
    };
    // Drops the last clones of the member: that frees its endpoint in the simulation.
    rank_status.set_witness_handler(Box::new(|_, _, _| {}));
    rank_status.set_work_handler(Box::new(|_| {}));
    drop(member);
    result
}

fn rank(member: SimulatedMember, first: Generation, emit: Emit, seed: u64) -> Rank {
    let Generation { number, transport, local_peers, carrier, member_ids, hosts, change } = first;
    Rank::new(RankParts {
        transport: transport.into(),
        clock: Arc::new(member.clone()),
        emit,
        rank_status: Arc::clone(&member.control.rank_statuses[member.id]),
        hosts,
        local_peers,
        carrier,
        generation: number,
        member_ids,
        change,
        step_deadline: member.config.step_deadline,
        prepare_deadline: member.config.prepare_deadline,
        process: Arc::new(member.clone()),
        membership_client: member.config.elastic.then(|| Box::new(member) as _),
        seed,
    })
}
