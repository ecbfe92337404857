//! A transport over byte streams, one to each other rank.
//!
//! [`Streamed`] drives all frames of a transfer over streams that never block: advance every one of them, and when
//! none moves, look who hung up, then wait. What differs between threads and sockets is behind [`Link`] (one
//! stream) and [`Wires`] (all of them, and how to wait).
//!
//! What a peer's end means for the others is decided in `standing`.

use super::frame::{Inbox, Interruption, Outbox, try_later};
use super::standing::{Standing, verdict};
use super::{Abort, Cause, Fault, Incoming, Outgoing, Tag, Traffic, Transport};
use crate::wire::{Departure, HEADER, Header, MAX_PAYLOAD};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// How long a waiting rank sleeps before it looks at its abort handle.
const SLICE: Duration = Duration::from_millis(20);

/// What a single look may count for; anything longer was not spent waiting but asleep.
const LONGEST_LAP: Duration = Duration::from_secs(1);

/// How long [`Transport::close`] tries to get its farewell across.
const GRACE: Duration = Duration::from_secs(1);

/// A byte stream to one other rank. Reading and writing never block.
pub trait Link: Read + Write + Send {
    /// What the peer sent last before it ended the stream, without taking it: at least the last [`HEADER`] bytes
    /// that are not read yet, or all of them. Called only after the stream was found ended.
    fn last_words(&mut self) -> io::Result<Vec<u8>>;

    /// Whether the peer has taken all that was written, as far as this stream can know.
    fn is_drained(&self) -> bool {
        true
    }

    /// Ends the outgoing half; what was written before still arrives.
    fn finish(&mut self);
}

/// What a transfer still wants from one peer's stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Wake when there is something to read.
    pub read: bool,
    /// Wake when something can be written.
    pub write: bool,
    /// Wake when the peer hangs up.
    pub hang_up: bool,
}

/// All streams of one rank.
pub trait Wires: Send {
    /// The stream to one peer.
    type Link: Link;

    /// The streams by rank; the own place is empty.
    fn links(&mut self) -> &mut [Option<Self::Link>];

    /// Called before each attempt to advance; what changes after it must end the following [`Wires::wait`].
    fn mark(&mut self) {}

    /// Waits until one of the interests is met or `timeout` has passed, and adds to `hung_up` the peers of interest
    /// that ended their stream.
    fn wait(&mut self, interests: &[Interest], timeout: Duration, hung_up: &mut Vec<usize>)
    -> io::Result<()>;

    /// The time by which deadlines are kept: since some fixed moment, never going back.
    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    /// Lets time pass.
    fn pause(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    /// How often to look without sleeping before sleeping.
    fn patience(&self) -> u32 {
        0
    }
}

/// A transport over the byte streams `W`.
pub struct Streamed<W: Wires> {
    rank: usize,
    wires: W,
    standing: Vec<Standing>,
    /// Somebody's standing has changed since all streams were advanced.
    news: bool,
    outboxes: Vec<Outbox>,
    inboxes: Vec<Inbox>,
    interests: Vec<Interest>,
    traffic: Traffic,
    abort: Abort,
    generation: u32,
    fault: Option<Fault>,
    departed: bool,
}

impl<W: Wires> Streamed<W> {
    /// Rank `rank` of a group, with a link to every other rank.
    pub(super) fn over(rank: usize, mut wires: W) -> Streamed<W> {
        let world = wires.links().len();
        Streamed {
            rank,
            wires,
            standing: vec![Standing::Present; world],
            news: false,
            outboxes: (0..world).map(|_| Outbox::default()).collect(),
            inboxes: (0..world).map(|_| Inbox::default()).collect(),
            interests: vec![Interest::default(); world],
            traffic: Traffic::default(),
            abort: Abort::default(),
            generation: 0,
            fault: None,
            departed: false,
        }
    }

