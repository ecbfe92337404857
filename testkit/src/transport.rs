//! The conformance suite of transports: one test for each requirement.
//!
//! An implementation defines how to connect a group ([`Mesh`]) and invokes `transport_conformance!(name, TheMesh)`,
//! which makes one test of every case in [`exchange`], [`reduction_tree`], [`groups`], [`messages`], [`faults`],
//! [`invalid_frames`] and [`timeouts`]. Timeouts are ten times as long as what is promised; outcome and culprit are exact.

pub mod exchange;
pub mod faults;
pub mod groups;
pub mod invalid_frames;
pub mod messages;
pub mod reduction_tree;
pub mod remote;
pub mod timeouts;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{Collective, Executor, Sum};
use thalweg_comm::host::{self, EventFd, LocalPeer};
use thalweg_comm::transport::shm_ring::RingOffer;
use thalweg_comm::transport::sim::{Network, Sim, Simulation};
use thalweg_comm::transport::tcp::Socket;
use thalweg_comm::transport::{Mem, Shm, ShmLink, ShmRing, Tag, Tcp, Transport, TransportError, mesh};

/// Inserts bytes into the stream from one rank to another.
pub type Inject = Box<dyn Fn(usize, usize, &[u8])>;

/// How to connect a group of ranks over one kind of transport.
pub trait Mesh {
    type Transport: Transport + 'static;

    /// A connected group. Dropping a transport must look like the death of that rank.
    fn connect(world: usize) -> Vec<Self::Transport>;

    /// A connected group and a function that injects bytes into its links.
    fn connect_with_injector(world: usize) -> (Vec<Self::Transport>, Inject);
}

/// Longer than any case takes, unless it hangs.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// A tag for one operation.
pub fn tag(operation: u64) -> Tag {
    Tag { generation: 1, operation, ..Tag::default() }
}

/// Runs a collective by its default schedule.
pub fn run_collective<T: Number>(
    transport: &mut dyn Transport,
    tag: Tag,
    collective: Collective,
    buffer: &mut [T],
) -> Result<(), TransportError> {
    let hosts: Vec<usize> = (0..transport.world()).collect();
    let schedule = collective.schedule(transport.rank(), &hosts, size_of_val(buffer));
    Executor::new().run(&schedule, transport, tag, buffer, &Sum, LONG_TIMEOUT)
}

/// Runs the same program on every rank, each in its own thread, and returns the results by rank.
pub fn run_ranks<T: Transport, R: Send>(ranks: Vec<T>, program: impl Fn(T) -> R + Sync) -> Vec<R> {
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

    fn connect_with_injector(world: usize) -> (Vec<Mem>, Inject) {
        let ranks = mesh(world);
        let links = ranks[0].link_control();
        (ranks, Box::new(move |from, to, bytes| links.inject(from, to, bytes)))
    }
}

/// Groups in virtual time, as in jobs: one rank runs at a time, in a reproducible order, so every rank must be run.
pub struct Simulated;

impl Mesh for Simulated {
    type Transport = Sim;

    fn connect(world: usize) -> Vec<Sim> {
        Simulation::new(Network::ordinary(world, 1), &[]).ranks()
    }

    fn connect_with_injector(world: usize) -> (Vec<Sim>, Inject) {
        simulated_with_injector(Simulation::new(Network::ordinary(world, 1), &[]))
    }
}

/// Groups in virtual time and in any order, for cases in which some rank is never run.
pub struct Unordered;

impl Mesh for Unordered {
    type Transport = Sim;

    fn connect(world: usize) -> Vec<Sim> {
        Simulation::unordered(Network::ordinary(world, 1)).ranks()
    }

    fn connect_with_injector(world: usize) -> (Vec<Sim>, Inject) {
        simulated_with_injector(Simulation::unordered(Network::ordinary(world, 1)))
    }
}

