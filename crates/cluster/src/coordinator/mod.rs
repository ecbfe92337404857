//! The coordinator: a role of one rank's process, not a separate server.
//!
//! It admits ranks, sends them their group, receives their heartbeats, and when a member is lost it ends the generation and
//! forms the next one of the remaining members. [`MembershipPolicy`] decides, this module executes. If the process with
//! the role exits or leaves, another rank takes it: the members report their positions to it, so no state is lost.

mod actions;
mod admission;
mod config;
mod connection;
mod handover;
mod missing;
mod probe;
mod refusal;
mod status;
mod suspension;

pub use config::{CoordinatorCallbacks, CoordinatorConfig};

use crate::control_connection::HEARTBEAT_INTERVAL;
use crate::interruption::STALL_WHILE_STOPPING;
use crate::membership_policy::{MembershipActions, MembershipPolicy};
use crate::rendezvous::handshake_acceptor::HandshakeAcceptor;
use crate::rendezvous::message::{Control, ControlRequest, send};
use crate::rendezvous::{REMINDER, handshake::Purpose, join_validation};
use crate::session::unix_time;
use crate::stall::StallReporter;
use connection::{ConnectedMember, ConnectionEvent};
use probe::Candidate;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, TcpListener};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Heartbeat};
use thalweg_core::{Culprit, Error};

/// How long the members may take to leave after an abort.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the coordinator until all members have left, or the job is over.
pub fn run_coordinator(listener: TcpListener, config: CoordinatorConfig, callbacks: CoordinatorCallbacks) {
    let (sender, receiver) = channel();
    let now = Duration::ZERO;
    let all = [&config.expected[..], &config.left].concat();
    let (membership, lost) = (config.membership.clone(), &config.lost);
    let mut policy = MembershipPolicy::new(membership, &all, config.after, lost, config.world, now);
    for id in &config.left {
        let _ = policy.membership.leave(*id, false, now);
    }
    let coordinator = Coordinator {
        policy,
        has_left: false,
        boundary_requested: false,
        connected: BTreeMap::new(),
        candidates: BTreeMap::new(),
        suspended: None,
        reserved: BTreeMap::new(),
        refusals: BTreeMap::new(),
        unauthenticated: BTreeMap::new(),
        informed: BTreeSet::new(),
        abort_error: config.failed.clone(),
        sender,
        start: Instant::now(),
        serial: 0,
        aborted_at: config.failed.as_ref().map(|_| Instant::now()),
        next_preparing_report: REMINDER.as_secs_f64(),
        stalls: StallReporter::default(),
        progress: status::LastProgress::default(),
        next_report: REMINDER,
        listener: Some(listener),
        config,
        callbacks,
    };
    coordinator.run(&receiver);
}

struct Coordinator {
    config: CoordinatorConfig,
    callbacks: CoordinatorCallbacks,
    listener: Option<TcpListener>,
    policy: MembershipPolicy,
    connected: BTreeMap<usize, ConnectedMember>,
    /// Newcomers whose connections to the members are probed before they are admitted.
    candidates: BTreeMap<usize, Candidate>,
    /// When this process came back from a suspension longer than the deadline, and how long it was.
    suspended: Option<(Instant, Duration)>,
    /// Whether the rank in this process has left the group.
    has_left: bool,
    /// Whether the members know of a request that waits for a step boundary.
    boundary_requested: bool,
    /// Ids of workers that prepare to join, and since when.
    reserved: BTreeMap<usize, Duration>,
    /// Expected ranks that were refused, and why.
    refusals: BTreeMap<usize, String>,
    /// Callers that failed the handshake, and how.
    unauthenticated: BTreeMap<IpAddr, String>,
    /// Ranks that know that the job is over.
    informed: BTreeSet<usize>,
    /// Why the job is over.
    abort_error: Option<Error>,
    sender: Sender<ConnectionEvent>,
    start: Instant,
    /// Of the last connection.
    serial: u64,
    aborted_at: Option<Instant>,
    /// Seconds of waiting for a rank that prepares after which it is reported next.
    next_preparing_report: f64,
    stalls: StallReporter,
    progress: status::LastProgress,
    /// Time of forming a group after which missing members are reported next.
    next_report: Duration,
}

