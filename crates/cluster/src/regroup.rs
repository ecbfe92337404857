//! How a rank gets into the next generation of its group.
//!
//! The rank's program has left its operations and says where it stands; whoever leads the group answers with the next one,
//! and the rank connects to its members. Real processes do this over their line to the coordinator (`Delegate`), simulated
//! ranks in virtual time.

use crate::beacon::Beacon;
use crate::exhaustion;
use crate::hosts::{self, Hosts};
use crate::line::{Line, Listener, Mail};
use crate::membership::{Position, Standing};
use crate::rendezvous::mesh::{self, Early, Group};
use crate::rendezvous::message::{Arrival, Control, Member, Roster};
use crate::rendezvous::neighbourhood::{self, Connected};
use crate::rendezvous::{Invitation, join, unreachable};
use crate::session::Token;
use crate::uplink::Uplink;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_comm::host::Neighbours;
use thalweg_comm::transport::Transport;
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::spec::inject::Mischief;
use thalweg_core::{Culprit, Error, Kind, Result};

/// A generation of the group, as one of its members sees it.
pub struct Generation {
    /// Its number.
    pub number: u32,
    /// How to reach the members.
    pub transport: Box<dyn Transport>,
    /// Those it shares memory with, by place.
    pub neighbours: Neighbours,
    /// What carries its bytes.
    pub carrier: &'static str,
    /// The members' numbers, by place.
    pub numbers: Vec<usize>,
    /// Their machines.
    pub hosts: Hosts,
    /// What happened since the last one.
    pub change: Change,
}

/// What happened between two generations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// What each member said of itself, by place.
    pub standings: Vec<Standing>,
    /// Who was lost, and how.
    pub lost: Vec<Culprit>,
    /// Who came.
    pub joined: Vec<usize>,
    /// Who left in good order.
    pub left: Vec<usize>,
    /// Whether the launcher that writes the results hears the member, by place; nothing if all are heard.
    pub heard: Vec<bool>,
}

impl Change {
    /// Where the group goes on: after the last step that any member has done; nothing if nobody has begun. What only some
    /// have done at that boundary is done again: the one to tell of it may not have come to it.
    pub fn furthest(&self) -> Option<Position> {
        let positions = || self.standings.iter().filter_map(|standing| standing.position);
        let step = positions().map(|position| position.step).max()?;
        positions().filter(|position| position.step == step).min()
    }

    /// Takes over who was lost, came and left before what is told here.
    pub fn follow(&mut self, earlier: Change) {
        let Change { lost, joined, left, .. } = earlier;
        let add = |known: &mut Vec<usize>, more: Vec<usize>| {
            let new: Vec<usize> = more.into_iter().filter(|number| !known.contains(number)).collect();
            known.splice(0..0, new);
        };
        add(&mut self.joined, joined);
        add(&mut self.left, left);
        let new: Vec<Culprit> = lost
            .into_iter()
            .filter(|culprit| self.lost.iter().all(|known| known.rank != culprit.rank))
            .collect();
        self.lost.splice(0..0, new);
    }

    /// The place of the first member that stands there.
    pub fn source(&self) -> Option<usize> {
        let furthest = self.furthest()?;
        self.standings.iter().position(|standing| standing.position == Some(furthest))
    }
}

/// Leads a rank from one generation of its group to the next.
pub trait Regroup: Send {
    /// The generation after that one, for a rank that stands there and was `doing` something when it had to leave. The
    /// neighbours of the last one are given along, so
    /// that those who were lost can be ended for good before anything they could write to is read.
    fn next(
        &mut self,
        after: u32,
        standing: Standing,
        doing: &Pulse,
        neighbours: &Neighbours,
    ) -> Result<Generation>;

    /// This rank, and no other, leaves the group.
    fn leave(&mut self);

    /// Reports a generation that there never was: an injected fault.
    fn misreport(&mut self);
}

/// What a rank says that [misreports](Regroup::misreport).
pub(crate) fn impossible_report() -> Control {
    Control::Report(u32::MAX, Standing::default(), Pulse::default())
}

/// How long the kernel may take to end a process.
const CONFIRM: Duration = Duration::from_secs(10);

