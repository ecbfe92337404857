//! The membership client of a real process: joins the coordinator, reports over the control connection, and connects to
//! the members of each generation.

use crate::control_connection::{ControlConnection, CoordinatorEvent, CoordinatorListener};
use crate::hosts::{self, Hosts};
use crate::launcher_connection::LauncherConnection;
use crate::membership::MemberPosition;
use crate::rank_config::Token;
use crate::rank_status::RankStatus;
use crate::regroup::{Generation, MembershipChange, MembershipClient, false_report, include_lost};
use crate::rendezvous::mesh::{self, EarlyConnections, MeshConfig};
use crate::rendezvous::message::{Control, JoinKind, Member, Roster};
use crate::rendezvous::shm_setup::{self, ConnectedTransport};
use crate::rendezvous::{JoinConfig, JoinError, join, unreachable};
use crate::resource_limits;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_comm::host::LocalPeers;
use thalweg_core::event::{Heartbeat, Phase};
use thalweg_core::spec::inject::FaultKind;
use thalweg_core::{Culprit, Error, Kind, Result};

/// How long the kernel may take to end a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The current control connection of a process, shared with its other threads.
pub(crate) type ControlSlot = Arc<Mutex<Option<Arc<ControlConnection>>>>;

/// Gets the loss of a peer as this rank saw it.
pub(crate) type OnLoss = Arc<dyn Fn(&Error, &Heartbeat) + Send + Sync>;

pub(crate) struct TcpMembershipClient {
    pub(crate) join_config: JoinConfig,
    /// Set once the token is known; shared with the coordinator of this process.
    pub(crate) token: Token,
    /// How it joins for the first time.
    pub(crate) join_kind: JoinKind,
    /// How long the coordinator may be silent.
    pub(crate) step_deadline: Duration,
    /// Longer than all deadlines of the coordinator: ends a wait that none of them ended.
    pub(crate) timeout: Duration,
    pub(crate) rank_status: Arc<RankStatus>,
    pub(crate) control: ControlSlot,
    /// Sends the address of the next coordinator; without a launcher, the loss of the coordinator ends the job.
    pub(crate) launcher: Option<Arc<LauncherConnection>>,
    /// The address of the coordinator.
    pub(crate) endpoint: String,
    /// How many addresses the launcher had sent by then.
    pub(crate) addresses: u64,
    /// Whether the address was known beforehand, and is the same for every coordinator.
    pub(crate) is_fixed: bool,
    /// Whether another coordinator may take over at the same address without a message to this rank.
    pub(crate) may_return: bool,
    pub(crate) warn: Arc<dyn Fn(String) + Send + Sync>,
    pub(crate) on_loss: OnLoss,
    /// Whether the group survives the loss of a member.
    pub(crate) elastic: bool,
    /// Accepts data connections.
    pub(crate) data: Option<TcpListener>,
    /// Connections for later generations.
    pub(crate) early: EarlyConnections,
    /// The members of the last generation, by rank.
    pub(crate) members: Arc<Mutex<Vec<Member>>>,
    pub(crate) events: (Sender<CoordinatorEvent>, Receiver<CoordinatorEvent>),
}

impl TcpMembershipClient {
    /// The first generation of this rank.
    pub(crate) fn first(&mut self) -> Result<Generation> {
        let roster = self.join(self.join_kind, &Heartbeat::default())?;
        let after = roster.generation;
        match self.connect(&roster) {
            Err(_) if self.elastic && self.rank_status.generation_is_over(after) => {
                self.next(after, MemberPosition::default(), &Heartbeat::default(), &LocalPeers::new())
            }
            connected => connected.map(|connected| generation(roster, connected)),
        }
    }