impl Coordinator {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn run(mut self, receiver: &Receiver<ConnectionEvent>) {
        let mut acceptor: HandshakeAcceptor<ControlRequest> =
            HandshakeAcceptor::new(Purpose::Control, &self.config.token);
        if let Some(listener) = &self.listener {
            let _ = listener.set_nonblocking(true);
        }
        let (mut last_heartbeat, mut last_tick) = (Instant::now(), Instant::now());
        loop {
            if let Some(offer) = &self.config.offer {
                offer.answer();
            }
            self.accept(&mut acceptor);
            let tick = Duration::from_millis(if self.policy.membership.is_working() { 20 } else { 2 });
            let received = receiver.recv_timeout(tick);
            self.detect_suspension(last_tick.elapsed());
            last_tick = Instant::now();
            match received {
                Ok(ConnectionEvent::Message(serial, id, message)) if self.is_current(serial, id) => {
                    self.on_message(id, message);
                }
                Ok(ConnectionEvent::Closed(serial, id, when)) if self.is_current(serial, id) => {
                    self.on_close(id, when);
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(id) = self.callbacks.exited.try_recv() {
                self.on_exit(id);
            }
            if last_heartbeat.elapsed() >= HEARTBEAT_INTERVAL {
                last_heartbeat = Instant::now();
                // The progress of the whole group: a waiting rank does not time out while others make progress.
                let progress = self.policy.monitor.progress_count();
                let own = self.callbacks.rank_status.heartbeat();
                self.broadcast(&Control::Heartbeat(Heartbeat { progress, ..own }));
                let requested = self.policy.boundary_requested();
                if std::mem::replace(&mut self.boundary_requested, requested) || requested {
                    self.broadcast(&Control::BoundaryRequested(requested));
                }
                if self.policy.meetings.is_used() {
                    self.call_meeting(self.policy.meetings.called());
                }
            }
            if let Some(when) = self.aborted_at {
                let late = self.late_join_timeout();
                if when.elapsed() > late.unwrap_or(LEAVE_TIMEOUT)
                    || (self.connected.is_empty() && late.is_none())
                {
                    return;
                }
                continue;
            }
            self.tick();
            let membership = &self.policy.membership;
            // While a group is being formed, members that are not connected may still connect.
            let all_left = self.serial > 0
                && self.connected.is_empty()
                && membership.generation() > 0
                && membership.is_working();
            if all_left || membership.is_empty() {
                return;
            }
        }
    }

    fn accept(&mut self, acceptor: &mut HandshakeAcceptor<ControlRequest>) {
        let Some(listener) = &self.listener else { return };
        let admitted = acceptor.accept(listener);
        while let Some((request, stream)) = acceptor.next(Duration::ZERO) {
            self.on_request(request, stream);
        }
        while let Some((from, reason)) = acceptor.next_refusal() {
            self.on_unauthenticated(from, &reason);
        }
        if let Err(error) = admitted {
            self.on_exhausted(error);
        }
    }

    /// Before it has its first roster, a rank can only answer probes.
    fn on_message(&mut self, id: usize, message: Control) {
        let Some(peer) = self.connected.get(&id) else { return };
        peer.release_queue_slot();
        match message {
            Control::Probed { rank, error } => self.on_probe_result(id, rank, error),
            _ if !peer.has_roster => self.on_close(id, Instant::now()),
            message if self.is_timed_out_by(id, &message) => self.abort_after_suspension(),
            message => {
                self.has_left |= id == self.config.own && message == Control::Leave;
                let commands = self.policy.on_message(id, message, self.now());
                self.execute(commands);
                self.callbacks.rank_status.set_group_rows(self.policy.meetings.rows());
            }
        }
    }

    fn on_close(&mut self, id: usize, when: Instant) {
        let membership = &self.policy.membership;
        if self.suspended.is_some() && membership.generation() > 0 && membership.has(id) {
            return self.abort_after_suspension();
        }
        let seen = when.saturating_duration_since(self.start);
        // It closed the connection itself: there is no process to send a removal error to.
        self.connected.remove(&id);
        let commands = self.policy.on_close(id, seen, self.now());
        self.execute(commands);
    }

    /// Checks all deadlines, and emits what is due.
    fn tick(&mut self) {
        let now = self.now();
        if self.config.membership.elastic && self.callbacks.rank_status.stop_requested() {
            self.policy.monitor.shorten_deadline(STALL_WHILE_STOPPING);
        }
        self.report_preparing();
        self.note_progress();
        let stall = self.policy.monitor.find_stall(now).filter(|_| self.policy.membership.is_working());
        if let Some(event) = self.stalls.update(now, stall) {
            (self.callbacks.emit)(event);
        }
        self.check_missing(now);
        self.check_probes(now);
        if self.aborted_at.is_none() {
            let commands = self.policy.tick(now);
            self.execute(commands);
        }
    }

    /// This process has no resources for another connection. A group that works does without newcomers; before the first
    /// one the job ends.
    fn on_exhausted(&mut self, error: Error) {
        if self.aborted_at.is_some() || self.policy.membership.generation() > 0 {
            return;
        }
        let own = self.config.own;
        let culprit = Culprit { rank: own, cause: error.message.clone(), ..Culprit::default() };
        let error = Error { message: format!("rank {own} {}", error.message), ..error }.blame(culprit);
        let heartbeat = self.callbacks.rank_status.heartbeat();
        (self.callbacks.emit)(Event::Failed { error: error.clone(), heartbeat });
        self.callbacks.rank_status.abort(error.clone());
        self.abort(error);
    }

    /// The launcher reports the exit of a rank's process. If the rank is connected, its connection closes, too.
    fn on_exit(&mut self, id: usize) {
        let expected = self.policy.membership.has(id) && !self.connected.contains_key(&id);
        if self.config.membership.elastic && expected {
            self.remove(id, join_validation::exited(id, unix_time()));
        }
    }

    fn remove(&mut self, id: usize, culprit: Culprit) {
        let commands = self.policy.remove(id, culprit, self.now());
        self.execute(commands);
    }

    fn is_current(&self, serial: u64, id: usize) -> bool {
        self.connected.get(&id).is_some_and(|peer| peer.serial == serial)
    }

    /// Closes the port, after withdrawing the token offered for it: the next job on that port has another one.
    fn stop_listening(&mut self) {
        self.config.offer = None;
        self.listener = None;
    }

    fn broadcast(&mut self, message: &Control) {
        let mut not_reading = Vec::new();
        for (id, peer) in self.connected.iter_mut().filter(|(_, peer)| peer.has_roster) {
            // Readers notice closed connections; a member that is connected but does not read holds up all others.
            if send(&mut peer.stream, message).is_err_and(|error| connection::is_full(&error)) {
                not_reading.push(*id);
            }
        }
        not_reading.retain(|id| *id != self.config.own);
        for id in not_reading {
            let cause = "does not read what the coordinator sends".to_string();
            self.remove(id, Culprit { rank: id, cause, ..Culprit::default() });
        }
    }
}