/// Where the line of a process is found by its other threads.
pub type LineSlot = Arc<Mutex<Option<Arc<Line>>>>;

/// Hears what a rank saw of another's end.
pub(crate) type Tell = Arc<dyn Fn(&Error, &Pulse) + Send + Sync>;

/// A real process's way into the next generation.
pub(crate) struct Delegate {
    /// What it was invited with.
    pub(crate) invitation: Invitation,
    /// The shared secret, once it is known; for this process's coordinator too.
    pub(crate) token: Token,
    /// How it comes to the group for the first time.
    pub(crate) arrival: Arrival,
    /// How long the coordinator may be silent.
    pub(crate) step_deadline: Duration,
    /// The net below all deadlines of the coordinator.
    pub(crate) patience: Duration,
    pub(crate) beacon: Arc<Beacon>,
    pub(crate) line: LineSlot,
    /// Who says where the next coordinator listens; without a launcher, the coordinator's end is the job's.
    pub(crate) uplink: Option<Arc<Uplink>>,
    /// Where the coordinator listens.
    pub(crate) meeting: String,
    /// How often the launcher had told of a coordinator then.
    pub(crate) told: u64,
    /// Whether that was known beforehand, and holds for the next one too.
    pub(crate) fixed: bool,
    /// Whether another coordinator may take over at the same place without anybody saying so to this rank.
    pub(crate) returns: bool,
    /// Hears what is worth saying.
    pub(crate) say: Arc<dyn Fn(String) + Send + Sync>,
    /// What a witness tells beside the coordinator.
    pub(crate) tell: Tell,
    /// Whether the group survives the loss of a member.
    pub(crate) elastic: bool,
    /// Where this rank listens for the others.
    pub(crate) data: Option<TcpListener>,
    /// Calls for generations to come.
    pub(crate) early: Early,
    /// The members of the last generation, by place.
    pub(crate) members: Arc<Mutex<Vec<Member>>>,
    pub(crate) mail: (Sender<Mail>, Receiver<Mail>),
}

impl Delegate {
    /// The first generation this rank is in.
    pub(crate) fn first(&mut self) -> Result<Generation> {
        let roster = self.arrive(self.arrival, &Pulse::default())?;
        let after = roster.generation;
        match self.connect(&roster) {
            Err(error) if self.elastic && error.kind == Kind::Regroup => {
                self.next(after, Standing::default(), &Pulse::default(), &Neighbours::new())
            }
            connected => connected.map(|connected| generation(roster, connected)),
        }
    }

    /// Comes to the coordinator, and to the next one if that is lost.
    fn arrive(&mut self, arrival: Arrival, doing: &Pulse) -> Result<Roster> {
        if self.beacon.take_early_fault(Mischief::Unreachable) {
            unreachable::inject();
        }
        loop {
            self.beacon.verdict().map_or(Ok(()), Err)?;
            let say = Arc::clone(&self.say);
            let (uplink, meeting) = (self.uplink.clone(), self.meeting.clone());
            let told = self.told;
            let moved = || uplink.as_ref().is_some_and(|uplink| uplink.has_moved(told));
            let has_moved: &dyn Fn() -> bool = if self.fixed || !self.elastic { &|| false } else { &moved };
            let joined =
                join::join(&self.invitation, (arrival, doing), &meeting, &mut self.data, has_moved, &*say);
            let error = match joined {
                Ok(joined) => return self.open_line(joined),
                Err(error) => error,
            };
            // Only a coordinator that is lost is replaced, and only where somebody says by whom.
            let replaced = self.uplink.is_some() || self.returns;
            if !self.elastic || error.kind != Kind::RankFailed || !replaced {
                return Err(error);
            }
            self.find_coordinator(error)?;
        }
    }

    /// Where the next coordinator listens. Rank by rank the same one: the launcher chooses it.
    fn find_coordinator(&mut self, lost: Error) -> Result<()> {
        match &self.uplink {
            Some(uplink) if !self.fixed => {
                let next = uplink.coordinator(self.told, self.invitation.deadline);
                (self.told, self.meeting) = next.map_err(|_| lost)?;
                Ok(())
            }
            None if !self.returns => Err(lost),
            _ => Ok(()),
        }
    }

