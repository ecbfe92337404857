//! The life of a rank: from its environment to its goodbye.

use crate::control_connection::HEARTBEAT_INTERVAL;
use crate::coordinator_role::CoordinatorRole;
use crate::diagnosis::blame_self;
use crate::engine::environment::{RankEnvironment, RendezvousEndpoint};
use crate::fault_injection::OwnProcess;
pub use crate::forced_exit::{ExitReason, OnForcedExit};
use crate::forced_exit::{SessionState, SignalForwarder, force_exit};
use crate::hosts::Hosts;
use crate::interruption::{Received, Signal};
use crate::launcher_connection::LauncherConnection;
use crate::linux;
use crate::membership_client::{ControlSlot, TcpMembershipClient};
use crate::panics::{guarded, keep_panics};
use crate::rank::{Emit, Rank, RankParts};
use crate::rank_config::Token;
pub use crate::rank_config::{OnRecord, RankConfig, RankHooks};
use crate::rank_status::RankStatus;
use crate::regroup::Generation;
use crate::rendezvous::message::{Control, JoinKind, Member};
use crate::rendezvous::shm_setup::ConnectedTransport;
use crate::rendezvous::{JoinConfig, endpoint};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thalweg_core::clock::SystemClock;
use thalweg_core::event::{Event, Level, Record};
use thalweg_core::{Error, Result};

/// How long a rank that is done keeps the coordinator's role: as long as the others need.
const ROLE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The same for a rank that failed.
const FAILED_ROLE_TIMEOUT: Duration = Duration::from_secs(5);

/// `RankEnvironment::launcher` of a worker that joined by itself.
pub const JOIN: &str = "join";

/// How long a rank 0 that cannot begin stays to refuse the others.
const REFUSE_TIMEOUT: Duration = Duration::from_secs(6);

/// How long a program may take to notice that the job was aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Seconds since 1970.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Runs a program as the rank that this process is.
pub fn run<T>(
    environment: &RankEnvironment,
    config: &RankConfig,
    hooks: RankHooks,
    program: impl FnOnce(&mut Rank) -> Result<T>,
) -> Result<T> {
    keep_panics();
    let rank_status = RankStatus::new();
    rank_status.count_this_thread();
    let launcher = LauncherConnection::open(Arc::clone(&rank_status))?;
    let RankHooks { signals, on_record, on_forced_exit } = hooks;
    let session = Session {
        rank: environment.rank,
        token: config.shared_token(),
        rank_status,
        launcher,
        control: ControlSlot::default(),
        state: Arc::default(),
        members: Arc::default(),
        on_record,
        on_forced_exit,
    };
    if let Some(signals) = signals {
        // Without a launcher, rank 0 writes the results: if it is asked to end, the job ends.
        let drains = config.elastic && (session.launcher.is_some() || environment.rank != 0);
        session.forward_signals(signals, drains, environment.launcher == JOIN);
    }
    session.start_heartbeats();
    let role = session.coordinator_role(environment, config);
    if let Some(commands) = session.launcher.as_ref().and_then(|launcher| launcher.commands()) {
        role.follow(commands);
    }
    let joined = guarded(|| session.join(environment, config, &role));
    session.state.joined.store(true, Ordering::Relaxed);
    let result = joined.map(|mut rank| {
        let result = guarded(|| program(&mut rank))
            .map_err(|error| session.blame_self(rank.final_error(error), environment.world));
        session.state.done.store(result.is_ok(), Ordering::Relaxed);
        // The result is sent before the data connections close: the others must learn the reason first.
        session.send_result(&result);
        if result.is_ok() {
            rank.leave();
        }
        result
    });
    let result = result.unwrap_or_else(|error| {
        let failed = Err(session.blame_self(error, environment.world));
        session.send_result(&failed);
        failed
    });
    // The others may have to form one more group and repeat the end of the job, or this rank left them long before the end.
    // A process with the coordinator's role stays for them, and keeps sending heartbeats.
    role.serve_until_empty(if result.is_ok() { ROLE_TIMEOUT } else { FAILED_ROLE_TIMEOUT });
    session.state.ended.store(true, Ordering::Relaxed);
    if let Some(launcher) = &session.launcher {
        launcher.drain();
    }
    result
}

/// Tells ranks that join soon why rank 0 cannot begin. A failure of that is ignored: they wait until their own deadline.
pub fn refuse_joins(environment: &RankEnvironment, config: &RankConfig, error: &Error) {
    if environment.rank != 0 || environment.world == 1 || environment.joins {
        return;
    }
    let role = CoordinatorRole {
        environment: environment.clone(),
        config: RankConfig { join_deadline: Duration::ZERO, ..config.clone() },
        token: config.shared_token(),
        rank_status: RankStatus::new(),
        emit: Arc::new(|_| {}),
        launcher: None,
        members: Arc::default(),
        state: Mutex::default(),
    };
    let failed = Error { message: format!("rank 0 cannot begin: {}", error.message), ..error.clone() };
    if role.start_failed(Some(failed)).is_ok() {
        role.serve_until_empty(REFUSE_TIMEOUT);
    }
}