    /// Joins the coordinator, or the next one if it is lost meanwhile.
    fn join(&mut self, kind: JoinKind, doing: &Heartbeat) -> Result<Roster> {
        if self.rank_status.take_early_fault(FaultKind::Unreachable) {
            unreachable::inject();
        }
        loop {
            self.rank_status.abort_reason().map_or(Ok(()), Err)?;
            let warn = Arc::clone(&self.warn);
            let (launcher, endpoint) = (self.launcher.clone(), self.endpoint.clone());
            let addresses = self.addresses;
            let moved = || launcher.as_ref().is_some_and(|launcher| launcher.has_new_coordinator(addresses));
            let has_moved: &dyn Fn() -> bool =
                if self.is_fixed || !self.elastic { &|| false } else { &moved };
            let joined =
                join::join(&self.join_config, (kind, doing), &endpoint, &mut self.data, has_moved, &*warn);
            // Only a lost coordinator is replaced, and only if the next address is known.
            let is_replaced = self.elastic && (self.launcher.is_some() || self.may_return);
            match joined {
                Ok(joined) => return self.open_control(joined),
                Err(JoinError::CoordinatorLost(error)) if is_replaced => self.find_coordinator(error)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets the address of the next coordinator; the launcher sends the same one to all its ranks.
    fn find_coordinator(&mut self, lost: Error) -> Result<()> {
        match &self.launcher {
            Some(launcher) if !self.is_fixed => {
                let next = launcher.await_coordinator(self.addresses, self.join_config.deadline);
                (self.addresses, self.endpoint) = next.map_err(|_| lost)?;
                Ok(())
            }
            None if !self.may_return => Err(lost),
            _ => Ok(()),
        }
    }

    fn open_control(&mut self, joined: join::Joined) -> Result<Roster> {
        let broken = |error: std::io::Error| resource_limits::io("cannot set up a connection", &error);
        let join::Joined { roster, control, token } = joined;
        let _ = self.token.set(token.clone());
        self.join_config.token = token;
        let leads = |member: &&Member| member.rank == roster.leader;
        let coordinator = roster.members.iter().find(leads).or(roster.members.first()).cloned();
        let coordinator = coordinator.ok_or_else(|| Error::internal("a group without members"))?;
        // Drops events of an earlier coordinator.
        self.events = channel();
        let listener = CoordinatorListener {
            rank_status: Arc::clone(&self.rank_status),
            coordinator,
            generation: roster.generation,
            deadline: self.step_deadline,
            events: self.elastic.then(|| self.events.0.clone()),
            pause_requested: false,
            warn: Arc::clone(&self.warn),
        };
        let connection = ControlConnection::open(control, listener).map_err(broken)?;
        let (control, on_loss) = (Arc::clone(&connection), Arc::clone(&self.on_loss));
        self.rank_status.set_witness_handler(Box::new(move |error, heartbeat, source| {
            on_loss(error, heartbeat);
            control.send(&Control::Witness(Box::new(error.clone()), heartbeat.clone(), source));
        }));
        let control = Arc::clone(&connection);
        self.rank_status.set_work_handler(Box::new(move |report| control.send(&Control::Work(report))));
        *lock(&self.control) = Some(connection);
        Ok(roster)
    }

    /// Connects to the members of a group.
    fn connect(&mut self, roster: &Roster) -> Result<ConnectedTransport> {
        *lock(&self.members) = roster.members.clone();
        let rank = roster.members.iter().position(|member| member.rank == self.join_config.rank);
        let rank = rank.ok_or_else(|| Error::internal("a group without this rank"))?;
        if roster.members.len() == 1 {
            return Ok(ConnectedTransport::alone());
        }
        let data = self.data.as_ref().ok_or_else(|| Error::internal("a rank that does not listen"))?;
        let mesh_config = MeshConfig {
            join_config: &self.join_config,
            roster,
            rank,
            data,
            rank_status: &self.rank_status,
            timeout: self.connect_timeout(roster.generation),
            notify: &*self.warn,
        };
        let peers = mesh::connect(&mesh_config, &mut self.early)?;
        shm_setup::set_up_transport(&mesh_config, peers, &*self.warn)
    }

    /// How long the members of a group, which have all just reported, may take to connect. In later generations a rank
    /// gives up on a peer before the coordinator takes the rank itself for stuck.
    fn connect_timeout(&self, generation: u32) -> Duration {
        let min = Duration::from_secs(if generation > 1 { 2 } else { 10 });
        let timeout = if generation > 1 { self.step_deadline * 3 / 4 } else { self.step_deadline };
        timeout.max(min)
    }

    fn await_event(&mut self) -> Result<CoordinatorEvent> {
        let end = Instant::now() + self.timeout;
        loop {
            self.rank_status.abort_reason().map_or(Ok(()), Err)?;
            match self.events.1.recv_timeout(Duration::from_millis(20)) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(_) => {
                    let message =
                        format!("the coordinator formed no group within {} s", self.timeout.as_secs());
                    return Err(Error::new(Kind::RankFailed, message));
                }
            }
        }
    }
}

impl MembershipClient for TcpMembershipClient {
    fn next(
        &mut self,
        mut after: u32,
        position: MemberPosition,
        doing: &Heartbeat,
        local_peers: &LocalPeers,
    ) -> Result<Generation> {
        // By rank in the generation of `local_peers`.
        let before: Vec<Member> = lock(&self.members).clone();
        let mut lost: Vec<Culprit> = Vec::new();
        // Changes of groups that were not completed.
        let mut unreported = MembershipChange::default();
        let mut connected_to_coordinator = lock(&self.control).is_some();
        loop {
            let mut roster = if connected_to_coordinator {
                if let Some(control) = &*lock(&self.control) {
                    control.send(&Control::Report(after, position, doing.clone()));
                }
                match self.await_event()? {
                    CoordinatorEvent::Roster(roster) => *roster,
                    CoordinatorEvent::Moved => {
                        *lock(&self.control) = None;
                        let message = "the coordinator has left, and no rank took over its role";
                        self.find_coordinator(Error::new(Kind::RankFailed, message))?;
                        connected_to_coordinator = false;
                        continue;
                    }
                    CoordinatorEvent::Lost(mut error) => {
                        if let (Some(culprit), Phase::Exchanging) = (&mut error.culprit, doing.phase) {
                            (culprit.step, culprit.operation) = (Some(doing.step), Some(doing.name.clone()));
                        }
                        lost.extend(error.culprit.clone().map(|culprit| *culprit));
                        *lock(&self.control) = None;
                        if self.is_fixed && self.launcher.is_some() {
                            (self.warn)(format!(
                                "{}; trying to reach it again at {}",
                                error.message, self.endpoint
                            ));
                        }
                        self.find_coordinator(error)?;
                        connected_to_coordinator = false;
                        continue;
                    }
                }
            } else {
                connected_to_coordinator = true;
                self.join(JoinKind::Rejoin { after, position }, doing)?
            };
            after = roster.generation;
            // A new coordinator does not know how the last one was lost; its ranks do.
            include_lost(&mut roster.lost, std::mem::take(&mut lost));
            kill_lost(&before, &roster, local_peers)?;
            match self.connect(&roster) {
                Ok(connected) if self.rank_status.interrupt_reason(after).is_none() => {
                    let mut next = generation(roster, connected);
                    next.change.include_earlier(unreported);
                    return Ok(next);
                }
                Ok(_) => {}
                Err(_) if self.rank_status.generation_is_over(after) => {}
                Err(error) => {
                    // A peer cannot be reached: the coordinator decides which member is removed.
                    self.rank_status.report_witness(&error);
                    self.rank_status.await_end_reason(after, self.step_deadline).ok_or(error)?;
                }
            }
            let mut passed =
                MembershipChange { joined: roster.joined, left: roster.left, ..MembershipChange::default() };
            passed.include_earlier(unreported);
            (unreported, lost) = (passed, roster.lost);
        }
    }

    fn leave(&mut self) {
        if let Some(control) = lock(&self.control).take() {
            control.close(&Control::Leave);
        }
    }

    fn send_false_report(&mut self) {
        if let Some(control) = &*lock(&self.control) {
            control.send(&false_report());
        }
    }
}

/// Kills local peers that are no longer members, so that they cannot write to memory that is still read.
fn kill_lost(before: &[Member], roster: &Roster, local_peers: &LocalPeers) -> Result<()> {
    // Another process may have joined with the id of a lost one.
    let same = |one: &Member, other: &Member| {
        (one.rank, one.process, &one.host) == (other.rank, other.process, &other.host)
    };
    let stays = |member: &Member| roster.members.iter().any(|other| same(member, other));
    let left = |member: &Member| roster.left.contains(&member.rank);
    for (rank, member) in before.iter().enumerate().filter(|(_, member)| !stays(member) && !left(member)) {
        let id = member.rank;
        if let Some(Some(peer)) = local_peers.get(rank)
            && !peer.kill(KILL_TIMEOUT)
        {
            let message = format!("rank {id} was given up, but its process cannot be ended");
            return Err(Error::new(Kind::RankFailed, message).hint("end it by hand, then `thalweg resume`"));
        }
    }
    Ok(())
}

fn generation(roster: Roster, connected: ConnectedTransport) -> Generation {
    let ConnectedTransport { transport, local_peers, carrier } = connected;
    let leader = roster.members.iter().find(|member| member.rank == roster.leader);
    let reaches_launcher = leader.map_or_else(Vec::new, |leader| {
        let host = (&leader.identity, &leader.host);
        let same = |member: &Member| {
            member.launcher == leader.launcher && hosts::same_host((&member.identity, &member.host), host)
        };
        roster.members.iter().map(same).collect()
    });
    Generation {
        number: roster.generation,
        transport,
        local_peers,
        carrier,
        member_ids: roster.members.iter().map(|member| member.rank).collect(),
        hosts: Hosts::of(&roster.members),
        change: MembershipChange {
            positions: roster.positions,
            lost: roster.lost,
            joined: roster.joined,
            left: roster.left,
            reaches_launcher,
        },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
