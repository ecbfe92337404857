//! Bytes in transit: the streams between simulated ranks, one per direction and generation of their group.

use super::TraceEvent;
use super::schedule::RunState;
use super::simulator::{Simulator, SimulatorState};
use super::wakeup::{Wakeup, WakeupEvent};
use crate::wire::{CloseReason, HEADER, Header, checksum};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Most unread bytes of a stream.
const WINDOW: usize = 256 << 10;

/// Identifies a stream: one direction between two ranks, in one generation of their group.
#[derive(Clone, Copy)]
pub(super) struct StreamKey {
    pub generation: u32,
    pub from: usize,
    pub to: usize,
}

impl StreamKey {
    pub fn reverse(self) -> StreamKey {
        StreamKey { from: self.to, to: self.from, ..self }
    }
}

#[derive(Default)]
pub(super) struct Stream {
    packets: VecDeque<Packet>,
    /// Bytes sent and not yet read.
    unread: usize,
    /// Packets sent so far.
    count: u64,
    /// Until when the link is busy.
    link_busy: Duration,
    last_arrival: Duration,
    closed: Option<Duration>,
}

/// Bytes that arrive together.
struct Packet {
    arrival: Duration,
    bytes: VecDeque<u8>,
    /// Injected bytes were never sent, so no send waits until they are read.
    injected: bool,
}

impl Stream {
    /// Reads bytes of the first packet.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(packet) = self.packets.front_mut() else { return Ok(0) };
        let count = io::Read::read(&mut packet.bytes, buffer)?;
        self.unread -= if packet.injected { 0 } else { count };
        if packet.bytes.is_empty() {
            self.packets.pop_front();
        }
        Ok(count)
    }

    /// Whether the last bytes say that the sender has completed its work.
    fn ends_in_order(&self) -> bool {
        let Some(Packet { bytes, .. }) = self.packets.back() else { return false };
        let Some(start) = bytes.len().checked_sub(HEADER) else { return false };
        let last: Vec<u8> = bytes.range(start..).copied().collect();
        Header::decode(&last).is_ok_and(|header| header.close_reason() == Some(CloseReason::Done))
    }
}

/// The streams of one generation. One that was never used is not stored.
#[derive(Default)]
pub(super) struct Mesh {
    /// By receiver, as long as it is present, and sender.
    streams: HashMap<usize, HashMap<usize, Stream>>,
    /// Ranks that had ended before, and when the mesh was opened: their streams are closed since then.
    ended: BTreeMap<usize, Duration>,
    /// Senders of the streams to each rank that were closed, and when it notices.
    closed: HashMap<usize, Vec<(usize, Duration)>>,
    /// Members that are here or may still come.
    present: BTreeSet<usize>,
}

impl Mesh {
    /// A stream, opened now if it was not used before; `None` if no one will read it.
    fn stream(&mut self, from: usize, to: usize) -> Option<&mut Stream> {
        if !self.present.contains(&to) {
            return None;
        }
        let closed = self.ended.get(&from).copied();
        let opened = || Stream { closed, ..Stream::default() };
        Some(self.streams.entry(to).or_default().entry(from).or_insert_with(opened))
    }

    /// When the receiver notices the end of a stream.
    fn closed(&self, from: usize, to: usize) -> Option<Duration> {
        let used = self.streams.get(&to).and_then(|streams| streams.get(&from));
        used.map_or_else(|| self.ended.get(&from).copied(), |stream| stream.closed)
    }
}

impl Simulator {
    /// Opens the streams of a generation; those of dead and ended ranks are closed from the start.
    pub fn open_streams(&self, generation: u32, member_ids: &[usize]) {
        let mut state = self.lock();
        if state.meshes.contains_key(&generation) {
            return;
        }
        let (now, schedule) = (state.now, &state.schedule);
        let has_ended = |rank: &usize| state.ranks[*rank].dead || schedule.state(*rank) == RunState::Ended;
        let (ended, present): (Vec<usize>, Vec<usize>) = member_ids.iter().partition(|rank| has_ended(rank));
        let ended = ended.into_iter().map(|rank| (rank, now)).collect();
        let mesh = Mesh { ended, present: present.into_iter().collect(), ..Mesh::default() };
        state.meshes.insert(generation, mesh);
    }