    fn open_line(&mut self, joined: join::Joined) -> Result<Roster> {
        let broken = |error: std::io::Error| exhaustion::io("cannot set up a connection", &error);
        let join::Joined { roster, control, token } = joined;
        let _ = self.token.set(token.clone());
        self.invitation.token = token;
        let leads = |member: &&Member| member.rank == roster.leader;
        let coordinator = roster.members.iter().find(leads).or(roster.members.first()).cloned();
        let coordinator = coordinator.ok_or_else(|| Error::internal("a group of nobody"))?;
        // What an earlier coordinator said no longer counts.
        self.mail = channel();
        let listener = Listener {
            beacon: Arc::clone(&self.beacon),
            coordinator,
            generation: roster.generation,
            deadline: self.step_deadline,
            mail: self.elastic.then(|| self.mail.0.clone()),
            pauses: false,
            say: Arc::clone(&self.say),
        };
        let line = Line::open(control, listener).map_err(broken)?;
        let (witness, tell) = (Arc::clone(&line), Arc::clone(&self.tell));
        self.beacon.call_witness(Box::new(move |error, pulse, source| {
            tell(error, pulse);
            witness.say(&Control::Witness(Box::new(error.clone()), pulse.clone(), source));
        }));
        *lock(&self.line) = Some(line);
        Ok(roster)
    }

    /// Connects to the members of a group.
    fn connect(&mut self, roster: &Roster) -> Result<Connected> {
        *lock(&self.members) = roster.members.clone();
        let place = roster.members.iter().position(|member| member.rank == self.invitation.rank);
        let place = place.ok_or_else(|| Error::internal("a group without this rank"))?;
        if roster.members.len() == 1 {
            return Ok(Connected::alone());
        }
        let data = self.data.as_ref().ok_or_else(|| Error::internal("a rank that does not listen"))?;
        let patience = self.connecting(roster.generation);
        let say = &*self.say;
        let group =
            Group { invitation: &self.invitation, roster, place, data, beacon: &self.beacon, patience, say };
        let peers = mesh::connect(&group, &mut self.early)?;
        neighbourhood::settle(&group, peers, &*self.say)
    }

    /// How long the members of a group may take to connect, all of whom have just answered the coordinator. Those who
    /// worked together before give up on one of them before they are taken for stuck themselves.
    fn connecting(&self, generation: u32) -> Duration {
        let least = Duration::from_secs(if generation > 1 { 2 } else { 10 });
        let patience = if generation > 1 { self.step_deadline * 3 / 4 } else { self.step_deadline };
        patience.max(least)
    }

    /// Waits for the next group, or for the end of the coordinator.
    fn await_mail(&mut self) -> Result<Mail> {
        let end = Instant::now() + self.patience;
        loop {
            self.beacon.verdict().map_or(Ok(()), Err)?;
            match self.mail.1.recv_timeout(Duration::from_millis(20)) {
                Ok(mail) => return Ok(mail),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(_) => {
                    let words =
                        format!("the coordinator formed no group within {} s", self.patience.as_secs());
                    return Err(Error::new(Kind::RankFailed, words));
                }
            }
        }
    }
}