    /// The streams, for those who know what they are.
    pub(super) fn wires(&self) -> &W {
        &self.wires
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<W> {
        let rank = self.rank;
        (0..self.standing.len()).filter(move |&peer| peer != rank)
    }

    /// Refuses what cannot be meant: transfers with oneself, with nobody, or too large for a frame.
    fn validate(&self, sends: &[Outgoing<'_>], receives: &[Incoming<'_>]) -> Result<(), Fault> {
        let ends = sends.iter().map(|send| (send.to, send.bytes.len()));
        let ends = ends.chain(receives.iter().map(|receive| (receive.from, receive.bytes.len())));
        for (peer, length) in ends {
            if peer == self.rank || peer >= self.standing.len() || length > MAX_PAYLOAD {
                let what = format!("rank {} cannot exchange {length} bytes with rank {peer}", self.rank);
                return Err(Fault::of(self.rank, Cause::Protocol(what)));
            }
        }
        Ok(())
    }

    /// Advances, looks and waits until all is done or somebody is to blame.
    fn drive(
        &mut self,
        tag: Tag,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        deadline: Duration,
    ) -> Result<(), Fault> {
        // Time is added up lap by lap: a lap that a stopped process slept through counts as a short one.
        let mut waited = Duration::ZERO;
        let mut lap = self.wires.now();
        let mut idle = 0;
        loop {
            self.wires.mark();
            let moved = self.advance(tag, sends, receives)?;
            let owed = self.owed();
            if owed.is_empty() {
                return Ok(());
            }
            if self.abort.is_aborted() {
                return Err(Fault::aborted());
            }
            if !moved && self.is_anyone_gone() {
                // Others may have gone as well by now: see all of them before naming one.
                self.look(Duration::ZERO);
            }
            let now = self.wires.now();
            waited += (now - lap).min(LONGEST_LAP);
            lap = now;
            let news = std::mem::take(&mut self.news);
            if !moved && !news {
                // Only now, when all that arrived before a hang-up has been read.
                if let Some(fault) = verdict(&self.standing, &owed, waited) {
                    return Err(fault);
                }
            }
            if waited >= deadline {
                return Err(Fault::silent(owed, waited));
            }
            if moved || news {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle <= self.wires.patience() {
                self.look(Duration::ZERO);
                // The rank waited for may need this very core.
                std::thread::yield_now();
            } else {
                self.look(SLICE.min(deadline - waited));
            }
        }
    }

    /// Moves what can be moved without waiting, once per stream and direction.
    fn advance(
        &mut self,
        tag: Tag,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<bool, Fault> {
        let mut moved = false;
        for peer in self.others() {
            let Some(link) = &mut self.wires.links()[peer] else { continue };
            match self.inboxes[peer].pull(link, peer, tag, receives, &mut self.traffic) {
                Ok(progress) => moved |= progress,
                Err(Interruption::Wrong(cause)) => return Err(Fault::of(peer, cause)),
                Err(Interruption::Farewell(departure)) => {
                    self.standing[peer] = Standing::Left(departure);
                    self.news = true;
                }
                Err(Interruption::Stream) => self.hung_up(peer),
            }
            let Some(link) = &mut self.wires.links()[peer] else { continue };
            if self.standing[peer] == Standing::Present {
                match self.outboxes[peer].push(link, peer, tag, sends, &mut self.traffic) {
                    Ok(progress) => moved |= progress,
                    Err(_) => self.hung_up(peer),
                }
            }
        }
        Ok(moved)
    }

    /// The peers that still owe this rank something: first those it receives from, then those it sends to.
    fn owed(&mut self) -> Vec<usize> {
        let receiving = self.others().filter(|&peer| !self.inboxes[peer].is_done());
        let mut owed: Vec<usize> = receiving.collect();
        for peer in self.others() {
            let drained = self.wires.links()[peer].as_ref().is_none_or(|link| link.is_drained());
            let sending = !self.outboxes[peer].is_done() || !drained;
            if sending && self.inboxes[peer].is_done() {
                owed.push(peer);
            }
        }
        owed
    }

    /// Waits for something to happen and takes note of those who hung up.
    fn look(&mut self, timeout: Duration) {
        for peer in self.others() {
            let present = self.standing[peer] == Standing::Present;
            self.interests[peer] = Interest {
                read: present && !self.inboxes[peer].is_done(),
                write: present && !self.outboxes[peer].is_done(),
                hang_up: present,
            };
        }
        let mut hung_up = Vec::new();
        if self.wires.wait(&self.interests, timeout, &mut hung_up).is_err() {
            // The system is short of something; it is no peer's fault, and the deadline still holds.
            self.wires.pause(Duration::from_millis(1));
        }
        for peer in hung_up {
            self.hung_up(peer);
        }
    }

    /// Finds out how a peer that ended its stream went.
    fn hung_up(&mut self, peer: usize) {
        if self.standing[peer] != Standing::Present {
            return;
        }
        let Some(link) = &mut self.wires.links()[peer] else { return };
        self.news = true;
        self.standing[peer] = match link.last_words() {
            Ok(words) => Standing::after(&words),
            Err(error) if is_plain_end(&error) => Standing::Lost(Cause::Closed),
            Err(error) => Standing::Lost(Cause::Io(error.to_string())),
        };
    }

    fn is_anyone_gone(&self) -> bool {
        self.standing.iter().any(|standing| *standing != Standing::Present)
    }

    /// Says goodbye to all who are present, on every stream that is not in the middle of a frame.
    fn depart(&mut self, departure: Departure, grace: Duration) {
        if std::mem::replace(&mut self.departed, true) {
            return;
        }
        let start = self.wires.now();
        let farewell = Header::farewell(self.generation, departure).encode();
        for peer in self.others() {
            let torn = self.outboxes[peer].is_torn();
            if torn || self.standing[peer] != Standing::Present {
                continue;
            }
            let mut rest = &farewell[..];
            while !rest.is_empty() {
                let Some(link) = &mut self.wires.links()[peer] else { break };
                match link.write(rest) {
                    Ok(count) if count > 0 => rest = &rest[count..],
                    Err(error) if try_later(&error) && self.wires.now() - start < grace => {
                        self.wires.pause(Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
            self.traffic.total_sent += (HEADER - rest.len()) as u64;
            if let Some(link) = &mut self.wires.links()[peer] {
                link.finish();
            }
        }
    }
}

/// Whether an error is only another way in which a dead peer's stream ends.
fn is_plain_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let ends = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
    try_later(error) || ends.contains(&error.kind())
}

impl<W: Wires> Transport for Streamed<W> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.standing.len()
    }

    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        deadline: Duration,
    ) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.departed {
            return Err(Fault::of(self.rank, Cause::Left));
        }
        self.generation = tag.generation;
        let outcome = self.validate(sends, receives).and_then(|()| {
            for peer in self.others() {
                self.outboxes[peer].load(peer, tag, sends, 0);
                self.inboxes[peer].load(peer, receives, 0);
            }
            self.drive(tag, sends, receives, deadline)
        });
        if let Err(fault) = &outcome {
            self.fault = Some(fault.clone());
            let departure = match (&fault.cause, fault.peer) {
                (Cause::Silent { .. }, _) => Departure::GaveUp,
                (_, Some(peer)) => Departure::Lost(peer),
                (_, None) => Departure::Aborted,
            };
            self.depart(departure, Duration::ZERO);
        }
        outcome
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    fn close(&mut self) {
        self.depart(Departure::Done, GRACE);
    }
}