    /// Sends bytes: computes their arrival and schedules the wake-up of the receiver.
    pub(super) fn transmit(
        &self,
        state: &mut SimulatorState,
        key: StreamKey,
        bytes: VecDeque<u8>,
        injected: bool,
    ) {
        let transmission = self.network.transmission(bytes.len());
        let cut = state.is_cut(key.from, key.to);
        let SimulatorState { now, ranks, meshes, .. } = state;
        let half_duplex = self.network.half_duplex;
        let start = ranks[key.from].sending.max(*now);
        let sent = start + transmission;
        ranks[key.from].sending = sent;
        if half_duplex {
            ranks[key.from].receiving = sent;
        }
        let stream = meshes.get_mut(&key.generation).and_then(|mesh| mesh.stream(key.from, key.to));
        let Some(stream) = stream.filter(|_| !cut) else { return };
        let earliest = ranks[key.to].receiving + transmission;
        let link_time = self.network.link_transmission(key.from, key.to, bytes.len());
        stream.link_busy = stream.link_busy.max(start) + link_time;
        let delay = self.network.delay(key.from, key.to, stream.count);
        let arrival = (sent.max(stream.link_busy) + delay).max(earliest).max(stream.last_arrival);
        // All streams to a rank share its bandwidth; a link with parameters of its own delays no other.
        let received = match self.network.links.contains_key(&(key.from, key.to)) {
            true => (sent + self.network.latency).max(earliest),
            false => arrival,
        };
        stream.count += 1;
        stream.unread += if injected { 0 } else { bytes.len() };
        stream.last_arrival = arrival;
        // Most streams of a large group carry a close frame only.
        stream.packets.reserve_exact(usize::from(stream.packets.is_empty()));
        stream.packets.push_back(Packet { arrival, bytes, injected });
        ranks[key.to].receiving = received;
        if half_duplex {
            ranks[key.to].sending = ranks[key.to].sending.max(received);
        }
        state.wake(key.to, Wakeup { at: arrival, event: WakeupEvent::Readable(key.from) });
    }

    /// Ends a stream: the receiver notices when everything sent before has arrived. After a close frame that says that
    /// the sender has completed its work, only a rank that still waits for it is woken.
    pub(super) fn end(&self, state: &mut SimulatorState, key: StreamKey) {
        if key.from == key.to || state.is_cut(key.from, key.to) {
            return;
        }
        let (now, mesh) = (state.now, state.meshes.get_mut(&key.generation));
        let Some(mesh) = mesh else { return };
        let Some(stream) = mesh.stream(key.from, key.to).filter(|stream| stream.closed.is_none()) else {
            return;
        };
        let noticed = (now + self.network.delay(key.from, key.to, stream.count)).max(stream.last_arrival);
        stream.closed = Some(noticed);
        let event = match stream.ends_in_order() {
            true => WakeupEvent::Readable(key.from),
            false => WakeupEvent::Urgent,
        };
        mesh.closed.entry(key.to).or_default().push((key.from, noticed));
        state.record(TraceEvent::Closed { from: key.from, to: key.to });
        state.wake(key.to, Wakeup { at: noticed, event });
    }

    /// Ends all streams of a rank, in one generation or in all: it leaves them. Those to it are freed, and all with the
    /// last one to leave.
    pub(super) fn end_all(&self, state: &mut SimulatorState, from: usize, generation: Option<u32>) {
        let wanted = |other: &u32| generation.is_none_or(|wanted| wanted == *other);
        let generations: Vec<u32> = state.meshes.keys().copied().filter(wanted).collect();
        for generation in generations {
            let Some(mesh) = state.meshes.get_mut(&generation) else { continue };
            if !mesh.present.remove(&from) {
                continue;
            }
            if mesh.present.is_empty() {
                state.meshes.remove(&generation);
                continue;
            }
            mesh.streams.remove(&from);
            mesh.closed.remove(&from);
            let to: Vec<usize> = mesh.present.iter().copied().collect();
            to.into_iter().for_each(|to| self.end(state, StreamKey { generation, from, to }));
        }
    }

