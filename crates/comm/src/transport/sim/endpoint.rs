//! A rank's endpoint in the simulation: its streams, its clock, and control over other ranks.

use super::simulator::{SimulatedRankState, Simulator};
use super::streams::StreamKey;
use super::{Network, SimulatedFaultKind};
use crate::transport::link::{Link, LinkSet};
use crate::transport::stream::StreamTransport;
use crate::transport::wait_state::Interest;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// The transport of a simulated rank.
pub type Sim = StreamTransport<SimLinks>;

/// The links of one rank in one generation of its group.
pub struct SimLinks {
    endpoint: SimulatedEndpoint,
    generation: u32,
    /// By rank in the group, as `member_ids`.
    links: Vec<Option<SimLink>>,
    member_ids: Vec<usize>,
}

/// The streams to and from one peer.
pub struct SimLink {
    simulator: Arc<Simulator>,
    /// Of the outgoing stream; the incoming one is its reverse.
    key: StreamKey,
}

/// An endpoint of the simulation. When its last clone is dropped, the rank has ended.
#[derive(Clone)]
pub struct SimulatedEndpoint(Arc<EndpointOwner>);

struct EndpointOwner {
    simulator: Arc<Simulator>,
    rank: usize,
}

impl Drop for EndpointOwner {
    fn drop(&mut self) {
        self.simulator.leave(self.rank);
    }
}

impl SimulatedEndpoint {
    pub(super) fn new(simulator: &Arc<Simulator>, rank: usize) -> SimulatedEndpoint {
        SimulatedEndpoint(Arc::new(EndpointOwner { simulator: Arc::clone(simulator), rank }))
    }

    /// Opens new streams in a group of these members, in the order of their ranks; this endpoint is one of them.
    pub fn connect(&self, generation: u32, member_ids: &[usize]) -> Sim {
        let EndpointOwner { simulator, rank: id } = &*self.0;
        simulator.open_streams(generation, member_ids);
        let link = |&to: &usize| {
            let key = StreamKey { generation, from: *id, to };
            (to != *id).then(|| SimLink { simulator: Arc::clone(simulator), key })
        };
        let links = member_ids.iter().map(link).collect();
        let rank = member_ids.iter().position(|member| member == id).unwrap_or(0);
        let endpoint = self.clone();
        StreamTransport::over(rank, SimLinks { endpoint, generation, links, member_ids: member_ids.to_vec() })
    }

    /// Blocks until this reserved rank is told to join; false if the simulation ends before.
    pub fn await_join(&self) -> bool {
        self.0.simulator.await_join(self.0.rank)
    }

    pub fn clock(&self) -> SimClock {
        SimClock::new(Arc::clone(&self.0.simulator), self.0.rank)
    }

    /// Events from here on end the next [`SimulatedEndpoint::wait`].
    pub fn mark(&self) {
        self.0.simulator.mark(self.0.rank);
    }

    /// Yields to other ranks until a wake-up or the timeout.
    pub fn wait(&self, timeout: Duration) {
        self.0.simulator.wait(self.0.rank, timeout, std::iter::empty());
    }

    /// Ends the wait of another rank at that moment.
    pub fn wake_at(&self, rank: usize, at: Duration) {
        self.0.simulator.wake_at(rank, at);
    }

    pub fn rank_state(&self, rank: usize) -> SimulatedRankState {
        self.0.simulator.rank_state(rank)
    }

    /// Kills another rank, as its launcher would do.
    pub fn kill(&self, rank: usize) {
        self.0.simulator.kill(rank);
    }

    /// Injects a fault now.
    pub fn inject(&self, fault: SimulatedFaultKind) {
        self.0.simulator.inject_now(fault);
    }

    /// Whether no connection between these two ranks can be made.
    pub fn are_cut_off(&self, one: usize, other: usize) -> bool {
        self.0.simulator.is_cut(one, other)
    }

    /// Whether no connection to this rank can be made.
    pub fn is_cut_off(&self, rank: usize) -> bool {
        self.0.simulator.is_cut(self.0.rank, rank)
    }

    pub fn network(&self) -> &Network {
        self.0.simulator.network()
    }
}

impl Read for SimLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.simulator.read(self.key.reverse(), buffer)
    }
}

impl Write for SimLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.simulator.write(self.key, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for SimLink {
    fn unread(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.simulator.unread(self.key.reverse()))
    }

    fn is_drained(&mut self) -> bool {
        self.simulator.is_drained(self.key)
    }

    fn shutdown_write(&mut self) {
        self.simulator.close(self.key);
    }
}

impl LinkSet for SimLinks {
    type Link = SimLink;

    fn links(&mut self) -> &mut [Option<SimLink>] {
        &mut self.links
    }

    fn mark(&mut self) {
        self.endpoint.mark();
    }

    fn wait(
        &mut self,
        interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        let EndpointOwner { simulator, rank } = &*self.endpoint.0;
        if !timeout.is_zero() {
            let wanted = interests.iter().enumerate().filter(|(_, interest)| interest.read || interest.write);
            simulator.wait(*rank, timeout, wanted.map(|(peer, interest)| (self.member_ids[peer], *interest)));
        }
        let position = |id: usize| self.member_ids.binary_search(&id).ok();
        let is_watched = |id: usize| position(id).is_some_and(|peer| watched[peer]);
        let ended = simulator.hung_up(*rank, self.generation, is_watched);
        hung_up.extend(ended.into_iter().filter_map(position));
        Ok(())
    }

    fn now(&self) -> Duration {
        self.endpoint.0.simulator.now(self.endpoint.0.rank)
    }

    fn sleep(&self, duration: Duration) {
        self.endpoint.0.simulator.sleep(self.endpoint.0.rank, duration);
    }
}

impl Drop for SimLinks {
    fn drop(&mut self) {
        self.endpoint.0.simulator.disconnect(self.endpoint.0.rank, self.generation);
    }
}

/// The clock of one simulated rank, in virtual time.
#[derive(Clone)]
pub struct SimClock {
    simulator: Arc<Simulator>,
    rank: usize,
}

impl SimClock {
    pub(super) fn new(simulator: Arc<Simulator>, rank: usize) -> SimClock {
        SimClock { simulator, rank }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.simulator.now(self.rank)
    }

    pub fn sleep(&self, duration: Duration) {
        self.simulator.sleep(self.rank, duration);
    }

    /// Sleeps for the time that this rank needs for this many floating-point operations.
    pub fn charge(&self, operations: u64) {
        self.simulator.charge(self.rank, operations);
    }
}