fn simulated_with_injector(simulation: Simulation) -> (Vec<Sim>, Inject) {
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

    fn connect_with_injector(world: usize) -> (Vec<Tcp>, Inject) {
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

    fn connect_with_injector(world: usize) -> (Vec<Shm>, Inject) {
        on_hosts(world, |_| 0)
    }
}

/// Groups with two ranks per host: shared memory within a host, sockets between hosts.
pub struct Mixed;

impl Mesh for Mixed {
    type Transport = Shm;

    fn connect(world: usize) -> Vec<Shm> {
        on_hosts(world, |rank| rank / 2).0
    }

    fn connect_with_injector(world: usize) -> (Vec<Shm>, Inject) {
        on_hosts(world, |rank| rank / 2)
    }
}

/// A group whose ranks are on these hosts, and its injector.
fn on_hosts(world: usize, host: impl Fn(usize) -> usize) -> (Vec<Shm>, Inject) {
    let wakeups: Vec<EventFd> = (0..world).map(|_| EventFd::new().expect("an eventfd")).collect();
    let offer = |rank: usize, peer: &Option<LocalPeer>| {
        peer.as_ref().map(|peer| RingOffer::new(peer, world, &wakeups[rank]).expect("memory"))
    };
    let offers: Vec<Vec<Option<RingOffer>>> = host::connect_threads(world)
        .expect("local connections")
        .iter()
        .enumerate()
        .map(|(rank, all)| all.iter().map(|peer| offer(rank, peer)).collect())
        .collect();
    let accept = |offer: RingOffer| offer.accept(LONG_TIMEOUT).expect("a ring");
    let rings: Vec<Vec<Option<ShmRing>>> = offers
        .into_iter()
        .map(|offers| offers.into_iter().map(|offer| offer.map(accept)).collect())
        .collect();
    let streams = loopback_streams(world).expect("loopback sockets");
    type Injector = Box<dyn Fn(&[u8])>;
    let mut injectors: Vec<Vec<Option<Injector>>> = Vec::new();
    let mut ranks = Vec::new();
    for (rank, ((rings, streams), wakeup)) in rings.into_iter().zip(streams).zip(wakeups).enumerate() {
        let mut rank_injectors: Vec<Option<Injector>> = Vec::new();
        let mut links = Vec::new();
        for (peer, (ring, stream)) in rings.into_iter().zip(streams).enumerate() {
            let is_local = host(rank) == host(peer);
            let (Some(ring), Some(stream)) = (ring, stream) else {
                rank_injectors.push(None);
                links.push(None);
                continue;
            };
            if is_local {
                let write = ring.injector();
                rank_injectors.push(Some(Box::new(move |bytes| write(bytes).expect("room for a few bytes"))));
                links.push(Some(ShmLink::Ring(ring)));
            } else {
                let copy = stream.try_clone().expect("a copy");
                rank_injectors.push(Some(Box::new(move |bytes| (&copy).write_all(bytes).expect("room"))));
                links.push(Some(ShmLink::Socket(Socket::new(stream).expect("a socket"))));
            }
        }
        injectors.push(rank_injectors);
        ranks.push(Shm::new(rank, links, wakeup).expect("a mesh"));
    }
    let inject = move |from: usize, to: usize, bytes: &[u8]| {
        injectors[from][to].as_ref().expect("two different ranks")(bytes);
    };
    (ranks, Box::new(inject))
}

/// A full mesh of connected sockets: `[rank][peer]`.
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
            $crate::transport_conformance!(@cases $mesh, faults:
                an_abort_ends_a_transfer
                leaving_in_good_order_is_no_error
                a_death_is_detected_by_polling
            );
        }
    };
    // In virtual time, events outside of it come an hour late, or never: without the three cases in which ranks
    // synchronise or poll by other means than their transport.
    ($name:ident, $mesh:ty, virtual time, some idle: $unordered:ty) => {
        mod $name {
            use super::*;
            $crate::transport_conformance!(@all_run $mesh);
            $crate::transport_conformance!(@some_idle $unordered);
        }
    };
    (@some_idle $mesh:ty) => {
            $crate::transport_conformance!(@cases $mesh, groups: the_silent_member_is_named);
            $crate::transport_conformance!(@cases $mesh, faults:
                the_silent_rank_is_named
                the_end_of_a_chain_of_waiting_is_found
                a_late_rank_names_the_dead_rank_and_not_those_that_closed
                unread_bytes_do_not_hide_the_dead_rank
                impossible_peers_are_refused
            );
            $crate::transport_conformance!(@cases $mesh, invalid_frames:
                another_tensor_is_detected_in_early_frames
                a_false_length_is_detected
            );
            $crate::transport_conformance!(@cases $mesh, messages: strangers_between_messages_are_named);
    };
    (@all_run $mesh:ty) => {
            $crate::transport_conformance!(@cases $mesh, exchange:
                chunks_travel_in_order
                large_chunks_in_both_directions
                all_reduce_on_odd_worlds_and_lengths
                long_buffers_are_pipelined
                repeats_are_bit_identical
                traffic_equals_the_stated_cost
                concurrent_operations
                other_elements_and_operators
                other_collectives
                all_gather_of_different_lengths
                all_to_all_of_different_lengths
                broadcast_from_every_root
                barrier_waits_for_all
            );
            $crate::transport_conformance!(@cases $mesh, reduction_tree: sums_do_not_depend_on_the_world_size);
            $crate::transport_conformance!(@cases $mesh, groups:
                groups_overlap
                early_frames_are_buffered
                groups_gather_and_broadcast
                a_death_in_a_group_names_the_rank
            );
            $crate::transport_conformance!(@cases $mesh, messages:
                messages_of_all_lengths_pass_collectives
                messages_and_operations_share_the_links
                messages_of_100_megabytes_pass_a_collective
                messages_are_not_stuck_behind_collectives
                a_full_window_refuses_until_messages_are_taken
                a_death_ends_the_wait_for_a_message
                what_arrived_before_a_death_is_handed_over
            );
            $crate::transport_conformance!(@cases $mesh, timeouts:
                a_rank_that_never_enters_is_silent
                a_rank_that_sends_byte_by_byte_is_slow
                a_rank_that_receives_slowly_is_slow
            );
            $crate::transport_conformance!(@cases $mesh, faults:
                a_death_is_named_by_all_ranks
                what_was_sent_before_a_death_still_arrives
                a_death_with_unread_bytes_is_a_death
                leaving_right_after_the_last_step_fails_no_rank
                leaving_while_needed_is_an_error
            );
            $crate::transport_conformance!(@cases $mesh, invalid_frames:
                bytes_that_are_no_frame_are_refused
                a_wrong_checksum_is_detected
                another_operation_is_detected
                another_tensor_is_detected
                different_lengths_are_detected
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
