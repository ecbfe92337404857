//! The conformance suite of transports: what every implementation must do, each as one test.
//!
//! An implementation names how to connect a group ([`Mesh`]) and writes `transport_conformance!(name, TheMesh)`;
//! that makes one test of every case in [`exchange`], [`bracketing`], [`circles`], [`faults`] and [`lateness`]. Waits are ten times as generous as what is
//! promised; outcome and culprit are exact.

pub mod bracketing;
pub mod circles;
pub mod exchange;
pub mod faults;
pub mod lateness;
pub mod remote;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{Executor, Goal, Sum};
use thalweg_comm::host::{self, Bell, Neighbour};
use thalweg_comm::transport::sim::{Network, Sim, Simulation};
use thalweg_comm::transport::tcp::Socket;
use thalweg_comm::transport::{Fault, Mem, Ring, Shm, Tag, Tcp, Transport, Way, mesh, ring};

/// Puts bytes on the way from one rank to another, as if the first had sent them.
pub type Inject = Box<dyn Fn(usize, usize, &[u8])>;

/// How to connect a group of ranks over one kind of transport.
pub trait Mesh {
    /// The transport under test.
    type Transport: Transport + 'static;

    /// A connected group. Dropping one of its members must look like the death of that rank.
    fn connect(world: usize) -> Vec<Self::Transport>;

    /// A connected group and a way to forge bytes on its links.
    fn forge(world: usize) -> (Vec<Self::Transport>, Inject);
}

/// Longer than anything takes that does not hang.
pub const PLENTY: Duration = Duration::from_secs(60);

/// A tag for one operation.
pub fn tag(operation: u64) -> Tag {
    Tag { generation: 1, operation, ..Tag::default() }
}

/// Runs a collective by the schedule that is taken when nobody chooses.
pub fn collective<T: Number>(
    transport: &mut dyn Transport,
    tag: Tag,
    goal: Goal,
    buffer: &mut [T],
) -> Result<(), Fault> {
    let hosts: Vec<usize> = (0..transport.world()).collect();
    let schedule = goal.schedule(transport.rank(), &hosts, size_of_val(buffer));
    Executor::new().run(&schedule, transport, tag, buffer, &Sum, PLENTY)
}

