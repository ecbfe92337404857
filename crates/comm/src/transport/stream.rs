//! A transport over byte streams, one to each other rank.
//!
//! [`Streamed`] moves frames over streams that never block; when none moves, it looks who hung up, then waits. What
//! differs between threads and sockets is behind [`Link`] (one stream) and [`Wires`] (all of them, and how to wait).
//!
//! What a peer's end means for the others is decided in `standing`.

use super::inbox::{Inbox, Interruption, Others};
use super::links::{Link, Wires, try_later};
use super::outbox::Outbox;
use super::sign::{Sign, overdue};
use super::standing::{Standing, verdict};
use super::vigil::{Interest, Vigil, owed};
use super::{
    Abort, Activity, Cause, Company, Fault, Incoming, LinkFault, Moved, Outgoing, Tag, Traffic, Transport,
};
use crate::wire::{Departure, HEADER, Header, MAX_PAYLOAD};
use std::io::{self, ErrorKind, Write};
use std::time::Duration;

/// How long a waiting rank sleeps before it looks at its abort handle.
const SLICE: Duration = Duration::from_millis(20);

/// How long [`Transport::close`] tries to get its farewell across.
const GRACE: Duration = Duration::from_secs(1);

/// A transport over the byte streams `W`.
pub struct Streamed<W: Wires> {
    rank: usize,
    wires: W,
    standing: Vec<Standing>,
    /// Somebody's standing has changed since all streams were advanced.
    news: bool,
    outboxes: Vec<Outbox>,
    inboxes: Vec<Inbox>,
    /// Who has not ended its stream, as far as is known.
    present: Vec<bool>,
    hung_up: Vec<usize>,
    signs: Vec<Sign>,
    traffic: Traffic,
    abort: Abort,
    activity: Activity,
    generation: u32,
    /// Several groups are at work.
    grouped: bool,
    /// Peers to which everything is lost on its way: an injected fault.
    muted: Vec<usize>,
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
            outboxes: (0..world).map(|_| Outbox::new()).collect(),
            inboxes: (0..world).map(|_| Inbox::new()).collect(),
            present: vec![true; world],
            hung_up: Vec::new(),
            signs: vec![Sign::default(); world],
            traffic: Traffic::default(),
            abort: Abort::default(),
            activity: Activity::default(),
            generation: 0,
            grouped: false,
            muted: Vec::new(),
            fault: None,
            departed: false,
        }
    }

    /// The streams, for those who know what they are.
    pub(super) fn wires(&self) -> &W {
        &self.wires
    }

    /// The same, to change them.
    #[cfg(feature = "mpi")]
    pub(super) fn wires_mut(&mut self) -> &mut W {
        &mut self.wires
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<W> {
        let rank = self.rank;
        (0..self.standing.len()).filter(move |&peer| peer != rank)
    }

    /// Whether the group is still there.
    fn check_group(&mut self, tag: Tag) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.departed {
            return Err(Fault::of(self.rank, Cause::Left));
        }
        self.generation = tag.generation;
        Ok(())
    }

    /// The same, and whether a frame of that length with that peer can be meant.
    fn check(&mut self, tag: Tag, peer: usize, length: usize) -> Result<(), Fault> {
        self.check_group(tag)?;
        if peer == self.rank || peer >= self.standing.len() || length > MAX_PAYLOAD {
            let what = format!("rank {} cannot exchange {length} bytes with rank {peer}", self.rank);
            return Err(self.fail(Fault::of(self.rank, Cause::Protocol(what))));
        }
        Ok(())
    }

    /// The end of the group for this rank: it tells the others why it leaves.
    fn fail(&mut self, fault: Fault) -> Fault {
        self.fault = Some(fault.clone());
        let departure = match (&fault.cause, fault.peer) {
            (cause, _) if cause.is_late() => Departure::GaveUp,
            (_, Some(peer)) => Departure::Lost(peer),
            (_, None) => Departure::Aborted,
        };
        self.depart(departure, Duration::ZERO);
        fault
    }

    /// Whether there is a reason to end, and if not, waits until another attempt makes sense.
    fn watch(&mut self, vigil: &mut Vigil, wanted: &[Interest], moved: bool) -> Result<(), Fault> {
        if self.abort.is_aborted() {
            return Err(Fault::aborted());
        }
        self.activity.look();
        let set_aside = !moved && self.set_aside()?;
        if set_aside {
            self.activity.advance();
        }
        let moved = moved || set_aside;
        if !moved && self.is_anyone_gone() {
            // Others may have gone as well by now: see all of them before naming one.
            self.look(wanted, Duration::ZERO);
        }
        let now = self.wires.now();
        vigil.tick(now);
        vigil.see_group(self.activity.group());
        if moved {
            self.signs.iter_mut().for_each(|sign| sign.note(now));
        }
        let news = std::mem::take(&mut self.news);
        if !moved && !news && self.is_anyone_gone() {
            // Only now, when all that arrived before a hang-up has been read.
            let unread = |peer: usize| self.inboxes[peer].holds_a_frame();
            let late = |owed| self.overdue(vigil, owed);
            if let Some(fault) = verdict(&self.standing, &owed(wanted), unread, late) {
                return Err(fault);
            }
        }
        if vigil.left().is_zero() {
            return Err(self.overdue(vigil, owed(wanted)));
        }
        if moved || news {
            vigil.idle = 0;
            self.wires.awake();
            return Ok(());
        }
        vigil.idle = vigil.idle.saturating_add(1);
        if !self.wires.patience().pass(vigil.idle) {
            self.look(wanted, SLICE.min(vigil.left()));
        }
        Ok(())
    }

    /// Where nothing moves, frames that nobody could take make way for those behind them; says whether any did.
    fn set_aside(&mut self) -> Result<bool, Fault> {
        let mut moved = false;
        for peer in self.others() {
            if !self.inboxes[peer].holds_a_frame() {
                continue;
            }
            let Some(link) = &mut self.wires.links()[peer] else { continue };
            let outcome = self.inboxes[peer].set_aside(link, &mut self.traffic);
            moved |= self.interpret(peer, outcome)?.unwrap_or(false);
        }
        Ok(moved)
    }

    /// What reading from a peer came to: nothing, if it has gone.
    fn interpret<R>(&mut self, peer: usize, outcome: Result<R, Interruption>) -> Result<Option<R>, Fault> {
        match outcome {
            Ok(outcome) => return Ok(Some(outcome)),
            Err(Interruption::Wrong(cause)) => return Err(self.fail(Fault::of(peer, cause))),
            Err(Interruption::Farewell(departure)) => {
                // It stays where it is, for every operation that looks there: it is news once.
                let left = Standing::Left(departure).among(self.standing.len());
                self.news |= self.standing[peer] != left;
                self.standing[peer] = left;
            }
            Err(Interruption::Stream) => self.hung_up(peer),
        }
        Ok(None)
    }

    /// Waits for something to happen and takes note of those who hung up.
    fn look(&mut self, wanted: &[Interest], timeout: Duration) {
        for (present, standing) in self.present.iter_mut().zip(&self.standing) {
            *present = *standing == Standing::Present;
        }
        let mut hung_up = std::mem::take(&mut self.hung_up);
        if self.wires.wait(wanted, &self.present, timeout, &mut hung_up).is_err() {
            // The system is short of something; it is no peer's fault, and the deadline still holds.
            self.wires.pause(Duration::from_millis(1));
        }
        for peer in hung_up.drain(..) {
            self.hung_up(peer);
        }
        self.hung_up = hung_up;
    }

    /// Finds out how a peer that ended its stream went.
    fn hung_up(&mut self, peer: usize) {
        if self.standing[peer] != Standing::Present {
            return;
        }
        let Some(link) = &mut self.wires.links()[peer] else { return };
        self.news = true;
        self.standing[peer] = match link.last_words() {
            Ok(words) => Standing::after(&words).among(self.standing.len()),
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
            let torn = !W::Link::FAREWELL_APART && self.outboxes[peer].is_torn();
            if torn || self.standing[peer] != Standing::Present || self.muted.contains(&peer) {
                continue;
            }
            let mut rest = &farewell[..];
            while !rest.is_empty() {
                let Some(link) = &mut self.wires.links()[peer] else { break };
                match link.bid_farewell(rest) {
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

    fn now(&self) -> Duration {
        self.wires.now()
    }

    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<Moved, Fault> {
        let peer = frame.to;
        self.check(tag, peer, frame.bytes.len())?;
        if self.muted.contains(&peer) {
            return Ok(Moved::Whole);
        }
        let Some(link) = &mut self.wires.links()[peer] else { return Ok(Moved::Nothing) };
        if self.standing[peer] != Standing::Present && !self.outboxes[peer].is_written() {
            return Ok(Moved::Nothing);
        }
        match self.outboxes[peer].push(link, tag, frame, &mut self.traffic) {
            Ok(moved) => {
                if moved != Moved::Nothing {
                    self.activity.advance();
                    self.signs[peer].take();
                }
                Ok(moved)
            }
            Err(_) => {
                self.hung_up(peer);
                Ok(Moved::Nothing)
            }
        }
    }

    fn receive(&mut self, tag: Tag, frame: Incoming<'_>, company: Company) -> Result<Moved, Fault> {
        let peer = frame.from;
        self.check(tag, peer, frame.bytes.len())?;
        let Some(link) = &mut self.wires.links()[peer] else { return Ok(Moved::Nothing) };
        let others = match company {
            Company::Several => Others::Anybody,
            Company::Alone if self.grouped => Others::Groups,
            Company::Alone => Others::Nobody,
        };
        let outcome = self.inboxes[peer].pull(link, tag, frame, others, &mut self.traffic);
        let moved = self.interpret(peer, outcome)?.unwrap_or(Moved::Nothing);
        if moved != Moved::Nothing {
            self.activity.advance();
        }
        let came = match moved {
            Moved::Nothing => false,
            // Not of another operation, of which the header is looked at only.
            Moved::Part => self.inboxes[peer].has_accepted(tag),
            Moved::Whole => true,
        };
        self.signs[peer].ask(tag, came);
        Ok(moved)
    }

    fn attend(&mut self, vigil: &mut Vigil, wanted: &[Interest], moved: bool) -> Result<(), Fault> {
        let outcome = self.watch(vigil, wanted, moved);
        self.wires.mark();
        match outcome {
            Ok(()) => self.signs.iter_mut().for_each(Sign::forget),
            Err(fault) => return Err(self.fail(fault)),
        }
        Ok(())
    }

    fn overdue(&self, vigil: &Vigil, owed: Vec<usize>) -> Fault {
        overdue(&self.signs, owed, self.wires.now(), vigil.waited())
    }

    fn glance(&mut self) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.abort.is_aborted() {
            return Err(self.fail(Fault::aborted()));
        }
        self.look(&vec![Interest::default(); self.standing.len()], Duration::ZERO);
        if std::mem::take(&mut self.news) || !self.is_anyone_gone() {
            // What came before its end is read first.
            return Ok(());
        }
        let unread = |peer: usize| self.inboxes[peer].holds_a_frame();
        let late = |owed| Fault::silent(owed, Duration::ZERO);
        // That another has waited in vain says nothing about those this rank has to do with.
        match verdict(&self.standing, &[], unread, late).filter(|fault| !fault.cause.is_late()) {
            Some(fault) => Err(self.fail(fault)),
            None => Ok(()),
        }
    }

    fn nudge(&mut self) {
        self.wires.nudge();
    }

    fn admit_groups(&mut self) {
        self.grouped = true;
    }

    fn adds_up(&self) -> bool {
        self.wires.adds_up()
    }

    fn add_up(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<Moved, Fault> {
        self.check_group(tag)?;
        let outcome = self.wires.add_up(buffer);
        if outcome.as_ref().is_ok_and(|moved| *moved != Moved::Nothing) {
            self.activity.advance();
        }
        if outcome.as_ref().is_ok_and(|moved| *moved == Moved::Whole) {
            self.traffic.add_sum(size_of_val(buffer), self.standing.len());
        }
        outcome.map_err(|error| self.fail(Fault::of(self.rank, Cause::Protocol(error.to_string()))))
    }

    fn inject(&mut self, peer: usize, fault: LinkFault) {
        let Some(Some(link)) = self.wires.links().get_mut(peer) else { return };
        match fault {
            LinkFault::Cut => link.finish(),
            LinkFault::CutOneWay => self.muted.push(peer),
            // If there is no room for it, nothing is spoilt.
            _ => drop(link.write(&fault.bytes())),
        }
        self.wires.nudge();
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    fn activity(&self) -> &Activity {
        &self.activity
    }

    fn close(&mut self) {
        if !self.departed {
            self.depart(Departure::Done, GRACE);
            self.wires.left();
        }
    }
}