struct Session {
    rank: usize,
    token: Token,
    rank_status: Arc<RankStatus>,
    launcher: Option<Arc<LauncherConnection>>,
    control: ControlSlot,
    state: Arc<SessionState>,
    /// The members of the last generation.
    members: Arc<Mutex<Vec<Member>>>,
    on_record: OnRecord,
    on_forced_exit: OnForcedExit,
}

impl Session {
    fn forward_signals(&self, signals: Receiver<Received>, drains: bool, is_guest: bool) {
        let forwarder = SignalForwarder {
            rank: self.rank,
            rank_status: Arc::clone(&self.rank_status),
            state: Arc::clone(&self.state),
            emit: self.emit(),
            on_forced_exit: Arc::clone(&self.on_forced_exit),
            drains,
            is_guest,
        };
        std::thread::spawn(move || forwarder.run(&signals));
    }

    fn emit(&self) -> Emit {
        let (rank, launcher, on_record, rank_status) =
            (self.rank, self.launcher.clone(), Arc::clone(&self.on_record), Arc::clone(&self.rank_status));
        Arc::new(move |event| {
            let record = Record { time: unix_time(), rank: Some(rank), event };
            match &launcher {
                Some(launcher) => launcher.send(&record),
                None => {
                    if let Err(error) = on_record(&record) {
                        rank_status.abort(error);
                    }
                }
            }
        })
    }

