//! An elastic group on a simulated network: kills, stops, cuts and newcomers, in virtual time and from a seed.
//!
//! Programs see the same [`Rank`] as everywhere, and membership is decided by the same
//! [`MembershipPolicy`](crate::membership_policy::MembershipPolicy) as for real processes.
//!
//! ```text
//! coordinator.rs  executes the policy      member.rs  a rank's side      control.rs  messages between them
//! ```

mod control;
mod coordinator;
pub mod fixed_group;
mod member;

use super::threads::RankOutcome;
use crate::membership_policy::MembershipConfig;
use crate::rank::{Emit, Rank, RankParts};
use crate::regroup::Generation;
use crate::rendezvous::message::Control;
use control::{MemberMessage, SimulatedControl};
use coordinator::SimulatedCoordinator;
use member::{Killed, SimulatedMember};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind, Simulation, Trace};
use thalweg_core::event::Event;
use thalweg_core::{Error, Kind, Result};

/// Runs a program on every rank of a simulated group that survives losses, and on the ranks that join it. The outcomes are
/// in the order of member ids; the same arguments give the same outcomes and the same trace.
pub fn simulate<T: Send>(
    network: Network,
    faults: &[SimulatedFault],
    config: &MembershipConfig,
    program: impl Fn(&mut Rank) -> Result<T> + Sync,
) -> (Vec<RankOutcome<T>>, Trace) {
    let (seed, world) = (network.seed, network.world);
    let simulation = Simulation::with_coordinator(network, faults);
    let size = simulation.size();
    let joins = |id| faults.iter().any(|fault| fault.kind == SimulatedFaultKind::Join { rank: id });
    let control = SimulatedControl::new(size);
    let coordinator =
        SimulatedCoordinator::new(simulation.endpoint(size), Arc::clone(&control), config.clone(), world);
    let members: Vec<SimulatedMember> = (0..size)
        .map(|id| SimulatedMember {
            id,
            endpoint: simulation.endpoint(id),
            control: Arc::clone(&control),
            config: config.clone(),
            generation: Arc::default(),
        })
        .collect();
    let program = &program;
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(move || coordinator.run());
        let start = |member: SimulatedMember| {
            let takes_part = member.id < world || joins(member.id);
            scope.spawn(move || if takes_part { run(member, world, seed, program) } else { unused(member) })
        };
        let threads: Vec<_> = members.into_iter().map(start).collect();
        let panicked =
            |_| RankOutcome { result: Err(Error::internal("a rank panicked")), events: Vec::new() };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    (outcomes, simulation.trace())
}

/// The outcome of an id without a rank.
fn unused<T>(member: SimulatedMember) -> RankOutcome<T> {
    let message = format!("rank {} never joined", member.id);
    RankOutcome { result: Err(Error::new(Kind::Rendezvous, message)), events: Vec::new() }
}

/// Runs one rank from its join to its end.
fn run<T>(
    member: SimulatedMember,
    world: usize,
    seed: u64,
    program: impl Fn(&mut Rank) -> Result<T>,
) -> RankOutcome<T> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let (sink, witness) = (Arc::clone(&events), member.clone());
    let emit = move |event: Event| sink.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    let rank_status = Arc::clone(&member.control.rank_statuses[member.id]);
    rank_status.set_witness_handler(Box::new(move |error, heartbeat, source| {
        witness.report_witness(error, heartbeat, source);
    }));
    let id = member.id;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut client = member.clone();
        let first = client.join(id >= world)?;
        let mut rank = rank(client, first, Arc::new(emit), seed);
        let result = program(&mut rank).map_err(|error| rank.final_error(error));
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
    drop(member);
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    RankOutcome { result, events }
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
        membership_client: Some(Box::new(member)),
        seed,
    })
}