impl Regroup for Delegate {
    fn next(
        &mut self,
        mut after: u32,
        standing: Standing,
        doing: &Pulse,
        neighbours: &Neighbours,
    ) -> Result<Generation> {
        // By place in the generation that those neighbours are of.
        let before: Vec<Member> = lock(&self.members).clone();
        let mut lost: Vec<Culprit> = Vec::new();
        // Who came and left before groups that did not come about.
        let mut untold = Change::default();
        let mut connected_to_coordinator = lock(&self.line).is_some();
        loop {
            let mut roster = if connected_to_coordinator {
                if let Some(line) = &*lock(&self.line) {
                    line.say(&Control::Report(after, standing, doing.clone()));
                }
                match self.await_mail()? {
                    Mail::Roster(roster) => *roster,
                    Mail::Moved => {
                        *lock(&self.line) = None;
                        let words = "the coordinator has left, and nobody took its role";
                        self.find_coordinator(Error::new(Kind::RankFailed, words))?;
                        connected_to_coordinator = false;
                        continue;
                    }
                    Mail::Lost(mut error) => {
                        if let (Some(culprit), Phase::Exchanging) = (&mut error.culprit, doing.phase) {
                            (culprit.step, culprit.operation) = (Some(doing.step), Some(doing.name.clone()));
                        }
                        lost.extend(error.culprit.clone().map(|culprit| *culprit));
                        *lock(&self.line) = None;
                        if self.fixed && self.uplink.is_some() {
                            (self.say)(format!(
                                "{}; trying to reach it again at {}",
                                error.message, self.meeting
                            ));
                        }
                        self.find_coordinator(error)?;
                        connected_to_coordinator = false;
                        continue;
                    }
                }
            } else {
                connected_to_coordinator = true;
                self.arrive(Arrival::Again { after, standing }, doing)?
            };
            after = roster.generation;
            // A new coordinator does not know how the last one ended; its ranks do.
            for culprit in std::mem::take(&mut lost) {
                match roster.lost.iter_mut().find(|known| known.rank == culprit.rank) {
                    Some(known) => {
                        (known.cause, known.detect_s, known.noticed) =
                            (culprit.cause, culprit.detect_s, culprit.noticed);
                    }
                    None => roster.lost.push(culprit),
                }
            }
            end_lost(&before, &roster, neighbours)?;
            match self.connect(&roster) {
                Ok(connected) if self.beacon.interruption(after).is_none() => {
                    let mut next = generation(roster, connected);
                    next.change.follow(untold);
                    return Ok(next);
                }
                Ok(_) => {}
                Err(error) if error.kind == Kind::Regroup => {}
                Err(error) => {
                    // Somebody cannot be reached: the coordinator decides what becomes of it.
                    self.beacon.testify(&error);
                    self.beacon.await_ending(after, self.step_deadline).ok_or(error)?;
                }
            }
            let mut passed = Change { joined: roster.joined, left: roster.left, ..Change::default() };
            passed.follow(untold);
            (untold, lost) = (passed, roster.lost);
        }
    }

    fn leave(&mut self) {
        if let Some(line) = lock(&self.line).take() {
            line.leave(&Control::Leave);
        }
    }

    fn misreport(&mut self) {
        if let Some(line) = &*lock(&self.line) {
            line.say(&impossible_report());
        }
    }
}

/// Sees to it that nobody who was given up can write to memory that is still read.
fn end_lost(before: &[Member], roster: &Roster, neighbours: &Neighbours) -> Result<()> {
    // Another process may have come under the number of one that was lost.
    let same = |one: &Member, other: &Member| {
        (one.rank, one.process, &one.host) == (other.rank, other.process, &other.host)
    };
    let stays = |member: &Member| roster.members.iter().any(|other| same(member, other));
    let left = |member: &Member| roster.left.contains(&member.rank);
    for (place, member) in before.iter().enumerate().filter(|(_, member)| !stays(member) && !left(member)) {
        let number = member.rank;
        if let Some(Some(neighbour)) = neighbours.get(place)
            && !neighbour.end(CONFIRM)
        {
            let words = format!("rank {number} was given up, but its process cannot be ended");
            return Err(Error::new(Kind::RankFailed, words).hint("end it by hand, then `thalweg resume`"));
        }
    }
    Ok(())
}

fn generation(roster: Roster, connected: Connected) -> Generation {
    let Connected { transport, neighbours, carrier } = connected;
    let leader = roster.members.iter().find(|member| member.rank == roster.leader);
    let heard = leader.map_or_else(Vec::new, |leader| {
        let host = (&leader.identity, &leader.host);
        let same = |member: &Member| {
            member.launcher == leader.launcher && hosts::are_one((&member.identity, &member.host), host)
        };
        roster.members.iter().map(same).collect()
    });
    Generation {
        number: roster.generation,
        transport,
        neighbours,
        carrier,
        numbers: roster.members.iter().map(|member| member.rank).collect(),
        hosts: Hosts::of(&roster.members),
        change: Change {
            standings: roster.standings,
            lost: roster.lost,
            joined: roster.joined,
            left: roster.left,
            heard,
        },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