    pub fn write(&self, key: StreamKey, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.running(key.from);
        let (now, dead) = (state.now, state.ranks[key.from].dead);
        let mesh = state.meshes.get_mut(&key.generation).filter(|_| !dead).ok_or(ErrorKind::BrokenPipe)?;
        let peer_ended = mesh.closed(key.to, key.from).is_some_and(|closed| closed <= now);
        let (is_closed, unread) = mesh
            .stream(key.from, key.to)
            .map_or((false, 0), |stream| (stream.closed.is_some(), stream.unread));
        if peer_ended || is_closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(WINDOW.saturating_sub(unread));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let checksum = checksum(0, &bytes[..count]);
        state.record(TraceEvent::Sent { from: key.from, to: key.to, bytes: count, checksum });
        self.transmit(&mut state, key, bytes[..count].iter().copied().collect(), false);
        Ok(count)
    }

    pub fn read(&self, key: StreamKey, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.running(key.to);
        if state.ranks[key.to].dead {
            // A dead rank reads nothing more.
            return Ok(0);
        }
        let now = state.now;
        let mesh = state.meshes.get_mut(&key.generation).ok_or(ErrorKind::BrokenPipe)?;
        let has_ended = mesh.closed(key.from, key.to).is_some_and(|closed| closed <= now);
        let used = mesh.streams.get_mut(&key.to).and_then(|streams| streams.get_mut(&key.from));
        let Some((stream, arrival)) = used
            .and_then(|stream| stream.packets.front().map(|packet| packet.arrival).map(|at| (stream, at)))
        else {
            return if has_ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        };
        if arrival > now {
            return Err(ErrorKind::WouldBlock.into());
        }
        let was_full = stream.unread >= WINDOW;
        let count = stream.take(buffer)?;
        // With buffering, a sender waits for room only.
        if was_full || !self.network.buffered {
            let room = now + self.network.latency(key.to, key.from);
            state.wake(key.from, Wakeup { at: room, event: WakeupEvent::Writable(key.to) });
        }
        Ok(count)
    }

    /// All unread bytes of a stream, arrived or not.
    pub fn unread(&self, key: StreamKey) -> Vec<u8> {
        let mut state = self.running(key.to);
        let is_dead = state.ranks[key.to].dead;
        let mesh = state.meshes.get_mut(&key.generation).filter(|_| !is_dead);
        let stream = mesh.and_then(|mesh| mesh.stream(key.from, key.to));
        let packets = stream.iter().flat_map(|stream| &stream.packets);
        packets.flat_map(|packet| packet.bytes.iter().copied()).collect()
    }

    pub fn is_drained(&self, key: StreamKey) -> bool {
        let mut state = self.running(key.from);
        let mesh = state.meshes.get_mut(&key.generation).filter(|_| !self.network.buffered);
        let stream = mesh.and_then(|mesh| mesh.stream(key.from, key.to));
        stream.is_none_or(|stream| stream.unread == 0)
    }

    /// Those of the peers whose streams have ended, as this rank sees it.
    pub fn hung_up(&self, rank: usize, generation: u32, is_watched: impl Fn(usize) -> bool) -> Vec<usize> {
        let state = self.running(rank);
        let Some(mesh) = state.meshes.get(&generation) else { return Vec::new() };
        let closed = mesh.closed.get(&rank).into_iter().flatten().map(|(from, at)| (*from, *at));
        let ended = mesh.ended.iter().map(|(from, at)| (*from, *at)).chain(closed);
        let noticed = ended.filter(|(from, at)| *at <= state.now && *from != rank && is_watched(*from));
        noticed.map(|(from, _)| from).collect()
    }

    pub fn close(&self, key: StreamKey) {
        let mut state = self.running(key.from);
        self.end(&mut state, key);
    }

    /// Ends the streams of a rank in one generation, when its transport is dropped.
    pub fn disconnect(&self, rank: usize, generation: u32) {
        let mut state = self.running(rank);
        self.end_all(&mut state, rank, Some(generation));
    }

    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        let key = StreamKey { generation: 0, from, to };
        self.transmit(&mut self.lock(), key, bytes.iter().copied().collect(), true);
    }
}