/// Runs the same program on every rank, each in its own thread, and returns their results by rank.
///
/// Every rank is given its transport to keep or drop.
pub fn each<T: Transport, R: Send>(ranks: Vec<T>, program: impl Fn(T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let program = &program;
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || program(rank))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Groups of threads.
pub struct Memory;

impl Mesh for Memory {
    type Transport = Mem;

    fn connect(world: usize) -> Vec<Mem> {
        mesh(world)
    }

    fn forge(world: usize) -> (Vec<Mem>, Inject) {
        let ranks = mesh(world);
        let links = ranks[0].links();
        (ranks, Box::new(move |from, to, bytes| links.inject(from, to, bytes)))
    }
}

/// Groups in virtual time, as jobs have them: one rank runs at a time, in an order that repeats, so every one must be run.
pub struct Simulated;

impl Mesh for Simulated {
    type Transport = Sim;

    fn connect(world: usize) -> Vec<Sim> {
        Simulation::new(Network::ordinary(world, 1), &[]).ranks()
    }

    fn forge(world: usize) -> (Vec<Sim>, Inject) {
        forge_simulated(Simulation::new(Network::ordinary(world, 1), &[]))
    }
}

/// The same in any order, for cases in which some rank is never run.
pub struct Unordered;

impl Mesh for Unordered {
    type Transport = Sim;

    fn connect(world: usize) -> Vec<Sim> {
        Simulation::unordered(Network::ordinary(world, 1)).ranks()
    }

    fn forge(world: usize) -> (Vec<Sim>, Inject) {
        forge_simulated(Simulation::unordered(Network::ordinary(world, 1)))
    }
}

fn forge_simulated(simulation: Simulation) -> (Vec<Sim>, Inject) {
    (simulation.ranks(), Box::new(move |from, to, bytes| simulation.inject(from, to, bytes)))
}

/// Groups over sockets on this machine.
pub struct Loopback;

impl Mesh for Loopback {
    type Transport = Tcp;

    fn connect(world: usize) -> Vec<Tcp> {
        let streams = loopback_streams(world).expect("loopback sockets");
        streams.into_iter().enumerate().map(|(rank, peers)| Tcp::new(rank, peers).expect("a mesh")).collect()
    }

    fn forge(world: usize) -> (Vec<Tcp>, Inject) {
        let streams = loopback_streams(world).expect("loopback sockets");
        let copy =
            |stream: &Option<TcpStream>| stream.as_ref().map(|stream| stream.try_clone().expect("a copy"));
        let copies: Vec<Vec<Option<TcpStream>>> =
            streams.iter().map(|peers| peers.iter().map(copy).collect()).collect();
        let ranks =
            streams.into_iter().enumerate().map(|(rank, peers)| Tcp::new(rank, peers).expect("a mesh"));
        let inject = move |from: usize, to: usize, bytes: &[u8]| {
            let mut stream = copies[from][to].as_ref().expect("two different ranks");
            stream.write_all(bytes).expect("room for a few bytes");
        };
        (ranks.collect(), Box::new(inject))
    }
}

/// Groups through shared memory, ranks of one host.
pub struct Shared;

impl Mesh for Shared {
    type Transport = Shm;

    fn connect(world: usize) -> Vec<Shm> {
        on_hosts(world, |_| 0).0
    }

    fn forge(world: usize) -> (Vec<Shm>, Inject) {
        on_hosts(world, |_| 0)
    }
}

/// Groups of ranks on hosts of two each: through memory inside, over sockets between.
pub struct Mixed;

impl Mesh for Mixed {
    type Transport = Shm;

    fn connect(world: usize) -> Vec<Shm> {
        on_hosts(world, |rank| rank / 2).0
    }

    fn forge(world: usize) -> (Vec<Shm>, Inject) {
        on_hosts(world, |rank| rank / 2)
    }
}

/// A group whose ranks are on these hosts, and a way to forge bytes on its links.
fn on_hosts(world: usize, host: impl Fn(usize) -> usize) -> (Vec<Shm>, Inject) {
    let bells: Vec<Bell> = (0..world).map(|_| Bell::new().expect("a bell")).collect();
    let offer = |rank: usize, neighbour: &Option<Neighbour>| {
        neighbour.as_ref().map(|neighbour| ring::Offer::new(neighbour, world, &bells[rank]).expect("memory"))
    };
    let offers: Vec<Vec<Option<ring::Offer>>> = host::threads(world)
        .expect("neighbours")
        .iter()
        .enumerate()
        .map(|(rank, all)| all.iter().map(|neighbour| offer(rank, neighbour)).collect())
        .collect();
    let accept = |offer: ring::Offer| offer.accept(PLENTY).expect("a ring");
    let rings: Vec<Vec<Option<Ring>>> = offers
        .into_iter()
        .map(|offers| offers.into_iter().map(|offer| offer.map(accept)).collect())
        .collect();
    let streams = loopback_streams(world).expect("loopback sockets");
    type Forger = Box<dyn Fn(&[u8])>;
    let mut forgers: Vec<Vec<Option<Forger>>> = Vec::new();
    let mut ranks = Vec::new();
    for (rank, ((rings, streams), bell)) in rings.into_iter().zip(streams).zip(bells).enumerate() {
        let mut forge: Vec<Option<Forger>> = Vec::new();
        let mut ways = Vec::new();
        for (peer, (ring, stream)) in rings.into_iter().zip(streams).enumerate() {
            let near = host(rank) == host(peer);
            let (Some(ring), Some(stream)) = (ring, stream) else {
                forge.push(None);
                ways.push(None);
                continue;
            };
            if near {
                let put = ring.forger();
                forge.push(Some(Box::new(move |bytes| put(bytes).expect("room for a few bytes"))));
                ways.push(Some(Way::Ring(ring)));
            } else {
                let copy = stream.try_clone().expect("a copy");
                forge.push(Some(Box::new(move |bytes| (&copy).write_all(bytes).expect("room"))));
                ways.push(Some(Way::Socket(Socket::new(stream).expect("a socket"))));
            }
        }
        forgers.push(forge);
        ranks.push(Shm::new(rank, ways, bell).expect("a mesh"));
    }
    let inject = move |from: usize, to: usize, bytes: &[u8]| {
        forgers[from][to].as_ref().expect("two different ranks")(bytes);
    };
    (ranks, Box::new(inject))
}

/// A full mesh of connected sockets: `[rank][peer]`, the diagonal empty.
pub fn loopback_streams(world: usize) -> io::Result<Vec<Vec<Option<TcpStream>>>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut streams: Vec<Vec<Option<TcpStream>>> =
        (0..world).map(|_| (0..world).map(|_| None).collect()).collect();
    for (one, other) in (0..world).flat_map(|one| (0..one).map(move |other| (one, other))) {
        streams[one][other] = Some(TcpStream::connect(listener.local_addr()?)?);
        streams[other][one] = Some(listener.accept()?.0);
    }
    Ok(streams)
}