    /// Starts the thread that sends heartbeats, and ends the process if the program does not end after an abort.
    fn start_heartbeats(&self) {
        let (rank_status, control, launcher, rank) =
            (Arc::clone(&self.rank_status), Arc::clone(&self.control), self.launcher.clone(), self.rank);
        let (state, on_forced_exit, emit) =
            (Arc::clone(&self.state), Arc::clone(&self.on_forced_exit), self.emit());
        let (mut aborted_for, mut boundary_requested) = (Duration::ZERO, false);
        std::thread::spawn(move || {
            while !state.ended.load(Ordering::Relaxed) {
                let heartbeat = rank_status.heartbeat();
                let connection = control.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(connection) = connection {
                    connection.send(&Control::Heartbeat(heartbeat.clone()));
                    let requested = rank_status.awaits_boundary();
                    if std::mem::replace(&mut boundary_requested, requested) || requested {
                        connection.send(&Control::BoundaryRequested(requested));
                    }
                }
                if let Some(launcher) = &launcher {
                    if launcher.is_closed() && !state.joined.load(Ordering::Relaxed) {
                        // There is no state to save yet, and no launcher to wait for the other ranks.
                        force_exit(&on_forced_exit, ExitReason::Signal(Signal::Terminate), || {});
                    }
                    let event = Event::Heartbeat(heartbeat);
                    launcher.send(&Record { time: unix_time(), rank: Some(rank), event });
                }
                if let Some(error) = rank_status.abort_reason() {
                    aborted_for += HEARTBEAT_INTERVAL;
                    if aborted_for > ABORT_TIMEOUT {
                        let heartbeat = rank_status.heartbeat();
                        let failed = Event::Failed { error: error.clone(), heartbeat };
                        force_exit(&on_forced_exit, ExitReason::Aborted(error), move || emit(failed));
                    }
                }
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        });
    }

    fn coordinator_role(&self, environment: &RankEnvironment, config: &RankConfig) -> Arc<CoordinatorRole> {
        Arc::new(CoordinatorRole {
            environment: environment.clone(),
            config: config.clone(),
            token: Arc::clone(&self.token),
            rank_status: Arc::clone(&self.rank_status),
            emit: self.emit(),
            launcher: self.launcher.clone(),
            members: Arc::clone(&self.members),
            state: Mutex::default(),
        })
    }

    /// Joins the group, or forms it with the others.
    fn join(
        &self,
        environment: &RankEnvironment,
        config: &RankConfig,
        role: &CoordinatorRole,
    ) -> Result<Rank> {
        let emit = self.emit();
        if environment.world == 1 && !environment.joins && !config.elastic {
            let ConnectedTransport { transport, local_peers, carrier } = ConnectedTransport::alone();
            let alone = Generation {
                number: 1,
                transport,
                local_peers,
                carrier,
                member_ids: vec![environment.rank],
                hosts: Hosts::one(&linux::host_name(), 1),
                change: Default::default(),
            };
            return Ok(self.rank(config, alone, emit, None));
        }
        let coordinates = environment.rank == 0 && !environment.joins;
        let (is_fixed, (addresses, endpoint)) = match (&environment.endpoint, &self.launcher) {
            (RendezvousEndpoint::At { .. }, _) if coordinates => (true, (0, role.start()?)),
            (fixed @ (RendezvousEndpoint::At { .. } | RendezvousEndpoint::InFile(_)), _) => {
                (true, (0, endpoint::to_text(fixed).unwrap_or_default()))
            }
            // The launcher sends back the address of this process: the first one after it is of another coordinator.
            (RendezvousEndpoint::ByLauncher, _) if coordinates => (false, (1, role.start()?)),
            (RendezvousEndpoint::ByLauncher, Some(launcher)) => {
                (false, launcher.await_coordinator(0, config.join_deadline)?)
            }
            (RendezvousEndpoint::ByLauncher, None) => {
                return Err(Error::internal("no launcher to ask for rank 0's address"));
            }
        };
        let (warnings, losses) = (Arc::clone(&emit), Arc::clone(&emit));
        let mut membership_client = TcpMembershipClient {
            join_config: JoinConfig {
                rank: environment.rank,
                world: environment.world,
                job: config.job,
                text: config.text.clone(),
                run: environment.run.clone(),
                model: config.model.clone(),
                data: config.data.clone(),
                token: self.token.get().cloned().unwrap_or_default(),
                host: linux::host_name(),
                anywhere: !environment.local,
                deadline: config.join_deadline,
                carrier: config.carrier,
            },
            token: Arc::clone(&self.token),
            join_kind: if environment.joins { JoinKind::New } else { JoinKind::Initial },
            step_deadline: config.step_deadline,
            timeout: config.prepare_deadline.max(config.join_deadline) + config.step_deadline,
            rank_status: Arc::clone(&self.rank_status),
            control: Arc::clone(&self.control),
            launcher: self.launcher.clone(),
            endpoint,
            addresses,
            is_fixed,
            may_return: environment.joins && self.launcher.is_none(),
            warn: Arc::new(move |message| warnings(Event::Notice { level: Level::Warning, message })),
            on_loss: Arc::new(move |error, heartbeat| {
                losses(Event::Lost { error: error.clone(), heartbeat: heartbeat.clone() });
            }),
            elastic: config.elastic,
            data: None,
            early: Default::default(),
            members: Arc::clone(&self.members),
            events: channel(),
        };
        let first = membership_client.first()?;
        if first.member_ids.first() == Some(&environment.rank) && !environment.joins {
            emit(Event::Joined { hosts: first.hosts.names().to_vec(), generation: first.number });
        }
        Ok(self.rank(config, first, emit, config.elastic.then_some(membership_client)))
    }

    fn rank(
        &self,
        config: &RankConfig,
        generation: Generation,
        emit: Emit,
        membership_client: Option<TcpMembershipClient>,
    ) -> Rank {
        let Generation { number, transport, local_peers, carrier, member_ids, hosts, change } = generation;
        Rank::new(RankParts {
            transport: transport.into(),
            hosts,
            member_ids,
            local_peers,
            carrier,
            generation: number,
            change,
            process: Arc::new(OwnProcess),
            membership_client: membership_client.map(|client| Box::new(client) as _),
            clock: Arc::new(SystemClock::default()),
            emit,
            rank_status: Arc::clone(&self.rank_status),
            step_deadline: config.step_deadline,
            prepare_deadline: config.prepare_deadline,
            seed: config.seed,
        })
    }

    fn blame_self(&self, error: Error, world: usize) -> Error {
        blame_self(error, self.rank, world, &linux::host_name(), &self.rank_status.heartbeat())
    }

    /// The last message to the launcher and to the coordinator.
    fn send_result<T>(&self, result: &Result<T>) {
        let heartbeat = self.rank_status.heartbeat();
        if let Err(error) = result {
            (self.emit())(Event::Failed { error: error.clone(), heartbeat: heartbeat.clone() });
        }
        let connection = self.control.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(connection) = connection {
            connection.close(&match result {
                Ok(_) => Control::Goodbye,
                Err(error) => Control::Failed(Box::new(error.clone()), heartbeat),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Limits;
    use thalweg_core::spec::strategy::TransportChoice;

    #[test]
    fn a_panic_during_the_rendezvous_is_an_error_with_message_and_location() {
        let environment = RankEnvironment {
            rank: 0,
            world: 2,
            endpoint: RendezvousEndpoint::at("127.0.0.1", 0),
            local: true,
            launcher: "test",
            joins: false,
            run: String::new(),
        };
        let config = RankConfig {
            job: [0; 32],
            text: String::new(),
            model: Vec::new(),
            data: String::new(),
            seed: 0,
            elastic: false,
            limits: Limits { min: 1, max: 2, timeout: Duration::from_secs(60), unit: 1 },
            servers: 0..0,
            token: Vec::new(),
            step_deadline: Duration::from_secs(60),
            join_deadline: Duration::from_secs(60),
            prepare_deadline: Duration::from_secs(60),
            carrier: TransportChoice::Tcp,
            port: 0,
        };
        let on_record = |record: &Record| match record.event {
            Event::Listening { .. } => panic!("no room for this record"),
            _ => Ok(()),
        };
        let hooks =
            RankHooks { signals: None, on_record: Arc::new(on_record), on_forced_exit: Arc::new(|_| {}) };
        let error = run(&environment, &config, hooks, |_| Ok(())).unwrap_err();
        let message = "the program panicked: no room for this record (crates/cluster/src/session.rs:";
        assert!(error.message.starts_with(&format!("rank 0: {message}")), "{}", error.message);
    }
}