#[cfg(test)]
mod tests {
    use crate::transport::sim::{LinkParameters, Network, Simulation, Trace};
    use crate::transport::{Incoming, Outgoing, Tag, Transport};
    use crate::wire::HEADER;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const BYTES: usize = 100_000;
    const TAG: Tag = Tag { generation: 1, operation: 1, group: 0, tensor: 0 };

    /// Ranks 0 and 1 send the same to rank 2; the times at which it has received each.
    fn deliver(links: &[((usize, usize), LinkParameters)]) -> (Vec<Duration>, Trace) {
        let network = Network {
            links: BTreeMap::from_iter(links.iter().copied()),
            jitter: 0.0,
            bandwidth: 1e9,
            buffered: true,
            ..Network::ordinary(3, 1)
        };
        let simulation = Simulation::new(network, &[]);
        let program = |mut rank: crate::transport::sim::Sim| {
            let mut arrivals = Vec::new();
            let deadline = Duration::from_secs(60);
            match rank.rank() {
                2 => {
                    for from in [1, 0] {
                        let (chunk, mut bytes) = (0, vec![0; BYTES]);
                        let incoming = Incoming { from, chunk, bytes: &mut bytes };
                        rank.transfer(TAG, &[], &mut [incoming], deadline).unwrap();
                        arrivals.push(rank.now());
                    }
                }
                _ => {
                    let outgoing = Outgoing { to: 2, chunk: 0, bytes: &[7; BYTES] };
                    rank.transfer(TAG, &[outgoing], &mut [], deadline).unwrap();
                }
            }
            rank.close();
            arrivals
        };
        let arrivals = std::thread::scope(|scope| {
            let threads: Vec<_> =
                simulation.ranks().into_iter().map(|rank| scope.spawn(move || program(rank))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        (arrivals, simulation.trace())
    }

    /// Two ranks send each other the same at once; when both have it.
    fn swap(half_duplex: bool) -> Vec<Duration> {
        let network =
            Network { half_duplex, jitter: 0.0, bandwidth: 1e9, buffered: true, ..Network::ordinary(2, 1) };
        let simulation = Simulation::new(network, &[]);
        let program = |mut rank: crate::transport::sim::Sim| {
            let (peer, mut bytes) = (1 - rank.rank(), vec![0; BYTES]);
            let outgoing = Outgoing { to: peer, chunk: 0, bytes: &[7; BYTES] };
            let incoming = Incoming { from: peer, chunk: 0, bytes: &mut bytes };
            rank.transfer(TAG, &[outgoing], &mut [incoming], Duration::from_secs(60)).unwrap();
            rank.close();
            rank.now()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                simulation.ranks().into_iter().map(|rank| scope.spawn(move || program(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_half_duplex_connection_carries_one_direction_at_a_time() {
        let frame = (BYTES + HEADER) as f64 / 1e9;
        let seconds = |half_duplex| swap(half_duplex).into_iter().max().unwrap().as_secs_f64();
        assert!((seconds(false) - 50e-6 - frame).abs() < 1e-6, "{}", seconds(false));
        assert!((seconds(true) - 100e-6 - 2.0 * frame).abs() < 1e-6, "{}", seconds(true));
    }

    #[test]
    fn a_slow_link_has_its_own_speed_and_delays_no_other() {
        let frame = (BYTES + HEADER) as f64;
        let close = |time: Duration, seconds: f64| (time.as_secs_f64() - seconds).abs() < 1e-6;
        // Both at once: 50 us, and the shared bandwidth of the receiver.
        let (alike, _) = deliver(&[]);
        assert!(close(alike[1], 50e-6 + 2.0 * frame / 1e9), "{alike:?}");
        let slow = LinkParameters { latency: Some(Duration::from_millis(20)), bandwidth: Some(1e6) };
        let (arrivals, trace) = deliver(&[((0, 2), slow)]);
        assert!(arrivals[0] <= alike[1], "{arrivals:?}");
        assert!(close(arrivals[1], 20e-3 + frame / 1e6), "{arrivals:?}");
        // The other direction is a separate link.
        assert_eq!(deliver(&[((2, 0), slow)]).0, alike);
        assert!(deliver(&[((0, 2), slow)]).1 == trace, "reproducible");
    }
}