/// Makes a module with one test for every case of the suite.
#[macro_export]
macro_rules! transport_conformance {
    ($name:ident, $mesh:ty) => {
        mod $name {
            use super::*;
            $crate::transport_conformance!(@all_run $mesh);
            $crate::transport_conformance!(@some_idle $mesh);
            $crate::transport_conformance!(@cases $mesh, faults: an_abort_ends_a_transfer an_orderly_leave_is_no_fault a_death_is_seen_at_a_glance);
        }
    };
    // Where time is virtual, what happens outside of it comes an hour late, or never: left out are the three cases in which
    // ranks wait for each other, or look, by other means than their transport.
    ($name:ident, $mesh:ty, virtual time, some idle: $unordered:ty) => {
        mod $name {
            use super::*;
            $crate::transport_conformance!(@all_run $mesh);
            $crate::transport_conformance!(@some_idle $unordered);
        }
    };
    (@some_idle $mesh:ty) => {
            $crate::transport_conformance!(@cases $mesh, circles: the_silent_member_is_named);
            $crate::transport_conformance!(@cases $mesh, faults:
                the_silent_rank_is_named
                the_end_of_a_chain_of_waiting_is_found
                a_rank_that_comes_late_names_the_dead_and_not_those_who_fled
                unread_bytes_do_not_hide_who_died
                another_tensor_is_noticed_aside
                impossible_partners_are_refused
            );
    };
    (@all_run $mesh:ty) => {
            $crate::transport_conformance!(@cases $mesh, exchange:
                chunks_travel_in_order
                large_chunks_pass_each_other
                all_reduce_on_odd_worlds_and_lengths
                long_buffers_are_pipelined
                repeats_are_bit_identical
                counters_equal_theory
                several_operations_at_once
                other_elements_and_operators
                other_collectives
                ragged_gather
                ragged_all_to_all
                broadcast_from_every_root
                barrier_waits_for_all
            );
            $crate::transport_conformance!(@cases $mesh, bracketing: brackets_do_not_depend_on_the_world);
            $crate::transport_conformance!(@cases $mesh, circles:
                circles_overlap
                what_comes_too_early_is_put_aside
                circles_gather_and_tell
                a_death_in_a_circle_names_the_rank
            );
            $crate::transport_conformance!(@cases $mesh, lateness:
                who_never_comes_is_silent
                who_drips_is_slow
                who_takes_little_is_slow
            );
            $crate::transport_conformance!(@cases $mesh, faults:
                a_death_is_named_by_everybody
                what_was_sent_before_a_death_still_arrives
                a_death_with_unread_bytes_is_a_death
                leaving_right_after_the_last_step_fails_nobody
                leaving_while_needed_is_a_fault
                strangers_bytes_are_refused
                a_forged_checksum_is_noticed
                another_operation_is_noticed
                another_tensor_is_noticed
                different_lengths_are_noticed
                an_announced_length_is_bounded
            );
    };
    (@cases $mesh:ty, $module:ident: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::transport::$module::$case::<$mesh>();
            }
        )*
    };
}
